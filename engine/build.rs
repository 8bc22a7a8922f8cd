//! Sets cfgs for the tests that need what not every machine has: see `testkit/probe.rs`.

#[path = "../testkit/probe.rs"]
mod probe;

fn main() {
    probe::set(&[
        "longsift_shared",
        "longsift_preload",
        "longsift_mounts",
        "longsift_systemd",
        "longsift_script",
        "longsift_browser",
        "longsift_pyarrow",
        "longsift_avx2",
        "longsift_amx",
    ]);
}
