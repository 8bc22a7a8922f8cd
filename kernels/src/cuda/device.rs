//! One device: its copy of the table, and its windows.

use super::arena::{Arena, Arenas};
use super::driver::{DeviceError, DeviceMemory, Driver, Launch, TensorMapRequest};
use super::filling::{DeviceTable, Filling};
use super::parameters::{
    AttentionParameters, KeyNormParameters, MAX_SEGMENTS, SumParameters, TableFormat,
    TensorAttentionParameters, UNBOUNDED,
};
use super::plan::{NORM_KEYS, SourceSizes, WindowPlan, unsupported_reason};
use super::request::{Operands, WindowRequest};
use crate::gather::TableView;
use crate::kernel::Kernel;
use crate::masks::Segments;
use crate::statistics::{AttentionShape, HeadSums, LogitRules, histogram_bins};

/// Bytes of a table that are sent at a time.
const TABLE_PIECE: usize = 64 << 20;

/// Output of the kernels, read back from device memory.
#[derive(Default)]
struct KernelOutput {
    /// `[query heads, segments + 1]`
    sums: Vec<f64>,
    /// `[query heads, sampled rows]`
    row_mass: Vec<f64>,
    row_square: Vec<f64>,
}

/// A device with a kernel and, after [`CudaDevice::load_table`], the layer-zero table.
pub struct CudaDevice<D: Driver> {
    // Declared before the driver, so that memory is freed while the driver exists.
    arenas: Arenas<D>,
    table: Option<DeviceTable<D::Memory>>,
    driver: D,
    kernel: Kernel,
}

impl<D: Driver> CudaDevice<D> {
    pub fn new(driver: D, kernel: Kernel) -> Self {
        Self { arenas: Arenas::new(), table: None, driver, kernel }
    }

    pub fn driver(&self) -> &D {
        &self.driver
    }

    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Returns the bytes of the table in device memory.
    pub fn table_bytes(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.memory.bytes())
    }

    /// Returns the bytes of device memory that are kept for windows, including those in use.
    pub fn kept_bytes(&self) -> u64 {
        self.arenas.bytes()
    }

    /// Frees the memory that no window uses.
    pub fn release_spare_memory(&self) {
        self.arenas.release_spare_memory();
    }

    /// Sends the table, `[rows, row_width]`, and waits until the windows of every thread can use it. First frees the previous
    /// table and memory that was kept for windows.
    pub fn load_table(
        &mut self,
        table: TableView<'_>,
        row_width: usize,
    ) -> Result<(), DeviceError> {
        self.table = None;
        self.release_spare_memory();
        let (format, bytes): (_, &[u8]) = match table {
            TableView::F32(values) => (TableFormat::F32, bytemuck::cast_slice(values)),
            TableView::Bf16(values) => (TableFormat::Bf16, bytemuck::cast_slice(values)),
        };
        let rows = table.len().checked_div(row_width).unwrap_or(0);
        let memory = self.driver.allocate(bytes.len() as u64)?;
        for (piece, bytes) in bytes.chunks(TABLE_PIECE).enumerate() {
            self.driver.write(&memory, (piece * TABLE_PIECE) as u64, bytes)?;
        }
        self.driver.wait()?;
        self.table = Some(DeviceTable { memory, format, row_width, rows });
        Ok(())
    }

    /// Measures the query heads of some key heads of a window, and waits for the result: the sums of
    /// [`head_statistics`](crate::head_statistics).
    ///
    /// Products of 16-bit kernels are exact in the rounded numbers and summed in float32; exponentials are float32, sums
    /// over keys compensated float32, sums over rows float64, all in an order that depends only on the kernel and the
    /// shape: the same bits at every launch and for every grouping of heads. Device memory: [`super::window_bytes`],
    /// kept for the next window of that size or a smaller one; see [`CudaDevice::kept_bytes`].
    ///
    /// # Panics
    /// If lists of the rules or the operands do not have the shape's lengths, or the shape has no such key heads.
    pub fn measure(&self, request: &WindowRequest<'_>) -> Result<HeadSums, DeviceError> {
        let (shape, rules) = (request.shape, request.rules);
        shape.assert_valid();
        rules.assert_matches(shape);
        if let Some(sample) = request.sample {
            sample.assert_matches(shape);
        }
        assert!(request.key_heads.end <= shape.key_heads, "key heads {:?}", request.key_heads);
        if let Some(reason) = unsupported_reason(self.kernel, shape) {
            return Err(DeviceError::Other(reason));
        }
        let sizes = SourceSizes {
            sampled_rows: request.sample.map(|sample| sample.positions.len()),
            ..request.operands.sizes()
        };
        let plan = WindowPlan::new(self.kernel, shape, &sizes, &request.key_heads)
            .expect("the kernel supports this shape");
        if plan.row_count == 0 || plan.heads == 0 {
            return Ok(sums(request, &plan, &KernelOutput::default()));
        }
        self.arenas
            .with_arena(&self.driver, plan.bytes, |arena| self.measure_in(arena, &plan, request))
    }

    fn measure_in(
        &self,
        arena: &Arena<D>,
        plan: &WindowPlan,
        request: &WindowRequest<'_>,
    ) -> Result<HeadSums, DeviceError> {
        let shape = request.shape;
        let factor = query_factor(request.rules);
        let filling = Filling { driver: &self.driver, arena, plan, request, factor };
        filling.per_row_and_head()?;
        match request.operands {
            Operands::Table { ids, rotation, norms } => {
                let table = self.table_for(shape, ids)?;
                filling.gather(table, ids, rotation, norms)?;
            }
            Operands::Source { source, .. } => filling.send(source)?,
        }
        let segments = Segments::new(shape, request.distance);
        self.launch(arena.address(), plan, request, &segments)?;

        let read = |offset: u64, numbers: usize| {
            let mut values = vec![0.0_f64; numbers];
            let bytes = bytemuck::cast_slice_mut(&mut values);
            arena.read(&self.driver, offset, bytes).map(|()| values)
        };
        let mut output = KernelOutput {
            sums: read(plan.sums, plan.heads * (segments.count() + 1))?,
            ..KernelOutput::default()
        };
        if request.sample.is_some() {
            output.row_mass = read(plan.row_mass, plan.heads * plan.row_count)?;
            output.row_square = read(plan.row_square, plan.heads * plan.row_count)?;
        }
        Ok(sums(request, plan, &output))
    }

    fn table_for(
        &self,
        shape: &AttentionShape,
        ids: &[u32],
    ) -> Result<&DeviceTable<D::Memory>, DeviceError> {
        let other = |reason: String| Err(DeviceError::Other(reason));
        let Some(table) = &self.table else {
            return other("no table was sent to this device".to_owned());
        };
        assert_eq!(ids.len(), shape.tokens, "one id per token");
        let width = (shape.query_heads + shape.key_heads) * shape.head_dim;
        if table.row_width != width {
            return other(format!("table rows hold {} numbers, not {width}", table.row_width));
        }
        match ids.iter().position(|&id| id as usize >= table.rows) {
            Some(at) => other(format!(
                "id {} at position {at} is not in the table of {} rows",
                ids[at], table.rows
            )),
            None => Ok(table),
        }
    }

    /// Launches the reduction of queries and keys to sums per block, and of blocks to sums per head.
    fn launch(
        &self,
        start: u64,
        plan: &WindowPlan,
        request: &WindowRequest<'_>,
        segments: &Segments,
    ) -> Result<(), DeviceError> {
        let parameters = attention_parameters(start, plan, request, segments);
        let tensors;
        let bytes = if plan.geometry.has_tensor_maps() {
            if self.kernel == Kernel::CudaV3Bf16 {
                self.launch_key_norms(start, plan, &parameters)?;
            }
            tensors = self.tensor_parameters(start, plan, request, &parameters)?;
            bytemuck::bytes_of(&tensors)
        } else {
            bytemuck::bytes_of(&parameters)
        };
        let attention = Launch {
            kernel: &plan.geometry.attention(request.rules),
            blocks: (plan.heads / plan.geometry.block_heads * plan.blocks) as u32,
            threads: plan.geometry.threads,
            shared_bytes: plan.geometry.shared_bytes(segments.count()),
            parameters: bytes,
        };
        // SAFETY: the parameters are this kernel's; the window's memory lives until its sums have been read, and the
        // plan gave each array the room that these sizes take.
        unsafe { self.driver.launch(&attention)? };
        let values = plan.heads * (segments.count() + 1);
        let parameters = SumParameters {
            blocks_in: start + plan.block_sums,
            out: start + plan.sums,
            blocks: plan.blocks as i32,
            reserved: 0,
        };
        let sum = Launch {
            kernel: "sum_blocks",
            blocks: values as u32,
            threads: 32,
            shared_bytes: 0,
            parameters: bytemuck::bytes_of(&parameters),
        };
        // SAFETY: as above; the launch before wrote `values · blocks` sums.
        unsafe { self.driver.launch(&sum) }
    }

    /// Launches the kernel that finds the longest key of each tile.
    fn launch_key_norms(
        &self,
        start: u64,
        plan: &WindowPlan,
        attention: &AttentionParameters,
    ) -> Result<(), DeviceError> {
        let tiles = (attention.tokens as usize).div_ceil(NORM_KEYS);
        let parameters = KeyNormParameters {
            keys: attention.keys,
            shared_keys: attention.shared_keys,
            out: start + plan.key_norms,
            tokens: attention.tokens,
            tiles: tiles as i32,
            width: attention.width,
            own_width: attention.own_width,
        };
        let launch = Launch {
            kernel: "key_norms",
            blocks: (plan.key_heads * tiles) as u32,
            threads: 128,
            shared_bytes: 16,
            parameters: bytemuck::bytes_of(&parameters),
        };
        // SAFETY: the parameters are this kernel's; the keys were written before, and there is room for a norm per tile.
        unsafe { self.driver.launch(&launch) }
    }

    fn tensor_parameters(
        &self,
        start: u64,
        plan: &WindowPlan,
        request: &WindowRequest<'_>,
        attention: &AttentionParameters,
    ) -> Result<TensorAttentionParameters, DeviceError> {
        let map = |offset: u64, numbers: usize, rows: usize, heads: usize| {
            self.driver.tensor_map(&TensorMapRequest {
                address: start + offset,
                numbers: numbers as u64,
                rows: rows as u64,
                heads: heads as u64,
            })
        };
        let (width, own, tokens) = (plan.geometry.width, plan.own_width, request.shape.tokens);
        let keys = map(plan.keys, own, tokens, plan.key_heads)?;
        let shared_keys =
            if own < width { map(plan.shared_keys, width - own, tokens, 1)? } else { keys };
        Ok(TensorAttentionParameters {
            queries: map(plan.queries, width, plan.row_count, plan.heads)?,
            keys,
            shared_keys,
            attention: *attention,
            key_norms: start + plan.key_norms,
            reserved: [0; 6],
        })
    }
}

/// `output` is empty if nothing was measured.
fn sums(request: &WindowRequest<'_>, plan: &WindowPlan, output: &KernelOutput) -> HeadSums {
    let segments = Segments::new(request.shape, request.distance);
    let (bins, group) = (histogram_bins(request.shape.tokens), request.shape.group());
    let sampled = request.sample.map_or(0, |sample| sample.positions.len());
    let mut heads = HeadSums {
        far_mass: vec![0.0; plan.heads],
        far_square: vec![0.0; plan.heads],
        histograms: vec![0.0; plan.key_heads * bins],
        row_far_mass: vec![0.0; plan.key_heads * sampled],
        row_far_square: vec![0.0; plan.key_heads * sampled],
    };
    for (head, values) in output.sums.chunks_exact(segments.count() + 1).enumerate() {
        heads.far_mass[head] = values[segments.far.clone()].iter().sum();
        heads.far_square[head] = values[segments.count()];
        let histogram = &mut heads.histograms[head / group * bins..][..bins];
        for (segment, mass) in values[..segments.count()].iter().enumerate() {
            if let Some(bin) = segments.bin(segment) {
                histogram[bin] += mass;
            }
        }
    }
    if request.sample.is_some() {
        add_heads(&mut heads.row_far_mass, &output.row_mass, sampled, group);
        add_heads(&mut heads.row_far_square, &output.row_square, sampled, group);
    }
    heads
}

/// Adds `[query heads, rows]` to `[key heads, rows]`, in the order of the heads.
fn add_heads(to: &mut [f64], of_heads: &[f64], rows: usize, group: usize) {
    for (head, values) in of_heads.chunks_exact(rows).enumerate() {
        let to = &mut to[head / group * rows..][..rows];
        to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
    }
}

/// Returns the factor of every query that makes its products with keys logits in units of log2 or the argument of the
/// softcap's tanh.
fn query_factor(rules: &LogitRules) -> f64 {
    let unit = match rules.softcap {
        Some(cap) => 1.0 / f64::from(cap),
        None => std::f64::consts::LOG2_E,
    };
    unit * f64::from(rules.scale)
}

fn attention_parameters(
    address: u64,
    plan: &WindowPlan,
    request: &WindowRequest<'_>,
    segments: &Segments,
) -> AttentionParameters {
    let (shape, rules) = (request.shape, request.rules);
    let some = |given: bool, offset: u64| if given { address + offset } else { 0 };
    let sampled = request.sample.is_some();
    let length = |length: Option<usize>| {
        length.map_or(UNBOUNDED, |length| i32::try_from(length).unwrap_or(UNBOUNDED))
    };
    let mut distances = [0; MAX_SEGMENTS];
    for (to, &distance) in distances.iter_mut().zip(segments.distances()) {
        *to = i32::try_from(distance).expect("distances are below the number of tokens");
    }
    AttentionParameters {
        queries: address + plan.queries,
        keys: address + plan.keys,
        shared_keys: some(plan.own_width < plan.geometry.width, plan.shared_keys),
        rows: some(sampled, plan.rows),
        slopes: some(rules.alibi_slopes.is_some(), plan.slopes),
        sinks: some(rules.sinks.is_some(), plan.sinks),
        block_sums: address + plan.block_sums,
        weights: some(sampled, plan.weights),
        row_mass: some(sampled, plan.row_mass),
        row_square: some(sampled, plan.row_square),
        tokens: shape.tokens as i32,
        row_count: plan.row_count as i32,
        heads: plan.heads as i32,
        group: shape.group() as i32,
        blocks: plan.blocks as i32,
        width: plan.geometry.width as i32,
        own_width: plan.own_width as i32,
        window: length(rules.window),
        chunk: length(rules.chunk.map(|chunk| chunk.max(1))),
        causal: i32::from(rules.causal),
        softcap: rules
            .softcap
            .map_or(0.0, |cap| (f64::from(cap) * std::f64::consts::LOG2_E) as f32),
        segments: segments.count() as i32,
        far: segments.far.end as i32,
        distances,
        heads_per_block: plan.geometry.block_heads as i32,
    }
}

impl<D: Driver> Filling<'_, D> {
    /// Writes the arrays of rows and heads.
    fn per_row_and_head(&self) -> Result<(), DeviceError> {
        let (plan, rules, key_heads) = (self.plan, self.request.rules, &self.request.key_heads);
        let group = self.request.shape.group();
        let heads = key_heads.start * group..key_heads.end * group;
        if let Some(sample) = self.request.sample {
            let positions: Vec<u32> = sample.positions.iter().map(|&row| row as u32).collect();
            self.write(plan.rows, &positions)?;
            self.write(plan.weights, &sample.weights)?;
        }
        if let Some(scale) = &rules.query_scale {
            self.write(plan.row_scale, scale)?;
        }
        if let Some(slopes) = &rules.alibi_slopes {
            let in_log2 = |slope: &f32| (f64::from(*slope) * std::f64::consts::LOG2_E) as f32;
            self.write(
                plan.slopes,
                &slopes[heads.clone()].iter().map(in_log2).collect::<Vec<_>>(),
            )?;
        }
        if let Some(sinks) = &rules.sinks {
            let in_log2 = |sink: &f32| f64::from(*sink) * std::f64::consts::LOG2_E;
            self.write(plan.sinks, &sinks[heads].iter().map(in_log2).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}
