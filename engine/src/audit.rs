//! Looks at run directories from outside: whether one still holds what it recorded, and what differs between two.

mod diff;
mod documents;
mod verify;

pub use diff::{Difference, diff};
pub use documents::{DocumentChanges, Fate};
pub use verify::{Finding, Verification, verify};
