// Tiles in shared memory as the bulk copy engine writes them and `wgmma` reads them (sm_90a): a slab has rows of 64
// numbers (128 bytes, the swizzle's width); wider heads have several.
#pragma once
#include "intrinsics.cuh"

constexpr int TILE = 128;                           // keys of a tile, rows of a box
constexpr int SLAB = 64;                            // numbers of a row in one slab
constexpr int SLAB_BYTES = TILE * SLAB * 2;         // of 128 rows

// Lane l has rows l / 4 and l / 4 + 8 of its warp's 16, and columns 8 j + 2 (l % 4) and the next.
struct Accumulator {
    static MEMBER int lane() { return threadIdx.x % 4; }
    static MEMBER int row(int r) { return r * 8 + threadIdx.x % WARP / 4; }
    static MEMBER int column(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }
};

// Describes rows of 128 bytes in the 128-byte swizzle, eight rows to each 1024 bytes.
DEVICE uint64_t slab_descriptor(const unsigned char* start) {
    uint64_t address = shared_address(start);
    return (address >> 4 & 0x3FFF) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// Starts the products of a warpgroup's 64 rows, whose slabs are ROWS_BYTES apart, with one tile.
template <int STEPS, int ROWS_BYTES>
DEVICE void multiply_tile(float (&x)[2][32], uint64_t rows, uint64_t keys) {
    hold(x);
    group_multiply_begin();
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        uint64_t of_rows = (step / 4 * ROWS_BYTES + step % 4 * 32) >> 4, of_keys = (step / 4 * SLAB_BYTES + step % 4 * 32) >> 4;
        group_multiply(x, rows + of_rows, keys + of_keys, step > 0);
    }
    group_multiply_commit();
}
