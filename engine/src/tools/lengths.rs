//! Lengths in tokens of a sample of the input's documents, for warnings about short documents in `longsift plan` and
//! the window of `longsift init`.

use crate::base::error::Result;
use crate::dataset::documents::{Document, read_documents};
use crate::dataset::lost_row_groups::LostRowGroups;
use crate::dataset::units::WorkUnit;
use crate::plan::Plan;
use crate::plan::document_sample::DocumentSample;
use crate::plan::estimate::BYTES_PER_TOKEN;
use crate::score::prepare::{Preparation, prepare};

/// Maximum number of documents: enough to distinguish shares of 10 % and 20 %, and read in a second or two.
const MAX_DOCUMENTS: usize = 512;
/// Maximum number of work units, at equal distances: more would read more files for the same documents.
const MAX_UNITS: usize = 16;
/// Maximum bytes of documents, not counting the last one of each unit: tokenized in a second or two.
const MAX_BYTES: u64 = 16 << 20;

/// Reads and tokenizes the first documents of some work units, without programs that drop documents; skips unreadable units.
pub fn sample(plan: &Plan) -> DocumentSample {
    let (units, mut sample) = (plan.units.len(), DocumentSample::default());
    let chosen = units.min(MAX_UNITS);
    for index in 0..chosen {
        let unit = &plan.units[index * units / chosen];
        // Unused budget of earlier units is passed on to later ones.
        let max = (MAX_DOCUMENTS - sample.documents() as usize) / (chosen - index);
        let _ = add_unit(plan, unit, (max, MAX_BYTES / chosen as u64), &mut sample);
    }
    sample.rows = plan.rows();
    sample
}

/// Adds the first documents of a unit, up to `max` documents and bytes.
fn add_unit(
    plan: &Plan,
    unit: &WorkUnit,
    max: (usize, u64),
    sample: &mut DocumentSample,
) -> Result<()> {
    let (mut left, most_bytes) = max;
    let (bytes, mut read) = (plan.batch_bytes().min(most_bytes / 4), 0);
    for batch in
        read_documents(&plan.dataset, unit, &plan.columns, bytes, LostRowGroups::default())?
    {
        plan.options.stop.check()?;
        let mut documents: Vec<Document> = batch?;
        documents.truncate(left);
        left -= documents.len();
        for document in prepare(plan, &unit.file_path, documents) {
            match document.outcome {
                Preparation::Measure(cut) => {
                    let (mut covered, mut end) = (0, 0);
                    for window in &cut.windows {
                        covered += window.token_end - window.token_start.max(end);
                        end = window.token_end;
                    }
                    let tokens = cut.ids.len() as u64;
                    sample.add(tokens, covered, cut.windows.len() as u64);
                    read += BYTES_PER_TOKEN * tokens;
                }
                Preparation::Drop { tokens_total, .. } => {
                    sample.add(tokens_total, 0, 0);
                    read += BYTES_PER_TOKEN * tokens_total;
                }
                Preparation::Quarantine(bad) => sample.add_bad(bad.error.code),
                Preparation::TimedOut(_) => {}
            }
        }
        if left == 0 || read >= most_bytes {
            break;
        }
    }
    Ok(())
}
