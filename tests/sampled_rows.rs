//! `rows: {per_window, seed}`: estimates with correct standard errors, and a variance term that is rejected as noise.

use arrow_array::Array;

use crate::support::tables::{corpus, floats, read_scores, texts, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace};

/// Sixty windows of 1,024 tokens in one file.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[2048; 30]), 7);
    workspace
}

fn pipeline(rows: &str) -> Pipeline {
    let exact = Pipeline::tokens("model", 1024).tokenize("windows: disjoint");
    if rows.is_empty() { exact } else { exact.attention(&format!("rows: {rows}")) }
}

#[test]
fn estimates_are_within_their_standard_errors_of_the_exact_scores() {
    let exact = workspace();
    exact.run(&pipeline("all"));
    let exact = read_scores(&exact.path("out.run"));
    assert!(exact.column_by_name("dependency_strength_se").unwrap().null_count() == 60);
    let sampled = workspace();
    sampled.run(&pipeline("{per_window: 64, seed: 7}").score("alpha: 0"));
    let sampled = read_scores(&sampled.path("out.run"));
    assert_eq!(texts(&sampled, "id"), texts(&exact, "id"));
    assert_eq!(sampled.column_by_name("distance_histogram").unwrap().null_count(), 60);
    for name in ["dependency_strength", "far_variance"] {
        let (want, got) = (floats(&exact, name), floats(&sampled, name));
        let errors = floats(&sampled, &format!("{name}_se"));
        let deviations: Vec<f64> = want
            .iter()
            .zip(&got)
            .zip(&errors)
            .map(|((want, got), error)| (got - want) / error)
            .collect();
        assert!(errors.iter().all(|error| *error > 0.0), "{name}: {errors:?}");
        // Sixty deviations of a standard normal variable, or of one with somewhat heavier tails.
        let square = deviations.iter().map(|x| x * x).sum::<f64>() / 60.0;
        assert!((0.4..2.2).contains(&square), "{name}: mean square {square}, {deviations:?}");
        let largest = deviations.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
        assert!(largest < 6.0, "{name}: {largest}");
    }
}

#[test]
fn a_window_with_fewer_rows_is_exact() {
    let (exact, sampled) = (workspace(), workspace());
    exact.run(&pipeline(""));
    sampled.run(&pipeline("{per_window: 768, seed: 1}"));
    let [exact, sampled] =
        [exact, sampled].map(|workspace| read_scores(&workspace.path("out.run")));
    assert_eq!(floats(&sampled, "dependency_strength"), floats(&exact, "dependency_strength"));
    assert_eq!(sampled.column_by_name("far_variance_se").unwrap().null_count(), 60);
}

#[test]
fn the_sample_depends_on_text_and_seed_only() {
    let pipeline =
        |seed: u32| pipeline(&format!("{{per_window: 64, seed: {seed}}}")).score("alpha: 0");
    let results = |seed: u32, arguments: &[&str]| {
        let workspace = workspace();
        workspace.run_with(&pipeline(seed), arguments);
        workspace.results()
    };
    let one = results(3, &["--threads", "1"]);
    assert_eq!(results(3, &["--threads", "2"]), one);
    assert_ne!(results(4, &[]), one);
}

#[test]
fn a_noisy_variance_term_is_rejected() {
    let workspace = workspace();
    let noisy = pipeline("{per_window: 32, seed: 1}").score("max_relative_error: 0.001");
    workspace.write("pipeline.yaml", noisy.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(2);
    assert!(
        answer.stderr.contains("the far variance of sampled rows is off by"),
        "{}",
        answer.stderr
    );
    assert!(answer.stderr.contains("set `alpha: 0`"), "{}", answer.stderr);
    for answer in ["alpha: 0", "max_relative_error: 5"] {
        let summary = workspace.run(&pipeline("{per_window: 32, seed: 1}").score(answer));
        assert_eq!(summary["windows_scored"], 0, "the scores were kept");
        assert_eq!(summary["kept"], 30);
    }
}

#[test]
fn another_number_of_rows_gives_other_scores() {
    let workspace = workspace();
    workspace.run(&pipeline("{per_window: 64, seed: 1}").score("alpha: 0"));
    workspace.write(
        "pipeline.yaml",
        pipeline("{per_window: 128, seed: 1}").score("alpha: 0").to_string(),
    );
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).expect(2);
    assert!(answer.stderr.contains("rows: "), "{}", answer.stderr);
    workspace.write("pipeline.yaml", pipeline("{per_window: 16, seed: 1}").to_string());
    let answer = workspace.longsift(&["validate", "pipeline.yaml"]).expect(2);
    assert!(answer.stderr.contains("per_window"), "{}", answer.stderr);
}
