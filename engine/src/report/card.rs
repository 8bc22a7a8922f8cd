//! Dataset card: `README.md` next to `data/`, with the header that the Hugging Face hub reads.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::base::text::count;
use crate::plan::Plan;
use crate::run_directory::summary::Summary;
use crate::spec::pipeline::{OutputFormat, Samples};

pub const NAME: &str = "README.md";

/// Mark of a card that longsift wrote; a file without it is never replaced.
pub const MARK: &str = "<!-- Written by longsift. Remove this line to keep the file as it is. -->";

/// Returns the card of a selection: contents, origin and settings. Equal selections have equal cards.
pub fn card(plan: &Plan, summary: &Summary) -> String {
    let pipeline = &plan.spec.pipeline;
    let (output, name) = (&pipeline.output, json!(pipeline.name));
    let mut card = format!("---\npretty_name: {name}\n");
    if output.format != OutputFormat::Megatron {
        let names = if output.mirror { "**/*" } else { "train-*" };
        let ending = output.format.endings(false)[0];
        let _ = writeln!(
            card,
            "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/{names}{ending}"
        );
    }
    let size = size_category(summary.kept);
    let _ = writeln!(
        card,
        "size_categories:\n- {size}\ntask_categories:\n- text-generation\ntags:\n- long-context\n- longsift\n---\n\n{MARK}\n"
    );
    let sample = match output.samples {
        Samples::Windows => "windows of documents",
        Samples::Documents => "documents",
    };
    let _ = writeln!(
        card,
        "# {}\n\n{} {sample}, selected by [longsift](https://github.com/longsift/longsift) {}.\n",
        line(&pipeline.name),
        count(summary.kept),
        env!("CARGO_PKG_VERSION"),
    );
    card.push_str("| | rows | windows |\n|---|---|---|\n");
    let mut row = |what: &str, rows: Option<u64>, windows: Option<u64>| {
        let cell = |number: Option<u64>| number.map_or(String::new(), count);
        let _ = writeln!(card, "| {} | {} | {} |", line(what), cell(rows), cell(windows));
    };
    row("input", Some(summary.rows_in), Some(summary.windows_total));
    row("kept", Some(summary.rows_kept), Some(summary.windows_kept));
    let reasons = summary.rows_dropped.keys().chain(summary.windows_dropped.keys());
    for reason in reasons.collect::<std::collections::BTreeSet<_>>() {
        let of = |counts: &std::collections::BTreeMap<String, u64>| counts.get(reason).copied();
        let (rows, windows) = (of(&summary.rows_dropped), of(&summary.windows_dropped));
        row(&format!("dropped: `{reason}`"), rows, windows);
    }
    if summary.quarantined > 0 {
        row("quarantined", Some(summary.quarantined), None);
    }
    let settings = serde_json::to_string_pretty(&settings(plan)).expect("settings are plain data");
    let _ = writeln!(
        card,
        "\nThe `longsift_*` columns contain the origin of a sample, its score and its statistics.\n\n## Licence and source\n\nThose \
         of the input. State them here before you publish this dataset.\n\n## Settings\n\n```json\n{settings}\n```"
    );
    card
}

/// Returns the resolved stages and output, without secrets and machine-specific settings: the environment of programs,
/// and paths.
fn settings(plan: &Plan) -> Value {
    let mut settings = plan.spec.resolved_json();
    let stages = settings["stages"].as_array_mut().into_iter().flatten();
    for stage in stages.filter_map(Value::as_object_mut) {
        for key in ["environment", "pass_environment", "cache_folder"] {
            stage.shift_remove(key);
        }
    }
    let (stages, samples) = (settings["stages"].take(), settings["output"]["samples"].take());
    json!({ "stages": stages, "samples": samples })
}

fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('|', "\\|")
}

/// Returns the hub's size category of a number of rows.
fn size_category(rows: u64) -> &'static str {
    const BOUNDS: [(u64, &str); 9] = [
        (1_000, "n<1K"),
        (10_000, "1K<n<10K"),
        (100_000, "10K<n<100K"),
        (1_000_000, "100K<n<1M"),
        (10_000_000, "1M<n<10M"),
        (100_000_000, "10M<n<100M"),
        (1_000_000_000, "100M<n<1B"),
        (10_000_000_000, "1B<n<10B"),
        (100_000_000_000, "10B<n<100B"),
    ];
    let found = BOUNDS.iter().find(|(bound, _)| rows < *bound);
    found.map_or("100B<n<1T", |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_categories_are_those_of_the_hub() {
        let words = [0, 999, 1000, 123_456, 5_000_000_000, u64::MAX].map(size_category);
        assert_eq!(words, ["n<1K", "n<1K", "1K<n<10K", "100K<n<1M", "1B<n<10B", "100B<n<1T"]);
    }
}
