//! Locates the programs of `external` stages and the files that their answers depend on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use longsift_stages::Reads;
use longsift_stages::measures::External;

use super::findings::Findings;
use crate::base::diagnostic::DiagnosticLocation;
use crate::base::error::Result;
use crate::base::secrets;
use crate::base::text::quoted;
use crate::dataset::documents::ContentColumn;
use crate::storage::files;

#[derive(Clone, Debug)]
pub struct Program {
    pub settings: External,
    /// Whether it reads text instead of token ids.
    pub reads_text: bool,
    pub executable: PathBuf,
    pub folder: PathBuf,
    pub environment: Vec<(String, OsString)>,
    /// Location of its stage in the pipeline file.
    pub location: DiagnosticLocation,
    /// Files that its answers depend on: names in the pipeline, and paths.
    pub(crate) files: Vec<(String, PathBuf)>,
}

impl Program {
    /// Returns a program that is never started.
    #[cfg(test)]
    pub(crate) fn for_tests(settings: External, location: DiagnosticLocation) -> Self {
        let (executable, folder) = (PathBuf::new(), PathBuf::new());
        let (environment, files) = (Vec::new(), Vec::new());
        Self { settings, reads_text: true, executable, folder, environment, location, files }
    }

    /// Returns the SHA-256 of the files that the answers depend on, by their names in the pipeline.
    pub fn digests(&self) -> Result<BTreeMap<String, String>> {
        let digest =
            |(name, path): &(String, PathBuf)| Ok((name.clone(), files::digest(path)?.sha256));
        self.files.iter().map(digest).collect()
    }
}

/// Warns about variables and arguments that look like secrets: settings are written to the run directory and into reports.
pub(super) fn secrets(found: &mut Findings<'_>) {
    let is_secret = |name: &str| {
        let name = name.to_lowercase().replace('-', "_");
        ["token", "secret", "password", "api_key", "credentials"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    for settings in found.spec.externals() {
        let variables = settings.environment.keys().map(|name| ("environment", name.as_str()));
        let arguments = settings.command.iter().filter_map(|argument| argument.split_once('='));
        let arguments = arguments.map(|(name, _)| ("command", name));
        for (setting, name) in variables.chain(arguments).filter(|(_, name)| is_secret(name)) {
            let path = format!("stages.{}.{setting}", settings.name);
            let name = quoted(name);
            let message =
                format!("the value of {name} will be in the run directory and in reports");
            let hint = "set it in the environment of longsift, and name the variable in `pass_environment`";
            found.warning(&path, message, hint);
        }
    }
}

/// Locates the program of an `external` stage, and adds errors.
pub(super) fn find(
    content: &ContentColumn,
    settings: &External,
    found: &mut Findings<'_>,
) -> Option<Program> {
    let spec = found.spec;
    let stage = format!("stages.{}", settings.name);
    found.broken_rules(&stage, settings.broken_rules());
    let at = |setting: &str| format!("{stage}.{setting}");
    let is_here = spec.folder.as_os_str().is_empty();
    let folder = if is_here { Path::new(".") } else { &spec.folder };
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let environment = environment(settings);
    let (program, arguments) = settings.command.split_first()?;
    let executable = executable(program, &folder, &environment);
    if let Err((message, hint)) = &executable {
        found.error(&at("command"), message, *hint);
    }
    let named = arguments.iter().filter(|argument| folder.join(argument).is_file());
    let own = Some(program).filter(|program| program.contains('/'));
    let mut read: Vec<(String, PathBuf)> =
        own.into_iter().chain(named).map(|name| (name.clone(), folder.join(name))).collect();
    for name in &settings.files {
        let path = folder.join(name);
        if path.is_file() {
            read.push((name.clone(), path));
        } else {
            let what = if path.is_dir() { "is a folder" } else { "is not a file" };
            let hint = "list every file that the answers depend on";
            found.error(&at("files"), format!("{} {what}", quoted(name)), hint);
        }
    }
    let reads_text = match settings.reads {
        Reads::Text => true,
        Reads::Ids => false,
        Reads::Document => matches!(content, ContentColumn::Text(_)),
    };
    Some(Program {
        settings: settings.clone(),
        reads_text,
        executable: executable.ok()?,
        folder,
        environment,
        location: spec.locate(&at("command")),
        files: read,
    })
}

/// Hides a passed value and its parts in messages that quote the program, as it may contain a secret. Existing paths are none.
fn hide_passed(value: &str) {
    let text = value.replace("\\n", "\n");
    let is_end = |c: char| c.is_whitespace() || ['"', '\'', ',', ';', '='].contains(&c);
    for part in text.split(is_end).chain(text.lines()).chain([value, value.trim()]) {
        if !Path::new(part).exists() {
            secrets::hide_in_answers(part);
        }
    }
    secrets::split(value).1.hide_in_answers();
}

fn environment(settings: &External) -> Vec<(String, OsString)> {
    let passed = settings.pass_environment.iter();
    let passed = passed.filter_map(|name| {
        let value = std::env::var_os(name)?;
        hide_passed(&value.to_string_lossy());
        Some((name.clone(), value))
    });
    let given = settings.environment.iter().map(|(name, value)| (name.clone(), value.into()));
    // Variables in the settings take precedence.
    passed.chain(given).collect()
}

/// Returns the path of a program; otherwise an error message and a hint.
fn executable(
    program: &str,
    folder: &Path,
    environment: &[(String, OsString)],
) -> std::result::Result<PathBuf, (String, &'static str)> {
    let may_run = |path: &Path| {
        let status = std::fs::metadata(path);
        status.is_ok_and(|status| status.is_file() && status.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        let path = folder.join(program);
        return match path.is_file() {
            true if may_run(&path) => Ok(path),
            true => Err((
                format!("{} is not executable", quoted(program)),
                "allow it with `chmod +x`, or name its interpreter first: [python3, script.py]",
            )),
            false => Err((
                format!("program {} not found", quoted(program)),
                "a path is relative to the pipeline's folder; a name without `/` is looked for in PATH",
            )),
        };
    }
    let own = environment.iter().rev().find(|(name, _)| name == "PATH");
    let search = own.map(|(_, path)| path.clone()).or_else(|| std::env::var_os("PATH"));
    let folders = search.iter().flat_map(std::env::split_paths).map(|path| folder.join(path));
    let mut found = folders.map(|path| path.join(program)).filter(|path| may_run(path));
    found.next().ok_or_else(|| {
        (
            format!("program {} not found in PATH", quoted(program)),
            "install it, give its path, or set PATH in `environment`; a program of the pipeline's folder is `./program`",
        )
    })
}
