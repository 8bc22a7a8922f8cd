//! Models of object stores and web servers: a partial download scores like the whole folder.

use crate::support::{Pipeline, Workspace, repository};

/// The demo corpus and a pipeline whose model is at an address.
fn workspace(model: &str) -> Workspace {
    let workspace = Workspace::new();
    workspace.link("input", &repository().join("datasets/demo/corpus.parquet"));
    workspace.write("pipeline.yaml", Pipeline::text(&format!("'{model}'"), 256).to_string());
    workspace
}

#[cfg(not(feature = "cloud"))]
#[test]
fn a_store_model_needs_the_cloud_feature() {
    let answer = workspace("s3://bucket/demo").longsift(&["plan", "pipeline.yaml"]).expect(2);
    let says =
        "error: `s3://bucket/demo` is not on this machine, and this build has no access to stores";
    assert!(answer.stderr.starts_with(says), "{}", answer.stderr);
    assert!(answer.stderr.contains("--> pipeline.yaml:5:"), "{}", answer.stderr);
    assert!(answer.stderr.contains("hint: build with `--features cloud`"), "{}", answer.stderr);
}

#[cfg(feature = "cloud")]
mod with_stores {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::support::server::{Reply, Request, Server};
    use crate::support::{Answer, demo_model, files_below, read_json};

    const RUN: [&str; 5] = ["run", "pipeline.yaml", "-q", "--limit", "12"];

    /// A server whose folder `/bucket/demo` is the demo model or another one, as a store and as a web server.
    struct Store {
        server: Server,
        /// Entity tag of all files.
        tag: Arc<Mutex<String>>,
    }

    impl Store {
        /// `change` may replace replies; it receives the number of earlier ones.
        fn new(change: impl Fn(usize, &Request, Reply) -> Reply + Send + Sync + 'static) -> Self {
            Self::with_model(demo_model(), change)
        }

        fn with_model(
            folder: PathBuf,
            change: impl Fn(usize, &Request, Reply) -> Reply + Send + Sync + 'static,
        ) -> Self {
            let tag = Arc::new(Mutex::new("\"1\"".to_owned()));
            let (count, now) = (AtomicUsize::new(0), Arc::clone(&tag));
            let server = Server::new(move |request| {
                let path = request.path.split('?').next().unwrap();
                let name = path.strip_prefix("/bucket/demo/").unwrap_or("none");
                let tag = now.lock().unwrap().clone();
                let reply = match fs::read(folder.join(name)) {
                    Err(_) => Reply::status(404),
                    Ok(_) if request.headers.get("if-match").is_some_and(|old| *old != tag) => {
                        Reply::status(412)
                    }
                    Ok(bytes) => Reply::file(&bytes, request)
                        .with_header("ETag", &tag)
                        .with_header("Last-Modified", "Sat, 21 Nov 2026 08:00:00 GMT"),
                };
                change(count.fetch_add(1, Ordering::Relaxed), request, reply)
            });
            Self { server, tag }
        }

        fn plain() -> Self {
            Self::new(|_, _, reply| reply)
        }

        /// The model's addresses: of a bucket, and of a web server.
        fn addresses(&self) -> [String; 2] {
            ["s3://bucket/demo/".to_owned(), format!("{}/bucket/demo", self.server.url())]
        }

        fn longsift(&self, workspace: &Workspace, arguments: &[&str]) -> Answer {
            let mut command = workspace.command(arguments);
            for (name, value) in [
                ("AWS_ENDPOINT_URL", self.server.url().as_str()),
                ("AWS_ACCESS_KEY_ID", "someone"),
                ("AWS_SECRET_ACCESS_KEY", "secret"),
                ("AWS_REGION", "us-east-1"),
            ] {
                command.env(name, value);
            }
            Answer::from_output(
                command.env_remove("HTTP_PROXY").env_remove("http_proxy").output().unwrap(),
            )
        }

        fn plan(&self, workspace: &Workspace) -> Answer {
            self.longsift(workspace, &["plan", "pipeline.yaml"])
        }
    }

    fn slices(workspace: &Workspace) -> Vec<PathBuf> {
        let files = files_below(&workspace.path("cache/longsift/stores"));
        files.into_iter().filter(|file| file.ends_with("slice.json")).collect()
    }

    #[test]
    fn only_layer_0_is_downloaded_and_scores_match_the_whole_folder() {
        let local = workspace(demo_model().to_str().unwrap());
        local.longsift(&RUN).success();
        let whole = fs::metadata(demo_model().join("model.safetensors")).unwrap().len();
        for number in 0..2 {
            let store = Store::plain();
            let address = &store.addresses()[number];
            let workspace = workspace(address);
            store.longsift(&workspace, &RUN).success();
            assert_eq!(workspace.results(), local.results(), "{address}");
            let record = read_json(&slices(&workspace)[0]);
            assert_eq!(record["source"], address.trim_end_matches('/'));
            assert_eq!(record["checkpoint_bytes"], whole);
            assert!(record["fetched_bytes"].as_u64().unwrap() < whole, "{record}");
            let asked = store.server.take_requests();
            let ranges = asked.iter().filter(|asked| asked.path.ends_with("/model.safetensors"));
            let ends = ranges.map(|asked| asked.range_of(whole as usize).unwrap());
            // Bytes read when a file is opened: the first ones, or the last 64 KiB.
            let of_layer_1 = |(start, end): &(usize, usize)| {
                *end > 5_700_000 && *start < whole as usize - 65_536
            };
            assert!(!ends.into_iter().any(|range| of_layer_1(&range)), "{address}");
            // Again: the version is checked, and nothing is downloaded.
            let again = store.longsift(&workspace, &RUN).success().summary();
            assert_eq!(again["status"], "nothing_to_do");
            let asked = store.server.take_requests();
            let fetched = asked.iter().filter_map(Request::range).any(|(start, end)| {
                end.saturating_sub(start) > 1 && end != 65_536 && start != usize::MAX - 65_536
            });
            assert!(!asked.is_empty() && !fetched, "{asked:?}");
            store.longsift(&workspace, &[&RUN[..], &["--fresh", "--offline"]].concat()).success();
            assert!(store.server.take_requests().is_empty());
            assert_eq!(workspace.results(), local.results(), "{address}");
        }
    }

    /// The demo model in three files: the embedding, layer 0, and the rest.
    fn in_three_files(folder: &Path) {
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(demo_model().join(name), folder.join(name)).unwrap();
        }
        let bytes = fs::read(demo_model().join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors();
        let file_of = |name: &str| match name {
            "model.embed_tokens.weight" => 1,
            name if name.contains("layers.0.") => 2,
            _ => 3,
        };
        let name_of = |number| format!("model-0000{number}-of-00003.safetensors");
        for number in 1..=3 {
            let some = tensors.iter().filter(|(name, _)| file_of(name) == number);
            let some = some.map(|(name, tensor)| (name, tensor));
            let file = safetensors::serialize(some, None).unwrap();
            fs::write(folder.join(name_of(number)), file).unwrap();
        }
        let files: serde_json::Map<String, serde_json::Value> =
            tensors.iter().map(|(name, _)| (name.clone(), name_of(file_of(name)).into())).collect();
        let index =
            serde_json::json!({ "metadata": { "total_size": bytes.len() }, "weight_map": files });
        fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    #[test]
    fn a_whole_checkpoint_beside_an_index_and_all_small_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        in_three_files(folder.path());
        // The index is that of another checkpoint, and access to missing files is denied.
        let path = |name: &str| folder.path().join(name);
        for number in 1..=3 {
            fs::write(path(&format!("model-0000{number}-of-00003.safetensors")), "older").unwrap();
        }
        fs::copy(demo_model().join("model.safetensors"), path("model.safetensors")).unwrap();
        fs::write(path("added_tokens.json"), r#"{"<|other|>": 5}"#).unwrap();
        let local = workspace(folder.path().to_str().unwrap());
        let says = local.longsift(&RUN).success().stderr;
        assert!(says.contains("`<|other|>`"), "{says}");
        for number in 0..2 {
            let store = Store::with_model(folder.path().to_owned(), |_, _, reply| {
                if reply.status == 404 { Reply::status(403) } else { reply }
            });
            let workspace = workspace(&store.addresses()[number]);
            let says = store.longsift(&workspace, &RUN).success().stderr;
            assert!(says.contains("`<|other|>`"), "{says}");
            assert_eq!(workspace.results(), local.results());
            let again = store.longsift(&workspace, &RUN).success().summary();
            assert_eq!(again["status"], "nothing_to_do");
            // A web server that sends a page for files that do not exist.
            if number == 1 {
                let store = Store::with_model(folder.path().to_owned(), |_, _, reply| {
                    if reply.status == 404 {
                        Reply::whole(b"<!DOCTYPE html> none").with_header("ETag", "\"page\"")
                    } else {
                        reply
                    }
                });
                let other = super::workspace(&store.addresses()[number]);
                let says = store.longsift(&other, &RUN).success().stderr;
                assert!(says.contains("chat_template.jinja` is an HTML page"), "{says}");
                assert_eq!(other.results(), local.results());
            }
            // Without the right to read a file that decides scores.
            for name in ["tokenizer_config.json", "model.safetensors"] {
                let store =
                    Store::with_model(folder.path().to_owned(), move |_, request, reply| {
                        let is_denied = request.path.ends_with(&format!("/{name}"));
                        let is_index = request.path.ends_with("index.json");
                        if is_denied || is_index { Reply::status(403) } else { reply }
                    });
                let workspace = super::workspace(&store.addresses()[number]);
                let refused = store.plan(&workspace).expect(2).stderr;
                assert!(refused.contains(name) || refused.contains("index.json"), "{refused}");
            }
        }
    }

    #[test]
    fn a_tokenizer_of_a_folder_that_cannot_be_listed_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::copy(demo_model().join("tokenizer.json"), path).unwrap();
        for number in 0..2 {
            let store = Store::with_model(folder.path().to_owned(), |_, _, reply| {
                if reply.status == 404 { Reply::status(403) } else { reply }
            });
            let workspace = Workspace::new();
            workspace.link("input", &repository().join("datasets/demo/corpus.parquet"));
            let pipeline = Pipeline::text(demo_model().to_str().unwrap(), 256).to_string();
            let tokenizer =
                format!("stage: tokenize, tokenizer: '{}', ", store.addresses()[number]);
            workspace.write("pipeline.yaml", pipeline.replace("stage: tokenize, ", &tokenizer));
            let refused = store.plan(&workspace).expect(2).stderr;
            assert!(refused.contains("tokenizer_config.json"), "{refused}");
            fs::copy(
                demo_model().join("tokenizer_config.json"),
                folder.path().join("tokenizer_config.json"),
            )
            .unwrap();
            store.plan(&workspace).success();
            store.plan(&workspace).success();
            fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
        }
    }

    #[test]
    fn a_tokenizer_file_is_requested_with_the_user_of_its_address() {
        let store = Store::new(|_, request, reply| {
            let is_user =
                request.headers.get("authorization").is_some_and(|of| of.starts_with("Basic "));
            if is_user { reply } else { Reply::status(401) }
        });
        let workspace = Workspace::new();
        workspace.link("input", &repository().join("datasets/demo/corpus.parquet"));
        let pipeline = Pipeline::text(demo_model().to_str().unwrap(), 256).to_string();
        let address = store.addresses()[1].replace("http://", "http://bob:word@");
        let tokenizer = format!("stage: tokenize, tokenizer: '{address}/tokenizer.json', ");
        workspace.write("pipeline.yaml", pipeline.replace("stage: tokenize, ", &tokenizer));
        store.plan(&workspace).success();
    }

    #[test]
    fn files_without_layer_0_are_not_requested() {
        let folder = tempfile::tempdir().unwrap();
        in_three_files(folder.path());
        let local = workspace(folder.path().to_str().unwrap());
        local.longsift(&RUN).success();
        for number in 0..2 {
            let store = Store::with_model(folder.path().to_owned(), |_, _, reply| reply);
            let workspace = workspace(&store.addresses()[number]);
            store.longsift(&workspace, &RUN).success();
            assert_eq!(workspace.results(), local.results());
            let asked = store.server.take_requests();
            assert!(asked.iter().any(|asked| asked.path.contains("-00002-of-")));
            assert!(!asked.iter().any(|asked| asked.path.contains("-00003-of-")), "{asked:?}");
            let again = store.longsift(&workspace, &RUN).success().summary();
            assert_eq!(again["status"], "nothing_to_do");
            assert_eq!(slices(&workspace).len(), 1);
        }
    }

    #[test]
    fn server_faults_do_not_change_the_slice() {
        let slice = |store: &Store, number: usize| {
            let workspace = workspace(&store.addresses()[number]);
            store.plan(&workspace).success();
            let hashes = workspace.hashes(&["cache/longsift/stores"]).into_iter();
            let name = |path: String| path.rsplit('/').next().unwrap().to_owned();
            let hashes = hashes.map(|(path, hash)| (name(path), hash));
            // A store and a web server identify versions differently.
            let kept =
                |name: &str| !["slice.json", "versions.json", "model", "lock"].contains(&name);
            hashes.filter(|(name, _)| kept(name)).collect::<Vec<_>>()
        };
        let plain = slice(&Store::plain(), 1);
        assert!(plain.iter().any(|(name, _)| name.ends_with("-of-00001.safetensors")), "{plain:?}");
        let ignores_ranges = Store::new(|_, request, reply| match reply.status {
            206 => {
                let whole = demo_model().join(request.path.rsplit('/').next().unwrap());
                Reply { body: fs::read(whole).unwrap(), status: 200, ..reply }
            }
            _ => reply,
        });
        assert_eq!(slice(&ignores_ranges, 1), plain);
        for number in 0..2 {
            let cut_off = Store::new(|count, _, reply| match count % 2 {
                1 => Reply { cut: Some(reply.body.len() / 3), ..reply },
                _ => reply,
            });
            assert_eq!(slice(&cut_off, number), plain, "{number}");
            let busy = Store::new(|count, _, reply| match count {
                0 | 3 | 7 => Reply::status(503).with_header("Retry-After", "0"),
                _ => reply,
            });
            assert_eq!(slice(&busy, number), plain, "{number}");
        }
        let target = Arc::new(Store::plain());
        let redirect_target = Arc::clone(&target);
        let redirects = Store::new(move |_, request, _| {
            Reply::redirect(&format!(
                "{}{}?signature=x",
                redirect_target.server.url(),
                request.path
            ))
        });
        assert_eq!(slice(&redirects, 1), plain);
    }

    #[test]
    fn a_changed_model_is_downloaded_again() {
        for number in 0..2 {
            let store = Store::plain();
            let workspace = workspace(&store.addresses()[number]);
            store.longsift(&workspace, &RUN).success();
            store.plan(&workspace).success();
            assert_eq!(slices(&workspace).len(), 1);
            "\"2\"".clone_into(&mut store.tag.lock().unwrap());
            store.plan(&workspace).success();
            assert_eq!(slices(&workspace).len(), 2);
            // Layer 0 is unchanged, and so are the scores.
            let again = store.longsift(&workspace, &RUN).success().summary();
            assert_eq!(again["status"], "nothing_to_do");
            assert_eq!(slices(&workspace).len(), 2);
        }
    }

    #[test]
    fn damaged_and_partial_downloads_are_repeated() {
        let store = Store::plain();
        let workspace = workspace(&store.addresses()[0]);
        store.plan(&workspace).success();
        let before = workspace.hashes(&["cache/longsift/stores"]);
        let weights = files_below(&workspace.path("cache/longsift/stores"));
        let weights =
            weights.iter().find(|file| file.ends_with("model-00001-of-00001.safetensors"));
        // Also if a byte of the same length changed.
        let mut changed = fs::read(weights.unwrap()).unwrap();
        *changed.last_mut().unwrap() ^= 0x80;
        fs::write(weights.unwrap(), changed).unwrap();
        store.longsift(&workspace, &["plan", "pipeline.yaml", "--offline"]).expect(2);
        store.plan(&workspace).success();
        assert_eq!(workspace.hashes(&["cache/longsift/stores"]), before);
        fs::remove_file(weights.unwrap()).unwrap();
        let slice = slices(&workspace).remove(0);
        let partial = slice.ancestors().nth(2).unwrap().join("partial");
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join("config.json"), "{").unwrap();
        store.longsift(&workspace, &["plan", "pipeline.yaml", "--offline"]).expect(2);
        store.plan(&workspace).success();
        assert_eq!(workspace.hashes(&["cache/longsift/stores"]), before);
        assert!(!partial.exists());
    }

    #[test]
    fn a_model_changed_during_download_is_rejected() {
        for number in 0..2 {
            let tag = Arc::new(Mutex::new(None::<Arc<Mutex<String>>>));
            let shared = Arc::clone(&tag);
            let store = Store::new(move |count, _, reply| {
                if count == 7
                    && let Some(tag) = &*shared.lock().unwrap()
                {
                    "\"2\"".clone_into(&mut tag.lock().unwrap());
                }
                reply
            });
            *tag.lock().unwrap() = Some(Arc::clone(&store.tag));
            let workspace = workspace(&store.addresses()[number]);
            let says = store.plan(&workspace).expect(3).stderr;
            assert!(says.contains("changed while it was fetched"), "{says}");
            assert!(slices(&workspace).is_empty());
            store.plan(&workspace).success();
        }
    }

    #[test]
    fn a_tokenizer_can_be_in_a_store() {
        let local = workspace(demo_model().to_str().unwrap());
        local.longsift(&RUN).success();
        let store = Store::plain();
        for tokenizer in
            [store.addresses()[0].clone(), format!("{}/tokenizer.json", store.addresses()[1])]
        {
            let workspace = workspace(demo_model().to_str().unwrap());
            let pipeline = Pipeline::text(demo_model().to_str().unwrap(), 256)
                .tokenize(&format!("tokenizer: '{tokenizer}'"));
            workspace.write("pipeline.yaml", pipeline.to_string());
            store.longsift(&workspace, &RUN).success();
            assert_eq!(workspace.results(), local.results(), "{tokenizer}");
            store.server.take_requests();
            store.longsift(&workspace, &[&RUN[..], &["--fresh", "--offline"]].concat()).success();
            assert!(store.server.take_requests().is_empty());
        }
    }

    #[test]
    fn unavailable_files_are_reported_at_their_setting() {
        let (store, closed) = (Store::plain(), Store::new(|_, _, _| Reply::status(403)));
        let says = |store: &Store, model: &str, more: &[&str], says: &[&str]| {
            let workspace = workspace(model);
            let answer = store.longsift(&workspace, &[&["plan", "pipeline.yaml"], more].concat());
            let answer = answer.expect(2);
            assert!(answer.stderr.contains("--> pipeline.yaml:5:"), "{}", answer.stderr);
            for part in says {
                assert!(answer.stderr.contains(part), "{part}: {}", answer.stderr);
            }
        };
        let [bucket, web] = store.addresses();
        says(
            &store,
            "s3://bucket/none",
            &[],
            &["`s3://bucket/none` has no `config.json`", "use the folder"],
        );
        says(
            &store,
            &format!("{web}/none"),
            &[],
            &["/none` has no `config.json`", "use the folder"],
        );
        for address in [&bucket, &web] {
            says(
                &store,
                address,
                &["--offline"],
                &["is not on this machine, and `--offline` prevents"],
            );
        }
        says(
            &store,
            &format!("{web}?x=1"),
            &[],
            &["is not a folder of a web server", "without a query or a fragment"],
        );
        let [bucket, web] = closed.addresses();
        says(
            &closed,
            &bucket,
            &[],
            &["cannot open `s3://bucket/demo/config.json`", "check the credentials"],
        );
        says(
            &closed,
            &web,
            &[],
            &["demo/config.json`: the server answered 403", "presigned address"],
        );
        // Nothing is downloaded if the input does not exist.
        let workspace = workspace(&store.addresses()[0]);
        fs::remove_file(workspace.path("input")).unwrap();
        store.server.take_requests();
        store.plan(&workspace).expect(2);
        assert!(store.server.take_requests().is_empty());
    }
}
