//! Errors and warnings about a pipeline, collected while it is planned.

use longsift_stages::contract::BrokenRule;

use crate::base::diagnostic::Diagnostic;
use crate::base::error::{Failure, Result};
use crate::spec::Spec;

pub(super) struct Findings<'s> {
    pub(super) spec: &'s Spec,
    all: Vec<Diagnostic>,
}

impl<'s> Findings<'s> {
    pub(super) fn new(spec: &'s Spec, all: Vec<Diagnostic>) -> Self {
        Self { spec, all }
    }

    pub(super) fn add(&mut self, found: impl IntoIterator<Item = Diagnostic>) {
        self.all.extend(found);
    }

    pub(super) fn error(
        &mut self,
        setting: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.all.push(self.spec.error(setting, message).hint(hint));
    }

    pub(super) fn warning(
        &mut self,
        setting: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.all.push(self.spec.warning(setting, message).hint(hint));
    }

    /// Adds a problem, located at a setting unless it has a location.
    pub(super) fn problem(&mut self, setting: &str, problem: impl Into<Diagnostic>) {
        self.all.push(problem.into().or_at(self.spec.locate(setting)));
    }

    /// Adds the errors of rules that the settings below `path` break.
    pub(super) fn broken_rules(&mut self, path: &str, rules: Vec<BrokenRule>) {
        for BrokenRule { setting, message, hint } in rules {
            self.error(&format!("{path}.{setting}"), message, hint);
        }
    }

    /// Returns the value, or adds its problems, located at a setting unless they have a location.
    pub(super) fn value<T, P: Into<Diagnostic>>(
        &mut self,
        setting: &str,
        opened: std::result::Result<T, Vec<P>>,
    ) -> Option<T> {
        match opened {
            Ok(value) => Some(value),
            Err(problems) => {
                for problem in problems {
                    self.problem(setting, problem);
                }
                None
            }
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let errors: Vec<_> = self.all.iter().filter(|found| found.is_error()).cloned().collect();
        if errors.is_empty() { Ok(()) } else { Err(Failure::Problems(errors)) }
    }

    pub(super) fn into_inner(self) -> Vec<Diagnostic> {
        self.all
    }
}
