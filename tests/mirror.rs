//! `output.mirror`: the output has the folders and files of the input.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::support::tables::{corpus, count_rows, read_parquet, texts, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace, copy_folder, count, files_below};

/// Nested files: one forty times as large as the others, one with no sample kept, one without rows.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    for (name, lengths, rows_per_group) in [
        ("books/en/a", &[64, 130, 64, 200, 96, 20][..], 2),
        ("books/large", &[640; 40], 4),
        ("empty", &[], 1),
        ("short", &[20, 30], 2),
        ("web/a", &[200, 64, 300, 130], 2),
    ] {
        let path = workspace.path(&format!("input/{name}.parquet"));
        write_parquet(&path, &corpus(name, lengths), rows_per_group);
    }
    workspace
}

fn pipeline(output: &str) -> Pipeline {
    let mut pipeline = Pipeline::tokens("model", 32).input("unit_bytes: 1024");
    pipeline.output = format!("path: out, {output}");
    pipeline
}

/// Rows of the files of the output, by name.
fn rows(workspace: &Workspace) -> BTreeMap<String, u64> {
    let data = workspace.path("out/data");
    let name = |path: &std::path::Path| path.strip_prefix(&data).unwrap().display().to_string();
    files_below(&data).iter().map(|file| (name(file), count_rows(file))).collect()
}

fn names(workspace: &Workspace) -> Vec<String> {
    let data = workspace.path("out/data");
    let name = |path: &std::path::PathBuf| path.strip_prefix(&data).unwrap().display().to_string();
    files_below(&data).iter().map(name).collect()
}

#[test]
fn every_input_file_has_an_output_file() {
    let workspace = workspace();
    workspace.run(&pipeline("part_bytes: 1024"));
    let mut together = texts(&read_parquet(&workspace.path("out/data")), "longsift_sample_id");
    let summary = workspace.run(&pipeline("part_bytes: 1024, mirror: true, card: true"));
    assert_eq!(count(&summary, "windows_scored"), 0, "nothing is measured again");
    let rows = rows(&workspace);
    let (large, others): (Vec<_>, Vec<_>) =
        rows.iter().partition(|(name, _)| name.starts_with("books/large"));
    assert!(large.len() > 2, "{rows:?}");
    for (number, (name, rows)) in large.iter().enumerate() {
        let expected = format!("books/large-{number:05}-of-{:05}.parquet", large.len());
        assert!(**name == expected && **rows > 0, "{name} {rows}");
    }
    let names: Vec<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["books/en/a.parquet", "empty.parquet", "short.parquet", "web/a.parquet"];
    assert_eq!(names, expected);
    assert_eq!((rows["empty.parquet"], rows["short.parquet"]), (0, 0));
    let data = workspace.path("out/data");
    for (name, rows) in rows.iter().filter(|(_, rows)| **rows > 0) {
        let path = data.join(name);
        let source = name.split('-').next().unwrap().trim_end_matches(".parquet").to_owned();
        let samples = texts(&read_parquet(&path), "longsift_sample_id");
        assert!(samples.iter().all(|sample| sample.starts_with(&source)), "{name}: {samples:?}");
        assert_eq!(samples.len() as u64, *rows);
    }
    let mut apart = texts(&read_parquet(&data), "longsift_sample_id");
    together.sort();
    apart.sort();
    assert_eq!(apart, together, "the same samples");
    let card = fs::read_to_string(workspace.path("out/README.md")).unwrap();
    assert!(card.contains("path: data/**/*.parquet\n"), "{card}");
    workspace.longsift(&["verify", "out.run"]).success();
    workspace.longsift(&["report", "out.run", "-q"]).success();
    assert_eq!(
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).summary()["status"],
        "nothing_to_do"
    );
    let plan = workspace.longsift(&["plan", "pipeline.yaml"]).success();
    assert!(
        plan.to_text().contains("in the folders and files of 5 input files"),
        "{}",
        plan.to_text()
    );
    // A file without rows has no work units, but is mirrored.
    write_parquet(&workspace.path("input/more.parquet"), &corpus("more", &[]), 1);
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    assert!(data.join("more.parquet").exists());
}

#[test]
fn documents_are_compared_across_layouts() {
    let workspace = workspace();
    workspace.run(&pipeline("part_bytes: 0"));
    let mut mirrored = pipeline("mirror: true");
    mirrored.output = mirrored.output.replace("path: out", "path: mirrored");
    workspace.write("mirrored.yaml", mirrored.to_string());
    workspace.longsift(&["run", "mirrored.yaml", "-q"]).success();
    let diff = ["diff", "out.run", "mirrored.run", "--format", "json"];
    // The settings differ.
    let found: Value = serde_json::from_str(&workspace.longsift(&diff).expect(5).stdout).unwrap();
    assert_eq!(found["documents"]["same"], 52, "{found}");
}

#[test]
fn any_number_of_processes_writes_the_same_files() {
    for output in [
        "mirror: true, part_bytes: 1024",
        "mirror: true, part_bytes: 0, format: jsonl-zst",
        "mirror: true, format: megatron, sequence_tokens: 100",
    ] {
        let single = workspace();
        single.write("pipeline.yaml", pipeline(output).to_string());
        single.longsift(&["run", "pipeline.yaml", "-q"]).success();
        single.longsift(&["verify", "out.run"]).success();
        let expected = single.results();
        for count in [2, 5] {
            let shared = workspace();
            shared.write("pipeline.yaml", pipeline(output).to_string());
            for phase in ["score", "write"] {
                for index in 0..count {
                    let shard = format!("{index}/{count}");
                    let arguments =
                        ["run", "pipeline.yaml", "--phase", phase, "--shard", &shard, "-q"];
                    shared.longsift(&arguments).success();
                }
            }
            shared.longsift(&["run", "pipeline.yaml", "--phase", "select", "-q"]).success();
            assert_eq!(shared.results(), expected, "{count} processes, {output}");
        }
    }
}

#[test]
fn samples_are_packed_file_by_file() {
    let workspace = workspace();
    let pipeline = pipeline("mirror: true, format: megatron, sequence_tokens: 100");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let names = names(&workspace);
    for stem in ["books/en/a", "books/large", "web/a"] {
        for ending in ["bin", "cu_seqlens.npy", "idx"] {
            assert!(names.contains(&format!("{stem}.{ending}")), "{names:?}");
        }
    }
    let bytes = |name: &str| fs::metadata(workspace.path("out/data").join(name)).unwrap().len();
    assert_eq!(bytes("empty.bin"), 0);
}

#[test]
fn a_changed_setting_writes_what_a_fresh_run_writes() {
    let both = ["part_bytes: 1024", "part_bytes: 1024, mirror: true"];
    for (before, now) in [(both[0], both[1]), (both[1], both[0])] {
        let changed = workspace();
        changed.run(&pipeline(before));
        let summary = changed.run(&pipeline(now));
        assert_eq!(count(&summary, "windows_scored"), 0);
        let fresh = workspace();
        fresh.run(&pipeline(now));
        assert_eq!(changed.results(), fresh.results(), "{now}");
        let folders = |workspace: &Workspace| {
            let entries = fs::read_dir(workspace.path("out/data")).unwrap();
            entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
        };
        assert_eq!(folders(&changed), folders(&fresh), "no empty folder is left");
    }
    let again = workspace();
    again.run(&pipeline(both[1]));
    again.write("pipeline.yaml", pipeline(both[0]).to_string());
    again.longsift(&["run", "pipeline.yaml", "--fresh", "-q"]).success();
    assert!(!again.path("out/data/books").exists());
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_run_killed_at_any_step_of_a_mirror_is_finished() {
    let run = ["run", "pipeline.yaml", "-q", "--threads", "2"];
    let (before, now) = ("part_bytes: 1024", "part_bytes: 1024, mirror: true");
    for (from, to) in [(before, now), (now, before)] {
        let finished = workspace();
        finished.run(&pipeline(from));
        let fresh = workspace();
        fresh.run(&pipeline(to));
        let expected = fresh.results();
        for (step, at) in [
            ("create out/.staging/", 2),
            ("unlink out/data", 1),
            ("unlink out/data", 3),
            ("rename out/data", 1),
            ("rename out/data", 3),
            ("unlink out.run/intent.json", 1),
        ] {
            let killed = Workspace::copy_of(&finished);
            killed.write("pipeline.yaml", pipeline(to).to_string());
            killed.run_until_killed(&run, step, at);
            killed.longsift(&run).success();
            assert_eq!(killed.results(), expected, "{to}, killed at {step} {at}");
            assert!(!killed.path("out/.staging").exists());
            assert_eq!(killed.path("out/data/books").exists(), to == now, "{step} {at}");
        }
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_folder_can_become_a_file_and_a_file_a_folder() {
    let run = ["run", "pipeline.yaml", "-q", "--threads", "1"];
    let of = |name: &str| {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        write_parquet(&workspace.path(&format!("input/{name}")), &corpus("x", &[64, 64]), 2);
        write_parquet(&workspace.path("input/other.parquet"), &corpus("y", &[64, 64]), 2);
        workspace.write("pipeline.yaml", pipeline("mirror: true").to_string());
        workspace
    };
    let (folder, file) = ("a.parquet/part-0.parquet", "a.parquet");
    let deep = "a.parquet/b/c/part-0.parquet";
    for (from, to) in [(folder, file), (deep, file), (file, deep)] {
        let expected = of(to);
        expected.longsift(&run).success();
        for (step, at) in [
            ("unlink out/data", 1),
            ("rename out/data", 1),
            ("rename out/data", 2),
            ("unlink out.run/intent.json", 1),
        ] {
            let changed = of(from);
            changed.longsift(&run).success();
            fs::remove_dir_all(changed.path("input")).unwrap();
            copy_folder(&expected.path("input"), &changed.path("input"));
            changed.run_until_killed(&run, step, at);
            changed.longsift(&run).success();
            assert_eq!(changed.results(), expected.results(), "{to}, killed at {step} {at}");
            changed.longsift(&["verify", "out.run"]).success();
        }
    }
    // A folder with other names is refused before anything is removed, and so is a folder at a new name.
    for (from, other) in
        [(folder, "a.parquet/.mine"), (folder, "a.parquet/b/"), ("c.parquet", "a.parquet/")]
    {
        let changed = of(from);
        changed.longsift(&run).success();
        let other = changed.path("out/data").join(other);
        if other.to_str().unwrap().ends_with('/') {
            fs::create_dir(other).unwrap();
        } else {
            fs::write(other, "").unwrap();
        }
        fs::remove_dir_all(changed.path("input")).unwrap();
        copy_folder(&of(file).path("input"), &changed.path("input"));
        let refused = changed.longsift(&run).expect(2).stderr;
        assert!(refused.contains("a.parquet` is a folder with the name of a file"), "{refused}");
        assert!(changed.path("out/data").join(from).is_file());
        assert!(changed.path("out.run/_SUCCESS").is_file());
    }
}

#[test]
fn files_beyond_a_limit_are_not_mirrored() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline("mirror: true").to_string());
    workspace.longsift(&["run", "pipeline.yaml", "-q", "--limit", "8"]).success();
    let data = workspace.path("out.limit-8/data");
    assert!(data.join("books/large.parquet").exists() && !data.join("web").exists());
}

#[test]
fn names_that_cannot_be_mirrored_are_rejected() {
    let refused = |files: &[&str], input: &str, says: &str| {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        for name in files {
            write_parquet(&workspace.path(&format!("input/{name}")), &corpus("x", &[64, 64]), 2);
        }
        let mut pipeline = pipeline("mirror: true");
        pipeline.input = pipeline.input.replace("path: input", &format!("path: '{input}'"));
        workspace.write("pipeline.yaml", pipeline.to_string());
        let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
        assert!(answer.stderr.contains(says), "{}", answer.stderr);
        assert!(
            answer.stderr.contains("mirror: true"),
            "the error names the setting: {}",
            answer.stderr
        );
    };
    refused(
        &["a.parquet", "a", "b/x.bin", "b/x.bin.parquet"],
        "input/**/*",
        "`a` and `a.parquet` would both be `a.parquet` in the output (and 1 more such problem)",
    );
    refused(
        &["x/_drafts/a.parquet", "b.parquet"],
        "input/**/*.parquet",
        "`x/_drafts/a.parquet` cannot be mirrored: data readers skip names like `_drafts`",
    );
    refused(
        &["x/a.parquet", "b.parquet"],
        "input/*/../*.parquet",
        "`x/../b.parquet` cannot be mirrored: it contains `..`",
    );
    let long = format!("{}.parquet", "n".repeat(200));
    refused(
        &[&long],
        "input",
        "has 200 bytes, but may have at most 192 so that a part number fits",
    );
}

#[test]
fn files_of_others_are_found_below_folders() {
    let workspace = workspace();
    workspace.write("out/data/books/mine.parquet", "somebody's");
    workspace.write("pipeline.yaml", pipeline("mirror: true").to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
    assert!(
        answer
            .stderr
            .contains("`books/mine.parquet`, which the manifest of `out.run` does not list"),
        "{}",
        answer.stderr
    );
    fs::remove_file(workspace.path("out/data/books/mine.parquet")).unwrap();
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    workspace.write("out/data/books/mine.parquet", "somebody's");
    let answer = workspace.longsift(&["verify", "out.run"]);
    assert_ne!(answer.code, 0);
    assert!(answer.to_text().contains("books/mine.parquet"), "{}", answer.to_text());
}

/// Input and output in a store.
#[cfg(feature = "cloud")]
#[test]
fn a_store_is_mirrored_like_a_folder() {
    use crate::support::bucket::Bucket;

    let (local, bucket) = (workspace(), Bucket::new());
    let output = "part_bytes: 1024, mirror: true";
    local.run(&pipeline(output));
    let input = local.path("input");
    for file in files_below(&input) {
        let key = file.strip_prefix(&input).unwrap().to_str().unwrap();
        bucket.put(&format!("in/{key}"), fs::read(&file).unwrap());
    }
    let text = |output: &str| {
        let text = pipeline(output).to_string();
        text.replace("path: input", "path: 's3://bucket/in'")
            .replace("path: out", "path: 's3://bucket/there/out'")
    };
    for output in ["part_bytes: 1024", output] {
        local.write("store.yaml", text(output));
        bucket.longsift(&local, &["run", "store.yaml", "-q"]).success();
    }
    assert_eq!(bucket.results("there/"), local.results());
    bucket.longsift(&local, &["verify", "s3://bucket/there/out.run"]).success();
}
