//! `longsift tokens`: prints the windows of a pipeline as JSON lines, exactly as they are scored. Programs that drop
//! documents are not run.

use serde_json::json;

use super::document::FinishedRun;
use crate::base::error::Result;
use crate::base::text::{self, json_safe};
use crate::dataset::documents;
use crate::plan::Plan;
use crate::run_directory::layout::RunDirectory;
use crate::score::prepare::{Preparation, prepare};

/// Calls `print` with one line of JSON per window, and one per document without windows, until it returns `false`.
/// `ids_sha256` is the digest of the scored sequence (BOS included) as little-endian 32-bit integers. `run`: run whose
/// documents must be unchanged.
pub fn print(
    plan: &Plan,
    run: Option<&RunDirectory>,
    with_ids: bool,
    mut print: impl FnMut(&str) -> Result<bool>,
) -> Result<()> {
    let mut print = |line: &serde_json::Value| print(&json_safe(&line.to_string()));
    let run = run.map(FinishedRun::read_if_present).transpose()?.flatten();
    run.as_ref().map_or(Ok(()), |run| run.check_tokenizer(plan))?;
    for unit in &plan.units {
        let rows = unit.first_row..unit.first_row + unit.rows;
        let hashes = run.as_ref().map(|run| run.content_hashes(&unit.file_path, rows));
        let hashes = hashes.transpose()?.unwrap_or_default();
        let lost = plan.lost_row_groups(unit)?;
        let bytes = plan.batch_bytes();
        for batch in documents::read_documents(&plan.dataset, unit, &plan.columns, bytes, lost)? {
            let documents = batch?;
            documents.iter().try_for_each(|document| hashes.check(&unit.file_path, document))?;
            for document in prepare(plan, &unit.file_path, documents) {
                let mut line = json!({ "input_file": unit.file_path, "input_row": document.row, "id": document.id });
                let cut = match document.outcome {
                    Preparation::Measure(cut) => Some(cut),
                    Preparation::TimedOut(failure) => return Err(failure),
                    Preparation::Drop { reason, tokens_total, .. } => {
                        line["dropped"] = json!(reason);
                        line["tokens_total"] = json!(tokens_total);
                        None
                    }
                    Preparation::Quarantine(bad) => {
                        line["quarantined"] = json!(bad.error.code);
                        line["message"] = json!(bad.error.message);
                        None
                    }
                };
                let Some(cut) = cut else {
                    if print(&line)? {
                        continue;
                    }
                    return Ok(());
                };
                for window in &cut.windows {
                    let ids = plan.bos.prepend_to(cut.ids_of(window));
                    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                    line["window"] = json!(window.index);
                    line["token_start"] = json!(window.token_start);
                    line["token_end"] = json!(window.token_end);
                    line["tokens_total"] = json!(cut.ids.len());
                    line["ids_sha256"] = json!(text::sha256_hex(&bytes));
                    if with_ids {
                        line["ids"] = json!(ids);
                    }
                    if !print(&line)? {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}
