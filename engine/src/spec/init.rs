//! The pipeline that `longsift init` writes.

/// A commented pipeline to start from. It passes the checker as it is; its paths are examples.
pub fn starter() -> &'static str {
    include_str!("starter.yaml")
}

#[cfg(test)]
mod tests {
    use super::super::{Overrides, Spec};
    use super::*;

    #[test]
    fn the_starter_passes_the_checker_without_a_warning() {
        let (spec, warnings) =
            Spec::parse("p.yaml", starter(), &Overrides::default()).expect("a right pipeline");
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(spec.tokenize().window_tokens, 32768);
    }

    #[test]
    fn the_starter_fits_a_terminal_and_names_every_stage() {
        assert!(starter().lines().all(|line| line.chars().count() <= 100));
        for name in longsift_stages::STAGE_NAMES {
            assert!(starter().contains(&format!("- stage: {name}")), "{name}");
        }
    }
}
