//! Command line options of a plan, and the BOS tokens of windows.

use std::collections::BTreeMap;
use std::path::PathBuf;

use longsift_stages::model::BackendName;

use super::shard::Shard;
use crate::base::stop::Stop;
use crate::run_directory::layout::RunDirectory;
use crate::storage::hub::Network;

#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    pub limit_rows: Option<u64>,
    /// Number of threads; `None` for as many as the process may use.
    pub threads: Option<usize>,
    /// Run directory named on the command line. Its recorded run continues there, even if the directory is a copy.
    pub directory: Option<RunDirectory>,
    /// Name of the kernel; `None` for the fastest one on this machine for the table's precision.
    pub kernel: Option<String>,
    /// Backend of whole models; `None` for the default one of each.
    pub backend: Option<BackendName>,
    /// Run directory with the same score settings whose scores are used.
    pub scores_from: Option<PathBuf>,
    pub shard: Option<Shard>,
    /// Whether to plan for devices that this machine does not have; the device settings are not checked.
    pub devices_absent: bool,
    /// Cache file of input footers, written by another process of the same job.
    pub footers: Option<PathBuf>,
    pub subject: Subject,
    pub network: Network,
    /// Commits of hub references from a lock, in place of those of the run directory.
    pub pins: BTreeMap<String, String>,
    /// Whether to start from scratch and ignore all results and commits of the run directory. Its results stay until a new
    /// selection is committed.
    pub fresh: bool,
    pub stop: Stop,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    #[default]
    Windows,
    /// Whole document: window length and far distance do not apply.
    Document,
    /// Whole conversation in this column, instead of the pipeline's text.
    Conversation(String),
}

/// BOS tokens before each window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bos {
    pub count: u8,
    pub id: u32,
}

impl Bos {
    pub fn prepend_to(self, tokens: &[u32]) -> Vec<u32> {
        let mut ids = vec![self.id; usize::from(self.count)];
        ids.extend_from_slice(tokens);
        ids
    }
}
