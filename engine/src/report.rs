//! Reports of runs, for people and programs.

pub(crate) mod amount;
pub(crate) mod card;
pub(crate) mod checked;
pub(crate) mod closing;
pub(crate) mod diff;
pub(crate) mod documents;
pub(crate) mod lineage;
pub(crate) mod metrics;
pub(crate) mod overview;
pub(crate) mod page;
pub(crate) mod passages;
pub(crate) mod status;
pub(crate) mod verify;
pub(crate) mod whatif;
