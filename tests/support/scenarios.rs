//! Runs that are disturbed: what they start from, the command, and what it must end in.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::tables::{labels, strings, table, write_parquet};
use super::{Pipeline, Tiny, Workspace, check_accounting, demo_model, files_below};

/// A command over a state, and what an undisturbed run of it makes.
pub(crate) struct Scenario {
    /// What it shows.
    pub(crate) name: &'static str,
    /// What it starts from; disturbed runs work on copies.
    pub(crate) before: Workspace,
    /// The command that is disturbed.
    pub(crate) arguments: Vec<&'static str>,
    /// The command that finishes what was disturbed.
    pub(crate) restart: Vec<&'static str>,
    /// Results before, by path.
    pub(crate) results_before: BTreeMap<String, String>,
    /// Results of an undisturbed run.
    pub(crate) results: BTreeMap<String, String>,
}

const RUN: [&str; 4] = ["run", "pipeline.yaml", "--threads", "1"];

/// Writes `input/<name>.parquet`: a document per number of sentences, none for 0; two rows in a row group.
pub(crate) fn write_input(workspace: &Workspace, name: &str, sentences: &[usize]) {
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
    let pipeline =
        Pipeline::text("model", 64).input("unit_bytes: 1024, max_quarantined_fraction: 0.5");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

impl Scenario {
    fn new(name: &'static str, before: Workspace, more: &[&'static str]) -> Self {
        let arguments = [&RUN, more].concat();
        let undisturbed = Workspace::copy_of(&before);
        check_accounting(&undisturbed.with_fault(&arguments, None).answer.success().summary());
        let results = undisturbed.results();
        let results_before = before.results();
        assert!(results != results_before && !results.is_empty(), "{name} changes something");
        Self { name, before, restart: arguments.clone(), arguments, results_before, results }
    }

    /// Nothing is there but the input.
    pub(crate) fn first_run() -> Self {
        Self::new("a first run", workspace(), &[])
    }

    /// One process scores a shard, which a whole run finishes.
    fn shard(whole: &Self) -> Self {
        Self {
            name: "a shard",
            before: workspace(),
            arguments: [&RUN[..], &["--phase", "score", "--shard", "0/2"]].concat(),
            restart: RUN.to_vec(),
            results_before: BTreeMap::new(),
            results: whole.results.clone(),
        }
    }

    /// Quarantined rows are tried again, to no avail: what stands is what stood.
    fn again(finished: &Workspace) -> Self {
        let results = finished.results();
        Self {
            name: "quarantined rows tried again",
            before: Workspace::copy_of(finished),
            arguments: [&RUN[..], &["--only-quarantined"]].concat(),
            restart: RUN.to_vec(),
            results_before: results.clone(),
            results,
        }
    }

    /// Whether the disturbed command ends in the results, and not only the one that restarts it.
    pub(crate) fn is_whole(&self) -> bool {
        !self.arguments.contains(&"--shard")
    }

    /// Every way in which a run changes what is there, or the one that `LONGSIFT_SCENARIO` names.
    pub(crate) fn all() -> Vec<Self> {
        let finished = workspace();
        finished.with_fault(&RUN, None).answer.success();
        let reselected = Workspace::copy_of(&finished);
        let another = Workspace::copy_of(&finished);
        let widened = ["--set", "stages.filter.keep_fraction=0.9"];
        another.with_fault(&[&RUN, &widened[..]].concat(), None).answer.success();
        let anew = Workspace::copy_of(&another);
        let changed = Workspace::copy_of(&finished);
        fs::remove_file(changed.path("input/b.parquet")).unwrap();
        write_input(&changed, "c", &[7, 11]);
        let mut fresh = Self::new("a fresh start", another, &["--fresh"]);
        // What `--fresh` has begun to remove, a plain run must be able to finish, too.
        fresh.restart = RUN.to_vec();
        let scored = workspace();
        let score = ["--phase", "score", "--shard", "0/1"];
        scored.with_fault(&[&RUN, &score[..]].concat(), None).answer.success();
        let first = Self::first_run();
        let all = vec![
            Self::shard(&first),
            first,
            Self::new("a selection of what shards scored", scored, &["--phase", "select"]),
            Self::new("another selection", reselected, &widened),
            fresh,
            Self::new("a fresh start, twice", anew, &["--fresh"]),
            Self::new("a file added and one gone", changed, &[]),
            Self::again(&finished),
        ];
        match std::env::var("LONGSIFT_SCENARIO") {
            Ok(name) => all.into_iter().filter(|scenario| scenario.name == name).collect(),
            Err(_) => all,
        }
    }

    /// Whether `data/` holds what one run has made, or a commit is under way.
    pub(crate) fn check_no_mixture(&self, workspace: &Workspace, when: &str) {
        let data = |results: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let ours = results.iter().filter(|(path, _)| path.starts_with("out/data"));
            ours.map(|(path, hash)| (path.clone(), hash.clone())).collect()
        };
        let now = data(&workspace.results());
        let whole = now == data(&self.results) || now == data(&self.results_before);
        let begun = workspace.path("out.run/intent.json").exists();
        let unmarked = !workspace.path("out.run/_SUCCESS").exists();
        let part_of_before =
            now.iter().all(|entry| data(&self.results_before).get(entry.0) == Some(entry.1));
        let clearing = self.arguments.contains(&"--fresh") && part_of_before && unmarked;
        assert!(whole || begun || clearing, "{}, {when}: {now:#?}", self.name);
    }

    /// The restart finishes the run: the same bytes, every row accounted for, nothing left over.
    pub(crate) fn finish(&self, workspace: &Workspace, when: &str) -> Value {
        let answer = workspace.with_fault(&self.restart, None).answer;
        assert_eq!(answer.code, 0, "{}, restarted after {when}:\n{}", self.name, answer.stderr);
        let summary = answer.summary();
        check_accounting(&summary);
        assert_eq!(workspace.results(), self.results, "{}, restarted after {when}", self.name);
        check_nothing_is_left(workspace, when);
        summary
    }
}

/// No temporary file, no staged selection, no open journal, no torn line of events.
pub(crate) fn check_nothing_is_left(workspace: &Workspace, when: &str) {
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
    for name in ["staging", "intent.json", "journal"] {
        let path = workspace.path("out.run").join(name);
        assert!(!path.is_file() && files_below(&path).is_empty(), "{when}: {name} is left");
    }
    assert!(workspace.path("out.run/_SUCCESS").exists(), "{when}");
}
