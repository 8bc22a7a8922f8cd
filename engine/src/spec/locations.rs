//! Checks locations of a pipeline by their text: addresses that a setting accepts, base folders of relative paths, and that
//! input and output do not overlap.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use longsift_stages::contract::Scheme;
use longsift_stages::contract::location;
use serde_json::{Value as Json, json};

use super::node::{Entry, Node, YamlValue};
use super::pipeline::OutputFormat;
use super::rules::stage;
use super::schema::{self, properties, words};
use super::source::{Problems, Sources};
use crate::base::secrets::{self, Secrets};
use crate::base::text::quoted;
use crate::base::wildcards::{self, has_wildcard};

/// Name of an output file without extension, to test globs with.
const SOME_OUTPUT: &str = "train-00000-of-00001";

/// Setting that names files, as marked in the schema.
struct Setting {
    /// `input`, `output` or a stage.
    section: &'static str,
    key: &'static str,
    /// Schemes of accepted addresses (`x-schemes`).
    schemes: Vec<&'static str>,
}

fn settings() -> &'static [Setting] {
    static SETTINGS: OnceLock<Vec<Setting>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let of_section = |(section, mapping): (&'static str, &'static Json)| {
            properties(mapping).filter_map(move |(key, schema)| {
                let schemes = schema["x-schemes"].as_array()?;
                let schemes = schemes.iter().filter_map(Json::as_str).collect();
                Some(Setting { section, key, schemes })
            })
        };
        schema::sections(schema::pipeline()).flat_map(of_section).collect()
    })
}

/// Removes user, password and query from addresses, and returns them. Requests to web servers use them; addresses of stores
/// must not have any.
pub(crate) fn take_secrets(root: &mut Node, problems: &mut Problems) -> Vec<Secrets> {
    let (mut taken, mut addresses) = (Vec::new(), BTreeMap::new());
    for Setting { section, key, .. } in settings() {
        let Some(node) = setting_mut(root, section, key) else { continue };
        let Some((scheme, _)) = node.as_str().and_then(location::split) else { continue };
        let scheme = Scheme::from_name(scheme);
        let (public, found) = secrets::split(node.as_str().unwrap_or_default());
        let is_web = scheme.is_some_and(Scheme::is_web);
        let address = public.trim_end_matches('/').to_owned();
        let before = addresses.insert(address, found.clone()).filter(|_| is_web);
        let differs =
            |before: &Secrets| (&before.user, &before.query) != (&found.user, &found.query);
        if before.as_ref().is_some_and(differs) {
            let message = format!(
                "the address {} is given twice, with different users or queries",
                quoted(&public)
            );
            problems.error(node.span, message).hint("use the same user and query in both");
        }
        if found.is_empty() {
            continue;
        }
        taken.push(found.clone());
        if found.has_inner_user {
            let message =
                format!("`{key}` contains another address with a user: {}", quoted(&public));
            problems.error(node.span, message).hint("only the user before the first host is used");
        } else if is_web {
            secrets::remember(&public, found);
        } else {
            let what = if found.user.is_empty() { "query" } else { "user" };
            let message =
                format!("`{key}` has a {what}, which the address {} cannot have", quoted(&public));
            problems.error(node.span, message).hint(
                "credentials of stores come from the environment (AWS_…, GOOGLE_…, AZURE_…, HF_TOKEN)",
            );
        }
        node.value = YamlValue::String(public);
    }
    taken
}

/// Makes relative paths of the command line absolute: they are relative to the current folder, those of the file to the file's
/// folder.
pub(crate) fn anchor(root: &mut Node, problems: &mut Problems) {
    for Setting { section, key, .. } in settings() {
        let Some(node) = setting_mut(root, section, key) else { continue };
        let Some(text) =
            node.as_str().filter(|text| !text.trim().is_empty() && location::split(text).is_none())
        else {
            continue;
        };
        if problems.sources.is_file(node.span) || Path::new(text).is_absolute() {
            continue;
        }
        let here = std::env::current_dir().ok();
        if let Some(path) = here.and_then(|here| joined(&here, text)) {
            node.value = YamlValue::String(path);
        } else {
            let message =
                format!("{} is relative to a folder that has no readable name", quoted(text));
            problems.error(node.span, message).hint("give an absolute path");
        }
    }
}

/// Joins a folder and a path; if the path is a glob, escapes the folder.
fn joined(folder: &Path, path: &str) -> Option<String> {
    let folder = folder.to_str()?;
    let folder = if has_wildcard(Path::new(path)) {
        glob::Pattern::escape(folder)
    } else {
        folder.to_string()
    };
    Path::new(&folder).join(path).into_os_string().into_string().ok()
}

fn setting_mut<'n>(root: &'n mut Node, section: &str, key: &str) -> Option<&'n mut Node> {
    if matches!(section, "input" | "output") {
        return value_mut(value_mut(root, section)?, key);
    }
    let YamlValue::List(stages) = &mut value_mut(root, "stages")?.value else { return None };
    let is_section = |stage: &&mut Node| stage.get("stage").and_then(Node::as_str) == Some(section);
    value_mut(stages.iter_mut().find(is_section)?, key)
}

fn value_mut<'n>(node: &'n mut Node, key: &str) -> Option<&'n mut Node> {
    let YamlValue::Mapping(entries) = &mut node.value else { return None };
    entries.iter_mut().find(|entry| entry.key == key).map(|entry: &mut Entry| &mut entry.value)
}

/// Reports unsupported addresses, paths that need shell expansion, and outputs without a folder of their own.
pub(crate) fn check_names(root: &Node, problems: &mut Problems) {
    for Setting { section, key, schemes } in settings() {
        let (section, key) = (*section, *key);
        let location = match section {
            "input" | "output" => root.get(section),
            _ => root.get("stages").and_then(|stages| stage(stages, section)),
        };
        let Some(node) = location.and_then(|location| location.get(key)) else { continue };
        let Some(text) = node.as_str() else { continue };
        let is_run = || Path::new(text).extension().is_some_and(|extension| extension == "run");
        if section == "output" && is_run() {
            let message = format!(
                "`{key}` is {}, but `.run` is the extension of run directories",
                quoted(text)
            );
            problems
                .error(node.span, message)
                .hint("leave `.run` out: `<path>.run` is written next to `<path>/data`");
        }
        if let Some((scheme, name)) = location::split(text) {
            if !schemes.contains(&scheme) {
                let message = format!("`{key}` cannot be the address {}", quoted(text));
                problems.error(node.span, message).hint(accepted(section, key, schemes));
            } else if section == "output" && name.trim_matches('/').contains("//") {
                let message = format!("`{key}` contains an empty folder name: {}", quoted(text));
                problems.error(node.span, message).hint("write one slash between two folders");
            } else if section == "output" && name.trim_matches('/').split_once('/').is_none() {
                let message = format!("`{key}` is a whole bucket, {}", quoted(text));
                problems
                    .error(node.span, message)
                    .hint("name a folder in it: `<path>.run` is written next to `<path>/data`");
            }
            continue;
        }
        if let Some(scheme) = location::scheme_with_one_slash(text) {
            let message = format!("`{key}` has one slash after `{}:`", scheme.name());
            problems.error(node.span, message).hint(format!("an address begins with `{scheme}`"));
            continue;
        }
        if let Some(what) = unexpanded(text) {
            let message = format!("`{key}` is {}, but {what} is not expanded", quoted(text));
            problems.error(node.span, message).hint(format!(
                "write the folder itself, or a parameter for it (`${{folder}}` and `--param folder=…`); \
                 `./{text}` is a literal name"
            ));
        }
        if section == "output" && Path::new(text).file_name().is_none() {
            let message = format!("`{key}` is {}, which is not a folder of its own", quoted(text));
            problems.error(node.span, message).hint(
                "name a folder for the output: `<path>.run` is written next to `<path>/data`",
            );
        }
    }
}

fn accepted(section: &str, key: &str, schemes: &[&str]) -> String {
    let shown = |name: &&str| {
        let scheme = Scheme::from_name(name)?;
        // Models of the hub are not input.
        let below = if section == "input" && scheme == Scheme::Hub { "datasets/" } else { "" };
        Some(format!("{scheme}{below}…"))
    };
    let mut locations = vec!["a path of this machine".to_owned()];
    locations.extend(schemes.iter().filter_map(shown));
    format!("`{key}` takes {}", words::joined(&locations))
}

/// Returns the part of a path that a shell would have expanded.
fn unexpanded(path: &str) -> Option<&'static str> {
    let first = path.split('/').next().unwrap_or("");
    let is_name =
        |rest: &str| rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if first.strip_prefix('~').is_some_and(is_name) {
        return Some("`~`");
    }
    let name = first.strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    (!name.is_empty() && is_name(name)).then_some("an environment variable")
}

/// Hint for an input that contains the output.
pub(crate) const SEPARATE_OUTPUT: &str =
    "use a separate folder for the output: a second run would read the output of the first one";

/// Reports an output inside its own input, or the reverse. `folder`: folder of the pipeline file.
pub(crate) fn check(root: &Node, folder: &Path, problems: &mut Problems) {
    let path = |section: &str| {
        root.get(section)?
            .get("path")
            .filter(|path| path.as_str().is_some_and(|path| !path.trim().is_empty()))
    };
    let (Some(input), Some(output)) = (path("input"), path("output")) else { return };
    let sources = problems.sources;
    let output_setting = |key: &str| root.get("output")?.get(key);
    let format = output_setting("format").and_then(|node| Some(json!(node.as_str()?)));
    let format = format.and_then(|name| serde_json::from_value::<OutputFormat>(name).ok());
    let mirror =
        output_setting("mirror").is_some_and(|node| matches!(node.value, YamlValue::Boolean(true)));
    let ending = format.unwrap_or_default().endings(false)[0];
    let is_glob = has_wildcard(Path::new(input.as_str().unwrap_or("")));
    // Wildcard characters in the pipeline's own folder are literal.
    let escaped = folder.to_str().map(|folder| PathBuf::from(glob::Pattern::escape(folder)));
    let input_folder = escaped.filter(|_| is_glob).unwrap_or_else(|| folder.to_owned());
    let output_path = located(output, folder, sources);
    let overlap =
        |input: &Path, is_glob, output: &Path| overlap((input, is_glob), (output, ending), mirror);
    // Any leading part of the glob may be the name of an existing folder, with its wildcard characters.
    let as_glob = || {
        let glob = located(input, &input_folder, sources);
        (0..glob.components().count()).find_map(|literal| {
            let path = with_literal(&glob, literal);
            let linked = || overlap(&resolve_glob_links(&path), true, &resolve_links(&output_path));
            overlap(&path, true, &output_path).or_else(linked)
        })
    };
    // An existing path with wildcard characters is taken literally.
    let name = located(input, folder, sources);
    let as_name = overlap(&name, false, &output_path)
        .or_else(|| overlap(&resolve_links(&name), false, &resolve_links(&output_path)));
    let Some(why) = as_name.or_else(|| as_glob().filter(|_| is_glob)) else { return };
    let problem = problems
        .error(output.span, why)
        .label(format!("`input.path` is {}", sources.in_words(input.span)));
    problem.hint(SEPARATE_OUTPUT);
}

fn with_literal(glob: &Path, count: usize) -> PathBuf {
    let part = |(index, part): (usize, Component<'_>)| match (part, part.as_os_str().to_str()) {
        (Component::Normal(_), Some(name)) if index < count => glob::Pattern::escape(name).into(),
        _ => part.as_os_str().to_owned(),
    };
    glob.components().enumerate().map(part).collect()
}

/// Absolute path of a setting, so that paths from the file and from the command line are comparable.
fn located(node: &Node, folder: &Path, sources: &Sources) -> PathBuf {
    let text = node.as_str().unwrap_or("");
    let path = if sources.is_file(node.span) { folder.join(text) } else { PathBuf::from(text) };
    let is_remote = location::split(text).is_some();
    normalised(&if is_remote {
        PathBuf::from(text)
    } else {
        std::path::absolute(&path).unwrap_or(path)
    })
}

/// Resolves links as far as the path exists.
fn resolve_links(path: &Path) -> PathBuf {
    let real = |above: &Path| Some((above.canonicalize().ok()?, path.strip_prefix(above).ok()?));
    let found = path.ancestors().find_map(real);
    found.map_or_else(|| path.to_owned(), |(real, rest)| real.join(rest))
}

fn resolve_glob_links(glob: &Path) -> PathBuf {
    let fixed = wildcards::split(glob).0;
    let rest: PathBuf = glob.components().skip(fixed.components().count()).collect();
    PathBuf::from(glob::Pattern::escape(&resolve_links(&fixed).to_string_lossy())).join(rest)
}

/// Describes how an input overlaps an output with extension `ending`. `mirror`: whether it has the names of the input.
fn overlap(
    (input, is_glob): (&Path, bool),
    (output, ending): (&Path, &str),
    mirror: bool,
) -> Option<&'static str> {
    let text = input.to_string_lossy();
    if input == output {
        return Some("the output is the input");
    }
    let fixed = if is_glob { wildcards::split(input).0 } else { input.to_owned() };
    if fixed.starts_with(output.join("data"))
        || (output.file_name().is_some() && fixed.starts_with(output.with_added_extension("run")))
    {
        return Some("the input is inside the output");
    }
    let inside = if is_glob {
        let options =
            glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
        let pattern = glob::Pattern::new(&text).ok();
        let some = output.join("data").join(format!("{SOME_OUTPUT}{ending}"));
        let matches = |pattern: glob::Pattern| pattern.matches_path_with(&some, options);
        pattern.is_some_and(matches)
            || (mirror && may_match_below(input, &output.join("data"), ending))
    } else {
        // A folder is read recursively.
        output.starts_with(input)
    };
    inside.then_some("the output is inside the input")
}

/// Whether a glob can match files with extension `ending` below a folder.
fn may_match_below(glob: &Path, folder: &Path, ending: &str) -> bool {
    let last = glob.file_name().unwrap_or_default().to_string_lossy();
    let last = last.rsplit(['*', '?', ']']).next().unwrap_or_default();
    let mut steps = glob.components().map(|step| step.as_os_str().to_string_lossy());
    for part in folder.components() {
        let part = part.as_os_str().to_string_lossy();
        match steps.next() {
            Some(step) if step == "**" => break,
            Some(step) if step == part => {}
            Some(step) if glob::Pattern::new(&step).is_ok_and(|step| step.matches(&part)) => {}
            _ => return false,
        }
    }
    (last.ends_with(ending) || ending.ends_with(last)) && steps.next().is_some()
}

/// Removes `.` and, lexically, `..` from a path.
fn normalised(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(out.components().next_back(), Some(Component::Normal(_))) =>
            {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Overrides, Spec};

    fn overlaps(input: &str, output: &str) -> bool {
        let is_glob = has_wildcard(Path::new(input));
        let (input, output) = (normalised(Path::new(input)), normalised(Path::new(output)));
        overlap((&input, is_glob), (&output, ".parquet"), false).is_some()
    }

    #[test]
    fn mirrored_output_inside_a_glob_is_detected() {
        let finds = |input: &str, ending| {
            let (input, output) = (Path::new(input), Path::new("/x/out"));
            let of = |mirror| overlap((input, true), (output, ending), mirror).is_some();
            assert!(of(true) || !of(false));
            of(true) && !of(false)
        };
        assert!(finds("/x/*/*/books/*.parquet", ".parquet"));
        assert!(finds("/x/**/part-*.parquet", ".parquet"));
        assert!(finds("/x/*/data/[ab].*", ".parquet"));
        assert!(!finds("/x/*/*/books/*.jsonl", ".parquet"));
        assert!(finds("/x/*/*/books/*.zst", ".jsonl.zst"));
        assert!(!finds("/x/in/*/*.parquet", ".parquet"));
        assert!(!finds("/x/*/*.parquet", ".parquet"));
    }

    #[test]
    fn output_inside_input_is_detected_through_dots_and_globs() {
        assert!(overlaps("../data", "../data"));
        assert!(overlaps("../data/", "./../data/out"));
        assert!(overlaps("../data/**/*.parquet", "../data/out"));
        assert!(overlaps("../data/*/data/*.parquet", "../data/out"));
        assert!(overlaps("out/data/*.parquet", "out"));
        assert!(overlaps("out.run/dropped", "out"));
        assert!(overlaps("/a/../b", "/b/c"));
        assert!(overlaps(".", "out"));
        assert!(overlaps("data/x.parquet", "."));
    }

    #[test]
    fn output_inside_a_literal_part_of_a_glob_is_detected() {
        let text = |input: &str| {
            format!(
                "version: 1\nname: x\ninput: {{path: '{input}'}}\nstages: [{{stage: tokenize, tokenizer: t, window_tokens: 64, bos: 0}}, \
                 {{stage: recurrence}}, {{stage: score, formula: balanced-recurrence}}, {{stage: filter, keep_fraction: 1}}]\noutput: {{path: 'run[1]/out'}}\n"
            )
        };
        let overlaps = |input: &str| {
            let found = Spec::parse("p.yaml", &text(input), &Overrides::default());
            found.is_err_and(|all| {
                all.iter().any(|one| one.message == "the output is inside the input")
            })
        };
        assert!(overlaps("run[1]/**/*.parquet") && !overlaps("run[1]/*.parquet"));
        assert!(!overlaps("run[2]/**/*.parquet"));
    }

    #[test]
    fn secrets_are_removed_from_addresses_before_any_message() {
        let all = |path: &str, set: &[&str]| {
            let text = format!("version: 1\nname: x\ninput: {{path: '{path}', nonsense: 1}}\n");
            let set = set.iter().map(ToString::to_string).collect();
            let overrides = Overrides { set, ..Overrides::default() };
            let found = Spec::parse("p.yaml", &text, &overrides).unwrap_err();
            format!("{found:?}{}", crate::base::render::render(&found, false))
        };
        for path in
            ["https://bob:hunter2@h/x?sig=hunter2", "s3://k:hunter2@b/x", "ftp://x:hunter2@h/x"]
        {
            for messages in [all(path, &[]), all("x", &[&format!("input.path={path}")])] {
                assert!(!messages.contains("hunter2"), "{messages}");
            }
        }
        assert!(
            all("s3://k:hunter2@b/x", &[])
                .contains("`path` has a user, which the address `s3://b/x` cannot have")
        );
    }

    #[test]
    fn every_setting_that_names_files_is_marked_in_the_schema() {
        let found: Vec<(&str, &str, usize)> = settings()
            .iter()
            .map(|setting| (setting.section, setting.key, setting.schemes.len()))
            .collect();
        assert_eq!(
            found,
            [
                ("input", "path", 6),
                ("input", "since", 3),
                ("output", "path", 3),
                ("load-partial-model", "model", 6),
                ("load-partial-model", "cache_folder", 0),
                ("tokenize", "tokenizer", 6),
                ("language-model", "model", 0),
                ("score", "calibration", 5),
            ]
        );
        for scheme in settings().iter().flat_map(|setting| &setting.schemes) {
            assert!(Scheme::from_name(scheme).is_some(), "{scheme}");
        }
    }

    /// Only `contract::location` distinguishes addresses from paths.
    #[test]
    fn only_one_file_parses_address_schemes() {
        let marks = ["\":", "//\""].concat();
        let schemes = Scheme::ALL.map(|scheme| format!("\"{scheme}\""));
        let mut folders = vec![PathBuf::from("src"), PathBuf::from("../stages/src")];
        let mut read = 0;
        while let Some(folder) = folders.pop() {
            for entry in
                std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap()
            {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                // OpenLineage has its own addresses; secrets are found in any text and restored in requests.
                let others = [
                    "contract/location.rs",
                    "report/lineage.rs",
                    "base/secrets.rs",
                    "storage/web.rs",
                ];
                if others.iter().any(|other| path.ends_with(other)) {
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let found =
                    schemes.iter().chain([&marks]).find(|mark| text.contains(mark.as_str()));
                assert_eq!(found, None, "{}", path.display());
                read += 1;
            }
        }
        assert!(read > 150, "{read} files");
    }

    #[test]
    fn shell_expansions_are_refused() {
        for path in ["~", "~/out", "~me/out", "$HOME/out", "$HOME", "${HOME}/out"] {
            assert!(unexpanded(path).is_some(), "{path}");
        }
        for path in ["out~", "./~/out", "a/~", "~$x/a", "$", "$/a", "out/$HOME", "$1.5/x", "~a b"] {
            assert!(unexpanded(path).is_none(), "{path}");
        }
    }

    #[test]
    fn wildcards_in_the_pipeline_folder_are_literal() {
        let is_wrong = |input: &str, output: &str| {
            let text = "version: 1\nname: n\ninput: {path: 'INPUT'}\noutput: {path: 'OUTPUT'}\nstages: []\n";
            let text = text.replace("INPUT", input).replace("OUTPUT", output);
            let problems = Spec::parse("/x/run[1]/p.yaml", &text, &Overrides::default());
            let problems = problems.expect_err("it has no stages");
            problems
                .iter()
                .any(|problem| problem.message.contains("the output is inside the input"))
        };
        for input in ["data", "data/**/*.parquet", "../*/data/**/*.parquet", "/x/run[1]/data"] {
            assert!(is_wrong(input, "data/out"), "{input}");
            assert!(!is_wrong(input, "other"), "{input}");
        }
        assert!(!is_wrong("data/**/*.parquet", "/x/run1/data/out"));
    }

    #[test]
    fn output_next_to_its_input_is_accepted() {
        assert!(!overlaps("../data/*.parquet", "../data/out"));
        assert!(!overlaps("../data", "../data-out"));
        assert!(!overlaps("../data/part-0.parquet", "../data"));
        assert!(!overlaps("../../data", "../data"));
        assert!(!overlaps("raw/x.parquet", "."));
        assert!(!overlaps("s3://bucket/data", "out"));
    }
}
