//! `longsift map PIPELINE --document ID`: attention between the blocks of one document, or the messages of a
//! conversation, in the first layer or a layer of a whole model.
//!
//! The whole document is measured, without windows or far distance. No S×S matrix is allocated: memory grows with the
//! document and with the square of the number of blocks, and is known in advance.

pub(crate) mod blocks;
mod files;
pub(crate) mod layer;
mod page;

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use longsift_kernels::{BlockShares, MAX_BLOCKS};
use longsift_stages::contract::AttentionRequest;
use longsift_stages::first_layer_attention::SampledRows;
use longsift_stages::tokenize::EncodedText;
use longsift_stages::tokenize::SpecialTokensInText;
use longsift_stages::tokenize::chat_template::{ChatTemplate, Message};
use serde::Serialize;

use super::document::{FinishedRun, FoundDocument};
use crate::base::diagnostic::{self, Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::progress::Progress;
use crate::base::text::{bytes, count, counted, line_safe, quoted};
use crate::dataset::documents::DocumentContent;
use crate::dataset::messages::{messages_of_row, unread_fields};
use crate::plan::Plan;
use crate::report::page::text;
use crate::run_directory::layout::RunDirectory;
use blocks::{BlockAttentionMatrix, ends_at, equal_ends, token_at};
use layer::MappedLayer;

const MAX_TEXT_CHARACTERS: usize = 160;
/// Maximum number of blocks for which text output shows the matrix.
const MAX_MATRIX_BLOCKS: usize = 12;

/// Document of a map and its division.
#[derive(Clone, Debug, clap::Args)]
pub struct MapOptions {
    /// Document: its id, or `FILE:ROW`. The whole document is measured; the pipeline's windows do not apply.
    #[arg(long, value_name = "ID")]
    pub document: String,
    /// Cut into blocks of N tokens; by default into about 64 blocks, and a conversation into its messages.
    #[arg(long, value_name = "N", conflicts_with = "block_boundaries", value_parser = clap::value_parser!(u32).range(1..))]
    pub block_tokens: Option<u32>,
    /// Cut before these tokens: `0,10,29`. The end of the document may be the last boundary.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub block_boundaries: Option<Vec<usize>>,
    /// Column of conversations, lists of `{role, content}` or `{from, value}`: contents are joined by line breaks, and
    /// each message is a block.
    #[arg(long, value_name = "COLUMN")]
    pub messages: Option<String>,
    /// Render the messages with the tokenizer's chat template instead.
    #[arg(long, requires = "messages")]
    pub chat_template: bool,
    /// Number of BOS tokens before the document, which form a block.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=16))]
    pub bos: u8,
    /// Layer of the whole model of a stage `language-model`, numbered from 0; by default the first layer, from its
    /// table.
    #[arg(long, value_name = "N")]
    pub layer: Option<u32>,
    /// Query head, numbered from 0; by default the mean of all.
    #[arg(long, value_name = "H")]
    pub head: Option<u32>,
}

impl MapOptions {
    /// Returns the ends of the blocks of `tokens` tokens (at least 1), ascending; the last is `tokens`.
    fn ends(&self, tokens: usize) -> Result<Vec<usize>> {
        match &self.block_boundaries {
            Some(boundaries) => ends_at(boundaries, tokens),
            None => equal_ends(tokens, self.block_tokens.map(|each| each as usize)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MapBlock {
    /// First token, BOS counted.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Role of its message, `BOS`, or null.
    pub(crate) label: Option<String>,
    #[serde(skip)]
    pub(crate) text: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Map {
    version: u32,
    longsift: String,
    pipeline: String,
    id: String,
    /// File of the document, relative to the input.
    input_file: String,
    input_row: u64,
    layer: u32,
    head: Option<u32>,
    query_heads: u64,
    kernel: &'static str,
    /// Tokens, BOS counted.
    tokens: u64,
    bos: u8,
    /// Number of sampled rows; null if all were measured.
    rows_drawn: Option<u64>,
    /// Peak memory in bytes, in addition to the mapped table.
    memory_bytes: u64,
    seconds: f64,
    notes: Vec<String>,
    blocks: Vec<MapBlock>,
    #[serde(flatten)]
    matrix: BlockAttentionMatrix,
}

struct DocumentBlocks {
    ids: Vec<u32>,
    blocks: Vec<MapBlock>,
    notes: Vec<String>,
}

/// Measures a document. `run`: run whose document must be unchanged.
pub(crate) fn map(
    plan: &Plan,
    run: Option<&RunDirectory>,
    options: &MapOptions,
    progress: &Progress,
) -> Result<Map> {
    let mapped = MappedLayer::open(plan, options.layer)?;
    let spec = mapped.spec();
    if let Some(head) = options.head.filter(|head| u64::from(*head) >= spec.query_heads) {
        let message = format!("head {head} does not exist: a layer has {} heads", spec.query_heads);
        let hint = format!("give `--head 0` to `--head {}`", spec.query_heads - 1);
        return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
    }
    let bos = bos(plan, &mapped, options.bos)?;
    let source = FoundDocument::read(plan, &options.document)?;
    if let Some(run) = run.map(FinishedRun::read_if_present).transpose()?.flatten() {
        run.check_tokenizer_and_models(plan)?;
        run.check_unchanged(&source.file, &source.document(plan)?)?;
    }
    let mut cut = cut(plan, options, &source)?;
    cut.prepend_bos(&bos);
    let tokens = cut.ids.len();
    check_tokens(&mapped, &cut.ids, &source.id, &mut cut.notes)?;
    let request = mapped.request();
    let sampled = request.as_ref().and_then(|request| request.rows_of(&cut.ids));
    if let Some((request, rows)) = request.as_ref().zip(sampled.as_ref()) {
        cut.notes.push(sampling_note(request, rows, tokens as u64));
    }
    let ends: Vec<usize> = cut.blocks.iter().map(|block| block.end as usize).collect();
    let memory_bytes = mapped.bytes(tokens, ends.len());
    check_memory(plan, memory_bytes, tokens, ends.len())?;
    let started = Instant::now();
    let head = options.head.map(|head| head as usize);
    let rows = sampled.as_ref();
    let shares = mapped.shares(plan, &cut.ids, &ends, head, rows, progress)?;
    let seconds = started.elapsed().as_secs_f64();
    check_finite(&shares, &source.id)?;
    Ok(Map {
        version: 1,
        longsift: env!("CARGO_PKG_VERSION").to_owned(),
        pipeline: plan.spec.pipeline.name.clone(),
        input_file: source.file,
        input_row: source.row,
        id: source.id,
        layer: mapped.number,
        head: options.head,
        query_heads: spec.query_heads,
        kernel: mapped.kernel.name(),
        tokens: tokens as u64,
        bos: options.bos,
        rows_drawn: sampled.map(|rows| rows.positions.len() as u64),
        memory_bytes,
        seconds,
        notes: cut.notes,
        matrix: BlockAttentionMatrix::new(&ends, &shares),
        blocks: cut.blocks,
    })
}

/// Cuts the document into blocks, without BOS.
fn cut(plan: &Plan, options: &MapOptions, source: &FoundDocument) -> Result<DocumentBlocks> {
    let Some(column) = &options.messages else {
        return match source.document(plan)?.content {
            Err(problem) => Err(unusable(source, &problem.message)),
            Ok(DocumentContent::Tokens(ids)) => {
                let ends = options.ends(ids.len())?;
                Ok(DocumentBlocks::new(ids, &ends, |_| None))
            }
            Ok(DocumentContent::Text(text)) => {
                let encoded = encode(plan, source, &text)?;
                let ends = options.ends(encoded.ids.len())?;
                Ok(DocumentBlocks::from_text(&encoded, &text, &ends))
            }
        };
    };
    let messages = messages_of_row(&plan.dataset, &source.columns, column).map_err(|problem| {
        Failure::from(problem.in_file(source.file.clone()).at_row(source.row))
    })?;
    let mut notes = Vec::new();
    let (text, starts) = if options.chat_template {
        let unread = unread_fields(&plan.dataset, column)?;
        if !unread.is_empty() {
            notes.push(format!(
                "the template gets no fields of messages but role and content: {}",
                unread.join(", ")
            ));
        }
        if plan.spec.tokenize().special_tokens_in_text == SpecialTokensInText::AsText {
            notes.push("`special_tokens_in_text: as-text` also holds for the special tokens that the template writes".to_owned());
        }
        let encoder = plan.encoder.as_ref().expect("a plan of messages has a tokenizer");
        let rendered = ChatTemplate::open(encoder.folder())
            .and_then(|template| template.render(&messages))
            .map_err(|why| Diagnostic::error(Blame::Pipeline, why))?;
        if !rendered.unnamed_tokens.is_empty() {
            notes.push(format!(
                "the template uses special tokens that the tokenizer's files do not name: {}; they are empty here, and classes of transformers may have defaults",
                rendered.unnamed_tokens.join(", ")
            ));
        }
        (rendered.text, rendered.starts)
    } else {
        joined(&messages)
    };
    let encoded = encode(plan, source, &text)?;
    let mut blocks = if options.block_boundaries.is_none() && options.block_tokens.is_none() {
        DocumentBlocks::from_messages(&encoded, &text, &messages, &starts)?
    } else {
        DocumentBlocks::from_text(&encoded, &text, &options.ends(encoded.ids.len())?)
    };
    blocks.notes.extend(notes);
    Ok(blocks)
}

/// Joins the contents with line breaks. Returns the text and where each message begins.
fn joined(messages: &[Message]) -> (String, Vec<Option<usize>>) {
    let mut text = String::new();
    let mut starts = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        starts.push(Some(text.len()));
        text.push_str(&message.content);
    }
    (text, starts)
}

impl DocumentBlocks {
    fn new(ids: Vec<u32>, ends: &[usize], text: impl Fn(Range<usize>) -> Option<String>) -> Self {
        let starts = [0].into_iter().chain(ends.iter().copied());
        let block = |(start, &end): (usize, &usize)| {
            let text = text(start..end);
            MapBlock { start: start as u64, end: end as u64, label: None, text }
        };
        Self { ids, blocks: starts.zip(ends).map(block).collect(), notes: Vec::new() }
    }

    fn from_text(encoded: &EncodedText, text: &str, ends: &[usize]) -> Self {
        let excerpt = |tokens: Range<usize>| {
            let bytes = encoded.byte_range(tokens.start, tokens.end, text.len());
            Some(text[bytes].chars().take(MAX_TEXT_CHARACTERS).collect())
        };
        Self::new(encoded.ids.clone(), ends, excerpt)
    }

    /// Creates a block for each message. A token that spans two messages belongs to the first.
    fn from_messages(
        encoded: &EncodedText,
        text: &str,
        messages: &[Message],
        starts: &[Option<usize>],
    ) -> Result<Self> {
        let tokens = encoded.ids.len();
        let mut notes = Vec::new();
        let mut begins: Vec<(usize, String)> = Vec::new();
        for (index, (message, start)) in messages.iter().zip(starts).enumerate() {
            let role = if message.role.is_empty() { "no role" } else { &message.role };
            if let Some(start) = start {
                begins.push((token_at(&encoded.ends, *start), role.to_owned()));
            } else {
                let before = begins.last_mut().expect("the first message begins a block");
                before.1 = format!("{} + {role}", before.1);
                notes.push(format!(
                    "message {index} shares a block with the previous one: the chat template cannot render the preceding messages \
                     alone, or renders them in another way"
                ));
            }
        }
        let next_starts = begins.iter().skip(1).map(|(token, _)| *token).chain([tokens]);
        let next_starts: Vec<usize> = next_starts.collect();
        let (mut ends, mut labels, mut empty) = (Vec::new(), Vec::new(), 0_u64);
        for ((start, role), end) in begins.into_iter().zip(next_starts) {
            if end > start {
                ends.push(end);
                labels.push(role);
            } else {
                empty += 1;
            }
        }
        if empty > 0 {
            notes.push(format!("{} messages have no tokens and therefore no block", count(empty)));
        }
        if ends.len() > MAX_BLOCKS {
            let [messages, max] = [ends.len(), MAX_BLOCKS].map(|number| count(number as u64));
            let message =
                format!("the conversation has {messages} messages; a map has at most {max} blocks");
            let hint = "use `--block-tokens` instead";
            return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
        }
        let mut cut = Self { notes, ..Self::from_text(encoded, text, &ends) };
        for (block, role) in cut.blocks.iter_mut().zip(labels) {
            block.label = Some(role);
        }
        Ok(cut)
    }

    fn prepend_bos(&mut self, bos: &[u32]) {
        if bos.is_empty() {
            return;
        }
        self.ids.splice(0..0, bos.iter().copied());
        let end = bos.len() as u64;
        for block in &mut self.blocks {
            block.start += end;
            block.end += end;
        }
        self.blocks
            .insert(0, MapBlock { start: 0, end, label: Some("BOS".to_owned()), text: None });
    }
}

fn unusable(source: &FoundDocument, why: &str) -> Failure {
    let message = format!("document {}: {why}", quoted(&source.id));
    let at = diagnostic::DiagnosticLocation::Data(source.location());
    Diagnostic::error(Blame::Data, message).at(at).into()
}

/// Tokenizes a text; fails if it has no tokens.
fn encode(plan: &Plan, source: &FoundDocument, text: &str) -> Result<EncodedText> {
    match plan.tokenize(source.location(), text)? {
        Ok(encoded) if encoded.ids.is_empty() => Err(unusable(source, "the text has no tokens")),
        Ok(encoded) => Ok(encoded),
        Err(error) => Err(unusable(source, &error.message)),
    }
}

fn bos(plan: &Plan, mapped: &MappedLayer<'_>, wanted: u8) -> Result<Vec<u32>> {
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let known = match plan.encoder {
        Some(_) => mapped.config().bos_token_id(),
        None => mapped.config().stated_bos_token_id(),
    };
    let none = || {
        let message = format!("`--bos {wanted}`, but the model has no BOS token");
        Diagnostic::error(Blame::Pipeline, message).hint("leave `--bos` out")
    };
    Ok(vec![known.ok_or_else(none)?; usize::from(wanted)])
}

/// Checks that the model has these tokens and enough positions.
fn check_tokens(
    mapped: &MappedLayer<'_>,
    ids: &[u32],
    id: &str,
    notes: &mut Vec<String>,
) -> Result<()> {
    let spec = mapped.spec();
    let vocabulary = spec.vocabulary_size;
    if let Some(at) = ids.iter().position(|id| u64::from(*id) >= vocabulary) {
        let message = format!(
            "document {}: token {at} is {}, but the model's vocabulary has {} entries",
            quoted(id),
            ids[at],
            count(vocabulary)
        );
        return Err(Diagnostic::error(Blame::Data, message).into());
    }
    let tokens = ids.len() as u64;
    if let Some(problem) = spec.window_problem(tokens) {
        let message = format!("document {}: {}", quoted(id), problem.message);
        let hint =
            "a map covers the whole document: name a shorter one, or a model with rotary positions";
        return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
    }
    if let Some(warning) = spec.positions_warning(tokens) {
        if mapped.strict_positions {
            let hint = "name a shorter document, or set `strict_positions: false`";
            return Err(Diagnostic::error(Blame::Pipeline, warning).hint(hint).into());
        }
        notes.push(warning);
    }
    Ok(())
}

fn sampling_note(request: &AttentionRequest, rows: &SampledRows, tokens: u64) -> String {
    let distance = request.distance.in_window(tokens);
    format!(
        "sampled {} of the {} rows that have tokens at a distance of {} or more: `--set \
         stages.first-layer-attention.rows=all` measures all",
        count(rows.positions.len() as u64),
        count(tokens - distance),
        count(distance)
    )
}

fn check_memory(plan: &Plan, needed: u64, tokens: usize, blocks: usize) -> Result<()> {
    let limit = plan.spec.pipeline.input.memory_limit_bytes;
    if needed <= limit {
        return Ok(());
    }
    let [tokens, blocks] = [tokens, blocks].map(|number| count(number as u64));
    let [needed, limit] = [needed, limit].map(bytes);
    let message = format!(
        "a map of {tokens} tokens in {blocks} blocks takes up to {needed}, more than the {limit} of `memory_limit_bytes`"
    );
    let hint = "use fewer blocks or `--threads`, or raise `memory_limit_bytes`";
    Err(plan.spec.error("input.memory_limit_bytes", message).hint(hint).into())
}

/// Fails if attention is not finite, as with a damaged checkpoint.
fn check_finite(shares: &BlockShares, id: &str) -> Result<()> {
    let damaged = shares.shares.iter().flatten().find(|share| !share.is_finite());
    damaged.map_or(Ok(()), |share| {
        let message = format!("document {}: expected a finite attention, got {share}", quoted(id));
        let hint = "check the checkpoint: its weights are damaged";
        Err(Diagnostic::error(Blame::Data, message).hint(hint).into())
    })
}

impl Map {
    fn name(&self, block: usize) -> String {
        match &self.blocks[block].label {
            Some(label) => format!("{block} {}", line_safe(label)),
            None => block.to_string(),
        }
    }

    /// Returns pairs with at least 1 % of the query block's attention, by descending lift; among many blocks, no neighbours.
    fn strongest(&self) -> Vec<(usize, usize, f64, f64)> {
        let apart = if self.blocks.len() > MAX_MATRIX_BLOCKS { 2 } else { 1 };
        let mut pairs = Vec::new();
        for (query, (shares, lifts)) in
            self.matrix.block_attention.iter().zip(&self.matrix.lift).enumerate()
        {
            for (key, (share, lift)) in shares.iter().zip(lifts).enumerate() {
                if let (Some(share), Some(lift)) = (share, lift)
                    && query.abs_diff(key) >= apart
                    && *share >= 0.01
                {
                    pairs.push((query, key, *share, *lift));
                }
            }
        }
        pairs.sort_by(|one, other| {
            other.3.total_cmp(&one.3).then((one.0, one.1).cmp(&(other.0, other.1)))
        });
        pairs
    }

    fn measured(&self) -> String {
        let heads = match self.head {
            Some(head) => format!("query head {head} of {}", self.query_heads),
            None => format!("mean of {} query heads", self.query_heads),
        };
        format!(
            "layer {}, {heads}, {} in {}",
            self.layer,
            counted(self.tokens, "token"),
            counted(self.blocks.len() as u64, "block")
        )
    }
}

impl fmt::Display for Map {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}, {} row {}", quoted(&self.id), self.input_file, self.input_row)?;
        writeln!(formatter, "  {}", self.measured())?;
        let Self { seconds, kernel, .. } = self;
        let peak = bytes(self.memory_bytes);
        write!(formatter, "  peak memory {peak} in addition to the mapped table; ")?;
        writeln!(formatter, "{seconds:.2} s, kernel {kernel}")?;
        formatter.write_str(&text::text(&self.sections(), false))?;
        let number = self.blocks.len();
        if number <= MAX_MATRIX_BLOCKS {
            return Ok(());
        }
        writeln!(
            formatter,
            "\nall {} cells: `--html FILE`, `--png FILE`, `--parquet FILE`, `--format json`",
            count((number * number) as u64)
        )
    }
}
