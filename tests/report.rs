//! `longsift report` and `output.report`: a page about a run.

use std::fs;

use serde_json::Value;

use crate::support::pages::{self, hostile, opened};
use crate::support::tables::{labels, strings, table, write_parquet};
use crate::support::{Pipeline, Workspace, demo_model, read_json, repository};

/// The demo, run in a workspace.
fn demo(arguments: &[&str]) -> Workspace {
    let workspace = Workspace::new();
    let demo = repository().join("pipelines/demo.yaml");
    let output = format!("output.path={}", workspace.path("out").display());
    let all = [&["run", demo.to_str().unwrap(), "--set", &output][..], arguments].concat();
    workspace.longsift(&all).success();
    workspace
}

fn report(workspace: &Workspace, arguments: &[&str]) -> Value {
    let all = [&["report", "out.run", "--format", "json"][..], arguments].concat();
    serde_json::from_str(&workspace.longsift(&all).success().stdout).unwrap()
}

fn page(workspace: &Workspace, arguments: &[&str]) -> String {
    workspace
        .longsift(&[&["report", "out.run", "--html", "page.html"][..], arguments].concat())
        .success();
    fs::read_to_string(workspace.path("page.html")).unwrap()
}

/// A pipeline of texts with the demo model's tokenizer that measures recurrence in windows of 64 tokens.
fn recurring() -> Pipeline {
    Pipeline::text("", 64).without_model(Some(demo_model().to_str().unwrap())).measure("recurrence")
}

/// Checks that a page loads nothing and runs no scripts.
fn check_harmless(page: &str) {
    pages::check_harmless(page, 0);
}

#[test]
fn writing_a_report_changes_no_other_byte() {
    let with_report = demo(&[]);
    let without_report = demo(&["--set", "output.report=false"]);
    assert_eq!(with_report.hashes(&["out"]), without_report.hashes(&["out"]));
    assert!(!without_report.path("out.run/report.html").exists());
    let manifest = read_json(&with_report.path("out.run/manifest.json"));
    let listed: Vec<&str> = manifest["report"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part["path"].as_str().unwrap())
        .collect();
    assert_eq!(listed, ["report.html", "report.json"]);
    let page = fs::read_to_string(with_report.path("out.run/report.html")).unwrap();
    assert!(page.len() <= 400_000, "{} bytes", page.len());
    check_harmless(&page);
    // Counts recomputed from the tables equal those of the run.
    let report_json = read_json(&with_report.path("out.run/report.json"));
    let summary = read_json(&with_report.path("out.run/summary.json"));
    assert_eq!(report_json["kept"]["samples"], summary["kept"]);
    assert_eq!(
        report_json["dropped"]["not_selected"]["samples"],
        summary["windows_dropped"]["not_selected"]
    );
    let calibration = read_json(&with_report.path("out.run/calibration.json"));
    for (group, known) in report_json["groups"]
        .as_array()
        .unwrap()
        .iter()
        .zip(calibration["groups"].as_array().unwrap())
    {
        assert_eq!(group["value"], known["value"]);
        assert_eq!(group["kept"]["samples"], known["kept"]);
        assert_eq!(group["thresholds"][0], known["thresholds"][0]["score"]);
        let bins = group["score"]["counts"].as_array().unwrap();
        let all: u64 = bins
            .iter()
            // Per bin: kept samples, those below the threshold, and those rejected by a guard.
            .flat_map(|kinds| &kinds.as_array().unwrap()[..2])
            .map(|n| n.as_u64().unwrap())
            .sum();
        assert_eq!(all, known["count"].as_u64().unwrap());
    }
    // The page is reproducible, except for the duration of the run before it ended.
    let (mut again, mut before) = (report(&with_report, &[]), report_json);
    for report in [&mut again, &mut before] {
        report["machine"] = Value::Null;
    }
    assert_eq!(again, before);
    // A modified page is detected, and is replaced with the run.
    fs::write(with_report.path("out.run/report.html"), page.replace("kept", "lost")).unwrap();
    let verified = with_report.longsift(&["verify", "out.run"]);
    assert!(verified.code == 3 && verified.stdout.contains("report.html"), "{}", verified.stdout);
}

#[test]
fn a_report_without_texts_states_the_reason() {
    let workspace = Workspace::new();
    let texts: Vec<String> = (0..20)
        .map(|row| format!("secret{row} {}", "the quick brown fox jumps over it ".repeat(20 + row)))
        .collect();
    let input =
        table(&[("id", strings((0..20).map(|row| format!("d{row}")))), ("text", strings(texts))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 8);
    let pipeline = recurring().score("formula: far-recurrence");
    workspace.run(&pipeline);
    assert!(page(&workspace, &[]).contains("secret"));
    assert!(page(&workspace, &[]).contains("Scale of its statistics: z-score"));
    assert!(!page(&workspace, &["--no-text"]).contains("secret"));
    assert!(!report(&workspace, &["--no-text"]).to_string().contains("secret"));
    assert_eq!(report(&workspace, &[])["without_input"], Value::Null);
    // Written again with one row fewer.
    write_parquet(&workspace.path("input/a.parquet"), &input.slice(0, 19), 8);
    let report_json = report(&workspace, &[]);
    assert!(!report_json.to_string().contains("secret"));
    let why = "1 of 1 input files changed after they were scored, the first is `a.parquet`";
    assert_eq!(report_json["without_input"], why);
    let notice =
        format!("Texts are missing: {}", why.replace("`a.parquet`", "<code>a.parquet</code>"));
    assert!(page(&workspace, &[]).contains(&notice));
    fs::remove_file(workspace.path("input/a.parquet")).unwrap();
    let report_json = report(&workspace, &[]);
    assert!(!report_json.to_string().contains("secret"));
    assert!(report_json["without_input"].as_str().unwrap().contains("input"), "{report_json}");
    assert!(page(&workspace, &[]).contains("Texts are missing"));
}

fn hostile_run(kinds: &[(&str, String)]) -> Workspace {
    let workspace = Workspace::new();
    let ids = kinds
        .iter()
        .map(|(kind, text)| format!("{kind} {}", text.chars().take(60).collect::<String>()));
    let groups = kinds.iter().map(|(_, text)| text.chars().take(40).collect::<String>());
    let input = table(&[
        ("id", strings(ids)),
        ("group", strings(groups)),
        ("text", strings(kinds.iter().map(|(_, text)| text.clone()))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 4);
    let pipeline = recurring()
        .input("max_quarantined_fraction: 1")
        .score("formula: far-recurrence, within: group")
        .output("report_by: group, report: true");
    workspace.run(&pipeline);
    workspace
}

#[test]
fn every_kind_of_hostile_text_is_shown_as_text() {
    for kind in hostile() {
        let workspace = hostile_run(std::slice::from_ref(&kind));
        let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
        check_harmless(&page);
        assert!(page.len() < 200_000, "{}: {} bytes", kind.0, page.len());
        assert!(page.contains("<blockquote"), "{}: no text is shown", kind.0);
        assert_eq!(page, page_of(&workspace), "{}", kind.0);
    }
}

/// The page, written again. A page that the run itself writes also has the duration of the run.
fn page_of(workspace: &Workspace) -> String {
    let again = page(workspace, &[]);
    let first = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    let before_machine = |page: &str| page.split("id=\"machine\"").next().unwrap().to_owned();
    assert_eq!(before_machine(&again), before_machine(&first));
    first
}

#[test]
fn text_that_is_not_utf8_is_counted_and_not_shown() {
    let workspace = Workspace::new();
    let text = |row: u8| -> Vec<u8> {
        let mut text = "words that come back and words that go on ".repeat(30).into_bytes();
        if row == 3 {
            text[100] = 0xff;
        }
        text
    };
    let ids = strings((0..12).map(|row| format!("d{row}")));
    let rows: Vec<Option<Vec<u8>>> = (0..12).map(|row| Some(text(row))).collect();
    let bytes = arrow_array::BinaryArray::from_iter(rows);
    let input = table(&[("id", ids), ("text", std::sync::Arc::new(bytes))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 4);
    let pipeline = recurring()
        .input("max_quarantined_fraction: 1")
        .score("formula: far-recurrence")
        .output("report: true");
    workspace.run(&pipeline);
    let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    check_harmless(&page);
    assert!(page.contains("invalid_utf8"), "the quarantine is listed by code");
    let report_json = read_json(&workspace.path("out.run/report.json"));
    assert_eq!(report_json["quarantined"]["invalid_utf8"], 1);
}

#[test]
fn the_size_of_a_page_is_bounded() {
    let workspace = Workspace::new();
    // These letters grow most when escaped; every sample shows both of its ends.
    let grown = |row: usize| {
        let words: Vec<String> =
            (0..400).map(|word| format!("w{}", (word * 7 + row) % 90)).collect();
        let words = words.join(" ");
        format!("{}{words}{}", "\u{e0041}".repeat(700), "\u{9b}".repeat(700))
    };
    let rows = 0..240_usize;
    let group = |row: usize| format!("{}{}", row % 24, "\u{e0042}<\"".repeat(2_000));
    let input = table(&[
        ("id", strings(rows.clone().map(|row| format!("{row}{}", "\u{e0043}".repeat(3_000))))),
        ("group", strings(rows.clone().map(group))),
        ("text", strings(rows.map(grown))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 40);
    let pipeline = recurring()
        .score("formula: balanced-recurrence, within: group")
        .output("report_by: group, samples: documents, report: true");
    workspace.run(&pipeline);
    let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    check_harmless(&page);
    assert!(page.matches("<blockquote").count() >= 24, "texts are shown");
    assert!(page.len() <= 2_000_000, "{} bytes", page.len());
}

#[test]
#[cfg_attr(not(longsift_browser), ignore = "needs chromium: any machine with it runs it")]
fn long_and_empty_names_fit_the_page() {
    let workspace = Workspace::new();
    let long = "https://example.org/a/path/that/never/has/a/blank";
    let groups: Vec<Option<&str>> = (0..40).map(|row| Some([long, ""][row % 2])).collect();
    let text = |row: usize| format!("document {row} {}", "says this and that ".repeat(30 + row));
    let input = table(&[
        ("id", strings((0..40).map(|row| format!("d{row}")))),
        ("group", labels(&groups)),
        ("text", strings((0..40).map(text))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 16);
    let pipeline = recurring()
        .score("formula: far-recurrence, within: group")
        .output("report_by: group, report: true");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let run = workspace.longsift(&["run", "pipeline.yaml"]).success();
    let report = workspace.longsift(&["report", "out.run"]).success();
    let whatif = workspace.longsift(&["whatif", "out.run"]).success();
    for output in [run.stderr, report.stdout, whatif.stdout] {
        assert!(output.contains("(empty)"), "{output}");
    }
    let path = workspace.path("out.run/report.html");
    let page = fs::read_to_string(&path).unwrap();
    assert!(page.contains("<summary>(empty)</summary>") && !page.contains("<summary></summary>"));
    let found = pages::beyond_a_screen(&path, 400, "main,summary");
    let (elements, beyond) = found.split_once(':').unwrap();
    assert!(elements.len() >= "of 5".len() && beyond.is_empty(), "{elements}: {beyond}");
}

#[test]
fn many_groups_share_one_picture() {
    let workspace = Workspace::new();
    let groups: Vec<Option<String>> =
        (0..200).map(|row| (row % 50 != 7).then(|| format!("g{}", row % 50))).collect();
    let groups: Vec<Option<&str>> = groups.iter().map(Option::as_deref).collect();
    let text = |row: usize| {
        format!("document {row} says {}", "this and that and more of it ".repeat(10 + row % 50))
    };
    let input = table(&[
        ("id", strings((0..200).map(|row| format!("d{row}")))),
        ("group", labels(&groups)),
        ("text", strings((0..200).map(text))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 16);
    let pipeline = recurring()
        .input("unit_bytes: 8192")
        .score("formula: far-recurrence, within: group")
        .output("report_by: group, samples: documents, report: true");
    let summary = workspace.run(&pipeline);
    let report_json = read_json(&workspace.path("out.run/report.json"));
    let shown = report_json["groups"].as_array().unwrap();
    assert_eq!(shown.len(), 25);
    assert!(
        shown[24]["others"].as_bool().unwrap()
            && shown[24]["samples"].as_array().unwrap().is_empty()
    );
    let samples = |group: &Value| {
        ["kept", "not_selected", "refused"]
            .map(|outcome| group[outcome]["samples"].as_u64().unwrap())
            .iter()
            .sum::<u64>()
    };
    assert_eq!(shown.iter().map(samples).sum::<u64>(), 200);
    assert_eq!(report_json["kept"]["samples"], summary["kept"]);
    let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    assert!(page.contains("all other groups") && page.len() < 1_000_000, "{}", page.len());
    let threads = |n: &str| report_with_threads(&workspace, n);
    assert_eq!(threads("1"), threads("7"), "the page does not depend on the number of threads");
}

fn report_with_threads(workspace: &Workspace, threads: &str) -> String {
    let mut command = workspace.command(&["report", "out.run", "--format", "json"]);
    let answer = command.env("RAYON_NUM_THREADS", threads).output().unwrap();
    assert!(answer.status.success());
    String::from_utf8(answer.stdout).unwrap()
}

#[test]
fn an_unfinished_run_has_no_report() {
    let workspace = Workspace::new();
    fs::create_dir(workspace.path("out.run")).unwrap();
    let answer = workspace.longsift(&["report", "out.run"]);
    assert!(answer.code == 2 && answer.stderr.contains("no finished run"), "{}", answer.stderr);
}

#[test]
#[cfg_attr(not(longsift_browser), ignore = "needs chromium: any machine with it runs it")]
fn every_page_opens_in_a_browser_without_network() {
    let workspace = demo(&[]);
    let hostile = hostile_run(&hostile());
    for (workspace, page) in
        [(&workspace, "out.run/report.html"), (&hostile, "out.run/report.html")]
    {
        let (elements, console) = opened(&workspace.path(page), &workspace.path("browser"));
        assert_eq!(console, Vec::<String>::new());
        for id in ["rows", "groups", "read", "machine", "repeat"] {
            assert!(elements.contains(&format!("<h2 id=\"{id}\"")), "{id}");
        }
        assert!(elements.matches("<svg").count() > 8);
        let names = "main,summary,svg,blockquote,.bars,pre";
        let beyond = pages::beyond_a_screen(&workspace.path(page), 400, names);
        assert!(beyond.len() > "of 9:".len() && beyond.ends_with(':'), "{beyond}");
        assert!(elements.trim_end().ends_with("</main></body></html>"));
    }
    // The contents stay in view on a wide screen and on a phone.
    for pixels in [1280, 400] {
        let top = "(frame.scrollTo(0, 3000), frame.scrollY + ' ' + \
                   frame.document.querySelector('nav').getBoundingClientRect().top)";
        let found = pages::in_a_frame(&workspace.path("out.run/report.html"), pixels, top);
        assert_eq!(found, "3000 0", "{pixels}");
    }
    // The check detects a broken page.
    let broken = workspace.path("broken.html");
    let text = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    let foreign = "<img src=\"https://example.org/x.png\"><script>nothing()</script></main>";
    fs::write(&broken, text.replace("</main>", foreign)).unwrap();
    let (_, console) = opened(&broken, &workspace.path("browser"));
    assert!(console.len() >= 2, "{console:?}");
}

/// Windows of three groups, with three guards and this amount.
fn guarded(amount: &str, score: &str) -> Workspace {
    let workspace = Workspace::new();
    let groups: Vec<Option<&str>> = (0..300).map(|row| Some(["a", "b", "c"][row % 3])).collect();
    let text = |row: usize| {
        let words: Vec<String> = (0..200)
            .map(|word| format!("w{}", (word * (1 + row % 7) + row * word % 11) % (5 + row % 60)))
            .collect();
        words.join(" ")
    };
    let input = table(&[
        ("id", strings((0..300).map(|row| format!("d{row}")))),
        ("group", labels(&groups)),
        ("text", strings((0..300).map(text))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 64);
    let guards = "guards: [{statistic: copy_share, max: 0.5}, {statistic: far_recurrence, min: 0.02}, \
                  {statistic: gzip_ratio, max_quantile: 0.9}]";
    let pipeline = recurring()
        .measure("compression")
        .score(score)
        .filter(&format!("{amount}{guards}"))
        .output("report: true, samples: documents");
    workspace.run(&pipeline);
    workspace
}

/// Cells of the row of a table that begins with this text.
fn cells(page: &str, first: &str) -> Vec<String> {
    let row = page.split(&format!("<tr><td>{first}</td>")).nth(1).unwrap();
    let cells = row.split("</tr>").next().unwrap().split("<td>").skip(1);
    cells.map(|cell| cell.trim_end_matches("</td>").to_owned()).collect()
}

#[test]
fn other_amounts_are_exact_for_every_kind_of_amount() {
    let balanced = "formula: balanced-recurrence";
    let grouped = "formula: balanced-recurrence, within: group";
    for (amount, score) in [
        ("keep_fraction: 0.3, ", grouped),
        ("keep_fraction: 0.3, ", balanced),
        ("keep_tokens: 9000, ", balanced),
        ("min_score: -0.25, ", grouped),
        ("keep_fraction: 1, ", balanced),
    ] {
        let workspace = guarded(amount, score);
        let summary = read_json(&workspace.path("out.run/summary.json"));
        let report_json = read_json(&workspace.path("out.run/report.json"));
        let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
        let now = cells(&page, "this run");
        assert_eq!(now[0], summary["kept"].to_string(), "{amount}");
        assert_eq!(now[2].replace(',', ""), report_json["kept"]["tokens"].to_string(), "{amount}");
        let amounts = report_json["amounts"].as_array().unwrap();
        assert!(amounts.len() >= 4, "{amount}: {amounts:?}");
        // The first, the last and one between.
        for index in [0, amounts.len() / 2, amounts.len() - 1] {
            let other = &amounts[index];
            let set = format!("stages.filter.min_score={}", other["min_score"]);
            let found =
                workspace.longsift(&["whatif", "out.run", "--set", &set, "--format", "json"]);
            let found: Value = serde_json::from_str(&found.success().stdout).unwrap();
            let total = &found["total"]["then"];
            assert_eq!(
                (&other["samples"], &other["tokens"]),
                (&total["samples"], &total["tokens"])
            );
            let min_score = other["min_score"].to_string();
            assert_eq!(cells(&page, &min_score)[0], other["samples"].to_string(), "{amount}");
        }
    }
}

#[test]
fn amounts_that_cannot_be_counted_exactly_are_not_shown() {
    let budgets = "budgets: [{min_tokens: 0, keep_tokens: 9000}], ";
    for (amount, score) in
        [(budgets, "formula: balanced-recurrence"), ("keep_fraction: 0.3, ", "formula: random")]
    {
        let workspace = guarded(amount, score);
        let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
        assert!(!page.contains("id=\"whatif\"") && page.contains("id=\"groups\""), "{amount}");
    }
}

#[test]
fn a_report_that_is_requested_later_is_made() {
    let workspace = Workspace::new();
    let text = |row: usize| format!("words that come back {row} ").repeat(60);
    let input = table(&[
        ("id", strings((0..12).map(|row| format!("d{row}")))),
        ("text", strings((0..12).map(text))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 8);
    let pipeline = recurring().score("formula: far-recurrence");
    workspace.run(&pipeline);
    let (data, page) = (workspace.hashes(&["out/data"]), workspace.path("out.run/report.html"));
    let requested = pipeline.output("report: true");
    for status in ["done", "nothing_to_do"] {
        assert_eq!(workspace.run(&requested)["status"], status);
        assert!(page.exists() && workspace.hashes(&["out/data"]) == data);
        workspace.longsift(&["verify", "out.run"]).success();
    }
}

#[test]
fn texts_keep_their_line_breaks_and_code_is_monospaced() {
    let workspace = Workspace::new();
    let line =
        |row: usize, line: usize| format!("\tcall{row}({line}, words, that, come, back);\r\n");
    let text = |row: usize| (0..60).map(|number| line(row, number)).collect::<String>();
    let input = table(&[
        ("id", strings((0..12).map(|row| format!("d{row}")))),
        ("text", strings((0..12).map(text))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 8);
    workspace.run(&recurring().score("formula: far-recurrence").output("report: true"));
    let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    check_harmless(&page);
    assert!(page.contains("<blockquote class=\"code\"") && !page.contains("class=\"prose\""));
    assert!(page.contains(" words, that, come, back);\n\tcall"), "tabs and line breaks stay");
    assert!(!page.contains('⏎') && !page.contains("\\u{9}") && !page.contains("\\u{d}"));
}

#[test]
fn the_tokens_of_short_documents_are_accounted_for() {
    let workspace = Workspace::new();
    let text = |row: usize| "words that come back ".repeat(if row < 4 { 3 } else { 40 });
    let input = table(&[
        ("id", strings((0..12).map(|row| format!("d{row}")))),
        ("text", strings((0..12).map(text))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 8);
    let summary =
        workspace.run(&recurring().score("formula: far-recurrence").output("report: true"));
    let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    let (_, bars) = page.split_once("<p>tokens read <span class=\"soft\">").unwrap();
    let bars = bars.split("</div>").next().unwrap();
    let numbers: Vec<u64> = bars
        .split("<span class=\"soft\">")
        .skip(1)
        .map(|rest| rest.split(' ').next().unwrap().replace(',', "").parse().unwrap())
        .collect();
    assert_eq!(numbers.iter().sum::<u64>(), summary["tokens_total"].as_u64().unwrap(), "{bars}");
    assert!(bars.contains("outside windows") && numbers.len() >= 2, "{bars}");
}
