//! Measures of a pipeline: their names, columns and requirements.

use std::collections::HashSet;
use std::ops::Range;

use longsift_stages::contract::{BrokenRule, Column, Measure, Needs};
use longsift_stages::measures::statistics;
use longsift_stages::{Role, Score, StageSettings};

use super::findings::Findings;
use crate::dataset::documents::ContentColumn;
use crate::run_directory::scores::{self, MeasureColumns};
use crate::run_directory::selected;
use crate::spec::Spec;

#[derive(Clone, Debug, Default)]
pub struct Measures {
    stages: Vec<usize>,
    pub columns: Vec<MeasureColumns>,
    /// Minimum tokens of a window, including BOS, that all measures require.
    pub min_tokens: u64,
    /// Whether any measure requires the text of windows or documents.
    pub text: bool,
}

impl Measures {
    pub fn new(stages: &[StageSettings]) -> Self {
        let mut measures = Self { min_tokens: 2, ..Self::default() };
        for (index, stage) in stages.iter().enumerate() {
            let Some(measure) = stage_measure(stage) else { continue };
            let name = measure.name().unwrap_or(stage.name()).to_owned();
            let mut columns = measure.columns();
            if let Some(prefix) = measure.prefix() {
                columns = columns.into_iter().map(|column| column.prefixed(prefix)).collect();
            }
            let Needs { window_text, document_text, evidence: _ } = measure.needs();
            measures.text |= window_text || document_text;
            measures.min_tokens = measures.min_tokens.max(measure.min_tokens());
            measures.stages.push(index);
            measures.columns.push(MeasureColumns { measure: name, columns });
        }
        measures
    }

    pub fn statistics(&self) -> Vec<Column> {
        self.columns.iter().flat_map(|measure| measure.columns.clone()).collect()
    }

    /// Returns the index of the measure with a statistic, and the index of the statistic among its columns.
    pub fn index_of(&self, statistic: &str) -> Option<(u16, usize)> {
        self.columns.iter().zip(self.indices()).find_map(|(measure, index)| {
            let column = measure.columns.iter().position(|column| column.name == statistic)?;
            Some((index, column))
        })
    }

    pub fn indices(&self) -> Range<u16> {
        0..self.stages.len() as u16
    }

    pub fn stage(&self, index: u16) -> usize {
        self.stages[usize::from(index)]
    }

    /// Returns the measure at an index. `stages`: the stages that these measures were created from.
    pub fn get<'s>(&self, stages: &'s [StageSettings], index: u16) -> &'s dyn Measure {
        stage_measure(&stages[self.stages[usize::from(index)]]).expect("only measures are listed")
    }
}

/// Returns the measure of a stage. All windows of a document share the statistics of a stage of documents.
fn stage_measure(stage: &StageSettings) -> Option<&dyn Measure> {
    match stage.role() {
        Role::Measure(measure) => Some(measure),
        Role::Rows(stage) if !stage.statistics.is_empty() => Some(stage),
        _ => None,
    }
}

/// Checks measures, score, filter and checks. `is_output_column`: whether a statistic collides with a column of the output.
pub(super) fn check(
    measures: &Measures,
    content: &ContentColumn,
    is_output_column: impl Fn(&str) -> bool,
    found: &mut Findings<'_>,
) {
    let spec = found.spec;
    let mut names = HashSet::new();
    for (index, columns) in measures.stages.iter().zip(&measures.columns) {
        let stage = &spec.pipeline.stages[*index];
        let Some(measure) = stage_measure(stage) else { continue };
        let path = match stage {
            StageSettings::External(stage) => format!("stages.{}", stage.name),
            _ => format!("stages.{}", stage.name()),
        };
        let mut refuse = |message: String, hint: &str| found.error(&path, message, hint);
        let statistics = columns.columns.iter().map(|column| column.name.as_ref());
        // A program with one statistic may have the name of its stage.
        let shares = matches!(stage, StageSettings::External(_))
            && columns.columns.iter().any(|column| column.name == columns.measure);
        let own = Some(columns.measure.as_str()).filter(|_| !shares);
        let taken: Vec<&str> = own
            .into_iter()
            .chain(statistics)
            .filter(|name| !names.insert((*name).to_owned()))
            .collect();
        if let Some(first) = taken.first() {
            let message = format!("two measures or statistics are named `{first}`");
            refuse(message, "give one of the stages another `name`");
        }
        let mut statistics = columns.columns.iter().map(|column| column.name.as_ref());
        let is_taken = |name: &&str| {
            scores::is_window_column(name)
                || selected::is_sample_column(name)
                || is_output_column(name)
        };
        if let Some(name) = statistics.find(is_taken) {
            let message =
                format!("`{name}` is reserved: windows or samples have a column of this name");
            refuse(message, "give the statistic another name");
        }
        let needs = measure.needs();
        if (needs.window_text || needs.document_text) && matches!(content, ContentColumn::Tokens(_))
        {
            let message =
                format!("`{}` measures text, but the input contains token ids", columns.measure);
            let hint = match stage {
                StageSettings::Lexical(_) => {
                    "read texts with `input.text_column`, or remove `text: true`"
                }
                _ => "read texts with `input.text_column`, or remove the stage",
            };
            refuse(message, hint);
        }
        let (min, max) = (measure.min_tokens(), u64::from(spec.tokenize().window_tokens));
        if needs.attention().is_none() && min > max {
            let message = format!(
                "`{}` requires windows of {min} tokens, but they have at most {max}",
                columns.measure
            );
            refuse(message, "lower its far distance, or raise `window_tokens`");
        }
    }
    let (score, filter) = (spec.score(), spec.filter());
    check_compared(measures, found);
    let listed: Vec<(&str, Vec<Column>)> = measures
        .columns
        .iter()
        .map(|measure| (measure.measure.as_str(), measure.columns.clone()))
        .collect();
    let of_score =
        [score.broken_rules(), score.unknown_statistics(&measures.statistics())].concat();
    let of_filter = filter.broken_rules(score.within.is_some(), &listed);
    let used = used(spec, measures);
    let programs: Vec<&str> = spec.externals().map(|settings| &*settings.name).collect();
    for (index, check) in spec.pipeline.checks.iter().enumerate() {
        let rules = check.broken_rules(&used, score.within.is_some(), &programs);
        found.broken_rules(&format!("checks.{index}"), rules);
    }
    for (stage, rules) in [("score", of_score), ("filter", of_filter)] {
        let rules = rules.into_iter().map(|rule| without_text(spec, content, rule)).collect();
        found.broken_rules(&format!("stages.{stage}"), rules);
    }
}

/// Replaces the message of a rule about a text statistic if the pipeline has no text.
fn without_text(spec: &Spec, content: &ContentColumn, rule: BrokenRule) -> BrokenRule {
    let statistic = || {
        let index =
            |list: &str| rule.setting.strip_prefix(list)?.strip_suffix(".statistic")?.parse().ok();
        let guard = index("guards.").and_then(|index: usize| spec.filter().guards.get(index));
        let terms = spec.score().terms.as_deref().unwrap_or_default();
        let term = index("terms.").and_then(|index: usize| terms.get(index));
        guard.map(|guard| &guard.statistic).or_else(|| term.map(|term| &term.statistic))
    };
    let Some(name) = statistic().filter(|name| statistics::needs_text(name)) else { return rule };
    let (reason, hint) = match content {
        ContentColumn::Tokens(_) => (
            "the input contains token ids",
            if statistics::default_stage(name) == Some("lexical") {
                "read texts with `input.text_column`, or use `frequent_token_share` of `recurrence`, which needs token ids alone"
            } else {
                "read texts with `input.text_column`"
            },
        ),
        ContentColumn::Text(_)
            if spec.lexical().is_some() && statistics::default_stage(name) == Some("lexical") =>
        {
            ("`lexical` has `text: false`", "remove `text: false`")
        }
        ContentColumn::Text(_) => return rule,
    };
    BrokenRule::new(rule.setting, format!("`{name}` is measured on text, and {reason}"), hint)
}

fn used(spec: &Spec, measures: &Measures) -> Vec<String> {
    let (terms, _) = spec.score().terms(&measures.statistics());
    let of_terms = terms.into_iter().map(|term| term.statistic);
    let of_guards = spec.filter().guards.iter().map(|guard| guard.statistic.clone());
    let mut used: Vec<String> = Vec::new();
    for name in of_terms.chain(of_guards) {
        if !used.contains(&name) {
            used.push(name);
        }
    }
    used
}

fn check_compared(measures: &Measures, found: &mut Findings<'_>) {
    let spec = found.spec;
    let output = &spec.pipeline.output;
    if output.compare.is_empty() {
        return;
    }
    if output.report_by.is_none() {
        let message = "`output.compare` requires `output.report_by`";
        let hint = "set `output.report_by` to a label column, or remove `compare`";
        found.error("output.compare", message, hint);
    }
    if spec.score().calibration.is_some() {
        let message = "a calibration has no thresholds for the scores in `compare`";
        found.error("output.compare", message, "remove `compare`, or `score.calibration`");
    }
    let statistics = measures.statistics();
    let skipped: Vec<&str> =
        spec.filter().guards.iter().filter_map(|guard| guard.before.as_deref()).collect();
    let is_of_skipped = |statistic: &str| {
        let measure = measures.index_of(statistic).map(|(measure, _)| usize::from(measure));
        measure.is_some_and(|measure| skipped.contains(&&*measures.columns[measure].measure))
    };
    for (index, formula) in output.compare.iter().enumerate() {
        let path = format!("output.compare.{index}");
        if output.compare[..index].contains(formula) {
            let message = format!("`{}` is listed twice", formula.name());
            found.error(&path, message, "remove one of the two");
        }
        let settings = Score { formula: Some(*formula), terms: None, ..spec.score().clone() };
        found.broken_rules(&path, settings.unknown_statistics(&statistics));
        let (terms, _) = settings.terms(&statistics);
        if let Some(term) = terms.iter().find(|term| is_of_skipped(&term.statistic)) {
            let message = format!(
                "`{}` requires `{}`, which is not measured for windows that a guard skips",
                formula.name(),
                term.statistic
            );
            found.error(&path, message, "remove it here, or `before` from the guard");
        }
    }
}
