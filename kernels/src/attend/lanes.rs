//! Attention of one block of query rows over the tiles of keys and values.
//!
//! Each lane of a vector holds one row: logits are stored as `[key, row]`, so a row's largest logit and its sums need no step
//! across lanes, and the exponentials already have the layout that the second product reads.

use std::ops::Range;

use super::{AttendScratch, KeyValues, QueryBlock, TILE_KEYS};
use crate::masks::visible_keys;
use crate::simd::{LANE_INDICES, Simd, tanh};
use crate::statistics::LogitRules;
use crate::tile::multiply;

/// Largest logit of a row before its first key: finite, so that differences are finite.
const INITIAL_MAX: f32 = -1e30;
/// Minimum exponent: smaller ones are raised to it, since their weight is negligible compared with 1.
const FLOOR: f32 = -120.0;

/// State of the rows that share vectors, for one query head.
struct RowState<'a> {
    /// `[head_dim, lanes]`: scaled so that products are logits in units of log2, or the argument of a softcap's tanh.
    queries: &'a [f32],
    /// `[head_dim rounded up, lanes]`, then the largest logits and the sums of exponentials, `[lanes]` each.
    sums: &'a mut [f32],
    /// Row of the window in the first lane.
    first: usize,
    head: usize,
}

/// Keys of a tile that are visible to some lanes.
struct VisibleKeys {
    /// Counted from the tile's first key.
    keys: Range<usize>,
    /// Whether every lane sees all of these keys.
    whole: bool,
}

impl KeyValues {
    #[inline(always)]
    pub(super) fn walk<S: Simd, const HEIGHT: usize, const VECTORS: usize>(
        &self,
        simd: S,
        rules: &LogitRules,
        block: &QueryBlock<'_>,
        scratch: &mut AttendScratch,
        out: &mut [f32],
    ) {
        let lanes = VECTORS * S::LANES;
        let (head_dim, group) = (self.shape.head_dim, self.shape.group());
        let blocks = block.rows.len().div_ceil(lanes);
        let query_numbers = head_dim * lanes;
        let sum_numbers = (head_dim.next_multiple_of(HEIGHT) + 2) * lanes;
        scratch.queries.resize(group * blocks * query_numbers, 0.0);
        scratch.sums.resize(group * blocks * sum_numbers, 0.0);
        scratch.logits.resize(TILE_KEYS * lanes, 0.0);
        let reach = visible_keys(rules, self.shape.tokens, block.rows.start).start
            ..visible_keys(rules, self.shape.tokens, block.rows.end.max(1) - 1).end;
        for key_head in 0..self.shape.key_heads {
            self.load(rules, block, key_head, lanes, &mut scratch.queries);
            for sums in scratch.sums.chunks_exact_mut(sum_numbers) {
                sums.fill(0.0);
                sums[sum_numbers - 2 * lanes..sum_numbers - lanes].fill(INITIAL_MAX);
            }
            for tile in reach.start / TILE_KEYS..reach.end.div_ceil(TILE_KEYS) {
                let states = scratch
                    .queries
                    .chunks_exact(query_numbers)
                    .zip(scratch.sums.chunks_exact_mut(sum_numbers));
                for (index, (queries, sums)) in states.enumerate() {
                    let mut state = RowState {
                        queries,
                        sums,
                        first: block.rows.start + index % blocks * lanes,
                        head: key_head * group + index / blocks,
                    };
                    self.add_tile::<S, HEIGHT, VECTORS>(
                        simd,
                        rules,
                        key_head,
                        tile,
                        &mut state,
                        &mut scratch.logits,
                    );
                }
            }
            self.finish(block, key_head, lanes, &scratch.sums, out);
        }
    }

    /// Packs the queries of a key head's query heads as `[group, blocks, head_dim, lanes]`; lanes without a row are 0.
    fn load(
        &self,
        rules: &LogitRules,
        block: &QueryBlock<'_>,
        key_head: usize,
        lanes: usize,
        packed: &mut [f32],
    ) {
        let (head_dim, group) = (self.shape.head_dim, self.shape.group());
        let width = self.shape.query_heads * head_dim;
        let blocks = block.rows.len().div_ceil(lanes);
        let unit = rules.softcap.map_or(std::f64::consts::LOG2_E, |cap| 1.0 / f64::from(cap));
        let unit = unit * f64::from(rules.scale);
        packed.fill(0.0);
        for head in 0..group {
            for row in 0..block.rows.len() {
                let at = row * width + (key_head * group + head) * head_dim;
                let first = (head * blocks + row / lanes) * head_dim * lanes;
                for (d, value) in block.queries[at..at + head_dim].iter().enumerate() {
                    packed[first + d * lanes + row % lanes] = (f64::from(*value) * unit) as f32;
                }
            }
        }
    }

    /// Adds one tile's keys to some rows.
    #[inline(always)]
    fn add_tile<S: Simd, const HEIGHT: usize, const VECTORS: usize>(
        &self,
        simd: S,
        rules: &LogitRules,
        key_head: usize,
        tile: usize,
        state: &mut RowState<'_>,
        logits: &mut [f32],
    ) {
        let lanes = VECTORS * S::LANES;
        let head_dim = self.shape.head_dim;
        let first_key = tile * TILE_KEYS;
        let seen = self.seen(rules, first_key, state.first, lanes, HEIGHT);
        if seen.keys.is_empty() {
            return;
        }
        let tile = self.tile(tile, key_head);
        // 1. Products, a few keys with all lanes at a time.
        let panels = seen.keys.start / HEIGHT..seen.keys.end.div_ceil(HEIGHT);
        let keys = tile.keys[panels.start * HEIGHT * head_dim..panels.end * HEIGHT * head_dim]
            .chunks_exact(HEIGHT * head_dim);
        let to = logits[panels.start * HEIGHT * lanes..].chunks_exact_mut(HEIGHT * lanes);
        for (keys, to) in keys.zip(to) {
            let products = multiply::<S, HEIGHT, VECTORS>(simd, keys, state.queries);
            for (row, products) in products.iter().enumerate() {
                for (vector, product) in products.iter().enumerate() {
                    simd.store(*product, &mut to[row * lanes + vector * S::LANES..]);
                }
            }
        }
        // 2. Softcap and biases.
        if rules.softcap.is_some() || rules.alibi_slopes.is_some() {
            apply_softcap_and_alibi(simd, rules, first_key, &seen.keys, state, lanes, logits);
        }
        // 3. Exponentials relative to the largest logit so far, and the factor that this applies to earlier sums.
        let used = seen.keys.start * lanes..seen.keys.end * lanes;
        let masks =
            if seen.whole { None } else { Some(self.masks(rules, first_key, state, lanes)) };
        let (sums, ends) = state.sums.split_at_mut(state.sums.len() - 2 * lanes);
        let (largest, totals) = ends.split_at_mut(lanes);
        let mut factors = [simd.splat(1.0); VECTORS];
        for (vector, factor) in factors.iter_mut().enumerate() {
            let column = vector * S::LANES;
            let shown = |key: usize| match &masks {
                None => 0..S::LANES,
                Some(masks) => masks.lanes(key, column, S::LANES),
            };
            *factor = update_softmax(
                simd,
                (&mut logits[used.clone()], lanes, column),
                (seen.keys.start, shown),
                &mut largest[column..],
                &mut totals[column..],
            );
        }
        // 4. The second product: values, weighted.
        let weights = &logits[used];
        let values = tile.values.chunks_exact(TILE_KEYS * HEIGHT);
        for (values, sums) in values.zip(sums.chunks_exact_mut(HEIGHT * lanes)) {
            let values = &values[seen.keys.start * HEIGHT..seen.keys.end * HEIGHT];
            let products = multiply::<S, HEIGHT, VECTORS>(simd, values, weights);
            for (row, products) in products.iter().enumerate() {
                for (vector, product) in products.iter().enumerate() {
                    let sum = &mut sums[row * lanes + vector * S::LANES..];
                    let moved = simd.mul_add(simd.load(sum), factors[vector], *product);
                    simd.store(moved, sum);
                }
            }
        }
    }

    /// Keys of a tile that lanes `first..first + lanes` see, from the start of a panel on.
    fn seen(
        &self,
        rules: &LogitRules,
        first_key: usize,
        first: usize,
        lanes: usize,
        height: usize,
    ) -> VisibleKeys {
        let end = first_key + TILE_KEYS;
        let (top, bottom) = (
            visible_keys(rules, self.shape.tokens, first),
            visible_keys(rules, self.shape.tokens, first + lanes - 1),
        );
        let start = top.start.clamp(first_key, end) - first_key;
        let keys = start / height * height..bottom.end.clamp(first_key, end) - first_key;
        let whole = bottom.start <= first_key + keys.start && top.end >= first_key + keys.end;
        VisibleKeys { keys, whole }
    }

    /// Returns the visible keys of each lane, counted from the tile's first key.
    fn masks(
        &self,
        rules: &LogitRules,
        first_key: usize,
        state: &RowState<'_>,
        lanes: usize,
    ) -> Masks {
        let mut masks = Masks { starts: [0; MAX_LANES], ends: [0; MAX_LANES], lanes };
        for lane in 0..lanes {
            let seen = visible_keys(rules, self.shape.tokens, state.first + lane);
            masks.starts[lane] = seen.start.saturating_sub(first_key);
            masks.ends[lane] = seen.end.saturating_sub(first_key);
        }
        masks
    }

    /// Writes the weighted means of a key head's query heads.
    fn finish(
        &self,
        block: &QueryBlock<'_>,
        key_head: usize,
        lanes: usize,
        sums: &[f32],
        out: &mut [f32],
    ) {
        let (head_dim, group) = (self.shape.head_dim, self.shape.group());
        let width = self.shape.query_heads * head_dim;
        let blocks = block.rows.len().div_ceil(lanes);
        let numbers = sums.len() / (group * blocks).max(1);
        for head in 0..group {
            for row in 0..block.rows.len() {
                let state = &sums[(head * blocks + row / lanes) * numbers..][..numbers];
                let total = state[numbers - lanes + row % lanes];
                let at = row * width + (key_head * group + head) * head_dim;
                for (d, out) in out[at..at + head_dim].iter_mut().enumerate() {
                    *out = state[d * lanes + row % lanes] / total;
                }
            }
        }
    }
}

/// Applies softcap and linear biases, as the kernels for statistics do.
#[inline(always)]
fn apply_softcap_and_alibi<S: Simd>(
    simd: S,
    rules: &LogitRules,
    first_key: usize,
    keys: &Range<usize>,
    state: &RowState<'_>,
    lanes: usize,
    logits: &mut [f32],
) {
    let log2 = |natural: f32| (f64::from(natural) * std::f64::consts::LOG2_E) as f32;
    let cap = rules.softcap.map(|cap| simd.splat(log2(cap)));
    let slope = rules.alibi_slopes.as_ref().map(|slopes| simd.splat(log2(slopes[state.head])));
    for key in keys.clone() {
        let row = &mut logits[key * lanes..(key + 1) * lanes];
        for (vector, logits) in row.chunks_exact_mut(S::LANES).enumerate() {
            let mut x = simd.load(logits);
            if let Some(cap) = cap {
                x = simd.mul(cap, tanh(simd, x));
            }
            if let Some(slope) = slope {
                let row = (state.first + vector * S::LANES) as f32;
                let distance = simd.splat((first_key + key) as f32 - row);
                let distance = simd.sub(distance, simd.load(&LANE_INDICES));
                x = simd.mul_add(slope, distance, x);
            }
            simd.store(x, logits);
        }
    }
}

/// Lanes of the widest kernel.
const MAX_LANES: usize = 32;

/// Visible keys of each lane in a tile; neither starts nor ends decrease from lane to lane.
struct Masks {
    starts: [usize; MAX_LANES],
    ends: [usize; MAX_LANES],
    lanes: usize,
}

impl Masks {
    /// Returns the lanes of `column..column + width` that see a key, counted from `column`.
    #[inline(always)]
    fn lanes(&self, key: usize, column: usize, width: usize) -> Range<usize> {
        let below = |bounds: &[usize; MAX_LANES]| {
            bounds[..self.lanes].partition_point(|bound| *bound <= key)
        };
        let (from, to) = (below(&self.ends), below(&self.starts));
        let within = |lane: usize| lane.clamp(column, column + width) - column;
        within(from)..within(to.max(from))
    }
}

/// Turns the logits of one vector of lanes into weights relative to each lane's largest logit so far. Updates the largest
/// logits and the totals, and returns the factor for earlier sums. `shown` returns the lanes that see a key.
#[inline(always)]
fn update_softmax<S: Simd>(
    simd: S,
    (logits, lanes, column): (&mut [f32], usize, usize),
    (first, shown): (usize, impl Fn(usize) -> Range<usize>),
    largest: &mut [f32],
    totals: &mut [f32],
) -> S::Vector {
    let (zero, floor) = (simd.splat(0.0), simd.splat(FLOOR));
    let before = simd.load(largest);
    let mut top = before;
    for (key, row) in logits.chunks_exact(lanes).enumerate() {
        let visible = shown(first + key);
        let x = simd.load(&row[column..]);
        let x = if visible.len() == S::LANES { x } else { simd.select(visible, x, before) };
        top = simd.max(top, x);
    }
    let mut sum = zero;
    for (key, row) in logits.chunks_exact_mut(lanes).enumerate() {
        let visible = shown(first + key);
        let row = &mut row[column..];
        let power = simd.exp2(simd.max(floor, simd.sub(simd.load(row), top)));
        let power =
            if visible.len() == S::LANES { power } else { simd.select(visible, power, zero) };
        sum = simd.add(sum, power);
        simd.store(power, row);
    }
    // Exactly 1 if the largest logit is unchanged, so that neighbouring rows do not affect a row's bits.
    let factor = simd.exp2(simd.max(floor, simd.sub(before, top)));
    let factor = simd.div(factor, simd.exp2(zero));
    simd.store(top, largest);
    simd.store(simd.mul_add(simd.load(totals), factor, sum), totals);
    factor
}
