//! Sets cfgs for tests with special requirements: see `testkit/probe.rs`.

#[path = "../testkit/probe.rs"]
mod probe;

fn main() {
    probe::set(&["longsift_shared", "longsift_cxx", "longsift_io_counts"]);
}
