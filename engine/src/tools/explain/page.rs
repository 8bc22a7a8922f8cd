//! Explanation of a window as an HTML page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Range;

use longsift_stages::contract::Value;

use super::{Explanation, Link, shown};
use crate::base::text::{count, line_safe};
use crate::report::page::drawing::{Drawing, Shape, colour};
use crate::report::page::heat::{ColourScale, heat_map, hexadecimal};
use crate::report::page::{Block, Figure, Page, Piece, Section, Tile};
use crate::report::passages::Passage;

/// Maximum number of pieces of a shaded text.
const MAX_PIECES: usize = 3000;
/// Maximum bytes of escaped text on a page.
const MAX_TEXT_BYTES: usize = 400_000;
/// Maximum number of lines drawn between recurring tokens.
const MAX_LINES: usize = 300;
/// Width of charts along the window in pixels, and maximum number of their bars.
const WIDTH: f64 = 720.0;
const MAX_BARS: usize = 240;
/// Lightest and darkest background of a piece.
const SHADES: [[f64; 3]; 2] = [[255.0, 255.0, 255.0], [120.0, 182.0, 226.0]];

impl Explanation {
    /// Renders the explanation as one HTML file. `command` is shown as the command that repeats it.
    pub(crate) fn page(&self, command: &str) -> String {
        let mut sections = vec![self.text_section()];
        sections.extend(self.gain_section());
        if !self.far_mass.is_empty() || !self.links.is_empty() {
            sections.push(self.along());
        }
        let figures: Vec<Figure> = self.lists();
        if !figures.is_empty() {
            let lead = "Statistics that are lists.";
            sections.push(Section::new(
                "lists",
                "Statistics by head and distance",
                lead,
                vec![Block::Figures(figures)],
            ));
        }
        if !self.matrix.lift.is_empty() {
            let number = self.matrix.lift.len();
            let names: Vec<String> =
                (0..number).map(|block| count(self.matrix.block_boundaries[block])).collect();
            let columns: Vec<String> = (0..number).map(|block| block.to_string()).collect();
            let drawing = heat_map(
                "attention relative to even attention",
                &names,
                &columns,
                &self.matrix.lift,
                ColourScale::Lift,
            );
            let lead = format!(
                "Attention between parts of the window in layer {}, relative to even attention. Rows are queries (labelled by \
                 their first token), columns keys. `longsift map` shows other blocks, `--layer` another layer of a whole model.",
                self.layer.unwrap_or(0)
            );
            sections.push(Section::new(
                "blocks",
                "Attention by block",
                &lead,
                vec![Block::Drawing(drawing)],
            ));
        }
        let rows = self.figures.iter().map(|own| {
            vec![own.statistic.clone(), shown(&own.now), shown(&own.recorded), own.unit.clone()]
        });
        let table = Block::table(["statistic", "now", "recorded", "unit"], rows.collect());
        let notes: Vec<String> = self.notes.iter().map(|note| line_safe(note)).collect();
        let mut blocks = self.score_of();
        blocks.push(table);
        if !notes.is_empty() {
            blocks.push(Block::List(notes));
        }
        sections.extend(self.guards_of());
        let lead = "Values measured now and values recorded by the run.";
        sections.push(Section::new("figures", "Statistics", lead, blocks));
        sections.push(Section::new("repeat", "Command", "", vec![Block::Code(command.to_owned())]));
        let mut tiles = vec![Tile { figure: count(self.tokens), label: "tokens".to_owned() }];
        if let Some(own) = &self.selected {
            if let Some(score) = own.score {
                tiles.push(Tile { figure: format!("{score:.4}"), label: "score".to_owned() });
            }
            if let Some(rank) = own.rank {
                let label = format!("rank among {} samples of its group", count(own.of));
                tiles.push(Tile { figure: count(rank), label });
            }
        }
        let id: String = line_safe(&self.id).chars().take(120).collect();
        let page = Page {
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
            sections,
        };
        page.html()
    }

    /// Renders the verdicts of the guards.
    fn guards_of(&self) -> Option<Section> {
        let rows = self.guards.iter().map(|guard| {
            let value = guard.value.map_or("–".to_owned(), |value| format!("{value:.6}"));
            let says = if guard.rejects { "rejected" } else { "passes" };
            vec![format!("{} {}", guard.statistic, guard.bounds), value, says.to_owned()]
        });
        let mut blocks = vec![Block::table(["guard", "value", ""], rows.collect())];
        for guard in self.guards.iter().filter(|guard| !guard.passages.is_empty()) {
            blocks.push(Block::Heading(format!("Passages that {} counts", guard.statistic)));
            let passage = |of: &Passage| format!("{}: {}", of.in_words(), of.text);
            blocks.push(Block::List(guard.passages.iter().map(passage).collect()));
        }
        let lead = "Bounds of the guards, and the passages that their statistics count.";
        (!self.guards.is_empty()).then(|| Section::new("guards", "Guards", lead, blocks))
    }

    /// Renders the terms of the score.
    fn score_of(&self) -> Vec<Block> {
        let Some(own) = self.selected.as_ref().filter(|own| !own.terms.is_empty()) else {
            return Vec::new();
        };
        let weakest = |name: &str| {
            if own.weakest.as_deref() == Some(name) { "limits the score" } else { "" }
        };
        let rows = own.terms.iter().map(|term| {
            let said = weakest(&term.statistic).to_owned();
            vec![term.statistic.clone(), format!("{:.6}", term.value), said]
        });
        let header = ["term", "weighted value", ""];
        vec![Block::table(header, rows.collect()), Block::Heading("All statistics".to_owned())]
    }

    /// Returns the number of tokens per piece of a shaded text.
    pub(super) fn piece_tokens(&self) -> usize {
        self.pieces.len().div_ceil(MAX_PIECES).max(1)
    }

    /// Cuts the text into pieces, up to the maximum size. `piece` builds each from its number, its tokens, its text
    /// and the beginning of its tooltip.
    pub(super) fn shaded(
        &self,
        piece: impl Fn(usize, Range<usize>, String, String) -> Piece,
    ) -> Vec<Block> {
        let (mut pieces, mut shown, mut written) = (Vec::new(), 0, 0);
        for (index, tokens) in self.token_ranges(self.piece_tokens()).enumerate() {
            let text = self.pieces[tokens.clone()].concat();
            written += line_safe(&text).len();
            if written > MAX_TEXT_BYTES {
                break;
            }
            shown = tokens.end;
            let title = format!("token {}", count(tokens.start as u64));
            pieces.push(piece(index, tokens, text, title));
        }
        let left = self.pieces.len() - shown;
        let note = format!("{} more tokens are not shown.", count(left as u64));
        let mut blocks = vec![Block::Shaded(pieces)];
        blocks.extend((left > 0).then_some(Block::Note(note)));
        blocks
    }

    fn text_section(&self) -> Section {
        let each = self.piece_tokens();
        let most = self.far_mass.iter().copied().fold(0.0, f64::max);
        let far: BTreeMap<usize, &Link> =
            self.links.iter().filter(|link| link.far).map(|link| (link.token, link)).collect();
        let found: BTreeSet<usize> = far.values().map(|link| link.earlier / each).collect();
        let copied: BTreeSet<usize> =
            self.links.iter().filter(|link| link.copied).map(|link| link.token).collect();
        let blocks = self.shaded(|piece, tokens, text, mut title| {
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
            let fill =
                mass.map_or_else(String::new, |mass| shade(mass / most.max(f64::MIN_POSITIVE)));
            Piece {
                text,
                fill,
                title,
                anchor: if found.contains(&piece) { format!("t{piece}") } else { String::new() },
                link: link.map_or_else(String::new, |link| format!("t{}", link.earlier / each)),
            }
        });
        let lead = match (self.far_distance, self.links.is_empty()) {
            (Some(distance), false) => format!(
                "Darker: more attention to tokens at a distance of {} or more. Underlined: recurs from far away and is not copied; the link leads to the earlier occurrence.",
                count(distance)
            ),
            (Some(distance), true) => format!(
                "Darker: more attention to tokens at a distance of {} or more.",
                count(distance)
            ),
            (None, _) => {
                "Underlined: recurs from far away and is not copied; the link leads to the earlier occurrence."
                    .to_owned()
            }
        };
        Section::new("text", "Text", &lead, blocks)
    }

    /// Renders charts along the window: attention to far tokens, and lines between recurring tokens.
    fn along(&self) -> Section {
        let mut blocks = Vec::new();
        let tokens = self.tokens.max(1) as f64;
        if !self.far_mass.is_empty() {
            let each = self.far_mass.len().div_ceil(MAX_BARS).max(1);
            let means: Vec<f64> = self
                .far_mass
                .chunks(each)
                .map(|masses| masses.iter().sum::<f64>() / masses.len() as f64)
                .collect();
            blocks.push(Block::Heading("Attention to far tokens, by position".to_owned()));
            blocks.push(Block::Drawing(bars(
                "attention to far tokens, by position",
                &means,
                WIDTH,
                &|bar| count((bar * each) as u64),
            )));
        }
        if !self.links.is_empty() {
            let mut drawing = Drawing::new(
                WIDTH as u32 + 20,
                216,
                "lines from recurring tokens to their earlier occurrences",
            );
            let x = |token: usize| 10.0 + WIDTH * token as f64 / tokens;
            let base = 190.0;
            for (of, stroke, what) in
                [(false, colour::ORANGE, "copied"), (true, colour::BLUE, "far, not copied")]
            {
                let links: Vec<&Link> = self
                    .links
                    .iter()
                    .filter(|link| if of { link.far } else { link.copied })
                    .collect();
                let every = links.len().div_ceil(MAX_LINES).max(1);
                for link in links.iter().step_by(every) {
                    let (from, to) = (x(link.token), x(link.earlier));
                    let top = base - (from - to) / WIDTH * 2.0 * (base - 20.0);
                    let title = format!(
                        "token {} ← {}, {what}",
                        count(link.token as u64),
                        count(link.earlier as u64)
                    );
                    let d = format!(
                        "M{from:.1} {base}Q{:.1} {top:.1} {to:.1} {base}",
                        f64::midpoint(from, to)
                    );
                    drawing.shapes.push(Shape::Path { d, fill: "none", stroke, title });
                }
            }
            drawing.line((10.0, base), (10.0 + WIDTH, base), colour::GREY);
            for quarter in 0..=4 {
                let token = (tokens * f64::from(quarter) / 4.0) as usize;
                let anchor = ["start", "middle", "middle", "middle", "end"][quarter as usize];
                drawing.text((x(token), base + 18.0), anchor, count(token as u64));
            }
            blocks.push(Block::Heading("Recurring tokens".to_owned()));
            blocks.push(Block::Note(format!(
                "{} tokens of the second half recur: {} from far away and not copied (blue), {} in copied passages (orange). At most {MAX_LINES} lines of each are drawn.",
                count(self.links.len() as u64),
                count(self.links.iter().filter(|link| link.far).count() as u64),
                count(self.links.iter().filter(|link| link.copied).count() as u64)
            )));
            blocks.push(Block::Drawing(drawing));
        }
        Section::new("along", "Position in the window", "", blocks)
    }

    fn lists(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for own in &self.figures {
            let Value::Numbers(numbers) = &own.now else { continue };
            let by_distance = own.statistic.ends_with("histogram");
            // Bin 0 is distance 0, bin b begins at 2^(b-1).
            let name = move |index: usize| {
                if by_distance && index > 0 {
                    count(1 << (index - 1).min(62))
                } else {
                    index.to_string()
                }
            };
            figures.push(Figure {
                title: own.statistic.replace('_', " "),
                caption: own.doc.clone(),
                drawing: bars(&own.statistic, numbers, 320.0, &name),
            });
        }
        figures
    }
}

pub(super) fn shade(part: f64) -> String {
    let part = part.clamp(0.0, 1.0).sqrt();
    let mix = |index: usize| {
        (SHADES[0][index] + (SHADES[1][index] - SHADES[0][index]) * part).round() as u8
    };
    hexadecimal([mix(0), mix(1), mix(2)])
}

/// Formats a number with few characters.
fn short(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        ..0.001 => format!("{number:.2e}"),
        10.0.. => format!("{number:.0}"),
        _ => format!("{number:.4}"),
    }
}

/// Draws bars with their maximum and the names of some of them.
fn bars(label: &str, values: &[f64], width: f64, name: &dyn Fn(usize) -> String) -> Drawing {
    let (top, height) = (22.0, 90.0);
    let mut drawing = Drawing::new(width as u32 + 24, 150, label);
    let most = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let each = width / values.len().max(1) as f64;
    let bottom = top + height;
    for (bar, value) in values.iter().enumerate() {
        let tall = height * value.max(0.0) / most.max(f64::MIN_POSITIVE);
        let title = format!("{}: {}", name(bar), short(*value));
        let size = ((each - 0.8).max(0.6), tall.min(height));
        drawing.rect((10.0 + each * bar as f64, bottom - size.1), size, colour::BLUE, title);
    }
    drawing.line((10.0, bottom), (10.0 + width, bottom), colour::GREY);
    drawing.text((10.0, 14.0), "start", format!("up to {}", short(most)));
    let every = (values.len() as f64 * 52.0 / width).ceil().max(1.0) as usize;
    for bar in (0..values.len()).step_by(every) {
        drawing.text((10.0 + each * (bar as f64 + 0.5), bottom + 18.0), "middle", name(bar));
    }
    drawing
}
