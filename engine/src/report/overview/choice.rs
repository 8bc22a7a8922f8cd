//! Selection settings of a run, from the manifest and the calibration: terms of its score, guards, budget.

use longsift_stages::contract::{Column, Kind};
use longsift_stages::filter::guards::Bounds;
use longsift_stages::score::terms::{Combine, Scorer, Term};
use longsift_stages::{Filter, Score, StageSettings};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::run_directory::calibration::CalibratedGroup;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::scores;

pub(crate) struct SelectionSettings {
    pub(crate) score: Score,
    pub(crate) filter: Filter,
    pub(crate) terms: Vec<Term>,
    pub(crate) combine: Combine,
    pub(crate) documents: bool,
    /// Statistics of the scores, each with its measure.
    pub(crate) columns: Vec<(String, Column)>,
}

impl SelectionSettings {
    /// Reads the selection settings of a manifest; `directory` holds its scores.
    pub(crate) fn from_manifest(manifest: &Manifest, directory: &RunDirectory) -> Result<Self> {
        let settings = &manifest.lock.settings;
        let unreadable = |why: &str| {
            let message = format!("the settings of the run cannot be read: {why}");
            let hint = "another version of longsift wrote them, or the manifest is damaged";
            Diagnostic::error(Blame::Data, message).hint(hint)
        };
        let stages: Vec<StageSettings> = serde_json::from_value(settings["stages"].clone())
            .map_err(|why| unreadable(&why.to_string()))?;
        let (mut score, mut filter) = (None, None);
        for stage in stages {
            match stage {
                StageSettings::Score(of) => score = Some(of),
                StageSettings::Filter(of) => filter = Some(of),
                _ => {}
            }
        }
        let (score, filter) =
            score.zip(filter).ok_or_else(|| unreadable("no stage `score` or `filter`"))?;
        let measured = manifest.units.iter().find(|unit| unit.counts.windows > 0);
        let measures = match measured {
            Some(unit) => scores::measures(&directory.root.join(&unit.scores.path))?,
            None => Vec::new(),
        };
        let asked_for = &manifest.lock.identity.measures;
        let columns: Vec<(String, Column)> = measures
            .into_iter()
            .filter(|of| asked_for.contains_key(&of.measure))
            .flat_map(|of| of.columns.into_iter().map(move |column| (of.measure.clone(), column)))
            .collect();
        let declared: Vec<Column> = columns.iter().map(|(_, column)| column.clone()).collect();
        let (terms, combine) = score.terms(&declared);
        let documents = settings["output"]["samples"] == "documents";
        Ok(Self { score, filter, terms, combine, documents, columns })
    }

    /// Returns whether a sample with this reason was rejected before a measure, which was therefore skipped.
    pub(crate) fn is_early_rejection(&self, reason: &str) -> bool {
        let refused = reason.strip_prefix("guard_");
        let mut early = self.filter.guards.iter().filter(|guard| guard.before.is_some());
        refused.is_some_and(|statistic| early.any(|guard| guard.statistic == statistic))
    }

    pub(crate) fn is_guarded(&self, measure: &str) -> bool {
        self.filter.guards.iter().any(|guard| guard.before.as_deref() == Some(measure))
    }

    /// Returns the statistics that are lists, each with whether a guard runs before its measure.
    pub(super) fn lists(&self) -> Vec<(&str, bool)> {
        let lists = self.columns.iter().filter(|(_, column)| column.kind == Kind::Numbers);
        lists.map(|(measure, column)| (&*column.name, self.is_guarded(measure))).collect()
    }

    pub(crate) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().map(|(_, column)| column).find(|column| column.name == name)
    }

    /// Returns the scorer of a group; `None` if the calibration does not define it.
    pub(crate) fn scorer(&self, known: &CalibratedGroup) -> Option<Scorer> {
        known.scorer(&self.terms, self.combine, self.score.standardise)
    }

    pub(crate) fn bounds(&self, known: &CalibratedGroup, statistic: &str) -> Vec<Bounds> {
        let guards = self.filter.guards.iter().zip(&known.guards);
        guards.filter(|(guard, _)| guard.statistic == statistic).map(|(_, of)| *of).collect()
    }

    pub(crate) fn score_in_words(&self) -> String {
        let columns: Vec<Column> = self.columns.iter().map(|(_, column)| column.clone()).collect();
        self.score.in_words(&columns)
    }

    /// Describes the guards: `copy_share at most 0.4`.
    pub(crate) fn guards(&self) -> Vec<String> {
        let guards = self.filter.guards.iter();
        guards.map(|guard| format!("{} {}", guard.statistic, guard.in_words())).collect()
    }
}
