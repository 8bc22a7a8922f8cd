//! Look-up of statistics by name, with hints for unknown names.

use crate::contract::{BrokenRule, Column, Kind, Measure};
use crate::first_layer_attention::FirstLayerAttention;

use super::{Compression, LanguageModel, Lexical, Recurrence};

/// Finds the single number among `columns`, those of the pipeline, that a term or a guard names at `setting`.
pub fn scalar<'c>(
    setting: &str,
    name: &str,
    columns: &'c [Column],
) -> Result<&'c Column, BrokenRule> {
    let scalars = || columns.iter().filter(|column| column.kind != Kind::Numbers);
    let known = || {
        let names: Vec<_> = scalars().map(|column| format!("`{}`", column.name)).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let Some(column) = columns.iter().find(|column| column.name == name) else {
        let message = format!("no measure of the pipeline computes the statistic `{name}`");
        let hint = match (default_stage(name), nearest(name, scalars().map(|column| &*column.name)))
        {
            (Some(measure), _) => format!("add `- stage: {measure}`, which computes it"),
            (None, Some(meant)) => format!("did you mean `{meant}`? the pipeline has {}", known()),
            (None, None) => format!("the pipeline has {}", known()),
        };
        return Err(BrokenRule::new(setting, message, hint));
    };
    if column.kind == Kind::Numbers {
        let message = format!("`{name}` is a list of numbers; expected a single number");
        return Err(BrokenRule::new(setting, message, format!("use one of {}", known())));
    }
    Ok(column)
}

/// Returns the stage that writes a statistic with its default settings.
pub fn default_stage(name: &str) -> Option<&'static str> {
    find(name).map(|(stage, _)| stage)
}

/// Returns whether a statistic is measured on text: the pipeline then needs a measure of text.
pub fn needs_text(name: &str) -> bool {
    // `lexical` counts tokens as well.
    let of_tokens = Lexical { text: Some(false) }.columns();
    find(name).is_some_and(|(_, needs_text)| needs_text)
        && !of_tokens.iter().any(|column| column.name == name)
}

/// Returns the stage that writes a statistic, and whether it needs text.
fn find(name: &str) -> Option<(&'static str, bool)> {
    let measures: [(&'static str, &dyn Measure); 5] = [
        ("first-layer-attention", &FirstLayerAttention::default()),
        ("recurrence", &Recurrence::default()),
        ("compression", &Compression::default()),
        ("lexical", &Lexical::default()),
        ("language-model", &LanguageModel::default()),
    ];
    let writes = |measure: &dyn Measure| measure.columns().iter().any(|column| column.name == name);
    let needs_text = |measure: &dyn Measure| measure.needs().window_text;
    measures
        .into_iter()
        .find_map(|(stage, measure)| writes(measure).then(|| (stage, needs_text(measure))))
}

/// Returns the most similar known name; a third of the letters may differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Case and the choice between `-`, `_` and a space are the likeliest mistakes and do not count.
    let normalised = |name: &str| name.to_lowercase().replace(['-', ' '], "_");
    let typed = normalised(name);
    let length = typed.chars().count();
    known
        .into_iter()
        .filter(|known| known.len().abs_diff(length) <= known.len().max(length) / 3)
        .map(|known| (strsim::damerau_levenshtein(&typed, &normalised(known)), known))
        .filter(|(distance, known)| *distance <= known.len().max(length) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<Column> {
        Recurrence::default().columns()
    }

    fn refused(name: &str, columns: &[Column]) -> (String, String) {
        let rule = scalar("terms.0.statistic", name, columns).unwrap_err();
        assert_eq!(rule.setting, "terms.0.statistic");
        (rule.message, rule.hint)
    }

    #[test]
    fn a_statistic_is_found_by_its_name() {
        assert_eq!(scalar("", "copy_share", &columns()).unwrap().name, "copy_share");
        assert_eq!(scalar("", "recurrence_distance", &columns()).unwrap().kind, Kind::Count);
    }

    #[test]
    fn a_misspelt_statistic_gets_a_suggestion() {
        let (message, hint) = refused("far_recurence", &columns());
        assert_eq!(message, "no measure of the pipeline computes the statistic `far_recurence`");
        assert!(hint.starts_with("did you mean `far_recurrence`? the pipeline has `far_recurrence`, `near_recurrence`"), "{hint}");
        assert!(!hint.contains("histogram"), "a list is not a term: {hint}");
        assert!(
            refused("Link-Coverage", &columns()).1.starts_with("did you mean `link_coverage`?")
        );
        assert!(refused("quality", &columns()).1.starts_with("the pipeline has `far_recurrence`"));
        assert_eq!(refused("quality", &[]).1, "the pipeline has none");
        assert!(refused(&"x".repeat(1 << 20), &columns()).1.starts_with("the pipeline has"));
    }

    #[test]
    fn a_statistic_of_another_measure_gets_its_stage_as_a_hint() {
        let hint = |name: &str| refused(name, &columns()).1;
        assert_eq!(
            hint("dependency_strength"),
            "add `- stage: first-layer-attention`, which computes it"
        );
        assert_eq!(hint("gzip_ratio"), "add `- stage: compression`, which computes it");
        assert_eq!(hint("unique_token_share"), "add `- stage: lexical`, which computes it");
    }

    #[test]
    fn text_and_token_statistics_are_distinguished() {
        let of_text = ["digit_share", "unbroken_share", "gzip_ratio", "deflate_gain"];
        assert!(of_text.iter().all(|name| needs_text(name)));
        let others = ["unique_token_share", "repeated_share", "long_gain", "nobody"];
        assert!(!others.iter().any(|name| needs_text(name)));
    }

    #[test]
    fn a_list_is_not_a_single_number() {
        let (message, hint) = refused("recurrence_histogram", &columns());
        assert_eq!(
            message,
            "`recurrence_histogram` is a list of numbers; expected a single number"
        );
        assert!(hint.starts_with("use one of `far_recurrence`"), "{hint}");
    }
}
