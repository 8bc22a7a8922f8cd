//! Types of the numbers that queries and keys are multiplied in.

/// Type of the numbers that queries and keys are multiplied in. Sums and exponentials are float32, sums of sums float64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// Queries (scaled) and keys are rounded to bf16 once, after the rotation.
    Bf16,
    /// Queries and keys (scaled) are rounded to 16-bit integers once, after the rotation, each row by a separate
    /// scale that makes it as long as products below 2^31 allow. Products and their sums are exact.
    Int16,
}
