//! Alternative selections (`output.compare`): the samples that named scores would keep, with the same statistics, groups and
//! amount but without guards.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::criteria::Criteria;
use super::decided::Rule;
use super::gather::Gathered;
use super::histograms::HistogramsOfGroups;
use super::rank::{Ranked, Ranking};
use super::score_percentiles::PercentilesOfGroups;
use crate::base::error::Result;
use crate::base::parallel;
use crate::base::stop::Stop;
use crate::plan::Plan;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::ScoredWindow;
use crate::run_directory::units::UnitRecord;

/// Alternative selection by one score.
#[derive(Debug)]
pub(super) struct Compared {
    pub(super) criteria: Criteria,
    /// Value of the `within` column and rule of each group, by number of the group.
    rules: Vec<(Option<Arc<str>>, Rule)>,
}

impl Compared {
    /// Whether a sample is kept, given its windows and its file.
    pub(super) fn keeps(
        &self,
        windows: &[ScoredWindow],
        file: &str,
        group: u32,
        number: u64,
    ) -> bool {
        let criteria = &self.criteria;
        let (group, rule) = &self.rules[group as usize];
        let values = criteria.values(windows, file);
        let (sample_state, tokens) =
            (rule.sample_state(criteria, &values), criteria.tokens(windows));
        rule.keeps(criteria, group.as_deref(), sample_state, tokens, number)
    }
}

/// Selects by each score of `output.compare` in turn, reading the score tables once for each. The columns of the last are those
/// of all, after those of `own`.
pub(super) fn select(
    plan: &Plan,
    directory: &RunDirectory,
    records: &[UnitRecord],
    own: &Criteria,
    stop: &Stop,
) -> Result<Vec<Compared>> {
    let mut columns = own.columns.clone();
    let mut compared = Vec::new();
    for formula in &plan.spec.pipeline.output.compare {
        let criteria = Criteria::for_formula(plan, *formula, columns.clone());
        columns.clone_from(&criteria.columns);
        let gathered = Gathered::read(plan, directory, records, &criteria, stop)?;
        let percentiles = &PercentilesOfGroups::new(&plan.directory)?;
        let of_groups = HistogramsOfGroups::new(&plan.directory)?;
        let kept: Vec<AtomicU64> = records.iter().map(|_| AtomicU64::new(0)).collect();
        let groups: Vec<(&Option<String>, u32)> =
            gathered.groups.iter().map(|(value, group)| (value, *group)).collect();
        let mut ranked = parallel::in_order(groups.len(), rayon::current_num_threads(), |index| {
            let (value, group) = groups[index];
            let (criteria, gathered, kept) = (&criteria, &gathered, &kept[..]);
            let (name, histograms) = (value.as_deref(), &of_groups);
            let ranking =
                Ranking { criteria, gathered, name, group, kept, percentiles, histograms, stop };
            Ok((group, (name.map(Arc::from), ranking.by_own_statistics()?)))
        })?;
        ranked.sort_by_key(|(group, _)| *group);
        let histograms = of_groups.finish()?;
        let rule = |(_, (name, ranked)): (u32, (_, Ranked))| {
            let rule = ranked.rule(&criteria, &histograms);
            (name, rule)
        };
        let rules = ranked.into_iter().map(rule).collect();
        compared.push(Compared { criteria, rules });
    }
    Ok(compared)
}
