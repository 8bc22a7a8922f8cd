//! One weights file, safetensors or GGUF: its header is checked against the file before anything is allocated or read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;

use super::entry::{StoredType, TensorEntry};
use super::folder_files::is_gguf_file;
use super::gguf;
use super::problem::ModelProblem;
use crate::contract::{FileStamp, SIGNATURE_BYTES, hex, open_regular, sha256};

/// Bytes of the header's length, which precedes it.
const LENGTH_BYTES: u64 = 8;
/// Maximum size of a header, and maximum number of tensors. DeepSeek-V3's 91,991 tensors would take 14 MB in one file;
/// decoded, a tensor takes about 600 bytes.
const MAX_HEADER_BYTES: u64 = 24 << 20;
const MAX_TENSORS: usize = 1 << 17;

/// Remote weight files that are read by byte ranges.
pub trait RemoteWeights {
    fn length(&self, file: &str) -> Result<u64, ModelProblem>;
    /// Reads exactly these bytes of a file.
    fn read(&self, file: &str, bytes: Range<u64>) -> Result<Vec<u8>, ModelProblem>;
}

/// A weights file with a valid header. Symbolic links are followed: the Hugging Face cache consists of links.
#[derive(Clone, Debug)]
pub(crate) struct WeightShard {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) stamp: FileStamp,
    pub(crate) header_digest: String,
    pub(crate) tensors: BTreeMap<String, TensorEntry>,
    /// Empty for safetensors.
    pub(crate) metadata: gguf::GgufMetadata,
}

impl WeightShard {
    /// Opens a file and checks its header. For safetensors: its length, its JSON, and that the tensors tile the rest of
    /// the file exactly, with the sizes that their shapes and types imply. For GGUF see [`gguf`].
    pub(crate) fn open(folder: &Path, name: &str) -> Result<Self, ModelProblem> {
        let path = folder.join(name);
        let unread = |error: io::Error| ModelProblem::reading(&path, &error);
        let (_, file) = open_regular(&path).map_err(unread)?;
        let is_gguf = is_gguf_file(&path);
        let format = if is_gguf { "GGUF" } else { "safetensors" };
        let damaged = |why: String| {
            let mut start = [0; SIGNATURE_BYTES];
            let read = file.read_at(&mut start, 0).unwrap_or(0);
            let problem = damaged(&path.display().to_string(), format, &start[..read], &why);
            if problem.hint.is_some() {
                problem
            } else {
                problem.with_hint("download the file again")
            }
        };
        let stamp = FileStamp::from_file(&file).map_err(unread)?;
        let (tensors, metadata, header_digest) = if is_gguf {
            let header = gguf::read(&file, stamp.bytes(), None).map_err(damaged)?;
            (header.tensors, header.metadata, hex(&header.digest))
        } else {
            let read = |at, length| {
                let mut buffer = vec![0; length as usize];
                let read = file.read_exact_at(&mut buffer, at);
                read.map_err(|error| ModelProblem::reading(&path, &error)).map(|()| buffer)
            };
            let header = header_bytes(read, stamp.bytes(), &damaged)?;
            let tensors = tiling(&header, stamp.bytes(), &damaged)?;
            (tensors, gguf::GgufMetadata::default(), sha256(&header))
        };
        Ok(Self { path, name: name.to_owned(), stamp, header_digest, tensors, metadata })
    }

    /// Opens a remote file; safetensors only.
    pub(crate) fn remote(weights: &dyn RemoteWeights, name: &str) -> Result<Self, ModelProblem> {
        let bytes = weights.length(name)?;
        let read = |at: u64, length: u64| weights.read(name, at..at + length);
        let damaged = |why: String| {
            let start = read(0, bytes.min(SIGNATURE_BYTES as u64)).unwrap_or_default();
            damaged(name, "safetensors", &start, &why)
        };
        let header = header_bytes(read, bytes, &damaged)?;
        Ok(Self {
            path: PathBuf::from(name),
            name: name.to_owned(),
            stamp: FileStamp::for_immutable(bytes),
            header_digest: sha256(&header),
            tensors: tiling(&header, bytes, &damaged)?,
            metadata: gguf::GgufMetadata::default(),
        })
    }

    /// Opens the file for reading tensors if it is unchanged since its header was checked.
    pub(crate) fn reader(&self) -> Result<ShardReader<'_>, ModelProblem> {
        let opened = open_regular(&self.path);
        let (_, file) = opened.map_err(|error| ModelProblem::reading(&self.path, &error))?;
        self.check_unchanged(&file)?;
        Ok(ShardReader { shard: self, file, bytes_read: 0 })
    }

    fn check_unchanged(&self, file: &File) -> Result<(), ModelProblem> {
        let found = FileStamp::from_file(file);
        if found.map_err(|error| ModelProblem::reading(&self.path, &error))? == self.stamp {
            return Ok(());
        }
        let message = format!("`{}` has changed since its header was read", self.path.display());
        Err(ModelProblem::checkpoint(message)
            .with_hint("run again when the checkpoint is complete"))
    }
}

/// Returns the tensors of a safetensors header, after checking that they tile the rest of the file.
fn tiling(
    header: &[u8],
    file_bytes: u64,
    damaged: &impl Fn(String) -> ModelProblem,
) -> Result<BTreeMap<String, TensorEntry>, ModelProblem> {
    // Every tensor is an object.
    let objects = header.split(|byte| *byte == b'{').count() - 1;
    if objects > MAX_TENSORS {
        return Err(damaged(format!(
            "its header has {objects} objects; at most {MAX_TENSORS} tensors are read"
        )));
    }
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|error| damaged(format!("its header: {error}")))?;
    let data_start = LENGTH_BYTES + header.len() as u64;
    let end = data_start.checked_add(metadata.data_len() as u64);
    if end != Some(file_bytes) {
        return Err(damaged(format!(
            "its tensors have {} bytes, the file has room for {}",
            metadata.data_len(),
            file_bytes - data_start
        )));
    }
    let entry = |name: String| {
        let info = metadata.info(&name).expect("the header names its own tensors");
        let (start, end) = info.data_offsets;
        let entry = TensorEntry {
            dtype: StoredType::Numbers(info.dtype),
            shape: info.shape.iter().map(|size| *size as u64).collect(),
            bytes: data_start + start as u64..data_start + end as u64,
        };
        (name, entry)
    };
    Ok(metadata.offset_keys().into_iter().map(entry).collect())
}

/// Creates the problem of a file that is not a valid file of `format`; `start`: its first bytes.
fn damaged(file: &str, format: &str, start: &[u8], why: &str) -> ModelProblem {
    let what = format!("a valid {format} file: {why}");
    ModelProblem::invalid(file, &format!("a {format} file"), start, &what)
}

/// Reads the header after its length; `read` takes offset and number of bytes.
fn header_bytes(
    read: impl Fn(u64, u64) -> Result<Vec<u8>, ModelProblem>,
    file_bytes: u64,
    damaged: &impl Fn(String) -> ModelProblem,
) -> Result<Vec<u8>, ModelProblem> {
    if file_bytes < LENGTH_BYTES {
        return Err(damaged(format!("{file_bytes} bytes are too short for a header")));
    }
    let length = read(0, LENGTH_BYTES)?;
    let length = u64::from_le_bytes(length.try_into().expect("as many bytes as were requested"));
    if length > MAX_HEADER_BYTES || length > file_bytes - LENGTH_BYTES {
        return Err(damaged(format!(
            "it claims a header of {length} bytes; the file has {file_bytes}, and no header of more than \
             {MAX_HEADER_BYTES} is read"
        )));
    }
    read(LENGTH_BYTES, length)
}

/// Reads tensors of one file by offset and counts the bytes.
pub(crate) struct ShardReader<'a> {
    shard: &'a WeightShard,
    file: File,
    pub(crate) bytes_read: u64,
}

impl ShardReader<'_> {
    /// Fills `buffer` from `offset` bytes into a tensor of this file. Fails if the file has changed since its header was read.
    pub(crate) fn read(
        &mut self,
        tensor: &TensorEntry,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), ModelProblem> {
        let at = tensor.bytes.start + offset;
        let inside = at + buffer.len() as u64 <= tensor.bytes.end;
        assert!(
            inside,
            "rows are checked against the tensor's shape, and the shape against its bytes"
        );
        let read = self.file.read_exact_at(buffer, at);
        read.map_err(|error| ModelProblem::reading(&self.shard.path, &error))?;
        self.bytes_read += buffer.len() as u64;
        // The file may be edited in place.
        self.shard.check_unchanged(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    /// Creates a file with that header text and `data` zero bytes.
    fn file(folder: &Path, header: &str, data: usize) -> Result<WeightShard, ModelProblem> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        fs::write(folder.join("x.safetensors"), bytes).unwrap();
        WeightShard::open(folder, "x.safetensors")
    }

    fn tensor(name: &str, shape: &str, start: u64, end: u64) -> String {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    }

    #[test]
    fn a_header_that_tiles_the_file_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let header = format!("{{{},{}}}", tensor("b", "[2,3]", 8, 32), tensor("a", "[2]", 0, 8));
        let shard = file(folder.path(), &header, 32).unwrap();
        assert_eq!(shard.tensors.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(shard.tensors["b"].shape, [2, 3]);
        let mut bytes = [1; 8];
        let mut reader = shard.reader().unwrap();
        reader.read(&shard.tensors["b"], 16, &mut bytes).unwrap();
        assert_eq!((bytes, reader.bytes_read), ([0; 8], 8));
    }

    #[test]
    fn a_file_edited_while_it_is_read_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let header = format!("{{{},{}}}", tensor("b", "[2,3]", 8, 32), tensor("a", "[2]", 0, 8));
        let shard = file(folder.path(), &header, 32).unwrap();
        let mut reader = shard.reader().unwrap();
        reader.read(&shard.tensors["a"], 0, &mut [0; 8]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let edited = File::options().write(true).open(folder.path().join("x.safetensors"));
        edited.unwrap().write_all_at(&[1], 200).unwrap();
        let problem = reader.read(&shard.tensors["b"], 0, &mut [0; 8]).unwrap_err();
        assert!(problem.message.contains("has changed since its header was read"));
    }

    #[test]
    fn hostile_headers_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let a = tensor("a", "[2]", 0, 8);
        for (header, data, reason) in [
            (format!("{{{a}}}"), 7, "its tensors have 8 bytes, the file has room for 7"),
            (format!("{{{a}}}"), 9, "the file has room for 9"),
            (format!("{{{a},{}}}", tensor("b", "[2]", 4, 12)), 12, "invalid offset for tensor `b`"),
            (
                format!("{{{a},{}}}", tensor("b", "[2]", 12, 20)),
                20,
                "invalid offset for tensor `b`",
            ),
            (format!("{{{}}}", tensor("a", "[2]", 8, 0)), 8, "invalid offset"),
            (format!("{{{}}}", tensor("a", "[3]", 0, 8)), 8, "invalid shape"),
            (format!("{{{}}}", tensor("a", "[4294967296,4294967296,2]", 0, 8)), 8, "overflow"),
            (format!("{{{}}}", tensor("a", "[-1]", 0, 8)), 8, "header"),
            (a, 8, "header"),
            ("[".repeat(10_000), 0, "header"),
            (String::new(), 0, "header"),
        ] {
            let problem = file(folder.path(), &header, data).unwrap_err();
            assert!(problem.message.contains(reason), "{header:.80}: {problem}");
        }
    }

    #[test]
    fn a_header_longer_than_the_file_is_refused_before_it_is_allocated() {
        let folder = tempfile::tempdir().unwrap();
        for length in [u64::MAX, 1 << 60, 99_000_000, 1] {
            fs::write(folder.path().join("x.safetensors"), length.to_le_bytes()).unwrap();
            let problem = WeightShard::open(folder.path(), "x.safetensors").unwrap_err();
            assert!(problem.message.contains("claims a header"), "{problem}");
        }
        fs::write(folder.path().join("x.safetensors"), "abc").unwrap();
        let problem = WeightShard::open(folder.path(), "x.safetensors").unwrap_err();
        assert!(problem.message.contains("too short"), "{problem}");
    }

    #[test]
    fn a_file_changed_after_its_header_was_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let header = format!("{{{}}}", tensor("a", "[2]", 0, 8));
        let shard = file(folder.path(), &header, 8).unwrap();
        fs::write(folder.path().join("x.safetensors"), "gone").unwrap();
        assert!(shard.reader().err().unwrap().message.contains("has changed"));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0u64..220) {
            let folder = tempfile::tempdir().unwrap();
            let mut file = length.to_le_bytes().to_vec();
            file.extend(&bytes);
            fs::write(folder.path().join("x.safetensors"), &file).unwrap();
            let _ = WeightShard::open(folder.path(), "x.safetensors");
        }
    }
}
