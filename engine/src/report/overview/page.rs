//! Report of a run as an HTML page.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::drawings::{self, COLOURS, WaterfallStep};
use super::groups::{self, GroupReport, GroupStatistic, ShownSample};
use super::machine::DevicePoll;
use super::picks::{KINDS, SEED};
use super::{Means, Overview, rejected};
use crate::base::text::{bytes, count, line_safe, shell_word};
use crate::report::amount::Amount;
use crate::report::page::chart::list;
use crate::report::page::numbers::{number, or_dash, percent, share};
use crate::report::page::{Bars, Block, CaptionedChart, KeyNumber, Page, SampleText, Section};
use crate::run_directory::calibration::{GroupDrift, moved_most};
use crate::run_directory::dropped::NOT_SELECTED;

const MAX_ID_CHARACTERS: usize = 120;

impl Overview {
    /// Summarises the selection in one sentence.
    pub(super) fn verdict(&self) -> String {
        let [kept, all] = [self.kept, self.all()].map(|amount| count(amount.samples));
        format!("{}: kept {kept} of {all} {}", line_safe(&self.name), self.samples())
    }

    fn samples(&self) -> &'static str {
        if self.settings["output"]["samples"] == "documents" { "documents" } else { "windows" }
    }

    pub(crate) fn page(&self) -> String {
        let summary = &self.summary;
        let (kept, all, samples) = (self.kept, self.all(), self.samples());
        let tokens = format!("tokens kept of {} in {samples}", count(all.tokens));
        let documents = format!("of {} documents kept", count(summary.rows_in));
        let peak = summary.peak_memory_bytes.map(|peak| format!("peak memory {}", bytes(peak)));
        let tiles = vec![
            KeyNumber::new(share(kept.samples, all.samples), format!("of {samples} kept")),
            KeyNumber::new(count(kept.tokens), tokens),
            KeyNumber::new(count(summary.rows_kept), documents),
            KeyNumber::new(count(summary.quarantined), "rows quarantined"),
            KeyNumber::new(format!("{:.1} s", summary.seconds), peak.unwrap_or_default()),
        ];
        let mut lead = format!("The score is {}.", self.score);
        if let Some(within) = &self.within {
            lead = format!("The score within each value of {within} is {}.", self.score);
        }
        if let Some(scale) = &self.scale {
            let _ = write!(lead, " Scale of its statistics: {scale}.");
        }
        for guard in &self.guards {
            let _ = write!(lead, " Guard: {guard}.");
        }
        let _ = write!(lead, " Selection: {}.", self.amount);
        let mut sections = vec![self.flow(), self.scores()];
        sections.extend(self.components());
        sections.extend(self.by_label());
        sections.extend(self.means());
        sections.extend(rejected::section(&self.rejected, samples));
        sections.push(self.texts());
        sections.extend(self.drift());
        let run = shell_word(&self.run_directory);
        sections.extend(self.other_amounts(&run));
        sections.push(self.machine());
        sections.extend(self.quarantine());
        sections.push(self.repeat());
        let page = Page {
            title: self.verdict(),
            kicker: format!(
                "longsift report · {} · {} · longsift {}",
                self.run_directory, self.committed, self.longsift
            ),
            lead,
            tiles,
            sections,
        };
        page.html()
    }

    fn flow(&self) -> Section {
        let summary = &self.summary;
        let mut steps = reasons(&summary.rows_dropped);
        let quarantined = Some(summary.quarantined).filter(|rows| *rows > 0);
        steps.extend(quarantined.map(|rows| step("quarantined", rows, COLOURS[2])));
        steps.push(step("kept", summary.rows_kept, COLOURS[0]));
        let rows = drawings::waterfall("rows read", summary.rows_in, &steps);
        let mut steps = reasons(&summary.windows_dropped);
        let unranked = summary.windows_kept_not_measured;
        let shown = Some(unranked).filter(|windows| *windows > 0);
        steps.extend(shown.map(|windows| step("kept, not measured", windows, COLOURS[0])));
        steps.push(step("kept", summary.windows_kept.saturating_sub(unranked), COLOURS[0]));
        let windows = drawings::waterfall("windows", summary.windows_total, &steps);
        let bars = [rows, windows, self.token_flow()];
        let charts = bars.map(|bars| CaptionedChart::new("", "", Block::Bars(bars)));
        let mut blocks = vec![Block::Charts(charts.into())];
        let mut note = |text: String| blocks.push(Block::Note(text));
        for (measure, windows) in &summary.windows_not_measured {
            let windows = count(*windows);
            note(format!("{measure} skipped {windows} windows that an earlier guard rejected."));
        }
        for (measure, windows) in &summary.windows_not_sampled {
            note(format!("{} windows are not in the sample of {measure}.", count(*windows)));
        }
        if summary.files_quarantined > 0 {
            note(format!("{} input files could not be opened.", count(summary.files_quarantined)));
        }
        let lead = "Every row, window and token is either kept or listed with a reason.";
        Section::new("rows", "Rows, windows and tokens", lead, blocks)
    }

    /// Draws where the tokens of all documents went, or those of the windows if windows overlap.
    fn token_flow(&self) -> Bars {
        let in_samples = self.all().tokens;
        let outside = self.summary.tokens_total.checked_sub(in_samples);
        let tokens = self.dropped.iter().map(|(reason, of)| (reason.clone(), of.tokens)).collect();
        let name = "outside windows: short documents and ends";
        let first =
            outside.filter(|tokens| *tokens > 0).map(|tokens| step(name, tokens, COLOURS[2]));
        let kept = step("kept", self.kept.tokens, COLOURS[0]);
        let steps: Vec<WaterfallStep> =
            first.into_iter().chain(reasons(&tokens)).chain([kept]).collect();
        match outside {
            Some(_) => drawings::waterfall("tokens read", self.summary.tokens_total, &steps),
            None => drawings::waterfall("tokens of overlapping windows", in_samples, &steps),
        }
    }

    fn scores(&self) -> Section {
        let mut blocks = vec![drawings::legend()];
        let charts = self.groups.iter().filter_map(|group| self.score_of(group));
        blocks.push(Block::Charts(charts.collect()));
        for group in &self.groups {
            let charts: Vec<CaptionedChart> =
                group.statistics.iter().filter_map(|of| statistic(group, of)).collect();
            if !charts.is_empty() {
                blocks.push(Block::details(
                    format!("Statistics of {}", self.name(group)),
                    self.groups.len() == 1,
                    vec![Block::Charts(charts)],
                ));
            }
        }
        let by = |within: &String| format!("Scores, by {}", line_safe(within));
        let title = self.within.as_ref().map_or("Scores".to_owned(), by);
        Section::new("groups", &title, "", blocks)
    }

    fn score_of(&self, group: &GroupReport) -> Option<CaptionedChart> {
        let (kept, all) = (group.kept, group.all());
        let mut caption = format!(
            "{} of {} kept ({}), {} rejected; {} of {} tokens",
            count(kept.samples),
            count(all.samples),
            share(kept.samples, all.samples),
            count(group.refused.samples),
            count(kept.tokens),
            count(all.tokens)
        );
        if group.others {
            let groups = count(self.groups_together);
            let _ = write!(caption, "; {groups} groups, each with its own threshold");
        }
        let lines: Vec<(f64, &str)> =
            group.thresholds.iter().flatten().map(|score| (*score, "threshold")).collect();
        let label = format!("scores of {}", group.name());
        let chart = drawings::histogram(&label, group.score.as_ref()?, &lines);
        Some(CaptionedChart::new(self.name(group), caption, Block::Chart(chart)))
    }

    /// Returns the name of a group on the page; a run without groups has all samples in one.
    fn name(&self, group: &GroupReport) -> String {
        if self.within.is_none() { format!("all {}", self.samples()) } else { group.name() }
    }

    fn components(&self) -> Option<Section> {
        if self.weakest.is_empty() {
            return None;
        }
        let components: Vec<&str> = self.weakest.iter().map(|(name, _)| name.as_str()).collect();
        let row = |outcome: usize| self.weakest.iter().map(|(_, counts)| counts[outcome]).collect();
        let rows = [("kept", row(0)), ("below the threshold", row(1))];
        let bars = drawings::stacked(&components, &rows);
        let lead = "The score is the minimum of its components. Share of samples whose score each component limits: of the \
                    kept samples, and of those below the threshold.";
        Some(Section::new("weakest", "Limiting component", lead, vec![Block::Bars(bars)]))
    }

    fn by_label(&self) -> Option<Section> {
        let labels = self.labels.as_ref()?;
        let rows: Vec<(String, [u64; 2])> = labels
            .shares
            .iter()
            .map(|(label, counts)| {
                let name = label.as_deref().map_or("without a label".to_owned(), groups::short);
                (name, *counts)
            })
            .collect();
        let overall = self.kept.samples as f64 / self.all().samples.max(1) as f64;
        let title = format!("Kept, by {}", line_safe(&labels.column));
        let mut blocks = vec![Block::Bars(drawings::shares(&rows, overall))];
        if labels.others > 0 {
            blocks.push(Block::Note(format!(
                "{} labels with fewer samples are left out.",
                count(labels.others)
            )));
        }
        let lead =
            "The selection does not use the label. Bars beyond the dashed line are above average.";
        Some(Section::new("labels", &title, lead, blocks))
    }

    fn means(&self) -> Option<Section> {
        let chart = |(name, of): (&String, &Means)| {
            let [kept, others] = of.windows.map(count);
            let caption = format!("{}; mean of {kept} kept windows and {others} others", of.doc);
            let series = [("kept", COLOURS[0]), ("not kept", COLOURS[1])];
            let chart = list(name, &series, &[&of.kept, &of.not_kept]);
            CaptionedChart::new(name.replace('_', " "), caption, Block::Chart(chart))
        };
        let (title, lead) = (
            "Statistics by distance, position and head",
            "Means over kept windows and over the others.",
        );
        let charts = vec![Block::Charts(self.lists.iter().map(chart).collect())];
        (!self.lists.is_empty()).then(|| Section::new("distances", title, lead, charts))
    }

    fn texts(&self) -> Section {
        let mut blocks = Vec::new();
        if let Some(why) = &self.without_input {
            blocks.push(Block::Note(format!("Texts are missing: {}", line_safe(why))));
        }
        for (index, group) in
            self.groups.iter().enumerate().filter(|(_, group)| !group.samples.is_empty())
        {
            let mut inner = Vec::new();
            for (kind, title) in KINDS {
                let mut of_kind =
                    group.samples.iter().filter(|sample| sample.why == kind).peekable();
                if of_kind.peek().is_some() {
                    inner.push(Block::Heading(title.to_owned()));
                    inner.extend(of_kind.map(|sample| Block::Sample(self.sample(sample))));
                }
            }
            blocks.push(Block::details(self.name(group), index == 0, inner));
        }
        let lead = format!(
            "Samples of every group, by rank and at random (seed {SEED}), with the beginning and the end of each."
        );
        Section::new("read", "Sample texts", &lead, blocks)
    }

    fn sample(&self, sample: &ShownSample) -> SampleText {
        // Ids are arbitrary data and may be very long.
        let id: String = sample.id.chars().take(MAX_ID_CHARACTERS).collect();
        let title = sample.window.map_or_else(|| id.clone(), |window| format!("{id}#{window}"));
        let mut why = match (sample.score, sample.percentile) {
            (Some(score), Some(percentile)) => {
                format!("score {score:.4}, percentile {:.1} of its group", 100.0 * percentile)
            }
            (Some(score), None) => format!("score {score:.4}"),
            _ => "no score".to_owned(),
        };
        if let Some(reason) = &sample.reason {
            let _ = write!(why, "; {}", line_safe(reason));
        }
        let chip = |(name, value): (&String, &Option<f64>)| (name.clone(), or_dash(*value, number));
        let tokens = self.settings["input"]["tokens_column"].is_string();
        let excerpt = sample.text.as_ref().map(|text| {
            let unit = if tokens { "tokens" } else { "characters" };
            let gap = if text.left_out == 0 {
                String::new()
            } else {
                format!("… {} {unit} …", count(text.left_out))
            };
            (text.head.clone(), gap, text.tail.clone())
        });
        let [start, end, all] = [sample.tokens.0, sample.tokens.1, sample.tokens_total].map(count);
        SampleText {
            title,
            location: format!("tokens {start} to {end} of {all}"),
            why,
            statistics: sample.statistics.iter().map(chip).collect(),
            excerpt,
        }
    }

    fn drift(&self) -> Option<Section> {
        let drift = &self.summary.drift;
        if drift.is_empty() {
            return None;
        }
        let row = |of: &GroupDrift| {
            let max = of.shifts.iter().max_by(|one, other| one.1.abs().total_cmp(&other.1.abs()));
            vec![
                groups::name(of.value.as_deref(), false, drift.len() == 1),
                count(of.count),
                percent(of.kept_fraction),
                percent(of.calibrated_kept_fraction),
                or_dash(of.stability_index, |index| format!("{index:.3}")),
                or_dash(max, |(name, shift)| format!("{name} {shift:+.2}")),
            ]
        };
        let header = [
            "group",
            "samples",
            "kept",
            "kept when calibrated",
            "stability index",
            "largest shift",
        ];
        let lead = "Compared with the calibration in use. A stability index of 0.1 is moderate, of 0.25 large; shifts are in the \
                    calibration's standard deviations. The groups with the largest drift.";
        let rows = moved_most(drift, 24).into_iter().map(row).collect();
        let table = Block::table(header, rows);
        Some(Section::new("drift", "Drift", lead, vec![table]))
    }

    /// Lists what other minimum scores would keep; `None` if it cannot be counted.
    fn other_amounts(&self, run: &str) -> Option<Section> {
        let all = self.all().samples;
        let example = self.amounts.get(self.amounts.len() / 2)?.min_score;
        let others = self.amounts.iter().map(|of| (of.min_score.to_string(), of.kept));
        let mut rows: Vec<(String, Amount)> =
            others.chain([("this run".to_owned(), self.kept)]).collect();
        rows.sort_by_key(|(_, kept)| kept.samples);
        let row = |(name, kept): (String, Amount)| {
            vec![name, count(kept.samples), share(kept.samples, all), count(kept.tokens)]
        };
        let header = ["min_score", self.samples(), "share", "tokens"];
        let table = Block::table(header, rows.into_iter().map(row).collect());
        let lead = format!(
            "Exact counts of what this run would keep with `min_score` as its amount. \
             `longsift whatif {run} --set stages.filter.min_score={example}` lists the change by group, and answers for every other \
             setting: guards, weights and offsets change the scale of the scores."
        );
        Some(Section::new("whatif", "Other amounts", &lead, vec![table]))
    }

    fn machine(&self) -> Section {
        let mut blocks = Vec::new();
        let devices = self.machine.devices.iter().map(|(device, polls)| (device, &polls.kept));
        let devices = devices.filter(|(_, polls)| polls.iter().any(DevicePoll::has_memory));
        let chart = |(device, polls): (&String, &Vec<DevicePoll>)| {
            let chart = Block::Chart(drawings::memory(device, polls));
            CaptionedChart::new(line_safe(device), "Memory from the first to the last poll.", chart)
        };
        let charts: Vec<CaptionedChart> = devices.map(chart).collect();
        if let Some(devices) = &self.summary.devices {
            let rows = devices.list.iter().map(|of| {
                vec![
                    of.name.clone(),
                    count(of.pieces),
                    count(of.tokens),
                    format!("{:.1} s", of.busy_seconds),
                    format!("{:.0} %", 100.0 * of.busy_seconds / self.summary.seconds.max(1e-3)),
                    bytes(of.most_reserved_bytes),
                    of.retired.as_deref().map_or_else(String::new, line_safe),
                ]
            });
            let header = [
                "device",
                "work items",
                "tokens",
                "busy",
                "share of time",
                "peak reserved",
                "retired",
            ];
            blocks.push(Block::table(header, rows.collect()));
        }
        if !charts.is_empty() {
            blocks.push(Block::Charts(charts));
        }
        let phases = self.summary.phases_by_memory().into_iter();
        let phases = phases.map(|(phase, max)| vec![phase.to_owned(), bytes(max)]);
        let steps = self.machine.steps.iter();
        let steps =
            steps.map(|(step, number)| vec![line_safe(&step.replace('_', " ")), count(*number)]);
        let times = self.machine.seconds.iter();
        let times = times.map(|(stage, seconds)| vec![stage.clone(), format!("{seconds:.2} s")]);
        for (header, rows) in [
            (["phase", "peak memory"], phases.collect::<Vec<_>>()),
            (["event", "count"], steps.collect()),
            (["stage", "time"], times.collect()),
        ] {
            if !rows.is_empty() {
                blocks.push(Block::table(header, rows));
            }
        }
        let mut lead =
            "Stages overlap, so their times can add up to more than the duration of the run."
                .to_owned();
        if let Some(kernel) = &self.summary.kernel {
            let _ = write!(lead, " Kernel: {kernel}.");
        }
        Section::new("machine", "Machine", &lead, blocks)
    }

    fn quarantine(&self) -> Option<Section> {
        if self.quarantined.is_empty() {
            return None;
        }
        let rows =
            self.quarantined.iter().map(|(code, rows)| vec![code.clone(), count(*rows)]).collect();
        let lead =
            "Rows that could not be scored, by code; the rows themselves are in quarantine/.";
        let table = Block::table(["code", "rows"], rows);
        Some(Section::new("quarantine", "Quarantine", lead, vec![table]))
    }

    fn repeat(&self) -> Section {
        let run = shell_word(&self.run_directory);
        let mut stages = self.settings["stages"].as_array().into_iter().flatten();
        // A calibration decides instead of the amount.
        let is_calibrated = stages.any(|stage| !stage["calibration"].is_null());
        let whatif = if is_calibrated {
            String::new()
        } else {
            format!("longsift whatif {run} --set stages.filter.keep_fraction=0.1\n")
        };
        let commands = format!(
            "longsift run {run}          # repeat this run from its manifest\nlongsift verify {run}\n{whatif}longsift report {run} --html report.html"
        );
        let settings = serde_json::to_string_pretty(&self.settings).expect("plain data");
        let identity = serde_json::to_string_pretty(&self.identity).expect("plain data");
        let details =
            |summary: &str, text: String| Block::details(summary, false, vec![Block::Code(text)]);
        let blocks = vec![
            Block::Code(commands),
            details("resolved settings", settings),
            details("identity: everything on which the result depends, except the input", identity),
        ];
        let lead = "Run these in the parent folder of the run directory.";
        Section::new("repeat", "Commands", lead, blocks)
    }
}

fn statistic(group: &GroupReport, of: &GroupStatistic) -> Option<CaptionedChart> {
    let histogram = of.histogram.as_ref()?;
    let ends = of.bounds.iter().flat_map(|bounds| [bounds.low, bounds.high]);
    let lines: Vec<(f64, &str)> = ends.flatten().map(|end| (end, "bound")).collect();
    let label = format!("{} of {}", of.name, group.name());
    let caption =
        if of.unit.is_empty() { of.doc.clone() } else { format!("{} ({})", of.doc, of.unit) };
    let chart = drawings::histogram(&label, histogram, &lines);
    Some(CaptionedChart::new(of.name.clone(), caption, Block::Chart(chart)))
}

fn reasons(reasons: &BTreeMap<String, u64>) -> Vec<WaterfallStep> {
    let is_rank = |reason: &str| reason == NOT_SELECTED;
    let fill = |reason: &str| if is_rank(reason) { COLOURS[1] } else { COLOURS[2] };
    // The ranking comes last, because it is the last step of the selection.
    let (last, first): (Vec<_>, Vec<_>) = reasons.iter().partition(|(reason, _)| is_rank(reason));
    let all = first.into_iter().chain(last);
    all.map(|(reason, number)| step(reason, *number, fill(reason))).collect()
}

fn step(name: &str, number: u64, fill: &'static str) -> WaterfallStep {
    (line_safe(name), number, fill)
}
