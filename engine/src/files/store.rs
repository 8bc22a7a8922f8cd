//! What holds the files of addresses (`s3://…`): an object store, in a build that has them.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::path::Path;

/// Files of a store by address. Errors are those of ordinary files. What is written appears whole, and is durable then;
/// folders exist as long as something is in them.
pub(crate) trait Store: Sync {
    /// A whole file.
    fn read(&self, address: &str) -> io::Result<Vec<u8>>;
    /// Reads a file from its beginning, by and by.
    fn reader(&self, address: &str) -> io::Result<Box<dyn Read>>;
    /// Writes a whole file where there is none. Returns whether it did.
    fn write_new(&self, address: &str, bytes: &[u8]) -> io::Result<bool>;
    /// Begins a file that is written by and by.
    fn upload(&self, address: &str) -> io::Result<Box<dyn Upload>>;
    /// Copies a file, in the place of what has the name.
    fn copy(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; one that is gone is fine.
    fn remove(&self, address: &str) -> io::Result<()>;
    /// Removes everything below an address.
    fn remove_folder(&self, address: &str) -> io::Result<()>;
    /// The length of a file in bytes, if it is there.
    fn size(&self, address: &str) -> io::Result<Option<u64>>;
    /// The names directly below an address, of files and folders, sorted by bytes.
    fn list(&self, address: &str) -> io::Result<Vec<String>>;
    /// Whether anything is below an address.
    fn is_folder(&self, address: &str) -> io::Result<bool>;
}

/// A file of a store that is being written. Dropped before it is complete, it was never there.
pub(crate) trait Upload: Write + Send + Debug {
    /// Makes the file appear.
    fn complete(&mut self) -> io::Result<()>;
}

/// Whether a path is the address of a file in a store.
pub fn is_address(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.contains("://"))
}

/// The store of an address, and the address as text; none for a path of this machine, and in a build without stores.
pub(super) fn store(path: &Path) -> Option<(&'static dyn Store, &str)> {
    #[cfg(feature = "cloud")]
    if is_address(path) {
        return path.to_str().map(|address| (&crate::object_stores::Stores as &dyn Store, address));
    }
    let _ = path;
    None
}
