//! Constraints on settings that a JSON schema cannot express.

/// Constraint that the settings of a stage violate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRule {
    /// Path of the setting inside the stage: `terms.1.statistic`; empty for the stage itself.
    pub setting: String,
    /// The problem, with the values.
    pub message: String,
    pub hint: String,
}

impl BrokenRule {
    pub fn new(
        setting: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { setting: setting.into(), message: message.into(), hint: hint.into() }
    }
}
