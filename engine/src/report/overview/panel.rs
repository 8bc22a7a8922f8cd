//! The panel of a page that answers what another amount, another weight between the sides of the score, or no guards would
//! keep: to the accuracy of a cell; `longsift whatif` answers exactly.

use longsift_stages::score::terms::{Combine, Term};
use serde::Serialize;
use serde_json::{Value, json};

use super::choice::Choice;
use super::drawings::number;
use super::grid::Cells;
use super::guards::{self, Sliding};
use crate::base::text::{count, json_safe};
use crate::report::amount::Amount;
use crate::report::page::{Block, Section};

/// Groups of which the panel knows how to score their samples: beyond it those that are shown.
pub(super) const MOST_KNOWN: usize = 4096;

/// What a panel is made of.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Panel {
    #[serde(skip)]
    rule: Combine,
    combine: Value,
    /// Whether there are two sides.
    two: bool,
    /// The statistics of the second.
    second: String,
    /// The share that is kept now.
    share: f64,
    /// What a sample is called, in the plural.
    samples: &'static str,
    /// The guards as the pipeline has them.
    guards: Value,
    /// Their ends, and to what they can be moved.
    bounds: Vec<Sliding>,
    terms: Vec<Side>,
    /// What else the score says, as lines of YAML.
    score: Vec<String>,
    groups: Vec<OfGroup>,
    /// Groups that are in none of these.
    #[serde(skip)]
    left_out: usize,
}

#[derive(Clone, Debug, Serialize)]
struct Side {
    statistic: String,
    weight: f64,
    offset: f64,
    standardise: Value,
    /// Whether it is of the first side.
    first: bool,
}

/// A group of a panel.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfGroup {
    pub(super) name: String,
    /// The samples that a share is one of, and those that it would be one of without guards.
    pub(super) counted: u64,
    pub(super) counted_without_guards: u64,
    /// Those that are kept, and their tokens.
    pub(super) kept: u64,
    pub(super) tokens: u64,
    pub(super) cells: Cells,
    /// What moved guards are answered from.
    pub(super) guarded: Option<guards::Cells>,
}

impl Panel {
    /// None where there is nothing to choose from.
    pub(super) fn of(
        choice: &Choice,
        first: &[bool],
        bounds: Vec<Sliding>,
        groups: Vec<OfGroup>,
        left_out: usize,
    ) -> Option<Self> {
        let counted: u64 = groups.iter().map(|group| group.counted).sum();
        let kept: u64 = groups.iter().map(|group| group.kept).sum();
        // A random score has no sides to weigh.
        if counted == 0 || choice.terms.is_empty() {
            return None;
        }
        let share = choice.filter.keep_fraction.map(|fraction| fraction.0);
        let second = choice.terms.iter().zip(first).filter(|(_, first)| !**first);
        let second: Vec<&str> = second.map(|(term, _)| term.statistic.as_str()).collect();
        let side = |(term, first): (&Term, &bool)| Side {
            statistic: term.statistic.clone(),
            weight: term.weight,
            offset: term.offset,
            standardise: json!(term.standardise.unwrap_or(choice.score.standardise)),
            first: *first,
        };
        Some(Self {
            rule: choice.combine,
            combine: json!(choice.combine),
            two: !second.is_empty(),
            second: second.join(", "),
            share: share.unwrap_or(kept as f64 / counted as f64),
            samples: if choice.documents { "documents" } else { "windows" },
            guards: json!(choice.filter.guards),
            bounds,
            terms: choice.terms.iter().zip(first).map(side).collect(),
            score: choice
                .score
                .within
                .iter()
                .map(|within| format!("within: {}", json!(within)))
                .collect(),
            groups,
            left_out,
        })
    }

    /// The part of the page: a table that needs no script, and what a script makes the panel of.
    pub(super) fn section(&self) -> Section {
        let mut shares = vec![0.05, 0.1, 0.25, 0.5, self.share];
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        let rows = shares.into_iter().map(|share| {
            let (mut kept, mut edges) = (Amount::default(), Vec::new());
            for group in &self.groups {
                let (own, edge) = group.cells.kept(self.rule, self.two, share, group.counted);
                kept.add(own);
                edges.push(edge);
            }
            let finite = || edges.iter().copied().filter(|edge| edge.is_finite());
            let (low, high) = (
                finite().fold(f64::INFINITY, f64::min),
                finite().fold(f64::NEG_INFINITY, f64::max),
            );
            let edges = if low < high {
                format!("{} to {}", number(low), number(high))
            } else if low.is_finite() {
                number(low)
            } else {
                "–".to_owned()
            };
            let now = if share.total_cmp(&self.share).is_eq() { " (now)" } else { "" };
            vec![
                format!("{} %{now}", number(100.0 * share)),
                count(kept.samples),
                count(kept.tokens),
                edges,
            ]
        });
        let header = ["keep", self.samples, "tokens", "from the score"];
        let json = serde_json::to_string(self).expect("plain data");
        // Inside a script no text ends it.
        let data = json_safe(&json).replace('<', "\\u003c");
        let lead = "From counts in cells of the score's sides, so to the accuracy of a cell; groups that are not shown are \
                    taken as one. `longsift whatif` answers exactly.";
        let mut blocks = vec![Block::table(header, rows.collect())];
        if self.left_out > 0 {
            blocks.push(Block::Note(format!(
                "{} groups are left out of this panel, table and sliders: of more than {} groups those that are shown are counted. \
                 `longsift whatif` answers for all.",
                count(self.left_out as u64),
                count(MOST_KNOWN as u64),
            )));
        }
        if !self.bounds.is_empty() {
            let said = "Scores stay on the scale of the samples that pass the guards of the run, while `longsift whatif` takes scales \
                        anew. A guard moves in steps, and is answered from larger cells than the rest. One that is moved alone is \
                        counted, a quantile to a bin of its statistic; several together are taken as independent of each \
                        other inside a cell. A sample without the statistic of a guard only takes part when all guards are \
                        unticked.";
            blocks.push(Block::Note(said.to_owned()));
        }
        blocks.push(Block::Panel(data));
        Section::new("whatif", "What if", lead, blocks)
    }
}
