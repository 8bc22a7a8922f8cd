// Limits of the chip, which the kernels are compared with: products on the tensor cores, exponentials and fused
// multiply-adds, of numbers whose bits change. Results are written so that nothing is optimised away.
#include "random.cuh"

constexpr int CHAINS = 8;

struct LimitParameters {
    float* out;     // [blocks, threads]
    int32_t rounds;
    float start;
};

// 8 products of 16x8x16 per round and warp.
template <class T>
DEVICE void products(const LimitParameters& p) {
    float x[CHAINS][4];
    uint32_t a[2][4], b[CHAINS][2];
#pragma unroll
    for (int i = 0; i < 8; i++) a[i / 4][i % 4] = random_pair(threadIdx.x * 64 + i);
#pragma unroll
    for (int i = 0; i < 2 * CHAINS; i++) b[i / 2][i % 2] = random_pair(threadIdx.x * 64 + 8 + i);
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++)
#pragma unroll
        for (int i = 0; i < 4; i++) x[chain][i] = p.start;
    for (int round = 0; round < p.rounds; round++) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++)
            multiply_add<T>(x[chain][0], x[chain][1], x[chain][2], x[chain][3], a[chain % 2], b[chain][0], b[chain][1]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum += x[chain][i];
    p.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256) limit_products(KERNEL_PARAMETER(LimitParameters, p)) { products<Bf16>(p); }

// 8 exponentials per round and thread.
extern "C" __global__ void __launch_bounds__(256) limit_exponentials(KERNEL_PARAMETER(LimitParameters, p)) {
    float x[CHAINS];
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) x[chain] = p.start * (chain + 1) + threadIdx.x % WARP / 32.0f;
    for (int round = 0; round < p.rounds; round++) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) x[chain] = exp2_approximate(-x[chain]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) sum += x[chain];
    p.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// 8 fused multiply-adds per round and thread.
extern "C" __global__ void __launch_bounds__(256) limit_multiply_adds(KERNEL_PARAMETER(LimitParameters, p)) {
    float x[CHAINS];
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) x[chain] = p.start * (chain + 1) + float(threadIdx.x);
    for (int round = 0; round < p.rounds; round++) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++) x[chain] = fmaf(x[chain], -0.99999f, p.start);
    }
    float sum = 0.0f;
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) sum += x[chain];
    p.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
