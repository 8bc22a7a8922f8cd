//! Checks existing results: whether the selection is up to date, and whether files belong to this run directory.

use std::collections::HashSet;

use serde_json::json;

use super::incompatible_scores::incompatible_scores;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text;
use crate::plan::Plan;
use crate::plan::explain::CompletedWork;
use crate::plan::identity::{Digests, WholeModelDigests, identity};
use crate::plan::lock::absolute;
use crate::report::card::{self, CardOrigin};
use crate::run_directory::facts::Identity;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::run_directory::summary::Summary;
use crate::run_directory::units::{self, Part, UnitRecord};
use crate::select;
use crate::write::commit;

/// Computes the fingerprint that decides whether a finished selection is up to date.
pub(super) fn selection_fingerprint(
    plan: &Plan,
    identity: &Identity,
    records: &[UnitRecord],
) -> String {
    let units: Vec<String> = records.iter().map(UnitRecord::digest).collect();
    let mut content = json!({ "facts": identity.selection, "units": units });
    if plan.spec.pipeline.output.mirror {
        // Files without rows have no units but are mirrored.
        let empty = plan.dataset.files.iter().filter(|file| file.rows == 0);
        content["empty_files"] = empty.map(|file| file.path.as_str()).collect();
    }
    if !plan.dataset.bad_files.is_empty() {
        let bad = plan.dataset.bad_files.iter();
        content["bad_files"] =
            bad.map(|file| json!([file.path, file.size, file.problem.message])).collect();
    }
    text::sha256_hex(content.to_string().as_bytes())
}

/// Returns the summary of the finished run, if it matches this plan exactly and all files that the plan requires exist.
pub fn finished(
    plan: &Plan,
    identity: &Identity,
    valid: &[Option<UnitRecord>],
) -> Result<Option<Summary>> {
    let directory = &plan.directory;
    let Some(manifest) = Manifest::read(directory)? else { return Ok(None) };
    let records: Vec<UnitRecord> = valid.iter().flatten().cloned().collect();
    let same = records.len() == plan.units.len()
        && manifest.units == records
        && manifest.selection_fingerprint == selection_fingerprint(plan, identity, &records)
        && manifest.scores_from() == plan.other_scores().map(absolute).as_deref()
        && manifest.is_in_place(directory)?
        && (!plan.spec.pipeline.output.report || !manifest.report.is_empty())
        && directory.is_finished()?;
    if !same {
        return Ok(None);
    }
    directory.read_json(&directory.summary())
}

/// Returns the work that the run directory has already done for a plan, and checks what is known without reading a model.
pub fn done(plan: &Plan) -> Result<CompletedWork> {
    let directory = match plan.other_scores() {
        Some(path) => RunDirectory::open(path)?,
        None => plan.directory.clone(),
    };
    if plan.options.shard.is_none() {
        let ours = data_files(&plan.directory, false)?;
        // A run finishes a commit that was interrupted before it looks at the data.
        if commit::read_intent(&plan.directory)?.is_none() {
            refuse_foreign_data(&plan.directory, &ours, false)?;
        }
        refuse_foreign_pages(plan)?;
        refuse_unreadable_input(plan, &ours)?;
    }
    let before = PipelineLock::read(&directory.lock_file())?;
    let digests = known_digests(plan, before.as_ref())?;
    let mut identity = identity(plan, &digests);
    let all = identity.measures.len();
    let measures = plan.measures().zip(&plan.measures.columns);
    for ((index, measure), columns) in measures {
        let is_known = (measure.needs().attention().is_none() || digests.attention.is_some())
            && plan
                .whole_models
                .get(&index)
                .is_none_or(|whole| digests.whole_models.contains_key(&whole.measure));
        if !is_known {
            identity.measures.remove(&columns.measure);
        }
    }
    select::check_calibration(plan, &identity)?;
    if before.is_none() {
        return Ok(CompletedWork::default());
    }
    let refused = incompatible_scores(plan, &directory, &identity, &[])?;
    if refused.is_some() || identity.measures.len() < all {
        return Ok(CompletedWork { refused, ..CompletedWork::default() });
    }
    let wanted = identity.fingerprints();
    let valid = units::valid_records(&directory, &plan.dataset, &plan.units, &wanted)?;
    let records: Vec<_> = valid.iter().flatten().collect();
    let (units, windows) =
        (records.len(), records.iter().map(|record| record.counts.windows).sum());
    let finished = finished(plan, &identity, &valid)?.is_some();
    Ok(CompletedWork { units, windows, finished, refused })
}

/// Computes the digests that are known without reading a model, using those of an earlier run.
fn known_digests(plan: &Plan, before: Option<&PipelineLock>) -> Result<Digests> {
    let whole_models = plan.whole_models.values().filter_map(|whole| {
        let known = before?.whole_models.get(&whole.measure)?;
        let weights = known.weights_of(&whole.model.identity())?;
        let kernel = whole.model.backend_name();
        Some((whole.measure.clone(), WholeModelDigests { weights, kernel }))
    });
    let weights = plan
        .attention
        .as_ref()
        .and_then(|attention| before?.model.as_ref()?.weights_of(&attention.model.identity()));
    Digests::new(plan, weights, whole_models.collect())
}

/// Returns the data files that runs of this directory wrote. A fresh start ignores a damaged manifest, and a commit that cannot be
/// finished may have moved its files.
pub(super) fn data_files(directory: &RunDirectory, fresh: bool) -> Result<Vec<Part>> {
    if fresh {
        let mut files = Manifest::data_of_any_version(directory, &directory.manifest())?;
        files.extend(commit::data_of_intent(directory)?);
        return Ok(files);
    }
    Ok(Manifest::read(directory)?.map_or(Vec::new(), |manifest| manifest.data))
}

/// Returns the file name of the dataset card: `README.md`, unless a user has edited that file; `None` without a card. Fails if
/// the file would replace one that longsift did not write.
pub(super) fn card_name(plan: &Plan) -> Result<Option<&'static str>> {
    if !plan.spec.pipeline.output.card {
        return Ok(None);
    }
    let mut name = card::NAME;
    let mut origin = card_origin(&plan.directory, name)?;
    if origin == Some(CardOrigin::Edited) {
        name = card::NAME_NEXT_TO_EDITED;
        origin = card_origin(&plan.directory, name)?;
    }
    let what = match origin {
        None | Some(CardOrigin::Own) => {
            let path = plan.directory.output.join(name);
            return plan.directory.check_replaceable([path]).map(|()| Some(name));
        }
        Some(CardOrigin::Edited) => "was edited after longsift wrote it",
        Some(CardOrigin::Foreign) => "was not written by longsift",
    };
    let message = format!("`{}` {what}", plan.directory.output.join(name).display());
    let hint = "move it away, or remove `output.card`";
    Err(plan.spec.error("output.card", message).hint(hint).into())
}

/// Refuses files at the names of the card and the report that longsift did not write.
pub(super) fn refuse_foreign_pages(plan: &Plan) -> Result<()> {
    card_name(plan)?;
    if !plan.spec.pipeline.output.report {
        return Ok(());
    }
    let setting = || plan.spec.locate("output.report");
    plan.directory.check_reports().map_err(|failure| failure.or_at(&setting()))
}

/// Warns about a card that is not `README.md`, because a user has edited that file.
pub(super) fn edited_card_warning(plan: &Plan, name: &str) -> Option<Diagnostic> {
    if name == card::NAME {
        return None;
    }
    let output = &plan.directory.output;
    let [edited, new] = [card::NAME, name].map(|name| output.join(name).display().to_string());
    let message = format!(
        "`{edited}` was edited after longsift wrote it, so it stays, and the new card is `{new}`"
    );
    let hint = format!(
        "move your text to another file and delete `{edited}` to get the card there again, or remove `output.card`"
    );
    Some(plan.spec.warning("output.card", message).hint(hint))
}

/// Refuses to replace a card that somebody has edited since the run chose its name.
pub(super) fn refuse_edited_card(directory: &RunDirectory, manifest: &Manifest) -> Result<()> {
    let Some(part) = &manifest.card else { return Ok(()) };
    if matches!(card_origin(directory, &part.path)?, None | Some(CardOrigin::Own)) {
        return Ok(());
    }
    let path = directory.output.join(&part.path);
    let message = format!("`{}` was changed while the run wrote its output", path.display());
    let hint = "run again: the scores are kept";
    Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into())
}

pub(super) fn card_origin(directory: &RunDirectory, name: &str) -> Result<Option<CardOrigin>> {
    Ok(directory.output_text(name)?.map(|text| CardOrigin::from_text(&text)))
}

/// Refuses an input whose files cannot be opened, except in an increment without output. `ours`: data files of this run directory.
pub(super) fn refuse_unreadable_input(plan: &Plan, ours: &[Part]) -> Result<()> {
    let files = plan.dataset.bad_files.len();
    let is_new_increment = !plan.input_before.is_empty() && ours.is_empty();
    if !plan.units.is_empty() || files == 0 || is_new_increment {
        return Ok(());
    }
    let files = text::counted(files as u64, "file");
    let message = format!("the input has no readable rows: {files} cannot be opened");
    Err(Diagnostic::error(Blame::Data, message)
        .hint("replace these files, or remove them from the input")
        .into())
}

/// Refuses files in `data/` that no run of this directory wrote, and without a fresh start those changed since then.
pub(super) fn refuse_foreign_data(
    directory: &RunDirectory,
    ours: &[Part],
    fresh: bool,
) -> Result<()> {
    let data = directory.data();
    let replaced = ours.iter().map(|part| data.join(&part.path)).chain([directory.success()]);
    directory.check_replaceable(replaced)?;
    let own = if fresh { ours.iter().collect() } else { directory.original_data(ours)? };
    let own: HashSet<&String> = own.into_iter().map(|part| &part.path).collect();
    let foreign =
        |name: &String| !name.split('/').any(|part| part.starts_with('.')) && !own.contains(name);
    let foreign: Vec<String> = directory.data_files()?.into_iter().filter(foreign).collect();
    let Some(first) = foreign.first() else { return Ok(()) };
    let (more, them) = match foreign.len() {
        1 => (String::new(), "it"),
        files => (format!(" ({} such files)", text::count(files as u64)), "them"),
    };
    let (why, otherwise) = if ours.iter().any(|part| part.path == *first) {
        ("was changed after a run wrote it".to_owned(), format!("or replace {them} with `--fresh`"))
    } else {
        let root = directory.root.display();
        (
            format!("the manifest of `{root}` does not list"),
            format!("restore the manifest if a run wrote {them}, or use another `output.path`"),
        )
    };
    let message = format!("`{}` contains `{first}`, which {why}{more}", data.display());
    Err(Diagnostic::error(Blame::Pipeline, message)
        .hint(format!("move {them} away, {otherwise}"))
        .into())
}
