//! Cache of surveys of line files, so that a corpus of terabytes is counted once.

use std::path::{Path, PathBuf};

use super::survey::LineSurvey;
use crate::base::clock;
use crate::base::text::sha256_hex;
use crate::storage::range_file::Stamp;
use crate::storage::{atomic, files};

/// Increased when the survey of unchanged bytes changes.
const VERSION: u32 = 3;
const DIGEST_BYTES: usize = 64;
/// A file modified more recently can be modified again without a change of its timestamps.
const MIN_AGE_NS: i128 = 2_000_000_000;

/// Cache location of the survey of one version of a file.
#[derive(Clone, Debug)]
pub(crate) struct SurveyCacheEntry(Option<PathBuf>);

impl SurveyCacheEntry {
    /// Returns the location for the file at `path`, an absolute path or an address. `version`: see
    /// [`RangeFile::version`]; `read_as`: form and compression.
    ///
    /// [`RangeFile::version`]: crate::storage::range_file::RangeFile::version
    pub(crate) fn new(
        folder: Option<&Path>,
        path: &Path,
        stamp: Stamp,
        version: Option<&str>,
        read_as: &str,
    ) -> Self {
        let now = clock::nanoseconds() as i128;
        let Stamp { size, modified_ns, changed_ns, .. } = stamp;
        let settled = now - modified_ns.max(changed_ns) > MIN_AGE_NS;
        let Some((folder, version)) = folder.filter(|_| settled).zip(version) else {
            return Self(None);
        };
        let key =
            format!("{}\0{size}\0{modified_ns}\0{version}\0{read_as}\0{VERSION}", path.display());
        let name = format!("{}.json", sha256_hex(key.as_bytes()));
        Self(Some(folder.join("lines").join(name)))
    }

    pub(crate) fn read(&self) -> Option<LineSurvey> {
        let bytes = files::read_if_present(self.0.as_ref()?).ok()??;
        // A digest in hexadecimal digits, a line feed, and the survey.
        let (digest, json) = bytes.split_at_checked(DIGEST_BYTES + 1)?;
        let is_intact = digest.strip_suffix(b"\n") == Some(sha256_hex(json).as_bytes());
        serde_json::from_slice(json).ok().filter(|_| is_intact)
    }

    /// Caches a survey. If that fails, the next run surveys the file again.
    pub(crate) fn write(&self, survey: &LineSurvey) {
        let Some(path) = &self.0 else { return };
        let json = serde_json::to_vec(survey).expect("plain data");
        let content = [sha256_hex(&json).as_bytes(), b"\n", &json].concat();
        let folder = path.parent().expect("it is below a folder");
        let written =
            files::create_folder(folder).and_then(|()| atomic::write_atomic(path, &content));
        if let Err(error) = written {
            tracing::debug!("the survey of a line file cannot be cached: {error}");
        }
    }

    pub(crate) fn remove(&self) {
        let Some(path) = &self.0 else { return };
        if let Err(error) = files::remove_file(path) {
            tracing::debug!("an outdated survey cannot be removed: {error}");
        }
    }
}
