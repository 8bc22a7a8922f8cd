//! Stages with a child process: its answers, and all its failures.

pub(crate) mod child;
mod examples;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::support::tables::{
    floats, integers, read_parquet, read_scores, strings, table, texts, token_lists, write_parquet,
};
use crate::support::{Answer, Workspace, count, demo_model, files_below, read_json};
use child::write_program;

/// Two files of six documents, a tokenizer and the program.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    let tokenizer = fs::read(demo_model().join("tokenizer.json")).unwrap();
    workspace.write("tokenizer/tokenizer.json", tokenizer);
    for (file, first) in [("a", 0), ("b", 6)] {
        let rows = first..first + 6;
        let columns = [
            ("id", strings(rows.clone().map(|row| format!("document-{row}")))),
            ("text", strings(rows.map(text))),
        ];
        write_parquet(&workspace.path(&format!("input/{file}.parquet")), &table(&columns), 3);
    }
    write_program(&workspace);
    workspace
}

/// Some programs fail at document 4, and some drop document 7.
fn text(row: usize) -> String {
    let sentence = |at: usize| format!("The {} box is number {}. ", at * at % 7, row * at);
    let words: String = (0..12 + 3 * row).map(sentence).collect();
    match row {
        4 => format!("POISON {words}"),
        7 => format!("RUBBISH {words}"),
        _ => words,
    }
}

const STATISTICS: &str = "statistics: [{name: bytes, unit: bytes, doc: length of the window}, \
                          {name: letters, kind: count, unit: letters, doc: letters of the window}]";

/// A pipeline with a program that reads windows in this mode, with more settings.
fn windows(mode: &str, more: &str) -> String {
    let stage = format!(
        "  - {{stage: external, name: own, command: [./child.sh, {mode}], version: \"1\", {more} {STATISTICS}}}\n"
    );
    pipeline("", &stage, "bytes")
}

/// A pipeline with a program that reads documents.
fn documents(mode: &str, more: &str) -> String {
    let stage = format!(
        "  - {{stage: external, name: own, command: [./child.sh, {mode}], version: \"1\", reads: document, {more} \
         {STATISTICS}}}\n"
    );
    pipeline(&stage, "  - {stage: lexical}\n", "unique_token_share")
}

fn pipeline(before: &str, behind: &str, statistic: &str) -> String {
    format!(
        "version: 1\nname: test\ninput: {{path: input, id_column: id, unit_bytes: 1024, max_quarantined_fraction: 0.5}}\n\
         stages:\n{before}  - {{stage: tokenize, tokenizer: tokenizer, window_tokens: 48}}\n{behind}  - {{stage: score, terms: \
         [{{statistic: {statistic}}}]}}\n  - {{stage: filter, keep_fraction: 0.5}}\noutput: {{path: out, part_bytes: 0}}\n"
    )
}

fn run(workspace: &Workspace, pipeline: &str) -> Value {
    workspace.write("pipeline.yaml", pipeline);
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary()
}

/// Runs a pipeline, expects this exit code and returns the message.
fn refused(workspace: &Workspace, pipeline: &str, code: i32) -> String {
    workspace.write("pipeline.yaml", pipeline);
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(code).stderr
}

/// Rows, codes and messages of the quarantine.
fn quarantined(workspace: &Workspace) -> Vec<(String, String, String)> {
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    let column = |name: &str| texts(&table, name);
    let (ids, codes) = (column("id"), column("longsift_code"));
    let all = ids.into_iter().zip(codes).zip(column("longsift_message"));
    all.map(|((id, code), message)| (id, code, message)).collect()
}

/// Number of starts or requests of the program.
fn calls(workspace: &Workspace, what: &str) -> usize {
    let log = fs::read_to_string(workspace.path("calls")).unwrap_or_default();
    log.lines().filter(|line| line.starts_with(what)).count()
}

#[test]
fn a_program_measures_windows() {
    let workspace = workspace();
    let summary = run(&workspace, &windows("honest", ""));
    assert_eq!((count(&summary, "quarantined"), count(&summary, "rows_in")), (0, 12), "{summary}");
    let scores = read_scores(&workspace.path("out.run"));
    let (start, end) = (integers(&scores, "byte_start"), integers(&scores, "byte_end"));
    let lengths: Vec<f64> =
        end.iter().zip(&start).map(|(end, start)| (end - start) as f64).collect();
    assert_eq!(floats(&scores, "bytes"), lengths);
    assert!(integers(&scores, "letters").iter().all(|letters| *letters > 0));
    assert_eq!(calls(&workspace, "start"), 1, "one process serves all units");
    let kept = read_parquet(&workspace.path("out/data"));
    assert!(kept.column_by_name("longsift_bytes").is_some());
    assert!(kept.column_by_name("longsift_letters").is_none(), "a count");
    assert_eq!(
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).summary()["status"],
        "nothing_to_do"
    );
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn values_near_the_largest_float_are_ranked() {
    let (usual, huge) = (workspace(), workspace());
    let kept = |workspace: &Workspace| {
        texts(&read_parquet(&workspace.path("out/data")), "longsift_sample_id")
    };
    for standardise in ["z-score", "min-max"] {
        let pipeline = |mode: &str| {
            windows(mode, "")
                .replace("{stage: score,", &format!("{{stage: score, standardise: {standardise},"))
        };
        run(&usual, &pipeline("honest"));
        run(&huge, &pipeline("huge"));
        let both = [&usual, &huge].map(|workspace| read_parquet(&workspace.path("out/data")));
        let scores = both.each_ref().map(|table| floats(table, "longsift_score"));
        assert_eq!(kept(&huge), kept(&usual));
        for (one, other) in scores[0].iter().zip(&scores[1]) {
            assert!((one - other).abs() < 1e-9, "{standardise}: {one} {other}");
        }
    }
    // The calibration can be read again, and selects the same.
    let calibrated = windows("huge", "")
        .replace(
            "{stage: score,",
            "{stage: score, calibration: out.run/calibration.json, standardise: min-max,",
        )
        .replace("path: out,", "path: again,");
    run(&huge, &calibrated);
    let again = texts(&read_parquet(&huge.path("again/data")), "longsift_sample_id");
    assert_eq!(again, kept(&usual));
}

#[test]
fn a_spread_beyond_the_largest_float_is_rejected() {
    let workspace = workspace();
    let grouped = windows("beyond", "").replace("{stage: score,", "{stage: score, within: id,");
    let stderr = refused(&workspace, &grouped, 3);
    assert!(stderr.contains("`bytes` has no z-scores in group `document-"), "{stderr}");
    let values = "its values are between -1.7976931348623157e308 and 1.7976931348623157e308";
    assert!(stderr.contains(values), "{stderr}");
    assert!(stderr.contains("`standardise: percentile`"), "{stderr}");
    let percentiles = grouped.replace("within: id,", "within: id, standardise: percentile,");
    let summary = run(&workspace, &percentiles);
    assert_eq!(count(&summary, "windows_scored"), 0, "nothing is measured again");
}

#[test]
fn batch_size_and_processes_change_no_byte() {
    let usual = workspace();
    run(&usual, &windows("honest", ""));
    for more in ["processes: 3,", "batch_windows: 1,", "batch_windows: 5, processes: 2,"] {
        let other = workspace();
        run(&other, &windows("honest", more));
        assert_eq!(other.results(), usual.results(), "{more}");
    }
}

#[test]
fn programs_receive_token_ids_as_scored() {
    let workspace = workspace();
    run(&workspace, &windows("honest", "reads: ids,"));
    let scores = read_scores(&workspace.path("out.run"));
    assert!(floats(&scores, "bytes").iter().all(|bytes| *bytes as usize == 4 * 48));
}

#[test]
fn a_program_drops_documents_and_measures_them_for_all_windows() {
    let workspace = workspace();
    let summary = run(&workspace, &documents("honest", ""));
    assert_eq!(summary["rows_dropped"]["dropped_by_own"], 1, "{summary}");
    let scores = read_scores(&workspace.path("out.run"));
    let mut of_document: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (id, bytes) in texts(&scores, "id").into_iter().zip(floats(&scores, "bytes")) {
        of_document.entry(id).or_default().push(bytes);
    }
    assert_eq!(of_document.len(), 11, "document 7 has no window");
    for row in (0..12).filter(|row| *row != 7) {
        let own = &of_document[&format!("document-{row}")];
        assert!(
            own.len() > 1 && own.iter().all(|bytes| *bytes as usize == text(row).len()),
            "{own:?}"
        );
    }
    let dropped = read_parquet(&workspace.path("out.run/dropped"));
    let reasons = texts(&dropped, "reason");
    assert!(reasons.contains(&"dropped_by_own".to_owned()), "{reasons:?}");
    workspace.longsift(&["verify", "out.run"]).success();
    let asked = calls(&workspace, "asked");
    // Another measure reopens the units: no document is sent twice.
    let more = documents("honest", "")
        .replace("{stage: lexical}", "{stage: lexical}\n  - {stage: recurrence}");
    run(&workspace, &more);
    assert_eq!(calls(&workspace, "asked"), asked);
    let fresh = self::workspace();
    run(&fresh, &more);
    assert_eq!(workspace.results(), fresh.results());
}

#[test]
fn a_pipeline_can_consist_of_a_dropping_program() {
    let workspace = workspace();
    let only_drops = documents("only-drops", "").replace(STATISTICS, "statistics: []");
    let summary = run(&workspace, &only_drops);
    assert_eq!(summary["rows_dropped"]["dropped_by_own"], 1, "{summary}");
    assert!(read_scores(&workspace.path("out.run")).column_by_name("bytes").is_none());
}

#[test]
fn only_the_row_that_a_program_fails_at_is_quarantined() {
    for mode in ["crash", "exit-early", "kill"] {
        let workspace = workspace();
        let summary = run(&workspace, &windows(mode, ""));
        assert_eq!(count(&summary, "quarantined"), 1, "{mode}: {summary}");
        let [(id, code, message)] = &quarantined(&workspace)[..] else { panic!("{mode}") };
        assert_eq!((id.as_str(), code.as_str()), ("document-4", "stage_failed"), "{mode}");
        let how = match mode {
            "crash" => {
                "ended with exit status 3 before it answered; the end of its stderr: cannot take POISON"
            }
            "exit-early" => "ended with exit status 0 before it answered; its stderr is empty",
            _ => "was killed by signal 9 before it answered; its stderr is empty",
        };
        assert!(message.contains(how), "{mode}: {message}");
        assert!(calls(&workspace, "start") > 2, "{mode}: the halves are tried");
        let documents = self::documents(mode, "");
        let other = self::workspace();
        let summary = run(&other, &documents);
        assert_eq!(count(&summary, "quarantined"), 1, "{mode}: {summary}");
        // With a fixed program only that row is tried again.
        let better = windows(mode, "").replace(mode, "honest");
        workspace.write("pipeline.yaml", better);
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
    }
}

#[test]
fn a_quarantined_row_is_retried_on_request() {
    let workspace = workspace();
    run(&workspace, &windows("crash-once", ""));
    assert_eq!(quarantined(&workspace).len(), 1);
    workspace.write("better", "");
    let again = workspace
        .longsift(&["run", "pipeline.yaml", "-q", "--only-quarantined"])
        .success()
        .summary();
    assert_eq!(count(&again, "quarantined"), 0, "{again}");
    let fresh = self::workspace();
    fresh.write("better", "");
    run(&fresh, &windows("crash-once", ""));
    assert_eq!(workspace.results(), fresh.results());
}

#[test]
fn a_program_that_exceeds_time_or_memory_is_ended() {
    for (mode, more, expected) in [
        ("sleep", "timeout_seconds: 1,", "did not answer within 1 s"),
        ("eat", "memory_limit_bytes: 200000000,", "of `memory_limit_bytes`"),
    ] {
        let workspace = workspace();
        let summary = run(&workspace, &windows(mode, more));
        assert_eq!(count(&summary, "quarantined"), 1, "{mode}: {summary}");
        let [(id, _, message)] = &quarantined(&workspace)[..] else { panic!("{mode}") };
        assert!(id == "document-4" && message.contains(expected), "{mode}: {message}");
    }
}

#[test]
fn a_grandchild_with_open_pipes_does_not_block_the_run() {
    let workspace = workspace();
    let summary = run(&workspace, &windows("grandchild", ""));
    assert_eq!(count(&summary, "quarantined"), 1, "{summary}");
    assert!(grandchild_has_ended(&workspace), "a grandchild ends with the program that started it");
}

/// Returns whether the process started by the last program has ended.
fn grandchild_has_ended(workspace: &Workspace) -> bool {
    let pid: i32 =
        fs::read_to_string(workspace.path("grandchild")).unwrap().trim().parse().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/stat"));
    // Its parent may not have reaped it.
    status.map_or(true, |status| status.contains(") Z "))
}

#[test]
fn a_program_that_fails_after_its_last_answer_causes_a_warning() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", windows("fails-at-the-end", ""));
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let warning =
        "a program failed after its last answer: it ended with exit status 1; its stderr is empty";
    assert!(answer.stderr.contains(warning), "{}", answer.stderr);
    assert_eq!(count(&answer.summary(), "quarantined"), 0);
    assert!(grandchild_has_ended(&workspace), "its child process ends as well");
}

#[test]
fn invalid_answers_end_the_run() {
    for (mode, expected) in [
        ("garbage", "expected an Arrow message, got `Loading the model…`"),
        ("garbage-later", "expected an Arrow message, got `one batch done`"),
        ("twice", "rows, got"),
        ("repeated", "rows, got"),
        ("reversed", "results must be in the order of the input rows"),
        ("short", "rows, got"),
        ("other-columns", ", got `row` Int64, `window` Int32, `bytes` Float64, `letters` Float64"),
        ("negative", "`letters` of row"),
        ("null-key", "`window` of an answer is null"),
        ("compressed", "its record batches are compressed"),
    ] {
        let workspace = workspace();
        let stderr = refused(&workspace, &windows(mode, ""), 3);
        assert!(stderr.contains(expected), "{mode}: {stderr}");
        assert!(stderr.contains("returned an invalid answer"), "{mode}: {stderr}");
        assert!(stderr.contains("pipeline.yaml:6"), "{mode}: {stderr}");
        assert!(!workspace.path("out/data").exists(), "{mode}");
    }
    let workspace = workspace();
    let stderr = refused(&workspace, &documents("null-drop", ""), 3);
    assert!(stderr.contains("`drop` of an answer is null"), "{stderr}");
    let stderr = refused(&self::workspace(), &windows("more-at-the-end", ""), 3);
    assert!(stderr.contains("it wrote output after its last answer"), "{stderr}");
}

#[test]
fn a_program_that_never_starts_is_an_error_of_the_pipeline() {
    let workspace = workspace();
    for (command, expected) in [
        ("[no-such-program]", "program `no-such-program` not found in PATH"),
        ("[./no-such-program]", "program `./no-such-program` not found"),
        ("[./tokenizer/tokenizer.json]", "`./tokenizer/tokenizer.json` is not executable"),
    ] {
        let wrong = windows("honest", "").replace("[./child.sh, honest]", command);
        workspace.write("pipeline.yaml", wrong);
        let stderr = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
        assert!(stderr.contains(expected) && stderr.contains("pipeline.yaml:6"), "{stderr}");
    }
    for (mode, expected) in [
        (
            "never-starts",
            "does not start: it ended with exit status 7 before it answered; the end of its stderr: no module",
        ),
        ("hangs", "does not start: it did not answer within 1 s"),
    ] {
        let stderr = refused(&workspace, &windows(mode, "timeout_seconds: 1,"), 2);
        assert!(stderr.contains(expected), "{mode}: {stderr}");
    }
    let no_program = workspace.path("no_program");
    fs::write(&no_program, "no program of any kind").unwrap();
    fs::set_permissions(&no_program, fs::Permissions::from_mode(0o755)).unwrap();
    let wrong = windows("honest", "").replace("./child.sh", "./no_program");
    let stderr = refused(&workspace, &wrong, 2);
    assert!(stderr.contains("does not start: "), "{stderr}");
}

#[test]
fn a_program_that_stops_starting_can_be_retried() {
    let workspace = workspace();
    let stderr = refused(&workspace, &windows("starts-once", ""), 4);
    assert!(stderr.contains("does not start again"), "{stderr}");
    workspace.write("better", "");
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let fresh = self::workspace();
    fresh.write("better", "");
    run(&fresh, &windows("starts-once", ""));
    assert_eq!(workspace.results(), fresh.results());
}

#[test]
fn a_program_has_the_environment_of_the_pipeline() {
    let workspace = workspace();
    let more =
        "environment: {GIVEN: \"a b\"}, pass_environment: [XDG_CACHE_HOME, NOT_SET_ANYWHERE],";
    run(&workspace, &windows("environment", more));
    let seen = fs::read_to_string(workspace.path("environment")).unwrap();
    let mut names: Vec<&str> = seen.lines().filter_map(|line| line.split('=').next()).collect();
    names.retain(|name| !["PWD", "SHLVL", "_", "OLDPWD"].contains(name));
    names.sort_unstable();
    assert_eq!(
        names,
        ["GIVEN", "XDG_CACHE_HOME"],
        "only the given variables, apart from those of the shell: {seen}"
    );
    assert!(seen.contains("GIVEN=a b\n"), "{seen}");
}

#[test]
fn passed_values_are_hidden_in_what_a_program_prints() {
    let workspace = workspace();
    let program = workspace.path("leak.sh");
    let prints = "echo \"key $API_SECRET in $API_FOLDER, ${API_URL#*//host}\" >&2";
    fs::write(&program, format!("#!/bin/sh\n{prints}\nexit 3\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let passed = "pass_environment: [API_SECRET, API_FOLDER, API_URL],";
    let pipeline = windows("", passed).replace("./child.sh, ", "./leak.sh");
    workspace.write("pipeline.yaml", pipeline);
    for secret in ["wJalrXUtnFEMI", "/wJalrXUtnFEMI"] {
        let mut command = workspace.command(&["run", "pipeline.yaml", "-q"]);
        command.env("API_SECRET", secret).env("API_FOLDER", "/usr");
        command.env("API_URL", "https://host/v1?api_key=abcdefghi");
        let answer = Answer::from_output(command.output().unwrap()).to_text();
        assert!(answer.contains("key *** in /usr, /v1?***"), "{answer}");
        assert!(!answer.contains("wJalrXUtnFEMI"), "{answer}");
    }
}

#[test]
fn arguments_are_not_passed_to_a_shell() {
    let workspace = workspace();
    let command = r#"[./child.sh, honest, "$(touch stolen); `touch stolen` && touch stolen"]"#;
    run(&workspace, &windows("honest", "").replace("[./child.sh, honest]", command));
    assert!(!workspace.path("stolen").exists());
}

#[test]
fn a_row_is_retried_in_a_new_process_before_it_is_quarantined() {
    let workspace = workspace();
    let summary = run(&workspace, &windows("answers-once", "batch_windows: 4,"));
    assert_eq!(summary["quarantined"], 0, "{summary}");
}

#[test]
fn editing_a_program_during_a_run_ends_the_run() {
    let workspace = workspace();
    let program = fs::read_to_string(workspace.path("child.sh")).unwrap();
    // Edited by someone else at the moment of its start.
    let edited = program.replacen("#!/bin/sh\n", "#!/bin/sh\necho '# edited' >> child.sh\n", 1);
    fs::write(workspace.path("child.sh"), &edited).unwrap();
    let stderr = refused(&workspace, &windows("honest", ""), 2);
    assert!(stderr.contains("`./child.sh` of `own` was edited while the run used it"), "{stderr}");
    assert!(!workspace.path("out/data").exists());
    // A file that affects only its answers, edited after its start.
    fs::write(workspace.path("child.sh"), program).unwrap();
    workspace.write("weights", "1");
    let late = "#!/bin/sh\n(sleep 0.3; echo 2 > weights) </dev/null >/dev/null 2>&1 &\n";
    let program = fs::read_to_string(workspace.path("child.sh")).unwrap();
    let honest = program.strip_prefix("#!/bin/sh\n").unwrap();
    fs::write(workspace.path("child.sh"), late.to_owned() + honest).unwrap();
    let stderr = refused(&workspace, &windows("slow", "files: [weights],"), 2);
    assert!(stderr.contains("`weights` of `own` was edited"), "{stderr}");
    // An edit that is undone before the end.
    let other = self::workspace();
    other.write("weights", "1");
    let undone = late.replace("weights)", "weights; echo 1 > weights)");
    fs::write(other.path("child.sh"), undone + honest).unwrap();
    let stderr = refused(&other, &windows("slow", "files: [weights],"), 2);
    assert!(stderr.contains("`weights` of `own` was edited"), "{stderr}");
    assert_eq!(files_below(&other.path("out.run/units")), Vec::<String>::new());
    // No answer of the edited program remains.
    let journals = files_below(&other.path("out.run/journal"));
    let answers: u64 = journals.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(answers < 1000, "{answers} bytes of answers");
}

#[test]
fn infinity_is_a_missing_value_like_nan() {
    let data = |mode: &str| {
        let workspace = workspace();
        let documents = windows(mode, "").replace("{path: out,", "{path: out, samples: documents,");
        let summary = run(&workspace, &documents);
        assert!(count(&summary, "kept") > 0, "{summary}");
        workspace.hashes(&["out/data"])
    };
    assert_eq!(data("absent"), data("infinite"));
}

#[test]
fn a_difference_names_an_edited_program() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", windows("honest", ""));
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let program = fs::read_to_string(workspace.path("child.sh")).unwrap();
    fs::write(workspace.path("child.sh"), program + "# edited\n").unwrap();
    workspace.longsift(&["run", "pipeline.yaml", "-q", "--set", "output.path=other"]).success();
    let diff = ["diff", "out.run", "other.run", "--format", "json"];
    let diff = workspace.longsift(&diff).expect(5).stdout;
    let diff: serde_json::Value = serde_json::from_str(&diff).unwrap();
    let program = diff["program"].to_string();
    assert!(program.contains("child.sh of own"), "{diff:#}");
}

#[test]
fn settings_that_look_like_secrets_cause_a_warning() {
    let workspace = workspace();
    let more = "environment: {API_TOKEN: a, TOKENIZERS_PARALLELISM: b},";
    workspace.write("pipeline.yaml", windows("honest", more));
    let stderr = workspace.longsift(&["plan", "pipeline.yaml"]).success().stderr;
    assert!(stderr.contains("the value of `API_TOKEN` will be in the run directory"), "{stderr}");
    assert_eq!(stderr.matches("the value of").count(), 1, "{stderr}");
}

#[test]
fn a_changed_program_is_rejected_until_measured_again() {
    let workspace = workspace();
    run(&workspace, &windows("honest", ""));
    let program = fs::read_to_string(workspace.path("child.sh")).unwrap();
    fs::write(workspace.path("child.sh"), format!("{program}\n# another one\n")).unwrap();
    let refused = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2).stderr;
    assert!(
        refused.contains("own: file ./child.sh: ") && refused.contains("--remeasure own"),
        "{refused}"
    );
    let again = workspace.longsift(&["run", "pipeline.yaml", "-q", "--remeasure", "own"]).success();
    assert!(count(&again.summary(), "windows_scored") > 0);
    let other = self::workspace();
    run(&other, &documents("honest", ""));
    fs::write(other.path("child.sh"), format!("{program}\n# another one\n")).unwrap();
    let refused = other.longsift(&["run", "pipeline.yaml", "-q"]).expect(2).stderr;
    assert!(
        refused.contains("documents.own.file ./child.sh: ") && refused.contains("--fresh"),
        "{refused}"
    );
    let asked = calls(&other, "asked");
    other.longsift(&["run", "pipeline.yaml", "-q", "--fresh"]).success();
    assert!(calls(&other, "asked") > asked);
}

#[test]
fn a_run_that_fails_before_it_measures_loses_no_statistics() {
    let workspace = workspace();
    let own = windows("honest", "");
    let summary = run(&workspace, &own);
    let before = workspace.hashes(&["out.run/units", "out.run/scores", "out/data"]);
    let other = own.replace("./child.sh", "./no-such-program").replace("\"1\"", "\"2\"");
    let another = other.replace("name: own", "name: another").replace("bytes", "others");
    let added = windows("honest", "")
        .replace("  - {stage: score", &format!("{}  - {{stage: score", stage_of(&another)));
    for (pipeline, flags) in [(&other, &["--remeasure", "own"][..]), (&added, &[])] {
        workspace.write("pipeline.yaml", pipeline);
        workspace.longsift(&[&["run", "pipeline.yaml", "-q"], flags].concat()).expect(2);
        assert_eq!(workspace.hashes(&["out.run/units", "out.run/scores", "out/data"]), before);
        workspace.longsift(&["verify", "out.run"]).success();
        let again = run(&workspace, &own);
        let windows = (count(&again, "windows_scored"), count(&again, "windows_reused"));
        assert_eq!(windows, (0, count(&summary, "windows_scored")), "{again}");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn an_interrupted_measurement_is_told_from_damage() {
    let workspace = workspace();
    let own = windows("honest", "");
    run(&workspace, &own);
    let selected = workspace.hashes(&["out/data", "out.run/selection"]);
    let report = workspace.longsift(&["report", "out.run", "--format", "json"]).success().stdout;
    let original = Workspace::copy_of(&workspace);
    let original = original.path("out.run").display().to_string();
    workspace.write("pipeline.yaml", own.replace("\"1\"", "\"2\""));
    let run = ["run", "pipeline.yaml", "-q", "--remeasure", "own"];
    workspace.run_until_killed(&run, "create out.run/units/", 3); // each record of an earlier version takes two
    let status = workspace.longsift(&["status", "out.run"]).success().stdout;
    assert!(
        status.starts_with("unfinished") && status.contains("units     1 of 4 scored"),
        "{status}"
    );
    assert!(status.contains("rows in the last selection"), "{status}");
    let found = workspace.longsift(&["verify", "out.run"]).success().stdout;
    assert!(found.contains("since     1 unit scored by a run without a selection"), "{found}");
    assert_eq!(workspace.hashes(&["out/data", "out.run/selection"]), selected);
    // Reports are of the selection and the scores that it was made from.
    assert_eq!(
        workspace.longsift(&["report", "out.run", "--format", "json"]).success().stdout,
        report
    );
    workspace.longsift(&["diff", "out.run", &original]).success();
    workspace.longsift(&run).success();
    workspace.longsift(&["verify", "out.run"]).success();
    assert!(
        !files_below(&workspace.path("out.run"))
            .iter()
            .any(|path| path.display().to_string().contains("-next"))
    );
}

/// The stages of a pipeline that are programs.
fn stage_of(pipeline: &str) -> String {
    let lines = pipeline.split_inclusive('\n');
    lines.filter(|line| line.contains("stage: external")).collect()
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_resumed_run_requests_only_missing_answers() {
    const RUN: [&str; 3] = ["run", "pipeline.yaml", "-q"];
    for pipeline in [windows("honest", ""), documents("honest", "")] {
        let usual = workspace();
        run(&usual, &pipeline);
        let all = calls(&usual, "row");
        for units in [1, 3] {
            let workspace = workspace();
            workspace.write("pipeline.yaml", &pipeline);
            workspace.run_until_killed(&RUN, "create out.run/units/", units + 1);
            let before = calls(&workspace, "row");
            assert!(before > 0);
            workspace.longsift(&RUN).success();
            assert_eq!(workspace.results(), usual.results());
            let repeated = calls(&workspace, "row") - before;
            assert!(repeated < all, "{repeated} of {all} rows are requested again");
        }
    }
}

#[test]
fn a_program_skips_windows_rejected_by_a_guard() {
    let workspace = workspace();
    let guarded = |guard: &str| {
        let pipeline = windows("honest", "")
            .replace("  - {stage: score", "  - {stage: lexical}\n  - {stage: score");
        pipeline.replace("keep_fraction: 0.5", &format!("keep_fraction: 0.5, guards: [{guard}]"))
    };
    let summary = run(&workspace, &guarded("{statistic: unique_token_share, min: 2, before: own}"));
    assert_eq!(calls(&workspace, "row"), 0, "no window passes");
    assert_eq!(summary["kept"], 0);
    let summary =
        run(&self::workspace(), &guarded("{statistic: bytes, min: 1000000, before: lexical}"));
    let spared = summary["windows_not_measured"]["lexical"].as_u64().unwrap();
    assert_eq!(spared, count(&summary, "windows_total"), "{summary}");
    let before = documents("honest", "").replace(
        "keep_fraction: 0.5",
        "keep_fraction: 0.5, guards: [{statistic: unique_token_share, min: 0, before: own}]",
    );
    let stderr = refused(&self::workspace(), &before, 2);
    assert!(stderr.contains("`before` cannot name a stage that reads documents"), "{stderr}");
}

#[test]
fn mistakes_about_a_program_are_reported_at_plan() {
    let workspace = workspace();
    let windows = windows("honest", "");
    for (wrong, expected) in [
        (
            windows.replace(STATISTICS, "statistics: []"),
            "`own` measures windows, but declares no statistics",
        ),
        (
            windows.replace("name: bytes", "name: tokens_total"),
            "`tokens_total` is reserved: windows or samples have a column of this name",
        ),
        (
            windows.replace("name: bytes", "name: score"),
            "`score` is reserved: windows or samples have a column of this name",
        ),
        (
            windows.replace("name: bytes", "name: percentile"),
            "`percentile` is reserved: windows or samples have a column of this name",
        ),
        (windows.replace("name: own", "name: Own-1"), "is not a valid name: it becomes the prefix"),
        (windows.replace("version: \"1\", ", ""), "missing key `version`"),
        (
            windows.replace("version: \"1\", ", "version: \"1\", reads: document, "),
            "it reads documents, and `tokenize` cuts them into windows",
        ),
        (
            documents("honest", "").replace("reads: document", "reads: text"),
            "reads `windows`, which no earlier stage writes",
        ),
        (
            windows.replace("version: \"1\", ", "version: \"1\", files: [nothing.txt], "),
            "`nothing.txt` is not a file",
        ),
    ] {
        workspace.write("pipeline.yaml", wrong);
        let stderr = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[test]
fn programs_receive_tokenised_documents_as_tokens() {
    let workspace = workspace();
    let columns = [
        ("id", strings((0..3).map(|row| format!("t-{row}")))),
        ("tokens", token_lists(&[vec![5; 100], vec![6; 60], vec![7; 70]])),
    ];
    fs::remove_dir_all(workspace.path("input")).unwrap();
    write_parquet(&workspace.path("input/t.parquet"), &table(&columns), 3);
    let of_tokens = documents("honest", "")
        .replace("id_column: id,", "id_column: id, tokens_column: tokens,")
        .replace("tokenizer: tokenizer, ", "");
    run(&workspace, &of_tokens);
    let scores = read_scores(&workspace.path("out.run"));
    assert_eq!(floats(&scores, "bytes")[..2], [400.0, 400.0]);
    let of_text = windows("honest", "")
        .replace("id_column: id,", "id_column: id, tokens_column: tokens,")
        .replace("tokenizer: tokenizer, ", "");
    let stderr = refused(&workspace, &of_text, 2);
    assert!(stderr.contains("`own` measures text, but the input contains token ids"), "{stderr}");
}

#[test]
fn texts_larger_than_a_pipe_and_a_batch_are_supported() {
    let workspace = workspace();
    let long = "A long text without an end. ".repeat(100_000);
    let columns = [("id", strings(["long".to_owned()])), ("text", strings([long.clone()]))];
    fs::remove_dir_all(workspace.path("input")).unwrap();
    write_parquet(&workspace.path("input/long.parquet"), &table(&columns), 1);
    run(&workspace, &documents("honest", ""));
    let scores = read_scores(&workspace.path("out.run"));
    assert_eq!(floats(&scores, "bytes")[0] as usize, long.len());
}

#[test]
fn an_evaluation_runs_programs() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", windows("honest", ""));
    let arguments = ["evaluate", "pipeline.yaml", "--windows", "48", "-q", "--out", "evaluated"];
    workspace.longsift(&arguments).success();
    let evaluation = read_json(&workspace.path("evaluated/evaluation.json"));
    assert!(evaluation["S48"]["statistics"]["bytes"].is_string(), "{evaluation}");
}

#[test]
fn a_dry_run_of_an_evaluation_measures_one_window_with_an_expensive_measure() {
    let measured_rows = |mode: &str| {
        let workspace = workspace();
        workspace.write("pipeline.yaml", windows(mode, ""));
        let arguments =
            ["evaluate", "pipeline.yaml", "--windows", "48", "--dry-run", "--format", "json"];
        let answer = workspace.longsift(&arguments).success().stdout;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["lengths"]["48"]["seconds"]["own"].as_f64().unwrap() > 0.0, "{answer}");
        calls(&workspace, "row")
    };
    assert_eq!(measured_rows("slow"), 1);
    assert!(measured_rows("honest") > 2, "a fast measure measures several windows");
}
