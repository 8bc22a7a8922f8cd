//! Input from object stores: the same results as from a folder, whatever the store does meanwhile.

use crate::support::{Pipeline, Workspace, demo_model, repository};

/// The demo corpus in two files, and a pipeline that reads them from `input`.
fn workspace(input: &str) -> Workspace {
    let workspace = Workspace::new();
    for name in ["a", "b"] {
        workspace.write(&format!("files/{name}.parquet"), std::fs::read(corpus()).unwrap());
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
#[test]
fn an_address_is_refused_with_what_to_build() {
    let answer = workspace("s3://bucket/in").longsift(&["plan", "pipeline.yaml"]).expect(2);
    let says = "error: `s3://bucket/in` is in an object store, and this build reads none";
    assert!(answer.stderr.starts_with(says), "{}", answer.stderr);
    assert!(answer.stderr.contains("hint: build with `--features cloud`"), "{}", answer.stderr);
    let local = workspace("files");
    let set = ["plan", "pipeline.yaml", "--set", "output.path=s3://bucket/out"];
    let answer = local.longsift(&set).expect(2);
    let says = "error: `s3://bucket/out` is in an object store, and this build has none";
    assert!(answer.stderr.starts_with(says), "{}", answer.stderr);
}

#[cfg(feature = "cloud")]
mod with_stores {
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::support::Answer;
    use crate::support::server::{Reply, Request, Server};

    /// A store that speaks as much of S3 as reading takes: one bucket, with the corpus as `in/a.parquet` and `in/b.parquet`.
    /// `change` may replace answers; the count is of answers to reading before it.
    fn store(change: impl Fn(usize, &Request, Reply) -> Reply + Send + Sync + 'static) -> Server {
        let (bytes, count) = (fs::read(corpus()).unwrap(), AtomicUsize::new(0));
        Server::new(move |request| {
            let path = request.path.split('?').next().unwrap();
            if request.path.contains("list-type=2") {
                return Reply::whole(listing(&request.path, bytes.len()).as_bytes());
            }
            if !["/bucket/in/a.parquet", "/bucket/in/b.parquet"].contains(&path) {
                return Reply::status(404);
            }
            let reply = Reply::file(&bytes, request)
                .with("ETag", "\"1\"")
                .with("Last-Modified", "Sat, 21 Nov 2026 08:00:00 GMT");
            change(count.fetch_add(1, Ordering::Relaxed), request, reply)
        })
    }

    fn listing(query: &str, size: usize) -> String {
        let names = ["in/.hidden/x.parquet", "in/a.parquet", "in/b.parquet", "in/notes.txt"];
        let wanted = query.contains("prefix=in");
        let object = |name: &&str| {
            format!(
                "<Contents><Key>{name}</Key><Size>{size}</Size><ETag>\"1\"</ETag>\
                 <LastModified>2026-11-21T08:00:00.000Z</LastModified></Contents>"
            )
        };
        let objects: String = names.iter().filter(|_| wanted).map(object).collect();
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>")
    }

    fn run(workspace: &Workspace, endpoint: &str, more: &[&str]) -> Answer {
        let mut command = workspace.command(&[&["run", "pipeline.yaml"], more].concat());
        for (name, value) in [
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", "someone"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
        ] {
            command.env(name, value);
        }
        Answer::of(command.env_remove("HTTP_PROXY").env_remove("http_proxy").output().unwrap())
    }

    fn local() -> Workspace {
        let local = workspace("files");
        local.longsift(&["run", "pipeline.yaml", "-q"]).success();
        local
    }

    #[test]
    fn a_bucket_gives_what_its_files_give_from_a_folder() {
        let (server, expected) = (store(|_, _, reply| reply), local().results());
        for input in ["s3://bucket/in", "s3://bucket/in/", "s3://bucket/in/*.parquet"] {
            let workspace = workspace(input);
            run(&workspace, &server.url(), &["-q"]).success();
            assert_eq!(workspace.results(), expected, "{input}");
            let asked = server.asked();
            let reads = asked.iter().filter(|asked| !asked.path.contains("list-type"));
            let size = fs::metadata(corpus()).unwrap().len() as usize;
            assert!(reads.clone().all(|asked| asked.range_of(size).is_some()), "only ranges");
            // Nothing is done twice.
            let again = run(&workspace, &server.url(), &["-q"]).success().summary();
            assert_eq!(again["status"], "nothing_to_do");
        }
    }

    #[test]
    fn a_store_that_is_busy_or_breaks_off_is_waited_for() {
        let server = store(|count, _, reply| match count {
            0 | 4 => Reply::status(503),
            2 | 5 => Reply { cut: Some(reply.body.len() / 2), ..reply },
            7 => Reply::status(500),
            _ => reply,
        });
        let workspace = workspace("s3://bucket/in");
        run(&workspace, &server.url(), &["-q"]).success();
        assert_eq!(workspace.results(), local().results());
    }

    #[test]
    fn one_file_of_a_web_server_is_read() {
        let server = store(|_, _, reply| reply);
        let workspace = workspace(&format!("{}/bucket/in/a.parquet", server.url()));
        run(&workspace, &server.url(), &["-q"]).success();
        let alone = super::workspace("files/a.parquet");
        alone.longsift(&["run", "pipeline.yaml", "-q"]).success();
        assert_eq!(workspace.results(), alone.results());
        let folder = super::workspace(&format!("{}/bucket/in/", server.url()));
        let answer = run(&folder, &server.url(), &[]).expect(2);
        assert!(answer.stderr.contains("web servers have no lists"), "{}", answer.stderr);
    }

    #[test]
    fn an_object_that_changes_while_it_is_read_is_refused() {
        let server = store(|_, request, reply| {
            if request.headers.contains_key("if-match") { Reply::status(412) } else { reply }
        });
        let answer = run(&workspace("s3://bucket/in"), &server.url(), &["-q"]).expect(3);
        assert!(
            answer.stderr.contains("the file changed since it was planned"),
            "{}",
            answer.stderr
        );
    }

    #[test]
    fn what_is_not_there_or_may_not_be_read_is_said() {
        let server = store(|_, _, _| Reply::status(403));
        let answer = run(&workspace("s3://bucket/in"), &server.url(), &["-q"]).expect(3);
        assert!(
            answer.stderr.contains("cannot open `s3://bucket/in/a.parquet`"),
            "{}",
            answer.stderr
        );
        let answer = run(&workspace("s3://bucket/other"), &server.url(), &["-q"]);
        assert!([2, 3].contains(&answer.code), "{}", answer.stderr);
        assert!(answer.stderr.contains("`s3://bucket/other`"), "{}", answer.stderr);
    }
}
