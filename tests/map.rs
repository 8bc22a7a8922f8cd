//! `longsift map`: attention between the blocks of a document.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field, Fields};
use serde_json::Value;

use crate::support::pages::{beyond_a_screen, check_harmless, check_opened, hostile};
use crate::support::tables::{
    floats, footer_value, integers, read_parquet, strings, table, token_lists, write_parquet,
};
use crate::support::{
    Pipeline, Tiny, Workspace, copy_folder, demo_model, numbers, read_json, repository, shared,
};

fn map(workspace: &Workspace, arguments: &[&str]) -> Value {
    let all = [&["map", "pipeline.yaml", "--format", "json"][..], arguments].concat();
    serde_json::from_str(&workspace.longsift(&all).success().stdout).unwrap()
}

fn refused(workspace: &Workspace, arguments: &[&str], code: i32, parts: &[&str]) {
    let answer = workspace.longsift(&[&["map", "pipeline.yaml"][..], arguments].concat());
    assert_eq!(answer.code, code, "{}", answer.stderr);
    for part in parts {
        assert!(answer.stderr.contains(part), "{part} in {}", answer.stderr);
    }
}

fn cells(matrix: &Value) -> Vec<f64> {
    matrix.as_array().unwrap().iter().flat_map(numbers).collect()
}

/// A document per list of token ids, and a small model.
fn token_workspace(lists: &[Vec<u32>]) -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let ids = (0..lists.len()).map(|row| format!("d{row}"));
    let input = table(&[("id", strings(ids)), ("tokens", token_lists(lists))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 2);
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    workspace
}

fn ids(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|index| (index * 7 % 41 + index % 5) as u32 + 2).collect()
}

/// Documents of text, and the demo model.
fn text_workspace(texts: &[String]) -> Workspace {
    let workspace = Workspace::new();
    let ids = (0..texts.len()).map(|row| format!("d{row}"));
    let input = table(&[("id", strings(ids)), ("text", strings(texts))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 4);
    let model = demo_model();
    workspace.write("pipeline.yaml", Pipeline::text(model.to_str().unwrap(), 64).to_string());
    workspace
}

type Messages<'a> = Vec<Option<(Option<&'a str>, Option<&'a str>)>>;

/// A column of conversations whose messages have two texts of these names.
fn conversations(role: &str, content: &str, rows: &[Option<Messages<'_>>]) -> ArrayRef {
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let fields = Fields::from(vec![text(role), text(content)]);
    let item = Field::new("item", DataType::Struct(fields.clone()), true);
    let messages = StructBuilder::from_fields(fields, 0);
    let mut lists = ListBuilder::new(messages).with_field(item);
    for row in rows {
        for message in row.iter().flatten() {
            let (who, what) = message.unwrap_or_default();
            for (index, text) in [who, what].into_iter().enumerate() {
                let column = lists.values().field_builder::<StringBuilder>(index).unwrap();
                column.append_option(text);
            }
            lists.values().append(message.is_some());
        }
        lists.append(row.is_some());
    }
    Arc::new(lists.finish())
}

fn conversation_workspace(column: ArrayRef) -> Workspace {
    let workspace = Workspace::new();
    let ids = (0..column.len()).map(|row| format!("c{row}"));
    let input = table(&[("id", strings(ids)), ("messages", column)]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 2);
    // The test has its own tokenizer folder, whose configuration it extends.
    copy_folder(&demo_model(), &workspace.path("model"));
    workspace.write("pipeline.yaml", Pipeline::text("model", 64).to_string());
    workspace
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn block_attention_matches_the_conformance_cases() {
    let mut cases = 0;
    for folder in fs::read_dir(shared("conformance")).unwrap() {
        let folder = folder.unwrap().path();
        if !folder.join("case.json").exists() {
            continue;
        }
        let case = read_json(&folder.join("case.json"));
        let workspace = token_workspace(&[numbers(&case["input_ids"])
            .into_iter()
            .map(|id| id as u32)
            .collect()]);
        fs::remove_dir_all(workspace.path("model")).unwrap();
        workspace.link("model", &folder);
        let boundaries: Vec<String> =
            numbers(&case["expected"]["block_boundaries"]).iter().map(f64::to_string).collect();
        let found =
            map(&workspace, &["--document", "d0", "--block-boundaries", &boundaries.join(",")]);
        assert_eq!(found["block_boundaries"], case["expected"]["block_boundaries"]);
        let got = cells(&found["block_attention"]);
        let expected = cells(&case["expected"]["block_attention"]);
        assert_eq!(got.len(), expected.len());
        let tolerance = case["tolerances"]["block_abs"].as_f64().unwrap();
        for (got, expected) in got.iter().zip(&expected) {
            assert!(
                (got - expected).abs() <= tolerance,
                "{}: {got} for {expected}",
                folder.display()
            );
        }
        cases += 1;
    }
    assert!(cases >= 40, "{cases} cases");
}

#[test]
fn every_format_of_a_map_has_the_same_numbers() {
    let workspace = token_workspace(&[ids(300), ids(50)]);
    let files = ["--html", "map.html", "--png", "map.png", "--parquet", "map.parquet"];
    let found =
        map(&workspace, &[&["--document", "d0", "--block-tokens", "37"][..], &files].concat());
    let boundaries: Vec<f64> =
        (0..=8).map(|block| f64::from(block) * 37.0).chain([300.0]).collect();
    assert_eq!(numbers(&found["block_boundaries"]), boundaries);
    for (row, (shares, even)) in found["block_attention"]
        .as_array()
        .unwrap()
        .iter()
        .zip(found["uniform_attention"].as_array().unwrap())
        .enumerate()
    {
        let (shares, even) = (numbers(shares), numbers(even));
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((even.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(shares[row + 1..].iter().chain(&even[row + 1..]).all(|share| *share == 0.0));
        let lift = found["lift"][row].as_array().unwrap();
        assert!(lift[row + 1..].iter().all(Value::is_null));
        for (key, lift) in lift[..=row].iter().enumerate() {
            assert!((lift.as_f64().unwrap() * even[key] - shares[key]).abs() < 1e-12);
        }
    }
    let written = read_parquet(&workspace.path("map.parquet"));
    assert_eq!(floats(&written, "share"), cells(&found["block_attention"]));
    assert_eq!(integers_of(&written, "key_end")[..3], [37, 74, 111]);
    let about = footer_value(&workspace.path("map.parquet"), "longsift_map").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&about).unwrap()["blocks"], found["blocks"]);
    let picture = fs::read(workspace.path("map.png")).unwrap();
    assert!(
        picture.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
            && picture.ends_with(b"IEND\xaeB`\x82")
    );
    let page = fs::read_to_string(workspace.path("map.html")).unwrap();
    check_harmless(&page, 0);
    assert!(page.contains("300") && page.matches("<table class=\"heat").count() == 2);
    // The mean over heads equals the heads one by one, with the same bits on any number of threads.
    let heads = found["query_heads"].as_u64().unwrap();
    let mut mean = vec![0.0; 81];
    for head in 0..heads {
        let head = head.to_string();
        let one = map(&workspace, &["--document", "d0", "--block-tokens", "37", "--head", &head]);
        let shares = cells(&one["block_attention"]);
        mean.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share / heads as f64);
    }
    for (mean, share) in mean.iter().zip(cells(&found["block_attention"])) {
        assert!((mean - share).abs() < 1e-6);
    }
    let again = map(&workspace, &["--document", "d0", "--block-tokens", "37", "--threads", "3"]);
    assert_eq!(again["block_attention"], found["block_attention"]);
}

#[test]
fn a_map_can_be_written_to_a_pipe() {
    let workspace = token_workspace(&[ids(50)]);
    let formats: [(&str, &[u8], &[u8]); 3] = [
        ("--html", b"<!doctype html>", b"</html>"),
        ("--png", b"\x89PNG", b"IEND\xaeB`\x82"),
        ("--parquet", b"PAR1", b"PAR1"),
    ];
    for (option, begin, end) in formats {
        let made = Command::new("mkfifo").arg(workspace.path("pipe")).status().unwrap();
        assert!(made.success());
        let pipe = workspace.path("pipe");
        let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
        map(&workspace, &["--document", "d0", option, "pipe"]);
        assert!(!fs::metadata(workspace.path("pipe")).unwrap().is_file(), "{option}");
        let read = reader.join().unwrap();
        assert!(read.starts_with(begin) && read.ends_with(end), "{option}");
        fs::remove_file(workspace.path("pipe")).unwrap();
    }
}

fn integers_of(batch: &arrow_array::RecordBatch, name: &str) -> Vec<i64> {
    let column = arrow_cast::cast(batch.column_by_name(name).unwrap(), &DataType::Int64).unwrap();
    let batch = table(&[(name, column)]);
    integers(&batch, name)
}

#[test]
fn a_document_may_be_longer_than_any_window_and_bos_is_a_block() {
    let workspace = token_workspace(&[ids(300), ids(5)]);
    let found = map(&workspace, &["--document", "d0"]);
    assert_eq!(found["tokens"], 300);
    assert_eq!(found["blocks"].as_array().unwrap().len(), 19);
    let found = map(&workspace, &["--document", "d1", "--block-tokens", "1000", "--bos", "2"]);
    assert_eq!(numbers(&found["block_boundaries"]), [0.0, 2.0, 7.0]);
    assert_eq!(found["blocks"][0]["label"], "BOS");
    // By index as well.
    assert_eq!(map(&workspace, &["--document", "a.parquet:1"])["tokens"], 5);
    let plan = workspace.longsift(&["map", "pipeline.yaml", "--document", "d0"]).success();
    assert!(plan.stdout.contains("peak memory"), "{}", plan.stdout);
}

#[test]
fn sampled_rows_measure_their_blocks() {
    let workspace = token_workspace(&[ids(600)]);
    let sampled = ["--set", "stages.first-layer-attention.rows={per_window: 64, seed: 1}"];
    let found =
        map(&workspace, &[&["--document", "d0", "--block-tokens", "100"][..], &sampled].concat());
    assert_eq!(found["rows_drawn"], 64);
    assert!(found["block_attention"][0][0].is_null(), "no row before the far distance is drawn");
    let exact = map(&workspace, &["--document", "d0", "--block-tokens", "100"]);
    for row in 2..6 {
        let shares = numbers(&found["block_attention"][row]);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        for (drawn, exact) in shares.iter().zip(numbers(&exact["block_attention"][row])) {
            assert!((drawn - exact).abs() < 0.1, "{drawn} {exact}");
        }
    }
    assert!(found["notes"][0].as_str().unwrap().contains("sampled 64 of the "));
}

#[test]
fn a_conversation_is_cut_where_its_messages_begin() {
    let message = |role, content| Some((Some(role), Some(content)));
    let column = conversations(
        "role",
        "content",
        &[
            Some(vec![
                message("system", "You keep the chronicle."),
                message("user", "What happened in winter?"),
                message("assistant", "The harbour was closed."),
            ]),
            Some(vec![
                message("user", "first"),
                Some((Some("assistant"), None)),
                None,
                message("user", "last"),
            ]),
            Some(vec![Some((Some("user"), None))]),
            None,
            Some(vec![]),
        ],
    );
    let workspace = conversation_workspace(column);
    let found = map(&workspace, &["--document", "c0", "--messages", "messages"]);
    let labels: Vec<&str> = found["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["system", "user", "assistant"]);
    // The tokens are those of the joined text, cut at the same positions.
    let joined =
        "You keep the chronicle.\nWhat happened in winter?\nThe harbour was closed.".to_owned();
    let text = text_workspace(&[joined]);
    let boundaries: Vec<String> =
        numbers(&found["block_boundaries"]).iter().map(f64::to_string).collect();
    let of_text = map(&text, &["--document", "d0", "--block-boundaries", &boundaries.join(",")]);
    assert_eq!(of_text["block_attention"], found["block_attention"]);
    // An empty message has no block.
    let found = map(&workspace, &["--document", "c1", "--messages", "messages"]);
    assert_eq!(found["blocks"].as_array().unwrap().len() + 2, 4, "{found}");
    assert!(found["notes"][0].as_str().unwrap().starts_with("2 messages have no tokens"));
    refused(
        &workspace,
        &["--document", "c2", "--messages", "messages"],
        3,
        &["the text has no tokens", "row 2"],
    );
    refused(
        &workspace,
        &["--document", "c3", "--messages", "messages"],
        3,
        &["null instead of messages", "row 3"],
    );
    refused(
        &workspace,
        &["--document", "c4", "--messages", "messages"],
        3,
        &["the conversation has no messages"],
    );
    refused(
        &workspace,
        &["--document", "c0", "--messages", "id"],
        2,
        &["column `id`", "`role` and `content`"],
    );
    refused(&workspace, &["--document", "c0", "--messages", "none"], 2, &["`none`"]);

    let column = conversations(
        "from",
        "value",
        &[Some(vec![message("human", "Who?"), message("gpt", "The keeper.")])],
    );
    let found =
        map(&conversation_workspace(column), &["--document", "c0", "--messages", "messages"]);
    assert_eq!(
        (&found["blocks"][0]["label"], &found["blocks"][1]["label"]),
        (&"human".into(), &"gpt".into())
    );
}

#[test]
fn a_chat_template_renders_conversations_as_in_training() {
    let message = |role, content| Some((Some(role), Some(content)));
    let column = conversations(
        "role",
        "content",
        &[Some(vec![message("user", "who"), message("assistant", "the keeper")])],
    );
    let workspace = conversation_workspace(column);
    let templated = ["--document", "c0", "--messages", "messages", "--chat-template"];
    refused(&workspace, &templated, 2, &["the tokenizer has no chat template"]);
    let template =
        "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}";
    workspace.write("model/chat_template.jinja", template);
    let found = map(&workspace, &templated);
    let text = text_workspace(&["[user] who\n[assistant] the keeper\n".to_owned()]);
    let boundaries: Vec<String> =
        numbers(&found["block_boundaries"]).iter().map(f64::to_string).collect();
    assert_eq!(boundaries.len(), 3);
    let of_text = map(&text, &["--document", "d0", "--block-boundaries", &boundaries.join(",")]);
    assert_eq!(of_text["block_attention"], found["block_attention"]);
    workspace.write("model/chat_template.jinja", "{{ raise_exception('never') }}");
    refused(&workspace, &templated, 2, &["cannot render the conversation", "never"]);
}

#[test]
fn impossible_maps_are_rejected() {
    let workspace = token_workspace(&[ids(300), vec![3, 4], ids(9000)]);
    let rejected =
        |arguments: &[&'static str], parts: &[&str]| refused(&workspace, arguments, 2, parts);
    rejected(
        &["--document", "nobody"],
        &["document `nobody` not found among the 3 documents of the input", "FILE:ROW"],
    );
    rejected(&["--document", "d0#1"], &["`d0#1`"]);
    rejected(&["--document", "d0", "--block-tokens", "0"], &["--block-tokens"]);
    rejected(
        &["--document", "d2", "--block-tokens", "4"],
        &["9,000 tokens in blocks of 4 are 2,250 blocks", "--block-tokens 9"],
    );
    rejected(
        &["--document", "d0", "--block-boundaries", "0,30,10,10,301"],
        &[
            "10 comes after 30",
            "10 is listed twice",
            "301 is beyond the document, which has 300 tokens",
        ],
    );
    rejected(
        &["--document", "d0", "--block-boundaries", "5,10"],
        &["expected 0 as the first boundary, got 5"],
    );
    rejected(&["--document", "d0", "--block-boundaries", "0,x"], &["--block-boundaries"]);
    rejected(&["--document", "d0", "--block-boundaries", "-1"], &["-1"]);
    rejected(
        &["--document", "d0", "--block-tokens", "3", "--block-boundaries", "0"],
        &["cannot be used with"],
    );
    rejected(&["--document", "d0", "--head", "99"], &["head 99 does not exist"]);
    rejected(&["--document", "d0", "--chat-template"], &["--messages"]);
    rejected(&["--document", "d0", "--messages", "tokens"], &["no tokenizer"]);
    rejected(&["--document", "d0", "--scores-from", "x"], &["has no effect on a map"]);
    let both = ["--document", "d0", "--html", "a.html", "--png", "a.html"];
    rejected(&both, &["`a.html` is named twice"]);
    assert!(!workspace.path("a.html").exists());
    let answer = workspace.longsift(&["map", "nowhere.yaml", "--document", "d0"]);
    assert_eq!(answer.code, 2, "{}", answer.stderr);

    let without_model = Workspace::with_three_groups();
    let pipeline = Pipeline::tokens("model", 64).without_model(None).measure("recurrence");
    without_model.write("pipeline.yaml", pipeline.score("formula: far-recurrence").to_string());
    refused(&without_model, &["--document", "document-1"], 2, &["needs a model or a device"]);
}

#[test]
fn a_map_of_a_run_refuses_a_document_that_has_changed() {
    let texts = |second| ["harbour ", second, "lamp "].map(|word: &str| word.repeat(200));
    let workspace = text_workspace(&texts("keeper "));
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let of_run = ["map", "out.run", "--document", "d1"];
    workspace.longsift(&of_run).success();
    let changed = text_workspace(&texts("keepers "));
    fs::copy(changed.path("input/a.parquet"), workspace.path("input/a.parquet")).unwrap();
    let refused = workspace.longsift(&of_run).expect(3).stderr;
    assert!(refused.contains("document `d1` has changed since the run scored it"), "{refused}");
    // Other documents have not changed, and a pipeline file names the current input.
    workspace.longsift(&["map", "out.run", "--document", "d2"]).success();
    map(&workspace, &["--document", "d1"]);
}

#[test]
fn a_map_of_a_run_refuses_another_tokenizer_or_model() {
    let texts = ["harbour ", "keeper ", "lamp "].map(|word| word.repeat(200));
    for (file, says, tokens_code) in [
        ("tokenizer.json", "tokenizer: ", 3),
        ("model.safetensors", "first-layer-attention: weights: ", 0),
        ("config.json", "first-layer-attention: layer: ", 0),
        ("tokenizer_config.json", "bos_id: ", 3),
    ] {
        let workspace = text_workspace(&texts);
        copy_folder(&demo_model(), &workspace.path("own"));
        let pipeline = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
        let pipeline = pipeline.replace(demo_model().to_str().unwrap(), "own");
        workspace.write("pipeline.yaml", pipeline.replace("bos: 0", "bos: 1"));
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
        let of_run = ["map", "out.run", "--document", "d1"];
        workspace.longsift(&of_run).success();
        let path = workspace.path(&format!("own/{file}"));
        let mut bytes = fs::read(&path).unwrap();
        let replace = |from: &str, to: &str| {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{text}");
            text.replacen(from, to, 1).into_bytes()
        };
        match file {
            "tokenizer.json" => bytes.push(b'\n'),
            "tokenizer_config.json" => bytes = replace("<bos>", "<eos>"),
            "config.json" => bytes = replace("100000.0", "50000.0"),
            _ => {
                let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
                bytes[8 + header..].iter_mut().skip(1).step_by(2).for_each(|byte| *byte ^= 0x80);
            }
        }
        fs::write(&path, bytes).unwrap();
        let refused = workspace.longsift(&of_run).expect(3).stderr;
        assert!(refused.contains("the tokenizer or the model differs from that"), "{refused}");
        assert!(refused.contains(says), "{file}: {refused}");
        let tokens = workspace.longsift(&["tokens", "out.run", "-q"]);
        assert_eq!(tokens.code, tokens_code, "{file}: {}", tokens.stderr);
    }
}

#[test]
fn repeated_ids_are_named_with_their_rows() {
    let workspace = token_workspace(&[ids(30), ids(40), ids(50)]);
    let again = table(&[
        ("id", strings(["x#1", "x#1", "y"])),
        ("tokens", token_lists(&[ids(30), ids(40), ids(50)])),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &again, 1);
    let hint = ["2 documents have the id `x#1`", "`a.parquet:0`, `a.parquet:1`"];
    refused(&workspace, &["--document", "x#1"], 2, &hint);
    assert_eq!(map(&workspace, &["--document", "a.parquet:1"])["tokens"], 40);
    assert_eq!(map(&workspace, &["--document", "x#1@a.parquet:1"])["tokens"], 40);
    refused(&workspace, &["--document", "y@a.parquet:1"], 2, &["not found"]);
    // An id that has the form of a place.
    let place = table(&[
        ("id", strings(["x", "x", "x@a.parquet:0"])),
        ("tokens", token_lists(&[ids(30), ids(40), ids(50)])),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &place, 1);
    let hint = ["2 documents have the id or the place `x@a.parquet:0`"];
    refused(&workspace, &["--document", "x@a.parquet:0"], 2, &hint);
    refused(&workspace, &["--document", "a.parquet:3"], 2, &["not found"]);
}

#[test]
fn every_kind_of_hostile_text_is_shown_as_text() {
    // A map covers all tokens of a document, so texts of a megabyte are shortened here.
    let cut = |(kind, text): (_, String)| (kind, text.chars().take(20_000).collect::<String>());
    let kinds: Vec<(&str, String)> = hostile().into_iter().map(cut).collect();
    let workspace = text_workspace(&kinds.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>());
    for (row, (kind, text)) in kinds.iter().enumerate() {
        let document = format!("a.parquet:{row}");
        map(&workspace, &["--document", &document, "--html", "map.html"]);
        let page = fs::read_to_string(workspace.path("map.html")).unwrap();
        check_harmless(&page, 0);
        assert!(page.len() < 1_500_000, "{kind}: {} bytes", page.len());
        // The role may be any text.
        let role: String = text.chars().take(200).collect();
        let column =
            conversations("role", "content", &[Some(vec![Some((Some(&role), Some("hello")))])]);
        let conversation = conversation_workspace(column);
        let arguments = ["--document", "c0", "--messages", "messages", "--html", "map.html"];
        map(&conversation, &arguments);
        check_harmless(&fs::read_to_string(conversation.path("map.html")).unwrap(), 0);
    }
}

#[test]
#[cfg_attr(not(longsift_browser), ignore = "needs chromium: any machine with it runs it")]
fn a_map_opens_in_a_browser_without_network() {
    let texts: Vec<String> = hostile().into_iter().map(|(_, text)| text).collect();
    let workspace = text_workspace(&texts);
    let demo = repository().join("pipelines/demo.yaml");
    for (pipeline, document) in
        [("pipeline.yaml", "a.parquet:0"), (demo.to_str().unwrap(), "books-01")]
    {
        workspace
            .longsift(&["map", pipeline, "--document", document, "--html", "map.html"])
            .success();
        let elements =
            check_opened(&workspace.path("map.html"), &["shares", "lift", "blocks", "repeat"]);
        assert!(!elements.contains("<script"));
        let beyond =
            beyond_a_screen(&workspace.path("map.html"), 400, "main,table.heat,table.heat td,pre");
        assert!(beyond.len() > "of 99:".len() && beyond.ends_with(':'), "{document}: {beyond}");
    }
}
