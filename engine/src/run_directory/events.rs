//! `events.jsonl`: events of all runs in a run directory, one JSON object per line.
//!
//! Object stores cannot append, so there each process has its own file and rewrites it at intervals.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::layout::RunDirectory;
use super::units::Part;
use crate::base::clock;
use crate::base::error::Result;
use crate::base::parallel::lock;
use crate::storage::{atomic, error, files, regular, store};

const MAX_LINE_BYTES: u64 = 1 << 16;

/// Minimum time between two writes of the events to an object store.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// Appends an event with its facts. Runs never read events.
pub fn append(directory: &RunDirectory, event: &str, facts: Value) -> Result<()> {
    cut_torn_line(directory)?;
    append_shared(directory, event, facts)
}

/// Like [`append`], but does not truncate a partial line, which another process may be writing.
pub fn append_shared(directory: &RunDirectory, event: &str, facts: Value) -> Result<()> {
    if store::is_address(&directory.root) {
        return buffer(directory, &line(event, facts), Some(WRITE_INTERVAL));
    }
    let path = directory.events();
    let mut file = files::open_to_append(&path)?;
    // Written with one call, so that a kill rarely leaves a partial line.
    file.write_all(line(event, facts).as_bytes()).map_err(error::failed("write", &path))?;
    Ok(())
}

/// Like [`append`], for the last event of a run: in an object store, [`Finish`] writes it.
pub fn append_last(directory: &RunDirectory, event: &str, facts: Value) -> Result<()> {
    if store::is_address(&directory.root) {
        return buffer(directory, &line(event, facts), None);
    }
    append(directory, event, facts)
}

/// Events of run directories in object stores, by directory.
static BUFFERED: Mutex<BTreeMap<PathBuf, BufferedEvents>> = Mutex::new(BTreeMap::new());

struct BufferedEvents {
    path: PathBuf,
    text: String,
    written: Option<Instant>,
}

/// Adds a line, and writes all lines if the last write is at least `interval` ago.
fn buffer(directory: &RunDirectory, line: &str, interval: Option<Duration>) -> Result<()> {
    let mut kept = lock(&BUFFERED);
    let kept = kept.entry(directory.root.clone()).or_insert_with(|| {
        let host = crate::base::machine::host_name();
        let name = format!("{}-{host}-{}.jsonl", clock::now_utc(), std::process::id());
        BufferedEvents {
            path: directory.events_by_process().join(name),
            text: String::new(),
            written: None,
        }
    });
    kept.text.push_str(line);
    let is_due = |interval| kept.written.is_none_or(|at| at.elapsed() >= interval);
    if interval.is_some_and(is_due) { kept.write() } else { Ok(()) }
}

impl BufferedEvents {
    fn write(&mut self) -> Result<()> {
        atomic::write_atomic(&self.path, self.text.as_bytes())?;
        self.written = Some(Instant::now());
        Ok(())
    }
}

/// Guard that writes the buffered events when it is dropped, at the end of a run.
pub struct Finish<'a>(pub &'a RunDirectory);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let mut kept = lock(&BUFFERED);
        let written = kept.get_mut(&self.0.root).map_or(Ok(()), BufferedEvents::write);
        if let Err(failure) = written {
            tracing::warn!("cannot write the last events to `events/`: {failure}");
        }
    }
}

/// Syncs the log to disk and returns its size and digest at this time; later events are appended. `None` in an object store.
pub fn recorded(directory: &RunDirectory) -> Result<Option<Part>> {
    let path = directory.events();
    if store::is_address(&directory.root) || files::size(&path)?.is_none() {
        return Ok(None);
    }
    regular::open(&path)?.sync_all().map_err(error::failed("fsync", &path))?;
    Ok(Some(Part::without_rows("events.jsonl", files::digest(&path)?)))
}

fn line(event: &str, facts: Value) -> String {
    let mut line = Map::new();
    line.insert("time".to_owned(), json!(clock::now_utc()));
    line.insert("event".to_owned(), json!(event));
    if let Value::Object(facts) = facts {
        line.extend(facts);
    }
    format!("{}\n", Value::Object(line))
}

/// Event of a run whose result existed already, after one that failed.
pub const UP_TO_DATE: &str = "up_to_date";

/// Returns the reason of the last run, unless it is unknown or the run succeeded.
pub fn last_error(directory: &RunDirectory) -> Result<Option<String>> {
    let mut error = None;
    read(directory, |event| {
        let text = |key: &str| event.get(key).and_then(Value::as_str);
        match text("event") {
            Some("run_failed") => error = text("error").map(str::to_owned),
            Some("run_started" | "shard_started" | "selection_committed" | UP_TO_DATE) => {
                error = None;
            }
            _ => {}
        }
    })?;
    Ok(error)
}

/// Calls `each` for every event, process by process, in order. Skips lines that are not events: the last one may be partial.
pub fn read(directory: &RunDirectory, mut each: impl FnMut(&Map<String, Value>)) -> Result<()> {
    let mut line_read = |line: &[u8]| {
        if let Ok(Value::Object(event)) = serde_json::from_slice(line) {
            each(&event);
        }
    };
    if store::is_address(&directory.root) {
        for path in files::list_if_present(&directory.events_by_process())? {
            let bytes = files::read_if_present(&path)?.unwrap_or_default();
            bytes.split(|byte| *byte == b'\n').for_each(&mut line_read);
        }
        return Ok(());
    }
    let path = directory.events();
    if files::size(&path)?.is_none() {
        return Ok(());
    }
    let mut lines = BufReader::new(regular::open(&path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut lines).take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        if read.map_err(error::failed("read", &path))? == 0 {
            return Ok(());
        }
        line_read(&line);
    }
}

/// Removes the partial line that a killed run may have left. [`append`] does so itself; this is for runs that append nothing.
pub fn cut_torn_line(directory: &RunDirectory) -> Result<()> {
    if store::is_address(&directory.root) {
        return Ok(());
    }
    let path = directory.events();
    let Some(length) = files::size(&path)? else { return Ok(()) };
    let start = length.saturating_sub(MAX_LINE_BYTES);
    let mut file = regular::open(&path)?;
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(start))
        .and_then(|_| file.take(MAX_LINE_BYTES).read_to_end(&mut tail))
        .map_err(error::failed("read", &path))?;
    let end = tail.iter().rposition(|byte| *byte == b'\n');
    let whole = end.map_or(start, |end| start + end as u64 + 1);
    if length > whole {
        files::open_for_append(&path, whole)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_line_of_a_killed_run_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        files::create_folder(&directory.root).unwrap();
        append(&directory, "first", json!({ "n": 1 })).unwrap();
        let whole = std::fs::read(directory.events()).unwrap();
        for cut in 0..=whole.len() {
            let torn = [&whole[..], &whole[..cut]].concat();
            std::fs::write(directory.events(), torn).unwrap();
            if cut % 2 == 0 {
                cut_torn_line(&directory).unwrap();
            }
            append(&directory, "second", json!({})).unwrap();
            let text = std::fs::read_to_string(directory.events()).unwrap();
            let events: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(events.len(), if cut == whole.len() { 3 } else { 2 });
            assert_eq!(events.last().unwrap()["event"], "second");
            let mut read_back = 0;
            read(&directory, |_| read_back += 1).unwrap();
            assert_eq!(read_back, events.len());
        }
    }
}
