//! Writes the footers of a data set to a cache file for other processes of the same job.

use std::collections::BTreeMap;
use std::path::Path;

use super::footer;
use super::footer_cache::CachedFooter;
use super::input::Dataset;
use super::input_file::{Contents, InputFile};
use super::problem::DataProblem;
use super::source::OpenFile;
use crate::base::parallel;
use crate::storage::{atomic, files};

/// Writes the footers of a data set to `path`. Cost: reads every footer again.
pub fn write(dataset: &Dataset, path: &Path) -> Result<(), DataProblem> {
    let parquet =
        dataset.files.iter().filter(|file| matches!(file.contents, Contents::Parquet(..)));
    // Files on the hub are cached by commit.
    let parquet: Vec<_> = parquet.filter(|_| dataset.hub.is_none()).collect();
    let threads = files::concurrency(&dataset.root, rayon::current_num_threads());
    let footers = parallel::in_order(parquet.len(), threads, |index| {
        let file = parquet[index];
        let read = OpenFile::open(&dataset.root.join(&file.path))
            .map_err(DataProblem::from)
            .and_then(|opened| footer::footer_bytes(&opened, file.stamp.size));
        Ok(read.map_err(|problem| problem.in_file(&file.path)))
    });
    let footers = footers.map_err(|_| DataProblem::machine("interrupted"))?;
    let footers: Vec<Vec<u8>> = footers.into_iter().collect::<Result<_, _>>()?;
    let entry = |(file, footer): (&&InputFile, &Vec<u8>)| CachedFooter {
        path: file.path.clone(),
        stamp: file.stamp,
        sha256: file.footer_hash.clone(),
        footer_bytes: footer.len(),
    };
    let entries: Vec<_> = parquet.iter().zip(&footers).map(entry).collect();
    let header = BTreeMap::from([("files", entries)]);
    let mut bytes = serde_json::to_vec(&header).expect("plain data");
    bytes.push(b'\n');
    bytes.extend(footers.concat());
    Ok(atomic::write_atomic(path, &bytes).map(drop)?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::sync::Arc;

    use super::*;
    use crate::dataset::footer_cache::FooterCache;
    use crate::dataset::input_file::ReadSettings;
    use crate::run_directory::layout::RunDirectory;

    #[test]
    fn with_cached_footers_only_changed_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("input");
        fs::create_dir(&input).unwrap();
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../datasets/demo/corpus.parquet");
        for name in ["a.parquet", "b.parquet"] {
            fs::copy(corpus, input.join(name)).unwrap();
        }
        let before = Dataset::open(&input).unwrap();
        let path = folder.path().join("footers");
        write(&before, &path).unwrap();
        let reopened = || {
            let footers = Some(Arc::new(FooterCache::read(&path).unwrap()));
            let reading = ReadSettings { footers, ..ReadSettings::default() };
            Dataset::open_with(Path::new(""), &input, &reading)
        };
        let damage = |name: &str| {
            let file = File::options().write(true).open(input.join(name)).unwrap();
            let modified = file.metadata().unwrap().modified().unwrap();
            let length = file.metadata().unwrap().len();
            file.set_len(0).unwrap();
            file.set_len(length).unwrap();
            file.set_modified(modified).unwrap();
            file
        };
        // The file contains zeros but has the cached size and times, so it must not be read.
        let _ = damage("b.parquet");
        let stamp = files::stamp(&input.join("b.parquet")).unwrap().unwrap();
        let text = |ns: i128| format!("\"changed_ns\":{ns}").into_bytes();
        let (old, new) = (text(before.files[1].stamp.changed_ns), text(stamp.changed_ns));
        let mut cached = fs::read(&path).unwrap();
        let at = cached.windows(old.len()).rposition(|bytes| bytes == old).unwrap();
        cached[at..at + old.len()].copy_from_slice(&new);
        fs::write(&path, cached).unwrap();
        let cached = reopened().unwrap();
        let known = |dataset: &Dataset| {
            let known =
                |file: &InputFile| (file.footer_hash.clone(), file.rows, file.stamp.modified_ns);
            dataset.files.iter().map(known).collect::<Vec<_>>()
        };
        assert_eq!(known(&cached), known(&before));
        assert_eq!(cached.schema, before.schema);
        // With a time that differs from the cached one, the file is opened.
        let file = damage("b.parquet");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert!(reopened().unwrap_err()[0].to_string().contains("b.parquet"));
    }

    #[test]
    fn a_shard_locks_a_run_directory_that_contains_only_footers() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        fs::create_dir(&directory.root).unwrap();
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../datasets/demo/corpus.parquet");
        write(&Dataset::open(Path::new(corpus)).unwrap(), &directory.footers()).unwrap();
        drop(directory.lock_exclusive().unwrap());
        let foreign = RunDirectory::for_output(&folder.path().join("other"));
        fs::create_dir(&foreign.root).unwrap();
        fs::write(foreign.footers(), "page numbers").unwrap();
        assert!(
            foreign
                .lock_exclusive()
                .unwrap_err()
                .to_string()
                .contains("was not written by longsift")
        );
    }

    #[test]
    fn an_incomplete_cache_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("footers");
        assert!(FooterCache::read(&path).is_none());
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../datasets/demo/corpus.parquet");
        write(&Dataset::open(Path::new(corpus)).unwrap(), &path).unwrap();
        let whole = fs::read(&path).unwrap();
        assert!(FooterCache::read(&path).is_some());
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(FooterCache::read(&path).is_none(), "{length} of {} bytes", whole.len());
        }
    }
}
