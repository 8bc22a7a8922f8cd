//! Norms of one row. Means are summed in float64 in the order of the row, and a number is rounded to float32 once.

/// Applies an RMS norm (Zhang and Sennrich 2019) in place: `x / √(mean(x²) + epsilon) · (weight + offset)`; without
/// weights it only divides. `weight`: as long as the row, or empty.
pub fn rms_norm(row: &mut [f32], epsilon: f64, weight: &[f32], offset: f64) {
    let square: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let factor = 1.0 / (square / row.len() as f64 + epsilon).sqrt();
    if weight.is_empty() {
        for x in row.iter_mut() {
            *x = (f64::from(*x) * factor) as f32;
        }
    }
    for (x, weight) in row.iter_mut().zip(weight) {
        *x = (f64::from(*x) * factor * (f64::from(*weight) + offset)) as f32;
    }
}

/// Applies a layer norm (Ba, Kiros and Hinton 2016) in place: `(x - mean(x)) / √(variance(x) + epsilon) · (weight +
/// offset) + bias`. `weight` and `bias` are as long as the row, or empty: 1 (without the offset) and 0 then.
pub fn layer_norm(row: &mut [f32], epsilon: f64, weight: &[f32], offset: f64, bias: &[f32]) {
    let count = row.len() as f64;
    let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let square: f64 = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
    let factor = 1.0 / (square / count + epsilon).sqrt();
    for (index, x) in row.iter_mut().enumerate() {
        let weight = weight.get(index).map_or(1.0, |weight| f64::from(*weight) + offset);
        let bias = bias.get(index).map_or(0.0, |bias| f64::from(*bias));
        *x = ((f64::from(*x) - mean) * factor * weight + bias) as f32;
    }
}
