//! Input from object stores: the same results as from a folder, despite store faults.

use crate::support::tables::{read_parquet, write_parquet};
use crate::support::{Pipeline, Workspace, demo_model, repository};

/// Rows of a file: some 70 KB, more than is read together with its footer.
const DOCUMENTS: usize = 80;

/// Documents of the demo corpus in two files, and a pipeline that reads them from `input`.
fn workspace(input: &str) -> Workspace {
    let workspace = Workspace::new();
    let corpus = read_parquet(&repository().join("datasets/demo/corpus.parquet"));
    for (name, start) in [("a", 0), ("b", DOCUMENTS)] {
        let path = workspace.path(&format!("files/{name}.parquet"));
        write_parquet(&path, &corpus.slice(start, DOCUMENTS), 40);
    }
    let mut pipeline = Pipeline::text(demo_model().to_str().unwrap(), 512);
    pipeline.input = format!("path: '{input}', text_column: text, id_column: id");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

#[cfg(not(feature = "cloud"))]
#[test]
fn an_address_needs_the_cloud_feature() {
    let answer = workspace("s3://bucket/in").longsift(&["plan", "pipeline.yaml"]).expect(2);
    let says = "error: `s3://bucket/in` is in an object store, which this build does not support";
    assert!(answer.stderr.starts_with(says), "{}", answer.stderr);
    assert!(answer.stderr.contains("hint: build with `--features cloud`"), "{}", answer.stderr);
    let local = workspace("files");
    let set = ["plan", "pipeline.yaml", "--set", "output.path=s3://bucket/out"];
    let answer = local.longsift(&set).expect(2);
    let says = "error: `s3://bucket/out` is in an object store, which this build does not support";
    assert!(answer.stderr.starts_with(says), "{}", answer.stderr);
}

#[cfg(feature = "cloud")]
mod with_stores {
    use std::collections::BTreeMap;
    use std::fs;
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::support::Answer;
    use crate::support::bucket::{Bucket, Fault};

    /// A bucket with the files as `in/a.parquet` and `in/b.parquet`, and objects that are not input.
    fn bucket() -> Bucket {
        let (bucket, files) = (Bucket::new(), workspace("files"));
        for name in ["a.parquet", "b.parquet"] {
            let bytes = fs::read(files.path("files").join(name)).unwrap();
            assert!(bytes.len() > 1 << 16, "{} bytes come with the footer", bytes.len());
            bucket.put(&format!("in/{name}"), bytes);
        }
        for key in ["in/.hidden/x.parquet", "in/notes.txt", "elsewhere/in/c.parquet"] {
            bucket.put(key, "no Parquet");
        }
        bucket
    }

    fn run(workspace: &Workspace, bucket: &Bucket, more: &[&str]) -> Answer {
        let mut command = workspace.command(&[&["run", "pipeline.yaml"], more].concat());
        Answer::from_output(bucket.serve(&mut command).output().unwrap())
    }

    /// Results of the same run on a disk.
    fn local(input: &str) -> BTreeMap<String, String> {
        let local = workspace(input);
        local.longsift(&["run", "pipeline.yaml", "-q"]).success();
        local.results()
    }

    #[test]
    fn a_bucket_gives_the_results_of_a_folder() {
        let bucket = bucket();
        bucket.set_page_size(2);
        let expected = local("files");
        for input in ["s3://bucket/in", "s3://bucket/in/", "s3://bucket/in/*.parquet"] {
            let workspace = workspace(input);
            run(&workspace, &bucket, &["-q"]).success();
            assert_eq!(workspace.results(), expected, "{input}");
            let asked = bucket.take_requests();
            let lists = asked.iter().filter(|asked| asked.path.contains("list-type"));
            assert!(lists.count() >= 2, "two pages");
            // Checks for an object with the folder's name.
            let reads = asked
                .iter()
                .filter(|asked| asked.method != "HEAD" && !asked.path.contains("list-type"));
            assert!(reads.clone().all(|asked| asked.range_of(1 << 20).is_some()), "only ranges");
            // Nothing is done twice.
            let again = run(&workspace, &bucket, &["-q"]).success().summary();
            assert_eq!(again["status"], "nothing_to_do");
        }
    }

    #[test]
    fn a_table_is_found_above_its_data() {
        let bucket = bucket();
        bucket.put("in/metadata/v1.metadata.json", "{}");
        for (at, code) in [("data", 2), ("data/day=1", 2), ("data/day=1/*.parquet", 0)] {
            let bytes = fs::read(workspace("files").path("files/a.parquet")).unwrap();
            bucket.put("in/data/day=1/a.parquet", bytes);
            let answer = run(&workspace(&format!("s3://bucket/in/{at}")), &bucket, &["-q"]);
            let answer = answer.expect(code);
            assert!(
                answer.stderr.contains("`s3://bucket/in` is an Iceberg table"),
                "{at}: {}",
                answer.stderr
            );
        }
    }

    #[test]
    fn keys_that_are_no_paths_are_left_out_with_a_warning() {
        let bucket = bucket();
        for key in ["in//c.parquet", "in/d//e.parquet"] {
            bucket.put(key, "no Parquet");
        }
        let workspace = workspace("s3://bucket/in");
        let answer = run(&workspace, &bucket, &["-q"]).success();
        assert_eq!(workspace.results(), local("files"));
        let says = "left out `in//c.parquet` and 1 more: not a valid path";
        assert!(answer.stderr.contains(says), "{}", answer.stderr);
    }

    #[test]
    fn store_faults_are_retried_in_the_input() {
        let bucket = bucket();
        bucket.inject(|count, _| match count {
            0 | 4 => Some(Fault::Status(503, "SlowDown")),
            2 | 6 => Some(Fault::Cut(1000)),
            8 => Some(Fault::Status(500, "InternalError")),
            9 => Some(Fault::Reset),
            10 => Some(Fault::Slow(Duration::from_millis(300))),
            _ => None,
        });
        let workspace = workspace("s3://bucket/in");
        run(&workspace, &bucket, &["-q"]).success();
        assert!(bucket.take_requests().len() > 10, "every fault occurred");
        assert_eq!(workspace.results(), local("files"));
    }

    #[test]
    fn footers_are_requested_concurrently() {
        const FILES: usize = 24;
        let (bucket, files) = (Bucket::new(), workspace("files"));
        let bytes = fs::read(files.path("files/a.parquet")).unwrap();
        for file in 0..FILES {
            bucket.put(&format!("in/{file:02}.parquet"), bytes.clone());
        }
        // No request is answered before all have arrived.
        let (waiting, all) = (Arc::new(Mutex::new(0)), Arc::new(Condvar::new()));
        bucket.inject(move |_, request| {
            if !request.path.ends_with(".parquet") {
                return None;
            }
            let mut waiting = waiting.lock().unwrap();
            *waiting += 1;
            all.notify_all();
            let patience = Duration::from_secs(20);
            let waited = all.wait_timeout_while(waiting, patience, |waiting| *waiting < FILES);
            waited.unwrap().1.timed_out().then_some(Fault::Status(403, "TooFewAskedAtATime"))
        });
        let workspace = workspace("s3://bucket/in");
        let mut command = workspace.command(&["plan", "pipeline.yaml", "--threads", "1"]);
        Answer::from_output(bucket.serve(&mut command).output().unwrap()).success();
    }

    #[test]
    fn a_long_retry_after_is_not_waited_for() {
        let bucket = bucket();
        bucket.inject(|_, _| Some(Fault::Busy(3600)));
        let answer = run(&workspace("s3://bucket/in"), &bucket, &["-q"]).expect(4);
        assert!(answer.stderr.contains("cannot list `s3://bucket/in`"), "{}", answer.stderr);
        assert!(answer.stderr.contains("tried for 0 s"), "{}", answer.stderr);
        assert_eq!(bucket.take_requests().len(), 1);
    }

    #[test]
    fn a_file_of_a_web_server_is_read() {
        let bucket = bucket();
        let workspace = workspace(&format!("{}/bucket/in/a.parquet", bucket.url()));
        run(&workspace, &bucket, &["-q"]).success();
        assert_eq!(workspace.results(), local("files/a.parquet"));
        let folder = super::workspace(&format!("{}/bucket/in/", bucket.url()));
        let answer = run(&folder, &bucket, &[]).expect(2);
        assert!(answer.stderr.contains("HTTP servers cannot be listed"), "{}", answer.stderr);
    }

    #[test]
    fn an_object_changed_while_read_is_rejected() {
        let bucket = bucket();
        bucket.inject(|_, request| {
            let guarded = request.headers.contains_key("if-match");
            guarded.then_some(Fault::Status(412, "PreconditionFailed"))
        });
        let answer = run(&workspace("s3://bucket/in"), &bucket, &["-q"]).expect(3);
        assert!(
            answer.stderr.contains("the file changed since it was planned"),
            "{}",
            answer.stderr
        );
    }

    #[test]
    fn missing_and_forbidden_objects_are_reported() {
        let bucket = bucket();
        bucket.inject(|_, request| {
            let reads = !request.path.contains("list-type");
            reads.then_some(Fault::Status(403, "AccessDenied"))
        });
        let answer = run(&workspace("s3://bucket/in"), &bucket, &["-q"]).expect(3);
        assert!(
            answer.stderr.contains("cannot open `s3://bucket/in/a.parquet`"),
            "{}",
            answer.stderr
        );
        // A rejected list gives the same clear message, without retries.
        bucket.inject(|_, _| Some(Fault::Status(403, "SignatureDoesNotMatch")));
        let answer = run(&workspace("s3://bucket/in"), &bucket, &["-q"]).expect(2);
        let says = "403 Forbidden: SignatureDoesNotMatch";
        assert!(answer.stderr.contains(says), "{}", answer.stderr);
        assert!(answer.stderr.contains("hint: check the credentials"), "{}", answer.stderr);
        assert!(bucket.take_requests().len() < 10);
        bucket.clear_faults();
        let answer = run(&workspace("s3://nobody/in"), &bucket, &["-q"]);
        assert!([2, 3].contains(&answer.code), "{}", answer.stderr);
        assert!(answer.stderr.contains("NoSuchBucket"), "{}", answer.stderr);
        let answer = run(&workspace("s3://bucket/other"), &bucket, &["-q"]);
        assert!([2, 3].contains(&answer.code), "{}", answer.stderr);
        assert!(answer.stderr.contains("`s3://bucket/other`"), "{}", answer.stderr);
    }
}
