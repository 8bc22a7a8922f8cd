//! What a report counts: one pass over the selection and the scores, unit by unit, several at a time. Memory is that of the
//! bins, of a unit's windows for each thread, and of the samples that are shown.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use longsift_stages::contract::{Column, Kind as ColumnKind, Value};
use longsift_stages::filter::guards::Bounds;
use longsift_stages::score::terms::{Combine, Scorer};

use super::bins::Bins;
use super::choice::Choice;
use super::grid::{Grid, Sides};
use super::guards::{Bound, Guarded};
use super::picks::Picks;
use crate::base::error::Result;
use crate::base::parallel;
use crate::dataset::labels;
use crate::plan::Plan;
use crate::report::amount::Amount;
use crate::run_directory::dropped::NOT_SELECTED;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::{self, MeasureColumns, Place};
use crate::run_directory::selected::{self, SelectedRow};
use crate::run_directory::table::Table;
use crate::run_directory::units::UnitRecord;

/// What became of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    /// Not kept for its rank.
    Below,
    /// Refused by a guard, or without a score.
    Refused,
}

/// How many there are.
pub(super) const FATES: usize = 3;

impl Fate {
    pub(super) fn of(reason: Option<&str>) -> Self {
        match reason {
            None => Self::Kept,
            Some(NOT_SELECTED) => Self::Below,
            Some(_) => Self::Refused,
        }
    }
}

/// What is counted of a group.
#[derive(Clone, Debug)]
pub(super) struct OfGroup {
    pub(super) fates: [Amount; FATES],
    pub(super) score: Bins<FATES>,
    /// By statistic of the selection.
    pub(super) statistics: Vec<Bins<FATES>>,
    pub(super) picks: Picks,
    /// Samples that a share is one of.
    pub(super) counted: u64,
    pub(super) grid: Grid,
    pub(super) guarded: Guarded,
}

/// The sum of lists of equal length, for their mean.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    pub(super) windows: u64,
    pub(super) sums: Vec<f64>,
}

impl Lists {
    fn add(&mut self, numbers: &[f64], windows: u64) {
        self.windows += windows;
        if self.sums.len() < numbers.len() {
            self.sums.resize(numbers.len(), 0.0);
        }
        self.sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
    }
}

/// What is counted of all samples.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    /// By place among the groups that are shown; the last is of all others.
    pub(super) groups: Vec<OfGroup>,
    /// By reason; kept ones without.
    pub(super) reasons: BTreeMap<Option<String>, Amount>,
    /// By term, how often it was the least, of kept samples and of those below the threshold.
    pub(super) weakest: Vec<[u64; 2]>,
    /// By statistic that is a list: of kept windows, and of the others.
    pub(super) lists: BTreeMap<String, [Lists; 2]>,
    /// By label of `output.report_by`: all samples, and those that are kept.
    pub(super) labels: BTreeMap<Option<String>, [u64; 2]>,
}

/// What is gathered, and from where.
pub(super) struct Gathering<'a> {
    pub(super) choice: &'a Choice,
    pub(super) records: &'a [UnitRecord],
    /// Where the scores are.
    pub(super) scores: &'a RunDirectory,
    /// The tables of the selection, by unit.
    pub(super) selection: HashMap<&'a str, PathBuf>,
    /// The statistics that they have.
    pub(super) statistics: Vec<String>,
    /// The groups that are shown, and their places.
    pub(super) groups: HashMap<Option<&'a str>, usize>,
    /// Which side of the score each term is of.
    pub(super) sides: Sides,
    /// The ends of the guards.
    pub(super) bounds: Vec<Bound>,
    /// By group, what scores its samples, and the bounds of its guards.
    pub(super) known: HashMap<Option<&'a str>, (Scorer, &'a [Bounds])>,
    /// The column of labels and the units of the input by name, where it can be read.
    pub(super) labels: Option<(&'a Plan, &'a str, HashMap<String, usize>)>,
}

impl Gathering<'_> {
    /// Everything. The same bits for any number of threads: units are added in their order.
    pub(super) fn gather(&self) -> Result<Gathered> {
        let threads = self.scores.concurrency(rayon::current_num_threads());
        let mut all = self.nothing();
        let work = |unit: usize| self.unit(unit);
        parallel::each_in_order(self.records.len(), threads, work, |unit| {
            all.append(unit);
            Ok(())
        })?;
        Ok(all)
    }

    fn nothing(&self) -> Gathered {
        let group = OfGroup {
            fates: [Amount::default(); FATES],
            score: Bins::new(),
            statistics: vec![Bins::new(); self.statistics.len()],
            picks: Picks::default(),
            counted: 0,
            grid: Grid::new(&self.sides),
            guarded: Guarded::new(&self.sides, &self.bounds),
        };
        Gathered {
            groups: vec![group; self.groups.len() + 1],
            reasons: BTreeMap::new(),
            weakest: vec![[0; 2]; self.choice.terms.len()],
            lists: BTreeMap::new(),
            labels: BTreeMap::new(),
        }
    }

    fn unit(&self, unit: usize) -> Result<Gathered> {
        let mut found = self.nothing();
        let record = &self.records[unit];
        let Some(path) = self.selection.get(record.unit.as_str()) else { return Ok(found) };
        let of_scores = self.scores.root.join(&record.scores.path);
        let mut places: Vec<Place> = Vec::new();
        scores::read_places(&of_scores, |place| {
            places.push(place);
            Ok(())
        })?;
        let labels = self.labels_of(unit)?;
        let mut fates: Vec<(Fate, bool)> = Vec::with_capacity(places.len());
        selected::read(path, |row| {
            let first = fates.len();
            let own = places.get(first).filter(|place| place.input_row == row.input_row);
            let (Some(place), true) = (own.copied(), self.is_sample(own, row)) else {
                return Err(other_rows(path));
            };
            let (windows, tokens) = if row.window.is_some() {
                (1, place.tokens.1 - place.tokens.0)
            } else {
                let rest = places[first..].iter();
                let windows = rest.take_while(|of| of.input_row == row.input_row).count();
                (windows, place.tokens_total)
            };
            let fate = Fate::of(row.reason);
            let spared = row.reason.is_some_and(|reason| self.choice.spares(reason));
            fates.extend(std::iter::repeat_n((fate, spared), windows));
            self.sample(&mut found, unit, row, place, tokens, fate);
            if let Some(of_rows) = &labels {
                let label = of_rows.get((row.input_row - record.first_row) as usize).cloned();
                let counts = found.labels.entry(label.flatten()).or_default();
                counts[0] += 1;
                counts[1] += u64::from(fate == Fate::Kept);
            }
            Ok(())
        })?;
        if fates.len() != places.len() {
            return Err(other_rows(path));
        }
        self.lists(&of_scores, &places, &fates, &mut found)?;
        Ok(found)
    }

    fn is_sample(&self, place: Option<&Place>, row: &SelectedRow<'_>) -> bool {
        match row.window {
            Some(window) => place.is_some_and(|place| place.window == window),
            None => self.choice.documents,
        }
    }

    fn sample(
        &self,
        found: &mut Gathered,
        unit: usize,
        row: &SelectedRow<'_>,
        place: Place,
        tokens: u64,
        fate: Fate,
    ) {
        let amount = Amount { samples: 1, tokens };
        match found.reasons.get_mut(&row.reason.map(str::to_owned)) {
            Some(all) => all.add(amount),
            None => drop(found.reasons.insert(row.reason.map(str::to_owned), amount)),
        }
        let shown = self.groups.get(&row.group).copied();
        let group = &mut found.groups[shown.unwrap_or(self.groups.len())];
        group.fates[fate as usize].add(amount);
        group.score.add(row.score, fate as usize);
        for (bins, value) in group.statistics.iter_mut().zip(row.statistics) {
            bins.add(*value, fate as usize);
        }
        if shown.is_some() {
            group.picks.add(unit, row, place, tokens);
        }
        group.counted += u64::from(!row.reason.is_some_and(|reason| reason.starts_with("no_")));
        let known = self.known.get(&row.group).filter(|_| !row.score.is_nan());
        let Some((scorer, guards)) = known else { return };
        let refused = fate == Fate::Refused;
        let sides = self.sides.values(scorer.terms(row.statistics));
        group.grid.add(sides, refused, amount);
        group.guarded.add(&self.bounds, guards, row.statistics, sides, amount);
        if self.choice.combine == Combine::Least && !refused && shown.is_some() {
            let least = |(place, least): (usize, f64), (own, term): (usize, f64)| {
                if term < least { (own, term) } else { (place, least) }
            };
            let terms = scorer.terms(row.statistics).enumerate();
            let (weakest, _) = terms.fold((0, f64::INFINITY), least);
            found.weakest[weakest][usize::from(fate == Fate::Below)] += 1;
        }
    }

    fn labels_of(&self, unit: usize) -> Result<Option<Vec<Option<String>>>> {
        let Some((plan, column, units)) = &self.labels else { return Ok(None) };
        let record = &self.records[unit];
        let Some(own) = units.get(&record.unit) else { return Ok(None) };
        let (own, unreadable) = (&plan.units[*own], record.unreadable_rows());
        Ok(Some(labels::read_labels(&plan.dataset, own, column, &unreadable)?))
    }

    /// Adds the lists of every window: distances, heads. What a guard spares a measure may have some of a run with other
    /// guards. `fates`: by place, with whether a guard before a measure refused it.
    fn lists(
        &self,
        path: &Path,
        places: &[Place],
        fates: &[(Fate, bool)],
        found: &mut Gathered,
    ) -> Result<()> {
        let is_list = |column: &Column| column.kind == ColumnKind::Numbers;
        let mut measures: Vec<MeasureColumns> = Vec::new();
        for (measure, column) in self.choice.columns.iter().filter(|(_, column)| is_list(column)) {
            let columns = vec![column.clone()];
            measures.push(MeasureColumns { measure: measure.clone(), columns });
        }
        scores::read_figures(path, &measures, |row, window, measure, figures| {
            let at = places.binary_search_by_key(&(row, window), |of| (of.input_row, of.window));
            let (Ok(at), [Value::Numbers(numbers)]) = (at, &figures.0[..]) else { return Ok(()) };
            let (fate, spared) = fates[at];
            if spared && self.choice.is_guarded(&measures[measure].measure) {
                return Ok(());
            }
            let name = &*measures[measure].columns[0].name;
            if !found.lists.contains_key(name) {
                found.lists.insert(name.to_owned(), Default::default());
            }
            let side = usize::from(fate != Fate::Kept);
            found.lists.get_mut(name).expect("it was put there")[side].add(numbers, 1);
            Ok(())
        })
    }
}

fn other_rows(path: &Path) -> crate::base::error::Failure {
    let hint = "`longsift verify` says which file changed after it was written";
    Table { path, what: "table of the selection", hint }
        .damaged(&"its rows are not those of the scores")
}

impl Gathered {
    fn append(&mut self, other: Self) {
        for (group, more) in self.groups.iter_mut().zip(other.groups) {
            group.fates.iter_mut().zip(more.fates).for_each(|(fate, more)| fate.add(more));
            group.score.append(&more.score);
            let statistics = group.statistics.iter_mut().zip(&more.statistics);
            statistics.for_each(|(bins, more)| bins.append(more));
            group.picks.append(more.picks);
            group.counted += more.counted;
            group.grid.append(&more.grid);
            group.guarded.append(&more.guarded);
        }
        for (reason, amount) in other.reasons {
            self.reasons.entry(reason).or_default().add(amount);
        }
        for (sides, more) in self.weakest.iter_mut().zip(other.weakest) {
            sides.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        for (name, more) in other.lists {
            let lists = self.lists.entry(name).or_default();
            lists.iter_mut().zip(more).for_each(|(all, more)| all.add(&more.sums, more.windows));
        }
        for (label, more) in other.labels {
            let counts = self.labels.entry(label).or_default();
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
    }
}
