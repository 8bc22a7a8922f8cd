//! Folder of a web server, such as the hub: files below one address, read by ranges.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use longsift_stages::model::{ModelProblem, RemoteWeights};
use reqwest::Url;

use super::slice::ModelSource;
use super::stores::Versions;
use crate::storage::http::remaining::Sink;
use crate::storage::http::{HttpClient, RemoteFile};
use crate::storage::{error, files, regular};

/// Files below an address. Files that exist in the local folder `whole` are read from there.
pub(crate) struct WebFolder {
    pub(crate) name: String,
    pub(crate) hint: &'static str,
    pub(crate) client: HttpClient,
    /// Address of the folder, with a trailing slash.
    pub(crate) base: Url,
    pub(crate) whole: Option<PathBuf>,
    opened: RefCell<BTreeMap<String, Rc<RemoteFile>>>,
    seen: RefCell<Versions>,
}

impl WebFolder {
    pub(crate) fn new(name: String, hint: &'static str, client: HttpClient, base: Url) -> Self {
        let (opened, seen) = (RefCell::default(), RefCell::default());
        Self { name, hint, client, base, whole: None, opened, seen }
    }

    pub(crate) fn url(&self, file: &str) -> Result<Url, ModelProblem> {
        let wrong = || {
            ModelProblem::checkpoint(format!(
                "`{}` contains the invalid file name `{file}`",
                self.name
            ))
        };
        self.base.join(file).map_err(|_| wrong())
    }

    /// Returns the local copy of a file.
    fn whole(&self, file: &str) -> Option<PathBuf> {
        self.whole.as_ref().map(|folder| folder.join(file)).filter(|path| path.is_file())
    }

    fn open(&self, file: &str) -> Result<Rc<RemoteFile>, ModelProblem> {
        if let Some(opened) = self.opened.borrow().get(file) {
            return Ok(Rc::clone(opened));
        }
        let opened = self.client.open(&self.url(file)?)?;
        let opened = Rc::new(opened.ok_or_else(|| self.missing_file(file))?);
        self.note(file, Some(opened.version.clone()));
        self.opened.borrow_mut().insert(file.to_owned(), Rc::clone(&opened));
        Ok(opened)
    }

    fn note(&self, file: &str, version: Option<String>) {
        self.seen.borrow_mut().insert(file.to_owned(), version);
    }
}

impl ModelSource for WebFolder {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn small(&self, file: &str, max: u64) -> Result<Option<Vec<u8>>, ModelProblem> {
        if let Some(path) = self.whole(file) {
            return files::read_limited(&path, max).map(Some).map_err(Into::into);
        }
        let small = self.client.small(&self.url(file)?, max)?;
        self.note(file, small.as_ref().map(|small| small.version.clone()));
        Ok(small.map(|small| small.bytes))
    }

    fn ranges(
        &self,
        file: &str,
        ranges: &[Range<u64>],
        sink: Sink<'_>,
    ) -> Result<(), ModelProblem> {
        match self.whole(file) {
            Some(path) => copy_ranges(&path, ranges, sink),
            None => Ok(self.client.read(&*self.open(file)?, ranges, sink)?),
        }
    }

    fn received(&self) -> u64 {
        self.client.received()
    }

    fn hint(&self) -> &'static str {
        self.hint
    }

    fn version(&self, file: &str) -> Result<Option<String>, ModelProblem> {
        Ok(self.client.status(&self.url(file)?)?.map(|file| file.version))
    }

    fn seen(&self) -> Versions {
        self.seen.borrow().clone()
    }
}

impl RemoteWeights for WebFolder {
    fn length(&self, file: &str) -> Result<u64, ModelProblem> {
        match self.whole(file) {
            Some(path) => Ok(files::size(&path)?.unwrap_or(0)),
            None => Ok(self.open(file)?.length),
        }
    }

    fn read(&self, file: &str, wanted: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        if self.whole(file).is_none() {
            let opened = self.open(file)?;
            if let Some(bytes) = opened.first.get(wanted.start as usize..wanted.end as usize) {
                return Ok(bytes.to_vec());
            }
        }
        self.read_range(file, wanted)
    }
}

/// Passes ranges of a local file to `sink`.
fn copy_ranges(path: &Path, ranges: &[Range<u64>], sink: Sink<'_>) -> Result<(), ModelProblem> {
    let file: File = regular::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(buffer.len() as u64) as usize;
            let read = file.read_exact_at(&mut buffer[..length], at);
            read.map_err(error::failed("read", path))?;
            sink(&buffer[..length])?;
            at += length as u64;
        }
    }
    Ok(())
}
