//! `longsift tokens`: the windows of a pipeline as JSON lines, to see exactly what is scored.

use std::io::Write;

use serde_json::json;

use crate::dataset;
use crate::diagnostic::json_safe;
use crate::error::Result;
use crate::execute::{Outcome, prepare};
use crate::files;
use crate::plan::Plan;

/// Prints one line per window, and one per document that has none. `ids_sha256` is over the scored sequence (BOS
/// included) as little-endian 32-bit integers.
pub fn print(plan: &Plan, with_ids: bool, out: &mut impl Write) -> Result<()> {
    for unit in &plan.units {
        let faults = plan.faults(unit)?;
        let bytes = plan.batch_bytes();
        for batch in dataset::read_documents(&plan.dataset, unit, &plan.columns, bytes, faults)? {
            for document in prepare(plan, &unit.file_path, batch?) {
                let mut line = json!({ "input_file": unit.file_path, "input_row": document.row, "id": document.id });
                let cut = match document.outcome {
                    Outcome::Measure(cut) => cut,
                    Outcome::Drop { reason, tokens_total, .. } => {
                        line["dropped"] = json!(reason);
                        line["tokens_total"] = json!(tokens_total);
                        write(out, &line);
                        continue;
                    }
                    Outcome::Quarantine(bad) => {
                        line["quarantined"] = json!(bad.code);
                        line["message"] = json!(bad.message);
                        write(out, &line);
                        continue;
                    }
                };
                for window in &cut.windows {
                    let tokens = &cut.ids[window.token_start as usize..window.token_end as usize];
                    let ids = plan.bos.before(tokens);
                    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                    line["window"] = json!(window.index);
                    line["token_start"] = json!(window.token_start);
                    line["token_end"] = json!(window.token_end);
                    line["tokens_total"] = json!(cut.ids.len());
                    line["ids_sha256"] = json!(files::sha256_hex(&bytes));
                    if with_ids {
                        line["ids"] = json!(ids);
                    }
                    write(out, &line);
                }
            }
        }
    }
    Ok(())
}

/// A reader that has gone away is no failure of ours.
fn write(out: &mut impl Write, line: &serde_json::Value) {
    let _ = writeln!(out, "{}", json_safe(&line.to_string()));
}
