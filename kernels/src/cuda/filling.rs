//! Queries and keys of a window in device memory: gathered there, or computed on the CPU and sent.

use std::ops::Range;

use bytemuck::Zeroable;
use half::bf16;

use super::arena::Arena;
use super::driver::{DeviceError, DeviceMemory, Driver, Launch};
use super::parameters::{GatherParameters, TableFormat};
use super::plan::WindowPlan;
use super::request::WindowRequest;
use crate::gather::HeadNorms;
use crate::kernel::Kernel;
use crate::rope::{RopeStyle, Rotation};
use crate::statistics::QueryKeySource;

/// Threads of a block of `gather_rope`.
const GATHER_THREADS: u32 = 256;
/// Rows that are computed on the processor before they are sent.
const ROWS_AT_ONCE: usize = 4096;

pub(crate) struct DeviceTable<M> {
    pub(crate) memory: M,
    pub(crate) format: TableFormat,
    pub(crate) row_width: usize,
    pub(crate) rows: usize,
}

/// One window in the memory of a device, being filled.
pub(crate) struct Filling<'a, D: Driver> {
    pub(crate) driver: &'a D,
    pub(crate) arena: &'a Arena<D>,
    pub(crate) plan: &'a WindowPlan,
    pub(crate) request: &'a WindowRequest<'a>,
    /// Factor of every query, in addition to its row's own factor.
    pub(crate) factor: f64,
}

impl<D: Driver> Filling<'_, D> {
    pub(crate) fn write<T: bytemuck::Pod>(
        &self,
        offset: u64,
        values: &[T],
    ) -> Result<(), DeviceError> {
        self.arena.write(self.driver, offset, bytemuck::cast_slice(values))
    }

    fn address(&self, offset: u64) -> u64 {
        self.arena.address() + offset
    }

    /// Launches `gather_rope` for queries and for keys.
    pub(crate) fn gather(
        &self,
        table: &DeviceTable<D::Memory>,
        ids: &[u32],
        rotation: Option<&Rotation>,
        norms: Option<&HeadNorms>,
    ) -> Result<(), DeviceError> {
        let (plan, shape) = (self.plan, self.request.shape);
        self.write(plan.ids, ids)?;
        if let Some(rotation) = rotation {
            self.write(plan.frequencies, &rotation.inverse_frequencies)?;
        }
        if let Some(norms) = norms {
            self.write(plan.query_norm, &norms.query_weight)?;
            self.write(plan.key_norm, &norms.key_weight)?;
        }
        let key_heads = &self.request.key_heads;
        let first_query = key_heads.start * shape.group();
        let common = GatherParameters {
            table: table.memory.address(),
            ids: self.address(plan.ids),
            inverse_frequencies: self.address(plan.frequencies),
            factor: 1.0,
            attention_factor: rotation.map_or(1.0, |rotation| rotation.attention_factor),
            norm_epsilon: norms.map_or(0.0, |norms| norms.epsilon),
            row_width: table.row_width as u64,
            table_format: table.format as i32,
            head_dim: shape.head_dim as i32,
            rotary_pairs: rotation.map_or(0, |rotation| rotation.inverse_frequencies.len()) as i32,
            interleaved: i32::from(
                rotation.is_some_and(|rotation| rotation.style == RopeStyle::Interleaved),
            ),
            ..GatherParameters::zeroed()
        };
        let norm = |offset| if norms.is_some() { self.address(offset) } else { 0 };
        let some = |given: bool, offset| if given { self.address(offset) } else { 0 };
        self.gather_heads(&GatherParameters {
            rows: some(self.request.sample.is_some(), plan.rows),
            row_scale: some(self.request.rules.query_scale.is_some(), plan.row_scale),
            norm_weight: norm(plan.query_norm),
            out: self.address(plan.queries),
            factor: self.factor,
            first_number: (first_query * shape.head_dim) as u64,
            heads: plan.heads as i32,
            row_count: plan.row_count as i32,
            width: plan.geometry.width as i32,
            ..common
        })?;
        self.gather_heads(&GatherParameters {
            norm_weight: norm(plan.key_norm),
            out: self.address(plan.keys),
            first_number: ((shape.query_heads + key_heads.start) * shape.head_dim) as u64,
            heads: plan.key_heads as i32,
            row_count: shape.tokens as i32,
            width: plan.own_width as i32,
            ..common
        })
    }

    fn gather_heads(&self, parameters: &GatherParameters) -> Result<(), DeviceError> {
        let launch = Launch {
            kernel: self.plan.geometry.gather(),
            blocks: parameters.row_count as u32,
            threads: GATHER_THREADS,
            shared_bytes: (parameters.rotary_pairs as u32 * 2 * 4).max(4),
            parameters: bytemuck::bytes_of(parameters),
        };
        // SAFETY: the table and the window's memory live until the sums have been read; the plan gave each array the
        // room that this head count, row count and width take, and the ids were checked against the table's rows.
        unsafe { self.driver.launch(&launch) }
    }

    /// Computes queries and keys on the processor and sends them.
    pub(crate) fn send(&self, source: &dyn QueryKeySource) -> Result<(), DeviceError> {
        let (plan, shape) = (self.plan, self.request.shape);
        let (width, own, head_dim) = (plan.geometry.width, plan.own_width, shape.head_dim);
        let key_heads = self.request.key_heads.clone();
        for head in 0..plan.heads {
            let query_head = key_heads.start * shape.group() + head;
            let to = plan.queries
                + (head * plan.row_count * width * plan.geometry.number_bytes()) as u64;
            self.send_rows(plan.row_count, 0..head_dim, width, to, &|rows, out| {
                self.queries(source, query_head, rows, out);
            })?;
        }
        for (index, head) in key_heads.clone().enumerate() {
            let to = plan.keys + (index * shape.tokens * own * plan.geometry.number_bytes()) as u64;
            self.send_rows(shape.tokens, 0..own.min(head_dim), own, to, &|rows, out| {
                source.keys(head, rows, out);
            })?;
        }
        if own < width {
            let keys =
                |rows: Range<usize>, out: &mut [f32]| source.keys(key_heads.start, rows, out);
            self.send_rows(shape.tokens, own..head_dim, width - own, plan.shared_keys, &keys)?;
        }
        Ok(())
    }

    /// Computes and scales the queries of measured rows `rows`.
    fn queries(
        &self,
        source: &dyn QueryKeySource,
        head: usize,
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        let head_dim = self.request.shape.head_dim;
        let position = |row: usize| self.request.sample.map_or(row, |sample| sample.positions[row]);
        if self.request.sample.is_none() {
            source.queries(head, rows.clone(), out);
        } else {
            for (row, out) in rows.clone().zip(out.chunks_exact_mut(head_dim)) {
                source.queries(head, position(row)..position(row) + 1, out);
            }
        }
        let scale = self.request.rules.query_scale.as_deref();
        for (row, out) in rows.zip(out.chunks_exact_mut(head_dim)) {
            let of_row = scale.map_or(1.0, |scale| f64::from(scale[position(row)]));
            for number in out {
                *number = (f64::from(*number) * self.factor * of_row) as f32;
            }
        }
    }

    /// Sends numbers `numbers` of `count` rows as rows of `width`, padded with zeros.
    fn send_rows(
        &self,
        count: usize,
        numbers: Range<usize>,
        width: usize,
        to: u64,
        rows_of: &dyn Fn(Range<usize>, &mut [f32]),
    ) -> Result<(), DeviceError> {
        let head_dim = self.request.shape.head_dim;
        let mut computed = vec![0.0_f32; ROWS_AT_ONCE.min(count) * head_dim];
        let mut padded = vec![0.0_f32; ROWS_AT_ONCE.min(count) * width];
        for first in (0..count).step_by(ROWS_AT_ONCE) {
            let rows = first..count.min(first + ROWS_AT_ONCE);
            let computed = &mut computed[..rows.len() * head_dim];
            let padded = &mut padded[..rows.len() * width];
            rows_of(rows.clone(), computed);
            for (computed, padded) in
                computed.chunks_exact(head_dim).zip(padded.chunks_exact_mut(width))
            {
                padded[..numbers.len()].copy_from_slice(&computed[numbers.clone()]);
            }
            let to = to + (first * width * self.plan.geometry.number_bytes()) as u64;
            if self.plan.geometry.kernel == Kernel::CudaF32 {
                self.write(to, padded)?;
            } else {
                let rounded: Vec<bf16> = padded.iter().map(|&x| bf16::from_f32(x)).collect();
                self.write(to, &rounded)?;
            }
        }
        Ok(())
    }
}
