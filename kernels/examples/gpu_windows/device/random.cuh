// Operands of the loops that measure limits. The power of a product, and so the chip's clock, depends on the number of bits
// that change between operands.
#pragma once
#include "intrinsics.cuh"

// Pseudo-random bits, the same for the same seed.
DEVICE uint32_t mix(uint32_t seed) {
    seed = (seed ^ seed >> 16) * 0x7FEB352Du;
    seed = (seed ^ seed >> 15) * 0x846CA68Bu;
    return seed ^ seed >> 16;
}

// Two bf16 of either sign, from 0.5 to 2.
DEVICE uint32_t random_pair(uint32_t seed) { return (mix(seed) & 0x80FF80FFu) | 0x3F003F00u; }
