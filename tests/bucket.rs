//! The test kit's object store, through the client that longsift uses.

use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion,
};

use crate::support::bucket::{Bucket, Fault, Snapshot};

fn client(bucket: &Bucket) -> Arc<AmazonS3> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = AmazonS3Builder::new()
        .with_endpoint(bucket.url())
        .with_allow_http(true)
        .with_bucket_name("bucket")
        .with_access_key_id("someone")
        .with_secret_access_key("secret");
    Arc::new(builder.build().unwrap())
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
}

fn text(text: &'static str) -> PutPayload {
    PutPayload::from_static(text.as_bytes())
}

#[test]
fn objects_support_conditional_writes_and_ranges() {
    let bucket = Bucket::new();
    let (client, path) = (client(&bucket), Path::from("a b/ü&<1>.txt"));
    wait(async {
        let first = client.put_opts(&path, text("0123456789"), PutMode::Create.into()).await;
        let first = UpdateVersion::from(first.unwrap());
        let second = client.put_opts(&path, text("x"), PutMode::Create.into()).await;
        assert!(matches!(second, Err(Error::AlreadyExists { .. })), "{second:?}");
        let update = || PutMode::Update(first.clone()).into();
        client.put_opts(&path, text("abcdefghij"), update()).await.unwrap();
        let stale = client.put_opts(&path, text("x"), update()).await;
        assert!(matches!(stale, Err(Error::Precondition { .. })), "{stale:?}");
        for (range, expected) in [
            (GetRange::Bounded(2..5), "cde"),
            (GetRange::Offset(7), "hij"),
            (GetRange::Suffix(2), "ij"),
            (GetRange::Suffix(100), "abcdefghij"),
        ] {
            let options = GetOptions { range: Some(range), ..GetOptions::default() };
            let got = client.get_opts(&path, options).await.unwrap().bytes().await.unwrap();
            assert_eq!(got, expected);
        }
        let options = GetOptions { if_match: first.e_tag.clone(), ..GetOptions::default() };
        let got = client.get_opts(&path, options).await;
        assert!(matches!(got, Err(Error::Precondition { .. })));
        let head = client.head(&path).await.unwrap();
        assert_eq!(head.size, 10);
        assert!(head.last_modified.timestamp() > 1_700_000_000);
        client.copy(&path, &Path::from("copy")).await.unwrap();
        client.delete(&path).await.unwrap();
        assert!(matches!(client.head(&path).await, Err(Error::NotFound { .. })));
    });
    let objects = bucket.objects();
    assert_eq!(objects.keys().collect::<Vec<_>>(), ["copy"]);
    assert_eq!(objects["copy"], b"abcdefghij");
}

#[test]
fn parts_become_an_object_when_they_are_complete() {
    let bucket = Bucket::new();
    let (client, path) = (client(&bucket), Path::from("large"));
    let part = || PutPayload::from(vec![7; 5 << 20]);
    wait(async {
        let mut upload = client.put_multipart(&path).await.unwrap();
        upload.put_part(part()).await.unwrap();
        upload.put_part(text("end")).await.unwrap();
        assert_eq!(bucket.open_uploads(), ["large"]);
        assert!(bucket.objects().is_empty());
        upload.complete().await.unwrap();
        assert_eq!(bucket.objects()["large"].len(), (5 << 20) + 3);
        let mut upload = client.put_multipart(&path).await.unwrap();
        upload.put_part(text("too small")).await.unwrap();
        upload.put_part(text("end")).await.unwrap();
        assert!(upload.complete().await.unwrap_err().to_string().contains("EntityTooSmall"));
        upload.abort().await.unwrap();
    });
    assert!(bucket.open_uploads().is_empty());
}

#[test]
fn lists_come_in_pages_and_by_folders() {
    let bucket = Bucket::new();
    bucket.set_page_size(2);
    let keys = ["a/1", "a/2", "a/b/1", "a/b/2", "a/c/1", "a&b", "z"];
    for key in keys {
        bucket.put(key, key);
    }
    let client = client(&bucket);
    wait(async {
        let names = |found: Vec<object_store::ObjectMeta>| {
            found.iter().map(|meta| meta.location.to_string()).collect::<Vec<_>>()
        };
        let all = client.list(None).try_collect().await.unwrap();
        assert_eq!(names(all), ["a&b", "a/1", "a/2", "a/b/1", "a/b/2", "a/c/1", "z"]);
        let after = client.list_with_offset(Some(&Path::from("a")), &Path::from("a/b/1"));
        assert_eq!(names(after.try_collect().await.unwrap()), ["a/b/2", "a/c/1"]);
        let folder = client.list_with_delimiter(Some(&Path::from("a"))).await.unwrap();
        assert_eq!(names(folder.objects), ["a/1", "a/2"]);
        assert_eq!(folder.common_prefixes, ["a/b", "a/c"].map(Path::from));
        let all = client.list(Some(&Path::from("a"))).map_ok(|meta| meta.location);
        let deleted = client.delete_stream(Box::pin(all)).try_collect::<Vec<_>>().await.unwrap();
        assert_eq!(deleted.len(), 5);
    });
    assert_eq!(bucket.objects().into_keys().collect::<Vec<_>>(), ["a&b", "z"]);
}

#[test]
fn each_fault_happens_once() {
    let bucket = Bucket::new();
    let (client, path) = (client(&bucket), Path::from("a"));
    for fault in [Fault::Status(503, "SlowDown"), Fault::Reset, Fault::ResetAfter] {
        let expected = fault.clone();
        bucket.inject(move |count, _| (count == 0).then(|| fault.clone()));
        wait(client.put(&path, text("1"))).unwrap();
        assert_eq!(bucket.take_requests().len(), 2, "{expected:?}");
        bucket.restore(&Snapshot::default());
        // Only the writer knows whether this request was the first.
        let fault = expected.clone();
        bucket.inject(move |count, _| (count == 0).then(|| fault.clone()));
        let created = wait(client.put_opts(&path, text("1"), PutMode::Create.into()));
        let done = bucket.objects().contains_key("a");
        match expected {
            Fault::Status(..) => assert!(created.is_ok() && done),
            Fault::Reset => assert_eq!(created.is_ok(), done),
            _ => assert!(created.is_err() && done),
        }
        bucket.clear_faults();
        bucket.take_requests();
        bucket.restore(&Snapshot::default());
    }
    bucket.put("a", "0123456789");
    bucket.inject(|count, _| (count == 0).then_some(Fault::Cut(4)));
    let cut = wait(async { client.get(&path).await.unwrap().bytes().await });
    assert!(cut.is_err() || cut.unwrap() == "0123456789");
}
