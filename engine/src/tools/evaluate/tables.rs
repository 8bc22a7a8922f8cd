//! Text output of an evaluation: a table for each question with an explanation.

use std::fmt;

use super::constructions::{KINDS, KindRole};
use super::evaluation::{Evaluation, LengthResults};
use super::grid::{by_importance, grid, matrix, number, with_interval};
use super::guards::GuardRejections;
use super::heads::{HeadFigures, KINDS_OF_HEADS};
use super::report::{Report, TopFifthShares, pairs_of};
use crate::base::text::{count, line_safe};

/// An evaluation to be formatted, and whether with details.
struct Text<'a>(&'a Evaluation, bool);

impl Evaluation {
    /// Formats the matrix and the selection; with `details` also the results that they summarise.
    pub(crate) fn text(&self, details: bool) -> String {
        Text(self, details).to_string()
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(of, details) = self;
        writeln!(f, "Evaluation of {} (seed {})", line_safe(&of.pipeline), of.seed)?;
        if of.equal_ids_left_out > 0 {
            writeln!(
                f,
                "left out: {} rows with an id that another row of their category has",
                count(of.equal_ids_left_out)
            )?;
        }
        let left_out = &of.categories_left_out;
        if left_out.number > 0 {
            let names: Vec<String> = left_out.names.iter().map(|name| line_safe(name)).collect();
            writeln!(
                f,
                "left out: {} categories, among them {}",
                count(left_out.number),
                names.join(", ")
            )?;
        }
        of.labels.iter().try_for_each(|labels| labels.write(f, *details))?;
        of.lengths.values().try_for_each(|length| length.write(f, *details))?;
        if !details {
            writeln!(f, "\n`--details` prints detailed tables, `--format json` all results.")?;
        }
        writeln!(
            f,
            "\nResults of different window lengths are not comparable. They show what a score separates in this corpus, not\n\
             that selecting by it trains a better model."
        )
    }
}

impl LengthResults {
    fn write(&self, f: &mut fmt::Formatter<'_>, details: bool) -> fmt::Result {
        let documents: u64 = self.documents.values().sum();
        writeln!(
            f,
            "\n== constructed windows of {} tokens: {} of {} documents in {} categories (without BOS)",
            count(self.tokens),
            count(self.kinds.values().map(|kind| kind.windows).sum()),
            count(documents),
            count(self.documents.len() as u64)
        )?;
        for note in &self.notes {
            writeln!(f, "note: {}", line_safe(note))?;
        }
        if documents == 0 {
            return Ok(());
        }
        if let Some(sentence) = &self.sentence {
            writeln!(f, "{}", line_safe(sentence))?;
        }
        matrix(f, "Whole windows against constructed windows", &self.matrix)?;
        if !self.matrix.is_empty() {
            writeln!(
                f,
                "How often a whole window ranks above one of the kind. pass: the interval lies above 0.5; weak: it contains 0.5;\n\
                 fail: it lies below."
            )?;
        }
        if details {
            self.details(f)?;
        }
        self.heads(f)
    }

    fn details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nStatistics")?;
        let widest = self.statistics.keys().map(String::len).max().unwrap_or(0);
        for (name, doc) in &self.statistics {
            writeln!(f, "  {name:widest$}  {}", line_safe(doc))?;
        }
        self.ladder(f)?;
        self.pairs(f)?;
        self.top_fifth(f)?;
        self.guards(f)?;
        self.agreement(f)?;
        self.explained(f)?;
        self.selection(f)
    }

    /// Writes the share of each kind that each guard rejects.
    fn guards(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.guards.first() else { return Ok(()) };
        writeln!(f, "\nRejected by guards")?;
        let header: Vec<String> = self.guards.iter().map(|guard| guard.guard.clone()).collect();
        let row = |kind: &String| {
            let share = |guard: &GuardRejections| {
                let of = guard.kinds.get(kind);
                of.map_or_else(|| "-".to_owned(), |of| format!("{:.0} %", 100.0 * of.share()))
            };
            (kind.clone(), self.guards.iter().map(share).collect())
        };
        grid(f, &header, &first.kinds.keys().map(row).collect::<Vec<_>>())
    }

    fn heads(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for of in &self.heads {
            for kind in KINDS_OF_HEADS {
                let (layers, heads, cells) = of.cells(kind);
                writeln!(f, "\nHeads of {}: {}", line_safe(&of.measure), kind_of_heads(kind))?;
                let header: Vec<String> = heads.iter().map(|head| format!("head {head}")).collect();
                let row = |(layer, cells): (&u32, &Vec<Option<f64>>)| {
                    (format!("layer {layer}"), cells.iter().map(|cell| number(*cell)).collect())
                };
                grid(f, &header, &layers.iter().zip(&cells).map(row).collect::<Vec<_>>())?;
            }
            let header = KINDS_OF_HEADS.map(|kind| kind.replace('_', " "));
            let best = of.best(BEST_HEADS);
            let row = |head: &HeadFigures| {
                let name = format!("layer {}, head {}", head.layer, head.head);
                (
                    name,
                    KINDS_OF_HEADS.map(|kind| with_interval(Some(&head.for_kind(kind)))).to_vec(),
                )
            };
            if !best.is_empty() {
                writeln!(
                    f,
                    "\nHeads of {} that separate joined windows best",
                    line_safe(&of.measure)
                )?;
                grid(f, &header, &best.iter().map(row).collect::<Vec<_>>())?;
            }
            writeln!(
                f,
                "Dependency strength of each head. Among many heads, some are best by chance: choose them on one corpus and check\n\
                 them on another."
            )?;
        }
        Ok(())
    }

    fn ladder(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = || KINDS.iter().filter(|kind| kind.role == KindRole::Ladder);
        let header: Vec<String> = kinds().map(|kind| kind.name.replace('_', " ")).collect();
        let row = |report: &Report| {
            kinds().map(|kind| with_interval(report.ladder.get(kind.name))).collect()
        };
        self.table(f, "Ladder: whole windows against windows of pieces", &header, row)?;
        writeln!(
            f,
            "How often a whole window ranks above a joined one of its category: 1 always, 0.5 by chance. In brackets: 95 %\n\
             bootstrap intervals."
        )
    }

    fn pairs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = |title: &str, roles: &[KindRole]| {
            let names = pairs_of(roles);
            let header: Vec<String> = names.iter().map(|name| name.replace('_', " ")).collect();
            let row = |report: &Report| {
                names.iter().map(|name| with_interval(report.paired.get(name))).collect()
            };
            self.table(f, title, &header, row)
        };
        table(
            "Dependence: a whole window against itself without its context",
            &[KindRole::Dependence, KindRole::PlantedTwin],
        )?;
        table("Junk: a whole window against junk made of it", &[KindRole::Junk])?;
        table("For information only", &[KindRole::Information])?;
        writeln!(
            f,
            "Share of pairs that the whole window wins (plant: the window with inserted facts against its twin). Below 0.5, the\n\
             score prefers the other window. Shuffled chunks turn near links into far ones."
        )
    }

    fn top_fifth(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["plain", "copies capped", "guarded", "by chance"].map(str::to_owned).to_vec();
        let cells = |shares: &TopFifthShares| {
            vec![
                with_interval(Some(&shares.plain)),
                with_interval(shares.copy_cap.as_ref()),
                with_interval(shares.guarded.as_ref()),
                number(shares.by_chance),
            ]
        };
        self.table(
            f,
            "Top fifth: share of real windows in a pool of one real to five junk and joined windows",
            &header,
            |report| cells(&report.top_fifth_real_share),
        )?;
        self.table(
            f,
            "Top fifth, jittered: with copies and boilerplate at varying distances",
            &header,
            |report| cells(&report.top_fifth_jittered_real_share),
        )?;
        writeln!(
            f,
            "At most five times chance. `copies capped` excludes windows of which more than 40 % of the tokens are copied,\n\
             `guarded` those that the pipeline's guards reject."
        )
    }

    fn agreement(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.agreement.keys().collect();
        let letters: Vec<String> = (1..=names.len()).map(|index| format!("({index})")).collect();
        writeln!(f, "\nAgreement over whole windows")?;
        let rows = names.iter().zip(&letters).map(|(name, letter)| {
            let cells = names
                .iter()
                .map(|other| number(self.agreement[*name].get(*other).copied().flatten()));
            (format!("{letter} {name}"), cells.collect())
        });
        grid(f, &letters, &rows.collect::<Vec<_>>())?;
        writeln!(
            f,
            "Rank correlation inside categories: 1 same order, 0 none. Statistics that agree add little to each other."
        )
    }

    fn explained(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["category", "length", "tokens alone"].map(str::to_owned).to_vec();
        let row = |report: &Report| {
            let of = &report.explained;
            vec![
                number(of.category_variance),
                number(of.length_spearman),
                number(of.token_shuffled_spearman),
            ]
        };
        self.table(f, "Confounders", &header, row)?;
        writeln!(
            f,
            "Category: share of the variance between categories (near 1: set `score.within`). Length: rank correlation with the\n\
             document length. Tokens alone: rank correlation with the same tokens in random order; near 1, order is ignored."
        )
    }

    fn selection(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(selection) = &self.selection else { return Ok(()) };
        let assumed = selection.assumed_keep_fraction.map_or_else(String::new, |fraction| {
            format!(" (the filter's budget is in tokens, so a fraction of {fraction} of each category is assumed)")
        });
        writeln!(
            f,
            "\nSelection: {} of {} whole windows are kept{assumed}",
            count(selection.kept),
            count(selection.windows)
        )?;
        let share = |shares: &[f64; 2]| {
            shares.iter().map(|share| format!("{:.1} %", 100.0 * share)).collect()
        };
        let rows = selection
            .categories
            .iter()
            .map(|(name, shares)| (category(name, selection.categories.len()), share(shares)));
        grid(f, &["before".into(), "after".into()], &rows.collect::<Vec<_>>())?;
        let quantiles = |[before, after]: &[Option<[f64; 3]>; 2]| {
            [before, after]
                .map(|of| of.map_or_else(|| "-".into(), |of| of.map(short).join(" / ")))
                .to_vec()
        };
        let mut rows = vec![("document tokens".to_owned(), quantiles(&selection.document_tokens))];
        rows.extend(selection.statistics.iter().map(|(name, of)| (name.clone(), quantiles(of))));
        grid(f, &["before: 5 / 50 / 95 %".into(), "after".into()], &rows)?;
        writeln!(
            f,
            "Effect of the pipeline's filter on the sample. Check whether changes of the mix and of document lengths are intended."
        )
    }

    /// Returns the reports, the score first, then the others by name.
    pub(super) fn reports(&self) -> impl Iterator<Item = (&String, &Report)> {
        by_importance(self.reports.keys()).into_iter().map(|name| (name, &self.reports[name]))
    }

    fn table(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        header: &[String],
        row: impl Fn(&Report) -> Vec<String>,
    ) -> fmt::Result {
        let rows: Vec<(String, Vec<String>)> =
            self.reports().map(|(name, report)| (name.clone(), row(report))).collect();
        if rows.iter().all(|(_, cells)| cells.iter().all(|cell| cell == "-")) {
            return Ok(());
        }
        writeln!(f, "\n{title}")?;
        grid(f, header, &rows)
    }
}

/// Maximum number of heads listed with their intervals.
const BEST_HEADS: usize = 8;

/// Describes the results of heads for a kind of window.
pub(super) fn kind_of_heads(kind: &str) -> &'static str {
    match kind {
        "pieces_2" => "AUROC of whole windows against windows of two pieces",
        "pieces_8" => "AUROC of whole windows against windows of eight pieces",
        _ => "share of pairs that the whole window wins against itself with a permuted first half",
    }
}

/// Returns the display name of a category.
pub(super) fn category(name: &str, categories: usize) -> String {
    match (name.is_empty(), categories) {
        (true, 1) => "all".to_owned(),
        (true, _) => "(empty)".to_owned(),
        (false, _) => line_safe(name),
    }
}

/// Formats a number with about three digits.
fn short(value: f64) -> String {
    if value.abs() >= 1000.0 { count(value.round() as u64) } else { format!("{value:.3}") }
}
