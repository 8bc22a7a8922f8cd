//! Components of a preset, and warnings if its statistics or guards do not fit the pipeline.

use longsift_stages::tokenize::{ShortDocuments, Windows};

use super::findings::Findings;
use super::measures::Measures;
use crate::base::text::count;
use crate::plan::Plan;

/// Guards for pipelines with text: statistic and maximum.
const TEXT_GUARDS: [(&str, f64); 3] =
    [("repeated_share", 0.7), ("digit_share", 0.2), ("unbroken_share", 0.3)];
/// Window lengths in tokens for which the thresholds were chosen. Both statistics grow with the length.
const TESTED_TOKENS: std::ops::RangeInclusive<u32> = 1024..=32_768;
const LENGTH_DEPENDENT: [&str; 2] = ["repeated_share", "frequent_token_share"];

/// Lists the components of a preset, one line per measure; empty if the terms are written out.
pub(super) fn components(plan: &Plan) -> Vec<String> {
    let (score, measures) = (plan.spec.score(), &plan.measures);
    if score.terms.is_some() {
        return Vec::new();
    }
    let (terms, _) = score.terms(&measures.statistics());
    let of_measure = |measure: &crate::run_directory::scores::MeasureColumns| {
        let own = |name: &str| measure.columns.iter().any(|column| column.name == name);
        let own = terms.iter().filter(|term| own(&term.statistic));
        let own: Vec<String> = own
            .map(|term| {
                let left_out = if term.optional { " (left out if null)" } else { "" };
                format!("{term}{left_out}")
            })
            .collect();
        (!own.is_empty()).then(|| format!("from `{}`: {}", measure.measure, own.join(", ")))
    };
    measures.columns.iter().filter_map(of_measure).collect()
}

pub(super) fn incomplete_preset(measures: &Measures, found: &mut Findings<'_>) {
    let spec = found.spec;
    let (score, filter) = (spec.score(), spec.filter());
    let compared = spec.pipeline.output.compare.iter();
    let mut formulas = (score.formula.iter().map(|formula| (formula, "stages.score.formula")))
        .chain(compared.map(|formula| (formula, "output.compare")));
    let Some((formula, setting)) = formulas.find(|(formula, _)| formula.is_balanced()) else {
        return;
    };
    // A compared formula has no guards.
    let is_compared = setting == "output.compare";
    let has_text = spec.pipeline.input.tokens_column.is_none();
    let lexical = measures.index_of("digit_share").is_some();
    let is_missing =
        |statistic: &str| !filter.guards.iter().any(|guard| guard.statistic == statistic);
    let wanted = TEXT_GUARDS.iter().filter(|(name, _)| has_text || *name == "repeated_share");
    let missing: Vec<_> = wanted.filter(|(name, _)| !is_compared && is_missing(name)).collect();
    let without_lexical = has_text && !lexical;
    if missing.is_empty() && !without_lexical {
        return;
    }
    let mut names = Vec::new();
    if without_lexical {
        names.push("`lexical` on text".to_owned());
    }
    if !missing.is_empty() {
        let guards = if missing.len() == 1 { "a guard on" } else { "guards on" };
        let statistics: Vec<_> = missing.iter().map(|(name, _)| format!("`{name}`")).collect();
        names.push(format!("{guards} {}", statistics.join(", ")));
    }
    let name = formula.name();
    let message =
        format!("`{name}` works best with settings that this pipeline lacks: {}", names.join("; "));
    let before = if spec.language_model().is_some() { ", before: language-model" } else { "" };
    let mut yaml = vec!["add to the pipeline:".to_owned()];
    if without_lexical {
        let line = if spec.lexical().is_some() {
            "  - {stage: lexical, text: true}   # replaces the existing stage"
        } else {
            "  - stage: lexical                 # before `score`"
        };
        yaml.push(line.to_owned());
    }
    if !missing.is_empty() {
        yaml.push("    guards:                        # of `filter`".to_owned());
    }
    let guard =
        |(name, max): &&(&str, f64)| format!("      - {{statistic: {name}, max: {max}{before}}}");
    yaml.extend(missing.iter().map(guard));
    let hint = "guards with other bounds on these statistics also silence this warning";
    found.add([spec.warning(setting, message).notes(yaml).hint(hint)]);
}

pub(super) fn window_length(measures: &Measures, found: &mut Findings<'_>) {
    let spec = found.spec;
    let (terms, _) = spec.score().terms(&measures.statistics());
    let of_terms = terms.iter().map(|term| &term.statistic);
    let mut used = of_terms.chain(spec.filter().guards.iter().map(|guard| &guard.statistic));
    let Some(statistic) = used.find(|name| LENGTH_DEPENDENT.contains(&name.as_str())) else {
        return;
    };
    let settings = spec.tokenize();
    let tokens = settings.window_tokens;
    let (lengths, key) = if settings.windows == Windows::WholeDocument {
        (format!("up to {} tokens, as long as its document", count(u64::from(tokens))), "windows")
    } else if settings.short_documents == ShortDocuments::Score {
        (
            format!("up to {} tokens, where short documents are scored", count(u64::from(tokens))),
            "short_documents",
        )
    } else if !TESTED_TOKENS.contains(&tokens) {
        (format!("{} tokens", count(u64::from(tokens))), "window_tokens")
    } else {
        return;
    };
    let message = format!(
        "`{statistic}` depends on the length of a window, and its bounds were tested from {} to {} tokens: a window has {lengths}",
        count(u64::from(*TESTED_TOKENS.start())),
        count(u64::from(*TESTED_TOKENS.end()))
    );
    let hint = "check with `longsift evaluate --windows` what the guards reject at your lengths";
    found.warning(&format!("stages.tokenize.{key}"), message, hint);
}
