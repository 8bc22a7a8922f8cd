//! Detects table formats. Their log lists the current files, so the files alone are not the table.

use std::path::Path;

use super::problem::DataProblem;
use crate::storage::files;

/// Marker folder, end of the path of a file in it, name of the table format, and a command that exports one version.
const TABLES: [(&str, &str, &str, &str); 5] = [
    (
        "_delta_log",
        "",
        "a Delta table",
        "duckdb -c \"install delta; load delta; copy (from delta_scan('TABLE')) to 'export.parquet'\"",
    ),
    (HUDI, "", "a Hudi table", "spark.read.format('hudi').load('TABLE').write.parquet('export')"),
    (
        "metadata",
        ".metadata.json",
        "an Iceberg table",
        "duckdb -c \"install iceberg; load iceberg; copy (from iceberg_scan('TABLE')) to 'export.parquet'\"",
    ),
    (
        "_versions",
        ".manifest",
        "a Lance table",
        "lance.dataset('TABLE').to_table() and pyarrow's write_table",
    ),
    ("schema", "/schema-0", "a Paimon table", "the engine that wrote it"),
];

const HUDI: &str = ".hoodie";
/// File in each partition of a Hudi table, whose folders have any names.
const HUDI_PARTITION: &str = ".hoodie_partition_metadata";

fn ends(path: &str, end: &str) -> bool {
    path.strip_suffix(".gz").unwrap_or(path).ends_with(end)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableFolder {
    folder: String,
    format: &'static str,
    export: &'static str,
}

impl TableFolder {
    /// Finds a table in a listing of all names below a folder, '/'-separated.
    pub(super) fn find_in_listing<'a>(
        folder: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Option<Self> {
        names.into_iter().find_map(|name| {
            let parts: Vec<&str> = name.split('/').collect();
            (0..parts.len()).find_map(|index| {
                let is_marked = |(mark, end, ..): &&(&str, &str, &str, &str)| {
                    parts[index] == *mark && index + 1 < parts.len() && ends(name, end)
                        || parts[index] == HUDI_PARTITION && *mark == HUDI
                };
                let found = TABLES.iter().find(is_marked)?;
                let below = parts[..index].iter().fold(folder.to_owned(), |folder, part| {
                    format!("{}/{part}", folder.trim_end_matches('/'))
                });
                Some(Self { folder: below, format: found.2, export: found.3 })
            })
        })
    }

    fn detect(folder: &Path) -> Option<Self> {
        let is_marked = |(mark, end, ..): &(&str, &str, &str, &str)| {
            let mark = folder.join(mark);
            if !files::is_folder(&mark).unwrap_or(false) {
                return false;
            }
            let names = files::list_folder(&mark).unwrap_or_default();
            end.is_empty() || names.iter().any(|name| ends(&name.to_string_lossy(), end))
        };
        let is_partition = folder.join(HUDI_PARTITION).is_file();
        let mut tables = TABLES.iter();
        let found = tables.find(|of| is_marked(of) || is_partition && of.0 == HUDI)?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        Some(Self { folder: folder.display().to_string(), format: found.2, export: found.3 })
    }

    /// Finds a table that is `root`, contains it (as data folder or partition), or contains one of `files` below it.
    pub(super) fn find_in_files<'a>(
        root: &Path,
        files: impl IntoIterator<Item = &'a str>,
    ) -> Option<Self> {
        let mut seen = std::collections::BTreeSet::new();
        let below = files.into_iter().flat_map(|file| Path::new(file).ancestors().skip(1));
        if let Some(table) = below
            .filter(|folder| seen.insert(folder.to_path_buf()))
            .find_map(|folder| Self::detect(&root.join(folder)))
        {
            return Some(table);
        }
        Self::detect(root).or_else(|| Self::find_above(root))
    }

    /// Finds a table that contains `root` as data folder, partition or bucket.
    pub(super) fn find_above(root: &Path) -> Option<Self> {
        let is_part = |folder: &&Path| {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name == "data" || name.contains('=') || name.starts_with("bucket-")
        };
        let parts = root.ancestors().take_while(is_part);
        parts.filter_map(Path::parent).find_map(Self::detect)
    }

    pub(super) fn refusal(&self) -> DataProblem {
        let Self { folder, format, export } = self;
        DataProblem::settings(format!(
            "`{folder}` is {format}: its files also contain deleted and replaced rows, and longsift does not read its log"
        ))
        .with_hint(format!(
            "export the version that you want and use the export as input, for example: {}",
            export.replace("TABLE", folder)
        ))
    }

    pub(super) fn note(&self) -> String {
        let Self { folder, format, .. } = self;
        format!(
            "`{folder}` is {format}, whose log is not read: its removed and replaced files are read as well"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_a_listing_identifies_its_table() {
        let table = |names: &[&str]| {
            TableFolder::find_in_listing("s3://b/in", names.iter().copied())
                .map(|table| (table.folder, table.format))
        };
        let found = |folder: &str, format| Some((folder.to_owned(), format));
        assert_eq!(table(&["a.parquet", "_delta_log/0.json"]), found("s3://b/in", "a Delta table"));
        assert_eq!(
            table(&["x/y/.hoodie/hoodie.properties"]),
            found("s3://b/in/x/y", "a Hudi table")
        );
        assert_eq!(
            table(&["t/metadata/v1.metadata.json"]),
            found("s3://b/in/t", "an Iceberg table")
        );
        assert_eq!(table(&["t/schema/schema-0", "t/a"]), found("s3://b/in/t", "a Paimon table"));
        let partition = ["en/a.parquet", "en/.hoodie_partition_metadata"];
        assert_eq!(table(&partition), found("s3://b/in/en", "a Hudi table"));
        assert_eq!(table(&["schema/schema-00000.parquet", "schema/my-schema-0"]), None);
        assert_eq!(table(&["metadata/notes.json", "a.parquet", "_delta_log"]), None);
    }
}
