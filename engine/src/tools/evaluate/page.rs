//! Evaluation as an HTML page and as text, both of the same sections.

use super::constructions::{KINDS, KindRole, WindowKind};
use super::drawings::{
    by_importance, descriptions, diverging, intervals, matrix_table, rejected_shares, section,
    two_decimals, with_interval,
};
use super::evaluation::{Evaluation, LengthResults};
use super::heads::{HeadSeparation, KINDS_OF_HEADS};
use super::labels::report::LabelResults;
use super::report::{Report, TopFifthShares, pairs_of};
use crate::base::text::{count, line_safe};
use crate::report::page::numbers::{number, or_dash, percent};
use crate::report::page::{Block, KeyNumber, Page, Section, text};

const BEST_HEADS: usize = 8;

impl Evaluation {
    /// Formats the matrix and the selection as text; with `details` also the results that they summarise.
    pub(crate) fn text(&self, details: bool) -> String {
        let mut text =
            format!("Evaluation of {} (seed {})\n", line_safe(&self.pipeline), self.seed);
        if self.equal_ids_left_out > 0 {
            let rows = count(self.equal_ids_left_out);
            let why =
                "rows with the id, or without an id the text, of another row of their category";
            text.extend(["left out: ", &rows, " ", why, "\n"]);
        }
        let left_out = &self.categories_left_out;
        if left_out.number > 0 {
            let names: Vec<String> = left_out.names.iter().map(|name| line_safe(name)).collect();
            let (number, names) = (count(left_out.number), names.join(", "));
            text.extend(["left out: ", &number, " categories, among them ", &names, "\n"]);
        }
        text += &text::text(&self.sections(), details);
        if !details {
            text += "\n`--details` prints detailed tables, `--format json` all results.\n";
        }
        text + "\nResults of different window lengths are not comparable. They show what a score separates in this corpus, not\n\
                that selecting by it trains a better model.\n"
    }

    fn built(&self) -> impl Iterator<Item = &'static WindowKind> {
        KINDS.iter().filter(|kind| self.lengths.values().any(|of| of.kinds.contains_key(kind.name)))
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections: Vec<Section> =
            self.labels.iter().flat_map(LabelResults::sections).collect();
        for of in self.lengths.values() {
            of.sections(&mut sections);
        }
        if !self.lengths.is_empty() {
            let kinds = self.built().map(|kind| format!("{}: {}", kind.name, kind.doc));
            let kinds = Section::new(
                "kinds",
                "Kinds of constructed windows",
                "All have as many tokens as the window they are made of.",
                vec![Block::List(kinds.collect())],
            );
            sections.push(kinds.on_request());
        }
        sections
    }

    pub(crate) fn page(&self) -> Page {
        let tiles = self.lengths.values().map(|of| {
            let documents = count(of.documents.values().sum::<u64>());
            KeyNumber::new(documents, format!("documents of {} tokens or more", count(of.tokens)))
        });
        let natural = self.labels.as_ref().map(|_| {
            "Share of real text that each score keeps among natural windows of labelled documents. ".to_owned()
        });
        let constructed = (!self.lengths.is_empty()).then(|| {
            format!(
                "How often whole windows of this corpus rank above windows constructed from them in {} ways. ",
                self.built().count()
            )
        });
        let parts = natural.into_iter().chain(constructed);
        let lead = parts.collect::<String>()
            + "The results show what a score separates in this corpus, not that selecting by it trains a better model.";
        Page {
            title: format!("Evaluation of {}", self.pipeline),
            kicker: format!("longsift evaluate · seed {}", self.seed),
            lead,
            tiles: self.labels.iter().flat_map(LabelResults::tiles).chain(tiles).collect(),
            sections: self.sections(),
        }
    }
}

impl LengthResults {
    /// Adds the sections: the matrix and the heads, and the others on request.
    fn sections(&self, sections: &mut Vec<Section>) {
        let documents: u64 = self.documents.values().sum();
        let categories = match self.documents.len() {
            1 => String::new(),
            several => format!(" in {several} categories"),
        };
        let mut summary: Vec<String> = self.sentence.iter().cloned().collect();
        summary.push(format!(
            "{} windows of {} documents{categories}, measured without BOS tokens",
            count(self.kinds.values().map(|kind| kind.windows).sum()),
            count(documents)
        ));
        summary.extend(self.notes.iter().cloned());
        let mut blocks = vec![Block::List(summary)];
        blocks.extend(matrix_table(&self.matrix));
        sections.push(section(
            self.tokens,
            "matrix",
            "Whole windows against constructed windows",
            "How often a whole window ranks above a window of the kind. pass: the interval is above 0.5; weak: \
             it contains 0.5; fail: it is below.",
            blocks,
        ));
        if documents > 0 {
            self.details(sections);
        }
        if !self.heads.is_empty() {
            sections.push(section(
                self.tokens,
                "heads",
                "Heads",
                "Dependency strength of each head, with layers as rows and heads as columns. 0.5 is chance. Among many heads, some \
                 are best by chance: choose them on one corpus and check them on another.",
                self.head_maps(),
            ));
        }
    }

    /// Adds the results that the matrix summarises.
    fn details(&self, sections: &mut Vec<Section>) {
        let mut add = |id: &str, title: &str, lead: &str, blocks: Vec<Block>| {
            sections.push(section(self.tokens, id, title, lead, blocks).on_request());
        };
        add("statistics", "Statistics", "", vec![descriptions(&self.statistics)]);
        add(
            "ladder",
            "Whole windows against joined pieces",
            "How often a whole window ranks above one joined from pieces of several documents: 1 always, 0.5 by chance. In \
             brackets: 95 % bootstrap intervals.",
            vec![self.ladder_drawing()],
        );
        add(
            "pairs",
            "Dependence and junk",
            "Share of pairs in which a whole window ranks above a window made of it (plant: the window with inserted facts above \
             its twin). Below 0.5, the score prefers the other window. Shuffled chunks turn near links into far ones.",
            self.pair_drawings(),
        );
        add(
            "top",
            "Real windows in the top fifth",
            "Share of real windows in the top fifth of a pool of one real to five junk and joined windows: at most five times \
             chance. `copies capped` excludes windows of which more than 40 % of the tokens are copied, `guarded` those that the \
             pipeline's guards reject.",
            vec![
                self.top_fifth_drawing(|report| &report.top_fifth_real_share),
                Block::Heading("Copies and boilerplate at varying distances".to_owned()),
                self.top_fifth_drawing(|report| &report.top_fifth_jittered_real_share),
            ],
        );
        if let Some(first) = self.guards.first() {
            let header = std::iter::once("kind".to_owned())
                .chain(self.guards.iter().map(|guard| guard.guard.clone()));
            let rows = first.kinds.keys().map(|kind| {
                std::iter::once(kind.clone()).chain(rejected_shares(&self.guards, kind)).collect()
            });
            let table = Block::Table { header: header.collect(), rows: rows.collect() };
            add("guards", "Rejected by guards", "Rejected share of each kind.", vec![table]);
        }
        add(
            "agreement",
            "Agreement",
            "Rank correlation over whole windows inside categories: 1 same order, 0 none. Statistics that agree add little to each \
             other.",
            vec![self.agreements()],
        );
        add(
            "explained",
            "Confounders",
            "Category: share of the variance between categories (near 1: set `score.within`). Length: rank correlation with the \
             document length. Tokens alone: rank correlation with the same tokens in random order; near 1, the statistic ignores \
             their order.",
            vec![self.explained_table()],
        );
        if self.selection.is_some() {
            add(
                "selection",
                "Effect of the filter",
                "Check whether changes of the mix and of document lengths are intended.",
                self.selections(),
            );
        }
    }

    fn ladder_drawing(&self) -> Block {
        let kinds = || KINDS.iter().filter(|kind| kind.role == KindRole::Ladder);
        let rows = by_importance(&self.reports).map(|(name, report)| {
            let estimate = |kind: &WindowKind| report.ladder.get(kind.name).copied();
            (name.clone(), kinds().map(estimate).collect())
        });
        let names: Vec<String> = kinds().map(|kind| kind.name.replace('_', " ")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Block::Bars(intervals(&names, rows, 0.5))
    }

    fn pair_drawings(&self) -> Vec<Block> {
        let block = |(title, roles): (&str, &[KindRole])| {
            let names = pairs_of(roles);
            let rows = by_importance(&self.reports).map(|(name, report)| {
                let cell =
                    |pair: &&str| report.paired.get(*pair).and_then(|estimate| estimate.value);
                (name.clone(), names.iter().map(cell).collect())
            });
            let columns = names.iter().map(|name| name.replace('_', " ")).collect();
            [Block::Heading(title.to_owned()), diverging(columns, rows, (0.0, 1.0))]
        };
        let dependence = "Dependence: against the same window without its context";
        let drawings: [(&str, &[KindRole]); 3] = [
            (dependence, &[KindRole::Dependence, KindRole::PlantedTwin]),
            ("Junk: against junk made of the window", &[KindRole::Junk]),
            ("For information only", &[KindRole::Information]),
        ];
        drawings.into_iter().flat_map(block).collect()
    }

    fn top_fifth_drawing(&self, of: fn(&Report) -> &TopFifthShares) -> Block {
        let rows = by_importance(&self.reports).map(|(name, report)| {
            let shares = of(report);
            (name.clone(), vec![Some(shares.plain), shares.copy_cap, shares.guarded])
        });
        let chance = self.reports.values().find_map(|report| of(report).by_chance);
        let series = ["as ranked", "copies capped", "guarded"];
        Block::Bars(intervals(&series, rows, chance.unwrap_or(1.0 / 6.0)))
    }

    fn agreements(&self) -> Block {
        let names: Vec<&String> = self.agreement.keys().collect();
        let columns: Vec<String> = (1..=names.len()).map(|index| format!("({index})")).collect();
        let rows = names.iter().zip(&columns).map(|(name, index)| {
            let row = &self.agreement[*name];
            let cells = names.iter().map(|other| row.get(*other).copied().flatten()).collect();
            (format!("{name} {index}"), cells)
        });
        diverging(columns.clone(), rows, (-1.0, 1.0))
    }

    fn head_maps(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for of in &self.heads {
            for (_, doc, result) in KINDS_OF_HEADS {
                let (layers, heads, cells) = of.cells(result);
                let columns = heads.iter().map(u32::to_string).collect();
                let names = layers.iter().map(|layer| format!("layer {layer}"));
                blocks.push(Block::Heading(format!("Heads of {}: {doc}", of.measure)));
                blocks.push(diverging(columns, names.zip(cells), (0.0, 1.0)));
            }
            let row = |head: &HeadSeparation| {
                let estimates =
                    KINDS_OF_HEADS.map(|(.., result)| with_interval(Some(&result(head))));
                let name = format!("layer {}, head {}", head.layer, head.head);
                std::iter::once(name).chain(estimates).collect()
            };
            let rows = of.best(BEST_HEADS).iter().map(row).collect();
            let [two, eight, permuted] = KINDS_OF_HEADS.map(|(name, ..)| name);
            let title = format!("Heads of {} that separate joined windows best", of.measure);
            blocks.push(Block::Heading(title));
            blocks.push(Block::table(["head", two, eight, permuted], rows));
        }
        blocks
    }

    fn explained_table(&self) -> Block {
        let row = |(name, report): (&String, &Report)| {
            let of = &report.explained;
            vec![
                name.clone(),
                two_decimals(of.category_variance),
                two_decimals(of.length_spearman),
                two_decimals(of.token_shuffled_spearman),
            ]
        };
        Block::table(
            ["statistic", "category", "length", "tokens alone"],
            by_importance(&self.reports).map(row).collect(),
        )
    }

    fn selections(&self) -> Vec<Block> {
        let Some(selection) = &self.selection else { return Vec::new() };
        let mut blocks = vec![Block::Note(format!(
            "{} of {} whole windows are kept{}.",
            count(selection.kept),
            count(selection.windows),
            if selection.assumed_keep_fraction.is_some() {
                "; the filter's budget is in tokens, so a fifth of each category is assumed"
            } else {
                ""
            }
        ))];
        let rows = selection.categories.iter().map(|(name, [before, after])| {
            let name = category(name, selection.categories.len());
            vec![name, percent(*before), percent(*after)]
        });
        blocks.push(Block::table(["category", "before", "after"], rows.collect()));
        let row = |name: &str, both: &[Option<[f64; 3]>; 2], shown: fn(f64) -> String| {
            let [before, after] = both.map(|of| or_dash(of, |of| of.map(shown).join(" / ")));
            vec![name.to_owned(), before, after]
        };
        let whole = |value: f64| count(value.round() as u64);
        let mut rows = vec![row("document tokens", &selection.document_tokens, whole)];
        rows.extend(selection.statistics.iter().map(|(name, both)| row(name, both, number)));
        blocks.push(Block::table(["5 / 50 / 95 %", "before", "after"], rows));
        blocks
    }
}

fn category(name: &str, categories: usize) -> String {
    match (name.is_empty(), categories) {
        (true, 1) => "all".to_owned(),
        (true, _) => "(empty)".to_owned(),
        (false, _) => line_safe(name),
    }
}
