//! The pipeline that `longsift init` writes.

use serde_json::Value;

/// Lines of the template that begin with this are there where a model is given.
const WITH_MODEL: char = '@';
/// Lines that begin with this are there where none is.
const WITHOUT_MODEL: char = '!';

/// A commented pipeline to start from. It passes the checker as it is; its paths are examples, but for `model`: with one,
/// first-layer attention is measured, too.
pub fn starter(model: Option<&str>) -> String {
    let (kept, left_out) = match model {
        Some(_) => (WITH_MODEL, WITHOUT_MODEL),
        None => (WITHOUT_MODEL, WITH_MODEL),
    };
    let mut text = String::new();
    for line in include_str!("starter.template").lines() {
        if line.starts_with(left_out) {
            continue;
        }
        // The mark stands where the line has a space.
        match line.strip_prefix(kept) {
            Some("") => {}
            Some(line) => text.extend([" ", line]),
            None => text += line,
        }
        text.push('\n');
    }
    // In quotes, as JSON has them, any path is the path that it is.
    text.replace("MODEL", &Value::from(model.unwrap_or_default()).to_string())
}

#[cfg(test)]
mod tests {
    use longsift_stages::StageSettings;
    use longsift_stages::score::presets::Formula;

    use super::*;
    use crate::spec::{Overrides, Spec};

    fn parsed(model: Option<&str>) -> Spec {
        let (spec, warnings) = Spec::parse("p.yaml", &starter(model), &Overrides::default())
            .unwrap_or_else(|problems| panic!("{problems:?}"));
        assert!(warnings.is_empty(), "{warnings:?}");
        spec
    }

    #[test]
    fn the_starter_passes_the_checker_without_a_warning() {
        for model in [None, Some("models/Llama-3.1-8B"), Some("a \"b\": c #\\d")] {
            let spec = parsed(model);
            assert_eq!(spec.tokenize().window_tokens, 32768);
            assert_eq!(spec.score().formula, Some(Formula::BalancedRecurrence));
            assert_eq!(spec.first_layer_attention().is_some(), model.is_some());
            let written = spec.load_partial_model().map(|stage| stage.model.to_string());
            assert_eq!(written.as_deref(), model);
        }
        let without = parsed(None);
        let names: Vec<&str> = without.pipeline.stages.iter().map(StageSettings::name).collect();
        assert_eq!(names, ["tokenize", "recurrence", "lexical", "score", "filter"]);
    }

    #[test]
    fn the_starter_fits_a_terminal_and_says_why_of_every_stage() {
        for text in [starter(None), starter(Some("models/Llama-3.1-8B"))] {
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            let lines: Vec<&str> = text.lines().collect();
            for (index, _) in lines.iter().enumerate().filter(|(_, line)| line.contains("- stage:"))
            {
                assert!(
                    lines[index - 2..index].iter().all(|line| line.starts_with("  # ")),
                    "{text}"
                );
            }
        }
    }
}
