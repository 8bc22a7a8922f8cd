// Queries and keys of a window from the layer-zero table: by token id, rotated by position, normalised, scaled,
// rounded once. Device version of `gather.rs`, `rope.rs` and `trigonometry.rs`.
//
// A block has one row; each thread first computes sines and cosines of some pairs, then each warp takes heads in turn.
// This file is compiled without contraction of multiplications and additions: without a norm, the float32 numbers before
// the last rounding have the bits of the CPU's.
#include "intrinsics.cuh"
#include "parameters.cuh"

constexpr int THREADS = 256;

// angle = quarter * pi/2 + remainder; `reduce`, `sine_near_zero` and `cosine_near_zero` of `trigonometry.rs`.
DEVICE void sine_cosine(double angle, double& sine, double& cosine) {
    constexpr double HALF_PI[3] = {1.57079632673412561417e+00, 6.07710050630396597660e-11, 2.02226624879595063154e-21};
    double quarter = rint(angle * 0.63661977236758134308);
    double high = trunc(quarter / 1048576.0) * 1048576.0;
    double low = quarter - high;
    double x = angle;
#pragma unroll
    for (int piece = 0; piece < 3; piece++) x = (x - high * HALF_PI[piece]) - low * HALF_PI[piece];
    constexpr double SINE[6] = {1.58969099521155e-10, -2.5050760253406863e-8, 2.7557313707070068e-6,
                                -1.984126982985795e-4, 8.33333333332249e-3, -1.6666666666666632e-1};
    constexpr double COSINE[6] = {-1.1359647557788195e-11, 2.087572321298175e-9, -2.7557314351390663e-7,
                                  2.480158728947673e-5, -1.388888888887411e-3, 4.16666666666666e-2};
    double square = x * x, of_sine = 0.0, of_cosine = 0.0;
#pragma unroll
    for (int n = 0; n < 6; n++) of_sine = of_sine * square + SINE[n];
#pragma unroll
    for (int n = 0; n < 6; n++) of_cosine = of_cosine * square + COSINE[n];
    double s = x + x * square * of_sine;
    double c = 1.0 - (0.5 * square - square * square * of_cosine);
    switch ((long long)(quarter) & 3) {
        case 0: sine = s; cosine = c; break;
        case 1: sine = c; cosine = -s; break;
        case 2: sine = -s; cosine = -c; break;
        default: sine = -c; cosine = s; break;
    }
}

DEVICE float table_number(const GatherParameters& p, uint64_t index) {
    if (p.table_format == TABLE_BF16) return widen(static_cast<const Bf16*>(p.table)[index]);
    return static_cast<const float*>(p.table)[index];
}

// NUMBERS of a head in each lane.
template <class T, int NUMBERS>
DEVICE void gather(const GatherParameters& p) {
    DYNAMIC_SHARED(memory);
    float* cosines = reinterpret_cast<float*>(memory); // [rotary_pairs], then the sines
    float* sines = cosines + p.rotary_pairs;
    int row = blockIdx.x, position = p.rows ? int(p.rows[row]) : row;
    for (int pair = threadIdx.x; pair < p.rotary_pairs; pair += THREADS) {
        double sine, cosine;
        sine_cosine(double(position) * double(p.inverse_frequencies[pair]), sine, cosine);
        cosines[pair] = float(cosine * p.attention_factor);
        sines[pair] = float(sine * p.attention_factor);
    }
    synchronize_block();

    int lane = threadIdx.x % WARP, rotary = 2 * p.rotary_pairs;
    double factor = p.factor * (p.row_scale ? double(p.row_scale[position]) : 1.0);
    for (int head = threadIdx.x / WARP; head < p.heads; head += THREADS / WARP) {
        uint64_t start = uint64_t(p.ids[position]) * p.row_width + p.first_number + uint64_t(head) * p.head_dim;
        T* out = static_cast<T*>(p.out) + (uint64_t(head) * p.row_count + row) * p.width;
        float numbers[NUMBERS];
        double squares = 0.0;
#pragma unroll
        for (int n = 0; n < NUMBERS; n++) {
            int d = lane + n * WARP;
            if (d >= p.head_dim) break;
            float own = table_number(p, start + d);
            if (d < rotary) {
                bool second = p.interleaved ? d % 2 : d >= p.rotary_pairs;
                int pair = p.interleaved ? d / 2 : d - (second ? p.rotary_pairs : 0);
                int distance = p.interleaved ? 1 : p.rotary_pairs;
                float other = table_number(p, start + (second ? d - distance : d + distance));
                float turned = other * sines[pair];
                own = second ? own * cosines[pair] + turned : own * cosines[pair] - turned;
            }
            numbers[n] = own;
            squares += double(own) * double(own);
        }
        double norm = 1.0;
        if (p.norm_weight) {
            for (int lanes = WARP / 2; lanes > 0; lanes /= 2) squares += shuffle_xor(squares, lanes);
            norm = 1.0 / sqrt(squares / double(p.head_dim) + p.norm_epsilon);
        }
#pragma unroll
        for (int n = 0; n < NUMBERS; n++) {
            int d = lane + n * WARP;
            if (d >= p.width) break;
            float number = 0.0f;
            if (d < p.head_dim) {
                number = numbers[n];
                if (p.norm_weight) number = float(double(number) * norm * double(p.norm_weight[d]));
                number = float(double(number) * factor);
            }
            out[d] = narrow<T>(number);
        }
    }
}

#define GATHER_ROPE(name, Type, widest_head)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) name(KERNEL_PARAMETER(GatherParameters, parameters)) { \
        gather<Type, widest_head / WARP>(parameters);                                                    \
    }
GATHER_ROPE(gather_rope_f32, float, 512)
GATHER_ROPE(gather_rope_bf16, Bf16, 256)
