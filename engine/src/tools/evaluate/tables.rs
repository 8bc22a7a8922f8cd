//! An evaluation for people: a table for each question, and under it how to read it.

use std::fmt;

use super::constructions::{KINDS, Role};
use super::figures::Figure;
use super::heads::{HeadFigures, KINDS_OF_HEADS};
use super::report::{Report, TopFifthShares, pairs_of};
use super::{Evaluation, OfLength};
use crate::base::text::{count, line_safe, table};

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: what its statistics separate (seed {})",
            line_safe(&self.pipeline),
            self.seed
        )?;
        if self.equal_ids_left_out > 0 {
            writeln!(
                f,
                "left out: {} rows whose id another row of their category has",
                count(self.equal_ids_left_out)
            )?;
        }
        let left_out = &self.categories_left_out;
        if left_out.number > 0 {
            let names: Vec<String> = left_out.names.iter().map(|name| line_safe(name)).collect();
            writeln!(
                f,
                "left out: {} categories, among them {}",
                count(left_out.number),
                names.join(", ")
            )?;
        }
        for of in self.lengths.values() {
            of.write(f)?;
        }
        writeln!(
            f,
            "\nFigures of different lengths do not compare. They show what a score tells apart in this corpus, not that\n\
             selecting by it trains a better model."
        )
    }
}

impl OfLength {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let documents: u64 = self.documents.values().sum();
        writeln!(
            f,
            "\n== windows of {} tokens: {} of {} documents in {} categories (no BOS, whatever the pipeline says)",
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
        let widest = self.statistics.keys().map(String::len).max().unwrap_or(0);
        for (name, doc) in &self.statistics {
            writeln!(f, "  {name:widest$}  {}", line_safe(doc))?;
        }
        self.ladder(f)?;
        self.pairs(f)?;
        self.top_fifth(f)?;
        self.agreement(f)?;
        self.explained(f)?;
        self.selection(f)?;
        self.heads(f)?;
        self.verdicts(f)
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
                (name, KINDS_OF_HEADS.map(|kind| with_interval(Some(&head.of(kind)))).to_vec())
            };
            if !best.is_empty() {
                writeln!(
                    f,
                    "\nThe heads of {} that tell joined windows apart best",
                    line_safe(&of.measure)
                )?;
                grid(f, &header, &best.iter().map(row).collect::<Vec<_>>())?;
            }
            writeln!(
                f,
                "The dependency strength of each head alone. Of many heads the best are the best by chance, too: choose them on\n\
                 one corpus and look at their figures on another."
            )?;
        }
        Ok(())
    }

    fn ladder(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = || KINDS.iter().filter(|kind| kind.role == Role::Ladder);
        let header: Vec<String> = kinds().map(|kind| kind.name.replace('_', " ")).collect();
        let row = |report: &Report| {
            kinds().map(|kind| with_interval(report.ladder.get(kind.name))).collect()
        };
        self.table(f, "Ladder: whole windows against windows of pieces", &header, row)?;
        writeln!(
            f,
            "How often a whole window ranks above a joined one of its category: 1 always, 0.5 by chance; in brackets where the\n\
             figure lies in nineteen of twenty resamplings of the documents."
        )
    }

    fn pairs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = |title: &str, roles: &[Role]| {
            let names = pairs_of(roles);
            let header: Vec<String> = names.iter().map(|name| name.replace('_', " ")).collect();
            let row = |report: &Report| {
                names.iter().map(|name| with_interval(report.paired.get(name))).collect()
            };
            self.table(f, title, &header, row)
        };
        table(
            "Dependence: a whole window against the same without its far half",
            &[Role::Dependence, Role::PlantedTwin],
        )?;
        table("Junk: a whole window against junk made of it", &[Role::Junk])?;
        table("For information, never a target", &[Role::Information])?;
        writeln!(
            f,
            "The share of pairs that the whole window wins (plant: the window with facts planted over its twin without): below\n\
             0.5 a score prefers the other. Shuffled chunks turn near links into far ones."
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
            "Top fifth: real windows among the best of one real to five junk and joined windows",
            &header,
            |report| cells(&report.top_fifth_real_share),
        )?;
        self.table(
            f,
            "Top fifth, jittered: the same where copies and boilerplate come back at distances that vary",
            &header,
            |report| cells(&report.top_fifth_jittered_real_share),
        )?;
        writeln!(
            f,
            "The share of real windows in the best fifth of the pool: at most five times chance. `copies capped` never takes\n\
             windows with more than two in five tokens copied, `guarded` none that the pipeline's guards refuse."
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
            "Rank correlation inside categories: 1 the same order, 0 none. What agrees with another adds little to it."
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
        self.table(f, "What else explains the statistic", &header, row)?;
        writeln!(
            f,
            "Category: the share of its variance between categories (near 1: choose with `score.within`). Length: rank\n\
             correlation with the document's tokens. Tokens alone: with the same tokens in random order; near 1 it sees no order."
        )
    }

    fn selection(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(selection) = &self.selection else { return Ok(()) };
        let assumed = selection.assumed_keep_fraction.map_or_else(String::new, |fraction| {
            format!(" (a fifth of each category is assumed, {fraction}: the filter's own amount is in tokens)")
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
            "What the pipeline's filter makes of the sample: a mix or a length that it changes is a choice to make knowingly."
        )
    }

    /// The score first, then the others by name, layer 2 before layer 10.
    pub(super) fn reports(&self) -> impl Iterator<Item = (&String, &Report)> {
        let mut all: Vec<_> = self.reports.iter().collect();
        all.sort_by_cached_key(|&(name, _)| (name != "score", words(name)));
        all.into_iter()
    }

    fn verdicts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nVerdicts")?;
        for verdict in &self.verdicts {
            writeln!(
                f,
                "  {:<8} {}",
                format!("{:?}", verdict.says).to_lowercase(),
                line_safe(&verdict.text)
            )?;
        }
        Ok(())
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

/// The words of a name, numbers among them as numbers.
fn words(name: &str) -> Vec<(&str, u64)> {
    name.split('_').map(|word| word.parse().map_or((word, 0), |number| ("", number))).collect()
}

/// Heads that are listed with their intervals.
const BEST_HEADS: usize = 8;

/// What the figures of heads are, by kind of window.
pub(super) fn kind_of_heads(kind: &str) -> &'static str {
    match kind {
        "pieces_2" => "AUROC of whole windows against windows of two pieces",
        "pieces_8" => "AUROC of whole windows against windows of eight pieces",
        _ => {
            "the share of pairs that the whole window wins against itself with a permuted far half"
        }
    }
}

/// The name of a category as it is shown, of so many.
pub(super) fn category(name: &str, categories: usize) -> String {
    match (name.is_empty(), categories) {
        (true, 1) => "all".to_owned(),
        (true, _) => "(empty)".to_owned(),
        (false, _) => line_safe(name),
    }
}

fn with_interval(figure: Option<&Figure>) -> String {
    let Some(Figure { value: Some(value), interval }) = figure else { return "-".into() };
    match interval {
        Some([low, high]) => format!("{value:.2} ({low:.2}-{high:.2})"),
        None => format!("{value:.2}"),
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2}"))
}

/// Three digits that say something.
fn short(value: f64) -> String {
    if value.abs() >= 1000.0 { count(value.round() as u64) } else { format!("{value:.3}") }
}

/// Rows under a header, right-aligned.
fn grid(
    f: &mut fmt::Formatter<'_>,
    header: &[String],
    rows: &[(String, Vec<String>)],
) -> fmt::Result {
    let row = |name: &str, cells: &[String]| {
        std::iter::once(name.to_owned()).chain(cells.iter().cloned()).collect()
    };
    let rows = rows.iter().map(|(name, cells)| row(name, cells));
    let rows: Vec<Vec<String>> = std::iter::once(row("", header)).chain(rows).collect();
    table(&rows).iter().try_for_each(|line| writeln!(f, "  {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_listed_by_their_numbers() {
        let mut names = ["layer_10", "layer_2_heads_1", "copy_share", "layer_2", "layer_9_negated"];
        names.sort_by_cached_key(|name| words(name));
        assert_eq!(
            names,
            ["copy_share", "layer_2", "layer_2_heads_1", "layer_9_negated", "layer_10"]
        );
    }
}
