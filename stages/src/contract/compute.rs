//! The device trait: a place where windows are scored.

