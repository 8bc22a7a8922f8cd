//! Whole documents before they are tokenised: which of them programs drop, and the statistics that programs answer of them.
//!
//! Answers are kept by unit, in `answers/` of the run directory, by the command, the digests of its files and the version of
//! the stage: a unit that is opened again asks about no document twice.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use longsift_stages::Reads;
use longsift_stages::contract::{Column, Figures, Kind, Measure, Merge, Orientation, Value};

use super::carried::Carried;
use super::context::ScoreContext;
use super::journal::{FigureKey, Header, Journal};
use super::programs::{Content, Question};
use crate::base::error::Result;
use crate::dataset::documents::{Document, DocumentContent};
use crate::dataset::units::WorkUnit;
use crate::plan::programs::Program;
use crate::run_directory::quarantine::BadRow;
use crate::run_directory::scores::MeasureColumns;
use crate::run_directory::units;
use crate::storage::files;

/// A document, and what programs said of it.
#[derive(Debug)]
pub struct Judged {
    /// As it was read.
    pub document: Document,
    /// What is to be done with it.
    pub verdict: Verdict,
}

/// What is to be done with a document.
#[derive(Debug)]
pub enum Verdict {
    /// It is cut into windows. The figures that all of them have, by the place of their measure.
    Keep(Vec<(u16, Figures)>),
    /// A program drops it, for this reason.
    Drop(Arc<str>),
    /// A program has no answer.
    Failed(BadRow),
}

impl From<Document> for Judged {
    /// A document that no program was asked about.
    fn from(document: Document) -> Self {
        Self { document, verdict: Verdict::Keep(Vec::new()) }
    }
}

/// Asks the programs that read documents about those of a unit.
pub(super) struct Judge<'a> {
    context: &'a ScoreContext<'a>,
    programs: Vec<&'a Program>,
    /// None where no program reads documents.
    kept: Option<Kept>,
}

/// Answers that are kept.
struct Kept {
    journal: Journal,
    /// By row and place of the program: whether the row is dropped, then its statistics.
    known: HashMap<FigureKey, Figures>,
    /// Whether the journal is the one that is kept, and not one beside that of another process.
    is_own: bool,
}

impl<'a> Judge<'a> {
    pub(super) fn open(context: &'a ScoreContext<'a>, unit: &WorkUnit) -> Result<Self> {
        let plan = context.plan;
        let reads_documents = |program: &&Program| program.settings.reads == Reads::Document;
        let programs: Vec<&Program> = plan.programs.iter().filter(reads_documents).collect();
        let kept =
            if programs.is_empty() { None } else { Some(Kept::open(context, unit, &programs)?) };
        Ok(Self { context, programs, kept })
    }

    /// Asks about documents; in their order.
    pub(super) fn judge(&mut self, documents: Vec<Document>) -> Result<Vec<Judged>> {
        let mut judged: Vec<Judged> = documents.into_iter().map(Judged::from).collect();
        let Some(kept) = &mut self.kept else { return Ok(judged) };
        for (place, program) in self.programs.iter().enumerate() {
            let measure = self.context.plan.place_of(program);
            let mut settled = Vec::new();
            let (mut asked, mut questions) = (Vec::new(), Vec::new());
            for (index, Judged { document, verdict }) in judged.iter().enumerate() {
                let (Verdict::Keep(_), Ok(content)) = (verdict, &document.content) else {
                    continue;
                };
                let key = ((document.row, 0), place as u16);
                if let Some(figures) = kept.known.remove(&key) {
                    settled.push((index, Ok(figures)));
                    continue;
                }
                asked.push((index, key));
                let content = match content {
                    DocumentContent::Text(text) => Content::Text(Cow::Borrowed(text)),
                    DocumentContent::Tokens(ids) => Content::Ids(Cow::Borrowed(ids)),
                };
                questions.push(Question { row: document.row, window: 0, content });
            }
            self.context.programs.ask(program, &questions, &mut |answer| {
                if let Some((question, answer)) = answer {
                    let (index, key) = asked[question];
                    let figures = answer.map(|reply| {
                        let dropped = Value::Count(u64::from(reply.drop));
                        Figures([vec![dropped], reply.values].concat())
                    });
                    if let Ok(figures) = &figures {
                        kept.journal.append(key, figures)?;
                    }
                    settled.push((index, figures));
                }
                kept.journal.sync_if_due(Instant::now())
            })?;
            let name = &program.settings.name;
            for (index, figures) in settled {
                let Judged { document, verdict } = &mut judged[index];
                match figures {
                    Err(why) => {
                        let (row, stage) = (document.row, name.clone().into());
                        *verdict = Verdict::Failed(BadRow { row, stage, error: why });
                    }
                    Ok(figures) if figures.0[0] == Value::Count(1) => {
                        *verdict = Verdict::Drop(format!("dropped_by_{name}").into());
                    }
                    Ok(mut figures) => {
                        if let (Verdict::Keep(all), Some(measure)) = (verdict, measure) {
                            figures.0.remove(0);
                            all.push((measure, figures));
                        }
                    }
                }
            }
        }
        Ok(judged)
    }

    /// Makes the answers durable.
    pub(super) fn finish(&mut self) -> Result<()> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        if kept.is_own { kept.journal.sync() } else { Ok(files::remove_file(kept.journal.path())?) }
    }
}

impl Kept {
    fn open(context: &ScoreContext<'_>, unit: &WorkUnit, programs: &[&Program]) -> Result<Self> {
        let plan = context.plan;
        let measures = programs.iter().map(|program| {
            let measure = program.settings.name.clone();
            let fingerprint = context.wanted.documents[&measure].clone();
            let columns = std::iter::once(drop_column()).chain(program.settings.columns());
            Carried::unfinished(MeasureColumns { measure, columns: columns.collect() }, fingerprint)
        });
        let content = format!("{:?}", plan.columns.content);
        let windows = units::fingerprint(&plan.dataset, unit, &content);
        let header = Header { windows, measures: measures.collect(), carried: Vec::new() };
        let path = context.directory.answers().join(unit.name());
        let (journal, known) = Journal::open(&path, &header, context.alone)?;
        let is_own = journal.path() == path;
        Ok(Self { journal, known, is_own })
    }
}

/// Whether a document is dropped, among what is kept of it.
fn drop_column() -> Column {
    Column {
        name: "drop".into(),
        kind: Kind::Count,
        unit: "1 or 0".into(),
        doc: "whether the document is dropped".into(),
        merge: Merge::First,
        orientation: Orientation::Lower,
        error: None,
    }
}
