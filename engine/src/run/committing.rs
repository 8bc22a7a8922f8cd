//! The write phase with exclusive access: stages parts, then moves them into place together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::finished::{
    card_name, card_origin, edited_card_warning, refuse_edited_card, refuse_foreign_data,
    selection_fingerprint,
};
use crate::base::error::Result;
use crate::base::{clock, text};
use crate::plan::identity::{Kernels, calibration_bytes};
use crate::plan::{Plan, lock};
use crate::report::card::{self, CardOrigin};
use crate::report::checked;
use crate::report::overview::{Overview, ReportSources};
use crate::run::{Run, RunOptions, RunOutcome};
use crate::run_directory::events;
use crate::run_directory::hold::RunLock;
use crate::run_directory::layout::{PartFolders, RunDirectory};
use crate::run_directory::manifest::{KnownFile, Manifest};
use crate::run_directory::pipeline_lock::{self, PipelineLock};
use crate::run_directory::seal::sealed;
use crate::run_directory::summary::Summary;
use crate::run_directory::units::{self, Part, UnitRecord};
use crate::score::context::ScoreTotals;
use crate::select::Selection;
use crate::write::Writer;
use crate::write::commit::{self, CommitBegin, Intent};
use crate::write::staged::StagedFiles;

impl Run<'_> {
    pub(super) fn write(
        &self,
        lock: &PipelineLock,
        scored: &ScoreTotals,
        selection: Selection,
        run_lock: &RunLock,
    ) -> Result<RunOutcome> {
        let (plan, directory) = (self.plan, self.directory);
        self.progress.phase("write", plan.units.len() as u64);
        run_lock.check()?;
        let folders = directory.begin_attempt()?;
        let selection_fingerprint = selection_fingerprint(plan, &lock.identity, &scored.records);
        let writer = self.writer(&scored.records, &selection, &selection_fingerprint);
        let staged =
            self.progress.timed("write", || writer.stage(&folders, |_| self.progress.steps(1)))?;
        let reports_labels = plan.spec.pipeline.output.report_by.is_some();
        let labels = reports_labels.then(|| staged.labels.clone());
        let mut summary = self.summary(scored, &staged)?;
        summary.drift.clone_from(&selection.drift);
        summary.guards.clone_from(&selection.guards);
        summary.windows_not_measured.clone_from(&selection.not_measured);
        let mut manifest = manifest(plan, lock, scored, &staged, selection_fingerprint);
        manifest.table.clone_from(&summary.table);
        if let (Some(attention), Some(_)) = (&plan.attention, &self.device_use) {
            manifest.device["name"] = attention.devices.names().into();
        }
        let staged_paths: HashMap<&Path, &Path> =
            staged.moves.iter().map(|(from, to)| (to.as_path(), from.as_path())).collect();
        let tables = |part: &Part| {
            let path = directory.root.join(&part.path);
            staged_paths.get(path.as_path()).map_or(path.clone(), |from| from.to_path_buf())
        };
        let paths = || Ok(manifest.selection.iter().map(tables).collect());
        let found = checked::check(plan, &summary, paths)?;
        summary.checks = found.checks;
        if found.refused.is_some() {
            directory.remove_attempts()?;
            return Ok(RunOutcome { refused: found.refused, ..RunOutcome::new(summary) });
        }
        if plan.spec.pipeline.output.report {
            let made = || self.report(&folders.records, &manifest, &summary, &selection, &tables);
            manifest.report = self.progress.timed("report", made)?;
        }
        let card_name = card_name(plan)?;
        if let Some(name) = card_name {
            let (path, text) = (folders.data.join(name), card::card(plan, &summary));
            manifest.card = Some(directory.write_text(&path, name, text.as_bytes())?);
        }
        if let Some(borrowed) = &self.borrowed {
            borrowed.check()?;
        }
        run_lock.check()?;
        let calibration = &selection.calibration;
        manifest.calibration =
            Some(directory.write_record(&folders.records, "calibration.json", calibration)?);
        let replaced =
            self.commit(&folders, &mut manifest, lock, &staged.moves, &summary, run_lock)?;
        let mut warnings = [selection.warnings, found.warnings].concat();
        warnings.extend(card_name.and_then(|name| edited_card_warning(plan, name)));
        Ok(RunOutcome { labels, warnings, replaced, ..RunOutcome::new(summary) })
    }

    /// Returns the writer of a selection. Shards write their parts to a folder of this selection and version.
    pub(super) fn writer<'b>(
        &'b self,
        records: &'b [UnitRecord],
        selection: &'b Selection,
        selection_fingerprint: &str,
    ) -> Writer<'b> {
        let identity = format!("{} {selection_fingerprint}", env!("CARGO_PKG_VERSION"));
        let written = &text::sha256_hex(identity.as_bytes())[..16];
        Writer {
            plan: self.plan,
            scores: &self.scores,
            records,
            selection,
            tables: self.borrowed.as_ref(),
            written: self.directory.written_folders(written),
            stop: self.stop,
        }
    }

    fn report(
        &self,
        folder: &Path,
        manifest: &Manifest,
        summary: &Summary,
        selection: &Selection,
        tables: &dyn Fn(&Part) -> PathBuf,
    ) -> Result<Vec<Part>> {
        let directory = self.directory;
        let overview = Overview::new(ReportSources {
            directory,
            manifest,
            summary,
            calibration: &selection.calibration,
            scores: &self.scores,
            selection: tables,
            input: Ok(self.plan),
            text: true,
            times: self.progress.times(),
        })?;
        let json = format!("{:#}\n", overview.json());
        let files = [("report.html", overview.page()), ("report.json", json)];
        let stage = |(name, text): (&str, String)| {
            directory.write_text(&folder.join(name), name, text.as_bytes())
        };
        files.into_iter().map(stage).collect()
    }

    /// Stages the records of the selection and moves everything into place together. `moves` lists the parts.
    /// Returns the kept samples of a selection of other settings that it replaces.
    fn commit(
        &self,
        folders: &PartFolders,
        manifest: &mut Manifest,
        lock: &PipelineLock,
        moves: &[(PathBuf, PathBuf)],
        summary: &Summary,
        run_lock: &RunLock,
    ) -> Result<Option<u64>> {
        let (directory, folder) = (self.directory, &folders.records);
        let starts_again = self.scores.root == directory.fresh().root;
        let replaces_all = starts_again || self.plan.options.fresh;
        let before = match Manifest::read(directory) {
            // Damaged, or of another version.
            Err(_) if replaces_all => None,
            read => read?,
        };
        let mut intent = Intent::default();
        for (from, to) in moves {
            intent.rename(directory, from, to);
        }
        let (scores, root) = (&self.scores.root, &directory.root);
        // The names of tables of `--scores-from` do not change.
        let is_own = self.plan.other_scores().is_none();
        for record in manifest.units.iter_mut().filter(|_| is_own) {
            rename_tables(directory, folder, record, &mut intent)?;
        }
        let mut rename = |from: &Path, to: &Path, path: &str| {
            intent.rename(directory, &from.join(path), &to.join(path));
        };
        if starts_again {
            for record in &manifest.units {
                record.parts().for_each(|part| rename(scores, root, &part.path));
                rename(scores, root, &format!("units/{}.json", record.unit));
            }
        }
        let summary_before: Option<Summary> = directory.read_json(&directory.summary())?;
        let digests = |parts: &[Part]| -> Vec<String> {
            parts.iter().map(|part| part.sha256.clone()).collect()
        };
        let replaces = before
            .as_ref()
            .is_some_and(|before| digests(&before.selection) != digests(&manifest.selection));
        manifest.summary = Some(directory.write_record(folder, "summary.json", summary)?);
        manifest.events = events::recorded(directory)?;
        let written = directory.write_record(folder, "manifest.json", &sealed(manifest))?;
        lock.write(&folder.join("pipeline.lock"))?;
        for name in ["pipeline.lock", "calibration.json", "manifest.json", "summary.json"] {
            rename(folder, root, name);
        }
        manifest.report.iter().for_each(|part| rename(folder, root, &part.path));
        manifest.card.iter().for_each(|part| rename(&folders.data, &directory.output, &part.path));
        let mut superseded = directory.own_report_and_missing_list()?;
        if let Some(before) = before {
            superseded.extend(before.data.iter().map(|part| directory.data().join(&part.path)));
            if let Some(part) = &before.card
                && card_origin(directory, &part.path)? == Some(CardOrigin::Own)
            {
                superseded.push(directory.output.join(&part.path));
            }
            let parts = before.dropped.iter().chain(&before.selection);
            let parts = parts.chain(&before.quarantined_files);
            superseded.extend(parts.map(|part| directory.root.join(&part.path)));
        }
        if replaces_all {
            superseded.extend(self.ours.iter().map(|part| directory.data().join(&part.path)));
            superseded.extend(directory.scored_and_selected_files()?);
            // Without its lock, what is left of the fresh start is a leftover.
            superseded.push(directory.fresh().lock_file());
        } else if is_own {
            superseded.extend(units::unlisted_files(directory, manifest.units.iter())?);
        }
        if self.unfinishable.is_some() && !replaces_all {
            // Files that the interrupted commit has moved into place.
            superseded.extend(self.ours.iter().map(|part| directory.data().join(&part.path)));
            let of_units: HashSet<PathBuf> = directory.unit_files()?.into_iter().collect();
            let moved = commit::targets_in_run_directory(directory)?.into_iter();
            superseded.extend(moved.filter(|path| !of_units.contains(path)));
        }
        intent.remove(directory, superseded.into_iter());
        // Another program may have written to the output since the run began.
        refuse_foreign_data(directory, &self.ours, replaces_all)?;
        refuse_edited_card(directory, manifest)?;
        if !manifest.report.is_empty() {
            directory.check_reports()?;
        }
        self.has_begun_commit.store(true, Ordering::Relaxed);
        let data = manifest.data.clone();
        intent.begin = Some(CommitBegin::new(directory, &intent, written.sha256, data)?);
        commit::commit(directory, &intent, run_lock, self.unfinishable.is_some())?;
        let times = self.progress.times();
        let seconds: Vec<_> =
            times.iter().map(|(stage, time)| json!([stage, time.as_secs_f64()])).collect();
        events::append(
            directory,
            "selection_committed",
            json!({ "kept": summary.kept, "files": manifest.data.len(), "seconds": seconds }),
        )?;
        directory.remove_working_files()?;
        Ok(summary_before.filter(|_| replaces).map(|before| before.kept))
    }

    /// Records an increment whose input was completely filtered by earlier runs: a manifest without data, and the calibration,
    /// both required by the next increment. Does nothing if an earlier run has written data.
    pub(super) fn record_empty_increment(&mut self) -> Result<()> {
        let (plan, directory) = (self.plan, self.directory);
        let Some(calibration) = &plan.spec.score().calibration else { return Ok(()) };
        let digests = self.digests(&RunOptions::default())?;
        let lock = lock::with_command(lock::lock_with_models(plan, &digests), plan);
        let calibration = calibration_bytes(plan, calibration, &lock.identity)?;
        let before = if plan.options.fresh { None } else { Manifest::read(directory)? };
        let (scored, staged) = (ScoreTotals::default(), StagedFiles::default());
        let mut manifest = manifest(plan, &lock, &scored, &staged, String::new());
        if let Some(before) = before {
            let is_current = before.input_before == plan.input_before
                && before.bad_files == manifest.bad_files
                && before.lock.identity == lock.identity
                && before.is_in_place(directory)?
                && before
                    .calibration
                    .as_ref()
                    .is_some_and(|part| part.sha256 == text::sha256_hex(&calibration));
            // Units: the run filtered files, although none of their samples were kept.
            if is_current || !before.units.is_empty() {
                // An earlier run was killed before its last step.
                let is_open = before.data.is_empty() && !directory.is_finished()?;
                return if is_open {
                    directory.mark_finished(&directory.states()?)
                } else {
                    Ok(())
                };
            }
        }
        lock.write(&directory.lock_file())?;
        manifest.calibration = Some(directory.write_text(
            &directory.calibration(),
            "calibration.json",
            &calibration,
        )?);
        directory.create_data()?;
        let files_quarantined = plan.dataset.bad_files.len() as u64;
        let summary = Summary { files_quarantined, ..self.base_summary("done") };
        manifest.summary =
            Some(directory.write_record(&directory.root, "summary.json", &summary)?);
        directory.write_record(&directory.root, "manifest.json", &sealed(&manifest))?;
        if self.unfinishable.is_some() {
            directory.remove_attempts()?;
            directory.remove_intent()?;
        }
        directory.mark_finished(&directory.states()?)
    }
}

/// Gives the tables of a unit their committed names, in `record` and with `intent`. Stages the new record in `folder`.
fn rename_tables(
    directory: &RunDirectory,
    folder: &Path,
    record: &mut UnitRecord,
    intent: &mut Intent,
) -> Result<()> {
    let (committed, root) = (record.committed(), &directory.root);
    if committed == *record {
        return Ok(());
    }
    for (from, to) in record.parts().zip(committed.parts()) {
        intent.rename(directory, &root.join(&from.path), &root.join(&to.path));
    }
    let name = format!("units/{}.json", record.unit);
    directory.write_text(&folder.join(&name), &name, &units::to_json(&committed))?;
    intent.rename(directory, &folder.join(&name), &root.join(&name));
    *record = committed;
    Ok(())
}

/// Creates the manifest. Its lock lacks the identities of models, which depend on the times of their files.
fn manifest(
    plan: &Plan,
    lock: &PipelineLock,
    scored: &ScoreTotals,
    staged: &StagedFiles,
    selection_fingerprint: String,
) -> Manifest {
    let input = KnownFile::for_dataset(&plan.dataset).into_iter().zip(&plan.dataset.files);
    let input = input.map(|(known, file)| {
        let mut known = serde_json::to_value(known).expect("plain data");
        known["rows"] = file.rows.into();
        known
    });
    let bad_files = plan.dataset.bad_files.iter().map(
        |file| json!({ "path": file.path, "size": file.size, "message": file.problem.message }),
    );
    Manifest {
        version: pipeline_lock::VERSION,
        longsift: env!("CARGO_PKG_VERSION").to_owned(),
        committed: clock::now_utc(),
        lock: PipelineLock { model: None, whole_models: BTreeMap::new(), ..lock.clone() },
        selection_fingerprint,
        device: plan.attention.as_ref().map_or(Value::Null, |_| {
            let recorded = Kernels::recorded(&lock.identity).map(|kernels| kernels.windows);
            json!({ "name": null, "kernel": recorded })
        }),
        input: input.collect(),
        bad_files: bad_files.collect(),
        quarantined_files: staged.quarantined_files.clone(),
        input_before: plan.input_before.clone(),
        units: scored.records.clone(),
        mark_only: plan.spec.filter().mark_only,
        data: staged.data.clone(),
        dropped: staged.dropped.clone(),
        selection: staged.selection.clone(),
        ..Manifest::default()
    }
}
