//! OpenLineage events of a run: START, then COMPLETE, FAIL or ABORT, with the input and output datasets.
//!
//! If `OPENLINEAGE_URL` is set, events are posted to it (`http://…`, in builds with `cloud` also `https://…`) or
//! appended to a file (`file:///…`) as JSON lines. `OPENLINEAGE_NAMESPACE`, `OPENLINEAGE_ENDPOINT`,
//! `OPENLINEAGE_API_KEY`, `OPENLINEAGE_PARENT_ID` and `OPENLINEAGE_DISABLED` have their usual meaning. An event that
//! cannot be sent is a warning: lineage never fails a run.

use longsift_stages::contract::Address;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow_schema::Schema;
use serde_json::{Value, json};

use crate::base::stop::Stop;
use crate::base::{clock, environment, text};
use crate::plan::Plan;
use crate::run_directory::layout::{RunDirectory, absolute};
use crate::run_directory::summary::Summary;
use crate::storage::{error, files};

/// Maximum response time of a collector, and after a signal.
const TIMEOUT_SECONDS: u64 = 5;
const STOPPED_TIMEOUT_SECONDS: u64 = 1;

/// Maximum size of an event, which lists the columns of input and output.
const MAX_EVENT_BYTES: u64 = 1 << 26;

const PRODUCER: &str =
    concat!("https://github.com/longsift/longsift/tree/v", env!("CARGO_PKG_VERSION"));
const SCHEMA: &str = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Transport {
    Http { url: String, key: Option<String> },
    File(PathBuf),
}

#[derive(Clone, Debug)]
pub struct Lineage {
    transport: Transport,
    namespace: String,
    job: String,
    run: String,
    parent: Option<Value>,
}

impl Lineage {
    /// Creates the emitter that the environment configures; `None` if it configures none. `job` is the pipeline's
    /// name. A collector treats runs with the same `run_id` as one run.
    pub fn from_environment(job: &str, run_id: Option<&str>) -> Option<Self> {
        Self::new(job, run_id, environment::variable)
    }

    fn new(
        job: &str,
        run_id: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        if variable("OPENLINEAGE_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        {
            return None;
        }
        let url = variable("OPENLINEAGE_URL")?;
        let key = variable("OPENLINEAGE_API_KEY");
        let usable = environment::check_address("OPENLINEAGE_URL", &url)
            .and_then(|()| environment::check_header("OPENLINEAGE_URL", &url))
            .and_then(|()| {
                environment::check_header("OPENLINEAGE_API_KEY", key.as_deref().unwrap_or_default())
            });
        if let Err(why) = usable {
            tracing::warn!("lineage is off: {why}");
            return None;
        }
        let transport = if let Some(path) = url.strip_prefix("file://") {
            Transport::File(PathBuf::from(path))
        } else if url.starts_with("http://")
            || cfg!(feature = "cloud") && url.starts_with("https://")
        {
            let endpoint = variable("OPENLINEAGE_ENDPOINT");
            let endpoint = endpoint.as_deref().unwrap_or("api/v1/lineage");
            let is_plain =
                |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '`' | '<' | '>' | '\\');
            if !endpoint.chars().all(is_plain) {
                tracing::warn!(
                    "lineage is off: OPENLINEAGE_ENDPOINT has a character that must be percent-encoded"
                );
                return None;
            }
            let url = format!("{}/{}", url.trim_end_matches('/'), endpoint.trim_start_matches('/'));
            Transport::Http { url, key }
        } else {
            tracing::warn!(
                "lineage is off: OPENLINEAGE_URL does not begin with http://, file:// or (in builds with `--features cloud`) https://"
            );
            return None;
        };
        let namespace = variable("OPENLINEAGE_NAMESPACE").unwrap_or_else(|| "default".to_owned());
        let unique = || format!("{}-{}", std::process::id(), clock::nanoseconds());
        let run = run_id.map_or_else(unique, str::to_owned);
        let parent = variable("OPENLINEAGE_PARENT_ID").and_then(|parent| parent_facet(&parent));
        Some(Self {
            transport,
            run: uuid(&format!("{namespace}\0{job}\0{run}")),
            namespace,
            job: job.to_owned(),
            parent,
        })
    }

    pub fn started(&self, plan: &Plan) {
        self.send(&self.event("START", json!({}), Some(plan), None));
    }

    /// Sends the event of an ended run; `plan` is `None` if planning failed.
    pub fn ended(&self, plan: Option<&Plan>, summary: &Summary) {
        let kind = match summary.status.as_str() {
            "failed" => "FAIL",
            "stopped" => "ABORT",
            _ => "COMPLETE",
        };
        let facets = match &summary.error {
            Some(message) => json!({ "errorMessage": facet(
                "1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
                json!({ "message": message, "programmingLanguage": "Rust" }),
            ) }),
            None => json!({}),
        };
        self.send(&self.event(kind, facets, plan, Some(summary)));
    }

    fn event(
        &self,
        kind: &str,
        mut facets: Value,
        plan: Option<&Plan>,
        summary: Option<&Summary>,
    ) -> Value {
        if let Some(parent) = &self.parent {
            facets["parent"] = parent.clone();
        }
        let (inputs, outputs) = plan.map_or((Vec::new(), Vec::new()), |plan| {
            (vec![input(plan, summary)], vec![output(plan, summary)])
        });
        json!({
            "eventType": kind,
            "eventTime": clock::now_utc(),
            "run": { "runId": self.run, "facets": facets },
            "job": {
                "namespace": self.namespace,
                "name": self.job,
                "facets": { "jobType": facet(
                    "2-0-3/JobTypeJobFacet.json#/$defs/JobTypeJobFacet",
                    json!({ "processingType": "BATCH", "integration": "LONGSIFT", "jobType": "PIPELINE" }),
                ) },
            },
            "inputs": inputs,
            "outputs": outputs,
            "producer": PRODUCER,
            "schemaURL": SCHEMA,
        })
    }

    fn send(&self, event: &Value) {
        let sent = match &self.transport {
            Transport::Http { url, key } => post(url, key.as_deref(), event),
            Transport::File(path) => append(path, event),
        };
        if let Err(why) = sent {
            tracing::warn!("cannot send lineage event {}: {why}", event["eventType"]);
        }
    }
}

fn post(url: &str, key: Option<&str>, event: &Value) -> Result<(), String> {
    let is_stopped = Stop::global().check().is_err();
    let seconds = if is_stopped { STOPPED_TIMEOUT_SECONDS } else { TIMEOUT_SECONDS };
    let timeout = Duration::from_secs(seconds);
    #[cfg(feature = "cloud")]
    let status = crate::storage::web::post(url, key, event.to_string(), timeout);
    #[cfg(not(feature = "cloud"))]
    let status = post_plain(url, key, event.to_string(), timeout);
    match status.map_err(|why| format!("`{url}`: {why}"))? {
        200..=299 => Ok(()),
        // Following a redirect would send the key to another host.
        status @ 300..=399 => Err(format!(
            "`{url}` returned {status}; redirects are not followed: set OPENLINEAGE_URL to the collector itself"
        )),
        status => Err(format!("`{url}` returned {status}")),
    }
}

/// Posts without TLS. The body of the response is not read, because it may not end.
#[cfg(not(feature = "cloud"))]
fn post_plain(
    url: &str,
    key: Option<&str>,
    body: String,
    timeout: Duration,
) -> Result<u16, String> {
    let mut request = minreq::post(url)
        .with_header("Content-Type", "application/json")
        .with_follow_redirects(false)
        .with_timeout(timeout.as_secs())
        .with_body(body);
    if let Some(key) = key {
        request = request.with_header("Authorization", format!("Bearer {key}"));
    }
    let answer = request.send_lazy().map_err(|error| error.to_string())?;
    Ok(answer.status_code)
}

fn append(path: &Path, event: &Value) -> Result<(), String> {
    if RunDirectory::result_folder(path).is_some() || !holds_events(path) {
        return Err(format!(
            "`{}` is not a file of OpenLineage events; set OPENLINEAGE_URL to a new file",
            path.display()
        ));
    }
    let mut file = files::open_to_append(path).map_err(|error| error.to_string())?;
    let written = file.write_all(format!("{event}\n").as_bytes());
    written.map_err(error::failed("write", path)).map_err(|error| error.to_string())
}

/// Whether a file is missing, empty, not regular, or begins with a line that is an event.
fn holds_events(path: &Path) -> bool {
    let Ok(status) = fs::metadata(path) else { return true };
    if !status.is_file() || status.len() == 0 {
        return !status.is_dir();
    }
    let mut first = Vec::new();
    let read = fs::File::open(path).map(|file| BufReader::new(file.take(MAX_EVENT_BYTES)));
    let read = read.and_then(|mut lines| lines.read_until(b'\n', &mut first));
    let event = read.ok().and_then(|_| serde_json::from_slice::<Value>(&first).ok());
    event.is_some_and(|event| event.get("eventTime").is_some() && event.get("producer").is_some())
}

fn input(plan: &Plan, summary: Option<&Summary>) -> Value {
    let mut dataset = dataset(&plan.dataset.root, &plan.dataset.schema);
    if summary.is_some() {
        let mut statistics = json!({ "rowCount": plan.rows() });
        // A shard reads parts of files.
        if plan.options.shard.is_none() {
            let files = &plan.dataset.files;
            statistics["size"] = json!(files.iter().map(|file| file.stamp.size).sum::<u64>());
            statistics["fileCount"] = json!(files.len());
        }
        dataset["inputFacets"] = json!({ "inputStatistics": facet(
            "1-0-0/InputStatisticsInputDatasetFacet.json#/$defs/InputStatisticsInputDatasetFacet",
            statistics,
        ) });
    }
    dataset
}

fn output(plan: &Plan, summary: Option<&Summary>) -> Value {
    let mut dataset = dataset(&plan.directory.data(), &crate::plan::columns::schema(plan));
    // A shard publishes nothing.
    if let Some(summary) = summary.filter(|summary| summary.shard.is_none()) {
        dataset["outputFacets"] = json!({ "outputStatistics": facet(
            "1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet",
            json!({ "rowCount": plan.rows_written(summary) }),
        ) });
    }
    dataset
}

fn dataset(folder: &Path, schema: &Schema) -> Value {
    let path = absolute(folder);
    let (namespace, name) = match Address::parse(&path) {
        // OpenLineage naming rules: the bucket is the namespace, the rest is the name.
        Some(address) => (address.root().to_string(), address.name().to_owned()),
        None => ("file".to_owned(), path),
    };
    let fields: Vec<Value> = schema
        .fields()
        .iter()
        .map(|field| json!({ "name": field.name(), "type": field.data_type().to_string() }))
        .collect();
    json!({
        "namespace": namespace,
        "name": name,
        "facets": { "schema": facet(
            "1-1-1/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet",
            json!({ "fields": fields }),
        ) },
    })
}

/// Adds the keys that every facet must have.
fn facet(schema: &str, mut content: Value) -> Value {
    content["_producer"] = json!(PRODUCER);
    content["_schemaURL"] = json!(format!("https://openlineage.io/spec/facets/{schema}"));
    content
}

/// Parses `namespace/job/run` as a scheduler sets it; the job's name may contain slashes.
fn parent_facet(parent: &str) -> Option<Value> {
    let (rest, run) = parent.rsplit_once('/')?;
    let (namespace, name) = rest.split_once('/')?;
    Some(facet(
        "1-0-1/ParentRunFacet.json#/$defs/ParentRunFacet",
        json!({ "run": { "runId": run }, "job": { "namespace": namespace, "name": name } }),
    ))
}

/// Returns a UUID derived from a name (RFC 9562, version 8, with SHA-256).
fn uuid(name: &str) -> String {
    let mut digits: Vec<char> = text::sha256_hex(name.as_bytes()).chars().take(32).collect();
    digits[12] = '8';
    let variant = digits[16].to_digit(16).unwrap_or(0) & 0x3 | 0x8;
    digits[16] = char::from_digit(variant, 16).unwrap_or('8');
    let group = |range: std::ops::Range<usize>| digits[range].iter().collect::<String>();
    [group(0..8), group(8..12), group(12..16), group(16..20), group(20..32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lineage(variables: &[(&str, &str)], run_id: Option<&str>) -> Option<Lineage> {
        Lineage::new("web", run_id, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn events_are_appended_only_to_files_of_events() {
        let folder = tempfile::tempdir().unwrap();
        let event = json!({ "eventTime": "now", "producer": PRODUCER });
        let path = folder.path().join("events.jsonl");
        for lines in 1..3 {
            append(&path, &event).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), lines);
        }
        for (name, content) in
            [("corpus.jsonl", "{\"text\": \"a\"}\n"), ("notes", "a\n"), ("x", "PAR1")]
        {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            let refused = append(&path, &event).unwrap_err();
            assert!(refused.contains("not a file of OpenLineage events"), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::create_dir(folder.path().join("out.run")).unwrap();
        append(&folder.path().join("out.run/new.jsonl"), &event).unwrap_err();
    }

    #[test]
    fn environment_sets_the_destination_of_events() {
        let url = ("OPENLINEAGE_URL", "http://marquez:5000/");
        let transport = |variables: &[(&str, &str)]| lineage(variables, None).map(|l| l.transport);
        let http = |url: &str, key: Option<&str>| {
            Some(Transport::Http { url: url.to_owned(), key: key.map(str::to_owned) })
        };
        assert_eq!(transport(&[]), None);
        assert_eq!(transport(&[url]), http("http://marquez:5000/api/v1/lineage", None));
        assert_eq!(
            transport(&[url, ("OPENLINEAGE_ENDPOINT", "/events"), ("OPENLINEAGE_API_KEY", "k")]),
            http("http://marquez:5000/events", Some("k"))
        );
        assert_eq!(transport(&[url, ("OPENLINEAGE_DISABLED", "True")]), None);
        for endpoint in ["a\"b?k=1", "a b?k=1", "a\\b?k=1", "\u{e9}"] {
            assert_eq!(transport(&[url, ("OPENLINEAGE_ENDPOINT", endpoint)]), None);
        }
        let over_tls = transport(&[("OPENLINEAGE_URL", "https://x")]);
        assert_eq!(
            over_tls.is_some(),
            cfg!(feature = "cloud"),
            "https requires the feature `cloud`"
        );
        assert_eq!(
            transport(&[("OPENLINEAGE_URL", "file:///var/log/lineage.jsonl")]),
            Some(Transport::File("/var/log/lineage.jsonl".into()))
        );
    }

    #[test]
    fn equal_run_ids_give_equal_uuids() {
        let url = [("OPENLINEAGE_URL", "http://x")];
        let run = |id| lineage(&url, id).unwrap().run;
        assert_eq!(run(Some("web-20261120")), run(Some("web-20261120")));
        assert_ne!(run(Some("web-20261120")), run(Some("web-20261121")));
        assert_ne!(run(None), run(None));
        let id = run(None);
        let groups: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert!(id.as_bytes()[14] == b'8' && b"89ab".contains(&id.as_bytes()[19]), "{id}");
    }

    #[test]
    fn parent_facet_names_the_schedulers_task() {
        let parent = parent_facet("airflow/dag.task/with/slash/0196-run").unwrap();
        assert_eq!(parent["run"]["runId"], "0196-run");
        assert_eq!(parent["job"], json!({ "namespace": "airflow", "name": "dag.task/with/slash" }));
        assert_eq!(parent_facet("nonsense"), None);
    }
}
