// Attention statistics on Hopper (sm_90a): version 3. Version 2 is its reference.
//
// A block has four warpgroups of 64 rows each: 128 rows of each of two query heads of one key head if there are two,
// otherwise 256 rows of one; for heads wider than 128, two warpgroups and 128 rows. Every tile of 128 keys in shared
// memory thus serves 256 rows. There is no producer warpgroup: thread 0 also requests tiles, so registers are not
// redistributed, and one set of accumulators suffices, since one warpgroup's products run while another one sums.
// Barriers in shared memory: `full` signals that a stage's bytes have arrived, `empty` that all warps have used them.
// Slabs: `slabs.cuh`; sums: `rows_v3.cuh`.
//
// For experiments: LONGSIFT_V3_STAGES (tiles in flight, limited by the shared memory that the host requests),
// LONGSIFT_V3_BOUNDED (0: always follow the largest logit), LONGSIFT_V3_CHAINS (number of independent maxima).
#include "rows_v3.cuh"

constexpr int GROUP = 128;      // threads of a warpgroup
constexpr int GROUP_ROWS = 64;

// Layout of heads of WIDTH numbers.
template <int WIDTH>
struct HeadLayout {
    static constexpr int SLABS = (WIDTH + SLAB - 1) / SLAB;
    static constexpr int GROUPS = SLABS <= 2 ? 4 : 2;
#ifdef LONGSIFT_V3_STAGES
    static constexpr int STAGES = LONGSIFT_V3_STAGES;
#else
    static constexpr int STAGES = SLABS == 1 ? 4 : SLABS == 4 ? 2 : 3;
#endif
};

// Rows that a block processes, in the order of `Task`.
struct HeadsTask {
    int head, key_head, index;

    MEMBER HeadsTask(const AttentionParameters& p, int number) {
        int tasks = p.group / p.heads_per_block;
        key_head = number / (p.blocks * tasks);
        number %= p.blocks * tasks;
        index = p.blocks - 1 - number / tasks;
        head = key_head * p.group + number % tasks * p.heads_per_block;
    }
};

// Largest norm of a warp's 16 queries; infinite if a number is not finite. The swizzle only reorders numbers within a
// row of a slab, which does not affect norms.
template <int SLABS, int ROWS_BYTES>
DEVICE float longest_query(const unsigned char* rows) {
    int lane = threadIdx.x % WARP;
    float square = 0.0f;
    for (int slab = 0; slab < SLABS; slab++) {
        const Bf16* half = reinterpret_cast<const Bf16*>(rows + slab * ROWS_BYTES + lane / 2 * SLAB * 2) + lane % 2 * (SLAB / 2);
        for (int number = 0; number < SLAB / 2; number++) square = fmaf(widen(half[number]), widen(half[number]), square);
    }
    square += shuffle_xor(square, 1);
    float longest = square < INFINITY ? square : INFINITY;
    for (int lanes = 2; lanes < WARP; lanes *= 2) longest = fmaxf(longest, shuffle_xor(longest, lanes));
    return sqrtf(longest);
}

template <int WIDTH, bool SOFTCAP, bool ALIBI>
DEVICE void attention(const TensorAttentionParameters& parameters) {
    constexpr int SLABS = HeadLayout<WIDTH>::SLABS, STEPS = WIDTH / 16, STAGES = HeadLayout<WIDTH>::STAGES, GROUPS = HeadLayout<WIDTH>::GROUPS;
    constexpr int STAGE_BYTES = SLABS * SLAB_BYTES, BLOCK = GROUPS * GROUP_ROWS, ROWS_BYTES = BLOCK * SLAB * 2;
    const AttentionParameters& p = parameters.attention;
    DYNAMIC_SHARED(memory);
    unsigned char* queries = memory;                       // [SLABS, BLOCK, SLAB]
    unsigned char* stages = queries + SLABS * ROWS_BYTES;  // [STAGES, SLABS, TILE, SLAB]
    uint64_t* full = reinterpret_cast<uint64_t*>(stages + STAGES * STAGE_BYTES);
    uint64_t* empty = full + STAGES;
    uint64_t* queries_full = empty + STAGES;
    BlockRows block(reinterpret_cast<unsigned char*>(full + 2 * STAGES + 2), BLOCK, p.segments);
    int thread = threadIdx.x, head_rows = BLOCK / p.heads_per_block;
    HeadsTask task(p, blockIdx.x);
    Tiles range(p, task.index, head_rows, TILE);

    if (thread == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(full + stage, 1);
            barrier_init(empty + stage, GROUPS * GROUP / WARP);
        }
        barrier_init(queries_full, 1);
        barrier_init_done();
    }
    clear_rows(p, block, BLOCK);
    synchronize_block();

    auto request = [&](int tile, int stage) {
        barrier_arrive_expecting(full + stage, STAGE_BYTES);
        for (int slab = 0; slab < SLABS; slab++) {
            unsigned char* slot = stages + stage * STAGE_BYTES + slab * SLAB_BYTES;
            int number = slab * SLAB;
            if (number < p.own_width)
                copy_box(slot, &parameters.keys, number, tile * TILE, task.key_head, full + stage);
            else
                copy_box(slot, &parameters.shared_keys, number - p.own_width, tile * TILE, 0, full + stage);
        }
    };
    if (thread == 0 && range.from < range.to) {
        barrier_arrive_expecting(queries_full, SLABS * ROWS_BYTES);
        for (int slab = 0; slab < SLABS; slab++)
            for (int box = 0; box < BLOCK / TILE; box++) {
                int row = box * TILE; // of the block
                copy_box(queries + slab * ROWS_BYTES + row * SLAB * 2, &parameters.queries, slab * SLAB,
                         task.index * head_rows + row % head_rows, task.head + row / head_rows, queries_full);
            }
        for (int tile = range.from; tile < range.to && tile < range.from + STAGES; tile++) request(tile, tile - range.from);
    }

    int warp_row = thread / WARP * 16, head = task.head + warp_row / head_rows; // of the block
    QuickRows<SOFTCAP, ALIBI> rows(p, block, head, task.index * head_rows + warp_row % head_rows, warp_row);
    if (range.from < range.to) {
        const float* key_norms = parameters.key_norms + uint64_t(task.key_head) * ((p.tokens + TILE - 1) / TILE);
        uint64_t own_rows = slab_descriptor(queries + warp_row / GROUP_ROWS * GROUP_ROWS * SLAB * 2);
        barrier_wait(queries_full, 0);
        if (rows.MAY_BE_BOUNDED) rows.query_norm = longest_query<SLABS, ROWS_BYTES>(queries + warp_row * SLAB * 2);
        float x[2][32];
        int stage = 0, turn = 0; // its parity
        for (int tile = range.from; tile < range.to; tile++) {
            float key_norm = rows.MAY_BE_BOUNDED ? key_norms[tile] : INFINITY;
            // The previous tile's stage is free once all warps have used it; it receives the tile STAGES - 1 ahead.
            if (thread == 0 && tile > range.from && tile + STAGES - 1 < range.to) {
                int before = stage == 0 ? STAGES - 1 : stage - 1;
                barrier_wait(empty + before, stage == 0 ? turn ^ 1 : turn);
                request(tile + STAGES - 1, before);
            }
            synchronize_warp();
            barrier_wait(full + stage, turn);
            multiply_tile<STEPS, ROWS_BYTES>(x, own_rows, slab_descriptor(stages + stage * STAGE_BYTES));
            group_multiply_wait<0>();
            hold(x);
            if (thread % WARP == 0) barrier_arrive(empty + stage);
            rows.absorb(x, tile * TILE, key_norm);
            if (++stage == STAGES) {
                stage = 0;
                turn ^= 1;
            }
        }
    }
    rows.leave();
    finish_heads(p, block, task.head, task.index, head_rows);
}

// One block of 128 threads per tile and key head: a warp processes one key at a time, a lane two numbers.
DEVICE void longest_keys(const KeyNormParameters& p) {
    DYNAMIC_SHARED(memory);
    float* of_warps = reinterpret_cast<float*>(memory); // [4]
    int head = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const Bf16* own = static_cast<const Bf16*>(p.keys) + uint64_t(head) * p.tokens * p.own_width;
    const Bf16* shared = static_cast<const Bf16*>(p.shared_keys);
    float longest = 0.0f;
    for (int key = tile * TILE + warp; key < p.tokens && key < (tile + 1) * TILE; key += 4) {
        float square = 0.0f;
        for (int number = 2 * lane; number < p.width; number += 2 * WARP) {
            const Bf16* pair = number < p.own_width ? own + uint64_t(key) * p.own_width + number
                                                    : shared + uint64_t(key) * (p.width - p.own_width) + (number - p.own_width);
            square = fmaf(widen(pair[0]), widen(pair[0]), square);
            square = fmaf(widen(pair[1]), widen(pair[1]), square);
        }
        for (int lanes = 1; lanes < WARP; lanes *= 2) square += shuffle_xor(square, lanes);
        longest = fmaxf(longest, square < INFINITY ? square : INFINITY);
    }
    if (lane == 0) of_warps[warp] = longest;
    synchronize_block();
    if (threadIdx.x == 0)
        p.out[uint64_t(head) * p.tiles + tile] = sqrtf(fmaxf(fmaxf(of_warps[0], of_warps[1]), fmaxf(of_warps[2], of_warps[3])));
}

extern "C" __global__ void __launch_bounds__(128) key_norms(KERNEL_PARAMETER(KeyNormParameters, parameters)) { longest_keys(parameters); }

#define ATTENTION_V3(width, name, SOFTCAP, ALIBI)                                            \
    extern "C" __global__ void __launch_bounds__(HeadLayout<width>::GROUPS * GROUP, 1)         \
        attention_v3_bf16_##width##name(KERNEL_PARAMETER(TensorAttentionParameters, parameters)) { \
        attention<width, SOFTCAP, ALIBI>(parameters);                                        \
    }
#define ATTENTION_V3_RULES(width)                       \
    ATTENTION_V3(width, , false, false)                 \
    ATTENTION_V3(width, _softcap, true, false)          \
    ATTENTION_V3(width, _alibi, false, true)            \
    ATTENTION_V3(width, _softcap_alibi, true, true)
ATTENTION_V3_RULES(32)
ATTENTION_V3_RULES(64)
ATTENTION_V3_RULES(80)
ATTENTION_V3_RULES(96)
ATTENTION_V3_RULES(128)
ATTENTION_V3_RULES(192)
ATTENTION_V3_RULES(256)
