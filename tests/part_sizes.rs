//! `output.part_bytes`: how an output is divided into files.

use std::fs;

use crate::support::tables::{corpus, count_rows, read_parquet, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace, files_below};

/// Files of units of about 1 KiB, one of them forty times as large.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    for name in ["a", "b", "d", "e"] {
        let table = corpus(name, &[64, 130, 64, 200, 96, 20]);
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), &table, 2);
    }
    let large = corpus("c", &[640; 40]);
    write_parquet(&workspace.path("input/c.parquet"), &large, 40);
    workspace
}

fn pipeline(part_bytes: u64) -> Pipeline {
    let mut pipeline = Pipeline::tokens("model", 32).input("unit_bytes: 1024");
    pipeline.output = format!("path: out, part_bytes: {part_bytes}");
    pipeline
}

/// Rows of each file of the output, in the order of their names.
fn rows(workspace: &Workspace) -> Vec<u64> {
    files_below(&workspace.path("out/data")).iter().map(|file| count_rows(file)).collect()
}

#[test]
fn part_size_does_not_change_the_rows() {
    let workspace = workspace();
    workspace.run(&pipeline(0));
    let each = rows(&workspace);
    let all = read_parquet(&workspace.path("out/data"));
    workspace.run(&pipeline(2048));
    let some = rows(&workspace);
    assert_eq!(read_parquet(&workspace.path("out/data")), all);
    let (largest, of_large) = (some.iter().max().unwrap(), each.iter().max().unwrap());
    assert!(largest < of_large, "the large unit is split: {each:?} {some:?}");
    assert!(some[0] > each[0] && some.len() < each.len(), "small ones are together: {some:?}");
    workspace.longsift(&["verify", "out.run"]).success();
    // By default a small output is one file.
    let mut default = pipeline(0);
    default.output = "path: out".to_owned();
    workspace.run(&default);
    assert_eq!(rows(&workspace), [all.num_rows() as u64]);
    assert_eq!(read_parquet(&workspace.path("out/data")), all);
    assert!(workspace.path("out/data/train-00000-of-00001.parquet").exists());
}

#[test]
fn any_number_of_processes_writes_the_same_files() {
    let single = workspace();
    single.run(&pipeline(1024));
    let expected = single.results();
    for count in [1, 2, 5, 40] {
        let shared = workspace();
        shared.write("pipeline.yaml", pipeline(1024).to_string());
        shared.longsift(&["run", "pipeline.yaml", "--phase", "score", "-q"]).success();
        let mut units = 0;
        for index in 0..count {
            let shard = format!("{index}/{count}");
            let arguments = ["run", "pipeline.yaml", "--phase", "write", "--shard", &shard, "-q"];
            let summary = shared.longsift(&arguments).success().summary();
            units += summary["shard"]["units"].as_u64().unwrap();
        }
        let mut written = files_below(&shared.path("out/.written"));
        written.retain(|path| !path.ends_with(".longsift"));
        assert_eq!(written.len(), files_below(&single.path("out/data")).len(), "{count} processes");
        let planned = fs::read_dir(shared.path("out.run/units")).unwrap().count() as u64;
        assert_eq!(units, planned, "every unit is in one shard of {count}");
        shared.longsift(&["run", "pipeline.yaml", "--phase", "select", "-q"]).success();
        assert_eq!(shared.results(), expected, "{count} processes");
    }
}
