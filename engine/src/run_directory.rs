//! Files of a run: layout, locks, records and tables.

pub(crate) mod anonymous_file;
pub(crate) mod borrowed;
pub(crate) mod calibration;
pub(crate) mod dropped;
pub(crate) mod events;
pub mod facts;
pub(crate) mod hold;
pub(crate) mod holder;
pub(crate) mod keep;
pub(crate) mod layout;
#[cfg(feature = "cloud")]
pub(crate) mod lease;
pub(crate) mod manifest;
pub mod pipeline_lock;
pub(crate) mod quarantine;
pub mod scores;
pub(crate) mod seal;
pub mod selected;
pub(crate) mod summary;
pub(crate) mod table;
pub mod units;
