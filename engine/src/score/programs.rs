//! Runs the programs of `external` stages: sends questions in batches to several processes of each program.
//!
//! If a program exits, times out or uses too much memory, its batch is split in halves and retried, until the failing row is
//! isolated. That row has no answer; the others do. A program that breaks the protocol ends the run.

mod child;
mod stream;

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use longsift_stages::contract::RowError;
use rustix::io::Errno;

use super::passes::consecutive;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::parallel::lock;
use crate::base::stop::Stop;
use crate::base::text::quoted;
use crate::plan::Plan;
use crate::plan::programs::Program;
use crate::storage::files;
use crate::storage::range_file::Stamp;
use child::{Child, Failed};
pub(crate) use stream::{Question, QuestionContent, Reply};

/// Maximum bytes of content per batch; a single question may exceed it.
const BATCH_BYTES: u64 = 64 << 20;

pub(crate) type Answer = std::result::Result<Reply, RowError>;

/// Programs of a plan, started at the first question and kept until the end.
pub(crate) struct Programs<'a> {
    stop: &'a Stop,
    copies: HashMap<&'a str, Copies>,
    /// Whether threads that wait for answers should return, because the run ends for another reason.
    is_abandoned: AtomicBool,
}

struct Copies {
    idle: Mutex<Vec<Child>>,
    /// Stamps of the files that answers depend on, when their digests were those in the identity of the statistics.
    stamps: Vec<Option<Stamp>>,
    /// Whether any has answered. If so, a failing start is not an error in the pipeline.
    has_answered: AtomicBool,
    /// Whether any has failed at a row.
    has_failed: AtomicBool,
}

impl<'a> Programs<'a> {
    /// `digests`: digests of the files that answers depend on, by stage ([`Program::digests`]). Fails if a file has changed since.
    pub(crate) fn new(
        plan: &'a Plan,
        digests: &BTreeMap<String, BTreeMap<String, String>>,
        stop: &'a Stop,
    ) -> Result<Self> {
        let mut copies = HashMap::new();
        for program in &plan.programs {
            let name = &*program.settings.name;
            // Taken before the digests: a change between the two is then found later.
            let stamps = program.files.iter().map(|(_, path)| stamp(path)).collect();
            let (now, then) = (program.digests()?, digests.get(name));
            let edited = now
                .iter()
                .find(|(file, now)| then.is_some_and(|then| then.get(*file) != Some(*now)));
            if let Some((file, _)) = edited {
                return Err(edited_while_used(program, file).into());
            }
            let copy = Copies {
                idle: Mutex::default(),
                stamps,
                has_answered: AtomicBool::new(false),
                has_failed: AtomicBool::new(false),
            };
            copies.insert(name, copy);
        }
        Ok(Self { stop, copies, is_abandoned: AtomicBool::new(false) })
    }

    /// Queries a program. Calls `on_answer` with the index of a question and its answer, in any order, or `None` at intervals.
    pub(crate) fn query(
        &self,
        program: &Program,
        questions: &[Question<'_>],
        on_answer: &mut dyn FnMut(Option<(usize, Answer)>) -> Result<()>,
    ) -> Result<()> {
        // Batches are spread evenly over all processes of the program.
        let even = questions.len().div_ceil(program.settings.processes as usize);
        let max = even.clamp(1, program.settings.batch_windows as usize);
        let sizes = questions.iter().map(|question| question.bytes() as u64);
        let batches = consecutive(sizes, max, BATCH_BYTES);
        let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let workers = batches.len().min(program.settings.processes as usize);
        std::thread::scope(|scope| {
            let (sender, answers) = channel();
            for _ in 0..workers {
                let runner = BatchRunner { programs: self, program, questions, is_over: &is_over };
                let (sender, batches, next) = (sender.clone(), &batches, &next);
                scope.spawn(move || runner.work(batches, next, &sender));
            }
            drop(sender);
            let result = loop {
                let result = match answers.recv_timeout(child::POLL_INTERVAL) {
                    Err(RecvTimeoutError::Disconnected) => break Ok(()),
                    Err(RecvTimeoutError::Timeout) => on_answer(None),
                    Ok(Err(failure)) => Err(failure),
                    Ok(Ok((index, answer))) => on_answer(Some((index, answer))),
                };
                if result.is_err() {
                    break result;
                }
            };
            is_over.store(result.is_err(), Ordering::Relaxed);
            result
        })
    }

    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Ends all programs. Fails if one wrote output after its last answer, or was edited during the run.
    pub(crate) fn finish(&self, plan: &Plan) -> Result<()> {
        for program in &plan.programs {
            self.check_unedited(program)?;
            let idle = std::mem::take(&mut *lock(&self.copies(program).idle));
            for child in idle {
                child.end(&|| self.stop.check()).map_err(|failed| failure(program, failed))?;
            }
        }
        Ok(())
    }

    /// Checks that a program was not edited, even if that was undone: its answers are recorded under the digests of its files.
    pub(super) fn check_unedited(&self, program: &Program) -> Result<()> {
        let stamps = &self.copies(program).stamps;
        match program.files.iter().zip(stamps).find(|((_, path), then)| stamp(path) != **then) {
            Some(((file, _), _)) => Err(edited_while_used(program, file).into()),
            None => Ok(()),
        }
    }

    fn copies(&self, program: &Program) -> &Copies {
        &self.copies[&*program.settings.name]
    }
}

/// Returns the stamp of a local file; `None` if it is missing or cannot be read.
fn stamp(path: &Path) -> Option<Stamp> {
    files::stamp(path).ok().flatten()
}

fn edited_while_used(program: &Program, file: &str) -> Diagnostic {
    let name = &program.settings.name;
    let message = format!("{} of {} was edited while the run used it", quoted(file), quoted(name));
    Diagnostic::error(Blame::Pipeline, message).at(program.location.clone()).hint(format!(
        "restore the old file to keep the answers of the old program, or run again with `--remeasure {name}` to \
         send all rows to the new one"
    ))
}

struct BatchRunner<'a> {
    programs: &'a Programs<'a>,
    program: &'a Program,
    questions: &'a [Question<'a>],
    /// Whether the receiver of the answers is gone.
    is_over: &'a AtomicBool,
}

impl BatchRunner<'_> {
    fn work(
        &self,
        batches: &[Range<usize>],
        next: &AtomicUsize,
        sender: &Sender<Result<(usize, Answer)>>,
    ) {
        let copies = self.programs.copies(self.program);
        let mut child = lock(&copies.idle).pop();
        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
            let answers = self.isolate(&mut child, &self.questions[batch.clone()], true);
            let sent = match answers {
                Ok(answers) => batch.clone().zip(answers).try_for_each(|one| sender.send(Ok(one))),
                Err(failure) => {
                    // Later output of this process would answer no question.
                    child = None;
                    let _ = sender.send(Err(failure));
                    break;
                }
            };
            if sent.is_err() {
                break;
            }
        }
        lock(&copies.idle).extend(child);
    }

    /// Queries a batch; if it fails, queries its halves.
    ///
    /// A single row fails only if it fails in a new process, and with `again` in two. `again`: no larger batch with the row
    /// has failed yet.
    fn isolate(
        &self,
        child: &mut Option<Child>,
        questions: &[Question<'_>],
        again: bool,
    ) -> Result<Vec<Answer>> {
        let was_queried = child.is_some();
        let how = match self.query(child, questions) {
            Ok(replies) => return Ok(replies.into_iter().map(Ok).collect()),
            Err(Failed::Ended(how)) => how,
            Err(failed) => return Err(failure(self.program, failed)),
        };
        *child = None;
        if questions.len() > 1 {
            let (first, second) = questions.split_at(questions.len() / 2);
            let mut answers = self.isolate(child, first, false)?;
            answers.extend(self.isolate(child, second, false)?);
            return Ok(answers);
        }
        if again || was_queried {
            return self.isolate(child, questions, again && was_queried);
        }
        let name = quoted(&self.program.settings.name);
        let message = format!("the program of {name} {how}");
        if !self.programs.copies(self.program).has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{message}; its row is quarantined, and each such row costs several starts"
            );
        }
        Ok(vec![Err(RowError { code: "stage_failed", message })])
    }

    fn query(
        &self,
        child: &mut Option<Child>,
        questions: &[Question<'_>],
    ) -> std::result::Result<Vec<Reply>, Failed> {
        let running = match child {
            Some(child) => child,
            None => child.insert(self.start()?),
        };
        let batch = running.query(questions, &|| self.interrupted())?;
        // Before the answers are kept under the digests of the program's files.
        self.programs.check_unedited(self.program).map_err(Failed::Interrupted)?;
        stream::replies(self.program, questions, &batch).map_err(Failed::Wrong)
    }

    /// Starts a program and queries a batch without rows, which shows that it starts and which columns it returns.
    fn start(&self) -> std::result::Result<Child, Failed> {
        let copies = self.programs.copies(self.program);
        let has_answered = copies.has_answered.load(Ordering::Relaxed);
        let name = quoted(&self.program.settings.name);
        let refuse = |blame: Blame, why: String| {
            let problem = Diagnostic::error(blame, format!("the program of {name} {why}"));
            let problem = problem.at(self.program.location.clone());
            Failed::Interrupted(
                match blame {
                    Blame::Machine => problem.hint("check this machine, and run the same command to resume"),
                    _ => problem.hint(
                        "to test it, run it in the pipeline's folder with only the stage's `environment`; its first batch has no rows",
                    ),
                }
                .into(),
            )
        };
        let mut child = Child::start(self.program).map_err(|error| {
            let own =
                [ErrorKind::NotFound, ErrorKind::PermissionDenied, ErrorKind::ExecutableFileBusy];
            // A file that is not executable code.
            let is_own =
                own.contains(&error.kind()) || Errno::from_io_error(&error) == Some(Errno::NOEXEC);
            let blame = if is_own { Blame::Pipeline } else { Blame::Machine };
            refuse(blame, format!("does not start: {error}"))
        })?;
        let answered = child
            .query(&[], &|| self.interrupted())
            .and_then(|batch| stream::replies(self.program, &[], &batch).map_err(Failed::Wrong));
        match answered {
            Ok(_) => {
                // The program has read its files by now.
                self.programs.check_unedited(self.program).map_err(Failed::Interrupted)?;
                copies.has_answered.store(true, Ordering::Relaxed);
                Ok(child)
            }
            Err(Failed::Ended(how)) => {
                let (blame, again) =
                    if has_answered { (Blame::Machine, " again") } else { (Blame::Pipeline, "") };
                Err(refuse(blame, format!("does not start{again}: it {how}")))
            }
            Err(failed) => Err(failed),
        }
    }

    fn interrupted(&self) -> Result<()> {
        self.programs.stop.check()?;
        let abandoned = [self.is_over, &self.programs.is_abandoned];
        if abandoned.iter().any(|flag| flag.load(Ordering::Relaxed)) {
            // Never shown: the reason why the run ends is reported elsewhere.
            return Err(Failure::Problems(Vec::new()));
        }
        Ok(())
    }
}

fn failure(program: &Program, failed: Failed) -> Failure {
    let name = quoted(&program.settings.name);
    match failed {
        Failed::Interrupted(failure) => failure,
        Failed::Ended(how) => {
            let message = format!("the program of {name} {how}");
            Diagnostic::error(Blame::Machine, message).at(program.location.clone()).into()
        }
        Failed::Wrong(what) => {
            let message = format!("the program of {name} returned an invalid answer: {what}");
            let columns = stream::in_words(&stream::answer_fields(program));
            Diagnostic::error(Blame::Data, message)
                .at(program.location.clone())
                .hint(format!(
                    "answer each batch with one batch of the same rows in the same order, with the columns {columns}; write \
                     messages for people to stderr"
                ))
                .into()
        }
    }
}
