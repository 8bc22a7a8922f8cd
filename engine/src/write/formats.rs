//! File formats of the output: Parquet, compressed JSON lines, or token ids for Megatron.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::base::error::Result;
use crate::dataset::part::{PartWriter, WrittenPart};
use crate::dataset::part_lines::LinesWriter;
use crate::dataset::part_tokens::{SequenceSettings, TokensWriter};
use crate::plan::Plan;
use crate::plan::columns;
use crate::run_directory::units::Part;
use crate::spec::pipeline::{OutputFormat, ParquetCompression};
use crate::storage::files;

pub(super) enum Format {
    /// `.parquet`, with key-value metadata for the footer.
    Parquet(Vec<(String, String)>, ParquetCompression),
    /// `.jsonl.zst`.
    Lines,
    /// `.bin`, `.idx` and, if packed, `.cu_seqlens.npy`.
    Tokens(SequenceSettings),
}

impl Format {
    /// Returns the format of a plan. `metadata`: key-value metadata of Parquet files.
    pub(super) fn from_plan(plan: &Plan, metadata: Vec<(String, String)>) -> Self {
        let output = &plan.spec.pipeline.output;
        match output.format {
            OutputFormat::Parquet => Self::Parquet(metadata, output.compression),
            OutputFormat::JsonlZst => Self::Lines,
            OutputFormat::Megatron => Self::Tokens(SequenceSettings {
                vocabulary: vocabulary(plan)
                    .max(output.end_token.map_or(0, |id| u64::from(id) + 1)),
                tokens: output.sequence_tokens,
                end_token: output.end_token,
            }),
        }
    }

    pub(super) fn schema(&self, plan: &Plan) -> SchemaRef {
        match self {
            Self::Parquet(..) | Self::Lines => columns::schema(plan),
            Self::Tokens(_) => {
                let tokens = DataType::new_large_list(DataType::UInt32, false);
                Arc::new(Schema::new(vec![Field::new("tokens", tokens, false)]))
            }
        }
    }

    /// Returns the file names of one part, whose stem is like `train-00000-of-00012`.
    pub(super) fn names(&self, stem: &str) -> Vec<String> {
        let (format, packed) = match self {
            Self::Parquet(..) => (OutputFormat::Parquet, false),
            Self::Lines => (OutputFormat::JsonlZst, false),
            Self::Tokens(sequences) => (OutputFormat::Megatron, sequences.tokens.is_some()),
        };
        let endings = format.endings(packed);
        endings.iter().map(|ending| format!("{stem}{ending}")).collect()
    }

    /// Creates the files of a part in a folder, or in a subfolder that its name contains.
    pub(super) fn create(&self, folder: &Path, stem: &str, schema: &SchemaRef) -> Result<OpenPart> {
        let names = self.names(stem);
        let path = folder.join(&names[0]);
        files::create_folder(path.parent().unwrap_or(folder))?;
        let writer = match self {
            Self::Parquet(metadata, compression) => {
                let writer = PartWriter::create(&path, schema, metadata, *compression)?;
                PartFile::Parquet(Box::new(writer))
            }
            Self::Lines => PartFile::Lines(LinesWriter::create(&path, schema)?),
            Self::Tokens(sequences) => {
                PartFile::Tokens(TokensWriter::create(&folder.join(stem), *sequences)?)
            }
        };
        Ok(OpenPart { names, writer })
    }
}

/// Returns the vocabulary size of the token ids, or the maximum if it is unknown.
fn vocabulary(plan: &Plan) -> u64 {
    let from_tokenizer = plan.encoder.as_ref().map(|encoder| u64::from(encoder.largest_id()) + 1);
    let from_model =
        plan.attention.as_ref().map(|attention| attention.model.spec().vocabulary_size);
    from_model.max(from_tokenizer).unwrap_or(1 << 31)
}

/// A part that is being written.
pub(super) struct OpenPart {
    names: Vec<String>,
    writer: PartFile,
}

enum PartFile {
    Parquet(Box<PartWriter>),
    Lines(LinesWriter),
    Tokens(TokensWriter),
}

impl OpenPart {
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match &mut self.writer {
            PartFile::Parquet(writer) => Ok(writer.write(batch)?),
            PartFile::Lines(writer) => Ok(writer.write(batch)?),
            PartFile::Tokens(writer) => {
                let samples = batch.column(0).as_list::<i64>();
                for sample in 0..samples.len() {
                    let ids = samples.value(sample);
                    writer.write(ids.as_primitive::<UInt32Type>().values())?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn finish(self) -> Result<Vec<Part>> {
        let written: Vec<WrittenPart> = match self.writer {
            PartFile::Parquet(writer) => vec![writer.finish()?],
            PartFile::Lines(writer) => vec![writer.finish()?],
            PartFile::Tokens(writer) => writer.finish()?,
        };
        Ok(self.names.into_iter().zip(written).map(|(name, part)| Part::new(name, &part)).collect())
    }
}
