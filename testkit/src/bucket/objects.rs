//! Objects of a bucket, and the subset of S3 requests that clients use, implemented by its reference.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::hex;
use crate::server::{Reply, Request};

/// Minimum bytes of every part of an upload but the last.
const MIN_PART_BYTES: usize = 5 << 20;

/// Reply, or the status and the code of an error.
type Answer = Result<Reply, (u16, &'static str)>;

#[derive(Clone)]
struct Object {
    bytes: Vec<u8>,
    e_tag: String,
    modified: SystemTime,
}

impl Object {
    /// Creates an object. Its tag depends on the bytes only; that of a multipart upload ends in the number of parts.
    fn new(bytes: Vec<u8>, parts: Option<usize>) -> Self {
        let digest = hex(&Sha256::digest(&bytes)[..16]);
        let parts = parts.map(|parts| format!("-{parts}")).unwrap_or_default();
        Self { bytes, e_tag: format!("\"{digest}{parts}\""), modified: SystemTime::now() }
    }
}

struct Upload {
    key: String,
    parts: BTreeMap<usize, Object>,
}

/// All objects, with the times at which they were written.
#[derive(Clone, Default)]
pub struct Snapshot(BTreeMap<String, Object>);

pub(super) struct Objects {
    by_key: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
    uploads_begun: usize,
    /// Maximum keys of a page of a list.
    pub(super) page: usize,
}

impl Default for Objects {
    fn default() -> Self {
        let (by_key, uploads) = (BTreeMap::new(), BTreeMap::new());
        Self { by_key, uploads, uploads_begun: 0, page: 1000 }
    }
}

struct ParsedRequest<'a> {
    request: &'a Request,
    key: String,
    query: BTreeMap<String, String>,
}

impl<'a> ParsedRequest<'a> {
    fn new(request: &'a Request) -> Option<Self> {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let path = path.strip_prefix("/bucket")?;
        if !(path.is_empty() || path.starts_with('/')) {
            return None;
        }
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(&value.replace('+', " ")))
        };
        let query = query.split('&').filter(|text| !text.is_empty()).map(pair).collect();
        Some(Self { request, key: decoded(path.trim_start_matches('/')), query })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.request.headers.get(name).map(String::as_str)
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.request.body).unwrap_or_default()
    }
}

impl Objects {
    pub(super) fn insert(&mut self, key: String, bytes: Vec<u8>, age: Duration) {
        let modified = SystemTime::now() - age;
        self.by_key.insert(key, Object { modified, ..Object::new(bytes, None) });
    }

    /// Replaces an object at this moment.
    pub(super) fn replace(&mut self, key: &str, bytes: Vec<u8>) {
        self.by_key.insert(key.to_owned(), Object::new(bytes, None));
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.by_key.remove(key);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot(self.by_key.clone())
    }

    pub(super) fn restore(&mut self, snapshot: &Snapshot) {
        self.by_key.clone_from(&snapshot.0);
        self.uploads.clear();
    }

    pub(super) fn all(&self) -> BTreeMap<String, Vec<u8>> {
        self.by_key.iter().map(|(key, object)| (key.clone(), object.bytes.clone())).collect()
    }

    pub(super) fn open_uploads(&self) -> Vec<String> {
        self.uploads.values().map(|upload| upload.key.clone()).collect()
    }

    pub(super) fn answer(&mut self, request: &Request) -> Reply {
        let Some(parsed) = ParsedRequest::new(request) else { return refusal(404, "NoSuchBucket") };
        let has = |name: &str| parsed.query.contains_key(name);
        let answer = match (request.method.as_str(), parsed.key.is_empty()) {
            ("GET", true) if has("list-type") => Ok(self.list(&parsed)),
            ("POST", true) if has("delete") => Ok(self.delete_many(&parsed)),
            ("GET" | "HEAD", false) => self.get(&parsed),
            ("PUT", false) if has("uploadId") => self.put_part(&parsed),
            ("PUT", false) => self.put(&parsed),
            ("POST", false) if has("uploads") => Ok(self.begin_upload(&parsed)),
            ("POST", false) if has("uploadId") => self.complete_upload(&parsed),
            ("DELETE", false) if has("uploadId") => self.abort_upload(&parsed),
            ("DELETE", false) => {
                self.by_key.remove(&parsed.key);
                Ok(Reply::status(204))
            }
            _ => Err((501, "NotImplemented")),
        };
        answer.unwrap_or_else(|(status, code)| refusal(status, code))
    }

    fn get(&self, parsed: &ParsedRequest) -> Answer {
        let object = self.by_key.get(&parsed.key).ok_or((404, "NoSuchKey"))?;
        if parsed.header("if-match").is_some_and(|tag| tag != object.e_tag) {
            return Err((412, "PreconditionFailed"));
        }
        if parsed.header("if-none-match").is_some_and(|tag| tag == object.e_tag) {
            return Ok(Reply::status(304));
        }
        let rfc3339 = humantime::format_rfc3339_seconds(object.modified).to_string();
        Ok(Reply::file(&object.bytes, parsed.request)
            .with_header("ETag", &object.e_tag)
            .with_header("Last-Modified", &http_date(&rfc3339)))
    }

    /// Returns the bytes of a request, or of the source that it copies.
    fn body(&self, parsed: &ParsedRequest) -> Result<Vec<u8>, (u16, &'static str)> {
        if let Some(source) = parsed.header("x-amz-copy-source") {
            let source = decoded(source);
            let key = source.trim_start_matches('/').strip_prefix("bucket/");
            let object = key.and_then(|key| self.by_key.get(key)).ok_or((404, "NoSuchKey"))?;
            return Ok(object.bytes.clone());
        }
        parsed.header("content-length").ok_or((411, "MissingContentLength"))?;
        Ok(parsed.request.body.clone())
    }

    /// Returns whether an object may be written under the conditions of a request.
    fn may_write(&self, parsed: &ParsedRequest) -> Result<(), (u16, &'static str)> {
        let existing = self.by_key.get(&parsed.key);
        if parsed.header("if-none-match") == Some("*") && existing.is_some() {
            return Err((412, "PreconditionFailed"));
        }
        match (parsed.header("if-match"), existing) {
            (Some(_), None) => Err((404, "NoSuchKey")),
            (Some(tag), Some(object)) if tag != object.e_tag => Err((412, "PreconditionFailed")),
            _ => Ok(()),
        }
    }

    fn put(&mut self, parsed: &ParsedRequest) -> Answer {
        self.may_write(parsed)?;
        let object = Object::new(self.body(parsed)?, None);
        let e_tag = object.e_tag.clone();
        self.by_key.insert(parsed.key.clone(), object);
        Ok(written("CopyObjectResult", parsed, &e_tag))
    }

    fn begin_upload(&mut self, parsed: &ParsedRequest) -> Reply {
        self.uploads_begun += 1;
        let id = format!("upload-{}", self.uploads_begun);
        let xml = format!(
            "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        );
        self.uploads.insert(id, Upload { key: parsed.key.clone(), parts: BTreeMap::new() });
        Reply::whole(xml.as_bytes())
    }

    fn put_part(&mut self, parsed: &ParsedRequest) -> Answer {
        let number = parsed.query.get("partNumber").and_then(|number| number.parse().ok());
        let number = number.filter(|number| (1..=10_000).contains(number));
        let number = number.ok_or((400, "InvalidArgument"))?;
        let part = Object::new(self.body(parsed)?, None);
        let e_tag = part.e_tag.clone();
        self.upload(parsed)?.parts.insert(number, part);
        Ok(written("CopyPartResult", parsed, &e_tag))
    }

    fn upload(&mut self, parsed: &ParsedRequest) -> Result<&mut Upload, (u16, &'static str)> {
        let upload = self.uploads.get_mut(&parsed.query["uploadId"]);
        upload.filter(|upload| upload.key == parsed.key).ok_or((404, "NoSuchUpload"))
    }

    fn complete_upload(&mut self, parsed: &ParsedRequest) -> Answer {
        let upload = self.upload(parsed)?;
        let numbers = elements(parsed.text(), "PartNumber");
        let tags = elements(parsed.text(), "ETag");
        let mut parts: Vec<(usize, &Object)> = Vec::new();
        for (number, tag) in numbers.iter().zip(&tags) {
            let number = number.parse().map_err(|_| (400, "MalformedXML"))?;
            let part = upload.parts.get(&number).filter(|part| part.e_tag == *tag);
            parts.push((number, part.ok_or((400, "InvalidPart"))?));
        }
        if parts.is_empty() || numbers.len() != tags.len() {
            return Err((400, "MalformedXML"));
        }
        if !parts.is_sorted_by(|(before, _), (after, _)| before < after) {
            return Err((400, "InvalidPartOrder"));
        }
        if parts[..parts.len() - 1].iter().any(|(_, part)| part.bytes.len() < MIN_PART_BYTES) {
            return Err((400, "EntityTooSmall"));
        }
        let bytes = parts.iter().flat_map(|(_, part)| part.bytes.iter().copied()).collect();
        let object = Object::new(bytes, Some(parts.len()));
        self.may_write(parsed)?;
        let xml = format!(
            "<CompleteMultipartUploadResult><ETag>{}</ETag></CompleteMultipartUploadResult>",
            escaped(&object.e_tag)
        );
        self.by_key.insert(parsed.key.clone(), object);
        self.uploads.remove(&parsed.query["uploadId"]);
        Ok(Reply::whole(xml.as_bytes()))
    }

    fn abort_upload(&mut self, parsed: &ParsedRequest) -> Answer {
        self.upload(parsed)?;
        self.uploads.remove(&parsed.query["uploadId"]);
        Ok(Reply::status(204))
    }

    fn delete_many(&mut self, parsed: &ParsedRequest) -> Reply {
        let mut deleted = String::new();
        for key in elements(parsed.text(), "Key") {
            self.by_key.remove(&key);
            let _ = write!(deleted, "<Deleted><Key>{}</Key></Deleted>", escaped(&key));
        }
        Reply::whole(format!("<DeleteResult>{deleted}</DeleteResult>").as_bytes())
    }

    /// Lists keys with a prefix, grouped by the delimiter; a token is the last name of the previous page.
    fn list(&self, parsed: &ParsedRequest) -> Reply {
        let parameter = |name: &str| parsed.query.get(name).map(String::as_str).unwrap_or_default();
        let (prefix, delimiter) = (parameter("prefix"), parameter("delimiter"));
        let (page, start) = (parameter("continuation-token"), parameter("start-after"));
        let max_keys = parameter("max-keys").parse().unwrap_or(self.page).min(self.page);
        let (mut contents, mut prefixes) = (String::new(), String::new());
        let (mut count, mut last, mut more) = (0, "", false);
        for (key, object) in &self.by_key {
            let Some(rest) = key.strip_prefix(prefix) else { continue };
            let end = rest.find(delimiter).filter(|_| !delimiter.is_empty());
            let name = end.map_or(&key[..], |end| &key[..prefix.len() + end + delimiter.len()]);
            if &key[..] <= start || name <= page || name == last {
                continue;
            }
            if count == max_keys {
                more = true;
                break;
            }
            (count, last) = (count + 1, name);
            if end.is_some() {
                let name = escaped(name);
                let xml = format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>");
                prefixes.push_str(&xml);
            } else {
                let _ = write!(
                    contents,
                    "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag>\
                     <Size>{}</Size></Contents>",
                    escaped(key),
                    humantime::format_rfc3339_seconds(object.modified),
                    escaped(&object.e_tag),
                    object.bytes.len()
                );
            }
        }
        let token = escaped(last);
        let next = format!("<NextContinuationToken>{token}</NextContinuationToken>");
        let next = if more { &next } else { "" };
        let xml = format!(
            "<ListBucketResult><KeyCount>{count}</KeyCount><IsTruncated>{more}</IsTruncated>\
             {contents}{prefixes}{next}</ListBucketResult>"
        );
        Reply::whole(xml.as_bytes())
    }
}

/// Returns the answer to a write: the tag in the head, or for a copy in a document `name`.
fn written(name: &str, parsed: &ParsedRequest, e_tag: &str) -> Reply {
    let xml = format!("<{name}><ETag>{}</ETag></{name}>", escaped(e_tag));
    let is_copy = parsed.header("x-amz-copy-source").is_some();
    Reply::whole(if is_copy { xml.as_bytes() } else { b"" }).with_header("ETag", e_tag)
}

/// Returns an error in S3's format.
pub(super) fn refusal(status: u16, code: &str) -> Reply {
    let xml = format!("<Error><Code>{code}</Code></Error>");
    Reply { status, ..Reply::whole(xml.as_bytes()) }
}

/// Formats `2026-11-21T08:00:00Z` as `21 Nov 2026 08:00:00 GMT`.
fn http_date(rfc3339: &str) -> String {
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = 3 * (rfc3339[5..7].parse::<usize>().unwrap() - 1);
    let (year, day, time) = (&rfc3339[..4], &rfc3339[8..10], &rfc3339[11..19]);
    format!("{day} {} {year} {time} GMT", &months[month..month + 3])
}

/// Decodes `%xx` in a text.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        if let (b'%', Some(byte)) = (first, byte) {
            bytes.push(byte);
            rest = &behind[2..];
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    String::from_utf8(bytes).unwrap()
}

const ENTITIES: [(&str, &str); 5] =
    [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("'", "&apos;")];

fn escaped(text: &str) -> String {
    ENTITIES.iter().fold(text.to_owned(), |text, (plain, entity)| text.replace(plain, entity))
}

/// Returns the texts of all elements of a name.
fn elements(xml: &str, name: &str) -> Vec<String> {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    let texts = xml.split(&start).skip(1).filter_map(|rest| Some(rest.split_once(&end)?.0));
    let unescaped = |text: &str| {
        // `&amp;` last, so that its replacement does not begin another entity.
        ENTITIES
            .iter()
            .rev()
            .fold(text.to_owned(), |text, (plain, entity)| text.replace(entity, plain))
    };
    texts.map(unescaped).collect()
}
