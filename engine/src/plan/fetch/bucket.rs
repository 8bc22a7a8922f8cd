//! Folder of an object store: files below one address, read by ranges.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use longsift_stages::contract::Location;
use longsift_stages::model::{ModelProblem, RemoteWeights};

use super::slice::{HINT, ModelSource};
use super::stores::Versions;
use crate::base::stop::Stop;
use crate::storage;
use crate::storage::error::ErrorKind;
use crate::storage::http::remaining::Sink;
use crate::storage::range_file::RangeFile;

const PIECE_BYTES: u64 = 16 << 20;

pub(crate) struct BucketFolder {
    /// Address without a trailing slash.
    address: String,
    stop: Stop,
    opened: RefCell<BTreeMap<String, Rc<RangeFile>>>,
    seen: RefCell<Versions>,
    received: Cell<u64>,
}

impl BucketFolder {
    pub(crate) fn new(address: &str, stop: Stop) -> Self {
        let (opened, seen) = (RefCell::default(), RefCell::default());
        Self { address: address.to_owned(), stop, opened, seen, received: Cell::new(0) }
    }

    fn find(&self, file: &str) -> Result<Option<RangeFile>, ModelProblem> {
        let url = format!("{}/{file}", self.address);
        match storage::open(&Location::parse(&url)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn open(&self, file: &str) -> Result<Option<Rc<RangeFile>>, ModelProblem> {
        if let Some(opened) = self.opened.borrow().get(file) {
            return Ok(Some(Rc::clone(opened)));
        }
        let opened = self.find(file)?.map(Rc::new);
        let version = opened.as_deref().map(version);
        self.seen.borrow_mut().insert(file.to_owned(), version);
        if let Some(opened) = &opened {
            self.opened.borrow_mut().insert(file.to_owned(), Rc::clone(opened));
        }
        Ok(opened)
    }

    fn opened(&self, file: &str) -> Result<Rc<RangeFile>, ModelProblem> {
        self.open(file)?.ok_or_else(|| self.missing_file(file))
    }
}

impl ModelSource for BucketFolder {
    fn name(&self) -> String {
        self.address.clone()
    }

    fn small(&self, file: &str, max: u64) -> Result<Option<Vec<u8>>, ModelProblem> {
        let Some(opened) = self.open(file)? else { return Ok(None) };
        if opened.length > max {
            let message =
                format!("`{}/{file}` has {} bytes, more than {max}", self.address, opened.length);
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
                let stopped = |_| {
                    ModelProblem::machine("stopped by a signal; run the same command to resume")
                };
                self.stop.check().map_err(stopped)?;
                let end = (at + PIECE_BYTES).min(range.end);
                let piece = opened.range(at..end)?;
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

    fn version(&self, file: &str) -> Result<Option<String>, ModelProblem> {
        Ok(self.find(file)?.as_ref().map(version))
    }

    fn seen(&self) -> Versions {
        self.seen.borrow().clone()
    }
}

/// Returns the version of a file: the store's version, else its length.
fn version(file: &RangeFile) -> String {
    file.version().unwrap_or_else(|| file.length.to_string())
}

impl RemoteWeights for BucketFolder {
    fn length(&self, file: &str) -> Result<u64, ModelProblem> {
        Ok(self.opened(file)?.length)
    }

    fn read(&self, file: &str, wanted: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        self.read_range(file, wanted)
    }
}
