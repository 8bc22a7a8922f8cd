//! Models of the hub, downloaded from a simulated hub on this machine.

mod datasets;

use crate::support::{Pipeline, Workspace, repository};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The demo corpus and a pipeline whose model is on the hub.
fn workspace(model: &str) -> Workspace {
    let workspace = Workspace::new();
    workspace.link("input", &repository().join("datasets/demo/corpus.parquet"));
    let pipeline = Pipeline::text(model, 256);
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

#[cfg(not(feature = "cloud"))]
mod without_network {
    use super::*;

    #[test]
    fn a_hub_model_needs_the_cloud_feature() {
        let answer = workspace(&format!("hf://demo/model@{COMMIT}"))
            .longsift(&["plan", "pipeline.yaml"])
            .expect(2);
        let says = format!(
            "error: `hf://demo/model@{COMMIT}` is not on this machine, and this build has no access"
        );
        assert!(answer.stderr.starts_with(&says), "{}", answer.stderr);
        assert!(answer.stderr.contains("--> pipeline.yaml:5:"), "{}", answer.stderr);
        assert!(answer.stderr.contains("hint: build with `--features cloud`, or fetch it with"));
    }
}

/// A command with `endpoint` as the hub, isolated from the user's configuration.
#[cfg(feature = "cloud")]
fn command(workspace: &Workspace, endpoint: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = workspace.command(arguments);
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", workspace.path("hf"));
    for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy"] {
        command.env_remove(name);
    }
    command
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
    use crate::support::{Answer, demo_model, files_below, read_json};

    /// A hub and the store that it redirects to.
    struct Hub {
        front: Server,
        store: Arc<Server>,
        /// Commit of `main`.
        main: Arc<Mutex<String>>,
    }

    impl Hub {
        /// `change` may replace the store's replies; it receives the number of earlier ones.
        fn new(change: impl Fn(usize, &Request, Reply) -> Reply + Send + Sync + 'static) -> Self {
            let count = AtomicUsize::new(0);
            let store = Server::new(move |request| {
                let name = request.path.split(['/', '?']).nth(1).unwrap();
                let Ok(bytes) = fs::read(demo_model().join(name)) else {
                    return Reply::status(404);
                };
                let reply = Reply::file(&bytes, request);
                change(count.fetch_add(1, Ordering::Relaxed), request, reply)
            });
            let store = Arc::new(store);
            let main = Arc::new(Mutex::new(COMMIT.to_owned()));
            let (storage, commit) = (store.url(), Arc::clone(&main));
            let front = Server::new(move |request| {
                let parts: Vec<&str> = request.path.split('/').collect();
                if let ["", "former", "name", ..] = parts[..] {
                    return Reply::redirect(&request.path.replace("former/name", "demo/model"));
                }
                let ["", "demo", "model", "resolve", revision, name] = parts[..] else {
                    return Reply::status(404).with_header("X-Error-Code", "RepoNotFound");
                };
                let commit = commit.lock().unwrap().clone();
                if revision != "main" && revision != commit && revision != COMMIT {
                    return Reply::status(404).with_header("X-Error-Code", "RevisionNotFound");
                }
                match fs::read(demo_model().join(name)) {
                    Err(_) => Reply::status(404).with_header("X-Error-Code", "EntryNotFound"),
                    Ok(bytes) if name != "model.safetensors" => {
                        Reply::file(&bytes, request).with_header("X-Repo-Commit", &commit)
                    }
                    Ok(_) => Reply::redirect(&format!("{storage}/{name}?signature=secret"))
                        .with_header("X-Repo-Commit", &commit),
                }
            });
            Self { front, store, main }
        }

        fn plain() -> Self {
            Self::new(|_, _, reply| reply)
        }

        fn command(&self, workspace: &Workspace, arguments: &[&str]) -> Command {
            super::command(workspace, &self.front.url(), arguments)
        }

        fn longsift(&self, workspace: &Workspace, arguments: &[&str]) -> Answer {
            Answer::from_output(self.command(workspace, arguments).output().unwrap())
        }

        /// Runs the pipeline on a few documents.
        fn run(&self, workspace: &Workspace, more: &[&str]) -> Answer {
            let run = ["run", "pipeline.yaml", "--limit", "12"];
            self.longsift(workspace, &[&run, more].concat())
        }
    }

    /// The results of the same run with the model's folder.
    fn local() -> Workspace {
        let workspace = workspace(demo_model().to_str().unwrap());
        workspace.longsift(&["run", "pipeline.yaml", "-q", "--limit", "12"]).success();
        workspace
    }

    fn pinned() -> Workspace {
        workspace(&format!("hf://demo/model@{COMMIT}"))
    }

    fn slice_record(workspace: &Workspace) -> Value {
        let files = files_below(&workspace.path("cache/longsift/hub/models--demo--model"));
        let record = files.iter().find(|file| file.ends_with("slice.json"));
        read_json(record.expect("a slice was fetched"))
    }

    #[test]
    fn a_branch_is_resolved_once_in_a_run() {
        let next = "f".repeat(40);
        let (moving, moved) = (Arc::new(Mutex::new(None::<Arc<Mutex<String>>>)), next.clone());
        let main = Arc::clone(&moving);
        // The branch advances during the download of the weights.
        let hub = Hub::new(move |_, _, reply| {
            if let Some(main) = &*main.lock().unwrap() {
                main.lock().unwrap().clone_from(&moved);
            }
            reply
        });
        *moving.lock().unwrap() = Some(Arc::clone(&hub.main));
        let workspace = workspace("hf://demo/model");
        let pipeline = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
        let tokenizer = "stage: tokenize, tokenizer: 'hf://demo/model', ";
        let pipeline = pipeline.replace("stage: tokenize, ", tokenizer);
        assert!(pipeline.contains(tokenizer), "{pipeline}");
        workspace.write("pipeline.yaml", pipeline);
        hub.run(&workspace, &[]).success();
        assert_eq!(*hub.main.lock().unwrap(), next);
        let lock = read_json(&workspace.path("out.limit-12.run/pipeline.lock"));
        assert_eq!(lock["hub_commits"]["hf://demo/model@main"], COMMIT);
    }

    #[test]
    fn only_layer_0_is_downloaded_and_scores_match_the_whole_checkpoint() {
        let (hub, workspace) = (Hub::plain(), pinned());
        let answer = hub.run(&workspace, &[]).success();
        assert_eq!(workspace.results(), local().results());
        let record = slice_record(&workspace);
        let (fetched, whole) = (
            record["fetched_bytes"].as_u64().unwrap(),
            record["checkpoint_bytes"].as_u64().unwrap(),
        );
        assert_eq!(whole, fs::metadata(demo_model().join("model.safetensors")).unwrap().len());
        assert!(fetched < whole, "{fetched} of {whole}");
        assert!(answer.stderr.contains("of 7.15 MB of `hf://demo/model@0123"), "{}", answer.stderr);
        // The store receives only range requests, and none for layer 1.
        let ranges: Vec<_> =
            hub.store.take_requests().iter().map(|asked| asked.range().unwrap()).collect();
        assert!(ranges.len() > 2 && ranges.iter().all(|(_, end)| *end < 5_700_000), "{ranges:?}");
        // Again, and without the network.
        hub.front.take_requests();
        hub.run(&workspace, &["--fresh", "--offline"]).success();
        assert!(hub.front.take_requests().is_empty() && hub.store.take_requests().is_empty());
        assert_eq!(workspace.results(), local().results());
    }

    #[test]
    fn server_faults_do_not_change_the_slice() {
        let slice = |hub: &Hub| {
            let workspace = pinned();
            hub.longsift(&workspace, &["plan", "pipeline.yaml"]).success();
            let hashes = workspace.hashes(&["cache/longsift/hub"]);
            let weights = hashes.into_iter().filter(|(name, _)| !name.ends_with("slice.json"));
            weights.collect::<Vec<_>>()
        };
        let plain = slice(&Hub::plain());
        assert!(plain.iter().any(|(name, _)| name.ends_with(".safetensors")), "{plain:?}");
        let whole = fs::read(demo_model().join("model.safetensors")).unwrap();
        let ignores_ranges = Hub::new(move |_, _, _| Reply::whole(&whole));
        assert_eq!(slice(&ignores_ranges), plain);
        let cut_off = Hub::new(|count, _, reply| match count % 2 {
            1 => Reply { cut: Some(reply.body.len() / 3), ..reply },
            _ => reply,
        });
        assert_eq!(slice(&cut_off), plain);
        let expires =
            Hub::new(|count, _, reply| if count == 1 { Reply::status(403) } else { reply });
        assert_eq!(slice(&expires), plain);
        let busy = Hub::new(|count, _, reply| match count {
            0 | 3 => Reply::status(503).with_header("Retry-After", "0"),
            _ => reply,
        });
        assert_eq!(slice(&busy), plain);
    }

    #[test]
    fn a_token_is_not_shown_to_the_store() {
        let (hub, workspace) = (Hub::plain(), pinned());
        let mut command = hub.command(&workspace, &["plan", "pipeline.yaml"]);
        Answer::from_output(command.env("HF_TOKEN", "hf_secret").output().unwrap()).success();
        let shown = |server: &Server| {
            let tokens = server
                .take_requests()
                .into_iter()
                .filter_map(|asked| asked.headers.get("authorization").cloned());
            tokens.collect::<Vec<_>>()
        };
        let hub_saw = shown(&hub.front);
        assert!(!hub_saw.is_empty() && hub_saw.iter().all(|token| token == "Bearer hf_secret"));
        assert!(shown(&hub.store).is_empty());
    }

    #[test]
    fn a_branch_is_pinned_until_a_fresh_run() {
        let (hub, workspace) = (Hub::plain(), workspace("hf://demo/model"));
        hub.run(&workspace, &["-q"]).success();
        let lock = || read_json(&workspace.path("out.limit-12.run/pipeline.lock"));
        let pin =
            |lock: &Value| lock["hub_commits"]["hf://demo/model@main"].as_str().unwrap().to_owned();
        assert_eq!(pin(&lock()), COMMIT);
        hub.longsift(&workspace, &["lock", "pipeline.yaml"]).success();
        // The branch advances.
        let next = "f".repeat(40);
        hub.main.lock().unwrap().clone_from(&next);
        let again = hub.run(&workspace, &[]).success().stderr;
        assert_eq!(pin(&lock()), COMMIT);
        assert!(again.contains(&format!("is read at commit {COMMIT}, recorded when")), "{again}");
        hub.run(&workspace, &["-q", "--fresh"]).success();
        assert_eq!(pin(&lock()), next);
        // The lock next to the pipeline pins the old commit.
        hub.run(&workspace, &["-q", "--fresh", "--locked"]).success();
        assert_eq!(pin(&lock()), COMMIT);
        // Offline, a branch has its last known commit.
        hub.run(&workspace, &["-q", "--fresh", "--offline"]).success();
        assert_eq!(pin(&lock()), next);
        // The hub's libraries have fetched another one since.
        let theirs = "e".repeat(40);
        workspace.write("hf/hub/models--demo--model/refs/main", &theirs);
        let says = hub.run(&workspace, &["--fresh", "--offline"]).success().stderr;
        assert_eq!(pin(&lock()), next);
        assert!(says.contains(&format!("write `@{theirs}` to use that")), "{says}");
    }

    #[test]
    fn a_model_is_found_under_a_former_name() {
        let (hub, workspace) = (Hub::plain(), workspace("hf://former/name"));
        hub.run(&workspace, &["-q"]).success();
        let lock = read_json(&workspace.path("out.limit-12.run/pipeline.lock"));
        assert_eq!(lock["hub_commits"]["hf://former/name@main"], COMMIT);
        assert_eq!(workspace.results(), local().results());
    }

    #[test]
    fn files_in_the_hub_cache_are_not_downloaded() {
        let (hub, workspace) = (Hub::plain(), pinned());
        let snapshot = format!("hf/hub/models--demo--model/snapshots/{COMMIT}");
        for name in ["model.safetensors", "tokenizer.json"] {
            workspace
                .write(&format!("{snapshot}/{name}"), fs::read(demo_model().join(name)).unwrap());
        }
        hub.longsift(&workspace, &["plan", "pipeline.yaml"]).success();
        assert!(hub.store.take_requests().is_empty());
        assert!(
            hub.front.take_requests().iter().all(|asked| !asked.path.ends_with("tokenizer.json"))
        );
        // With the whole model cached, nothing is copied either.
        let other = pinned();
        for name in ["model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"]
        {
            other.write(&format!("{snapshot}/{name}"), fs::read(demo_model().join(name)).unwrap());
        }
        hub.longsift(&other, &["plan", "pipeline.yaml", "--offline"]).success();
        assert!(hub.front.take_requests().is_empty());
        assert!(files_below(&other.path("cache/longsift/hub")).is_empty());
    }

    #[test]
    fn files_that_other_programs_did_not_fetch_are_downloaded() {
        let hub = Hub::plain();
        let snapshot = format!("hf/hub/models--demo--model/snapshots/{COMMIT}");
        let with = |names: &[&str]| {
            let workspace = pinned();
            for name in names {
                let bytes = fs::read(demo_model().join(name)).unwrap();
                workspace.write(&format!("{snapshot}/{name}"), bytes);
            }
            workspace
        };
        let of_model = ["model.safetensors", "config.json"];
        for names in [&of_model[..], &["model.safetensors", "config.json", "tokenizer.json"]] {
            let workspace = with(names);
            hub.run(&workspace, &["-q"]).success();
            assert_eq!(workspace.results(), local().results(), "{names:?}");
            let asked = hub.front.take_requests();
            let asked = asked.iter().filter(|asked| asked.path.ends_with("tokenizer_config.json"));
            assert_eq!(asked.count(), 1);
            assert!(hub.store.take_requests().is_empty(), "the weights are there");
        }
        // Offline, the copy is used with a warning, unless it is known that the hub has no other file.
        let workspace = with(&["model.safetensors", "config.json", "tokenizer.json"]);
        let plan = ["plan", "pipeline.yaml", "--offline"];
        let warning = "has no `tokenizer_config.json`, and it is not known whether the hub has one";
        let says = hub.longsift(&workspace, &plan).success().stderr;
        assert!(says.contains(warning), "{says}");
        let known = format!("hf/hub/models--demo--model/.no_exist/{COMMIT}/tokenizer_config.json");
        workspace.write(&known, "");
        let says = hub.longsift(&workspace, &plan).success().stderr;
        assert!(!says.contains(warning), "{says}");
        hub.longsift(&workspace, &plan[..2]).success();
        assert!(hub.front.take_requests().is_empty());
    }

    #[test]
    fn unavailable_files_are_reported_at_their_setting() {
        let hub = Hub::plain();
        let refused = |model: &str, more: &[&str]| {
            let workspace = workspace(model);
            let answer = hub.longsift(&workspace, &[&["plan", "pipeline.yaml"], more].concat());
            assert!(answer.stderr.contains("--> pipeline.yaml:5:"), "{}", answer.stderr);
            (answer.code, answer.stderr)
        };
        let (code, says) = refused("hf://nobody/model", &[]);
        assert!(code == 2 && says.contains("the server answered 404 (RepoNotFound)"), "{says}");
        let (code, says) = refused("hf://demo/model@gone", &[]);
        assert!(code == 2 && says.contains("RevisionNotFound"), "{says}");
        let (code, says) = refused("hf://demo/model", &["--offline"]);
        assert!(code == 2 && says.contains("`--offline` prevents fetching it"), "{says}");
        let (code, says) = refused("hf://demo", &[]);
        assert!(code == 2 && says.contains("it has no owner"), "{says}");
        // Nothing is downloaded if the input does not exist.
        let workspace = pinned();
        fs::remove_file(workspace.path("input")).unwrap();
        hub.front.take_requests();
        hub.longsift(&workspace, &["plan", "pipeline.yaml"]).expect(2);
        assert!(hub.front.take_requests().is_empty());
    }

    #[test]
    fn a_killed_download_restarts() {
        let (hub, workspace) = (Hub::plain(), pinned());
        workspace.write("cache/longsift/hub/models--demo--model/partial/config.json", "{");
        workspace
            .write(&format!("cache/longsift/hub/models--demo--model/{COMMIT}-0/config.json"), "{");
        hub.run(&workspace, &["-q"]).success();
        assert_eq!(workspace.results(), local().results());
        assert!(!workspace.path("cache/longsift/hub/models--demo--model/partial").exists());
    }
}
