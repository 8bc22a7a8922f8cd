// Attention statistics in float32 without tensor cores, for tables of float32: exact products, slow.
//
// A block of 4 warps has 64 rows; it processes tiles of 64 keys. A product is one running sum over the depth,
// fused multiply-adds in ascending order, so a logit has the bits of the CPU's fused kernels. A thread has 4 rows and 8
// keys; 8 neighbouring lanes share the rows.
#include "rows.cuh"

constexpr int WARPS = 4;
constexpr int BLOCK = 64;
constexpr int TILE = 64;
constexpr int DEPTH = 32;              // numbers of rows and keys in shared memory at a time
constexpr int STRIDE = DEPTH + 4;      // floats from one to the next: four numbers of 8 rows fall into different banks

struct Square {
    static MEMBER int lane() { return threadIdx.x % 8; }
    static MEMBER int row(int r) { return threadIdx.x % WARP / 8 + 4 * r; }
    static MEMBER int column(int c) { return threadIdx.x % 8 + 8 * c; }
};

struct alignas(16) Four { float number[4]; };

// Copies numbers `depth..depth + DEPTH` of 64 rows to shared memory; rows from `count` on are zero.
template <class Source>
DEVICE void copy_slice(float* shared, int first, int count, Source&& source) {
    for (int chunk = threadIdx.x; chunk < 64 * DEPTH / 4; chunk += WARPS * WARP) {
        int row = chunk / (DEPTH / 4), column = chunk % (DEPTH / 4) * 4;
        Four numbers = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (first + row < count) numbers = *reinterpret_cast<const Four*>(source(first + row, column));
        *reinterpret_cast<Four*>(shared + row * STRIDE + column) = numbers;
    }
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP) attention_f32(KERNEL_PARAMETER(AttentionParameters, p)) {
    DYNAMIC_SHARED(memory);
    float* query = reinterpret_cast<float*>(memory); // [BLOCK, STRIDE]
    float* keys = query + BLOCK * STRIDE;            // [TILE, STRIDE]
    BlockRows block(memory + (BLOCK + TILE) * STRIDE * sizeof(float), BLOCK, p.segments);
    int warp_row = threadIdx.x / WARP * 16;
    Task task(p, blockIdx.x);
    int first_row = task.index * BLOCK;
    clear_rows(p, block, BLOCK);
    synchronize_block();

    const float* all_queries = static_cast<const float*>(p.queries) + uint64_t(task.head) * p.row_count * p.width;
    const float* own_keys = static_cast<const float*>(p.keys) + uint64_t(task.key_head) * p.tokens * p.own_width;
    const float* shared_keys = static_cast<const float*>(p.shared_keys);
    Rows<4, 8, 8, Square> rows(p, block, task.head, first_row + warp_row, 16, warp_row);
    Tiles range(p, task.index, BLOCK, TILE);
    for (int tile = range.from; tile < range.to; tile++) {
        float x[4][8];
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 8; c++) x[r][c] = 0.0f;
        for (int depth = 0; depth < p.width; depth += DEPTH) {
            copy_slice(query, first_row, p.row_count, [&](int row, int column) {
                return all_queries + uint64_t(row) * p.width + depth + column;
            });
            copy_slice(keys, tile * TILE, p.tokens, [&](int key, int column) {
                column += depth;
                if (column < p.own_width) return own_keys + uint64_t(key) * p.own_width + column;
                return shared_keys + uint64_t(key) * (p.width - p.own_width) + (column - p.own_width);
            });
            synchronize_block();
#pragma unroll 2
            for (int column = 0; column < DEPTH; column += 4) {
                Four of_rows[4], of_keys[8];
#pragma unroll
                for (int r = 0; r < 4; r++)
                    of_rows[r] = *reinterpret_cast<const Four*>(query + (warp_row + Square::row(r)) * STRIDE + column);
#pragma unroll
                for (int c = 0; c < 8; c++)
                    of_keys[c] = *reinterpret_cast<const Four*>(keys + Square::column(c) * STRIDE + column);
#pragma unroll
                for (int d = 0; d < 4; d++)
#pragma unroll
                    for (int r = 0; r < 4; r++)
#pragma unroll
                        for (int c = 0; c < 8; c++) x[r][c] = fmaf(of_rows[r].number[d], of_keys[c].number[d], x[r][c]);
            }
            synchronize_block();
        }
        rows.absorb(x, tile * TILE);
    }
    rows.leave();
    finish_block(p, block, task.head, task.index, BLOCK);
}

// Sums of blocks in a fixed order: one warp per value, lane l adds blocks l, l + 32 and so on, then lanes are added in halves.
extern "C" __global__ void __launch_bounds__(WARP) sum_blocks(KERNEL_PARAMETER(SumParameters, p)) {
    const double* blocks = p.in + uint64_t(blockIdx.x) * p.blocks;
    double sum = 0.0;
    for (int block = threadIdx.x; block < p.blocks; block += WARP) sum += blocks[block];
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
    if (threadIdx.x == 0) p.out[blockIdx.x] = sum;
}
