//! Choice of a backend.

#[cfg(feature = "candle")]
use super::candle::place::CandleDevices;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendName {
    /// This project's own kernels, on processors.
    Own,
    /// candle, on processors and GPUs.
    Candle,
}

impl BackendName {
    /// Returns the backend with a recorded `backend_name`.
    pub fn recorded(name: &str) -> Self {
        if name.starts_with("candle-") { Self::Candle } else { Self::Own }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Chosen {
    Own,
    #[cfg(feature = "candle")]
    Candle(CandleDevices),
}
