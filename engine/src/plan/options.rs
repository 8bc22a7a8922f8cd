//! What the command line adds to a pipeline, and what a model adds to windows.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::shard::Shard;
use crate::base::stop::Stop;
use crate::run_directory::layout::RunDirectory;

/// What the command line adds to a pipeline.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Only the first rows of the input.
    pub limit_rows: Option<u64>,
    /// Threads; by default as many as the process may use.
    pub threads: Option<usize>,
    /// The run directory that the command line names: what is recorded there is run there, wherever it was copied from.
    pub directory: Option<RunDirectory>,
    /// The kernel, by name; by default the fastest that this machine has for the table's precision.
    pub kernel: Option<String>,
    /// Scores of another run of the same score settings are selected from.
    pub scores_from: Option<PathBuf>,
    /// Only the work units of this shard.
    pub shard: Option<Shard>,
    /// The pipeline is planned for devices that are not here; what it says of devices is not looked for.
    pub devices_absent: bool,
    /// Footers of the input that another process of the same job has read.
    pub footers: Option<PathBuf>,
    /// What is looked at.
    pub subject: Subject,
    /// What is not on this machine is not fetched.
    pub offline: bool,
    /// Commits of the hub that a lock names; those of the run directory count otherwise.
    pub pins: BTreeMap<String, String>,
    /// Nothing that an earlier run of this directory meant counts.
    pub fresh: bool,
    /// Ends a download.
    pub stop: Stop,
}

/// What of a document is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    /// The windows that the pipeline cuts.
    #[default]
    Windows,
    /// All of it: neither the length of windows nor the far distance counts.
    Document,
    /// The same of the conversation in this column, instead of the pipeline's text.
    Conversation(String),
}

/// The BOS tokens before each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bos {
    /// How many.
    pub count: u8,
    /// Which token.
    pub id: u32,
}

impl Bos {
    /// The scored sequence of a text window.
    pub fn before(self, tokens: &[u32]) -> Vec<u32> {
        let mut ids = vec![self.id; usize::from(self.count)];
        ids.extend_from_slice(tokens);
        ids
    }
}
