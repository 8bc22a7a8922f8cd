//! Detection of file types by their first bytes, independent of the name.

/// Number of leading bytes that suffice to detect a type.
pub const SIGNATURE_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Type with its article: `a Git LFS pointer`.
    pub name: &'static str,
    /// Advice if another type was expected.
    pub remedy: &'static str,
}

const DOWNLOAD: &str =
    "download the file itself: the server answered with a page, often because access needs a login";
const DECOMPRESS: &str = "decompress it, or rename it with the matching extension";
const CONVERT: &str = "convert it first";
const RENAME: &str = "rename it with the matching extension";

/// Leading bytes, name and advice of each type.
const SIGNATURES: [(&[u8], &str, &str); 24] = [
    (
        b"version https://git-lfs.github.com/spec",
        "a Git LFS pointer",
        "fetch the actual file: `git lfs pull`",
    ),
    (b"\xff\xfe\0\0", "text in UTF-32", "convert it: `iconv -f UTF-32 -t UTF-8`"),
    (b"\xff\xfe", "text in UTF-16", "convert it: `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "text in UTF-16", "convert it: `iconv -f UTF-16 -t UTF-8`"),
    (b"\x1f\x8b", "compressed with gzip", DECOMPRESS),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard", DECOMPRESS),
    (b"\xfd7zXZ\0", "compressed with xz", "decompress it with `xz -d`: xz is not supported"),
    (b"BZh", "compressed with bzip2", "decompress it with `bzip2 -d`: bzip2 is not supported"),
    (
        b"\x04\x22\x4d\x18",
        "compressed with LZ4",
        "decompress it with `lz4 -d`: LZ4 is not supported",
    ),
    (b"PK\x03\x04", "a ZIP archive", "unpack it: archives are not supported"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it: archives are not supported"),
    (b"PAR1", "a Parquet file", RENAME),
    (b"PARE", "an encrypted Parquet file", "write a decrypted copy"),
    (b"ARROW1", "an Arrow file", RENAME),
    (
        b"FEA1",
        "a Feather file of version 1",
        "write it again as version 2 (pandas: `to_feather`), or as Parquet",
    ),
    (b"ORC", "an ORC file", CONVERT),
    (b"Obj\x01", "an Avro file", CONVERT),
    (b"SQLite format 3\0", "an SQLite database", CONVERT),
    (b"\x89HDF\r\n", "an HDF5 file", CONVERT),
    (b"GGUF", "a GGUF file", RENAME),
    (b"\x80\x02", "a Python pickle", "convert it to safetensors"),
    (b"\x80\x03", "a Python pickle", "convert it to safetensors"),
    (b"\x80\x04", "a Python pickle", "convert it to safetensors"),
    (b"\x93NUMPY", "a NumPy array", CONVERT),
];

/// Name of the pages that servers send instead of a file.
pub const HTML_PAGE: &str = "an HTML page";

impl Signature {
    /// Detects the type of a file from its first [`SIGNATURE_BYTES`] bytes; `None` if it is unknown.
    pub fn detect(start: &[u8]) -> Option<Self> {
        let found = SIGNATURES.iter().find(|(begin, ..)| start.starts_with(begin));
        if let Some((_, name, remedy)) = found {
            return Some(Self { name, remedy });
        }
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let begins = |mark: &str| {
            text.get(..mark.len()).is_some_and(|start| start.eq_ignore_ascii_case(mark.as_bytes()))
        };
        if begins("<!doctype html") || begins("<html") {
            return Some(Self { name: HTML_PAGE, remedy: DOWNLOAD });
        }
        if begins("<?xml") || begins("<Error>") {
            return Some(Self { name: "an XML document", remedy: DOWNLOAD });
        }
        // An interrupted download or a crash leaves small files of zeros.
        (start.len() >= 16 && start.iter().all(|byte| *byte == 0)).then_some(Self {
            name: "a file of zeros",
            remedy: "its content was lost: download or write it again",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_types_are_detected_by_their_first_bytes() {
        let name = |start: &[u8]| Signature::detect(start).map(|found| found.name);
        assert_eq!(
            name(b"version https://git-lfs.github.com/spec/v1\noid"),
            Some("a Git LFS pointer")
        );
        assert_eq!(name(b"\n <!DOCTYPE HTML><html>"), Some("an HTML page"));
        assert_eq!(name(b"\xff\xfe{\0"), Some("text in UTF-16"));
        assert_eq!(name(b"\xff\xfe\0\0{\0\0\0"), Some("text in UTF-32"));
        assert_eq!(name(b"FEA1\0\0\0\0"), Some("a Feather file of version 1"));
        assert_eq!(name(&[0; 16]), Some("a file of zeros"));
        assert_eq!((name(b"{\"text\": 1}"), name(b""), name(&[0; 4])), (None, None, None));
    }
}
