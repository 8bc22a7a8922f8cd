// Emulation of a GPU on the CPU, one block at a time, for tests of the device code: replaces nvcc's built-ins and
// `intrinsics.cuh` for an ordinary C++ compiler.
//
// Each CUDA thread is a fiber. A fiber runs until it waits: for its warp (shuffles, matrix products), its block, or a
// barrier in shared memory. A warp runs as far as it can before the next one starts, from first to last or in reverse, which
// detects missing barriers. Shared memory is initialised to NaN. Asynchronous copies and products complete immediately or
// as late as allowed, which detects buffers that are reused and results that are read too early.
//
// Not covered: timing, the memory model, races inside a warp, alignment of shared memory beyond the assertions.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define DEVICE static inline
#define MEMBER inline
#define KERNEL_PARAMETER(Type, name) const Type& name
#define DYNAMIC_SHARED(name) unsigned char* name = emulation::shared_memory()
#define __global__
#define __launch_bounds__(...)
#define threadIdx (emulation::thread_index())
#define blockIdx (emulation::block_index())
#define blockDim (emulation::block_size())

namespace emulation {

struct Index { unsigned x; };

Index thread_index();
Index block_index();
Index block_size();
unsigned char* shared_memory();
[[noreturn]] void fail(const char* reason);

// Synchronizes all 32 lanes; the last one to arrive calls `work` on the `mine` of lanes 0..32.
void synchronize_warp(void* mine, void (*work)(void* const* lanes));
void synchronize_block();

void copy_async(void* shared, const void* global, bool valid);
void commit_copies();
void wait_copies(int pending);

void barrier_init(uint64_t* barrier, uint32_t arrivals);
void barrier_arrive(uint64_t* barrier, uint32_t bytes);
void barrier_wait(uint64_t* barrier, uint32_t parity);
void copy_box(void* shared, const void* map, int number, int row, int head, uint64_t* barrier);

void group_multiply(float* x, uint64_t rows, uint64_t columns, bool add);
void group_multiply_commit();
void group_multiply_wait(int pending);

uint32_t shared_address(const void* pointer);

// `sum` and 8 products, as the tensor cores of an A100 add them (Fasi et al., "Numerical behavior of NVIDIA tensor cores",
// 2021): products are exact, every term is truncated below bit 24 after the first bit of the largest one, the rest is added
// exactly and truncated to a float.
inline float tensor_core_sum(float sum, const float* rows, const float* columns) {
    double terms[9] = {sum}, largest = std::fabs(double(sum)), plain = sum;
    for (int k = 0; k < 8; k++) {
        terms[k + 1] = double(rows[k]) * double(columns[k]);
        largest = std::fmax(largest, std::fabs(terms[k + 1]));
        plain += terms[k + 1];
    }
    if (largest == 0.0 || !std::isfinite(plain)) return float(plain);
    int exponent = std::ilogb(largest);
    double unit = std::ldexp(1.0, exponent - 24), units = std::ldexp(1.0, 24 - exponent);
    int64_t whole = 0;
    for (double term : terms) whole += int64_t(term * units);
    double exact = double(whole) * unit;
    float rounded = float(exact);
    return std::fabs(double(rounded)) > std::fabs(exact) ? std::nextafter(rounded, 0.0f) : rounded;
}

} // namespace emulation

DEVICE float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

DEVICE float widen(float value) { return value; }
DEVICE float widen(Bf16 value) { return from_bits(uint32_t(value.bits) << 16); }

template <class T> MEMBER T narrow(float value);
template <> MEMBER float narrow<float>(float value) { return value; }
template <> MEMBER Bf16 narrow<Bf16>(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return {0x7FFF};
    return {uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

DEVICE float exp2_approximate(float x) {
    float power = std::exp2(x);
    return power < from_bits(0x00800000) ? 0.0f : power;
}

DEVICE bool any_lane(bool condition) {
    struct Vote { bool mine, any; } vote = {condition, false};
    emulation::synchronize_warp(&vote, [](void* const* lanes) {
        bool any = false;
        for (int lane = 0; lane < WARP; lane++) any |= static_cast<Vote*>(lanes[lane])->mine;
        for (int lane = 0; lane < WARP; lane++) static_cast<Vote*>(lanes[lane])->any = any;
    });
    return vote.any;
}

template <class T> MEMBER T shuffle_xor(T value, int distance) {
    struct Shuffle { T mine, other; int distance; } shuffle = {value, T(0), distance};
    emulation::synchronize_warp(&shuffle, [](void* const* lanes) {
        for (int lane = 0; lane < WARP; lane++) {
            auto* own = static_cast<Shuffle*>(lanes[lane]);
            own->other = static_cast<Shuffle*>(lanes[lane ^ own->distance])->mine;
        }
    });
    return shuffle.other;
}

DEVICE void synchronize_block() { emulation::synchronize_block(); }
DEVICE void synchronize_warp() {
    int nothing;
    emulation::synchronize_warp(&nothing, [](void* const*) {});
}
DEVICE uint32_t shared_address(const void* pointer) { return emulation::shared_address(pointer); }

DEVICE void copy_async(void* shared, const void* global, bool valid) { emulation::copy_async(shared, global, valid); }
DEVICE void commit_copies() { emulation::commit_copies(); }
template <int PENDING> MEMBER void wait_copies() { emulation::wait_copies(PENDING); }

// Lane l points to row l % 8 of matrix l / 8 and receives numbers 2 (l % 4) and the next of row l / 4 of each.
DEVICE void load_matrices(uint32_t (&parts)[4], const void* row) {
    struct Load { const unsigned char* row; uint32_t* parts; } load = {static_cast<const unsigned char*>(row), parts};
    if (shared_address(row) % 16) emulation::fail("a matrix row is not aligned to 16 bytes");
    emulation::synchronize_warp(&load, [](void* const* lanes) {
        for (int lane = 0; lane < WARP; lane++)
            for (int matrix = 0; matrix < 4; matrix++) {
                const unsigned char* source = static_cast<Load*>(lanes[matrix * 8 + lane / 4])->row;
                std::memcpy(static_cast<Load*>(lanes[lane])->parts + matrix, source + lane % 4 * 4, 4);
            }
    });
}

// The fragments of `mma.m16n8k16`, from the tables of the PTX manual: a[i] holds row g + 8 (i % 2), columns
// 2 t + 8 (i / 2) and the next; b[i] rows 2 t + 8 i and the next of column g; c[i] row g + 8 (i / 2), column 2 t + i % 2;
// where g = lane / 4 and t = lane % 4.
template <class T>
MEMBER void multiply_add(float& c0, float& c1, float& c2, float& c3, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    struct Product { const uint32_t* a; uint32_t b[2]; float* c[4]; } product = {a, {b0, b1}, {&c0, &c1, &c2, &c3}};
    emulation::synchronize_warp(&product, [](void* const* lanes) {
        float rows[16][16], columns[8][16];
        auto number = [](uint32_t pair, int which) { return widen(T{uint16_t(pair >> 16 * which)}); };
        for (int lane = 0; lane < WARP; lane++) {
            auto* own = static_cast<Product*>(lanes[lane]);
            for (int i = 0; i < 4; i++)
                for (int which = 0; which < 2; which++)
                    rows[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + which] = number(own->a[i], which);
            for (int i = 0; i < 2; i++)
                for (int which = 0; which < 2; which++)
                    columns[lane / 4][lane % 4 * 2 + i * 8 + which] = number(own->b[i], which);
        }
        for (int lane = 0; lane < WARP; lane++)
            for (int i = 0; i < 4; i++) {
                const float *row = rows[lane / 4 + i / 2 * 8], *column = columns[lane % 4 * 2 + i % 2];
                float& sum = *static_cast<Product*>(lanes[lane])->c[i];
                for (int k = 0; k < 16; k += 8) sum = emulation::tensor_core_sum(sum, row + k, column + k);
            }
    });
}

DEVICE void barrier_init(uint64_t* barrier, uint32_t arrivals) { emulation::barrier_init(barrier, arrivals); }
DEVICE void publish_to_engines() {}
DEVICE void barrier_init_done() {}
DEVICE void barrier_arrive(uint64_t* barrier) { emulation::barrier_arrive(barrier, 0); }
DEVICE void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) { emulation::barrier_arrive(barrier, bytes); }
DEVICE void barrier_wait(uint64_t* barrier, uint32_t parity) { emulation::barrier_wait(barrier, parity); }
template <class Map>
MEMBER void copy_box(void* shared, const Map* map, int number, int row, int head, uint64_t* barrier) {
    emulation::copy_box(shared, map, number, row, head, barrier);
}

DEVICE void group_multiply_begin() {}
DEVICE void group_multiply_commit() { emulation::group_multiply_commit(); }
template <int PENDING> MEMBER void group_multiply_wait() { emulation::group_multiply_wait(PENDING); }
DEVICE void group_multiply(float (&x)[2][32], uint64_t rows, uint64_t columns, bool add) {
    emulation::group_multiply(&x[0][0], rows, columns, add);
}
DEVICE void hold(float (&)[2][32]) {}
template <int REGISTERS> MEMBER void give_registers() {}
template <int REGISTERS> MEMBER void take_registers() {}
