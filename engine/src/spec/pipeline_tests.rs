//! Wrong pipelines with their full messages, valid ones with their settings, and a property test that the engine refuses what
//! the published schema refuses.

use longsift_stages::contract::Location;
use std::path::Path;

use insta::assert_snapshot;
use longsift_stages::StageSettings;
use longsift_stages::contract::Decimal;
use proptest::prelude::*;
use serde_json::json;

use crate::base::diagnostic::Severity;
use crate::base::render::render;
use crate::spec::*;

const RIGHT: &str = "\
version: 1
name: test
input:
  path: in/*.parquet
stages:
  - stage: load-partial-model
    model: model
  - stage: tokenize
    window_tokens: 4096
  - stage: first-layer-attention
  - stage: score
  - stage: filter
    keep_fraction: 0.5
output:
  path: out
";

fn overrides(set: &[&str], param: &[&str]) -> Overrides {
    let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    Overrides { set: owned(set), param: owned(param) }
}

fn parse(text: &str, set: &[&str], param: &[&str]) -> CheckedPipeline {
    Spec::parse("pipelines/p.yaml", text, &overrides(set, param))
}

/// Returns the valid pipeline with some text replaced; every piece must occur.
fn right_with(changes: &[(&str, &str)]) -> String {
    let mut text = RIGHT.to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text
}

/// Returns the rendered problems of a pipeline that must be refused.
fn wrong_with(text: &str, set: &[&str], param: &[&str]) -> String {
    let diagnostics = parse(text, set, param).expect_err("a refusal");
    assert!(diagnostics.iter().all(|diagnostic| diagnostic.blame == Blame::Pipeline));
    render(&diagnostics, false)
}

fn wrong(changes: &[(&str, &str)]) -> String {
    wrong_with(&right_with(changes), &[], &[])
}

fn right(text: &str, set: &[&str], param: &[&str]) -> Spec {
    match parse(text, set, param) {
        Ok((spec, warnings)) => {
            assert!(warnings.is_empty(), "{}", render(&warnings, false));
            spec
        }
        Err(diagnostics) => panic!("{}", render(&diagnostics, false)),
    }
}

#[test]
fn names_distances_and_replaced_keys_of_measures() {
    let stages = "  - stage: recurrence\n    name: A b/c\n    min_distance_fraction: 0.5\n    min_distance_tokens: 5\n  - stage: score\n    max_variance_error: 0.2\n";
    let wrong = wrong_with(&right_with(&[("  - stage: score\n", stages)]), &[], &[]);
    assert_snapshot!(wrong);
}

#[test]
fn an_unknown_key() {
    assert_snapshot!(wrong(&[(
        "window_tokens: 4096",
        "window_tokens: 4096\n    windws: disjoint"
    )]));
}

#[test]
fn a_mistyped_key_that_is_required_is_reported_once() {
    assert_snapshot!(wrong(&[("window_tokens", "max_tokens: 7\n    window_token")]));
}

#[test]
fn a_key_of_another_section() {
    assert_snapshot!(wrong(&[
        ("keep_fraction: 0.5", "keep_fraction: 0.5\n    alpha: 0.5"),
        ("name: test", "name: test\nsamples: windows")
    ]));
}

#[test]
fn a_wrong_type() {
    assert_snapshot!(wrong(&[("4096", "many")]));
}

#[test]
fn wrong_types_of_every_kind() {
    assert_snapshot!(wrong(&[
        ("version: 1", "version: one"),
        ("name: test", "name: 2026"),
        (
            "path: in/*.parquet",
            "path: [a, b]\n  text_column: true\n  unit_bytes: \"4096\"\n  on_bad_row:"
        ),
        ("model: model", "model: model\n    strict_positions: yes"),
        ("4096", "32_768"),
        ("- stage: first-layer-attention", "- first-layer-attention"),
        ("keep_fraction: 0.5", "keep_fraction: 50%"),
        ("output:\n  path: out", "output: out"),
    ]));
}

#[test]
fn values_out_of_range() {
    assert_snapshot!(wrong(&[
        ("version: 1", "version: 2"),
        ("4096", "1\n    bos: 3"),
        ("- stage: score", "- stage: score\n    alpha: -0.1"),
        ("keep_fraction: 0.5", "keep_fraction: 50"),
        ("attention\n", "attention\n    min_distance_fraction: 0\n"),
        ("path: in/*.parquet", "path: in/*.parquet\n  unit_bytes: 99999999999999999999999"),
    ]));
}

#[test]
fn nan_and_infinity_are_not_numbers() {
    assert_snapshot!(wrong(&[
        ("keep_fraction: 0.5", "min_score: .nan"),
        ("- stage: score", "- stage: score\n    alpha: -.inf")
    ]));
}

#[test]
fn an_unknown_value() {
    assert_snapshot!(wrong(&[
        ("model: model", "model: model\n    precision: BF-16"),
        ("path: out", "path: out\n  compression: gzip"),
    ]));
}

#[test]
fn a_device_that_needs_brackets_and_one_that_does_not_exist() {
    let shard = |devices: &str| {
        format!("- stage: shard-across-devices\n    devices: {devices}\n  - stage: first")
    };
    assert_snapshot!(wrong(&[("- stage: first", &shard("cuda:0"))]));
    assert_snapshot!(wrong(&[(
        "- stage: first",
        &shard("[cuda:0, gpu1, cuda:0]\n    workers_per_device: [1, 2, 0, 4]")
    )]));
}

#[test]
fn missing_keys() {
    assert_snapshot!(wrong(&[
        ("version: 1\n", ""),
        ("  path: in/*.parquet", "  text_column: text"),
        ("    model: model\n", "")
    ]));
}

#[test]
fn missing_stages() {
    assert_snapshot!(wrong(&[
        ("  - stage: score\n", ""),
        ("  - stage: tokenize\n    window_tokens: 4096\n", "")
    ]));
}

#[test]
fn no_measure_or_a_model_that_none_uses() {
    assert_snapshot!(wrong(&[("  - stage: first-layer-attention\n", "")]));
    assert_snapshot!(wrong(&[("- stage: first-layer-attention", "- stage: recurrence")]));
}

#[test]
fn settings_that_need_a_model() {
    let no_model = ("  - stage: load-partial-model\n    model: model\n", "");
    let measure = ("- stage: first-layer-attention", "- stage: recurrence");
    let bos = ("    window_tokens: 4096\n", "    window_tokens: 4096\n    bos: 1\n");
    assert_snapshot!(wrong(&[no_model, measure, bos]));
    let tokenizer = ("    window_tokens: 4096\n", "    window_tokens: 4096\n    tokenizer: t\n");
    let spec = right(&right_with(&[no_model, measure, tokenizer]), &[], &[]);
    assert!(spec.first_layer_attention().is_none() && spec.shard_across_devices().is_none());
}

#[test]
fn an_unknown_stage_is_not_also_missing() {
    assert_snapshot!(wrong(&[("stage: filter", "stage: filtre")]));
}

#[test]
fn a_stage_without_a_name() {
    assert_snapshot!(wrong(&[
        ("- stage: score\n", "- alpha: 0.5\n"),
        ("- stage: first-layer-attention", "- first-layer-attention: {}")
    ]));
}

#[test]
fn stages_as_a_mapping() {
    let text = "version: 1\nname: a\ninput: {path: in}\nstages:\n  filter: {keep_fraction: 0.5}\noutput: {path: out}\n";
    assert_snapshot!(wrong_with(text, &[], &[]));
}

#[test]
fn a_wrong_order() {
    let score = "  - stage: score\n";
    assert_snapshot!(wrong(&[
        (score, ""),
        ("  - stage: first", "  - stage: score\n  - stage: first")
    ]));
}

#[test]
fn devices_after_the_stage_that_uses_them() {
    assert_snapshot!(wrong(&[(
        "- stage: score",
        "- stage: shard-across-devices\n  - stage: score"
    )]));
}

#[test]
fn a_stage_listed_twice() {
    assert_snapshot!(wrong(&[("- stage: score", "- stage: score\n  - stage: score")]));
}

#[test]
fn duplicate_keys() {
    assert_snapshot!(wrong(&[
        ("name: test", "name: test\nname: again"),
        ("keep_fraction: 0.5", "keep_fraction: 0.5\n    keep_fraction: 0.4")
    ]));
}

#[test]
fn settings_that_exclude_each_other() {
    assert_snapshot!(wrong(&[
        ("path: in/*.parquet", "path: in/*.parquet\n  text_column: text\n  tokens_column: tokens"),
        ("attention\n", "attention\n    min_distance_fraction: 0.25\n    min_distance_tokens: 8\n"),
        ("keep_fraction: 0.5", "keep_fraction: 0.5\n    min_score: 1"),
    ]));
}

#[test]
fn addresses_where_paths_of_this_machine_belong() {
    assert_snapshot!(wrong(&[
        ("path: in/*.parquet", "path: ftp://host/x.parquet\n  since: https://host/old.run"),
        ("path: out", "path: hf://owner/name"),
    ]));
    assert_snapshot!(wrong(&[("path: out", "path: s3://bucket/")]));
}

#[test]
fn paths_that_only_a_shell_would_understand() {
    assert_snapshot!(wrong(&[
        ("path: in/*.parquet", "path: ~/in/*.parquet"),
        ("path: out", "path: $HOME/out"),
    ]));
    assert_snapshot!(wrong(&[("path: out", "path: a/..")]));
    // Its run directory would be the hidden folder `..run`.
    assert!(
        wrong(&[("path: out", "path: .")])
            .contains("`path` is `.`, which is not a folder of its own")
    );
}

#[test]
fn outputs_named_as_run_directories() {
    assert_snapshot!(wrong(&[("path: out", "path: out.run/")]));
    assert_snapshot!(wrong(&[("path: out", "path: s3://bucket/out.run")]));
}

#[test]
fn a_filter_without_an_amount() {
    assert_snapshot!(wrong(&[("\n    keep_fraction: 0.5", "")]));
}

#[test]
fn settings_without_meaning_for_tokens() {
    assert_snapshot!(wrong(&[
        ("path: in/*.parquet", "path: in/*.parquet\n  tokens_column: tokens"),
        ("4096", "4096\n    tokenizer: tokenizer.json\n    special_tokens_in_text: parse"),
    ]));
}

#[test]
fn windows_that_are_too_short() {
    assert_snapshot!(wrong(&[
        ("4096", "2\n    bos: 2"),
        ("attention\n", "attention\n    min_distance_tokens: 2\n")
    ]));
}

#[test]
fn settings_for_missing_groups_and_documents() {
    assert_snapshot!(wrong(&[
        ("- stage: score", "- stage: score\n    document_score: max"),
        ("keep_fraction: 0.5", "keep_tokens: {wiki: 1000}"),
    ]));
}

#[test]
fn an_output_inside_the_input() {
    assert_snapshot!(wrong(&[("in/*.parquet", "data"), ("path: out", "path: data/filtered")]));
}

#[test]
fn empty_texts() {
    assert_snapshot!(wrong(&[
        ("in/*.parquet", "''"),
        ("model: model", "model: ' '"),
        ("path: out", "path:")
    ]));
}

#[test]
fn parameters_that_are_not_declared_or_not_set() {
    let text = right_with(&[
        (
            "name: test",
            "name: test\nparams:\n  date: {}\n  unused: {default: x}\n  1st: {default: x}\n  lang: en",
        ),
        ("in/*.parquet", "in/${dat}/${date}/${never closed"),
        ("model: model", "model: \"a\\\\b ${x y}\""),
    ]);
    assert_snapshot!(wrong_with(&text, &[], &["datum=secret", "loose"]));
}

#[test]
fn a_parameter_where_a_number_belongs() {
    let text =
        right_with(&[("name: test", "name: test\nparams: {n: {default: '12'}}"), ("4096", "${n}")]);
    assert_snapshot!(wrong_with(&text, &[], &[]));
}

#[test]
fn mistakes_on_the_command_line() {
    let set = [
        "stages.filter.keep_fraction=2",
        "stages.filtr.keep_fraction=0.1",
        "stages.tokenize.window_token=8",
        "filter.keep_fraction=0.1",
        "stages.score=1",
        "output..path=x",
        "output.path",
        "output.compression=*fast",
        "stages.score.stage=filter",
        "input.path=",
    ];
    assert_snapshot!(wrong_with(RIGHT, &set, &[]));
}

#[test]
fn an_override_that_contradicts_the_file() {
    assert_snapshot!(wrong_with(RIGHT, &["stages.filter.min_score=0.5"], &[]));
}

#[test]
fn text_that_is_not_yaml() {
    assert_snapshot!(wrong(&[("name: test", "name: test\n\tinput: x")]));
    assert_snapshot!(wrong(&[("name: test", "name: a: b")]));
    assert_snapshot!(wrong(&[("name: test", "name: \"open")]));
    assert_snapshot!(wrong(&[("  path: in/*.parquet", "path: in/*.parquet\n   column: x")]));
    assert_snapshot!(wrong(&[("in/*.parquet", "*.parquet")]));
    assert_snapshot!(wrong(&[("input:\n  path: in/*.parquet", "input: {path: ${x}}")]));
}

#[test]
fn texts_without_a_pipeline() {
    assert_snapshot!(wrong_with("", &[], &[]));
    assert_snapshot!(wrong_with("# nothing\n", &[], &[]));
    assert_snapshot!(wrong_with("- a\n- b\n", &[], &[]));
    assert_snapshot!(wrong_with("just text", &[], &[]));
    assert_snapshot!(wrong_with(&"x".repeat(2 << 20), &[], &[]));
}

#[test]
fn positions_are_right_for_every_kind_of_line_break() {
    let text = right_with(&[("4096", "many")]);
    for line_break in ["\r\n", "\r"] {
        let diagnostics =
            parse(&text.replace('\n', line_break), &[], &[]).expect_err("a wrong type");
        let Some(DiagnosticLocation::Text(location)) = &diagnostics[0].location else {
            panic!("a location")
        };
        assert_eq!(
            (location.line, location.column, location.text.as_str()),
            (Some(9), 20, "    window_tokens: many")
        );
    }
}

#[test]
fn terminal_escapes_and_long_lines_in_user_text() {
    let name = format!("\"\\e[31m{}\"", "long ".repeat(100));
    assert_snapshot!(wrong(&[("version: 1", &format!("? {name}\n: 1\nversion: 1"))]));
}

#[test]
fn a_missing_file_is_a_mistake_of_the_command_line() {
    let missing =
        Spec::read(Path::new("no/such.yaml"), &Overrides::default()).expect_err("nothing to read");
    assert_eq!(missing[0].blame, Blame::Pipeline);
    assert_eq!(missing[0].message, "pipeline file `no/such.yaml` does not exist");
    let folder = Spec::read(Path::new("."), &Overrides::default()).expect_err("a folder");
    assert_eq!((folder[0].blame, folder[0].message.as_str()), (Blame::Pipeline, "`.` is a folder"));
}

#[test]
fn a_file_that_is_not_utf8_is_refused_at_its_byte() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("p.yaml");
    std::fs::write(&path, b"version: 1\nname: caf\xe9 au lait\n").expect("written");
    let diagnostics = Spec::read(&path, &Overrides::default()).expect_err("not UTF-8");
    let text = render(&diagnostics, false).replace(&path.display().to_string(), "p.yaml");
    assert_snapshot!(text);
}

#[test]
fn defaults_are_filled_in() {
    let spec = right(RIGHT, &[], &[]);
    let names: Vec<&str> = spec.pipeline.stages.iter().map(StageSettings::name).collect();
    let expected =
        "load-partial-model tokenize shard-across-devices first-layer-attention score filter";
    assert_eq!(names.join(" "), expected);
    assert_eq!(spec.pipeline.input.text_column.as_deref(), Some("text"));
    assert_eq!(spec.folder, Path::new("pipelines"));
    assert_eq!(spec.filter().keep_fraction, Some(Decimal(0.5)));
    let json = spec.resolved_json();
    assert_eq!(json["stages"][4]["alpha"], 0.5);
    assert_eq!(json["stages"][2]["devices"], "auto");
    let again: Pipeline = serde_json::from_value(json).expect("settings");
    assert_eq!(again, spec.pipeline);
}

#[test]
fn every_setting_can_be_written() {
    let text = "\
version: 1
name: all
params: {date: {default: '2026-11-20', description: ''}}
input: {path: 'in/${date}/*.parquet', id_column: id, tokens_column: tokens, memory_limit_bytes: 1e9,
  unit_bytes: 0x10000, on_bad_row: fail, max_quarantined_fraction: 0}
stages:
  - {stage: tokenize, window_tokens: 4096.0, windows: both-ends, short_documents: score, bos: 2, tokenizer: null}
  - {stage: load-partial-model, model: m, precision: bf16, rope_theta: 2.5e6, cache_folder: c, strict_positions: true}
  - {stage: shard-across-devices, devices: [cuda:0, cpu], headroom_fraction: 0.1, workers_per_device: [1, 2], by: heads}
  - {stage: first-layer-attention, min_distance_tokens: 64, mask: unmasked}
  - {stage: score, formula: longattn, alpha: 1, standardise: min-max, within: source, document_score: max}
  - {stage: filter, keep_tokens: {wiki: 10, 2024: 20, 'null': 3}}
output: {path: out, samples: documents, compression: none, report_by: kind}
";
    let spec = right(text, &[], &["date=2026-12-01"]);
    assert_eq!(spec.pipeline.input.path.to_string(), "in/2026-12-01/*.parquet");
    assert_eq!(spec.params["date"], "2026-12-01");
    assert_eq!(
        (spec.pipeline.input.memory_limit_bytes, spec.tokenize().window_tokens),
        (1_000_000_000, 4096)
    );
    let budgets = serde_json::to_value(spec.filter()).expect("settings");
    assert_eq!(budgets["keep_tokens"], json!({"wiki": 10, "2024": 20, "null": 3}));
}

#[test]
fn an_override_replaces_or_adds_a_setting() {
    let set = [
        "stages.filter.keep_fraction=0.1",
        "stages.filter.keep_fraction=0.29",
        "stages.shard-across-devices.devices=[cpu]",
        "name=other",
        "stages.score.within=source",
        "input.path='/in/*.parquet'",
        "stages.score.alpha=1",
    ];
    let spec = right(RIGHT, &set, &[]);
    assert_eq!(spec.filter().keep_fraction, Some(Decimal(0.29)));
    assert_eq!(
        (spec.pipeline.name.as_str(), spec.pipeline.input.path.to_string().as_str()),
        ("other", "/in/*.parquet")
    );
    assert!(matches!(&spec.pipeline.stages[2], StageSettings::ShardAcrossDevices(_)));
    assert_eq!(spec.overrides, set);
    let taken_back = right(
        RIGHT,
        &[
            "stages.filter.keep_fraction=null",
            "stages.filter.keep_tokens.wiki=9",
            "stages.score.within=s",
        ],
        &[],
    );
    assert_eq!(taken_back.filter().keep_fraction, None);
}

#[test]
fn a_path_of_the_command_line_is_relative_to_the_current_folder() {
    let set =
        ["output.path=out/b", "stages.load-partial-model.model=/abs", "input.path=s3://bucket/x"];
    let spec = right(RIGHT, &set, &[]);
    let here = std::env::current_dir().expect("a current folder");
    let path = |setting: &Location| spec.resolve(setting).to_path_buf();
    assert_eq!(path(&spec.pipeline.output.path), here.join("out/b"));
    assert_eq!(path(&spec.load_partial_model().expect("it has one").model), Path::new("/abs"));
    assert_eq!(spec.pipeline.input.path.to_string(), "s3://bucket/x");
    assert_eq!(spec.resolve(&spec.pipeline.input.path), spec.pipeline.input.path);
    let spec = right(RIGHT, &[], &[]);
    let output = spec.resolve(&spec.pipeline.output.path);
    assert_eq!(output.path(), Some(Path::new("pipelines/out")));
    // `out` of the file is `pipelines/out` relative to the current folder.
    let inside = parse(RIGHT, &["input.path=pipelines/out/data"], &[]).expect_err("an overlap");
    assert_eq!(inside[0].message, "the input is inside the output");
}

#[test]
fn parameters_are_replaced_once_and_can_be_escaped() {
    let text = right_with(&[
        ("name: test", "name: $${a} ${a}${b} $1 $\nparams: {a: {default: '${b'}, b: {default: B}}"),
        ("path: out", "path: \"out/${b}\""),
    ]);
    let refused = parse(&text, &[], &[]).expect_err("a default that uses a parameter");
    assert_eq!(refused[0].message, "the default of parameter `a` uses a parameter");
    let text = text.replace("'${b'", "A");
    let spec = right(&text, &[], &["b=${a}"]);
    assert_eq!(spec.pipeline.name, "${a} A${a} $1 $");
    assert_eq!(spec.pipeline.output.path.to_string(), "out/${a}");
}

#[test]
fn an_unused_parameter_is_a_warning() {
    let text = right_with(&[("name: test", "name: test\nparams: {date: {default: x}}")]);
    let (_, warnings) = parse(&text, &[], &[]).expect("a right pipeline");
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].severity, Severity::Warning);
    assert_eq!(warnings[0].message, "parameter `date` is never used");
}

#[test]
fn a_calibration_makes_the_amount_optional() {
    let calibrated = ("- stage: score", "- stage: score\n    calibration: c.json");
    right(&right_with(&[calibrated, ("\n    keep_fraction: 0.5", "")]), &[], &[]);
    right(&right_with(&[calibrated]), &[], &[]);
}

#[test]
fn a_setting_is_found_where_it_was_written() {
    let spec = right(
        RIGHT,
        &["stages.filter.keep_fraction=0.29", "stages.shard-across-devices.devices=cpu"],
        &[],
    );
    let at = |path: &str| match spec.locate(path) {
        DiagnosticLocation::Text(location) => {
            (location.line.unwrap_or(0), location.column, location.length)
        }
        DiagnosticLocation::Data(_) => panic!("a location in a text"),
    };
    assert_eq!(at("version"), (1, 10, 1));
    assert_eq!(at("input.path"), (4, 9, 12));
    assert_eq!(at("input.text_column"), (3, 1, 5));
    assert_eq!(at("input"), (3, 1, 5));
    assert_eq!(at("stages"), (5, 1, 6));
    assert_eq!(at("stages.tokenize"), (8, 12, 8));
    assert_eq!(at("stages.tokenize.window_tokens"), (9, 20, 4));
    assert_eq!(at("stages.tokenize.bos"), (8, 12, 8));
    assert_eq!(at("stages.nothing.bos"), (5, 1, 6));
    assert_eq!(at("nothing.at.all"), (1, 1, 7));
    assert_eq!(at("stages.filter.keep_fraction"), (0, 35, 4));
    assert_eq!(at("stages.shard-across-devices"), (0, 14, 20));
    let DiagnosticLocation::Text(location) = spec.locate("stages.filter.keep_fraction") else {
        panic!("a location in a text")
    };
    assert_eq!(
        (location.name.as_str(), location.text.as_str()),
        ("command line", "--set stages.filter.keep_fraction=0.29")
    );
}

#[test]
fn a_flood_of_mistakes_is_reported_at_once() {
    let keys = (0..45_000).map(|index| format!("key{index}: 1")).collect::<Vec<_>>().join("\n");
    let stages = format!("stages:\n{}", "- stage: score\n".repeat(30_000));
    let devices: Vec<String> = (0..65_000).map(|index| format!("cuda:{index}")).collect();
    let devices =
        format!("stages: [{{stage: shard-across-devices, devices: [{}]}}]\n", devices.join(","));
    let flow = format!("{{{}}}", "a: [], ".repeat(30_000));
    for text in [keys, stages, devices, flow] {
        let start = std::time::Instant::now();
        let diagnostics = parse(&text, &[], &[]).expect_err("mistakes");
        assert!(diagnostics.len() <= 101);
        assert!(!render(&diagnostics, false).is_empty());
        assert!(start.elapsed().as_secs() < 20, "{}…: {:?}", &text[..40], start.elapsed());
    }
}

/// Changes of the valid pipeline that keep it valid, or that a schema alone can refuse.
const CHANGES: [(&str, &str); 44] = [
    ("test", "test"),
    ("version: 1", "version: 1.0"),
    ("version: 1", "version: 2"),
    ("version: 1", "version: '1'"),
    ("version: 1\n", ""),
    ("name: test", "name: ''"),
    ("name: test", "name: ~"),
    ("name: test", "nam: test"),
    ("name: test", "name: [test]"),
    ("4096", "4096.5"),
    ("4096", "4e3"),
    ("4096", "0x100"),
    ("4096", "16777217"),
    ("4096", "-5"),
    ("4096", "4096\n    bos: 0"),
    ("4096", "4096\n    bos:"),
    ("4096", "4096\n    bos: 3"),
    ("4096", "4096\n    windows: both-ends"),
    ("4096", "4096\n    windows: both_ends"),
    ("4096", "4096\n    windows:"),
    ("4096", "4096\n    stride: 2"),
    ("0.5", "0"),
    ("0.5", "1"),
    ("0.5", "1.0000001"),
    ("0.5", "half"),
    ("keep_fraction: 0.5", "keep_tokens: 5"),
    ("keep_fraction: 0.5", "keep_tokens: 18446744073709551615"),
    ("keep_fraction: 0.5", "keep_tokens: 18446744073709551616"),
    ("keep_fraction: 0.5", "keep_tokens: -1"),
    ("keep_fraction: 0.5", "keep_tokens: [1]"),
    (
        "- stage: score\n  - stage: filter\n    keep_fraction: 0.5",
        "- stage: score\n    within: a\n  - stage: filter\n    keep_tokens: {a: 1}",
    ),
    (
        "- stage: score\n  - stage: filter\n    keep_fraction: 0.5",
        "- stage: score\n    within: a\n  - stage: filter\n    keep_tokens: {a: x}",
    ),
    ("keep_fraction: 0.5", "min_score: -1e300"),
    ("stage: score", "stage: score\n    alpha: 101"),
    ("stage: score", "stage: score\n    within: ''"),
    ("stage: score", "stage: scores"),
    ("stage: score", "name: score"),
    ("- stage: first", "- stage: shard-across-devices\n    devices: []\n  - stage: first"),
    ("- stage: first", "- stage: shard-across-devices\n    devices: 8\n  - stage: first"),
    ("- stage: first", "- stage: shard-across-devices\n    devices: 0\n  - stage: first"),
    ("- stage: first", "- stage: shard-across-devices\n    devices: [cuda:0]\n  - stage: first"),
    (
        "- stage: first",
        "- stage: shard-across-devices\n    headroom_fraction: 0.91\n  - stage: first",
    ),
    ("attention\n", "attention\n    min_distance_fraction: 1\n"),
    ("output:\n", "params: {a: {default: ''}, b: {default: 2}}\noutput:\n"),
];

#[test]
fn the_engine_refuses_exactly_what_the_schema_refuses() {
    let validator = jsonschema::validator_for(schema::pipeline()).expect("a schema");
    let mut verdicts = [0, 0];
    for change in CHANGES {
        let text = right_with(&[change]);
        let mut sources = Sources::default();
        let source = sources.add(Some("p.yaml"), &text);
        let mut problems = Problems::new(&sources);
        let root = yaml::read(&text, Origin { source, column: 1 }, &mut problems).expect("YAML");
        let by_schema = validator.is_valid(&root.to_json());
        let by_engine = parse(&text, &[], &[]);
        let messages = by_engine.as_ref().err().map(|diagnostics| render(diagnostics, false));
        assert_eq!(by_engine.is_ok(), by_schema, "{change:?}: {messages:?}");
        verdicts[usize::from(by_schema)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count >= 10), "{verdicts:?}");
}

proptest! {
    /// Inserting text anywhere or removing a line never panics, and an error always has a location.
    #[test]
    fn a_damaged_pipeline_never_panics(at in 0..RIGHT.len(), piece in "[-\\[\\]{}:,#&*!|>'\"%@?~ \t\n0.$x]{0,3}", cut in 0..20usize) {
        let mut text = format!("{}{piece}{}", &RIGHT[..at], &RIGHT[(at + cut).min(RIGHT.len())..]);
        text.push('\n');
        if let Err(diagnostics) = parse(&text, &[], &[]) {
            prop_assert!(diagnostics.iter().all(|diagnostic| diagnostic.location.is_some()));
            prop_assert!(!render(&diagnostics, true).is_empty());
        }
    }

    #[test]
    fn no_override_panics(path in "[a-z._-]{0,30}", value in "[-\\[\\]{}:,#&*!|>'\"%@?~ \t\n0.$x=]{0,20}") {
        let stage = format!("stages.filter.{path}={value}");
        let _ = parse(RIGHT, &[&format!("{path}={value}"), &stage, &path], &[&path, &format!("{path}={value}")]);
    }
}
