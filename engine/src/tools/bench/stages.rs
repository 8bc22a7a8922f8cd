//! Benchmarks of tokenization, recurrence, and building and opening the layer-zero table.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use longsift_stages::measures::speed::{LEVEL, recurrence_speed};
use longsift_stages::model::LayerZeroTable;
use longsift_stages::tokenize::Encoder;

use super::measurements::{Measurements, median};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::dataset::documents::{self, Document, DocumentContent};
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::score::documents::JudgedDocument;
use crate::score::prepare::prepare;

const TEXT_BYTES: usize = 16 << 20;
/// Processor time for recurrence, and for each compressor, per window length.
const RECURRENCE_TIME: Duration = Duration::from_millis(500);

pub(super) fn measure(plan: &Plan, measurements: &mut Measurements<'_>) -> Result<()> {
    if let Some(encoder) = &plan.encoder {
        let documents = first_documents(plan)?;
        tokenize(plan, &documents, measurements)?;
        recurrence(encoder, &documents, measurements)?;
    }
    match &plan.attention {
        Some(attention) => table(attention, measurements),
        None => Ok(()),
    }
}

fn tokenize(
    plan: &Plan,
    documents: &[Document],
    measurements: &mut Measurements<'_>,
) -> Result<()> {
    let bytes: usize = documents.iter().map(text_bytes).sum();
    let all = rayon::current_num_threads();
    for threads in if all > 1 { vec![1, all] } else { vec![1] } {
        let pool = pool(threads)?;
        let seconds = median(measurements.options.repeats(), || {
            let documents = documents.iter().cloned().map(JudgedDocument::from).collect();
            let start = Instant::now();
            pool.install(|| prepare(plan, "bench", documents));
            Ok(start.elapsed().as_secs_f64())
        })?;
        let series = "text into windows".to_owned();
        let at = (threads as f64, "threads");
        measurements.add("tokenize", series, at, bytes as f64 / seconds, "bytes/s");
    }
    Ok(())
}

/// Measures recurrence on one core, and a compressor on the same windows for comparison. Documents are joined, so that
/// there are windows of every length.
fn recurrence(
    encoder: &Encoder,
    documents: &[Document],
    measurements: &mut Measurements<'_>,
) -> Result<()> {
    let text: String = documents.iter().filter_map(text_of).collect();
    let encoded = encoder
        .encode(&text, Encoder::MAX_PART_BYTES)
        .map_err(|problem| Diagnostic::error(Blame::Data, problem.to_string()))?;
    for &tokens in &measurements.options.windows {
        let windows: Vec<(&[u32], &[u8])> = (0..encoded.ids.len() / tokens)
            .map(|window| {
                let (start, end) = (window * tokens, (window + 1) * tokens);
                let bytes = encoded.byte_range(start, end, text.len());
                (&encoded.ids[start..end], &text.as_bytes()[bytes])
            })
            .collect();
        if windows.is_empty() {
            let what = format!("recurrence of {tokens} tokens: the input's text is shorter");
            measurements.left_out.push(what);
            continue;
        }
        let speed = recurrence_speed(&windows, RECURRENCE_TIME);
        let mut add = |series: String, value, unit| {
            measurements.add("recurrence", series, (tokens as f64, "tokens"), value, unit);
        };
        add("tokens, 1 core".to_owned(), speed.tokens, "tokens/s");
        add("their text, 1 core".to_owned(), speed.text, "bytes/s");
        add(
            "time relative to that without statistics of the whole window".to_owned(),
            speed.window_counts,
            "times",
        );
        add(format!("zlib-rs, level {LEVEL}"), speed.zlib_rs, "bytes/s");
        add("as fast as zlib-rs".to_owned(), speed.text / speed.zlib_rs, "times");
    }
    Ok(())
}

fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("cannot start {threads} threads: {error}")).into()
    })
}

/// Reads the first documents of the input, [`TEXT_BYTES`] in total.
fn first_documents(plan: &Plan) -> Result<Vec<Document>> {
    let (mut documents, mut bytes) = (Vec::new(), 0);
    read(plan, |document| {
        bytes += text_bytes(&document);
        documents.push(document);
        if bytes < TEXT_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(documents)
}

/// Returns the bytes of text in the first documents of the input, for each of the `counts`.
pub(super) fn bytes_of_first<const N: usize>(plan: &Plan, counts: [u64; N]) -> Result<[u64; N]> {
    let (mut bytes, mut read_so_far) = ([0; N], 0);
    read(plan, |document| {
        read_so_far += 1;
        for (count, bytes) in counts.into_iter().zip(&mut bytes) {
            *bytes += if read_so_far <= count { text_bytes(&document) as u64 } else { 0 };
        }
        ControlFlow::Continue(())
    })?;
    Ok(bytes)
}

fn read(plan: &Plan, mut visit: impl FnMut(Document) -> ControlFlow<()>) -> Result<()> {
    for unit in &plan.units {
        let lost = plan.lost_row_groups(unit)?;
        let bytes = plan.batch_bytes();
        let batches = documents::read_documents(&plan.dataset, unit, &plan.columns, bytes, lost)?;
        for batch in batches {
            for document in batch? {
                if visit(document).is_break() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn text_of(document: &Document) -> Option<&str> {
    match &document.content {
        Ok(DocumentContent::Text(text)) => Some(text),
        _ => None,
    }
}

fn text_bytes(document: &Document) -> usize {
    text_of(document).map_or(0, str::len)
}

fn table(attention: &Attention, measurements: &mut Measurements<'_>) -> Result<()> {
    let (model, kernel) = (&attention.model, attention.kernel());
    let precision = attention.reading.precision;
    let rows = model.spec().vocabulary_size as f64;
    let mut opened = |series: &str, fresh: bool| -> Result<()> {
        let folder = super::measurements::scratch()?;
        let open = |folder: &Path| {
            LayerZeroTable::open_or_build(model, kernel, precision, folder, &|_, _| {})
        };
        if !fresh {
            open(folder.path())?;
        }
        let seconds = median(measurements.options.repeats(), || {
            let own = super::measurements::scratch()?;
            let start = Instant::now();
            open(if fresh { own.path() } else { folder.path() })?;
            Ok(start.elapsed().as_secs_f64())
        })?;
        measurements.add("table", series.to_owned(), (rows, "rows"), seconds, "s");
        Ok(())
    };
    opened("built", true)?;
    opened("opened from cache", false)
}
