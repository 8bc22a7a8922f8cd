//! Text output of the evaluation of labelled windows.

use std::fmt;

use super::kept::FRACTIONS;
use super::report::{ClassSize, KeptShare, LabelFigures, LabelLength, LabelReport, find_fraction};
use crate::base::text::{count, line_safe, value_name};
use crate::tools::evaluate::grid::{by_importance, grid, matrix, with_interval};
use crate::tools::evaluate::guards::GuardRejections;

impl LabelFigures {
    /// Writes the tables; with `details` those of every score.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, details: bool) -> fmt::Result {
        let good: Vec<String> = self.good.iter().map(|class| value_name(class)).collect();
        writeln!(f, "labels: {}; good: {}", line_safe(&self.column), good.join(", "))?;
        if self.rows_without_label > 0 {
            writeln!(f, "left out: {} rows without a label", count(self.rows_without_label))?;
        }
        self.lengths.values().try_for_each(|of| of.write(f, details))
    }
}

impl LabelLength {
    fn write(&self, f: &mut fmt::Formatter<'_>, details: bool) -> fmt::Result {
        let documents = self.classes.values().map(|class| class.documents).sum();
        writeln!(
            f,
            "\n== natural windows of {} tokens: {} of {} documents in {} classes (without BOS)",
            count(self.tokens),
            count(self.classes.values().map(|class| class.windows).sum()),
            count(documents),
            count(self.classes.len() as u64)
        )?;
        for note in &self.notes {
            writeln!(f, "note: {}", line_safe(note))?;
        }
        if !self.classes_without_windows.is_empty() {
            let names: Vec<String> =
                self.classes_without_windows.iter().map(|name| value_name(name)).collect();
            writeln!(f, "classes without a document of this length: {}", names.join(", "))?;
        }
        if let Some(sentence) = &self.sentence {
            writeln!(f, "{}", line_safe(sentence))?;
        }
        if self.reports.is_empty() {
            return Ok(());
        }
        matrix(f, "Good classes against other classes", &self.matrix)?;
        if !self.matrix.is_empty() {
            writeln!(
                f,
                "How often a good window ranks above one of the class (AUROC). pass: the interval lies above 0.5; weak: it\n\
                 contains 0.5; fail: it lies below."
            )?;
        }
        self.real_shares(f)?;
        self.classes(f)?;
        self.best(f)?;
        if details {
            self.details(f)?;
        }
        Ok(())
    }

    /// Returns the reports, the pipeline's score first.
    pub(crate) fn ordered(&self) -> impl Iterator<Item = (&String, &LabelReport)> {
        by_importance(self.reports.keys()).into_iter().map(|name| (name, &self.reports[name]))
    }

    fn has_guards(&self) -> bool {
        self.reports.values().any(|report| report.guarded.is_some())
    }

    fn real_shares(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nShare of real text in the selection (chance: 0.5)")?;
        let sides: &[&str] =
            if self.has_guards() { &["guards", "no guards"] } else { &["no guards"] };
        let heads =
            sides.iter().flat_map(|side| FRACTIONS.map(|of| format!("{side} {}", percent(of))));
        let header: Vec<String> = heads.chain(["no value".to_owned()]).collect();
        let row = |(name, report): (&String, &LabelReport)| {
            let sides = report.guarded.iter().chain([&report.unguarded]).flatten();
            let cells = sides.map(|of| with_interval(Some(&of.real_share)));
            (line_safe(name), cells.chain([count(report.missing)]).collect())
        };
        grid(f, &header, &self.ordered().map(row).collect::<Vec<_>>())?;
        writeln!(
            f,
            "In the best 10, 25 and 50 % of the total weight. Good and other classes have equal total weight, as have the classes\n\
             of each side. In brackets: 95 % bootstrap intervals."
        )
    }

    /// Writes by class what the score keeps and the guards reject.
    fn classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut header = vec!["documents".to_owned(), "windows".to_owned()];
        let score = self.reports.get("score");
        if score.is_some() {
            header.extend(FRACTIONS.map(|of| format!("kept {}", percent(of))));
        }
        header.extend(self.guards.iter().map(|guard| format!("rejected: {}", guard.guard)));
        let row = |(name, size): (&String, &ClassSize)| {
            let mut cells = vec![count(size.documents), count(size.windows)];
            let kept = score.map(|report| by_class(report.kept(), name)).unwrap_or_default();
            cells.extend(kept);
            let rejected = |guard: &GuardRejections| {
                guard.kinds.get(name).map_or_else(|| "-".to_owned(), |of| percent(of.share()))
            };
            cells.extend(self.guards.iter().map(rejected));
            let good = if size.good { " (good)" } else { "" };
            (format!("{}{good}", value_name(name)), cells)
        };
        writeln!(f, "\nClasses: share kept by the score and rejected by each guard")?;
        grid(f, &header, &self.classes.iter().map(row).collect::<Vec<_>>())
    }

    fn best(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.best.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nBest {} windows that pass the guards", self.best.len())?;
        for of in &self.best {
            writeln!(
                f,
                "  {:.3}  {}  {}, from token {}",
                of.score,
                value_name(&of.class),
                line_safe(&of.id),
                count(of.start)
            )?;
        }
        Ok(())
    }

    fn details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nStatistics")?;
        for (name, doc) in &self.statistics {
            writeln!(f, "  {}  {}", line_safe(name), line_safe(doc))?;
        }
        for (name, report) in self.ordered() {
            writeln!(f, "\nShare of each class kept by {}", line_safe(name))?;
            let sides: Vec<(&str, &[KeptShare])> = report
                .guarded
                .iter()
                .map(|kept| ("guards", &kept[..]))
                .chain([("no guards", &report.unguarded[..])])
                .collect();
            let mut header: Vec<String> = sides
                .iter()
                .flat_map(|(side, _)| FRACTIONS.map(|of| format!("{side} {}", percent(of))))
                .collect();
            header.push("AUROC of good".to_owned());
            let row = |class: &String| {
                let mut cells: Vec<String> =
                    sides.iter().flat_map(|(_, kept)| by_class(kept, class)).collect();
                cells.push(with_interval(report.auroc.get(class)));
                (value_name(class), cells)
            };
            grid(f, &header, &self.classes.keys().map(row).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Formats the kept shares of a class, by fraction.
pub(crate) fn by_class(kept: &[KeptShare], class: &str) -> Vec<String> {
    let share = |fraction: f64| find_fraction(kept, fraction).and_then(|of| of.by_class.get(class));
    FRACTIONS.map(|of| share(of).map_or_else(|| "-".to_owned(), |share| percent(*share))).to_vec()
}
