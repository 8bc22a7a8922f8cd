// Instructions without a C++ equivalent, one small function each: PTX for nvcc here, ordinary C++ in the tests' emulation
// of a GPU, which defines LONGSIFT_EMULATION.
#pragma once
#include <cstdint>

// Conversions from float round to nearest, ties to even.
struct Bf16 { uint16_t bits; };

constexpr int WARP = 32;

#if defined(LONGSIFT_EMULATION)
#include "emulated_intrinsics.h"
#else

#define DEVICE static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define KERNEL_PARAMETER(Type, name) const __grid_constant__ Type name
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

DEVICE float widen(float value) { return value; }
DEVICE float widen(Bf16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }

template <class T> MEMBER T narrow(float value);
template <> MEMBER float narrow<float>(float value) { return value; }
template <> MEMBER Bf16 narrow<Bf16>(float value) {
    Bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
    return narrow;
}

// 2^x with a relative error of at most 2^-22; results below 2^-126 are 0.
DEVICE float exp2_approximate(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

DEVICE bool any_lane(bool condition) { return __any_sync(0xFFFFFFFF, condition); }
DEVICE float shuffle_xor(float value, int lanes) { return __shfl_xor_sync(0xFFFFFFFF, value, lanes); }
DEVICE double shuffle_xor(double value, int lanes) { return __shfl_xor_sync(0xFFFFFFFF, value, lanes); }
DEVICE void synchronize_block() { __syncthreads(); }
DEVICE void synchronize_warp() { __syncwarp(); }

DEVICE uint32_t shared_address(const void* pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

// Copies 16 bytes to shared memory, or zeros if `valid` is false; complete when its group has been waited for.
DEVICE void copy_async(void* shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all of this thread's groups of copies except the `PENDING` latest.
template <int PENDING> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

// Four 8x8 matrices of 16-bit numbers; lane l passes the address of row l % 8 of matrix l / 8 and receives, from each
// matrix, numbers 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
DEVICE void load_matrices(uint32_t (&parts)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
                 : "r"(shared_address(row)) : "memory");
}

// c (16x8) += a (16x16) * b (16x8) on the tensor cores.
template <class T> DEVICE void multiply_add(float& c0, float& c1, float& c2, float& c3, const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
#define MULTIPLY_ADD(Type, format)                                                                                          \
    template <> MEMBER void multiply_add<Type>(float& c0, float& c1, float& c2, float& c3, const uint32_t (&a)[4],          \
                                               uint32_t b0, uint32_t b1) {                                                  \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." format "." format ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                     "{%8, %9}, {%0, %1, %2, %3};"                                                                          \
                     : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)                                                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                       \
    }
MULTIPLY_ADD(Bf16, "bf16")
#undef MULTIPLY_ADD

// Barriers in shared memory that count arrivals and bytes (sm_90).
DEVICE void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes this thread's writes to shared memory visible to the copy engine and to products of warpgroups.
DEVICE void publish_to_engines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Makes initialised barriers visible to the copy engine.
DEVICE void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    publish_to_engines();
}
DEVICE void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier)) : "memory");
}
// Arrives and makes the phase wait for `bytes` more bytes of copies.
DEVICE void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits until the phase of this parity is complete.
DEVICE void barrier_wait(uint64_t* barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred complete;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, complete;\n}"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    } while (done == 0);
}

// Copies one box of a tensor to shared memory; `barrier` counts its bytes. Numbers outside the tensor are zero.
template <class Map>
DEVICE void copy_box(void* shared, const Map* map, int number, int row, int head, uint64_t* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(number), "r"(row), "r"(head)
                 : "memory");
}

// Products of a warpgroup, 64x128 += 64x16 * 16x128, both operands in shared memory by descriptor (sm_90a).
// `x[h][2j + b]` is row 16 (warp % 4) + lane / 4 + 8 h, column 8 j + 2 (lane % 4) + b.
DEVICE void group_multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void group_multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void group_multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}
#define LONGSIFT_COLUMNS(j) "+f"(x[0][2 * (j)]), "+f"(x[0][2 * (j) + 1]), "+f"(x[1][2 * (j)]), "+f"(x[1][2 * (j) + 1])
#define LONGSIFT_COLUMNS4(j) LONGSIFT_COLUMNS(j), LONGSIFT_COLUMNS((j) + 1), LONGSIFT_COLUMNS((j) + 2), LONGSIFT_COLUMNS((j) + 3)
DEVICE void group_multiply(float (&x)[2][32], uint64_t rows, uint64_t columns, bool add) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1, 0, 0;\n}"
        : LONGSIFT_COLUMNS4(0), LONGSIFT_COLUMNS4(4), LONGSIFT_COLUMNS4(8), LONGSIFT_COLUMNS4(12)
        : "l"(rows), "l"(columns), "r"(int(add)));
#endif
}
// Keeps the compiler from moving uses of accumulators across a wait.
DEVICE void hold(float (&x)[2][32]) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int column = 0; column < 32; column++) asm volatile("" : "+f"(x[half][column])::"memory");
}
#undef LONGSIFT_COLUMNS
#undef LONGSIFT_COLUMNS4

template <int REGISTERS> DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}
template <int REGISTERS> DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}

#endif
