//! Evaluation as an HTML page.

use super::constructions::{KINDS, KindRole, WindowKind};
use super::drawings::{diverging, intervals, matrix_table};
use super::evaluation::{Evaluation, LengthResults};
use super::guards::GuardRejections;
use super::heads::KINDS_OF_HEADS;
use super::labels::report::LabelFigures;
use super::report::{Report, TopFifthShares, pairs_of};
use super::tables::{category, kind_of_heads};
use crate::base::text::count;
use crate::report::page::numbers::{number, percent};
use crate::report::page::{Block, KeyNumber, Page, Section};

impl Evaluation {
    /// Renders the evaluation as one HTML file. `command` is shown as the command that repeats it.
    pub(crate) fn page(&self, command: &str) -> String {
        let is_built =
            |kind: &&WindowKind| self.lengths.values().any(|of| of.kinds.contains_key(kind.name));
        let built = || KINDS.iter().filter(is_built);
        let mut sections: Vec<Section> =
            self.labels.iter().flat_map(LabelFigures::sections).collect();
        for of in self.lengths.values() {
            of.sections(&mut sections);
        }
        if !self.lengths.is_empty() {
            let kinds = built().map(|kind| format!("{}: {}", kind.name, kind.doc));
            sections.push(Section::new(
                "kinds",
                "Kinds of constructed windows",
                "All have as many tokens as the window they are made of.",
                vec![Block::List(kinds.collect())],
            ));
        }
        sections.push(Section::command(command));
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
                built().count()
            )
        });
        let parts = natural.into_iter().chain(constructed);
        let lead = parts.collect::<String>()
            + "The results show what a score separates in this corpus, not that selecting by it trains a better model.";
        let page = Page {
            title: format!("Evaluation of {}", self.pipeline),
            kicker: format!("longsift evaluate · seed {}", self.seed),
            lead,
            tiles: self.labels.iter().flat_map(LabelFigures::tiles).chain(tiles).collect(),
            sections,
        };
        page.html()
    }
}

impl LengthResults {
    fn sections(&self, sections: &mut Vec<Section>) {
        let length = count(self.tokens);
        let mut add = |id: &str, title: &str, lead: &str, blocks: Vec<Block>| {
            let id = format!("{id}{}", self.tokens);
            sections.push(Section::new(&id, &format!("{title} · {length} tokens"), lead, blocks));
        };
        let mut summary: Vec<String> = self.sentence.iter().cloned().collect();
        summary.extend(self.notes.iter().cloned());
        let mut blocks = vec![Block::List(summary)];
        blocks.extend(matrix_table(&self.matrix));
        add(
            "matrix",
            "Whole windows against constructed windows",
            "How often a whole window ranks above one of the kind. pass: the interval lies above 0.5; weak: it contains 0.5; \
             fail: it lies below.",
            blocks,
        );
        let ladder: Vec<&'static WindowKind> =
            KINDS.iter().filter(|kind| kind.role == KindRole::Ladder).collect();
        add(
            "ladder",
            "Whole windows against joined pieces",
            "How often a whole window ranks above one joined from pieces of several documents: 1 always, 0.5 by chance.",
            vec![self.ladder_drawing(&ladder)],
        );
        add(
            "pairs",
            "Dependence and junk",
            "Share of pairs in which a whole window ranks above a window made of it. \
             Shuffled chunks are shown for information only: they turn near links into far ones.",
            self.pair_drawings(),
        );
        add(
            "top",
            "Real windows in the top fifth",
            "Share of real windows in the top fifth of a pool of one real to five junk and joined windows.",
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
                let share = |guard: &GuardRejections| {
                    let of = guard.kinds.get(kind);
                    of.map_or_else(|| "–".to_owned(), |of| format!("{:.0} %", 100.0 * of.share()))
                };
                std::iter::once(kind.clone()).chain(self.guards.iter().map(share)).collect()
            });
            let table = Block::Table { header: header.collect(), rows: rows.collect() };
            add("guards", "Rejected by guards", "Rejected share of each kind.", vec![table]);
        }
        add(
            "agreement",
            "Agreement",
            "Rank correlation over whole windows inside categories. Statistics that agree add little to each other.",
            vec![self.agreements()],
        );
        add(
            "explained",
            "Confounders",
            "Category: share of the variance between categories. Length: rank correlation with the document length. Tokens alone: \
             rank correlation with the same tokens in random order; near 1, the statistic ignores their order.",
            vec![self.explained_table()],
        );
        if !self.heads.is_empty() {
            add(
                "heads",
                "Heads",
                "Dependency strength of each head, with layers as rows and heads as columns. 0.5 is chance. \
                 Among many heads, some are best by chance.",
                self.head_maps(),
            );
        }
        if self.selection.is_some() {
            add(
                "selection",
                "Effect of the filter",
                "Check whether changes of the mix and of document lengths are intended.",
                self.selections(),
            );
        }
    }

    fn ladder_drawing(&self, kinds: &[&'static WindowKind]) -> Block {
        let rows = self.reports().map(|(name, report)| {
            let figure = |kind: &&WindowKind| report.ladder.get(kind.name).copied();
            (name.clone(), kinds.iter().map(figure).collect())
        });
        let names: Vec<String> = kinds.iter().map(|kind| kind.name.replace('_', " ")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        intervals(&names, rows, 0.5)
    }

    fn pair_drawings(&self) -> Vec<Block> {
        let block = |title: &str, roles: &[KindRole]| {
            let names = pairs_of(roles);
            let rows = self.reports().map(|(name, report)| {
                let cell = |pair: &&str| report.paired.get(*pair).and_then(|figure| figure.value);
                (name.clone(), names.iter().map(cell).collect())
            });
            let columns = names.iter().map(|name| name.replace('_', " ")).collect();
            [Block::Heading(title.to_owned()), diverging(columns, rows, (0.0, 1.0))]
        };
        let mut blocks = Vec::new();
        blocks.extend(block(
            "Dependence: against the same window without its context",
            &[KindRole::Dependence, KindRole::PlantedTwin],
        ));
        blocks.extend(block("Junk: against junk made of the window", &[KindRole::Junk]));
        blocks.extend(block("For information only", &[KindRole::Information]));
        blocks
    }

    fn top_fifth_drawing(&self, of: fn(&Report) -> &TopFifthShares) -> Block {
        let rows = self.reports().map(|(name, report)| {
            let shares = of(report);
            (name.clone(), vec![Some(shares.plain), shares.copy_cap, shares.guarded])
        });
        let chance = self.reports.values().find_map(|report| of(report).by_chance);
        let series = ["as ranked", "copies capped", "guarded"];
        intervals(&series, rows, chance.unwrap_or(1.0 / 6.0))
    }

    fn agreements(&self) -> Block {
        let names: Vec<&String> = self.agreement.keys().collect();
        let columns: Vec<String> = (1..=names.len()).map(|place| format!("({place})")).collect();
        let rows = names.iter().zip(&columns).map(|(name, place)| {
            let row = &self.agreement[*name];
            let cells = names.iter().map(|other| row.get(*other).copied().flatten()).collect();
            (format!("{name} {place}"), cells)
        });
        diverging(columns.clone(), rows, (-1.0, 1.0))
    }

    fn head_maps(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for of in &self.heads {
            for kind in KINDS_OF_HEADS {
                let (layers, heads, cells) = of.cells(kind);
                let columns = heads.iter().map(u32::to_string).collect();
                let names = layers.iter().map(|layer| format!("layer {layer}"));
                let title = format!("{}: {}", of.measure, kind_of_heads(kind));
                blocks.push(Block::Heading(title));
                blocks.push(diverging(columns, names.zip(cells), (0.0, 1.0)));
            }
        }
        blocks
    }

    fn explained_table(&self) -> Block {
        let cell = |value: Option<f64>| {
            value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
        };
        let row = |(name, report): (&String, &Report)| {
            let of = &report.explained;
            vec![
                name.clone(),
                cell(of.category_variance),
                cell(of.length_spearman),
                cell(of.token_shuffled_spearman),
            ]
        };
        Block::table(
            ["statistic", "category", "length", "tokens alone"],
            self.reports().map(row).collect(),
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
        let of = |quantiles: &Option<[f64; 3]>| {
            quantiles.map_or_else(|| "–".to_owned(), |of| of.map(number).join(" / "))
        };
        let tokens = &selection.document_tokens;
        let whole = |quantiles: &Option<[f64; 3]>| {
            quantiles.map_or_else(
                || "–".to_owned(),
                |of| of.map(|value| count(value.round() as u64)).join(" / "),
            )
        };
        let mut rows =
            vec![vec!["document tokens".to_owned(), whole(&tokens[0]), whole(&tokens[1])]];
        rows.extend(
            selection
                .statistics
                .iter()
                .map(|(name, both)| vec![name.clone(), of(&both[0]), of(&both[1])]),
        );
        blocks.push(Block::table(["5 / 50 / 95 %", "before", "after"], rows));
        blocks
    }
}
