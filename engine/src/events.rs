//! `events.jsonl`: what happened in a run directory, a JSON line each, over all runs.

use std::io::Write;

use serde_json::{Map, Value, json};

use crate::clock;
use crate::error::Result;
use crate::files;
use crate::run_directory::RunDirectory;

/// Appends an event with its facts. Events are information: a run never reads them.
pub fn append(directory: &RunDirectory, event: &str, facts: Value) -> Result<()> {
    let mut line = Map::new();
    line.insert("time".to_owned(), json!(clock::now_utc()));
    line.insert("event".to_owned(), json!(event));
    if let Value::Object(facts) = facts {
        line.extend(facts);
    }
    let path = directory.events();
    let length = files::size(&path).unwrap_or(0);
    let mut file = files::open_for_append(&path, length)?;
    writeln!(file, "{}", Value::Object(line)).map_err(files::failed("write", &path))?;
    Ok(())
}
