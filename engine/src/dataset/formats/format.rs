//! Detects file formats by name and selects the input files of a folder.

use super::compression::FileCompression;
use super::line_format::LineFormat;
use crate::spec::pipeline::InputFormat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Parquet,
    /// Arrow IPC, a file or a stream.
    Arrow,
    Lines(LineFormat, FileCompression),
}

impl FileFormat {
    /// Returns the format of a file: the pipeline's setting, else by file name extension, else Parquet.
    pub(crate) fn for_file(name: &str, wanted: InputFormat) -> Self {
        let (compression, _) = FileCompression::from_name(name);
        let format = match wanted {
            InputFormat::Auto => Self::by_extension(name).unwrap_or(InputFormat::Parquet),
            named => named,
        };
        match format {
            InputFormat::Auto | InputFormat::Parquet => Self::Parquet,
            InputFormat::Arrow => Self::Arrow,
            InputFormat::Jsonl => Self::Lines(LineFormat::Json, compression),
            InputFormat::Tsv => Self::Lines(LineFormat::Tsv, compression),
        }
    }

    fn by_extension(name: &str) -> Option<InputFormat> {
        let (compression, bare) = FileCompression::from_name(name);
        let (_, ending) = bare.rsplit_once('.')?;
        match (&*ending.to_ascii_lowercase(), compression) {
            ("parquet" | "pq" | "parq", FileCompression::None) => Some(InputFormat::Parquet),
            ("arrow" | "arrows" | "feather" | "ipc", FileCompression::None) => {
                Some(InputFormat::Arrow)
            }
            ("jsonl" | "ndjson" | "jsonlines" | "json", _) => Some(InputFormat::Jsonl),
            ("tsv", _) => Some(InputFormat::Tsv),
            _ => None,
        }
    }

    /// Returns a file name without the extensions of format and compression.
    pub(crate) fn stem(name: &str) -> &str {
        let (_, bare) = FileCompression::from_name(name);
        match bare.rsplit_once('.') {
            Some((stem, _)) if Self::is_known(name) => stem,
            _ => bare,
        }
    }

    /// Whether a file of this name is read without an explicit format.
    pub(crate) fn is_known(name: &str) -> bool {
        Self::by_extension(name).is_some()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Parquet => "a Parquet file",
            Self::Arrow => "an Arrow file",
            Self::Lines(_, FileCompression::Gzip) => "compressed with gzip",
            Self::Lines(_, FileCompression::Zstd) => "compressed with Zstandard",
            Self::Lines(LineFormat::Json, FileCompression::None) => "lines of JSON",
            Self::Lines(LineFormat::Tsv, FileCompression::None) => {
                "lines with a key, a tab and JSON"
            }
        }
    }
}

/// Extensions of data files that are not read, including those of compressed files.
const OTHER_EXTENSIONS: [&str; 22] = [
    "csv", "avro", "orc", "lance", "warc", "tar", "zip", "7z", "xz", "bz2", "lz4", "lzma", "gz",
    "zst", "zstd", "br", "tgz", "tbz2", "rar", "jl", "ldjson", "pqt",
];
/// Extensions of files about other files.
const AUXILIARY_EXTENSIONS: [&str; 7] = ["crc", "md5", "sha1", "sha256", "sha512", "sig", "asc"];

/// Whether the name of a file that is not read looks like data: `a.csv`, `a.jsonl.xz`, `a.parquet.tmp`, `a.jsonl/part-0`.
fn looks_like_data(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let (folders, name) = name.rsplit_once('/').unwrap_or(("", &name));
    if !name.contains('.') {
        return folders.split('/').any(FileFormat::is_known);
    }
    let part = |part: &str| {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
        part[..end].to_owned()
    };
    let parts: Vec<String> = name.split('.').skip(1).map(part).collect();
    let is_about_others =
        parts.last().is_some_and(|part| AUXILIARY_EXTENSIONS.contains(&part.as_str()));
    let is_data = |part: &String| {
        let is_known = part != "json" && FileFormat::is_known(&format!(".{part}"));
        is_known || OTHER_EXTENSIONS.contains(&part.as_str())
    };
    !is_about_others && parts.iter().any(is_data)
}

/// Splits the files of a folder into its input and other files that look like data. The input has the format that the
/// pipeline names, else Parquet, else the only other format. Plain `.json` files next to data are usually metadata and
/// are left out.
/// Several other formats are an error.
pub(crate) fn select_input_files(
    names: &[String],
    wanted: InputFormat,
) -> Result<(Vec<String>, Vec<String>), String> {
    let is_plain_json = |name: &str| name.to_ascii_lowercase().ends_with(".json");
    let kind = |name: &String| FileFormat::by_extension(name).filter(|_| !is_plain_json(name));
    let of = |wanted: InputFormat| names.iter().filter(|name| kind(name) == Some(wanted)).count();
    let others =
        [(InputFormat::Jsonl, "jsonl"), (InputFormat::Tsv, "tsv"), (InputFormat::Arrow, "arrow")];
    let chosen = match wanted {
        InputFormat::Auto if of(InputFormat::Parquet) == 0 => {
            let there: Vec<_> = others.into_iter().filter(|(kind, _)| of(*kind) > 0).collect();
            if there.len() > 1 {
                let counts = there.iter().map(|(kind, name)| format!("{} of {name}", of(*kind)));
                return Err(counts.collect::<Vec<_>>().join(" and "));
            }
            there.first().map_or(InputFormat::Parquet, |(kind, _)| *kind)
        }
        InputFormat::Auto => InputFormat::Parquet,
        named => named,
    };
    let (chosen, mut others): (Vec<String>, Vec<String>) =
        names.iter().cloned().partition(|name| kind(name) == Some(chosen));
    // Plain JSON files count as data that is not read where all other data is compressed JSON, or absent.
    let is_data = |name: &String| name.to_ascii_lowercase().contains(".json.");
    let has_json = chosen.is_empty() || chosen.iter().any(is_data);
    others.retain(|name| looks_like_data(name) || has_json && is_plain_json(name));
    Ok((chosen, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], wanted: InputFormat) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        select_input_files(&names, wanted).map(|(chosen, _)| chosen)
    }

    #[test]
    fn the_extension_selects_the_format_unless_the_pipeline_does() {
        let auto = |name| FileFormat::for_file(name, InputFormat::Auto);
        assert_eq!(auto("a/b.parquet"), FileFormat::Parquet);
        assert_eq!(auto("data.bin"), FileFormat::Parquet);
        assert_eq!(auto("x.json"), FileFormat::Lines(LineFormat::Json, FileCompression::None));
        assert_eq!(
            auto("x.ndjson.zst"),
            FileFormat::Lines(LineFormat::Json, FileCompression::Zstd)
        );
        assert_eq!(auto("x.arrow"), FileFormat::Arrow);
        assert_eq!(auto("x.PQ"), FileFormat::Parquet);
        assert_eq!(
            auto("\u{e9}.JsonLines.GZ"),
            FileFormat::Lines(LineFormat::Json, FileCompression::Gzip)
        );
        assert_eq!(auto("x.tsv.gz"), FileFormat::Lines(LineFormat::Tsv, FileCompression::Gzip));
        assert_eq!(
            FileFormat::for_file("x.txt.gz", InputFormat::Jsonl),
            FileFormat::Lines(LineFormat::Json, FileCompression::Gzip)
        );
    }

    #[test]
    fn a_stem_excludes_only_known_extensions() {
        for (name, stem) in [
            ("a.b/x.parquet", "a.b/x"),
            ("x.v2.jsonl.gz", "x.v2"),
            ("x.txt.zst", "x.txt"),
            ("x.v2", "x.v2"),
            ("x.PARQUET", "x"),
            ("x.JSONL.Zst", "x"),
            ("a.b/x", "a.b/x"),
        ] {
            assert_eq!(FileFormat::stem(name), stem);
        }
    }

    #[test]
    fn a_folder_yields_its_parquet_files_or_those_of_one_other_format() {
        let all = ["a.parquet", "b.jsonl", "c.jsonl.gz", "d.tsv", "state.json", "e.txt"];
        assert_eq!(chosen(&all, InputFormat::Auto).unwrap(), ["a.parquet"]);
        assert_eq!(chosen(&all, InputFormat::Jsonl).unwrap(), ["b.jsonl", "c.jsonl.gz"]);
        assert_eq!(chosen(&all[1..], InputFormat::Auto).unwrap_err(), "2 of jsonl and 1 of tsv");
        assert_eq!(chosen(&all[3..], InputFormat::Auto).unwrap(), ["d.tsv"]);
        assert_eq!(chosen(&["c.json.gz", "x.json"], InputFormat::Auto).unwrap(), ["c.json.gz"]);
        assert!(chosen(&all[4..], InputFormat::Auto).unwrap().is_empty());
    }

    #[test]
    fn unread_data_files_are_reported() {
        let names = [
            "a.parquet",
            "b.PARQUET",
            "c.pq",
            "d.csv",
            "e.jsonl.xz",
            "f.jsonl",
            "g.parquet.tmp",
            "h.jsonl-00000-of-00002",
            "README.md",
            "i.parquet.crc",
            "state.json",
            "v1.2/notes.txt",
            "i.jsonl/part-00000",
            "j.jl",
            "LICENSE",
        ];
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let (chosen, others) = select_input_files(&names, InputFormat::Auto).unwrap();
        assert_eq!(chosen, ["a.parquet", "b.PARQUET", "c.pq"]);
        assert_eq!(
            others,
            [
                "d.csv",
                "e.jsonl.xz",
                "f.jsonl",
                "g.parquet.tmp",
                "h.jsonl-00000-of-00002",
                "i.jsonl/part-00000",
                "j.jl"
            ]
        );
        let metadata = select_input_files(&names[10..12], InputFormat::Auto).unwrap();
        assert_eq!(metadata.1, ["state.json"]);
        let parts = ["a.json.gz", "b.json"].map(str::to_owned);
        let (chosen, others) = select_input_files(&parts, InputFormat::Auto).unwrap();
        assert_eq!((chosen, others), (parts[..1].to_vec(), parts[1..].to_vec()));
    }
}
