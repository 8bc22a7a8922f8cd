// Softmax of rows that are spread over the lanes of a warp, tile by tile: the device version of `online_softmax.rs`.
//
// A row's keys come in ascending order, so its far keys are a prefix. Distances cut a row into segments (`masks.rs`); the
// mass of each is a running sum of exponentials relative to an offset that follows the row's largest logit lazily.
// Most tiles are fully visible to every row of the warp and belong to one segment: they need the maximum, exponentials
// and sums only. The others test each key. Sums over tiles are compensated float32; sums over rows are float64 in a
// fixed order.
#pragma once
#include "intrinsics.cuh"
#include "parameters.cuh"

// A logit may exceed the offset by this many powers of two before the offset moves: 2^24 squares of 2^64 are finite.
constexpr float SLACK = 32.0f;
#define NEGATIVE_INFINITY (-INFINITY)

DEVICE int smaller(int a, int b) { return a < b ? a : b; }
DEVICE int larger(int a, int b) { return a > b ? a : b; }

// A compensated sum, which keeps the rounding error.
struct Sum {
    float value, lost;

    MEMBER void clear() { value = lost = 0.0f; }
    MEMBER void add(float term) {
        float sum = value + term;
        lost += (value - sum) + term;
        value = sum;
    }
    MEMBER void scale(float factor) {
        value *= factor;
        lost *= factor;
    }
    MEMBER float total() const { return value + lost; }
};

// The mass of one segment of one row, relative to 2^offset; once the row is finished, its share of the attention.
union Slot {
    struct { float mass, offset; } running;
    double share;
};

// Results of a block's rows in shared memory, which are then summed.
struct BlockRows {
    Slot* slots;       // [rows, segments]
    double* squares;   // [rows]
    float* offsets;    // [rows]

    MEMBER BlockRows(unsigned char* memory, int rows, int segments) {
        slots = reinterpret_cast<Slot*>(memory);
        squares = reinterpret_cast<double*>(slots + rows * segments);
        offsets = reinterpret_cast<float*>(squares + rows);
    }
};

// Visible keys of a row, [start, end), as in `visible_keys`.
struct Visible {
    int start, end;

    MEMBER Visible(const AttentionParameters& p, int position) {
        start = p.window == UNBOUNDED ? 0 : larger(position + 1 - p.window, 0);
        end = p.causal ? position + 1 : p.tokens;
        if (p.chunk != UNBOUNDED) {
            int first = position / p.chunk * p.chunk;
            start = larger(start, first);
            end = smaller(end, p.chunk > p.tokens - first ? p.tokens : first + p.chunk);
        }
        end = larger(end, start);
    }
};

DEVICE int row_position(const AttentionParameters& p, int row) { return p.rows ? int(p.rows[row]) : row; }

// tanh within 3 units in the last place; the coefficients of `exponential.rs`.
DEVICE float hyperbolic_tangent(float x) {
    constexpr float SATURATED = 7.905311f;
    x = x < -SATURATED ? -SATURATED : x;
    x = x > SATURATED ? SATURATED : x;
    float square = x * x;
    float numerator = -2.7607685e-16f;
    numerator = fmaf(numerator, square, 2.000188e-13f);
    numerator = fmaf(numerator, square, -8.604672e-11f);
    numerator = fmaf(numerator, square, 5.1222971e-8f);
    numerator = fmaf(numerator, square, 1.4857224e-5f);
    numerator = fmaf(numerator, square, 6.3726193e-4f);
    numerator = fmaf(numerator, square, 4.8935246e-3f);
    float denominator = 1.1982584e-6f;
    denominator = fmaf(denominator, square, 1.1853471e-4f);
    denominator = fmaf(denominator, square, 2.268434e-3f);
    denominator = fmaf(denominator, square, 4.893525e-3f);
    return x * numerator / denominator;
}

// ROWS rows of this lane's warp. A row is spread over LANES neighbouring lanes, with COLUMNS keys of a tile in each:
// Layout maps r to the warp's row `row(r)` and c to the tile's key `column(c)`.
template <int ROWS, int COLUMNS, int LANES, class Layout>
struct Rows {
    static constexpr int KEYS = COLUMNS * LANES;

    const AttentionParameters& p;
    BlockRows block;
    int head;
    int warp_row;                 // of the block, the warp's first
    int first, last;              // positions of the warp's first and last row
    int seen_from, seen_to;       // keys that some row of the warp sees
    int whole_from, whole_to;     // keys that every row of the warp sees
    int segment_first, segment_last;
    int segment;                  // segment of the mass that the lanes hold
    int position[ROWS], start[ROWS], end[ROWS];
    float offset[ROWS];
    Sum mass[ROWS], square[ROWS];

    // Rows `row..row + warp_rows` of head `head`; `warp_row` is their first row in the block.
    MEMBER Rows(const AttentionParameters& parameters, BlockRows rows, int head_, int row, int warp_rows, int warp_row_)
        : p(parameters), block(rows), head(head_), warp_row(warp_row_), segment_first(0), segment_last(0), segment(0) {
        bool some = row < p.row_count;
        first = some ? row_position(p, row) : 0;
        last = some ? row_position(p, smaller(row + warp_rows, p.row_count) - 1) : 0;
        Visible of_first(p, first), of_last(p, last);
        seen_from = of_first.start;
        seen_to = some ? of_last.end : 0;
        whole_from = of_last.start;
        whole_to = of_first.end;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            // Rows beyond the window repeat the last one; their sums are ignored.
            position[r] = some ? row_position(p, smaller(row + Layout::row(r), p.row_count - 1)) : 0;
            Visible seen(p, position[r]);
            start[r] = seen.start;
            end[r] = seen.end;
            offset[r] = NEGATIVE_INFINITY;
            mass[r].clear();
            square[r].clear();
        }
    }

    // Whether any row sees a key of the tile that begins at `key`.
    MEMBER bool sees(int key) const { return key < seen_to && key + KEYS > seen_from; }

    // Adds the keys of the tile that begins at `key`; `x` holds their products and is overwritten. Tiles are added in ascending order.
    MEMBER void absorb(float (&x)[ROWS][COLUMNS], int key) {
        if (!sees(key)) return;
        apply_softcap_and_alibi(x, key);
        int most = last - key, least = first - (key + KEYS - 1);
        while (segment_first < p.segments - 1 && most < p.distances[segment_first]) segment_first++;
        segment_last = larger(segment_last, segment_first);
        while (segment_last < p.segments - 1 && least < p.distances[segment_last]) segment_last++;
        if (segment_first == segment_last && key >= whole_from && key + KEYS <= whole_to)
            absorb_whole(x);
        else
            absorb_edge(x, key);
        synchronize_warp(); // lanes that store masses are late, and the code below needs all lanes
    }

    MEMBER void absorb_whole(float (&x)[ROWS][COLUMNS]) {
        if (segment != segment_first) {
            flush();
            segment = segment_first;
        }
        rebase(x);
        bool far = segment < p.far;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float masses[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
            if (far) {
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    float power = exp2_approximate(x[r][c] - offset[r]);
                    masses[c % 2] += power;
                    squares[c % 2] = fmaf(power, power, squares[c % 2]);
                }
                square[r].add(squares[0] + squares[1]);
            } else {
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) masses[c % 2] += exp2_approximate(x[r][c] - offset[r]);
            }
            mass[r].add(masses[0] + masses[1]);
        }
    }

    MEMBER void absorb_edge(float (&x)[ROWS][COLUMNS], int key) {
        flush();
        // 1. Hidden keys neither move the offset nor have a mass.
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (!between(key + Layout::column(c), start[r], end[r])) x[r][c] = NEGATIVE_INFINITY;
        rebase(x);
        // 2. Exponentials.
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                bool seen = between(key + Layout::column(c), start[r], end[r]);
                x[r][c] = seen ? exp2_approximate(x[r][c] - offset[r]) : 0.0f;
            }
        // 3. Sums, segment by segment.
        for (int s = segment_first; s <= segment_last; s++) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int from = s == 0 ? 0 : position[r] - p.distances[s - 1] + 1;
                int to = s == p.segments - 1 ? p.tokens : position[r] - p.distances[s] + 1;
                float of_mass = 0.0f, of_squares = 0.0f;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    float power = between(key + Layout::column(c), from, to) ? x[r][c] : 0.0f;
                    of_mass += power;
                    of_squares = fmaf(power, power, of_squares);
                }
                if (s < p.far) square[r].add(of_squares);
                deposit(r, s, of_mass);
            }
        }
    }

    // Softcap, then ALiBi, as `apply_softcap_and_alibi` of `block.rs`.
    MEMBER void apply_softcap_and_alibi(float (&x)[ROWS][COLUMNS], int key) {
        if (p.softcap != 0.0f) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) x[r][c] = p.softcap * hyperbolic_tangent(x[r][c]);
        }
        if (p.slopes) {
            float slope = p.slopes[head];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    x[r][c] = fmaf(slope, float(key + Layout::column(c) - position[r]), x[r][c]);
        }
    }

    // Moves the offset of rows whose largest logit exceeds it by too much, identically in all lanes of a row.
    MEMBER void rebase(const float (&x)[ROWS][COLUMNS]) {
        float largest[ROWS];
        bool outgrown = false;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            largest[r] = x[r][0];
#pragma unroll
            for (int c = 1; c < COLUMNS; c++) largest[r] = fmaxf(largest[r], x[r][c]);
            outgrown |= largest[r] > offset[r] + SLACK;
        }
        if (!any_lane(outgrown)) return;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int lanes = 1; lanes < LANES; lanes *= 2) largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], lanes));
            if (largest[r] > offset[r] + SLACK) {
                float factor = exp2_approximate(offset[r] - largest[r]);
                mass[r].scale(factor);
                square[r].scale(factor * factor);
                offset[r] = largest[r];
            }
        }
    }

    // Adds the mass that the lanes hold to its segment.
    MEMBER void flush() {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            deposit(r, segment, mass[r].total());
            mass[r].clear();
        }
    }

    // Adds a mass, spread over the row's lanes, to a segment.
    MEMBER void deposit(int r, int s, float part) {
        part = reduce(part);
        if (Layout::lane() != 0) return;
        auto& slot = block.slots[(warp_row + Layout::row(r)) * p.segments + s].running;
        if (offset[r] == NEGATIVE_INFINITY) {
            slot.mass += part; // no key so far: zero or NaN
        } else if (slot.offset == offset[r]) {
            slot.mass += part;
        } else {
            slot.mass = slot.mass * exp2_approximate(slot.offset - offset[r]) + part;
            slot.offset = offset[r];
        }
    }

    MEMBER float reduce(float part) const {
#pragma unroll
        for (int lanes = 1; lanes < LANES; lanes *= 2) part += shuffle_xor(part, lanes);
        return part;
    }

    // After the last tile: stores squares and offsets next to the masses.
    MEMBER void leave() {
        flush();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float total = reduce(square[r].total());
            if (Layout::lane() != 0) continue;
            int row = warp_row + Layout::row(r);
            block.squares[row] = double(total);
            block.offsets[row] = offset[r];
        }
    }

    static MEMBER bool between(int key, int from, int to) { return key >= from && key < to; }
};

// Empties the slots of a block of `rows` rows; all threads of the block, before a barrier.
DEVICE void clear_rows(const AttentionParameters& p, BlockRows block, int rows) {
    for (int slot = threadIdx.x; slot < rows * p.segments; slot += blockDim.x) block.slots[slot].running = {0.0f, NEGATIVE_INFINITY};
}

// Converts the masses of one row to shares of its attention, like `finish` of `online_softmax.rs`.
DEVICE void finish_row(const AttentionParameters& p, BlockRows block, int head, int row, int block_row) {
    Slot* slots = block.slots + block_row * p.segments;
    if (row >= p.row_count) {
        for (int s = 0; s < p.segments; s++) slots[s].share = 0.0;
        block.squares[block_row] = 0.0;
        return;
    }
    float offset = block.offsets[block_row];
    double total = 0.0;
    for (int s = 0; s < p.segments; s++) {
        auto running = slots[s].running;
        double factor = running.offset == offset ? 1.0 : exp2(double(running.offset) - double(offset));
        slots[s].share = double(running.mass) * factor;
        total += slots[s].share;
    }
    double sink = p.sinks ? exp2(p.sinks[head] - double(offset)) : 0.0;
    double scale = offset == NEGATIVE_INFINITY ? 0.0 : 1.0 / (total + sink);
    double weight = p.weights ? p.weights[row] : 1.0;
    double far = 0.0, square = block.squares[block_row] * scale * scale;
    for (int s = 0; s < p.segments; s++) {
        double share = slots[s].share * scale;
        if (s < p.far) far += share;
        slots[s].share = share * weight;
    }
    block.squares[block_row] = square * weight;
    if (p.row_mass) {
        uint64_t at = uint64_t(head) * p.row_count + row;
        p.row_mass[at] = far;
        p.row_square[at] = square;
    }
}

// Adds up the finished rows of a block: lanes over rows, then lanes in halves, the same order at every launch.
DEVICE void sum_rows(const AttentionParameters& p, BlockRows block, int head, int index, int rows) {
    int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    for (int value = warp; value <= p.segments; value += warps) {
        double sum = 0.0;
        for (int row = lane; row < rows; row += WARP)
            sum += value < p.segments ? block.slots[row * p.segments + value].share : block.squares[row];
        for (int lanes = WARP / 2; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
        if (lane == 0) p.block_sums[(uint64_t(head) * (p.segments + 1) + value) * p.blocks + index] = sum;
    }
}

// Finishes and sums the rows of a block after all of them have been stored. Called by all threads of the block.
DEVICE void finish_block(const AttentionParameters& p, BlockRows block, int head, int index, int rows) {
    synchronize_block();
    for (int row = threadIdx.x; row < rows; row += blockDim.x) finish_row(p, block, head, index * rows + row, row);
    synchronize_block();
    sum_rows(p, block, head, index, rows);
}

// Like finish_block, for a block with `rows` rows of each of `p.heads_per_block` heads, one head after the other.
DEVICE void finish_heads(const AttentionParameters& p, BlockRows block, int head, int index, int rows) {
    synchronize_block();
    for (int row = threadIdx.x; row < rows * p.heads_per_block; row += blockDim.x)
        finish_row(p, block, head + row / rows, index * rows + row % rows, row);
    synchronize_block();
    for (int of = 0; of < p.heads_per_block; of++) {
        BlockRows one = block;
        one.slots += of * rows * p.segments;
        one.squares += of * rows;
        sum_rows(p, one, head + of, index, rows);
    }
}

// Rows that a block of threads processes. Blocks of one key head are adjacent, with the last rows, which have the most
// keys, first: neighbours read the same keys, and the tail of a launch is short.
struct Task {
    int head, key_head, index;

    MEMBER Task(const AttentionParameters& p, int number) {
        key_head = number / (p.blocks * p.group);
        number %= p.blocks * p.group;
        index = p.blocks - 1 - number / p.group;
        head = key_head * p.group + number % p.group;
    }
};

// Tiles of `tile` keys that any row of a block sees, [from, to) in tiles.
struct Tiles {
    int from, to;

    MEMBER Tiles(const AttentionParameters& p, int index, int rows, int tile) {
        Visible first(p, row_position(p, index * rows));
        Visible last(p, row_position(p, smaller((index + 1) * rows, p.row_count) - 1));
        from = first.start / tile;
        to = last.end > first.start ? (last.end + tile - 1) / tile : from;
    }
};
