//! The map in `ARCHITECTURE.md` is accurate: each module of the engine imports only what its row allows, no files of a
//! crate import each other in a cycle, and the files that it names exist.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::support::repository;
use source::{Sources, cycles};

/// Modules of `engine/src`, each with those it may import. A module follows all that it imports.
const ROOMS: [(&str, &str); 14] = [
    ("base", ""),
    ("spec", "base"),
    ("storage", "base"),
    ("dataset", "base storage spec"),
    ("devices", "base storage"),
    ("run_directory", "base storage dataset"),
    ("plan", "base spec storage dataset devices run_directory"),
    ("score", "base spec storage dataset devices run_directory plan"),
    ("select", "base spec dataset run_directory plan"),
    ("write", "base storage spec dataset run_directory plan select"),
    ("report", "base storage spec dataset run_directory plan select"),
    ("run", "base run_directory plan score select write report"),
    ("tools", "base spec dataset devices run_directory plan score report"),
    ("cli", "base spec storage devices run_directory plan run report tools"),
];

/// Imports between modules that the table lacks, as `FILE imports FILE`.
fn forbidden(sources: &Sources) -> Vec<String> {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        ROOMS.iter().map(|(room, others)| (*room, others.split_whitespace().collect())).collect();
    let room = |file: &str| file.trim_end_matches(".rs").split('/').next().unwrap().to_owned();
    let mut found = Vec::new();
    for (from, others) in sources.imports() {
        // lib.rs and main.rs are above all modules: nothing imports them, and they may import everything.
        let Some(may) = allowed.get(room(&from).as_str()) else {
            continue;
        };
        for to in others {
            if room(&to) != room(&from) && !may.contains(room(&to).as_str()) {
                found.push(format!("{from} imports {to}"));
            }
        }
    }
    found
}

fn map() -> String {
    fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap()
}

/// A chapter of the map.
fn chapter(heading: &str) -> String {
    let map = map();
    map.split("\n## ").find(|chapter| chapter.starts_with(heading)).expect(heading).to_owned()
}

/// The texts in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let found = forbidden(&Sources::read(&repository().join("engine/src")));
    assert!(
        found.is_empty(),
        "these imports are not in the table of ARCHITECTURE.md:\n{}",
        found.join("\n")
    );
}

#[test]
fn files_of_a_crate_have_no_import_cycles() {
    for folder in ["engine/src", "stages/src", "kernels/src"] {
        let found = cycles(&Sources::read(&repository().join(folder)).imports());
        assert!(found.is_empty(), "cycles in {folder}:\n{}", found.join("\n"));
    }
}

#[test]
fn a_planted_import_and_a_planted_cycle_are_found() {
    let mut engine = Sources::read(&repository().join("engine/src"));
    engine.add("base/text.rs", "fn f() { crate::plan::estimate::f() }");
    assert_eq!(forbidden(&engine), ["base/text.rs imports plan/estimate.rs"]);
    engine.add("select/samples.rs", "use super::super::{score, write::slices as k};");
    assert_eq!(
        forbidden(&engine),
        [
            "base/text.rs imports plan/estimate.rs",
            "select/samples.rs imports score.rs",
            "select/samples.rs imports write/slices.rs"
        ]
    );
    let sources = |files: &[(&str, &str)]| {
        let mut sources = Sources::default();
        for (name, text) in files {
            sources.add(name, text);
        }
        cycles(&sources.imports())
    };
    let lib = ("lib.rs", "mod a; mod b;");
    assert_eq!(
        sources(&[lib, ("a.rs", "use crate::b::B;"), ("b.rs", "type C<'a> = super::a::C<'a>;")]),
        ["a.rs → b.rs → a.rs"]
    );
    let a = ("a.rs", "pub use c::C; mod c; fn f() { c::f() }");
    assert_eq!(sources(&[lib, a, ("a/c.rs", "use super::D;")]), ["a.rs → a/c.rs → a.rs"]);
    // These are not imports: submodules of a module file, visibility, comments, strings, and imports of tests.
    let a = ("a.rs", "pub mod c; pub use c::C; #[cfg(test)] mod tests { use super::c; }");
    let c = (
        "a/c.rs",
        r##"//! crate::b::B
        use super::D; pub(in crate::b) struct E; const F: &str = r#""crate::b" crate::b::B"#; const G: char = '"';
        #[cfg(all(test, unix))] mod tests { fn f() { let x = "}"; crate::b::f() } }"##,
    );
    assert!(sources(&[lib, a, c, ("b.rs", "use crate::a::c;")]).is_empty());
}

#[test]
fn the_map_lists_the_modules_and_their_imports() {
    let words = |text: &str| quoted(text).map(str::to_owned).collect::<BTreeSet<_>>();
    let chapter = chapter("Rooms");
    let rows = chapter.lines().filter(|line| line.starts_with("| `"));
    let shown: Vec<_> = rows
        .map(|row| row.split(" | ").collect::<Vec<_>>())
        .map(|cells| (cells[0].trim_matches(['|', ' ', '`']).to_owned(), words(cells[2])))
        .collect();
    let others = |others: &str| others.split_whitespace().map(str::to_owned).collect();
    let table: Vec<_> = ROOMS.iter().map(|(room, may)| ((*room).to_owned(), others(may))).collect();
    assert_eq!(shown, table);
}

#[test]
fn every_file_lies_in_a_room() {
    let files = Sources::read(&repository().join("engine/src")).files();
    let outside = files.into_iter().filter(|file| {
        let name = file.trim_end_matches(".rs").split('/').next().unwrap();
        !["lib", "main"].contains(&name) && ROOMS.iter().all(|(room, _)| *room != name)
    });
    assert_eq!(outside.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn files_on_the_map_exist() {
    let map = map();
    let named: BTreeSet<&str> = quoted(&map)
        .filter(|word| Path::new(word).extension().is_some_and(|extension| extension == "rs"))
        .collect();
    assert!(named.len() > 10, "only {named:?} are named");
    for name in named {
        let exists =
            ["", "engine/src"].iter().any(|folder| repository().join(folder).join(name).exists());
        assert!(exists, "ARCHITECTURE.md names `{name}`, which does not exist");
    }
}
