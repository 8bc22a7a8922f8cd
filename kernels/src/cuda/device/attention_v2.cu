// Attention statistics on Hopper (sm_90a): version 2. Version 1 is its reference.
//
// A block has three warpgroups and 128 rows of one head. One thread of the first warpgroup fetches queries once and tiles
// of 128 keys, several in flight, with the bulk copy engine; the other two warpgroups have 64 rows each, with both
// operands of their products (`wgmma` m64n128k16) in shared memory. The products of a tile run while the previous tile is
// summed: two sets of accumulators alternate. Barriers in shared memory: `full` signals that a stage's bytes have
// arrived, `empty` that both warpgroups have used them. Slabs: `slabs.cuh`.
//
// The assembler overlaps products and sums only if it can track the two sets of accumulators: with one tail for both
// parities of the number of tiles, or with a condition around `start`, it inserts a wait after every product and reports
// it (C7514, C7518). The build turns those remarks into warnings.
#include "rows.cuh"
#include "slabs.cuh"

constexpr int BLOCK = 128;
constexpr int GROUP = 128;                          // threads of a warpgroup
constexpr int THREADS = 3 * GROUP;
constexpr int CONSUMER_WARPS = 2 * GROUP / WARP;

template <int WIDTH, int STAGES>
DEVICE void attention(const TensorAttentionParameters& parameters) {
    constexpr int SLABS = (WIDTH + SLAB - 1) / SLAB, STEPS = WIDTH / 16, STAGE_BYTES = SLABS * SLAB_BYTES;
    const AttentionParameters& p = parameters.attention;
    DYNAMIC_SHARED(memory);
    unsigned char* queries = memory;                       // [SLABS, BLOCK, SLAB]
    unsigned char* stages = queries + STAGE_BYTES;         // [STAGES, SLABS, TILE, SLAB]
    uint64_t* full = reinterpret_cast<uint64_t*>(stages + STAGES * STAGE_BYTES);
    uint64_t* empty = full + STAGES;
    uint64_t* queries_full = empty + STAGES;
    BlockRows block(reinterpret_cast<unsigned char*>(full + 2 * STAGES + 2), BLOCK, p.segments);
    int thread = threadIdx.x, group = thread / GROUP;
    Task task(p, blockIdx.x);
    Tiles range(p, task.index, BLOCK, TILE);

    if (thread == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(full + stage, 1);
            barrier_init(empty + stage, CONSUMER_WARPS);
        }
        barrier_init(queries_full, 1);
        barrier_init_done();
    }
    clear_rows(p, block, BLOCK);
    synchronize_block();

    if (group == 0) {
        give_registers<40>(); // sufficient for finish_block as well
        if (thread == 0 && range.from < range.to) {
            barrier_arrive_expecting(queries_full, STAGE_BYTES);
            for (int slab = 0; slab < SLABS; slab++)
                copy_box(queries + slab * SLAB_BYTES, &parameters.queries, slab * SLAB, task.index * BLOCK, task.head, queries_full);
            for (int tile = range.from; tile < range.to; tile++) {
                int turn = (tile - range.from) / STAGES, stage = (tile - range.from) % STAGES;
                if (turn > 0) barrier_wait(empty + stage, (turn - 1) & 1);
                barrier_arrive_expecting(full + stage, STAGE_BYTES);
                for (int slab = 0; slab < SLABS; slab++) {
                    unsigned char* slot = stages + stage * STAGE_BYTES + slab * SLAB_BYTES;
                    int number = slab * SLAB;
                    if (number < p.own_width)
                        copy_box(slot, &parameters.keys, number, tile * TILE, task.key_head, full + stage);
                    else
                        copy_box(slot, &parameters.shared_keys, number - p.own_width, tile * TILE, 0, full + stage);
                }
            }
        }
    } else {
        take_registers<232>();
        int warp_row = thread / WARP * 16 - BLOCK / 2; // 0 for the first warp of the second warpgroup
        Rows<2, 32, 4, Accumulator> rows(p, block, task.head, task.index * BLOCK + warp_row, 16, warp_row);
        uint64_t own_rows = slab_descriptor(queries + (group - 1) * (64 * SLAB * 2));
        float even[2][32], odd[2][32];
        auto start = [&](float (&x)[2][32], int tile) {
            int turn = (tile - range.from) / STAGES, stage = (tile - range.from) % STAGES;
            barrier_wait(full + stage, turn & 1);
            multiply_tile<STEPS, SLAB_BYTES>(x, own_rows, slab_descriptor(stages + stage * STAGE_BYTES));
        };
        // The products of `tile` are complete, those of the next tile may still run.
        auto finish = [&](float (&x)[2][32], int tile) {
            hold(x);
            if (thread % WARP == 0) barrier_arrive(empty + (tile - range.from) % STAGES);
            rows.absorb(x, tile * TILE);
        };
        if (range.from < range.to) {
            barrier_wait(queries_full, 0);
            start(even, range.from);
            int tile = range.from;
            for (; tile + 2 < range.to; tile += 2) {
                start(odd, tile + 1);
                group_multiply_wait<1>();
                finish(even, tile);
                start(even, tile + 2);
                group_multiply_wait<1>();
                finish(odd, tile + 1);
            }
            if (tile + 1 < range.to) {
                start(odd, tile + 1);
                group_multiply_wait<1>();
                finish(even, tile);
                group_multiply_wait<0>();
                finish(odd, tile + 1);
            } else {
                group_multiply_wait<0>();
                finish(even, tile);
            }
        }
        rows.leave();
    }
    finish_block(p, block, task.head, task.index, BLOCK);
}

#define ATTENTION_V2(name, width, stages)                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                       \
        name(KERNEL_PARAMETER(TensorAttentionParameters, parameters)) {            \
        attention<width, stages>(parameters);                                      \
    }
ATTENTION_V2(attention_v2_bf16_32, 32, 4)
ATTENTION_V2(attention_v2_bf16_64, 64, 4)
ATTENTION_V2(attention_v2_bf16_80, 80, 3)
ATTENTION_V2(attention_v2_bf16_96, 96, 3)
ATTENTION_V2(attention_v2_bf16_128, 128, 3)
ATTENTION_V2(attention_v2_bf16_192, 192, 3)
ATTENTION_V2(attention_v2_bf16_256, 256, 2)
