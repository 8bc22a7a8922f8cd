//! Score tables that a selection reads several times: those of another run (`--scores-from`) are not locked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::layout::RunDirectory;
use super::units::UnitRecord;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::parallel;
use crate::dataset::source;

/// Score tables, with the version that each file had when its record was read.
#[derive(Debug)]
pub struct BorrowedScores {
    directory: RunDirectory,
    versions: BTreeMap<PathBuf, String>,
}

impl BorrowedScores {
    /// Notes the versions of all files of `records`.
    ///
    /// The caller must read the records again afterwards: a run does not replace the files of a committed selection before its
    /// next commit, so a record that still exists belongs to these versions.
    pub fn new<'r>(
        directory: &RunDirectory,
        records: impl IntoIterator<Item = &'r UnitRecord>,
    ) -> Result<Self> {
        let paths = paths(directory, records);
        let versions = parallel::in_order(paths.len(), directory.concurrency(1), |index| {
            Ok(source::version(&paths[index])?)
        })?;
        let versions = paths.into_iter().zip(versions).collect();
        Ok(Self { directory: directory.clone(), versions })
    }

    /// Checks that every file still has the noted version: otherwise, data read since may mix two versions.
    pub fn check(&self) -> Result<()> {
        self.check_files(&self.versions.keys().collect::<Vec<_>>())
    }

    /// Checks the files of some of the records.
    pub fn check_records(&self, records: &[UnitRecord]) -> Result<()> {
        self.check_files(&paths(&self.directory, records))
    }

    fn check_files(&self, paths: &[impl AsRef<Path> + Sync]) -> Result<()> {
        let concurrency = self.directory.concurrency(1);
        let same = parallel::in_order(paths.len(), concurrency, |index| {
            let path = paths[index].as_ref();
            Ok(source::version(path).ok().as_ref() == self.versions.get(path))
        })?;
        match same.iter().position(|same| !same) {
            None => Ok(()),
            Some(changed) => Err(self.changed(&paths[changed].as_ref().display().to_string())),
        }
    }

    pub fn changed(&self, what: &str) -> crate::base::error::Failure {
        let message = format!(
            "the scores in `{}` were replaced while this run read them: `{what}`",
            self.directory.root.display()
        );
        Diagnostic::error(Blame::Machine, message)
            .hint("run again when no other process uses that run directory")
            .into()
    }
}

fn paths<'r>(
    directory: &RunDirectory,
    records: impl IntoIterator<Item = &'r UnitRecord>,
) -> Vec<PathBuf> {
    let parts = records.into_iter().flat_map(UnitRecord::parts);
    parts.map(|part| directory.root.join(&part.path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use serde_json::json;

    use super::*;

    #[test]
    fn replaced_file_is_detected_despite_equal_bytes_and_time() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let part = json!({ "path": "scores/part-u.parquet", "rows": 0, "bytes": 0, "sha256": "" });
        let record: UnitRecord = serde_json::from_value(json!({
            "unit": "u", "file": "a.parquet", "row_groups": [0, 1], "first_row": 0,
            "input": { "size": 1, "modified_ns": 0, "footer_hash": "" },
            "windows": "", "measures": {}, "counts": crate::base::counts::Counts::default(),
            "scores": part, "dropped": null, "quarantine": null,
        }))
        .unwrap();
        fs::create_dir_all(directory.scores()).unwrap();
        let path = directory.scores().join("part-u.parquet");
        fs::write(&path, "scores").unwrap();
        let borrowed = BorrowedScores::new(&directory, [&record]).unwrap();
        borrowed.check().unwrap();
        borrowed.check_records(std::slice::from_ref(&record)).unwrap();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let other = directory.scores().join("other");
        fs::write(&other, "scores").unwrap();
        File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        fs::rename(&other, &path).unwrap();
        let refused = borrowed.check().unwrap_err();
        assert_eq!(refused.exit_code(), 4);
        assert!(refused.to_string().contains("part-u.parquet"), "{refused}");
        assert!(borrowed.check_records(&[record]).is_err());
        fs::remove_file(&path).unwrap();
        assert!(borrowed.check().is_err());
    }
}
