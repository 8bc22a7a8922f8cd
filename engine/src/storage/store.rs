//! Interface of object stores, whose files have addresses (`s3://…`).

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use longsift_stages::contract::Location;

use super::error::StorageError;
use super::range_file::Stamp;

/// Files of a store by address. Written files appear atomically and are durable. Folders exist while they contain files.
pub(crate) trait Store: Sync {
    fn read(&self, address: &str) -> Result<Vec<u8>, StorageError>;
    fn reader(&self, address: &str) -> Result<Box<dyn Read>, StorageError>;
    /// Writes a whole file unless it exists. Returns whether it was written.
    fn write_new(&self, address: &str, bytes: &[u8]) -> Result<bool, StorageError>;
    fn upload(&self, address: &str) -> Result<Box<dyn Upload>, StorageError>;
    fn copy(&self, from: &str, to: &str) -> Result<(), StorageError>;
    /// Removes a file; a missing file is not an error. No request is sent later than `deadline` after the call.
    fn remove(&self, address: &str, deadline: Option<Duration>) -> Result<(), StorageError>;
    /// Removes the files below an address for which `removes` returns `true`, given the name relative to the address.
    fn remove_matching(
        &self,
        address: &str,
        removes: &dyn Fn(&str) -> bool,
    ) -> Result<(), StorageError>;
    /// Returns the length and modification time of a file; `None` if it is missing.
    fn stamp(&self, address: &str) -> Result<Option<Stamp>, StorageError>;
    /// Returns the names of files and folders directly below an address, sorted by bytes.
    fn list(&self, address: &str) -> Result<Vec<String>, StorageError>;
    /// Returns the names of all files below an address, '/'-separated, sorted by bytes.
    fn list_below(&self, address: &str) -> Result<Vec<String>, StorageError>;
    fn is_folder(&self, address: &str) -> Result<bool, StorageError>;
}

/// Upload of a file. If it is dropped before completion, the file does not appear.
pub(crate) trait Upload: Write + Send {
    fn complete(&mut self) -> Result<(), StorageError>;
}

pub fn is_address(path: &Path) -> bool {
    Location::from_path(path).is_address()
}
