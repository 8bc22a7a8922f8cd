//! Import graph of a crate's files, parsed from their sources, without imports of tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex_automata::meta::Regex;

/// Imports of each file.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// The files of a crate's `src`, by their path in it.
#[derive(Default)]
pub(crate) struct Sources(BTreeMap<String, Vec<String>>);

impl Sources {
    /// Reads all files below a folder.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut found = Self::default();
        found.read_below(folder, "");
        found
    }

    fn read_below(&mut self, folder: &Path, prefix: &str) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                self.read_below(&entry.path(), &format!("{name}/"));
            } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
                self.add(&name, &fs::read_to_string(entry.path()).unwrap());
            }
        }
    }

    /// Appends text to a file, or adds a file.
    pub(crate) fn add(&mut self, name: &str, text: &str) {
        self.0.entry(name.to_owned()).or_default().extend(words(text));
    }

    /// Returns the paths of all files, including those of tests.
    pub(crate) fn files(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Returns the imports of each file, except files of tests.
    pub(crate) fn imports(&self) -> Imports {
        let mut tests = BTreeSet::new();
        let mut read = BTreeMap::new();
        for (name, words) in &self.0 {
            let (paths, own_tests) = paths(words);
            let folder = folder(name);
            tests.extend(
                own_tests.iter().map(|test| [&folder[..], std::slice::from_ref(test)].concat()),
            );
            read.insert(name, (folder, paths));
        }
        let mut imports = Imports::new();
        for (name, (folder, paths)) in read {
            let of_tests = |test: &Vec<String>| folder.starts_with(test);
            if tests.iter().any(of_tests) {
                continue;
            }
            let others =
                paths.iter().filter_map(|path| self.file(path, &folder)).filter(|to| to != name);
            imports.insert(name.clone(), others.collect());
        }
        imports
    }

    /// Returns the file that a path leads into, from the module `own`.
    fn file(&self, path: &[String], own: &[String]) -> Option<String> {
        let ups = path.iter().take_while(|word| *word == "super").count();
        let absolute = match path[0].as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [own, &path[1..]].concat(),
            "super" => [own.get(..own.len().checked_sub(ups)?)?, &path[ups..]].concat(),
            // A module of this file; anything else comes from another crate or was imported by a `use`.
            child => {
                self.0.get(&format!("{}.rs", [own, &[child.to_owned()]].concat().join("/")))?;
                [own, path].concat()
            }
        };
        let named = |depth: usize| match depth {
            0 => "lib.rs".to_owned(),
            _ => format!("{}.rs", absolute[..depth].join("/")),
        };
        (0..=absolute.len()).rev().map(named).find(|file| self.0.contains_key(file))
    }
}

/// Returns the module of a file: `["storage", "hub"]` of `storage/hub.rs`, nothing for the crate's root.
fn folder(file: &str) -> Vec<String> {
    match file {
        "lib.rs" | "main.rs" => Vec::new(),
        _ => file.trim_end_matches(".rs").split('/').map(str::to_owned).collect(),
    }
}

/// Splits a text into names, numbers and symbols (`::` is one), without comments and literals.
fn words(text: &str) -> Vec<String> {
    let pattern = concat!(
        r####"(?s)//[^\n]*|/\*.*?\*/|\bb?r###".*?"###|\bb?r##".*?"##|\bb?r#".*?"#|\bb?r"[^"]*""####,
        r#"|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.[^']*)'|(\w+|::|[^\s\w])"#,
    );
    let pattern = Regex::new(pattern).unwrap();
    let words = pattern.captures_iter(text).filter_map(|found| found.get_group(1));
    words.map(|word| text[word.range()].to_owned()).collect()
}

/// Returns the index after the matching bracket.
fn bracket_end(words: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (index, word) in words.iter().enumerate().skip(open) {
        match word.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    words.len()
}

/// Returns the index after an item: its `;` or its body.
fn item_end(words: &[String], from: usize) -> usize {
    let mut index = from;
    while index < words.len() {
        match words[index].as_str() {
            ";" => return index + 1,
            "{" => return bracket_end(words, index),
            "(" | "[" => index = bracket_end(words, index),
            _ => index += 1,
        }
    }
    index
}

/// Returns the paths that a file names outside its tests, and the files of its tests.
fn paths(words: &[String]) -> (Vec<Vec<String>>, Vec<String>) {
    let word = |index: usize| words.get(index).map_or("", String::as_str);
    let (mut paths, mut tests) = (Vec::new(), Vec::new());
    let mut index = 0;
    while index < words.len() {
        match word(index) {
            "#" if word(index + 1) == "[" => {
                let end = bracket_end(words, index + 1);
                let attribute = &words[index..end];
                let test = word(index + 2) == "cfg" && attribute.iter().any(|word| word == "test");
                index = end;
                if test && !attribute.iter().any(|word| word == "not") {
                    let item = item_end(words, end);
                    if let Some(module) = words[end..item].iter().position(|word| word == "mod") {
                        tests.push(word(end + module + 1).to_owned());
                    }
                    index = item;
                }
            }
            "pub" => {
                index += 1;
                let visible = word(index) == "(";
                if visible {
                    index = bracket_end(words, index);
                }
                // A file re-exports the content of its submodules.
                if word(index) == "use" && !["crate", "super"].contains(&word(index + 1)) {
                    index = item_end(words, index);
                }
            }
            "use" => {
                let end = words[index..]
                    .iter()
                    .position(|word| word == ";")
                    .map_or(words.len(), |at| index + at);
                expand_use(&words[index + 1..end], &[], &mut paths);
                index = end;
            }
            "mod" if word(index + 2) == "{" => {
                let end = bracket_end(words, index + 2);
                let (inner, _) = self::paths(&words[index + 3..end - 1]);
                paths.extend(inner.into_iter().map(outward));
                index = end;
            }
            _ if word(index + 1) == "::" && word(index.wrapping_sub(1)) != "::" => {
                let mut path = vec![word(index).to_owned()];
                while word(index + 1) == "::" {
                    index += 2;
                    path.push(word(index).to_owned());
                }
                paths.push(path);
                index += 1;
            }
            _ => index += 1,
        }
    }
    (paths, tests)
}

/// Converts a path from a module inside a file to the form in the file itself.
fn outward(mut path: Vec<String>) -> Vec<String> {
    if path[0] == "super" {
        if path.get(1).is_some_and(|word| word == "super") {
            path.remove(0);
        } else {
            "self".clone_into(&mut path[0]);
        }
    }
    path
}

/// Expands a `use`: `a::{b, c::{self, d as e}}` to `a::b`, `a::c::self` and `a::c::d`.
fn expand_use(words: &[String], before: &[String], paths: &mut Vec<Vec<String>>) {
    let mut path = before.to_vec();
    let mut index = 0;
    while index < words.len() {
        match words[index].as_str() {
            "{" => {
                let end = bracket_end(words, index);
                expand_use(&words[index + 1..end - 1], &path, paths);
                path = Vec::new();
                index = end;
            }
            "," => {
                paths.extend((path.len() > before.len()).then(|| path.clone()));
                path = before.to_vec();
                index += 1;
            }
            "as" => index += 2,
            "::" => index += 1,
            name => {
                path.push(name.to_owned());
                index += 1;
            }
        }
    }
    paths.extend((path.len() > before.len()).then_some(path));
}

/// Returns the shortest cycle of each file that is on one, as `a.rs → b.rs → a.rs`.
pub(crate) fn cycles(imports: &Imports) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut seen = BTreeSet::new();
    for start in imports.keys().filter(|start| !seen.contains(*start)).cloned().collect::<Vec<_>>()
    {
        let Some(cycle) = shortest_cycle(imports, &start) else { continue };
        if cycle.iter().all(|file| !seen.contains(file)) {
            found.push([&cycle[..], &[start]].concat().join(" → "));
        }
        seen.extend(cycle);
    }
    found
}

/// Returns the shortest path from a file back to it, without its end.
fn shortest_cycle(imports: &Imports, start: &String) -> Option<Vec<String>> {
    let mut paths = vec![vec![start.clone()]];
    let mut reached = BTreeSet::new();
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            for next in imports.get(path.last()?).into_iter().flatten() {
                if next == start {
                    return Some(path);
                }
                if reached.insert(next.clone()) {
                    longer.push([&path[..], std::slice::from_ref(next)].concat());
                }
            }
        }
        paths = longer;
    }
    None
}
