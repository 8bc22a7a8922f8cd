// Attention statistics on the tensor cores of sm_80 and later: version 1, the reference of version 2.
//
// A block of 4 warps has 64 or 128 rows, 16 or 32 per warp, whose queries stay in registers. Tiles of 64 keys are copied
// to shared memory, two in flight (`cp.async`). Products are `mma.sync` m16n8k16; `Rows` sums their fragments. Rows of
// keys in shared memory are padded by 16 bytes, so that the eight rows of a matrix load are in different banks.
#include "rows.cuh"

constexpr int WARPS = 4;
constexpr int TILE = 64;

// Lane l has rows l / 4 and l / 4 + 8 of each 16x8 product, and columns 2 (l % 4) and 2 (l % 4) + 1.
struct Fragment {
    static MEMBER int lane() { return threadIdx.x % 4; }
    static MEMBER int row(int r) { return r / 2 * 16 + r % 2 * 8 + threadIdx.x % WARP / 4; }
    static MEMBER int column(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }
};

// Returns the address of numbers `column..column + 8` of a key.
template <class T>
DEVICE const T* key_numbers(const AttentionParameters& p, int key_head, int key, int column) {
    const T* keys = static_cast<const T*>(p.keys);
    const T* shared = static_cast<const T*>(p.shared_keys);
    if (column < p.own_width) return keys + (uint64_t(key_head) * p.tokens + key) * p.own_width + column;
    return shared + uint64_t(key) * (p.width - p.own_width) + (column - p.own_width);
}

template <class T, int WIDTH, int TILES_OF_ROWS>
DEVICE void attention(const AttentionParameters& p) {
    constexpr int WARP_ROWS = 16 * TILES_OF_ROWS, BLOCK = WARPS * WARP_ROWS;
    constexpr int STRIDE = WIDTH + 8, STEPS = WIDTH / 16, CHUNKS = WIDTH / 8;
    static_assert(BLOCK <= 2 * TILE, "queries pass through the memory of the key tiles");
    DYNAMIC_SHARED(memory);
    T* tiles = reinterpret_cast<T*>(memory); // [2, TILE, STRIDE]
    BlockRows block(memory + 2 * TILE * STRIDE * sizeof(T), BLOCK, p.segments);
    int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    Task task(p, blockIdx.x);
    int first_row = task.index * BLOCK;

    // 1. Queries to registers, through shared memory.
    clear_rows(p, block, BLOCK);
    const T* queries = static_cast<const T*>(p.queries) + uint64_t(task.head) * p.row_count * WIDTH;
    for (int chunk = thread; chunk < BLOCK * CHUNKS; chunk += WARPS * WARP) {
        int row = chunk / CHUNKS, column = chunk % CHUNKS * 8;
        bool valid = first_row + row < p.row_count;
        copy_async(tiles + row * STRIDE + column, queries + uint64_t(valid ? first_row + row : 0) * WIDTH + column, valid);
    }
    commit_copies();
    wait_copies<0>();
    synchronize_block();
    uint32_t query[TILES_OF_ROWS][STEPS][4];
#pragma unroll
    for (int m = 0; m < TILES_OF_ROWS; m++)
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            load_matrices(query[m][step], tiles + (warp * WARP_ROWS + m * 16 + lane % 16) * STRIDE + step * 16 + lane / 16 * 8);
    synchronize_block();

    // 2. Tiles of keys, far to near.
    auto fetch = [&](int tile) {
        T* to = tiles + tile % 2 * TILE * STRIDE;
        for (int chunk = thread; chunk < TILE * CHUNKS; chunk += WARPS * WARP) {
            int row = chunk / CHUNKS, column = chunk % CHUNKS * 8, key = tile * TILE + row;
            bool valid = key < p.tokens;
            copy_async(to + row * STRIDE + column, key_numbers<T>(p, task.key_head, valid ? key : 0, column), valid);
        }
        commit_copies();
    };
    Rows<2 * TILES_OF_ROWS, TILE / 4, 4, Fragment> rows(p, block, task.head, first_row + warp * WARP_ROWS, WARP_ROWS, warp * WARP_ROWS);
    Tiles range(p, task.index, BLOCK, TILE);
    if (range.from < range.to) fetch(range.from);
    for (int tile = range.from; tile < range.to; tile++) {
        if (tile + 1 < range.to) {
            fetch(tile + 1);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        synchronize_block();
        float x[2 * TILES_OF_ROWS][TILE / 4];
        bool seen = rows.sees(tile * TILE);
        if (seen) {
#pragma unroll
            for (int r = 0; r < 2 * TILES_OF_ROWS; r++)
#pragma unroll
                for (int c = 0; c < TILE / 4; c++) x[r][c] = 0.0f;
            const T* keys = tiles + tile % 2 * TILE * STRIDE + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int n = 0; n < TILE / 8; n += 2) {
                    uint32_t key[4]; // two columns of 8 keys, two halves of the depth each
                    load_matrices(key, keys + n * 8 * STRIDE + step * 16);
#pragma unroll
                    for (int m = 0; m < TILES_OF_ROWS; m++)
#pragma unroll
                        for (int pair = 0; pair < 2; pair++) {
                            int c = (n + pair) * 2;
                            multiply_add<T>(x[2 * m][c], x[2 * m][c + 1], x[2 * m + 1][c], x[2 * m + 1][c + 1],
                                            query[m][step], key[2 * pair], key[2 * pair + 1]);
                        }
                }
        }
        synchronize_block(); // all warps have read the tile, so it may be overwritten
        if (seen) rows.absorb(x, tile * TILE);
    }

    // 3. Sums.
    rows.leave();
    finish_block(p, block, task.head, task.index, BLOCK);
}

#define ATTENTION_V1(name, Type, width, tiles_of_rows, blocks_per_multiprocessor)                    \
    extern "C" __global__ void __launch_bounds__(WARPS* WARP, blocks_per_multiprocessor)             \
        name(KERNEL_PARAMETER(AttentionParameters, parameters)) {                                    \
        attention<Type, width, tiles_of_rows>(parameters);                                           \
    }
#define ATTENTION_V1_WIDTHS(Type, type)                     \
    ATTENTION_V1(attention_v1_##type##_32, Type, 32, 2, 2)  \
    ATTENTION_V1(attention_v1_##type##_64, Type, 64, 2, 2)  \
    ATTENTION_V1(attention_v1_##type##_80, Type, 80, 2, 2)  \
    ATTENTION_V1(attention_v1_##type##_96, Type, 96, 2, 2)  \
    ATTENTION_V1(attention_v1_##type##_128, Type, 128, 2, 2) \
    ATTENTION_V1(attention_v1_##type##_192, Type, 192, 1, 2) \
    ATTENTION_V1(attention_v1_##type##_256, Type, 256, 1, 2)
ATTENTION_V1_WIDTHS(Bf16, bf16)
