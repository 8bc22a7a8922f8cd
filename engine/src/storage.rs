//! Reads and writes bytes by location: on this machine, in object stores, on web servers, on the Hugging Face hub.
//! Independent of models, Parquet and runs.

pub(crate) mod atomic;
pub(crate) mod error;
pub(crate) mod files;
#[cfg(feature = "cloud")]
pub(crate) mod http;
pub(crate) mod hub;
pub(crate) mod marked;
#[cfg(feature = "cloud")]
pub(crate) mod objects;
pub(crate) mod range_file;
pub(crate) mod ranges;
pub(crate) mod regular;
#[cfg(feature = "cloud")]
pub(crate) mod retry;
pub(crate) mod store;
#[cfg(feature = "cloud")]
pub(crate) mod web;

use longsift_stages::contract::Location;

use error::StorageError;
use range_file::RangeFile;

/// Opens a local file, an object, or a file of a web server for reading by ranges.
pub(crate) fn open(at: &Location) -> Result<RangeFile, StorageError> {
    match at {
        Location::Path(path) => RangeFile::open_local(path),
        #[cfg(feature = "cloud")]
        Location::Address(address) if address.scheme.is_web() => web::open(&address.to_string()),
        #[cfg(feature = "cloud")]
        Location::Address(address) => objects::open(&address.to_string()),
        // A build without stores has already rejected the address; as a path it does not exist.
        #[cfg(not(feature = "cloud"))]
        Location::Address(_) => RangeFile::open_local(&at.to_path_buf()),
    }
}
