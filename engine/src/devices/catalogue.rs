//! Catalogue of GPUs, from data sheets, to size pipelines for GPUs that this machine does not have.

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;

#[derive(Clone, Debug, PartialEq)]
pub struct GpuModel {
    pub name: String,
    pub memory_bytes: u64,
    pub speed: Option<PeakRates>,
}

/// Peak rates of a GPU; no kernel reaches all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakRates {
    /// Bytes per second from its memory.
    pub bytes: f64,
    /// Dense bf16 floating-point operations per second, accumulated in float32.
    pub bf16: f64,
    pub f32: f64,
    /// Exponentials per second: 16 per clock and multiprocessor.
    pub exponentials: f64,
}

/// Name, memory in GB, bandwidth in GB/s, bf16 and f32 in TFLOP/s, multiprocessors, boost clock in GHz.
type Row = (&'static str, u64, f64, f64, f64, f64, f64);

const CARDS: [Row; 17] = [
    ("A10-24GB", 24, 600.0, 125.0, 31.2, 72.0, 1.695),
    ("A100-40GB", 40, 1555.0, 312.0, 19.5, 108.0, 1.41),
    ("A100-80GB", 80, 2039.0, 312.0, 19.5, 108.0, 1.41),
    ("A800-80GB", 80, 2039.0, 312.0, 19.5, 108.0, 1.41),
    ("A6000-48GB", 48, 768.0, 154.8, 38.7, 84.0, 1.8),
    ("B200-180GB", 180, 8000.0, 2250.0, 75.0, 148.0, 1.85),
    ("H100-80GB", 80, 3350.0, 989.0, 67.0, 132.0, 1.83),
    ("H100-PCIe-80GB", 80, 2000.0, 756.0, 51.0, 114.0, 1.755),
    ("H100-NVL-94GB", 94, 3900.0, 835.0, 60.0, 132.0, 1.785),
    ("H200-141GB", 141, 4800.0, 989.0, 67.0, 132.0, 1.83),
    ("H20-96GB", 96, 4000.0, 148.0, 44.0, 78.0, 1.98),
    ("H800-80GB", 80, 3350.0, 989.0, 67.0, 132.0, 1.83),
    ("L4-24GB", 24, 300.0, 121.0, 30.3, 58.0, 2.04),
    ("L40S-48GB", 48, 864.0, 362.0, 91.6, 142.0, 2.52),
    ("RTX-3090-24GB", 24, 936.0, 71.0, 35.6, 82.0, 1.695),
    ("RTX-4090-24GB", 24, 1008.0, 165.2, 82.6, 128.0, 2.52),
    ("RTX-5090-32GB", 32, 1792.0, 209.5, 104.8, 170.0, 2.41),
];

/// Parses `8xA800-80GB` or `2xL4-24GB,MyCard:48`: a list of catalogue names or `NAME:GB`, each with an optional count.
pub fn cards(list: &str) -> Result<Vec<GpuModel>> {
    let mut cards = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let (count, name) = match entry.split_once('x') {
            Some((count, name))
                if !count.is_empty() && count.bytes().all(|c| c.is_ascii_digit()) =>
            {
                (count.parse().unwrap_or(0), name)
            }
            _ => (1_usize, entry),
        };
        let card = card(name).filter(|_| (1..=1024).contains(&count)).ok_or_else(|| {
            let names: Vec<&str> = CARDS.iter().map(|row| row.0).collect();
            Diagnostic::error(Blame::Pipeline, format!("`{entry}` is not a known GPU")).hint(
                format!(
                    "write `8xA800-80GB`, or `2xNAME:GB` with its memory; known GPUs are {}",
                    names.join(", ")
                ),
            )
        })?;
        cards.extend(std::iter::repeat_n(card, count));
    }
    Ok(cards)
}

fn card(name: &str) -> Option<GpuModel> {
    if let Some((name, gigabytes)) = name.split_once(':') {
        let gigabytes: f64 = gigabytes.trim_end_matches("GB").parse().ok()?;
        let sensible = (1e-6..=100_000.0).contains(&gigabytes) && !name.is_empty();
        let memory_bytes = (gigabytes * 1e9) as u64;
        return sensible.then(|| GpuModel { name: name.to_owned(), memory_bytes, speed: None });
    }
    let row = CARDS.into_iter().find(|row| row.0.eq_ignore_ascii_case(name))?;
    let (name, gigabytes, bandwidth, bf16, f32, multiprocessors, clock) = row;
    let exponentials = 16.0 * multiprocessors * clock * 1e9;
    let speed =
        PeakRates { bytes: bandwidth * 1e9, bf16: bf16 * 1e12, f32: f32 * 1e12, exponentials };
    let memory_bytes = gigabytes * 1_000_000_000;
    Some(GpuModel { name: name.to_owned(), memory_bytes, speed: Some(speed) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Failure;

    #[test]
    fn lists_of_gpus_are_parsed() {
        let list = cards("8xA800-80GB").unwrap();
        assert_eq!((list.len(), list[7].memory_bytes), (8, 80_000_000_000));
        let list = cards("2xl4-24gb, Prototype:48.5").unwrap();
        assert_eq!(list.len(), 3);
        assert_eq!(list[0].name, "L4-24GB");
        assert_eq!((list[2].memory_bytes, list[2].speed), (48_500_000_000, None));
        assert_eq!(cards("xPU:8GB").unwrap()[0].name, "xPU");
    }

    #[test]
    fn unknown_gpus_are_refused_with_a_list_of_known_ones() {
        for wrong in ["", "8x", "0xL4-24GB", "9000xL4-24GB", "H100", "MyCard:", "MyCard:-3", ":80"]
        {
            let Failure::Problems(problems) = cards(wrong).unwrap_err() else {
                panic!("expected problems, got a signal");
            };
            let hint = problems[0].hint.as_deref().unwrap_or_default();
            assert!(hint.contains("A800-80GB"), "{wrong}: {hint}");
        }
    }

    #[test]
    fn exponential_rate_of_an_h100_matches_the_published_rate() {
        // FlashAttention-3 (Shah et al. 2024), section 3.1: 3.9 T special functions per second on an H100 SXM5.
        let speed = cards("H100-80GB").unwrap()[0].speed.unwrap();
        assert!((speed.exponentials / 3.9e12 - 1.0).abs() < 0.02);
    }
}
