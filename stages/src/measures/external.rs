//! External measure: a child process in any language that answers rows of numbers in Arrow streams.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::{
    BrokenRule, Column, Evidence, Kind, Measure, Merge, Needs, Orientation, Request, RowError,
    StatisticValues, Window,
};

/// Measures with a program of your own, in any language: it reads Arrow record batches from standard input and writes
/// one record batch of answers for each to standard output. With `reads: text` or `ids` it measures windows; with
/// `reads: document` it receives whole documents before `tokenize` and may drop them. `docs/custom-measures.md` has
/// the protocol and examples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct External {
    /// Name of the stage in tables, messages and reasons, unique in the pipeline: up to 32 lower case letters, digits
    /// and `_`. It is not added to the names of its statistics.
    #[schemars(regex(pattern = "^[a-z][a-z0-9_]{0,31}$"))]
    pub name: String,
    /// Program and its arguments, started without a shell. A program without a `/` is searched in the `PATH` of
    /// `environment` or, if that has none, in that of longsift; any other path is relative to the pipeline's folder,
    /// which is also the program's working directory.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// Version of the program's results. Change it when the same files give other results, for example with a newer
    /// library: results of another version are not reused.
    pub version: String,
    /// Input of the program: the `text` (default) or the token `ids` of a window, BOS included, or a `document`
    /// before `tokenize`: its text, or its token ids if the input has those.
    #[serde(default)]
    pub reads: Reads,
    /// Statistics that the program returns, in the order of its columns. A program that reads windows returns at least
    /// one; one that reads documents may return none and only drop documents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statistics: Vec<Statistic>,
    /// Files that the results depend on, in addition to the program and those of its arguments that are files: imported
    /// modules, weights, word lists. Relative to the pipeline's folder. If their content changes, earlier results are
    /// not reused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Environment variables of the program; it gets no others. If a value changes, earlier results are not reused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Environment variables of longsift that are passed to the program if they are set, for example
    /// `CUDA_VISIBLE_DEVICES` or `HOME`. List only variables that do not change results: earlier results are reused
    /// with any value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pass_environment: Vec<String>,
    /// Maximum seconds for the program's start and for each batch (1 to 86400). Default 300: enough to load a model,
    /// and a program that hangs is still noticed. A program that exceeds it is killed, and its batch is halved and
    /// retried, until the row that causes it is quarantined as `stage_failed`.
    #[serde(default = "default_timeout_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: u32,
    /// Maximum resident memory of the program's process group in bytes, checked ten times a second. A program that
    /// exceeds it is killed, and its batch is halved and retried. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_048_576))]
    pub memory_limit_bytes: Option<u64>,
    /// Number of processes of the program that run at the same time (1 to 256), each with its own memory. Default 1,
    /// since the memory and the threads that the program needs are unknown. It changes no result.
    #[serde(default = "default_processes")]
    #[schemars(range(min = 1, max = 256))]
    pub processes: u32,
    /// Maximum windows (with `reads: document`, documents) per batch, 1 to 65536. A batch also ends at 64 MiB. Default
    /// 64. The program must compute each row independently of the others: results are reused with another batch size.
    #[serde(default = "default_batch_windows")]
    #[schemars(range(min = 1, max = 65_536))]
    pub batch_windows: u32,
}

fn default_timeout_seconds() -> u32 {
    300
}

fn default_processes() -> u32 {
    1
}

fn default_batch_windows() -> u32 {
    64
}

/// Input of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The text of a window.
    #[default]
    Text,
    /// Token ids of a window, BOS included.
    Ids,
    /// Document before `tokenize`: the program may drop it.
    Document,
}

/// Statistic that a program returns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Statistic {
    /// Name, unique in the pipeline: up to 64 lower case letters, digits and `_`.
    #[schemars(regex(pattern = "^[a-z][a-z0-9_]{0,63}$"))]
    pub name: String,
    /// Type: `number` (default; a column of float64, where NaN and null give the sample no score) or `count` (int64,
    /// not negative).
    #[serde(default)]
    pub kind: StatisticKind,
    /// Unit, such as `probability` or `nats per token`.
    pub unit: String,
    /// Description in one sentence, for the manual, the metadata of the Parquet column, and the report.
    pub doc: String,
    /// Whether `higher` (default) or `lower` values mean more long-range structure. Used by evaluations and reports;
    /// it does not set the sign of a term.
    #[serde(default)]
    pub orientation: Orientation,
    /// Value of a document: the `mean` (default) or the `max` over its windows. With `reads: document` all windows of
    /// a document have the same value.
    #[serde(default)]
    pub merge: StatisticMerge,
}

/// Type of a program's statistic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StatisticKind {
    /// Float64.
    #[default]
    Number,
    /// Int64, not negative.
    Count,
}

/// Rule that merges the values of a document's windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StatisticMerge {
    /// Mean.
    #[default]
    Mean,
    /// Maximum.
    Max,
}

impl External {
    /// Returns the constraints that the schema cannot express and these settings violate.
    pub fn broken_rules(&self) -> Vec<BrokenRule> {
        let mut rules = Vec::new();
        if self.statistics.is_empty() && self.reads != Reads::Document {
            rules.push(BrokenRule::new(
                "statistics",
                format!("`{}` measures windows, but declares no statistics", self.name),
                "declare its answers in `statistics`, or let it drop documents with `reads: document`",
            ));
        }
        for statistic in self.statistics.iter().filter(|statistic| !is_word(&statistic.name)) {
            rules.push(BrokenRule::new(
                "statistics",
                format!("`{}` is not a valid name of a column", statistic.name),
                "use up to 64 characters of a to z, 0 to 9 and _, beginning with a letter",
            ));
        }
        let names = self.environment.keys().chain(&self.pass_environment);
        for name in names.filter(|name| name.contains(['=', '\0'])) {
            rules.push(BrokenRule::new(
                "environment",
                format!("`{}` is not a valid name of a variable", name.escape_debug()),
                "remove `=` and zero bytes from the name",
            ));
        }
        let texts = self.command.iter().chain(self.environment.values());
        if texts.into_iter().any(|text| text.contains('\0')) {
            rules.push(BrokenRule::new(
                "command",
                "an argument or a variable contains a zero byte",
                "remove it",
            ));
        }
        rules
    }
}

fn is_word(name: &str) -> bool {
    let allowed =
        |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_';
    name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.bytes().all(allowed)
        && name.len() <= 64
}

impl Measure for External {
    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    /// The pipeline names the statistics itself.
    fn prefix(&self) -> Option<&str> {
        None
    }

    fn columns(&self) -> Vec<Column> {
        let column = |statistic: &Statistic| Column {
            name: statistic.name.clone().into(),
            kind: match statistic.kind {
                StatisticKind::Number => Kind::Number,
                StatisticKind::Count => Kind::Count,
            },
            unit: statistic.unit.clone().into(),
            doc: statistic.doc.clone().into(),
            merge: match (self.reads, statistic.merge) {
                (Reads::Document, _) => Merge::First,
                (_, StatisticMerge::Mean) => Merge::Mean,
                (_, StatisticMerge::Max) => Merge::Max,
            },
            orientation: statistic.orientation,
            error: None,
        };
        self.statistics.iter().map(column).collect()
    }

    fn needs(&self) -> Needs {
        let evidence = vec![Request::Answers(self.reads)];
        Needs { window_text: self.reads == Reads::Text, document_text: false, evidence }
    }

    fn version(&self) -> u32 {
        1
    }

    fn facts(&self) -> serde_json::Value {
        let Self {
            // Only used in names and messages.
            name: _,
            command,
            version,
            reads,
            statistics,
            // The engine adds the digests of these files.
            files: _,
            environment,
            // The user declares that these variables change no answer.
            pass_environment: _,
            // Limit time and memory only.
            timeout_seconds: _,
            memory_limit_bytes: _,
            // Set the number of concurrent requests only.
            processes: _,
            batch_windows: _,
        } = self;
        // Units and docs are for display; merge rules belong to the identity of the selection.
        let columns: Vec<_> =
            statistics.iter().map(|one| json!({ "name": one.name, "kind": one.kind })).collect();
        json!({
            "command": command,
            "program_version": version,
            "reads": reads,
            "statistics": columns,
            "environment": environment,
        })
    }

    fn statistics(&self, window: &Window<'_>) -> Result<StatisticValues, RowError> {
        let [Evidence::Answers(answers)] = window.evidence else {
            unreachable!("the measure requests answers");
        };
        Ok(StatisticValues(answers.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Value;

    fn settings(more: &str) -> External {
        let text = format!(
            r#"{{"name": "toxicity", "command": ["python3", "toxicity.py"], "version": "3", {more}
                "statistics": [{{"name": "toxic", "unit": "probability", "doc": "share of toxic sentences"}},
                               {{"name": "sentences", "kind": "count", "unit": "sentences", "doc": "how many",
                                 "merge": "max", "orientation": "lower"}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn statistics_have_their_declared_names_and_types() {
        let columns = settings("").columns();
        assert_eq!((&*columns[0].name, &*columns[1].name), ("toxic", "sentences"));
        assert_eq!((columns[0].kind, columns[1].kind), (Kind::Number, Kind::Count));
        assert_eq!((&columns[0].merge, &columns[1].merge), (&Merge::Mean, &Merge::Max));
        assert_eq!(columns[1].orientation, Orientation::Lower);
        assert_eq!(settings("").prefix(), None);
        let documents = settings(r#""reads": "document","#).columns();
        assert!(documents.iter().all(|column| column.merge == Merge::First));
    }

    #[test]
    fn statistics_are_the_answers() {
        let answers = vec![Value::Number(0.25), Value::Count(4)];
        let evidence = [Evidence::Answers(answers.clone())];
        let window = Window {
            ids: &[1, 2],
            text: None,
            text_half: None,
            document: &[],
            evidence: &evidence,
        };
        assert_eq!(settings("").statistics(&window), Ok(StatisticValues(answers)));
    }

    #[test]
    fn the_identity_excludes_settings_without_effect_on_answers() {
        let facts = settings("").facts();
        for same in [
            r#""processes": 4, "batch_windows": 2, "timeout_seconds": 9, "memory_limit_bytes": 1048576,"#,
            r#""pass_environment": ["HOME"], "files": ["words.txt"],"#,
        ] {
            assert_eq!(settings(same).facts(), facts, "{same}");
        }
        for other in [r#""reads": "ids","#, r#""environment": {"LANG": "C"},"#] {
            assert_ne!(settings(other).facts(), facts, "{other}");
        }
    }

    #[test]
    fn missing_statistics_and_invalid_names_are_rejected() {
        let broken = |external: External| {
            external.broken_rules().into_iter().map(|rule| rule.message).collect::<Vec<_>>()
        };
        assert!(broken(settings("")).is_empty());
        let no_statistics = External { statistics: Vec::new(), ..settings("") };
        assert_eq!(
            broken(no_statistics.clone()),
            ["`toxicity` measures windows, but declares no statistics"]
        );
        assert!(broken(External { reads: Reads::Document, ..no_statistics }).is_empty());
        let mut wrong = settings(r#""environment": {"A=B": "c"},"#);
        wrong.statistics[0].name = "Toxic share".to_owned();
        wrong.command.push("a\0b".to_owned());
        assert_eq!(
            broken(wrong),
            [
                "`Toxic share` is not a valid name of a column",
                "`A=B` is not a valid name of a variable",
                "an argument or a variable contains a zero byte",
            ]
        );
    }
}
