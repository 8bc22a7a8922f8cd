//! Alternative selections (`output.compare`): the samples that named scores would keep, with the same statistics, groups and
//! amount but without guards.

use super::criteria::Criteria;
use super::decided::Decisions;
use super::gather::GatheredSamples;
use super::rank::{RankedGroup, Ranking};
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::plan::Plan;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::units::UnitRecord;

/// Selects by each score of `output.compare` in turn, reading the score tables once for each. Every selection reads the columns
/// of `own` and of the selections before it, so the last one has all columns.
pub(super) fn select(
    plan: &Plan,
    directory: &RunDirectory,
    records: &[UnitRecord],
    own: &Criteria,
    stop: &Stop,
) -> Result<Vec<Decisions>> {
    let mut columns = own.columns.clone();
    let mut compared = Vec::new();
    for formula in &plan.spec.pipeline.output.compare {
        let criteria = Criteria::for_formula(plan, *formula, columns.clone());
        columns.clone_from(&criteria.columns);
        let gathered = GatheredSamples::read(plan, directory, records, &criteria, stop)?;
        let ranking = Ranking::new(&criteria, &gathered, &plan.directory, stop)?;
        let ranked = ranking.each_group(RankedGroup::by_own_statistics)?;
        let (_, file) = ranking.finish()?;
        let rules = ranked.iter().map(|ranked| ranked.rule(&criteria, &file));
        let rules = gathered.by_number(rules);
        compared.push(Decisions { criteria, rules });
    }
    Ok(compared)
}
