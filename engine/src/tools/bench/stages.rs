//! Tokenization, and the layer-zero table built and opened.

use std::path::Path;
use std::time::Instant;

use longsift_stages::model::LayerZeroTable;

use super::figures::{BenchOptions, Figure, Figures, median};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::dataset::documents::{self, Document, DocumentContent};
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::plan::options::PlanOptions;
use crate::score::prepare::prepare;

/// Text that is tokenised, in bytes.
const TEXT_BYTES: usize = 16 << 20;

pub(super) fn measure(
    pipeline: &Path,
    options: &BenchOptions,
    figures: &mut Figures<'_>,
) -> Result<()> {
    let plan = crate::plan(pipeline, &options.overrides, PlanOptions::default())?;
    tokenize(&plan, options, figures)?;
    match &plan.attention {
        Some(attention) => table(attention, options, figures),
        None => Ok(()),
    }
}

fn tokenize(plan: &Plan, options: &BenchOptions, figures: &mut Figures<'_>) -> Result<()> {
    if plan.encoder.is_none() {
        return Ok(());
    }
    let documents = documents(plan)?;
    let bytes: usize = documents.iter().map(text_bytes).sum();
    let seconds_on = |threads: usize| -> Result<f64> {
        let pool = pool(threads)?;
        median(options.repeats(), || {
            let documents = documents.clone();
            let start = Instant::now();
            pool.install(|| prepare(plan, "bench", documents));
            Ok(start.elapsed().as_secs_f64())
        })
    };
    let all = rayon::current_num_threads();
    for threads in if all > 1 { vec![1, all] } else { vec![1] } {
        let seconds = seconds_on(threads)?;
        figures.add(Figure {
            group: "tokenize",
            series: "text into windows".to_owned(),
            at: threads as f64,
            at_unit: "threads",
            value: bytes as f64 / seconds,
            unit: "bytes/s",
        });
    }
    Ok(())
}

fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("{threads} threads cannot be started: {error}"))
            .into()
    })
}

/// The first documents of the input, [`TEXT_BYTES`] of them.
fn documents(plan: &Plan) -> Result<Vec<Document>> {
    let (mut documents, mut bytes) = (Vec::new(), 0);
    for unit in &plan.units {
        for batch in documents::read_documents(
            &plan.dataset,
            unit,
            &plan.columns,
            plan.batch_bytes(),
            plan.faults(unit)?,
        )? {
            for document in batch? {
                bytes += text_bytes(&document);
                documents.push(document);
                if bytes >= TEXT_BYTES {
                    return Ok(documents);
                }
            }
        }
    }
    Ok(documents)
}

fn text_bytes(document: &Document) -> usize {
    match &document.content {
        Ok(DocumentContent::Text(text)) => text.len(),
        _ => 0,
    }
}

fn table(attention: &Attention, options: &BenchOptions, figures: &mut Figures<'_>) -> Result<()> {
    let (model, kernel) = (&attention.model, attention.kernel());
    let precision = attention.reading.precision;
    let rows = model.spec().vocabulary_size as f64;
    let mut opened = |series: &str, fresh: bool| -> Result<()> {
        let folder = super::figures::scratch()?;
        let open = |folder: &Path| {
            LayerZeroTable::open_or_build(model, kernel, precision, folder, &|_, _| {})
        };
        if !fresh {
            open(folder.path())?;
        }
        let seconds = median(options.repeats(), || {
            let own = super::figures::scratch()?;
            let start = Instant::now();
            open(if fresh { own.path() } else { folder.path() })?;
            Ok(start.elapsed().as_secs_f64())
        })?;
        figures.add(Figure {
            group: "table",
            series: series.to_owned(),
            at: rows,
            at_unit: "rows",
            value: seconds,
            unit: "s",
        });
        Ok(())
    };
    opened("built", true)?;
    opened("opened from cache", false)
}
