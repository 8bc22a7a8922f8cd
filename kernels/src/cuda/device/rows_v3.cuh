// `Rows` for attention_v3.cu: the same segments and sums, fewer instructions.
//
// * If no product can be far from 0, because |q·k| <= |q| |k|, exponentials need no maximum and no offset. This applies
//   to a warp from its first tile until one that is not bounded.
// * Soft-cap and ALiBi are compiled in or left out.
// * A tile that crosses an edge masks keys only if some row does not see all of them, and sums only the columns that
//   belong to a segment, eight at a time.
#pragma once
#include "rows.cuh"
#include "slabs.cuh"

#ifndef LONGSIFT_V3_BOUNDED
#define LONGSIFT_V3_BOUNDED 1
#endif
#ifndef LONGSIFT_V3_CHAINS
#define LONGSIFT_V3_CHAINS 4
#endif

// Powers of two: a row of 2^24 squares of 2^100 is finite, and a square of 2^-100 is a normal number.
constexpr float BOUND = 50.0f;

template <bool SOFTCAP, bool ALIBI>
struct QuickRows : Rows<2, 32, 4, Accumulator> {
    using Base = Rows<2, 32, 4, Accumulator>;
    static constexpr int ROWS = 2, COLUMNS = 32, CHAINS = LONGSIFT_V3_CHAINS;
    static constexpr bool MAY_BE_BOUNDED = LONGSIFT_V3_BOUNDED && !SOFTCAP && !ALIBI;

    float query_norm;   // largest norm of the warp's queries
    bool moved;         // an offset of the warp is neither 0 nor minus infinity

    MEMBER QuickRows(const AttentionParameters& parameters, BlockRows rows, int head, int row, int warp_row)
        : Base(parameters, rows, head, row, 16, warp_row), query_norm(INFINITY), moved(false) {}

    // Adds the keys of the tile that begins at `key`; `x` holds their products and is overwritten; `key_norm` is the largest norm.
    MEMBER void absorb(float (&x)[ROWS][COLUMNS], int key, float key_norm) {
        if (!sees(key)) return;
        bend(x, key);
        int most = last - key, least = first - (key + KEYS - 1);
        while (segment_first < p.segments - 1 && most < p.distances[segment_first]) segment_first++;
        segment_last = larger(segment_last, segment_first);
        while (segment_last < p.segments - 1 && least < p.distances[segment_last]) segment_last++;
        bool whole = key >= whole_from && key + KEYS <= whole_to;
        bool bounded = MAY_BE_BOUNDED && !moved && query_norm * key_norm <= BOUND;
        if (whole && segment_first == segment_last) {
            if (segment != segment_first) {
                flush();
                segment = segment_first;
            }
            absorb_whole(x, bounded);
        } else {
            absorb_edge(x, key, whole, bounded);
        }
        synchronize_warp(); // lanes that store masses are late, and the code below needs all lanes
    }

    MEMBER void absorb_whole(float (&x)[ROWS][COLUMNS], bool bounded) {
        bool far = segment < p.far;
        if (bounded) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) offset[r] = 0.0f;
            if (far) add_whole<true, true>(x);
            else add_whole<false, true>(x);
        } else {
            rebase(x);
            if (far) add_whole<true, false>(x);
            else add_whole<false, false>(x);
        }
    }

    template <bool FAR, bool AT_ZERO> MEMBER void add_whole(const float (&x)[ROWS][COLUMNS]) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float masses[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                float power = exp2_approximate(AT_ZERO ? x[r][c] : x[r][c] - offset[r]);
                masses[c % 2] += power;
                if (FAR) squares[c % 2] = fmaf(power, power, squares[c % 2]);
            }
            if (FAR) square[r].add(squares[0] + squares[1]);
            mass[r].add(masses[0] + masses[1]);
        }
    }

    MEMBER void absorb_edge(float (&x)[ROWS][COLUMNS], int key, bool whole, bool bounded) {
        flush();
        // 1. Hidden keys neither move the offset nor have a mass.
        if (!whole) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                unsigned from = start[r] - key, length = end[r] - start[r];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    if (unsigned(Accumulator::column(c)) - from >= length) x[r][c] = NEGATIVE_INFINITY;
            }
        }
        // 2. Exponentials. A row that has seen no key so far and sees none here keeps its offset.
        if (bounded) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (start[r] < end[r] && start[r] < key + KEYS && end[r] > key) offset[r] = 0.0f;
        } else {
            rebase(x);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float base = offset[r] == NEGATIVE_INFINITY ? 0.0f : offset[r];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) x[r][c] = exp2_approximate(x[r][c] - base);
        }
        // 3. Sums, segment by segment.
        for (int s = segment_first; s <= segment_last; s++) add_segment(x, key, s);
    }

    MEMBER void add_segment(const float (&x)[ROWS][COLUMNS], int key, int s) {
        // Start and end of the segment in the warp's first and last row, counted from the tile's first key; all other
        // rows are in between.
        int begin = s == 0 ? -p.tokens : 1 - p.distances[s - 1] - key, finish = s == p.segments - 1 ? p.tokens : 1 - p.distances[s] - key;
        int from_first = first + begin, to_last = last + finish;
        unsigned from[ROWS], length[ROWS];
        float of_mass[ROWS][2], of_squares[ROWS][2];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            from[r] = position[r] + begin;
            length[r] = larger(finish - begin, 0);
            of_mass[r][0] = of_mass[r][1] = of_squares[r][0] = of_squares[r][1] = 0.0f;
        }
#pragma unroll
        for (int eight = 0; eight < COLUMNS / 2; eight++) {
            if (eight * 8 + 8 <= from_first || eight * 8 >= to_last) continue;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 2 * eight; c < 2 * eight + 2; c++) {
                    float power = unsigned(Accumulator::column(c)) - from[r] < length[r] ? x[r][c] : 0.0f;
                    of_mass[r][c % 2] += power;
                    of_squares[r][c % 2] = fmaf(power, power, of_squares[r][c % 2]);
                }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (s < p.far) square[r].add(of_squares[r][0] + of_squares[r][1]);
            deposit(r, s, of_mass[r][0] + of_mass[r][1]);
        }
    }

    // Softcap, then ALiBi.
    MEMBER void bend(float (&x)[ROWS][COLUMNS], int key) {
        if (SOFTCAP) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) x[r][c] = p.softcap * hyperbolic_tangent(x[r][c]);
        }
        if (ALIBI) {
            float slope = p.slopes[head];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    x[r][c] = fmaf(slope, float(key + Accumulator::column(c) - position[r]), x[r][c]);
        }
    }

    // Moves the offset of rows whose largest logit exceeds it by too much, identically in all lanes of a row.
    MEMBER void rebase(const float (&x)[ROWS][COLUMNS]) {
        float largest[ROWS];
        bool outgrown = false;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float of[CHAINS];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) of[c % CHAINS] = c < CHAINS ? x[r][c] : fmaxf(of[c % CHAINS], x[r][c]);
            largest[r] = of[0];
#pragma unroll
            for (int chain = 1; chain < CHAINS; chain++) largest[r] = fmaxf(largest[r], of[chain]);
            outgrown |= largest[r] > offset[r] + SLACK;
        }
        if (!any_lane(outgrown)) return;
        moved = true;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2) largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], lanes));
            if (largest[r] > offset[r] + SLACK) {
                float factor = exp2_approximate(offset[r] - largest[r]);
                mass[r].scale(factor);
                square[r].scale(factor * factor);
                offset[r] = largest[r];
            }
        }
    }
};
