//! What files of lines are read as: they do not say it themselves.

/// What files of lines are read as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinesSchema {
    /// What their lines hold: `jsonl`, `tsv`.
    pub forms: Vec<&'static str>,
    /// Their columns, as `input.schema` would name them.
    pub columns: String,
    /// Whether the columns were found from the first lines.
    pub inferred: bool,
}
