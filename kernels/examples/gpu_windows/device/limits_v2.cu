// Limit of Hopper's tensor cores with their own instructions (sm_90a): products of warpgroups, both operands in
// shared memory, as attention_v2.cu issues them.
#include "random.cuh"
#include "slabs.cuh"

struct LimitParameters {
    float* out;     // [blocks, threads]
    int32_t rounds;
    float start;
};

constexpr int GROUPS = 2;
constexpr int STEPS = 8;

// 8 products of 64x128x16 per round and warpgroup.
extern "C" __global__ void __launch_bounds__(128 * GROUPS, 1) limit_group_products(KERNEL_PARAMETER(LimitParameters, p)) {
    DYNAMIC_SHARED(memory);
    uint32_t* pairs = reinterpret_cast<uint32_t*>(memory);
    for (int at = threadIdx.x; at < (GROUPS * 64 + 128) * 32; at += blockDim.x) pairs[at] = random_pair(at);
    publish_to_engines();
    synchronize_block();
    uint64_t rows = slab_descriptor(memory + threadIdx.x / 128 * 64 * 128);
    uint64_t columns = slab_descriptor(memory + GROUPS * 64 * 128);
    float x[2][32];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int c = 0; c < 32; c++) x[half][c] = 0.0f;
    for (int round = 0; round < p.rounds; round++) {
        hold(x);
        group_multiply_begin();
#pragma unroll
        for (int step = 0; step < STEPS; step++) group_multiply(x, rows + step % 4 * 2, columns + step % 4 * 2, true);
        group_multiply_commit();
        group_multiply_wait<0>();
        hold(x);
    }
    float sum = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int c = 0; c < 32; c++) sum += x[half][c];
    p.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
