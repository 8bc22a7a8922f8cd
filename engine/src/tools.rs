//! Commands that inspect models, machines and text.

pub(crate) mod bench;
pub(crate) mod document;
pub(crate) mod evaluate;
pub(crate) mod explain;
pub(crate) mod forward;
pub(crate) mod inspect;
pub(crate) mod lengths;
pub(crate) mod map;
pub(crate) mod monitor;
pub(crate) mod reference;
pub(crate) mod reference_pages;
pub(crate) mod starter;
pub(crate) mod tokens;
pub(crate) mod tune;
