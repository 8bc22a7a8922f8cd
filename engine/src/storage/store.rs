//! What holds the files of addresses (`s3://…`): an object store, in a build that has them.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::path::Path;

use longsift_stages::contract::Location;

use super::error::StorageError;

/// Files of a store by address. What is written appears whole, and is durable then;
/// folders exist as long as something is in them.
pub(crate) trait Store: Sync {
    /// A whole file.
    fn read(&self, address: &str) -> Result<Vec<u8>, StorageError>;
    /// Reads a file from its beginning, by and by.
    fn reader(&self, address: &str) -> Result<Box<dyn Read>, StorageError>;
    /// Writes a whole file where there is none. Returns whether it did.
    fn write_new(&self, address: &str, bytes: &[u8]) -> Result<bool, StorageError>;
    /// Begins a file that is written by and by.
    fn upload(&self, address: &str) -> Result<Box<dyn Upload>, StorageError>;
    /// Copies a file, in the place of what has the name.
    fn copy(&self, from: &str, to: &str) -> Result<(), StorageError>;
    /// Removes a file; one that is gone is fine.
    fn remove(&self, address: &str) -> Result<(), StorageError>;
    /// Removes everything below an address.
    fn remove_folder(&self, address: &str) -> Result<(), StorageError>;
    /// The length of a file in bytes, if it is there.
    fn size(&self, address: &str) -> Result<Option<u64>, StorageError>;
    /// The names directly below an address, of files and folders, sorted by bytes.
    fn list(&self, address: &str) -> Result<Vec<String>, StorageError>;
    /// The names of all files below an address, '/'-separated, sorted by bytes.
    fn list_below(&self, address: &str) -> Result<Vec<String>, StorageError>;
    /// Whether anything is below an address.
    fn is_folder(&self, address: &str) -> Result<bool, StorageError>;
}

/// A file of a store that is being written. Dropped before it is complete, it was never there.
pub(crate) trait Upload: Write + Send + Debug {
    /// Makes the file appear.
    fn complete(&mut self) -> Result<(), StorageError>;
}

/// Whether a path is the address of a file in a store.
pub fn is_address(path: &Path) -> bool {
    Location::of(path).is_address()
}
