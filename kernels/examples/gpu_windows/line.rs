//! One line of the table, as text and as JSON.

use std::fmt::Write as _;

use longsift_kernels::Kernel;

use super::limits::Limits;

/// One window of one geometry with one kernel.
pub(super) struct Line {
    pub(super) geometry: &'static str,
    pub(super) tokens: usize,
    pub(super) kernel: Kernel,
    /// Medians on the device's clock.
    pub(super) gather_ms: f64,
    pub(super) attention_ms: f64,
    /// Minimum.
    pub(super) least_attention_ms: f64,
    /// From the request to the sums, including transfers; median.
    pub(super) wall_ms: f64,
    pub(super) pairs: f64,
    pub(super) head_dim: usize,
    pub(super) announced: u64,
    pub(super) taken: Option<u64>,
    /// Largest relative difference of a head's far mass from that of the kernel it is compared with.
    pub(super) difference: Option<f64>,
}

impl Line {
    pub(super) const HEAD: &'static str = "geometry        tokens kernel          gather ms  attention ms    least   wall ms   Gpairs/s   Mtokens/s  products  exps  memory MB (announced)";

    fn device_seconds(&self) -> f64 {
        (self.gather_ms + self.attention_ms) / 1e3
    }

    /// Fractions of the limits of products and exponentials that are reached.
    fn shares(&self, limits: &Limits) -> (f64, f64) {
        let products = match self.kernel {
            Kernel::CudaF32 => limits.multiply_adds,
            Kernel::CudaV2Bf16 | Kernel::CudaV3Bf16 => {
                limits.group_products.unwrap_or(limits.products)
            }
            _ => limits.products,
        };
        let rate = self.pairs / (self.attention_ms / 1e3);
        (rate * self.head_dim as f64 / products, rate / limits.exponentials)
    }

    pub(super) fn text(&self, limits: Option<&Limits>) -> String {
        let (products, exponentials) =
            limits.map_or((f64::NAN, f64::NAN), |limits| self.shares(limits));
        let mut text = format!(
            "{:14} {:7} {:14} {:10.2} {:13.3} {:8.3} {:9.2} {:10.1} {:11.2}  {:6.1} % {:5.1} %  {} ({:.0})",
            self.geometry,
            self.tokens,
            self.kernel.name(),
            self.gather_ms,
            self.attention_ms,
            self.least_attention_ms,
            self.wall_ms,
            self.pairs / self.attention_ms / 1e6,
            self.tokens as f64 / self.device_seconds() / 1e6,
            100.0 * products,
            100.0 * exponentials,
            self.taken.map_or("?".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1e6)),
            self.announced as f64 / 1e6,
        );
        if let Some(difference) = self.difference {
            let _ = write!(text, "  sums {difference:.1e} off");
        }
        text
    }

    pub(super) fn json(&self, limits: Option<&Limits>) -> String {
        let number = |value: Option<f64>| {
            let finite = value.filter(|value| value.is_finite());
            finite.map_or("null".to_owned(), |value| value.to_string())
        };
        let shares = limits.map(|limits| self.shares(limits));
        format!(
            "{{\"geometry\":\"{}\",\"tokens\":{},\"kernel\":\"{}\",\"gather_ms\":{},\"attention_ms\":{},\
             \"least_attention_ms\":{},\"wall_ms\":{},\"pairs\":{},\"share_of_products\":{},\
             \"share_of_exponentials\":{},\"bytes_announced\":{},\"bytes_taken\":{},\"difference\":{}}}",
            self.geometry,
            self.tokens,
            self.kernel.name(),
            number(Some(self.gather_ms)),
            number(Some(self.attention_ms)),
            number(Some(self.least_attention_ms)),
            number(Some(self.wall_ms)),
            self.pairs,
            number(shares.map(|shares| shares.0)),
            number(shares.map(|shares| shares.1)),
            self.announced,
            number(self.taken.map(|bytes| bytes as f64)),
            number(self.difference),
        )
    }
}
