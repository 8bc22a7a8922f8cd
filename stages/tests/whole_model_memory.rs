//! Compares `WholeModel::memory` with the heap memory of a forward pass. The only test of its binary, because the
//! allocator counts the whole process.
#![expect(clippy::print_stderr, reason = "the test prints the compared values")]
#![expect(clippy::unwrap_used, reason = "a failed `unwrap` fails the test")]

#[path = "../../kernels/tests/common/heap.rs"]
#[expect(unsafe_code, reason = "it belongs to the kernels' tests")]
mod heap;

mod zero_weights;

use std::path::Path;

use longsift_stages::measures::language_model::ProductPrecision;
use longsift_stages::model::{BackendName, WholeModel};
use zero_weights::Sizes;

const THREADS: usize = 2;
const SIZES: Sizes =
    Sizes { layers: 2, hidden: 512, heads: 8, key_heads: 4, wide: 1408, vocabulary: 4096 };
/// Small enough for long windows.
const LONG: Sizes =
    Sizes { layers: 3, hidden: 128, heads: 2, key_heads: 2, wide: 256, vocabulary: 512 };

type Write = fn(&Path, &Sizes, &str);

/// Returns the computed and the measured memory of a window of `tokens` tokens.
fn memory(
    (pool, backend): (&rayon::ThreadPool, BackendName),
    write: Write,
    (sizes, dtype): (Sizes, &str),
    tokens: usize,
) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &sizes, dtype);
    let model = WholeModel::open(folder.path()).unwrap();
    let model = model.with_backend(Some(backend), ProductPrecision::F32, false).unwrap();
    let computed = model.memory(tokens as u64, THREADS as u64).peak_bytes;
    let ids: Vec<u32> = (0..tokens).map(|token| (token * 7 % 500) as u32).collect();
    let (taken, made) = heap::peak_of(|| pool.install(|| model.forward(&[&ids])));
    made.unwrap();
    let part = taken as f64 / computed as f64;
    eprintln!(
        "{backend:?}, {:>2} layers of {} in {dtype:<4}, {tokens:>6} tokens: computed {:>5.1} MB, taken {:>5.1} MB ({:.2})",
        sizes.layers,
        sizes.hidden,
        computed as f64 / 1e6,
        taken as f64 / 1e6,
        part
    );
    (computed, taken)
}

#[test]
fn computed_memory_is_close_to_used_memory_for_any_number_of_layers() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().unwrap();
    // After a first run, the memory that rayon and the threads keep is allocated.
    let own = (&pool, BackendName::Own);
    memory(own, zero_weights::llama, (SIZES, "F32"), 100);
    let mut flat = Vec::new();
    for (layers, dtype, tokens) in
        [(2, "F32", 40), (2, "F32", 1000), (24, "F32", 1000), (2, "BF16", 1000), (2, "BF16", 4000)]
    {
        let sizes = Sizes { layers, ..SIZES };
        let (computed, taken) = memory(own, zero_weights::llama, (sizes, dtype), tokens);
        assert!(taken <= computed, "{layers} layers, {dtype}, {tokens} tokens");
        assert!(taken * 10 >= computed * 9, "{layers} layers, {dtype}, {tokens} tokens");
        flat.extend(((dtype, tokens) == ("F32", 1000)).then_some((computed, taken)));
    }
    assert_eq!(flat[0].0, flat[1].0, "memory does not depend on the number of layers");
    assert!(flat[1].1 * 100 <= flat[0].1 * 101, "of 2 and 24 layers: {flat:?}");
    #[cfg(feature = "candle")]
    {
        let candle = (&pool, BackendName::Candle);
        memory(candle, zero_weights::llama, (SIZES, "F32"), 100);
        for (layers, dtype, tokens) in
            [(2, "F32", 40), (2, "F32", 1000), (24, "F32", 1000), (2, "BF16", 4000)]
        {
            let sizes = Sizes { layers, ..SIZES };
            let (computed, taken) = memory(candle, zero_weights::llama, (sizes, dtype), tokens);
            assert!(taken <= computed, "candle, {layers} layers, {dtype}, {tokens} tokens");
            assert!(taken * 2 >= computed, "candle, {layers} layers, {dtype}, {tokens} tokens");
        }
    }
    // With gated linear attention, memory stops growing with the window but for its losses.
    let mut flat = Vec::new();
    for tokens in [40, 1000, 20_000, 40_000, 80_000] {
        let (computed, taken) = memory(own, zero_weights::gla, (LONG, "F32"), tokens);
        assert!(taken <= computed, "{tokens} tokens");
        // The parts of a chunk are counted as full.
        assert!(tokens < 1000 || taken * 10 >= computed * 7, "{tokens} tokens");
        flat.push((tokens as u64, taken));
    }
    let [.., (tokens, taken), (twice, taken_twice)] = flat[..] else { unreachable!() };
    assert!(taken_twice <= taken + 24 * (twice - tokens), "{flat:?}");
}
