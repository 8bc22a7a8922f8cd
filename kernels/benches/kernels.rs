//! Micro-benchmarks of the steps of a window: `cargo bench -p longsift-kernels`.
//!
//! `--example pairs` and `longsift bench` compare the same steps with the CPU's limits.

use divan::Bencher;
use divan::counter::ItemsCount;
use longsift_kernels::{
    AttentionShape, ElementType, Kernel, LogitRules, PackedWeights, QueryKeySource, Rope,
    RopeStyle, Rotation, TableView, TableWindow, attention_statistics,
};

const TOKENS: usize = 2048;
const KEY_HEADS: usize = 2;
const GROUP: usize = 4;
const VOCABULARY: usize = 997;

fn main() {
    divan::main();
}

fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported())
}

fn float_kernels() -> impl Iterator<Item = Kernel> {
    kernels().filter(|kernel| kernel.element_type() == ElementType::F32)
}

fn noise(count: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn shape(head_dim: usize) -> AttentionShape {
    AttentionShape {
        tokens: TOKENS,
        query_heads: KEY_HEADS * GROUP,
        key_heads: KEY_HEADS,
        head_dim,
    }
}

/// Table, ids and rotations of a window.
fn parts(head_dim: usize) -> (Vec<f32>, Vec<u32>, Rope) {
    let width = KEY_HEADS * (GROUP + 1) * head_dim;
    let ids = (0..TOKENS).map(|token| (token * 389 % VOCABULARY) as u32).collect();
    let rotation = Rotation {
        style: RopeStyle::Half,
        inverse_frequencies: (0..head_dim / 2).map(|pair| 0.9_f32.powi(pair as i32)).collect(),
        attention_factor: 1.0,
    };
    (noise(VOCABULARY * width), ids, rotation.table(TOKENS))
}

#[divan::bench(args = kernels(), consts = [64, 128])]
fn window<const HEAD_DIM: usize>(bencher: Bencher<'_, '_>, kernel: Kernel) {
    let (table, ids, rope) = parts(HEAD_DIM);
    let (shape, width) = (shape(HEAD_DIM), KEY_HEADS * (GROUP + 1) * HEAD_DIM);
    let view = TableView::F32(&table);
    let source = TableWindow::new(view, width, &ids, &shape, Some(&rope), None);
    let rules = LogitRules::causal(HEAD_DIM);
    bencher
        .counter(ItemsCount::new(KEY_HEADS * GROUP * TOKENS * (TOKENS + 1) / 2))
        .bench(|| attention_statistics(kernel, &shape, &rules, TOKENS / 4, &source));
}

#[divan::bench(consts = [64, 128])]
fn gather_and_rotate<const HEAD_DIM: usize>(bencher: Bencher<'_, '_>) {
    let (table, ids, rope) = parts(HEAD_DIM);
    let (shape, width) = (shape(HEAD_DIM), KEY_HEADS * (GROUP + 1) * HEAD_DIM);
    let view = TableView::F32(&table);
    let source = TableWindow::new(view, width, &ids, &shape, Some(&rope), None);
    let mut out = vec![0.0; TOKENS * HEAD_DIM];
    bencher.counter(ItemsCount::new(TOKENS)).bench_local(|| source.queries(0, 0..TOKENS, &mut out));
}

#[divan::bench(args = float_kernels())]
fn projection(bencher: Bencher<'_, '_>, kernel: Kernel) {
    let (rows, inputs, outputs) = (256, 1024, 512);
    let (x, weights) = (noise(rows * inputs), noise(outputs * inputs));
    let mut out = vec![0.0; rows * outputs];
    bencher
        .counter(ItemsCount::new(rows * inputs * outputs))
        .bench_local(|| PackedWeights::new(kernel, &weights, None, inputs).apply(&x, &mut out));
}
