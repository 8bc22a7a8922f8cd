//! Who else is told of a run: Prometheus' textfile collector and OpenLineage. Neither fails a run.

use std::path::PathBuf;

use crate::cli::RunArguments;
use crate::plan::Plan;
use crate::report::lineage::Lineage;
use crate::report::metrics;
use crate::run::Phase;
use crate::run_directory::summary::Summary;

/// The observers of one run.
pub(super) struct Observers {
    pipeline: String,
    metrics: Option<PathBuf>,
    lineage: Option<Lineage>,
}

impl Observers {
    /// As the command line and the environment ask for them. A pipeline is named by its file, `web` for `web.yaml`,
    /// which is known even where the file cannot be read.
    pub(super) fn of(arguments: &RunArguments) -> Self {
        let file = arguments.plan.pipeline.pipeline.file_stem().unwrap_or_default();
        let pipeline = file.to_string_lossy().into_owned();
        let job = match (arguments.phase, arguments.plan.shard) {
            (Phase::All, _) => pipeline.clone(),
            (Phase::Select, _) => format!("{pipeline}.select"),
            (Phase::Score, None) => format!("{pipeline}.score"),
            (Phase::Write, None) => format!("{pipeline}.write"),
            (Phase::Write, Some(shard)) => format!("{pipeline}.write.{}", shard.index),
            (Phase::Score, Some(shard)) => format!("{pipeline}.score.{}", shard.index),
        };
        Self {
            pipeline,
            metrics: arguments.metrics_textfile.clone(),
            lineage: Lineage::from_environment(&job, arguments.run_id.as_deref()),
        }
    }

    /// The run begins.
    pub(super) fn started(&self, plan: &Plan) {
        if let Some(lineage) = &self.lineage {
            lineage.started(plan);
        }
    }

    /// The run has ended, well or not.
    pub(super) fn ended(&self, plan: Option<&Plan>, summary: &Summary) {
        if let Some(lineage) = &self.lineage {
            lineage.ended(plan, summary);
        }
        if let Some(path) = &self.metrics
            && let Err(failure) = metrics::write(path, &self.pipeline, summary)
        {
            tracing::warn!("no metrics: {failure}");
        }
    }
}
