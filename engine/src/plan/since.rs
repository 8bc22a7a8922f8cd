//! `input.since`: excludes the files that an earlier run has filtered.

use std::collections::HashSet;

use super::findings::Findings;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text::counted;
use crate::dataset::input::Dataset;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::{FINISH_COMMIT, KnownFile, Manifest};
use crate::storage::files;

/// Excludes from `dataset` the files that the run named by `input.since`, and the runs before it, have filtered.
/// Returns those files. A file that has changed counts as new.
pub(super) fn exclude(
    own: &RunDirectory,
    fresh: bool,
    dataset: &mut Dataset,
    found: &mut Findings<'_>,
) -> Result<Vec<KnownFile>> {
    let spec = found.spec;
    let Some(since) = &spec.pipeline.input.since else { return Ok(Vec::new()) };
    let setting = || spec.locate("input.since");
    let refused =
        |message: String, hint: &str| Err(spec.error("input.since", message).hint(hint).into());
    if spec.score().calibration.is_none() {
        let message = "an increment requires the calibration of the earlier corpus".to_owned();
        let hint = format!("add to stage `score`: `calibration: {since}/calibration.json`");
        return refused(message, &hint);
    }
    let path = spec.resolve(since).to_path_buf();
    let directory = RunDirectory::open(&path).map_err(|failure| failure.or_at(&setting()))?;
    let same =
        |a, b| files::canonical(a).ok().zip(files::canonical(b).ok()).is_some_and(|(a, b)| a == b);
    if same(&directory.root, &own.root) {
        let hint = "give every increment its own `output.path`, for example with a date";
        return refused("`since` is this pipeline's own run".to_owned(), hint);
    }
    if files::size(&directory.intent())?.is_some() {
        let message = format!("a commit in `{}` is unfinished", path.display());
        return refused(message, FINISH_COMMIT);
    }
    let manifest = Manifest::read(&directory).map_err(|failure| failure.or_at(&setting()))?;
    let Some(manifest) = manifest else {
        let message = format!("the run in `{}` is not finished", path.display());
        return refused(message, "finish the run of that output first");
    };
    let planned: u64 = manifest.input.iter().filter_map(|file| file["rows"].as_u64()).sum();
    let filtered: u64 = manifest.units.iter().map(|unit| unit.counts.rows).sum();
    if planned != filtered {
        let path = path.display();
        let message =
            format!("the run in `{path}` filtered {filtered} of the {planned} rows of its input");
        return refused(message, "it was run with `--limit`; run it without");
    }
    let known: Vec<KnownFile> =
        manifest.input_before.iter().cloned().chain(manifest.known_files()).collect();
    let set: HashSet<&KnownFile> = known.iter().collect();
    if !fresh && let Some(before) = Manifest::read(own)? {
        let files: Vec<KnownFile> = before.known_files().collect();
        let twice: Vec<&KnownFile> = files.iter().filter(|file| set.contains(file)).collect();
        if let [first, ..] = twice[..] {
            let message = format!(
                "`{since}` was run again after this run and now includes {} that this run filtered, for example `{}`",
                counted(twice.len() as u64, "file"),
                first.path
            );
            let hint = "samples of these files are in both outputs: run the earlier pipeline again without them, or run this one with \
                        `--fresh` to leave them out of this output";
            return refused(message, hint);
        }
        if !before.input_before.is_empty() {
            let files: HashSet<&KnownFile> = files.iter().chain(&known).collect();
            warn_late_files(dataset, &files, found);
        }
    }
    let own = KnownFile::for_dataset(dataset);
    let mut is_new = own.iter().map(|file| !set.contains(file));
    dataset.files.retain(|_| is_new.next() == Some(true));
    let new = own.iter().filter(|file| !set.contains(file));
    warn_filtered_again(&since.to_string(), new, &known, found);
    Ok(known)
}

/// Warns about files of an increment that arrived after it was finished, when a later one may have filtered them.
fn warn_late_files(dataset: &Dataset, filtered: &HashSet<&KnownFile>, found: &mut Findings<'_>) {
    let files = KnownFile::for_dataset(dataset);
    let late: Vec<&KnownFile> = files.iter().filter(|file| !filtered.contains(file)).collect();
    let Some(first) = late.first() else { return };
    let message = format!(
        "{} arrived after this increment was finished and will be filtered by it, for example `{}`",
        counted(late.len() as u64, "file"),
        first.path
    );
    let hint = "if a later increment has filtered them, their samples will be in both outputs: do not run a finished increment again, but a new one";
    let location = found.spec.locate("input.since");
    found.add([Diagnostic::warning(Blame::Data, message).at(location).hint(hint)]);
}

/// Warns about `new` files with the location or the content of `known` ones, which the run `since` or one before it has filtered.
fn warn_filtered_again<'f>(
    since: &str,
    new: impl Iterator<Item = &'f KnownFile>,
    known: &[KnownFile],
    found: &mut Findings<'_>,
) {
    let moved = |file: &KnownFile| {
        (file.path.clone(), file.size, file.modified_ns, file.footer_hash.clone())
    };
    let content = |file: &KnownFile| (file.size, file.footer_hash.clone());
    let locations: HashSet<&str> = known.iter().map(|file| &*file.location_sha256).collect();
    let all_moved: HashSet<_> = known.iter().map(moved).collect();
    let contents: HashSet<_> = known.iter().map(content).collect();
    let (mut changed, mut elsewhere, mut renamed) = (Vec::new(), Vec::new(), Vec::new());
    for file in new {
        if locations.contains(&*file.location_sha256) {
            changed.push(file);
        } else if all_moved.contains(&moved(file)) {
            elsewhere.push(file);
        } else if contents.contains(&content(file)) {
            renamed.push(file);
        }
    }
    for (files, what, hint) in [
        (
            changed,
            format!("changed since `{since}` and"),
            "samples of their earlier versions are still in the earlier output",
        ),
        (
            elsewhere,
            format!(
                "with the name, size and time of a file that `{since}` filtered in another folder"
            ),
            "if the corpus was moved, move it back (a link does not suffice), or expect these files in both outputs; each commit of a hub data set is another folder",
        ),
        (
            renamed,
            format!("equal to one that `{since}` filtered under another name"),
            "rename it back or remove the copy, or expect its documents in both outputs",
        ),
    ] {
        let Some(first) = files.first() else { continue };
        let message = format!(
            "{} {what} will be filtered again completely, for example `{}`",
            counted(files.len() as u64, "file"),
            first.path
        );
        let location = found.spec.locate("input.since");
        found.add([Diagnostic::warning(Blame::Data, message).at(location).hint(hint)]);
    }
}
