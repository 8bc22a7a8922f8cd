//! Whole documents before tokenization: programs drop some of them and return statistics.
//!
//! Answers are stored per unit in `answers/` of the run directory, by command, digests of its files and version of the stage,
//! so that reopening a unit never queries a document twice.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Instant;

use longsift_stages::Reads;
use longsift_stages::contract::{Column, Kind, Measure, StatisticValues, Value};

use super::context::ScoreContext;
use super::journal::{Header, Journal, RetainedMeasure, StatisticsKey};
use super::prepare::{JudgedDocument, Preparation};
use super::programs::{Question, QuestionContent};
use crate::base::error::Result;
use crate::dataset::documents::{Document, DocumentContent};
use crate::dataset::units::WorkUnit;
use crate::plan::programs::Program;
use crate::run_directory::quarantine::BadRow;
use crate::run_directory::scores::MeasureColumns;
use crate::run_directory::units;
use crate::storage::files;

pub(super) struct Judge<'a> {
    context: &'a ScoreContext<'a>,
    programs: Vec<&'a Program>,
    /// `None` if no program reads documents.
    kept: Option<StoredAnswers>,
}

struct StoredAnswers {
    journal: Journal,
    /// Answers by row and index of the program: 1 if the row is dropped else 0, then its statistics.
    known: HashMap<StatisticsKey, StatisticValues>,
    /// Whether the journal is the permanent one, and not a temporary one next to a journal that another process has locked.
    is_own: bool,
}

impl<'a> Judge<'a> {
    pub(super) fn open(context: &'a ScoreContext<'a>, unit: &WorkUnit) -> Result<Self> {
        let plan = context.plan;
        let reads_documents = |program: &&Program| program.settings.reads == Reads::Document;
        let programs: Vec<&Program> = plan.programs.iter().filter(reads_documents).collect();
        let kept = if programs.is_empty() {
            None
        } else {
            Some(StoredAnswers::open(context, unit, &programs)?)
        };
        Ok(Self { context, programs, kept })
    }

    pub(super) fn judge(&mut self, documents: Vec<Document>) -> Result<Vec<JudgedDocument>> {
        let mut judged: Vec<JudgedDocument> =
            documents.into_iter().map(JudgedDocument::from).collect();
        let Some(kept) = &mut self.kept else { return Ok(judged) };
        for (program_index, program) in self.programs.iter().enumerate() {
            let measure = self.context.plan.measure_index(program);
            let mut settled = Vec::new();
            let (mut pending, mut questions) = (Vec::new(), Vec::new());
            for (index, JudgedDocument { document, answers }) in judged.iter().enumerate() {
                let (Ok(_), Ok(content)) = (answers, &document.content) else { continue };
                let key = ((document.row, 0), program_index as u16);
                if let Some(values) = kept.known.remove(&key) {
                    settled.push((index, Ok(values)));
                    continue;
                }
                pending.push((index, key));
                let content = match content {
                    DocumentContent::Text(text) => QuestionContent::Text(Cow::Borrowed(text)),
                    DocumentContent::Tokens(ids) => QuestionContent::Ids(Cow::Borrowed(ids)),
                };
                questions.push(Question { row: document.row, window: 0, content });
            }
            self.context.programs.query(program, &questions, &mut |answer| {
                if let Some((question, answer)) = answer {
                    let (index, key) = pending[question];
                    let values = answer.map(|reply| {
                        let dropped = Value::Count(u64::from(reply.drop));
                        StatisticValues([vec![dropped], reply.values].concat())
                    });
                    if let Ok(values) = &values {
                        kept.journal.append(key, values)?;
                    }
                    settled.push((index, values));
                }
                kept.journal.sync_if_due(Instant::now())
            })?;
            let name = &program.settings.name;
            for (index, values) in settled {
                let JudgedDocument { document, answers } = &mut judged[index];
                match values {
                    Err(error) => {
                        let (row, stage) = (document.row, name.clone().into());
                        *answers = Err(Preparation::Quarantine(BadRow { row, stage, error }));
                    }
                    Ok(values) if values.0[0] == Value::Count(1) => {
                        let reason = format!("dropped_by_{name}").into();
                        *answers = Err(Preparation::Drop { reason, tokens_total: 0, windows: 0 });
                    }
                    Ok(mut values) => {
                        if let (Ok(all), Some(measure)) = (answers, measure) {
                            values.0.remove(0);
                            all.push((measure, values));
                        }
                    }
                }
            }
        }
        Ok(judged)
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        if kept.is_own { kept.journal.sync() } else { Ok(files::remove_file(&kept.journal.path)?) }
    }
}

impl StoredAnswers {
    fn open(context: &ScoreContext<'_>, unit: &WorkUnit, programs: &[&Program]) -> Result<Self> {
        let plan = context.plan;
        let measures = programs.iter().map(|program| {
            let measure = program.settings.name.clone();
            let fingerprint = context.wanted.documents[&measure].clone();
            let drop = Column::number("drop", "1 or 0", "whether the document is dropped");
            let drop = Column { kind: Kind::Count, ..drop };
            let columns = std::iter::once(drop).chain(program.settings.columns());
            RetainedMeasure::unfinished(
                MeasureColumns { measure, columns: columns.collect() },
                fingerprint,
            )
        });
        let content = format!("{:?}", plan.columns.content);
        let windows = units::fingerprint(&plan.dataset, unit, &content);
        let header = Header { windows, measures: measures.collect(), retained: Vec::new() };
        let path = context.directory.answers().join(unit.name());
        let (journal, known) = Journal::open(&path, &header, context.exclusive)?;
        let is_own = journal.path == path;
        Ok(Self { journal, known, is_own })
    }
}
