//! Dataset card: `README.md` next to `data/`, with the header that the Hugging Face hub reads.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::base::text::{count, sha256_hex};
use crate::plan::Plan;
use crate::run_directory::summary::Summary;
use crate::spec::pipeline::{OutputFormat, Samples};

pub const NAME: &str = "README.md";

/// File name of the card next to one that a user has edited.
pub const NAME_NEXT_TO_EDITED: &str = "README.longsift.md";

/// Start of the line that marks a card, before the digest of the other lines.
const MARK: &str = "<!-- Written by longsift, digest ";
const MARK_END: &str =
    ". A file that you edit is kept: the next card is then README.longsift.md. -->";

/// Origin of the text in a card's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardOrigin {
    /// longsift wrote it, and it is unchanged.
    Own,
    /// longsift wrote it, and somebody changed it.
    Edited,
    /// It has no mark of longsift.
    Foreign,
}

impl CardOrigin {
    pub fn from_text(text: &str) -> Self {
        let Some((before, marked)) = text.split_once(MARK) else { return Self::Foreign };
        match marked.split_once(MARK_END) {
            Some((digest, after)) if digest == content_digest(before, after) => Self::Own,
            _ => Self::Edited,
        }
    }
}

fn content_digest(before: &str, after: &str) -> String {
    let mut digest = sha256_hex(format!("{before}{after}").as_bytes());
    digest.truncate(16);
    digest
}

/// Returns the card of a selection: contents, origin and settings. Equal selections have equal cards.
pub fn card(plan: &Plan, summary: &Summary) -> String {
    let (before, after) = (header(plan, summary), content(plan, summary));
    let digest = content_digest(&before, &after);
    format!("{before}{MARK}{digest}{MARK_END}{after}")
}

fn header(plan: &Plan, summary: &Summary) -> String {
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
        "size_categories:\n- {size}\ntask_categories:\n- text-generation\ntags:\n- long-context\n- longsift\n---\n\n"
    );
    card
}

fn content(plan: &Plan, summary: &Summary) -> String {
    let pipeline = &plan.spec.pipeline;
    let (output, mut card) = (&pipeline.output, "\n\n".to_owned());
    let sample = match output.samples {
        Samples::Windows => "windows of documents",
        Samples::Documents => "documents",
    };
    let (name, kept, version) =
        (line(&pipeline.name), count(summary.kept), env!("CARGO_PKG_VERSION"));
    let longsift = "[longsift](https://github.com/longsift/longsift)";
    let _ = writeln!(card, "# {name}\n\n{kept} {sample}, selected by {longsift} {version}.\n");
    if plan.spec.filter().mark_only {
        let rows = count(plan.rows_written(summary));
        let _ = writeln!(
            card,
            "The data has {rows} rows: `longsift_kept` is true for the selected ones only.\n"
        );
    }
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

/// Returns the resolved stages and output, without the environment of programs and without paths of this machine.
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

fn size_category(rows: u64) -> String {
    const NAMES: [&str; 10] = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"];
    match rows.checked_ilog10() {
        None | Some(..3) => "n<1K".to_owned(),
        Some(power) => {
            let first = (power as usize - 3).min(NAMES.len() - 2);
            format!("{}<n<{}", NAMES[first], NAMES[first + 1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edited_card_is_recognised_wherever_it_was_edited() {
        let (before, after) = ("---\nname\n---\n\n", "\n\n# Name\n");
        let digest = content_digest(before, after);
        let card = format!("{before}{MARK}{digest}{MARK_END}{after}");
        assert_eq!(CardOrigin::from_text(&card), CardOrigin::Own);
        for edited in [
            format!("{card} "),
            card.replace("name", "title"),
            card.replace(&digest, "0123456789abcdef"),
            card.replace("the next card", "another card"),
            card.replace("# Name", "# Name\n\nMy words."),
            format!("{card}{card}"),
        ] {
            assert_eq!(CardOrigin::from_text(&edited), CardOrigin::Edited, "{edited}");
        }
        assert_eq!(CardOrigin::from_text("my own words"), CardOrigin::Foreign);
        assert_eq!(CardOrigin::from_text(""), CardOrigin::Foreign);
    }

    #[test]
    fn size_categories_are_those_of_the_hub() {
        let words = [0, 999, 1000, 123_456, 5_000_000_000, u64::MAX].map(size_category);
        assert_eq!(words, ["n<1K", "n<1K", "1K<n<10K", "100K<n<1M", "1B<n<10B", "100B<n<1T"]);
    }
}
