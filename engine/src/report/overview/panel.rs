//! Panel of a page for other settings: estimates what another share, another weight between the components of the score,
//! or other guards would keep, accurate to a cell. `longsift whatif` is exact.

use longsift_stages::score::terms::{Combine, Term};
use serde::Serialize;
use serde_json::{Value, json};

use super::choice::Choice;
use super::drawings::number;
use super::grid::GridCells;
use super::guards::{self, Sliding};
use crate::base::text::{count, json_safe};
use crate::report::amount::Amount;
use crate::report::page::{Block, Section};

/// Maximum number of groups whose samples the panel can score; beyond it only the shown ones.
pub(super) const MAX_SCORED_GROUPS: usize = 4096;

/// Data of a panel.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Panel {
    #[serde(skip)]
    rule: Combine,
    combine: Value,
    /// Whether the score has two components.
    two: bool,
    /// Statistics of the second component.
    second: String,
    /// Share of kept samples.
    share: f64,
    /// Noun for samples, in the plural.
    samples: &'static str,
    /// Guards, as in the pipeline.
    guards: Value,
    /// Their bounds, and the steps to which these can be moved.
    bounds: Vec<Sliding>,
    terms: Vec<PanelTerm>,
    /// Remaining settings of the score, as lines of YAML.
    score: Vec<String>,
    groups: Vec<PanelGroup>,
    /// Number of groups that are not in the panel.
    #[serde(skip)]
    left_out: usize,
}

#[derive(Clone, Debug, Serialize)]
struct PanelTerm {
    statistic: String,
    weight: f64,
    offset: f64,
    standardise: Value,
    /// Whether it belongs to the first component.
    first: bool,
}

/// A group of a panel.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PanelGroup {
    pub(super) name: String,
    /// Denominators of a share of samples, with guards and without.
    pub(super) counted: u64,
    pub(super) counted_without_guards: u64,
    /// Kept samples, and their tokens.
    pub(super) kept: u64,
    pub(super) tokens: u64,
    pub(super) cells: GridCells,
    /// Cells for moved guards.
    pub(super) guarded: Option<guards::GuardCells>,
}

impl Panel {
    /// Builds the panel; `None` without samples or terms.
    pub(super) fn new(
        choice: &Choice,
        first: &[bool],
        bounds: Vec<Sliding>,
        groups: Vec<PanelGroup>,
        left_out: usize,
    ) -> Option<Self> {
        let counted: u64 = groups.iter().map(|group| group.counted).sum();
        let kept: u64 = groups.iter().map(|group| group.kept).sum();
        // A random score has no components to weigh.
        if counted == 0 || choice.terms.is_empty() {
            return None;
        }
        let share = choice.filter.keep_fraction.map(|fraction| fraction.0);
        let second = choice.terms.iter().zip(first).filter(|(_, first)| !**first);
        let second: Vec<&str> = second.map(|(term, _)| term.statistic.as_str()).collect();
        let term_of = |(term, first): (&Term, &bool)| PanelTerm {
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
            terms: choice.terms.iter().zip(first).map(term_of).collect(),
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

    /// Renders the section of the page: a table without scripts, and the data of the interactive panel.
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
        let header = ["keep", self.samples, "tokens", "minimum score"];
        let json = serde_json::to_string(self).expect("plain data");
        // Keeps text from closing the script element.
        let data = json_safe(&json).replace('<', "\\u003c");
        let lead = "Approximate: estimated from counts in cells of the score's components. Groups that are not shown are \
                    combined. `longsift whatif` is exact.";
        let mut blocks = vec![Block::table(header, rows.collect())];
        if self.left_out > 0 {
            blocks.push(Block::Note(format!(
                "{} groups are left out of this panel: of more than {} groups only the shown ones are counted. `longsift whatif` \
                 covers all groups.",
                count(self.left_out as u64),
                count(MAX_SCORED_GROUPS as u64),
            )));
        }
        if !self.bounds.is_empty() {
            let said = "Scores keep the scales of the run, while `longsift whatif` recomputes them. Guards move in steps and use larger \
                        cells. A single moved guard is counted exactly, a quantile to a bin of its statistic; several moved guards \
                        are assumed to be independent inside a cell. Samples without the statistic of a guard are included only \
                        when all guards are off.";
            blocks.push(Block::Note(said.to_owned()));
        }
        blocks.push(Block::Panel(data));
        Section::new("whatif", "Other settings", lead, blocks)
    }
}
