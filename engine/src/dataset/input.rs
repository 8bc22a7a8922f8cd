//! Files of one input, checked to have the same columns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{DataType, Field, SchemaRef};

use super::discover::DiscoveredFiles;
use super::footer;
use super::footer_cache::CachedFooter;
use super::formats::type_names;
use super::input_file::{Contents, InputFile, ReadSettings};
use super::problem::DataProblem;
use super::source::{InTree, OpenFile};
use super::unify::LinesSchema;
use crate::base::diagnostic::Blame;
use crate::base::parallel;
use crate::base::stop::Stop;
use crate::spec::pipeline::OnBadFile;
use crate::storage::hub::tree::Tree;
use crate::storage::{atomic, files};

/// Maximum length of an id in bytes: every table of a run repeats the document id for each of its windows.
pub const MAX_ID_BYTES: usize = 16 << 10;

#[derive(Clone, Debug)]
pub struct Dataset {
    /// Folder that the files' paths are relative to.
    pub root: PathBuf,
    /// Files, sorted by the bytes of their paths.
    pub files: Vec<InputFile>,
    /// Columns of all files: order and names of the first file, each with the widest type. Empty without files.
    pub schema: SchemaRef,
    /// Key-values of the footers (not `ARROW:schema`): the union, with the first file's value if files differ.
    pub metadata: Vec<(String, String)>,
    pub notes: Vec<String>,
    /// Files that could not be opened while the run continues without them. Their number of rows is unknown.
    pub bad_files: Vec<BadFile>,
    /// Forms and columns of line files, which windows depend on in addition to the bytes; `None` without such files.
    pub lines: Option<LinesSchema>,
    pub(super) hub: Option<InTree>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFile {
    /// Path relative to the input root, '/'-separated.
    pub path: String,
    pub size: Option<u64>,
    pub problem: DataProblem,
}

impl Dataset {
    /// Opens the files for `path` (a file, a folder, or a glob; preferably absolute) and reads their footers. An empty folder,
    /// or a glob without matches, yields a data set without files. Returns all problems at once.
    pub fn open(path: &Path) -> Result<Self, Vec<DataProblem>> {
        Self::open_with(Path::new(""), path, &ReadSettings::default())
    }

    /// Like [`Dataset::open`] for a path relative to `folder`, in which wildcard characters are literal. With
    /// `on_bad_file: quarantine`, files that cannot be opened are an error only if no other file is left.
    pub fn open_with(
        folder: &Path,
        path: &Path,
        reading: &ReadSettings,
    ) -> Result<Self, Vec<DataProblem>> {
        let found = super::discover::find(folder, path, reading.format)?;
        found.refuse_results(&reading.results)?;
        Self::from_files(found, reading)
    }

    pub fn open_in_hub(tree: &Arc<Tree>, reading: &ReadSettings) -> Result<Self, Vec<DataProblem>> {
        let mut dataset =
            Self::from_files(super::discover::find_in_hub(tree, reading.format)?, reading)?;
        dataset.notes.extend(tree.note.clone());
        Ok(dataset)
    }

    fn from_files(
        found: DiscoveredFiles,
        reading: &ReadSettings,
    ) -> Result<Self, Vec<DataProblem>> {
        // A corpus has tens of thousands of footers, and a store takes a tenth of a second for each.
        let concurrency = files::concurrency(&found.root, rayon::current_num_threads());
        let opened = parallel::in_order(found.files.len(), concurrency, |index| {
            Stop::global().check()?;
            let path = &found.files[index];
            let opened = InputFile::open(&found, path, reading);
            Ok(opened.map_err(|problem| problem.in_file(path)))
        });
        let Ok(opened) = opened else {
            let message = "interrupted while the input files were opened";
            return Err(vec![DataProblem::machine(message)]);
        };
        let (mut files, mut problems, mut bad_files) = (Vec::new(), Vec::new(), Vec::new());
        for (result, path) in opened.into_iter().zip(&found.files) {
            match result {
                Ok(file) => files.push(file),
                Err(problem)
                    if reading.on_bad_file == OnBadFile::Quarantine
                        && problem.blame == Blame::Data =>
                {
                    let size = found.size(path);
                    bad_files.push(BadFile { path: path.clone(), size, problem });
                }
                Err(problem) => problems.push(problem),
            }
        }
        if files.is_empty() {
            problems.extend(bad_files.drain(..).map(|file| file.problem));
        }
        let lines = super::unify::set_line_columns(&mut files, reading.columns.as_ref());
        let mut lines = lines.unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let unified = super::unify::add_partitions(&mut files, lines.as_mut())
            .and_then(|()| super::unify::unify(&mut files));
        match unified {
            Ok(schema) if problems.is_empty() => {
                let (metadata, differences) = super::metadata::union(&files, &schema);
                let DiscoveredFiles { root, hub, mut notes, .. } = found;
                notes.extend(differences);
                notes.extend(super::metadata::variant_notes(&files));
                Ok(Self { root, files, schema, metadata, notes, bad_files, lines, hub })
            }
            Ok(_) => Err(problems),
            Err(more) => {
                problems.extend(more);
                Err(problems)
            }
        }
    }

    /// Writes all footers to `path`, for other processes of the same job. Cost: reads every footer again.
    pub fn write_footers(&self, path: &Path) -> Result<(), DataProblem> {
        let parquet =
            self.files.iter().filter(|file| matches!(file.contents, Contents::Parquet(..)));
        // Files on the hub are cached by commit.
        let parquet: Vec<_> = parquet.filter(|_| self.hub.is_none()).collect();
        let threads = files::concurrency(&self.root, rayon::current_num_threads());
        let footers = parallel::in_order(parquet.len(), threads, |index| {
            let file = parquet[index];
            let read = OpenFile::open(&self.root.join(&file.path))
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

    pub fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }

    pub fn column_names(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// Returns the columns that folders named `key=value` add to the files.
    pub fn folder_columns(&self) -> Vec<Field> {
        let count = self.files.first().map_or(0, |file| file.partitions.len());
        let fields = self.schema.fields();
        fields[fields.len() - count..].iter().map(|field| field.as_ref().clone()).collect()
    }

    pub fn column(&self, name: &str) -> Option<&Field> {
        self.schema.column_with_name(name).map(|(_, field)| field)
    }

    /// Checks that the values of a column are short enough for ids, if files record lengths. Returns the column's index.
    pub fn check_id_column(&self, name: &str) -> Result<usize, DataProblem> {
        let column = self.check_label_column(name)?;
        let known = self.files.iter().filter(|file| matches!(file.contents, Contents::Parquet(..)));
        let known = known.map(|file| (file.column_bytes(column), file.rows));
        let (bytes, rows) =
            known.fold((0_u64, 0_u64), |sum, file| (sum.0.saturating_add(file.0), sum.1 + file.1));
        let mean = bytes / rows.max(1);
        if mean <= MAX_ID_BYTES as u64 {
            return Ok(column);
        }
        let message = format!(
            "column `{name}` has values of {mean} bytes on average; ids have at most {MAX_ID_BYTES}"
        );
        Err(DataProblem::settings(message).with_hint(
            "choose a column of short ids, or remove `id_column`: ids are then file and row number",
        ))
    }

    /// Returns the decoded bytes of a column over all files; zero for a missing column.
    pub fn column_bytes(&self, name: &str) -> u64 {
        let Some((column, _)) = self.schema.column_with_name(name) else { return 0 };
        self.files.iter().map(|file| file.column_bytes(column)).fold(0, u64::saturating_add)
    }

    /// Checks that `name` is a column of text, or of bytes that may be text.
    pub fn check_text_column(&self, name: &str) -> Result<usize, DataProblem> {
        let accepted = "string, large_string, string_view or binary, plain or dictionary-encoded";
        self.check_column(name, accepted, |data_type| match data_type {
            DataType::Dictionary(_, value) => super::types::is_text_or_bytes(value),
            plain => super::types::is_text_or_bytes(plain),
        })
    }

    pub fn check_tokens_column(&self, name: &str) -> Result<usize, DataProblem> {
        let accepted = "a list of int32, uint32 or int64 (or of another integer type)";
        self.check_column(name, accepted, |data_type| {
            super::types::list_item(data_type).is_some_and(|item| item.data_type().is_integer())
        })
    }

    /// Checks that the values of column `name` can be written as strings: ids, groups, labels.
    pub fn check_label_column(&self, name: &str) -> Result<usize, DataProblem> {
        self.check_column(name, "any type but lists, structs and maps", |data_type| {
            !data_type.is_nested()
        })
    }

    /// Checks that a column exists and that `accepts` returns `true` for its type. Returns its index.
    pub(super) fn check_column(
        &self,
        name: &str,
        accepted: &str,
        accepts: impl Fn(&DataType) -> bool,
    ) -> Result<usize, DataProblem> {
        let found = self.schema.column_with_name(name);
        let (index, field) = found.ok_or_else(|| self.no_column(name))?;
        if accepts(field.data_type()) {
            return Ok(index);
        }
        let problem = DataProblem::settings(format!(
            "column `{name}` is {}; accepted: {accepted}",
            type_names::name(field.data_type())
        ));
        let others = self.schema.fields().iter().filter(|field| accepts(field.data_type()));
        let others: Vec<_> = others.map(|field| format!("`{}`", field.name())).collect();
        if others.is_empty() {
            return Err(problem);
        }
        Err(problem.with_hint(format!("columns with an accepted type: {}", others.join(", "))))
    }

    /// Describes a missing column, lists the existing ones and suggests a similar name.
    pub(super) fn no_column(&self, name: &str) -> DataProblem {
        let names = self.column_names();
        let problem = DataProblem::settings(format!(
            "column `{name}` does not exist; the input has: {}",
            names.join(", ")
        ));
        let parent = name.split_once('.').and_then(|(parent, _)| self.column(parent));
        if let Some(parent) = parent.filter(|parent| parent.data_type().is_nested()) {
            let hint = "its fields are not columns: copy the field to a column of its own";
            return problem.with_hint(format!(
                "`{}` is {}; {hint}",
                parent.name(),
                type_names::name(parent.data_type())
            ));
        }
        let close =
            names.iter().map(|other| (strsim::damerau_levenshtein(name, other), *other)).min();
        match close {
            Some((distance, other)) if distance <= name.chars().count().max(3) / 3 + 1 => {
                problem.with_hint(format!("did you mean `{other}`?"))
            }
            _ => problem,
        }
    }
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
        before.write_footers(&path).unwrap();
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
        Dataset::open(Path::new(corpus)).unwrap().write_footers(&directory.footers()).unwrap();
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
        Dataset::open(Path::new(corpus)).unwrap().write_footers(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        assert!(FooterCache::read(&path).is_some());
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(FooterCache::read(&path).is_none(), "{length} of {} bytes", whole.len());
        }
    }
}
