//! One integration binary: every test runs the real `longsift` in a temporary folder.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod support;
