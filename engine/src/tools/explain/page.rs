//! Explanation of a window as sections of a page, which are also its text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Range;

use longsift_stages::contract::Value;
use longsift_stages::measures::recurrence::Link;

use super::{ExplainedStatistic, Explanation, mean, shown};
use crate::base::text::{count, line_safe, one_line};
use crate::report::page::chart::{Chart, ColumnChart, Tick, list};
use crate::report::page::drawing::{Swatch, colour};
use crate::report::page::heat::{ColourScale, HeatMap};
use crate::report::page::numbers::{Axis, number, or_dash};
use crate::report::page::{
    Block, CaptionedChart, KeyNumber, Page, SampleText, Section, TextPiece, text_class,
};
use crate::report::passages::Passage;

const MAX_PIECES: usize = 3000;
const MAX_TEXT_BYTES: usize = 400_000;
const MAX_LINES: usize = 300;
const MAX_COLUMNS: usize = 240;
const PASSAGE_TOKENS: usize = 16;
const MAX_LISTED: usize = 8;
/// Opacity of the darkest background of a piece, on which text is legible in light and dark mode.
const MAX_OPACITY: f64 = 0.6;

impl Explanation {
    /// Returns the sections. Text output has those with tables.
    pub(super) fn sections(&self) -> Vec<Section> {
        let shaded = [self.text_section()].into_iter().chain(self.gain_section());
        let mut sections: Vec<Section> = shaded.map(Section::on_request).collect();
        sections.push(self.passages());
        if !self.far_mass.is_empty() || !self.links.is_empty() {
            sections.push(self.along().on_request());
        }
        let charts = self.lists();
        if !charts.is_empty() {
            let (title, lead) = ("Statistics by head and distance", "Statistics that are lists.");
            sections.push(Section::new("lists", title, lead, vec![Block::Charts(charts)]));
        }
        if !self.matrix.lift.is_empty() {
            let first_token = |block: usize| count(self.matrix.block_boundaries[block]);
            let blocks = self.matrix.lift.iter().enumerate();
            let map = HeatMap {
                corner: "query ↓ key →".to_owned(),
                columns: (0..self.matrix.lift.len()).map(first_token).collect(),
                rows: blocks.map(|(block, lift)| (first_token(block), lift.clone())).collect(),
                scale: ColourScale::Lift,
            };
            let lead = format!(
                "Attention between parts of the window in layer {}, relative to even attention. Rows are queries, columns keys, \
                 both labelled by their first token. `longsift map` shows other blocks, `--layer` another layer of a whole model.",
                self.layer.unwrap_or(0)
            );
            let map = Section::new("blocks", "Attention by block", &lead, vec![Block::Heat(map)]);
            sections.push(map.on_request());
        }
        let has_run = self.statistics.iter().any(|own| own.recorded != Value::Null);
        let row = |cells: [String; 4]| -> Vec<String> {
            let cells = cells.into_iter().enumerate();
            cells.filter(|(at, _)| has_run || *at != 2).map(|(_, cell)| cell).collect()
        };
        let rows = self.statistics.iter().map(|own| {
            row([own.statistic.clone(), shown(&own.now), shown(&own.recorded), own.unit.clone()])
        });
        let header = row(["statistic", "now", "recorded", "unit"].map(str::to_owned));
        let table = Block::Table { header, rows: rows.collect() };
        let notes: Vec<String> = self.notes.iter().map(|note| line_safe(note)).collect();
        let mut blocks = self.score_of();
        blocks.push(table);
        if !notes.is_empty() {
            blocks.push(Block::List(notes));
        }
        sections.extend(self.guards_of());
        let lead = if has_run {
            "Values measured now and values recorded by the run."
        } else {
            "Values measured now."
        };
        sections.push(Section::new("figures", "Statistics", lead, blocks));
        sections
    }

    pub(crate) fn page(&self) -> Page {
        let mut tiles = vec![KeyNumber::new(count(self.tokens), "tokens")];
        if let Some(outcome) = &self.selected {
            tiles.extend(outcome.score.map(|score| KeyNumber::new(format!("{score:.4}"), "score")));
            let label = || format!("rank among {} samples of its group", count(outcome.of));
            tiles.extend(outcome.rank.map(|rank| KeyNumber::new(count(rank), label())));
        }
        let id: String = line_safe(&self.id).chars().take(120).collect();
        Page {
            title: format!("Window {} of {id}", self.window),
            kicker: format!(
                "longsift explain · {} · {} row {} · tokens {} to {}",
                self.pipeline,
                self.input_file,
                self.input_row,
                count(self.token_start),
                count(self.token_end)
            ),
            lead: self
                .verdict()
                .unwrap_or_else(|| "Statistics of this window, token by token.".to_owned()),
            tiles,
            sections: self.sections(),
        }
    }

    fn guards_of(&self) -> Option<Section> {
        let rows = self.guards.iter().map(|guard| {
            let value = or_dash(guard.value, |value| format!("{value:.6}"));
            let verdict = if guard.rejects { "rejected" } else { "passes" };
            vec![format!("{} {}", guard.statistic, guard.bounds), value, verdict.to_owned()]
        });
        let mut blocks = vec![Block::table(["guard", "value", ""], rows.collect())];
        for guard in self.guards.iter().filter(|guard| !guard.passages.is_empty()) {
            let title = format!("Passages that {} counts", guard.statistic);
            let passage =
                |of: &Passage| Block::Sample(SampleText::passage(of.in_words(), &of.text));
            let passages = guard.passages.iter().map(passage).collect();
            if guard.rejects {
                blocks.push(Block::Heading(title));
                blocks.extend::<Vec<Block>>(passages);
            } else {
                blocks.push(Block::details(title, false, passages));
            }
        }
        let lead = "Bounds of the guards, and the passages that their statistics count.";
        (!self.guards.is_empty()).then(|| Section::new("guards", "Guards", lead, blocks))
    }

    fn score_of(&self) -> Vec<Block> {
        let Some(outcome) = self.selected.as_ref().filter(|outcome| !outcome.terms.is_empty())
        else {
            return Vec::new();
        };
        let rows = outcome.terms.iter().map(|term| {
            let is_weakest = outcome.weakest.as_ref() == Some(&term.statistic);
            let remark = if is_weakest { "limits the score" } else { "" };
            vec![term.statistic.clone(), format!("{:.6}", term.value), remark.to_owned()]
        });
        let header = ["component", "value in the score", ""];
        vec![Block::table(header, rows.collect()), Block::Heading("All statistics".to_owned())]
    }

    pub(super) fn piece_tokens(&self) -> usize {
        self.pieces.len().div_ceil(MAX_PIECES).max(1)
    }

    /// Cuts the text into pieces. `piece` builds each from its number, its tokens, its text and the beginning of its tooltip.
    /// Tokens before `first`, which cannot be shaded for the reason `why`, are collapsed.
    pub(super) fn shaded(
        &self,
        first: usize,
        why: &str,
        piece: impl Fn(usize, Range<usize>, String, String) -> TextPiece,
    ) -> Vec<Block> {
        let (mut before, mut pieces, mut shown, mut written) = (Vec::new(), Vec::new(), 0, 0);
        for (index, tokens) in self.token_ranges(self.piece_tokens()).enumerate() {
            let text = self.pieces[tokens.clone()].concat();
            written += line_safe(&text).len();
            if written > MAX_TEXT_BYTES {
                break;
            }
            shown = tokens.end;
            let title = format!("token {}", count(tokens.start as u64));
            let part = if tokens.end <= first { &mut before } else { &mut pieces };
            part.push(piece(index, tokens, text, title));
        }
        let class = text_class(&self.pieces.concat());
        let mut blocks = Vec::new();
        if !before.is_empty() {
            let summary =
                format!("The first {} tokens cannot be shaded: {why}", count(first as u64));
            let shaded = vec![Block::Shaded { class, pieces: before }];
            blocks.push(Block::details(summary, pieces.is_empty(), shaded));
        }
        if !pieces.is_empty() {
            blocks.push(Block::Shaded { class, pieces });
        }
        let left = self.pieces.len() - shown;
        let note = format!("{} more tokens are not shown.", count(left as u64));
        blocks.extend((left > 0).then_some(Block::Note(note)));
        blocks
    }

    fn text_section(&self) -> Section {
        let each = self.piece_tokens();
        let max = self.far_mass.iter().copied().fold(0.0, f64::max);
        let far: BTreeMap<usize, &Link> =
            self.links.iter().filter(|link| link.far).map(|link| (link.token, link)).collect();
        let targets: BTreeSet<usize> = far.values().map(|link| link.earlier / each).collect();
        let copied: BTreeSet<usize> =
            self.links.iter().filter(|link| link.copied).map(|link| link.token).collect();
        let distance = self.far_distance.filter(|_| !self.far_mass.is_empty());
        let why = match distance {
            Some(distance) => {
                format!("no token lies {} or more tokens before them.", count(distance))
            }
            None => "only tokens of the second half are compared with earlier ones.".to_owned(),
        };
        let end = self.pieces.len();
        let linked = self.links.iter().map(|link| link.token).min();
        let far_from = distance.map(|distance| distance as usize);
        let first = linked.into_iter().chain(far_from).min().unwrap_or(0).min(end);
        let pieces = self.shaded(first, &why, |piece, tokens, text, mut title| {
            let mass = self.mean_mass(tokens.clone());
            let link = far.range(tokens.clone()).next().map(|(_, link)| *link);
            if let Some(mass) = mass {
                let _ = write!(title, ", far attention {mass:.3}");
            }
            if let Some(link) = link {
                let _ = write!(title, ", recurs from token {}", count(link.earlier as u64));
            } else if copied.range(tokens).next().is_some() {
                title.push_str(", copied");
            }
            let part = mass.map(|mass| mass / max.max(f64::MIN_POSITIVE));
            TextPiece {
                text,
                fill: part.filter(|part| *part > 0.0).map_or_else(String::new, shade),
                title,
                anchor: if targets.contains(&piece) { format!("t{piece}") } else { String::new() },
                link: link.map_or_else(String::new, |link| format!("t{}", link.earlier / each)),
            }
        });
        let mut blocks = Vec::new();
        if let Some(distance) = distance {
            let name = format!(" attention to tokens at a distance of {} or more", count(distance));
            blocks.push(shades(&name, max));
        }
        blocks.extend(pieces);
        let lead = match (distance, self.links.is_empty()) {
            (None, true) => {
                "No token is marked: none recurs from far away, and no measure of this pipeline computes attention."
            }
            (Some(_), true) => "Darker: more attention to far tokens.",
            (_, false) => {
                "Underlined: recurs from far away and is not copied; the link leads to the earlier occurrence."
            }
        };
        Section::new("text", "Text", lead, blocks)
    }

    /// Lists the passages with the most attention and the highest gain, and some tokens that recur from far away.
    fn passages(&self) -> Section {
        let mut blocks = Vec::new();
        if let Some(distance) = self.far_distance {
            let title = format!(
                "Passages with the most attention to tokens at a distance of {} or more",
                count(distance)
            );
            blocks.extend(self.top_passages(title, "attention", |tokens| self.mean_mass(tokens)));
        }
        let title = "Passages with the highest gain from the long context, in nats per token";
        blocks.extend(self.top_passages(title.to_owned(), "gain", |tokens| self.mean_gain(tokens)));
        let far: Vec<&Link> = self.links.iter().filter(|link| link.far).collect();
        let every = far.len().div_ceil(MAX_LISTED).max(1);
        let rows = far.iter().step_by(every).map(|link| {
            let text = one_line(&self.text(link.token.saturating_sub(2)..link.token + 1));
            vec![text, count(link.token as u64), count(link.earlier as u64)]
        });
        if !self.links.is_empty() {
            let listed =
                if every > 1 { format!(" (one in {every} listed)") } else { String::new() };
            blocks.push(Block::Heading(format!(
                "{} tokens recur, {} from far away and not copied{listed}",
                count(self.links.len() as u64),
                count(far.len() as u64)
            )));
            blocks.push(Block::table(["text", "token", "earlier"], rows.collect()));
        }
        Section::new("passages", "Passages", "", blocks)
    }

    /// Lists the passages with the highest means; nothing if no passage has one.
    fn top_passages(
        &self,
        title: String,
        name: &str,
        mean: impl Fn(Range<usize>) -> Option<f64>,
    ) -> Vec<Block> {
        let passage = |tokens: Range<usize>| Some((mean(tokens.clone())?, tokens));
        let mut all: Vec<(f64, Range<usize>)> =
            self.token_ranges(PASSAGE_TOKENS).filter_map(passage).collect();
        all.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.start.cmp(&other.1.start)));
        if all.is_empty() {
            return Vec::new();
        }
        let rows = all.into_iter().take(MAX_LISTED).map(|(mean, tokens)| {
            let first = count(tokens.start as u64);
            vec![one_line(&self.text(tokens)), first, format!("{mean:.3}")]
        });
        vec![Block::Heading(title), Block::table(["text", "token", name], rows.collect())]
    }

    /// Renders charts along the window: attention to far tokens, and lines between recurring tokens.
    fn along(&self) -> Section {
        let mut blocks = Vec::new();
        let axis = Axis::linear(0.0, self.tokens.max(1) as f64);
        let ticks = || {
            let tick = |token: f64| Tick::new(axis.position(token), count(token as u64));
            axis.ticks().into_iter().map(tick).collect::<Vec<_>>()
        };
        if !self.far_mass.is_empty() {
            let each = self.far_mass.len().div_ceil(MAX_COLUMNS).max(1);
            let bin = |masses: &[f64]| mean(masses.iter().copied()).into_iter().collect();
            let heading = "Attention to far tokens, by position";
            let columns = ColumnChart {
                label: heading.to_owned(),
                series: &[(heading, colour::BLUE)],
                bins: self.far_mass.chunks(each).map(bin).collect(),
                stacked: true,
                shown: &number,
                x_ticks: ticks(),
                marks: Vec::new(),
            };
            blocks.push(Block::Heading(heading.to_owned()));
            blocks.push(Block::Chart(columns.chart()));
        }
        if !self.links.is_empty() {
            let kind = |far: bool| {
                self.links.iter().filter(move |link| if far { link.far } else { link.copied })
            };
            let kinds =
                [(false, colour::ORANGE, "copied"), (true, colour::BLUE, "far, not copied")];
            let arcs = kinds.into_iter().flat_map(|(far, stroke, what)| {
                let every = kind(far).count().div_ceil(MAX_LINES).max(1);
                kind(far).step_by(every).map(move |link| {
                    let [token, earlier] = [link.token, link.earlier].map(|token| token as u64);
                    let title = format!("token {} ← {}, {what}", count(token), count(earlier));
                    let [from, to] = [token, earlier].map(|token| axis.position(token as f64));
                    (from, to, stroke, title)
                })
            });
            let legend = kinds.into_iter().map(|(far, stroke, what)| {
                Swatch::new(format!("{what}: {}", count(kind(far).count() as u64)), stroke)
            });
            let label = "lines from recurring tokens to their earlier occurrences";
            blocks.push(Block::Heading("Recurring tokens".to_owned()));
            blocks.push(Block::Note(format!(
                "{} tokens of the second half recur. At most {MAX_LINES} lines of each kind are drawn.",
                count(self.links.len() as u64),
            )));
            blocks.push(Block::Chart(Chart::arcs(label, legend.collect(), ticks(), arcs)));
        }
        Section::new("along", "Position in the window", "", blocks)
    }

    fn lists(&self) -> Vec<CaptionedChart> {
        let chart = |own: &ExplainedStatistic| {
            let Value::Numbers(numbers) = &own.now else { return None };
            let (name, series) = (&*own.statistic, [(&*own.statistic, colour::BLUE)]);
            let chart = Block::Chart(list(name, &series, &[numbers]));
            Some(CaptionedChart::new(name.replace('_', " "), own.doc.clone(), chart))
        };
        self.statistics.iter().filter_map(chart).collect()
    }
}

/// Returns the background of a piece with this part of the largest value.
pub(super) fn shade(part: f64) -> String {
    format!("rgba(86,180,233,{:.2})", MAX_OPACITY * part.clamp(0.0, 1.0).sqrt())
}

/// Returns the legend of backgrounds up to the largest value; `name` describes the values.
pub(super) fn shades(name: &str, largest: f64) -> Block {
    let swatch =
        |(part, name): (f64, &str)| Swatch::new(number(part * largest) + name, shade(part));
    Block::Legend([(0.1, ""), (0.4, ""), (1.0, name)].map(swatch).to_vec())
}
