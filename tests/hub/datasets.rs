//! Data sets of the hub as input: the same results as from a folder, despite server faults.

use crate::support::{Pipeline, Workspace, demo_model, repository};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The demo corpus in two files of a folder `files/data`, and a pipeline that reads `input`.
fn workspace(input: &str) -> Workspace {
    let workspace = Workspace::new();
    for name in ["a", "b"] {
        workspace.write(&format!("files/data/{name}.parquet"), std::fs::read(corpus()).unwrap());
    }
    let mut pipeline = Pipeline::text(demo_model().to_str().unwrap(), 512);
    pipeline.input = format!("path: '{input}', text_column: text, id_column: id");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

fn corpus() -> std::path::PathBuf {
    repository().join("datasets/demo/corpus.parquet")
}

#[cfg(not(feature = "cloud"))]
mod without_network {
    use super::*;
    use crate::support::Answer;

    #[test]
    fn a_data_set_needs_the_cloud_feature_or_a_local_copy() {
        let workspace = workspace(&format!("hf://datasets/demo/corpus@{COMMIT}/data"));
        let plan = || {
            let mut command = workspace.command(&["plan", "pipeline.yaml"]);
            command.env("HF_HOME", workspace.path("hf")).env_remove("HF_HUB_CACHE");
            Answer::from_output(command.output().unwrap())
        };
        let says = plan().expect(2).stderr;
        let what = format!(
            "error: `hf://datasets/demo/corpus@{COMMIT}` is not on this machine, and this build has no access"
        );
        assert!(says.starts_with(&what), "{says}");
        let hint = "hint: build with `--features cloud`, or fetch it with `hf download demo/corpus --repo-type dataset";
        assert!(says.contains("--> pipeline.yaml:3:") && says.contains(hint), "{says}");
        let snapshot = format!("hf/hub/datasets--demo--corpus/snapshots/{COMMIT}");
        workspace.write(&format!("{snapshot}/data/a.parquet"), std::fs::read(corpus()).unwrap());
        let says = plan().success().stderr;
        assert!(says.contains("as the data set"), "{says}");
    }
}

#[cfg(feature = "cloud")]
mod with_network {
    use std::fs;
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use serde_json::Value;

    use super::*;
    use crate::support::server::{Reply, Request, Server};
    use crate::support::{Answer, files_below, read_json};

    const RUN: [&str; 5] = ["run", "pipeline.yaml", "-q", "--limit", "12"];

    /// A hub with one data set, and the store that it redirects to.
    struct Hub {
        api: Server,
        store: Arc<Server>,
        /// Commit of `main`.
        main: Arc<Mutex<String>>,
    }

    impl Hub {
        /// `change` may replace the store's replies; it receives the number of earlier ones.
        fn new(change: impl Fn(usize, &Request, Reply) -> Reply + Send + Sync + 'static) -> Self {
            let (bytes, count) = (fs::read(corpus()).unwrap(), AtomicUsize::new(0));
            let length = bytes.len();
            let store = Arc::new(Server::new(move |request| {
                let reply = Reply::file(&bytes, request);
                change(count.fetch_add(1, Ordering::Relaxed), request, reply)
            }));
            let main = Arc::new(Mutex::new(COMMIT.to_owned()));
            let (storage, commit) = (store.url(), Arc::clone(&main));
            let api = Server::new(move |request| {
                let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
                let parts: Vec<&str> = path.split('/').collect();
                let commit = commit.lock().unwrap().clone();
                let is_commit = |revision: &str| revision == commit || revision == COMMIT;
                match parts[..] {
                    ["", "api", "datasets", "former", "name", ..]
                    | ["", "datasets", "former", "name", ..] => {
                        Reply::redirect(&request.path.replace("former/name", "demo/corpus"))
                    }
                    ["", "api", "datasets", "demo", "private", ..] => {
                        Reply::status(401).with_header("X-Error-Code", "GatedRepo")
                    }
                    ["", "api", "datasets", "demo", "corpus", "revision", "main"] => Reply::whole(
                        format!(r#"{{"id": "demo/corpus", "sha": "{commit}"}}"#).as_bytes(),
                    ),
                    ["", "api", "datasets", "demo", "corpus", "tree", revision]
                        if is_commit(revision) =>
                    {
                        page(path, query, length)
                    }
                    ["", "datasets", "demo", "corpus", "resolve", revision, "data", name]
                        if is_commit(revision) =>
                    {
                        Reply::redirect(&format!("{storage}/{name}?signature=secret"))
                    }
                    ["", "api", "datasets", "demo", "corpus", ..] => {
                        Reply::status(404).with_header("X-Error-Code", "RevisionNotFound")
                    }
                    _ => Reply::status(404).with_header("X-Error-Code", "RepoNotFound"),
                }
            });
            Self { api, store, main }
        }

        fn plain() -> Self {
            Self::new(|_, _, reply| reply)
        }

        fn command(&self, workspace: &Workspace, arguments: &[&str]) -> Command {
            super::super::command(workspace, &self.api.url(), arguments)
        }

        fn longsift(&self, workspace: &Workspace, arguments: &[&str]) -> Answer {
            Answer::from_output(self.command(workspace, arguments).output().unwrap())
        }

        /// Runs the pipeline on a few documents.
        fn run(&self, workspace: &Workspace, more: &[&str]) -> Answer {
            self.longsift(workspace, &[&RUN, more].concat())
        }
    }

    /// The list of files, one file a page.
    fn page(path: &str, query: &str, length: usize) -> Reply {
        let at = query.split('&').find_map(|pair| pair.strip_prefix("cursor="));
        let at: usize = at.map_or(0, |at| at.parse().unwrap());
        let file = |name: &str, length: usize| {
            format!(r#"[{{"type": "file", "oid": "0", "size": {length}, "path": "{name}"}}]"#)
        };
        let body = match at {
            0 => r#"[{"type": "directory", "oid": "0", "size": 0, "path": "data"}]"#.to_owned(),
            1 => file("data/b.parquet", length),
            2 => file("README.md", 10),
            _ => file("data/a.parquet", length),
        };
        let reply = Reply::whole(body.as_bytes());
        if at == 3 {
            return reply;
        }
        reply.with_header(
            "Link",
            &format!("<{path}?recursive=true&cursor={}>; rel=\"next\"", at + 1),
        )
    }

    fn pinned(below: &str) -> Workspace {
        workspace(&format!("hf://datasets/demo/corpus@{COMMIT}{below}"))
    }

    /// The results of the same files in a folder.
    fn local(input: &str) -> Workspace {
        let workspace = workspace(input);
        workspace.longsift(&RUN).success();
        workspace
    }

    #[test]
    fn rows_of_all_files_are_read_by_ranges() {
        let (hub, run) = (Hub::plain(), ["run", "pipeline.yaml", "-q"]);
        let (remote, local) = (pinned("/data"), workspace("files/data"));
        hub.longsift(&remote, &run).success();
        local.longsift(&run).success();
        assert_eq!(remote.results(), local.results());
    }

    #[test]
    fn all_pages_of_a_data_set_are_read_under_a_former_name() {
        let (hub, run) = (Hub::plain(), ["run", "pipeline.yaml", "-q"]);
        let (remote, local) =
            (workspace("hf://datasets/former/name/data"), workspace("files/data"));
        hub.longsift(&remote, &run).success();
        local.longsift(&run).success();
        assert_eq!(remote.results(), local.results());
    }

    #[test]
    fn whatif_reads_a_data_set() {
        let hub = Hub::plain();
        let remote = workspace("hf://datasets/demo/corpus/data");
        hub.run(&remote, &[]).success();
        // The recorded commit is read.
        *hub.main.lock().unwrap() = "f".repeat(40);
        let setting = "stages.filter.keep_fraction=0.25";
        let whatif = ["whatif", "out.limit-12.run", "--set", setting, "--format", "json"];
        let total = |answer: Answer| {
            let found: Value = serde_json::from_str(&answer.success().stdout).unwrap();
            found["total"].clone()
        };
        let found = total(hub.longsift(&remote, &whatif));
        assert_eq!(found, total(local("files/data").longsift(&whatif)));
        assert_ne!(found["now"], found["then"]);
    }

    #[test]
    fn a_pipeline_is_made_for_a_data_set() {
        let (hub, workspace) = (Hub::plain(), pinned("/data"));
        let (input, model) = (format!("hf://datasets/demo/corpus@{COMMIT}/data"), demo_model());
        let init =
            ["init", &*input, "--tokenizer", model.to_str().unwrap(), "--output", "new.yaml"];
        hub.longsift(&workspace, &init).success();
        let pipeline = fs::read_to_string(workspace.path("new.yaml")).unwrap();
        assert!(pipeline.contains(&input), "{pipeline}");
        hub.longsift(&workspace, &["plan", "new.yaml"]).success();
    }

    #[test]
    fn a_data_set_gives_the_results_of_a_folder() {
        let hub = Hub::plain();
        let length = fs::metadata(corpus()).unwrap().len() as usize;
        for below in ["", "/data", "/data/", "/data/*.parquet", "/**/a.parquet", "/data/a.parquet"]
        {
            let workspace = pinned(below);
            let mut command = hub.command(&workspace, &RUN);
            Answer::from_output(command.env("HF_TOKEN", "hf_secret").output().unwrap()).success();
            let expected = local(&format!("files{below}")).results();
            assert_eq!(workspace.results(), expected, "{below}");
            let (asked, read) = (hub.api.take_requests(), hub.store.take_requests());
            let shown = |asked: &Request| asked.headers.get("authorization").cloned();
            assert!(asked.iter().all(|asked| shown(asked).as_deref() == Some("Bearer hf_secret")));
            assert!(read.iter().all(|read| shown(read).is_none()), "the store sees no token");
            assert!(!read.is_empty());
            assert!(read.iter().all(|read| read.range_of(length).is_some()), "only ranges");
            // A link is requested once, a list as well, and nothing is done twice.
            let links = asked.iter().filter(|asked| asked.path.starts_with("/datasets/")).count();
            assert!(links <= 2 && read.len() > links, "{links} links for {} reads", read.len());
            let again = hub.run(&workspace, &[]).success().summary();
            assert_eq!(again["status"], "nothing_to_do");
            assert!(hub.api.take_requests().iter().all(|asked| !asked.path.starts_with("/api/")));
            hub.store.take_requests();
        }
    }

    #[test]
    fn server_faults_do_not_change_results() {
        let expected = local("files/data").results();
        let same = |hub: &Hub, what: &str| {
            let workspace = pinned("/data");
            hub.run(&workspace, &[]).success();
            assert_eq!(workspace.results(), expected, "{what}");
        };
        let whole = fs::read(corpus()).unwrap();
        same(&Hub::new(move |_, _, _| Reply::whole(&whole)), "ranges are ignored");
        let cut = |count, _: &Request, reply: Reply| match count % 2 {
            1 => Reply { cut: Some(reply.body.len() / 3), ..reply },
            _ => reply,
        };
        same(&Hub::new(cut), "answers are cut off");
        let expired =
            |count, _: &Request, reply| if count == 1 { Reply::status(403) } else { reply };
        same(&Hub::new(expired), "links expire");
        let busy = |count, _: &Request, reply| match count {
            0 | 3 => Reply::status(503).with_header("Retry-After", "0"),
            _ => reply,
        };
        same(&Hub::new(busy), "servers are busy");
    }

    #[test]
    fn a_branch_is_pinned_until_a_fresh_run() {
        let (hub, workspace) = (Hub::plain(), workspace("hf://datasets/demo/corpus/data"));
        hub.run(&workspace, &[]).success();
        let lock = || read_json(&workspace.path("out.limit-12.run/pipeline.lock"));
        let pin = |lock: &Value| {
            let pin = &lock["hub_commits"]["hf://datasets/demo/corpus@main"];
            pin.as_str().unwrap().to_owned()
        };
        assert_eq!(pin(&lock()), COMMIT);
        hub.longsift(&workspace, &["lock", "pipeline.yaml"]).success();
        // The branch advances.
        let next = "f".repeat(40);
        hub.main.lock().unwrap().clone_from(&next);
        let again = hub.run(&workspace, &[]).success().summary();
        assert_eq!((pin(&lock()).as_str(), &again["status"]), (COMMIT, &"nothing_to_do".into()));
        hub.run(&workspace, &["--fresh"]).success();
        assert_eq!(pin(&lock()), next);
        // The lock next to the pipeline pins the old commit.
        hub.run(&workspace, &["--fresh", "--locked"]).success();
        assert_eq!(pin(&lock()), COMMIT);
        assert_eq!(workspace.results(), local("files/data").results());
    }

    #[test]
    fn files_of_another_commit_are_other_files() {
        let (hub, next) = (Hub::plain(), "f".repeat(40));
        hub.main.lock().unwrap().clone_from(&next);
        let workspace = pinned("/data");
        hub.run(&workspace, &[]).success();
        // Length and footer are equal.
        let pipeline = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
        workspace.write("pipeline.yaml", pipeline.replace(COMMIT, &next));
        let summary = hub.run(&workspace, &[]).success().summary();
        assert_eq!((&summary["status"], &summary["windows_reused"]), (&"done".into(), &0.into()));
    }

    #[test]
    fn files_in_the_hub_cache_are_read_in_place() {
        let hub = Hub::plain();
        let keep = |workspace: &Workspace, names: &[&str]| {
            for name in names {
                let snapshot = format!("hf/hub/datasets--demo--corpus/snapshots/{COMMIT}");
                workspace.write(&format!("{snapshot}/data/{name}"), fs::read(corpus()).unwrap());
            }
        };
        // One of two files is cached: the other is read by ranges.
        let workspace = pinned("/data");
        keep(&workspace, &["a.parquet"]);
        hub.run(&workspace, &[]).success();
        assert_eq!(workspace.results(), local("files/data").results());
        assert!(hub.store.take_requests().iter().all(|asked| asked.path.starts_with("/b.parquet")));
        // Offline the other file is missing; online the files are those of the run before.
        let says = hub.run(&workspace, &["--offline"]).expect(2).stderr;
        let what = format!(
            "b.parquet: `hf://datasets/demo/corpus@{COMMIT}/data/b.parquet` is not on this machine, and `--offline` prevents"
        );
        assert!(
            says.contains(&what) && says.contains("hint: fetch it with `hf download"),
            "{says}"
        );
        keep(&workspace, &["b.parquet"]);
        hub.api.take_requests();
        let again = hub.run(&workspace, &["--offline"]).success().summary();
        assert_eq!(again["status"], "nothing_to_do");
        hub.run(&workspace, &["--offline", "--fresh"]).success();
        assert_eq!(workspace.results(), local("files/data").results());
        assert!(hub.api.take_requests().is_empty() && hub.store.take_requests().is_empty());
        // An incomplete copy is not used.
        let cut = pinned("/data");
        keep(&cut, &["a.parquet", "b.parquet"]);
        let first =
            files_below(&cut.path("hf")).into_iter().find(|file| file.ends_with("a.parquet"));
        fs::OpenOptions::new().write(true).open(first.unwrap()).unwrap().set_len(1000).unwrap();
        hub.run(&cut, &[]).success();
        assert_eq!(cut.results(), local("files/data").results());
        // If the list was never fetched, the cached files are read, with a warning.
        let unknown = pinned("/data");
        keep(&unknown, &["a.parquet"]);
        let says = hub.longsift(&unknown, &["plan", "pipeline.yaml", "--offline"]).success().stderr;
        assert!(says.contains("using the 1 file in") && says.contains("as the data set"), "{says}");
    }

    #[test]
    fn unavailable_files_are_reported_at_their_setting() {
        let hub = Hub::plain();
        for (input, more, says) in [
            ("hf://datasets/nobody/corpus", None, "the server answered 404 (RepoNotFound)"),
            ("hf://datasets/demo/corpus@gone", None, "the server answered 404 (RevisionNotFound)"),
            ("hf://datasets/demo/private", None, "`: the server answered 401 (GatedRepo)"),
            (
                "hf://datasets/demo/private",
                None,
                "set HF_TOKEN to a token of an account with access",
            ),
            ("hf://datasets/demo/corpus", Some("--offline"), "`--offline` prevents fetching it"),
            ("hf://datasets/demo", None, "it has no owner; write `hf://datasets/owner/name@commit"),
            ("hf://demo/corpus", None, "it does not begin with `hf://datasets/`"),
            ("hf://datasets/demo/corpus/dat", None, "has no `dat`"),
            ("hf://datasets/demo/corpus/dat", None, "has: data, README.md"),
            ("hf://datasets/demo/corpus/dat/*.parquet", None, "has: data, README.md"),
            ("hf://datasets/demo/corpus/data/[", None, "is not a glob"),
        ] {
            let workspace = workspace(input);
            let arguments: Vec<&str> = ["plan", "pipeline.yaml"].into_iter().chain(more).collect();
            let answer = hub.longsift(&workspace, &arguments).expect(2);
            assert!(answer.stderr.contains("--> pipeline.yaml:3:"), "{}", answer.stderr);
            assert!(answer.stderr.contains(says), "{input}: {}", answer.stderr);
        }
        // A file that is not accessible although the list is.
        let closed = Hub::new(|_, _, _| Reply::status(418));
        let answer = closed.run(&pinned("/data"), &[]).expect(2);
        assert!(answer.stderr.contains("a.parquet: cannot read `http"), "{}", answer.stderr);
        assert!(answer.stderr.contains("the server answered 418"), "{}", answer.stderr);
    }

    #[test]
    fn an_invalid_list_is_rejected() {
        let refused = |list: fn(&Request) -> Reply| {
            let server = Server::new(list);
            let workspace = pinned("");
            let mut command = workspace.command(&["plan", "pipeline.yaml"]);
            command.env("HF_ENDPOINT", server.url()).env("HF_HOME", workspace.path("hf"));
            command.env_remove("HF_HUB_OFFLINE").env_remove("http_proxy");
            Answer::from_output(command.output().unwrap())
        };
        let leaves = |_: &Request| {
            Reply::whole(br#"[{"type": "file", "size": 1, "path": "data/../../x.parquet"}]"#)
        };
        let says = refused(leaves).expect(3).stderr;
        assert!(says.contains("has a file `data/../../x.parquet`"), "{says}");
        let endless = |request: &Request| {
            Reply::whole(b"[]").with_header("Link", &format!("<{}>; rel=\"next\"", request.path))
        };
        let says = refused(endless).expect(2).stderr;
        assert!(says.contains("does not end"), "{says}");
        // A new link for the same page.
        let repeated = |request: &Request| {
            let page = br#"[{"type": "file", "size": 1, "path": "x.parquet"}]"#;
            let next = format!("<{}0>; rel=\"next\"", request.path);
            Reply::whole(page).with_header("Link", &next)
        };
        let says = refused(repeated).expect(2).stderr;
        assert!(says.contains("does not end: it contains `x.parquet` twice"), "{says}");
        let folders = |request: &Request| {
            let page = br#"[{"type": "directory", "path": "x"}]"#;
            let next = format!("<{}0>; rel=\"next\"", request.path);
            Reply::whole(page).with_header("Link", &next)
        };
        let says = refused(folders).expect(2).stderr;
        assert!(says.contains("does not end: a page adds nothing"), "{says}");
        let without_size =
            |_: &Request| Reply::whole(br#"[{"type": "file", "path": "x.parquet"}]"#);
        let says = refused(without_size).expect(2).stderr;
        assert!(says.contains("does not state the size of `x.parquet`"), "{says}");
        // The folder's files are missing from the list.
        let flat = |_: &Request| {
            let page = br#"[{"type": "directory", "path": "data"}, {"type": "file", "size": 1, "path": "x.parquet"}]"#;
            Reply::whole(page)
        };
        let says = refused(flat).expect(2).stderr;
        assert!(says.contains("lacks those of its folder `data`"), "{says}");
        let says = refused(|_| Reply::whole(b"<html>")).expect(2).stderr;
        assert!(says.contains("not a file list"), "{says}");
    }
}
