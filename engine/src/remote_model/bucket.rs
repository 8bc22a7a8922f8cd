//! A folder of an object store: files below one address, read by ranges.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::rc::Rc;

use longsift_stages::model::{ModelProblem, RemoteWeights};

use super::slice::{Sink, Source};
use super::stores::{HINT, Versioned, Versions};
use crate::object_stores::{self, RemoteFile};
use crate::stop::Stop;

/// Bytes that are asked for at once.
const PIECE_BYTES: u64 = 16 << 20;

/// The files of a folder of a bucket.
pub(crate) struct Bucket {
    /// Without a slash at its end.
    address: String,
    stop: Stop,
    opened: RefCell<BTreeMap<String, Rc<RemoteFile>>>,
    seen: RefCell<Versions>,
    received: Cell<u64>,
}

impl Bucket {
    pub(crate) fn new(address: &str, stop: Stop) -> Self {
        let (opened, seen) = (RefCell::default(), RefCell::default());
        Self { address: address.to_owned(), stop, opened, seen, received: Cell::new(0) }
    }

    fn find(&self, file: &str) -> Result<Option<RemoteFile>, ModelProblem> {
        let url = format!("{}/{file}", self.address);
        match object_stores::open(&url) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(problem(&url, &error)),
        }
    }

    fn open(&self, file: &str) -> Result<Option<Rc<RemoteFile>>, ModelProblem> {
        if let Some(opened) = self.opened.borrow().get(file) {
            return Ok(Some(Rc::clone(opened)));
        }
        let opened = self.find(file)?.map(Rc::new);
        let version = opened.as_ref().map(|opened| opened.version());
        self.seen.borrow_mut().insert(file.to_owned(), version);
        if let Some(opened) = &opened {
            self.opened.borrow_mut().insert(file.to_owned(), Rc::clone(opened));
        }
        Ok(opened)
    }

    fn opened(&self, file: &str) -> Result<Rc<RemoteFile>, ModelProblem> {
        self.open(file)?.ok_or_else(|| self.no_file(file))
    }
}

impl Source for Bucket {
    fn name(&self) -> String {
        self.address.clone()
    }

    fn small(&self, file: &str, most: u64) -> Result<Option<Vec<u8>>, ModelProblem> {
        let Some(opened) = self.open(file)? else { return Ok(None) };
        if opened.length > most {
            let message =
                format!("`{}/{file}` has {} bytes, more than {most}", self.address, opened.length);
            return Err(ModelProblem::checkpoint(message));
        }
        self.read(file, 0..opened.length).map(Some)
    }

    fn ranges(
        &self,
        file: &str,
        ranges: &[Range<u64>],
        sink: Sink<'_>,
    ) -> Result<(), ModelProblem> {
        let opened = self.opened(file)?;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let stopped =
                    |_| ModelProblem::machine("stopped by a signal; the same command carries on");
                self.stop.check().map_err(stopped)?;
                let end = (at + PIECE_BYTES).min(range.end);
                let piece = opened.range(at..end);
                let piece =
                    piece.map_err(|error| problem(&format!("{}/{file}", self.address), &error))?;
                self.received.set(self.received.get() + piece.len() as u64);
                sink(&piece)?;
                at = end;
            }
        }
        Ok(())
    }

    fn received(&self) -> u64 {
        self.received.get()
    }

    fn hint(&self) -> &'static str {
        HINT
    }
}

impl Versioned for Bucket {
    fn version(&self, file: &str) -> Result<Option<String>, ModelProblem> {
        Ok(self.find(file)?.map(|file| file.version()))
    }

    fn seen(&self) -> Versions {
        self.seen.borrow().clone()
    }
}

impl RemoteWeights for Bucket {
    fn length(&self, file: &str) -> Result<u64, ModelProblem> {
        Ok(self.opened(file)?.length)
    }

    fn read(&self, file: &str, wanted: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        self.gathered(file, wanted)
    }
}

/// Whose fault it is that a file of a store cannot be read.
fn problem(url: &str, error: &io::Error) -> ModelProblem {
    let message = format!("`{url}` cannot be read: {error}");
    match error.kind() {
        ErrorKind::PermissionDenied => ModelProblem::settings(message).with_hint(
            "check the credentials (AWS_…, GOOGLE_…, AZURE_…); S3 says the same of a file that is not there to those who may not list the bucket",
        ),
        ErrorKind::StaleNetworkFileHandle => {
            ModelProblem::checkpoint(format!("`{url}` changed while it was fetched"))
                .with_hint("run again when it does not change any more")
        }
        ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::Unsupported => {
            ModelProblem::settings(message).with_hint(HINT)
        }
        ErrorKind::UnexpectedEof => ModelProblem::checkpoint(message),
        _ => ModelProblem::machine(message)
            .with_hint("run again; with `--offline` only what is already here is used"),
    }
}
