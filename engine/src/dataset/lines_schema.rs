//! Forms and columns of line files, which do not record them themselves.

/// Forms and columns that line files are read with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinesSchema {
    /// Forms of the lines: `jsonl`, `tsv`.
    pub forms: Vec<&'static str>,
    /// Columns in the notation of `input.schema`.
    pub columns: String,
    /// Whether the columns were inferred from the first lines.
    pub inferred: bool,
}
