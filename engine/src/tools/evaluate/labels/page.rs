//! Evaluation of labelled windows as sections of a page.

use super::kept::{FRACTIONS, KeptShare};
use super::report::{LabelLength, LabelReport, LabelResults, QUARTER};
use crate::base::text::{count, value_name};
use crate::report::page::numbers::or_dash;
use crate::report::page::{Bars, Block, KeyNumber, Section};
use crate::tools::evaluate::drawings::{
    self, by_importance, descriptions, intervals, matrix_table, rejected_shares,
    whole_percent as percent, with_interval,
};

impl LabelResults {
    pub(crate) fn tiles(&self) -> impl Iterator<Item = KeyNumber> {
        self.lengths.values().map(|length| {
            let documents = count(length.classes.values().map(|class| class.documents).sum());
            KeyNumber::new(
                documents,
                format!("labelled documents of {} tokens or more", count(length.tokens)),
            )
        })
    }

    pub(crate) fn sections(&self) -> Vec<Section> {
        self.lengths.values().flat_map(|length| length.sections(self)).collect()
    }
}

impl LabelLength {
    fn sections(&self, estimates: &LabelResults) -> Vec<Section> {
        let section = |id: &str, title: &str, lead: &str, blocks: Vec<Block>| {
            drawings::section(self.tokens, id, title, lead, blocks)
        };
        let good: Vec<String> = estimates.good.iter().map(|class| value_name(class)).collect();
        let mut summary: Vec<String> = self.sentence.iter().cloned().collect();
        summary.push(format!("labels: {}; good: {}", estimates.column, good.join(", ")));
        if estimates.rows_without_label > 0 {
            let rows = count(estimates.rows_without_label);
            summary.push(format!("left out: {rows} rows without a label"));
        }
        summary.push(format!(
            "{} windows of {} documents in {} classes, measured without BOS tokens",
            count(self.classes.values().map(|class| class.windows).sum()),
            count(self.classes.values().map(|class| class.documents).sum()),
            count(self.classes.len() as u64)
        ));
        if !self.classes_without_windows.is_empty() {
            let names: Vec<String> =
                self.classes_without_windows.iter().map(|name| value_name(name)).collect();
            summary
                .push(format!("classes without a document of this length: {}", names.join(", ")));
        }
        summary.extend(self.notes.iter().cloned());
        let mut blocks = vec![Block::List(summary)];
        let mut lead = "";
        if let Some(table) = matrix_table(&self.matrix) {
            lead = "How often a good window ranks above a window of the class, without guards (AUROC). pass: the interval is \
                    above 0.5; weak: it contains 0.5; fail: it is below.";
            blocks.push(table);
        }
        let title = "Good classes against other classes";
        let mut sections = vec![section("labels", title, lead, blocks)];
        if self.reports.is_empty() {
            return sections;
        }
        sections.push(section(
            "kept",
            "Share of real text in the selection",
            "In the best 10, 25 and 50 % by weight. Good classes weigh as much as the others together, each as much as the \
             next, so chance is 0.5. In brackets: 95 % bootstrap intervals.",
            vec![Block::Bars(self.shares()), self.share_table()],
        ));
        sections.push(section(
            "classes",
            "Classes",
            "Share of each class that the score keeps and each guard rejects.",
            vec![self.class_table(), self.by_score()],
        ));
        let best = self.best.iter().map(|of| {
            vec![format!("{:.3}", of.score), value_name(&of.class), of.id.clone(), count(of.start)]
        });
        sections.push(section(
            "best",
            "Best windows that pass the guards",
            "",
            vec![Block::table(["score", "class", "document", "first token"], best.collect())],
        ));
        let scores = section("scores", "Scores", "", vec![descriptions(&self.statistics)]);
        sections.push(scores.on_request());
        sections
    }

    fn shares(&self) -> Bars {
        let quarter = |of: &[KeptShare]| of.get(QUARTER).map(|of| of.real_share);
        let rows = by_importance(&self.reports).map(|(name, report)| {
            let guarded = report.guarded.as_deref().and_then(quarter);
            (name.clone(), vec![guarded, quarter(&report.unguarded)])
        });
        let series = ["best quarter, guards", "best quarter, no guards"];
        Bars { in_table: true, ..intervals(&series, rows, 0.5) }
    }

    fn share_table(&self) -> Block {
        let has_guards = self.reports.values().any(|report| report.guarded.is_some());
        let sides = if has_guards { &["guards", "no guards"][..] } else { &["no guards"] };
        let heads =
            sides.iter().flat_map(|side| FRACTIONS.map(|of| format!("{side} {}", percent(of))));
        let header =
            std::iter::once("score".to_owned()).chain(heads).chain(["no value".to_owned()]);
        let row = |(name, report): (&String, &LabelReport)| {
            let sides = report.guarded.iter().chain([&report.unguarded]).flatten();
            let cells = sides.map(|kept| with_interval(Some(&kept.real_share)));
            let cells = std::iter::once(name.clone()).chain(cells);
            cells.chain([count(report.missing)]).collect()
        };
        Block::Table {
            header: header.collect(),
            rows: by_importance(&self.reports).map(row).collect(),
        }
    }

    fn class_table(&self) -> Block {
        let mut header: Vec<String> =
            ["class", "good", "documents", "windows"].map(str::to_owned).to_vec();
        header.extend(FRACTIONS.map(|of| format!("kept {}", percent(of))));
        header.extend(self.guards.iter().map(|guard| format!("rejected: {}", guard.guard)));
        let kept = self.reports.get("score").map(LabelReport::kept).unwrap_or_default();
        let rows = self.classes.iter().map(|(name, size)| {
            let good = if size.good { "good" } else { "" };
            let mut row =
                vec![value_name(name), good.into(), count(size.documents), count(size.windows)];
            row.extend(by_class(kept, name));
            row.extend(rejected_shares(&self.guards, name));
            row
        });
        Block::Table { header, rows: rows.collect() }
    }

    fn by_score(&self) -> Block {
        let table = |(name, report): (&String, &LabelReport)| {
            let header = ["class", "kept 10 %", "kept 25 %", "kept 50 %", "AUROC of good"];
            let rows = self.classes.keys().map(|class| {
                let kept = by_class(report.kept(), class);
                let auroc = with_interval(report.auroc.get(class));
                std::iter::once(value_name(class)).chain(kept).chain([auroc]).collect()
            });
            [
                Block::Heading(format!("Share of each class kept by {name}")),
                Block::table(header, rows.collect()),
            ]
        };
        Block::details("Every score", false, by_importance(&self.reports).flat_map(table).collect())
    }
}

/// Formats the kept shares of a class, by fraction.
fn by_class(kept: &[KeptShare], class: &str) -> Vec<String> {
    let share = |index: usize| kept.get(index)?.by_class.get(class);
    let cell = |index| or_dash(share(index), |share| percent(*share));
    (0..FRACTIONS.len()).map(cell).collect()
}
