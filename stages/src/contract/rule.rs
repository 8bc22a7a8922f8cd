//! What settings say that a schema cannot refuse.

/// A rule that the settings of a stage break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRule {
    /// The setting inside the stage: `terms.1.statistic`; empty for the stage itself.
    pub setting: String,
    /// What is wrong, with the values.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl BrokenRule {
    /// A rule that is broken by `setting`.
    pub fn new(
        setting: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { setting: setting.into(), message: message.into(), hint: hint.into() }
    }
}
