//! Remote folder of a model: files below one address of a web server, the hub or an object store, read by ranges.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use longsift_stages::contract::{HTML_PAGE, Location, Signature};
use longsift_stages::model::{ModelProblem, RemoteWeights};
use reqwest::Url;

use super::stores::{INDEX, Versions};
use crate::base::stop::Stop;
use crate::storage::error::{ErrorKind, StorageError};
use crate::storage::http::remaining::Sink;
use crate::storage::http::{FIRST_BYTES, HttpClient, RemoteFile};
use crate::storage::range_file::RangeFile;
use crate::storage::{self, files};

const PIECE_BYTES: u64 = 16 << 20;

pub(crate) enum FolderServer {
    /// The address of the folder has a trailing slash.
    Web(Rc<HttpClient>, Url),
    /// Object store, asked until the run stops.
    Bucket(Stop),
}

enum FolderFile {
    Web(Rc<HttpClient>, RemoteFile),
    /// File of an object store or of this machine.
    Ranges(RangeFile),
}

pub(crate) struct ModelSource {
    /// Address without a trailing slash, for messages and requests to object stores.
    pub(crate) name: String,
    /// How to name a folder with the required files.
    pub(crate) hint: &'static str,
    server: FolderServer,
    /// Whether it is a folder of a store or a web server, and not of the hub.
    is_store: bool,
    /// Local folder. Files that exist in it are not requested.
    local: Option<PathBuf>,
    opened: RefCell<BTreeMap<String, Rc<FolderFile>>>,
    seen: RefCell<Versions>,
    denied: RefCell<BTreeSet<String>>,
    /// Bytes received from an object store.
    received: Cell<u64>,
}

impl FolderFile {
    fn length(&self) -> u64 {
        match self {
            Self::Web(_, file) => file.length,
            Self::Ranges(file) => file.length,
        }
    }

    /// Returns the version of a file: the server's version, else its length.
    fn version(&self) -> String {
        match self {
            Self::Web(_, file) => file.version.clone(),
            Self::Ranges(file) => file.version().unwrap_or_else(|| file.length.to_string()),
        }
    }
}

impl ModelSource {
    pub(crate) fn new(
        name: String,
        hint: &'static str,
        server: FolderServer,
        is_store: bool,
        local: Option<PathBuf>,
    ) -> Self {
        let (opened, seen, denied) = Default::default();
        Self { name, hint, server, is_store, local, opened, seen, denied, received: Cell::new(0) }
    }

    fn url(&self, base: &Url, file: &str) -> Result<Url, ModelProblem> {
        let invalid = || format!("`{}` contains the invalid file name `{file}`", self.name);
        base.join(file).map_err(|_| ModelProblem::checkpoint(invalid()))
    }

    fn local(&self, file: &str) -> Option<PathBuf> {
        self.local.as_ref().map(|folder| folder.join(file)).filter(|path| path.is_file())
    }

    /// Opens the current version of a file; `None` if it does not exist.
    fn find(&self, file: &str) -> Result<Option<FolderFile>, ModelProblem> {
        let location = match (self.local(file), &self.server) {
            (Some(path), _) => Location::Path(path),
            (None, FolderServer::Web(client, base)) => {
                let opened = client.open(&self.url(base, file)?, FIRST_BYTES);
                let opened = self.noted(file, opened)?;
                return Ok(opened.map(|opened| FolderFile::Web(Rc::clone(client), opened)));
            }
            (None, FolderServer::Bucket(_)) => Location::parse(&format!("{}/{file}", self.name)),
        };
        let opened = match storage::open(&location) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        };
        Ok(self.noted(file, opened)?.map(FolderFile::Ranges))
    }

    /// Remembers a file whose access is denied.
    fn noted<T>(&self, file: &str, found: Result<T, StorageError>) -> Result<T, StorageError> {
        if found.as_ref().is_err_and(|error| error.kind == ErrorKind::Denied) {
            self.denied.borrow_mut().insert(file.to_owned());
        }
        found
    }

    /// Whether access was denied to a file without which the others are complete. It then counts as missing: stores without the
    /// right to list deny files that do not exist.
    pub(crate) fn counts_as_missing(&self, file: &str) -> bool {
        let counts = self.may_be_missing(file) && self.denied.borrow().contains(file);
        if counts {
            self.note(file, None);
        }
        counts
    }

    fn may_be_missing(&self, file: &str) -> bool {
        self.is_store && !["tokenizer.json", "tokenizer_config.json", INDEX].contains(&file)
    }

    /// Whether the content of a file that may be missing is the page that some web servers send instead of an error.
    pub(crate) fn is_page(&self, file: &str, content: &[u8]) -> bool {
        let is_html = Signature::detect(content).is_some_and(|found| found.name == HTML_PAGE);
        self.may_be_missing(file) && is_html
    }

    fn open(&self, file: &str) -> Result<Option<Rc<FolderFile>>, ModelProblem> {
        if let Some(opened) = self.opened.borrow().get(file) {
            return Ok(Some(Rc::clone(opened)));
        }
        let opened = self.find(file)?.map(Rc::new);
        self.note(file, opened.as_deref().map(FolderFile::version));
        if let Some(opened) = &opened {
            self.opened.borrow_mut().insert(file.to_owned(), Rc::clone(opened));
        }
        Ok(opened)
    }

    fn opened(&self, file: &str) -> Result<Rc<FolderFile>, ModelProblem> {
        self.open(file)?.ok_or_else(|| self.missing_file(file))
    }

    fn note(&self, file: &str, version: Option<String>) {
        self.seen.borrow_mut().insert(file.to_owned(), version);
    }

    pub(crate) fn exists(&self, file: &str) -> Result<bool, ModelProblem> {
        Ok(self.open(file)?.is_some())
    }

    /// Reads a whole file of at most `max` bytes; `None` if it does not exist.
    pub(crate) fn small(&self, file: &str, max: u64) -> Result<Option<Vec<u8>>, ModelProblem> {
        if let Some(path) = self.local(file) {
            return files::read_limited(&path, max).map(Some).map_err(Into::into);
        }
        if let FolderServer::Web(client, base) = &self.server {
            let small = client.small(&self.url(base, file)?, max);
            let small = self.noted(file, small)?;
            self.note(file, small.as_ref().map(|small| small.version.clone()));
            return Ok(small.map(|small| small.bytes));
        }
        let Some(length) = self.open(file)?.map(|opened| opened.length()) else { return Ok(None) };
        if length > max {
            let message = format!("`{}/{file}` has {length} bytes, more than {max}", self.name);
            return Err(ModelProblem::checkpoint(message));
        }
        self.read(file, 0..length).map(Some)
    }

    /// Passes ranges of a file to `sink`, in order.
    pub(crate) fn ranges(
        &self,
        file: &str,
        ranges: &[Range<u64>],
        sink: Sink<'_>,
    ) -> Result<(), ModelProblem> {
        let opened = self.opened(file)?;
        let opened = match &*opened {
            FolderFile::Web(client, file) => return Ok(client.read(file, ranges, sink)?),
            FolderFile::Ranges(file) => file,
        };
        for range in ranges {
            for start in range.clone().step_by(PIECE_BYTES as usize) {
                if let FolderServer::Bucket(stop) = &self.server
                    && stop.check().is_err()
                {
                    let message = "stopped by a signal; run the same command to resume";
                    return Err(ModelProblem::machine(message));
                }
                let piece = opened.range(start..(start + PIECE_BYTES).min(range.end))?;
                self.received.set(self.received.get() + piece.len() as u64);
                sink(&piece)?;
            }
        }
        Ok(())
    }

    pub(crate) fn received(&self) -> u64 {
        match &self.server {
            FolderServer::Web(client, _) => client.received(),
            FolderServer::Bucket(_) => self.received.get(),
        }
    }

    pub(crate) fn version(&self, file: &str) -> Result<Option<String>, ModelProblem> {
        match &self.server {
            FolderServer::Web(client, base) => {
                let opened = client.open(&self.url(base, file)?, 1);
                Ok(self.noted(file, opened)?.map(|file| file.version))
            }
            FolderServer::Bucket(_) => Ok(self.find(file)?.as_ref().map(FolderFile::version)),
        }
    }

    /// Returns the first seen version of each requested file.
    pub(crate) fn seen(&self) -> Versions {
        self.seen.borrow().clone()
    }

    pub(crate) fn missing_file(&self, file: &str) -> ModelProblem {
        let hint = match file {
            "model.safetensors" => {
                "remote models must have safetensors files; download other models and use their folder"
            }
            _ => self.hint,
        };
        ModelProblem::settings(format!("`{}` has no `{file}`", self.name)).with_hint(hint)
    }
}

impl RemoteWeights for ModelSource {
    fn length(&self, file: &str) -> Result<u64, ModelProblem> {
        Ok(self.opened(file)?.length())
    }

    fn read(&self, file: &str, wanted: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        if let FolderFile::Web(_, opened) = &*self.opened(file)?
            && let Some(bytes) = opened.first.get(wanted.start as usize..wanted.end as usize)
        {
            return Ok(bytes.to_vec());
        }
        let mut bytes = Vec::with_capacity((wanted.end - wanted.start) as usize);
        self.ranges(file, &[wanted], &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }
}
