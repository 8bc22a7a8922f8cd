//! Alternative selections (`output.compare`): the samples that named scores would keep, with the same statistics, groups and
//! amount but without guards.

use super::criteria::Criteria;
use super::decided::Rule;
use super::gather::GatheredSamples;
use super::rank::{RankedGroup, Ranking};
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::plan::Plan;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::ScoredWindow;
use crate::run_directory::units::UnitRecord;

#[derive(Debug)]
pub(super) struct AlternativeSelection {
    pub(super) criteria: Criteria,
    /// By number of the group.
    rules: Vec<Rule>,
}

impl AlternativeSelection {
    /// Whether a sample is kept, given its windows and its file.
    pub(super) fn keeps(
        &self,
        windows: &[ScoredWindow],
        file: &str,
        group: u32,
        number: u64,
    ) -> bool {
        let criteria = &self.criteria;
        let rule = &self.rules[group as usize];
        let values = criteria.values(windows, file);
        let (sample_state, tokens) =
            (rule.sample_state(criteria, &values), criteria.tokens(windows));
        rule.keeps(criteria, sample_state, tokens, number)
    }
}

/// Selects by each score of `output.compare` in turn, reading the score tables once for each. Every selection reads the columns
/// of `own` and of the selections before it, so the last one has all columns.
pub(super) fn select(
    plan: &Plan,
    directory: &RunDirectory,
    records: &[UnitRecord],
    own: &Criteria,
    stop: &Stop,
) -> Result<Vec<AlternativeSelection>> {
    let mut columns = own.columns.clone();
    let mut compared = Vec::new();
    for formula in &plan.spec.pipeline.output.compare {
        let criteria = Criteria::for_formula(plan, *formula, columns.clone());
        columns.clone_from(&criteria.columns);
        let gathered = GatheredSamples::read(plan, directory, records, &criteria, stop)?;
        let ranking = Ranking::new(&criteria, &gathered, &plan.directory, stop)?;
        let ranked = ranking.each_group(RankedGroup::by_own_statistics)?;
        let (_, _, histograms) = ranking.finish()?;
        let rules = ranked.iter().map(|ranked| ranked.rule(&criteria, &histograms));
        let rules = gathered.by_number(rules);
        compared.push(AlternativeSelection { criteria, rules });
    }
    Ok(compared)
}
