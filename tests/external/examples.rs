//! The programs of `docs/examples/external` work as `docs/custom-measures.md` describes.

use std::fs;

use crate::support::tables::{floats, integers, read_scores, strings, table, write_parquet};
use crate::support::{Workspace, count, demo_model, repository};

/// Three documents, one of them mostly digits, and the programs next to the pipeline.
fn workspace(stages: [&str; 2]) -> Workspace {
    let workspace = Workspace::new();
    let tokenizer = fs::read(demo_model().join("tokenizer.json")).unwrap();
    workspace.write("tokenizer/tokenizer.json", tokenizer);
    for name in ["sentences.py", "prose.py", "in_environment.sh"] {
        let example = repository().join("docs/examples/external").join(name);
        fs::copy(example, workspace.path(name)).unwrap();
    }
    let texts = [
        "The river turns. Nobody knows why! Does it matter? ".repeat(12),
        "1234 5678 90.12 ".repeat(60),
        "One long sentence without an end ".repeat(20),
    ];
    let columns = [("id", strings(["a", "b", "c"].map(str::to_owned))), ("text", strings(texts))];
    write_parquet(&workspace.path("input/a.parquet"), &table(&columns), 3);
    let [before, behind] = stages;
    workspace.write("pipeline.yaml", format!(
        "version: 1\nname: test\ninput: {{path: input, id_column: id}}\nstages:\n{before}  - {{stage: tokenize, tokenizer: \
         tokenizer, window_tokens: 64}}\n{behind}  - {{stage: score, terms: [{{statistic: words_per_sentence}}]}}\n  - {{stage: \
         filter, keep_fraction: 1}}\noutput: {{path: out}}\n"
    ));
    workspace
}

const PROSE: &str = "  - {stage: external, name: prose, command: [python3, prose.py, \"0.5\"], version: \"1\", reads: document, \
                     statistics: [{name: letter_share, unit: share of the characters, doc: letters and spaces}]}\n";

fn sentences(command: &str) -> String {
    format!(
        "  - {{stage: external, name: sentences, command: {command}, version: \"1\", files: [sentences.py], pass_environment: \
         [PATH], statistics: [{{name: sentences, kind: count, unit: sentences, doc: sentences of the window}}, \
         {{name: words_per_sentence, unit: words, doc: words of an average sentence}}]}}\n"
    )
}

#[test]
#[cfg_attr(not(longsift_pyarrow), ignore = "needs pyarrow: pip install pyarrow")]
fn python_programs_drop_documents_and_measure_windows() {
    let direct = workspace([PROSE, &sentences("[python3, sentences.py]")]);
    let summary = direct.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
    assert_eq!(summary["rows_dropped"]["dropped_by_prose"], 1, "{summary}");
    assert_eq!(count(&summary, "rows_kept"), 2, "{summary}");
    let scores = read_scores(&direct.path("out.run"));
    assert!(floats(&scores, "letter_share").iter().all(|share| *share > 0.9));
    let (number, words) = (integers(&scores, "sentences"), floats(&scores, "words_per_sentence"));
    assert!(number[0] > 5 && words[0] < 5.0, "{number:?} {words:?}");
    assert!(number.last() == Some(&1) && words.last() > Some(&20.0), "{number:?} {words:?}");
    // The shell script starts the same program in its own environment.
    let by_shell = workspace([PROSE, &sentences("[./in_environment.sh, sentences.py]")]);
    by_shell.longsift(&["run", "pipeline.yaml", "-q"]).success();
    assert_eq!(read_scores(&by_shell.path("out.run")).columns(), scores.columns());
}
