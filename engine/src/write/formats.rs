//! File formats of the output: Parquet, compressed JSON lines, or token ids for Megatron.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::base::error::Result;
use crate::dataset::metadata::output_metadata;
use crate::dataset::part::{PartWriter, WrittenPart};
use crate::dataset::part_lines::LinesWriter;
use crate::dataset::part_tokens::{SequenceSettings, TokensWriter};
use crate::plan::Plan;
use crate::plan::columns;
use crate::run_directory::units::Part;
use crate::spec::pipeline::{Output, OutputFormat};
use crate::storage::files;

pub(super) struct Format<'a> {
    plan: &'a Plan,
    output: &'a Output,
    pub(super) schema: SchemaRef,
    /// Key-values for the footers of Parquet files.
    metadata: Vec<(String, String)>,
}

impl<'a> Format<'a> {
    pub(super) fn from_plan(plan: &'a Plan) -> Self {
        let output = &plan.spec.pipeline.output;
        let new_columns = [plan.dataset.folder_columns(), columns::added(plan)].concat();
        let metadata = output_metadata(&plan.dataset.metadata, &new_columns);
        let schema = if output.format == OutputFormat::Megatron {
            let tokens = DataType::new_large_list(DataType::UInt32, false);
            Arc::new(Schema::new(vec![Field::new("tokens", tokens, false)]))
        } else {
            columns::schema(plan)
        };
        Self { plan, output, schema, metadata }
    }

    /// Whether the files have token ids instead of columns.
    pub(super) fn is_tokens(&self) -> bool {
        self.output.format == OutputFormat::Megatron
    }

    /// Returns the file names of one part, whose stem is like `train-00000-of-00012`.
    pub(super) fn names(&self, stem: &str) -> Vec<String> {
        let endings = self.output.format.endings(self.output.sequence_tokens.is_some());
        endings.iter().map(|ending| format!("{stem}{ending}")).collect()
    }

    /// Creates the files of a part in a folder, or in a subfolder that its name contains.
    pub(super) fn create(&self, folder: &Path, stem: &str) -> Result<OpenPart> {
        let (names, schema) = (self.names(stem), &self.schema);
        let path = folder.join(&names[0]);
        files::create_folder(path.parent().unwrap_or(folder))?;
        let writer = match self.output.format {
            OutputFormat::Parquet => {
                let compression = self.output.compression;
                let writer = PartWriter::create(&path, schema, &self.metadata, compression)?;
                PartFile::Parquet(Box::new(writer))
            }
            OutputFormat::JsonlZst => PartFile::Lines(LinesWriter::create(&path, schema)?),
            OutputFormat::Megatron => {
                PartFile::Tokens(TokensWriter::create(&folder.join(stem), self.sequences())?)
            }
        };
        Ok(OpenPart { names, writer })
    }

    fn sequences(&self) -> SequenceSettings {
        let end_token = self.output.end_token;
        SequenceSettings {
            vocabulary: vocabulary(self.plan).max(end_token.map_or(0, |id| u64::from(id) + 1)),
            tokens: self.output.sequence_tokens,
            end_token,
        }
    }
}

/// Returns the vocabulary size of the token ids, or the maximum if it is unknown.
fn vocabulary(plan: &Plan) -> u64 {
    let from_tokenizer = plan.encoder.as_ref().map(|encoder| u64::from(encoder.largest_id()) + 1);
    let from_model =
        plan.attention.as_ref().map(|attention| attention.model.spec().vocabulary_size);
    from_model.max(from_tokenizer).unwrap_or(1 << 31)
}

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
