//! Sine and cosine in float64 without the platform's library, so that a rotary angle has the same bits everywhere.

/// π/2 in pieces: an integer of 20 bits times either of the first two (33 bits) is exact. From fdlibm, `e_rem_pio2.c`.
const HALF_PI: [f64; 3] = [
    f64::from_bits(0x3FF9_21FB_5440_0000),
    f64::from_bits(0x3DD0_B461_1A60_0000),
    f64::from_bits(0x3BA3_198A_2E03_7073),
];

/// Returns sine and cosine of `angle` in radians, each within 2.3e-16 for `|angle| <= 1e10`: far beyond any token
/// position. `NaN` and infinities give `NaN`.
pub(crate) fn sine_cosine(angle: f64) -> (f64, f64) {
    let (quarter, remainder) = reduce(angle);
    let (sine, cosine) = (sine_near_zero(remainder), cosine_near_zero(remainder));
    match quarter & 3 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// Computes `angle = quarter · π/2 + remainder` with `|remainder| <= π/4`, by subtracting exact products (Cody and
/// Waite).
fn reduce(angle: f64) -> (i64, f64) {
    const SPLIT: f64 = 1_048_576.0; // 2^20
    let quarter = (angle * std::f64::consts::FRAC_2_PI).round_ties_even();
    let high = (quarter / SPLIT).trunc() * SPLIT;
    let low = quarter - high;
    let remainder = HALF_PI.iter().fold(angle, |rest, piece| (rest - high * piece) - low * piece);
    (quarter as i64, remainder)
}

/// Evaluates a minimax polynomial on [-π/4, π/4]; coefficients of fdlibm's `k_sin.c`.
fn sine_near_zero(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 6] = [
        1.589_690_995_211_55e-10,
        -2.505_076_025_340_686_3e-8,
        2.755_731_370_707_006_8e-6,
        -1.984_126_982_985_795e-4,
        8.333_333_333_322_49e-3,
        -1.666_666_666_666_663_2e-1,
    ];
    let square = x * x;
    let series = COEFFICIENTS.iter().fold(0.0, |sum, coefficient| sum * square + coefficient);
    x + x * square * series
}

/// Evaluates a minimax polynomial on [-π/4, π/4]; coefficients of fdlibm's `k_cos.c`.
fn cosine_near_zero(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 6] = [
        -1.135_964_755_778_819_5e-11,
        2.087_572_321_298_175e-9,
        -2.755_731_435_139_066_3e-7,
        2.480_158_728_947_673e-5,
        -1.388_888_888_887_411e-3,
        4.166_666_666_666_66e-2,
    ];
    let square = x * x;
    let series = COEFFICIENTS.iter().fold(0.0, |sum, coefficient| sum * square + coefficient);
    1.0 - (0.5 * square - square * square * series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_agree_with_the_platform_to_the_last_bits() {
        let mut worst = 0.0_f64;
        for step in 0..400_000 {
            let angle = f64::from(step) * 4.123_456_789 - 10.0; // to 1.6 million radians
            let (sine, cosine) = sine_cosine(angle);
            worst = worst.max((sine - angle.sin()).abs()).max((cosine - angle.cos()).abs());
        }
        assert!(worst <= 4e-16, "{worst:e}");
    }

    #[test]
    fn quarter_turns_and_large_angles_are_correct() {
        for angle in [0.0, std::f64::consts::FRAC_PI_2, -3.0, 1e7 + 0.25, 123_456_789.5, 9.9e9] {
            let (sine, cosine) = sine_cosine(angle);
            assert!(
                (sine - angle.sin()).abs() <= 4e-16 && (cosine - angle.cos()).abs() <= 4e-16,
                "{angle}"
            );
        }
        assert!(sine_cosine(f64::NAN).0.is_nan() && sine_cosine(f64::INFINITY).1.is_nan());
    }
}
