//! Selects the implementation for a location.

use std::path::Path;

#[cfg(feature = "cloud")]
use super::objects::stored::ObjectStores;
use super::store::Store;
#[cfg(feature = "cloud")]
use super::store::is_address;

/// Returns the store of an address, and the address as text; `None` for a local path, and in a build without stores.
pub(super) fn store(path: &Path) -> Option<(&'static dyn Store, &str)> {
    #[cfg(feature = "cloud")]
    if is_address(path) {
        return path.to_str().map(|address| (&ObjectStores as &dyn Store, address));
    }
    let _ = path;
    None
}
