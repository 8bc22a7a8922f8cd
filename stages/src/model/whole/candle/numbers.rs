//! Projections, norms and rotations of tensors.

use candle_core::{D, DType, Result, Tensor};
use longsift_kernels::{Rope, RopeStyle};

use super::devices::CandleDevice;
use crate::measures::language_model::ProductPrecision;
use crate::model::spec::Norm;
use crate::model::tensors::Roles;
use crate::model::weights::LayerWeights;
use crate::model::whole::backend::Squares;

/// Rounds the factor of a product to the requested precision. Products of bf16 numbers are exact in float32, and their
/// sums are formed in it.
pub(super) fn factor(precision: ProductPrecision, numbers: &Tensor) -> Result<Tensor> {
    match precision {
        ProductPrecision::F32 => Ok(numbers.clone()),
        ProductPrecision::Bf16 => numbers.to_dtype(DType::BF16)?.to_dtype(DType::F32),
    }
}

pub(super) struct LinearLayer {
    precision: ProductPrecision,
    /// `[outputs, inputs]`
    weight: Tensor,
    bias: Option<Tensor>,
}

impl LinearLayer {
    pub(super) fn new(
        device: &CandleDevice,
        weight: Vec<f32>,
        bias: Vec<f32>,
        inputs: usize,
    ) -> Result<Self> {
        let outputs = weight.len() / inputs;
        let weight = factor(device.precision, &device.tensor(weight, &[outputs, inputs])?)?;
        let bias = (!bias.is_empty()).then(|| device.tensor(bias, &[outputs])).transpose()?;
        Ok(Self { precision: device.precision, weight, bias })
    }

    /// Takes a projection of `inputs` numbers out of a layer's weights.
    pub(super) fn take(
        device: &CandleDevice,
        weights: &mut LayerWeights,
        (weight, bias): Roles,
        inputs: usize,
    ) -> Result<Self> {
        Self::new(device, weights.take(weight), weights.take(bias), inputs)
    }

    pub(super) fn outputs(&self) -> usize {
        self.weight.dims()[0]
    }

    /// Multiplies rows, `[rows, inputs]`.
    pub(super) fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        let out = factor(self.precision, rows)?.matmul(&self.weight.t()?)?;
        match &self.bias {
            None => Ok(out),
            Some(bias) => out.broadcast_add(bias),
        }
    }
}

/// A norm over the last dimension, in float64.
pub(super) struct TensorNorm {
    norm: Norm,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl TensorNorm {
    /// Takes a norm over `width` numbers out of a layer's weights.
    pub(super) fn take(
        device: &CandleDevice,
        norm: &Norm,
        weights: &mut LayerWeights,
        (weight, bias): Roles,
        width: usize,
    ) -> Result<Self> {
        let mut take = |role| {
            let numbers = weights.take(role);
            // A norm over heads has the weights of one head or of several.
            let shape = [numbers.len() / width, width];
            let tensor = (!numbers.is_empty()).then(|| device.tensor(numbers, &shape));
            tensor.map(|tensor| tensor?.to_dtype(DType::F64)).transpose()
        };
        let weight = take(weight)?;
        let bias = take(bias)?;
        let weight = weight.map(|weight| weight + norm.offset()).transpose()?;
        Ok(Self { norm: norm.clone(), weight, bias })
    }

    pub(super) fn is_none(&self) -> bool {
        self.norm == Norm::None
    }

    pub(super) fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        let (centred, eps) = match self.norm {
            Norm::None => return Ok(rows.clone()),
            Norm::Rms { eps, .. } => (rows.to_dtype(DType::F64)?, eps),
            Norm::Layer { eps, .. } => {
                let rows = rows.to_dtype(DType::F64)?;
                (rows.broadcast_sub(&rows.mean_keepdim(D::Minus1)?)?, eps)
            }
        };
        let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
        let mut out = centred.broadcast_div(&(variance + eps)?.sqrt()?)?;
        if let Some(weight) = &self.weight {
            out = out.broadcast_mul(weight)?;
        }
        if let Some(bias) = &self.bias {
            out = out.broadcast_add(bias)?;
        }
        out.to_dtype(DType::F32)
    }
}

/// Cosines and sines of a window's positions on a device.
pub(super) struct RotaryTensors {
    style: RopeStyle,
    /// `[tokens, 1, pairs]`
    cos: Tensor,
    sin: Tensor,
}

impl RotaryTensors {
    pub(super) fn new(device: &CandleDevice, rope: &Rope, tokens: usize) -> Result<Self> {
        let pairs = rope.rotary_dims() / 2;
        let (style, cos, sin) = rope.table();
        let table = |numbers: &[f32]| {
            device.tensor(numbers[..tokens * pairs].to_vec(), &[tokens, 1, pairs])
        };
        Ok(Self { style, cos: table(cos)?, sin: table(sin)? })
    }

    /// Rotates the heads of rows from `first` on, `[rows, heads, head_dim]`.
    pub(super) fn turned(&self, first: usize, heads: &Tensor) -> Result<Tensor> {
        let (rows, count, head_dim) = heads.dims3()?;
        let cos = self.cos.narrow(0, first, rows)?;
        let sin = self.sin.narrow(0, first, rows)?;
        let pairs = cos.dims()[2];
        let turning = heads.narrow(2, 0, 2 * pairs)?;
        let (a, b) = match self.style {
            RopeStyle::Half => (turning.narrow(2, 0, pairs)?, turning.narrow(2, pairs, pairs)?),
            RopeStyle::Interleaved => {
                let turning = turning.reshape((rows, count, pairs, 2))?;
                (turning.narrow(3, 0, 1)?.squeeze(3)?, turning.narrow(3, 1, 1)?.squeeze(3)?)
            }
        };
        let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
        let turned = match self.style {
            RopeStyle::Half => Tensor::cat(&[first, second], 2)?,
            RopeStyle::Interleaved => {
                Tensor::stack(&[first, second], 3)?.reshape((rows, count, 2 * pairs))?
            }
        };
        if 2 * pairs == head_dim {
            return Ok(turned);
        }
        let rest = heads.narrow(2, 2 * pairs, head_dim - 2 * pairs)?;
        Tensor::cat(&[turned, rest], 2)
    }
}

pub(super) fn squares_of(rows: &Tensor) -> Result<Squares> {
    let sum = rows.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    Ok(Squares::from_sum(sum, rows.elem_count()))
}
