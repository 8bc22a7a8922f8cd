//! Runs to disturb: initial state, command, and expected results.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::tables::{labels, strings, table, write_parquet};
use super::{Pipeline, Tiny, Workspace, check_accounting, demo_model, files_below};

/// Command on a state, and the results of an undisturbed run.
pub(crate) struct Scenario {
    /// Name of the scenario.
    pub(crate) name: &'static str,
    /// Initial state; disturbed runs work on copies.
    pub(crate) before: Workspace,
    /// Command to disturb.
    pub(crate) arguments: Vec<&'static str>,
    /// Command that finishes the disturbed run.
    pub(crate) restart: Vec<&'static str>,
    /// Results before, by path.
    pub(crate) results_before: BTreeMap<String, String>,
    /// Results of an undisturbed run.
    pub(crate) results: BTreeMap<String, String>,
}

const RUN: [&str; 4] = ["run", "pipeline.yaml", "--threads", "1"];
const WIDENED: [&str; 2] = ["--set", "stages.filter.keep_fraction=0.9"];

/// Writes `input/<name>.parquet`: a document per number of sentences, empty for 0; two rows in a row group.
pub(crate) fn write_input(workspace: &testkit::Workspace, name: &str, sentences: &[usize]) {
    let words = ["amber", "birch", "cedar", "dune", "elm", "fjord"];
    let text = |sentences: usize, row: usize| {
        let sentence = |index: usize| {
            let (first, second) = (words[(index + row) % 6], words[(index * index + row) % 5]);
            format!("The {first} box {index} stood behind the {second} door of {name}. ")
        };
        (0..sentences).map(sentence).collect::<String>()
    };
    let texts: Vec<Option<String>> = sentences
        .iter()
        .enumerate()
        .map(|(row, count)| (*count > 0).then(|| text(*count, row)))
        .collect();
    let texts: Vec<Option<&str>> = texts.iter().map(Option::as_deref).collect();
    let ids = (0..texts.len()).map(|row| format!("{name}-{row}"));
    let input = table(&[("id", strings(ids)), ("text", labels(&texts))]);
    write_parquet(&workspace.path(&format!("input/{name}.parquet")), &input, 2);
}

/// Texts in two files and three units, with a row that is quarantined and one that is too short.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().with("vocab_size", json!(8192)).write(&workspace.path("model"));
    let tokenizer = demo_model().join("tokenizer.json");
    fs::copy(tokenizer, workspace.path("model/tokenizer.json")).unwrap();
    write_input(&workspace, "a", &[12, 0, 9, 20]);
    write_input(&workspace, "b", &[1, 15]);
    workspace.write("pipeline.yaml", pipeline().to_string());
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::text("model", 64).input("unit_bytes: 1024, max_quarantined_fraction: 0.5")
}

/// With a measure of token ids and one of text in addition to attention.
fn three_measures() -> Pipeline {
    pipeline().measure("recurrence").measure("compression")
}

/// With a guard before attention.
fn guarded(most: &str) -> Pipeline {
    let guard = format!(
        "keep_fraction: 0.5, guards: [{{statistic: gzip_ratio, max: {most}, before: first-layer-attention}}]"
    );
    three_measures().filter(&guard)
}

/// The workspace after runs with these arguments.
fn after(runs: &[&[&'static str]]) -> Workspace {
    let workspace = workspace();
    for more in runs {
        workspace.longsift(&[&RUN, *more].concat()).success();
    }
    workspace
}

/// Defines a test `check` for each way in which a run changes existing results.
macro_rules! for_each_scenario {
    ($check:path) => {
        $crate::support::scenarios::for_each_scenario! {
            $check: first_run shard selection_of_shards another_selection fresh_start fresh_start_twice changed_files
            quarantined_again several_measures measures_added measure_changed measure_replaced guard_before
            guard_loosened guard_tightened
        }
    };
    ($check:path: $($name:ident)*) => {$(
        #[test]
        #[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
        fn $name() {
            $check(&$crate::support::scenarios::Scenario::$name());
        }
    )*};
}
pub(crate) use for_each_scenario;

impl Scenario {
    fn new(name: &'static str, before: Workspace, more: &[&'static str]) -> Self {
        let arguments = [&RUN, more].concat();
        let undisturbed = Workspace::copy_of(&before);
        check_accounting(&undisturbed.longsift(&arguments).success().summary());
        let results = undisturbed.results();
        let results_before = before.results();
        assert!(results != results_before && !results.is_empty(), "{name} changes something");
        Self { name, before, restart: arguments.clone(), arguments, results_before, results }
    }

    /// Only the input exists.
    pub(crate) fn first_run() -> Self {
        Self::new("a first run", workspace(), &[])
    }

    /// One process scores a shard, and a whole run finishes.
    pub(crate) fn shard() -> Self {
        Self {
            name: "a shard",
            before: workspace(),
            arguments: [&RUN[..], &["--phase", "score", "--shard", "0/2"]].concat(),
            restart: RUN.to_vec(),
            results_before: BTreeMap::new(),
            results: Self::first_run().results,
        }
    }

    /// Everything was scored by shards.
    pub(crate) fn selection_of_shards() -> Self {
        let scored = after(&[&["--phase", "score", "--shard", "0/1"]]);
        Self::new("a selection of scored shards", scored, &["--phase", "select"])
    }

    /// A finished run with another selection.
    pub(crate) fn another_selection() -> Self {
        Self::new("another selection", after(&[&[]]), &WIDENED)
    }

    /// A finished run is started again with `--fresh`.
    pub(crate) fn fresh_start() -> Self {
        let mut fresh = Self::new("a fresh start", after(&[&[], &WIDENED]), &["--fresh"]);
        // A plain run must be able to finish a `--fresh` run as well.
        fresh.restart = RUN.to_vec();
        fresh
    }

    /// A `--fresh` run, restarted by the same command.
    pub(crate) fn fresh_start_twice() -> Self {
        Self::new("a fresh start, twice", after(&[&[], &WIDENED]), &["--fresh"])
    }

    /// One of the scored files is removed, and another is added.
    pub(crate) fn changed_files() -> Self {
        let changed = after(&[&[]]);
        fs::remove_file(changed.path("input/b.parquet")).unwrap();
        write_input(&changed, "c", &[7, 11]);
        Self::new("a file added and one removed", changed, &[])
    }

    /// Quarantined rows are tried again without success: the result stays.
    pub(crate) fn quarantined_again() -> Self {
        let before = after(&[&[]]);
        let results = before.results();
        Self {
            name: "quarantined rows tried again",
            before,
            arguments: [&RUN[..], &["--only-quarantined"]].concat(),
            restart: RUN.to_vec(),
            results_before: results.clone(),
            results,
        }
    }

    /// Three measures of every window.
    pub(crate) fn several_measures() -> Self {
        let before = workspace();
        before.write("pipeline.yaml", three_measures().to_string());
        Self::new("a first run of three measures", before, &[])
    }

    /// Two more measures: existing units are reopened, and attention is not measured again.
    pub(crate) fn measures_added() -> Self {
        let before = after(&[&[]]);
        before.write("pipeline.yaml", three_measures().to_string());
        Self::new("two measures added", before, &[])
    }

    /// One measure of three is measured again, with other settings.
    pub(crate) fn measure_changed() -> Self {
        let before = workspace();
        before.write("pipeline.yaml", three_measures().to_string());
        before.longsift(&RUN).success();
        let mut changed = three_measures();
        changed.measures[0].push_str(", min_distance_tokens: 5");
        before.write("pipeline.yaml", changed.to_string());
        Self::new("a measure changed", before, &["--remeasure", "recurrence"])
    }

    /// One measure is removed and another added: statistics of the first stay.
    pub(crate) fn measure_replaced() -> Self {
        let before = workspace();
        before.write("pipeline.yaml", three_measures().to_string());
        before.longsift(&RUN).success();
        before.write("pipeline.yaml", pipeline().measure("lexical").to_string());
        Self::new("a measure replaced", before, &[])
    }

    /// A guard makes attention skip windows.
    pub(crate) fn guard_before() -> Self {
        let before = workspace();
        before.write("pipeline.yaml", guarded("0.3").to_string());
        Self::new("a guard before attention", before, &[])
    }

    /// The guard lets more pass than before.
    pub(crate) fn guard_loosened() -> Self {
        let before = workspace();
        before.write("pipeline.yaml", guarded("0.3").to_string());
        before.longsift(&RUN).success();
        before.write("pipeline.yaml", guarded("0.6").to_string());
        Self::new("a guard loosened", before, &[])
    }

    /// The guard lets less pass than before, and a measure is added: attention keeps its statistics.
    pub(crate) fn guard_tightened() -> Self {
        let before = workspace();
        before.write("pipeline.yaml", guarded("0.6").to_string());
        before.longsift(&RUN).success();
        before.write("pipeline.yaml", guarded("0.3").measure("lexical").to_string());
        Self::new("a guard tightened", before, &[])
    }

    /// Returns whether the disturbed command itself produces the results, and not only the restart.
    pub(crate) fn is_whole(&self) -> bool {
        !self.arguments.contains(&"--shard")
    }

    /// Checks that `data/` holds the files of one run, or a commit is in progress.
    pub(crate) fn check_no_mixture(&self, workspace: &testkit::Workspace, when: &str) {
        let data = |results: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let ours = results.iter().filter(|(path, _)| path.starts_with("out/data"));
            ours.map(|(path, hash)| (path.clone(), hash.clone())).collect()
        };
        let now = data(&workspace.results());
        let whole = now == data(&self.results) || now == data(&self.results_before);
        let begun = workspace.path("out.run/intent.json").exists();
        assert!(whole || begun, "{}, {when}: {now:#?}", self.name);
    }

    /// Finishes the run with the restart and checks it: the same bytes, every row accounted for, nothing left over.
    pub(crate) fn finish(&self, workspace: &testkit::Workspace, when: &str) -> Value {
        let answer = workspace.longsift(&self.restart);
        assert_eq!(answer.code, 0, "{}, restarted after {when}:\n{}", self.name, answer.stderr);
        let summary = answer.summary();
        check_accounting(&summary);
        assert_eq!(workspace.results(), self.results, "{}, restarted after {when}", self.name);
        check_nothing_is_left(workspace, when);
        summary
    }
}

/// Checks that no temporary file, staged selection, open journal or torn line of events exists.
pub(crate) fn check_nothing_is_left(workspace: &testkit::Workspace, when: &str) {
    for folder in ["out", "out.run", "cache"] {
        for file in files_below(&workspace.path(folder)) {
            let name = file.file_name().unwrap().to_str().unwrap();
            let temporary = name.starts_with('.') || name.ends_with(".partial");
            assert!(!temporary, "{when}: `{}` is left", file.display());
        }
    }
    let events = fs::read_to_string(workspace.path("out.run/events.jsonl")).unwrap();
    for line in events.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{when}: {line}");
    }
    for name in ["staging", "intent.json", "journal", "fresh"] {
        let path = workspace.path("out.run").join(name);
        assert!(!path.is_file() && files_below(&path).is_empty(), "{when}: {name} is left");
    }
    assert!(workspace.path("out.run/_SUCCESS").exists(), "{when}");
}
