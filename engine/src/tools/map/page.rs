//! Map as an HTML page.

use super::Map;
use crate::base::text::{bytes, count, line_safe};
use crate::report::page::heat::{ColourScale, heat_map};
use crate::report::page::{Block, Page, Section, Tile};

/// Maximum number of blocks in a chart; more are merged.
const MAX_CHART_BLOCKS: usize = 64;
/// Maximum number of blocks whose text is listed.
const MAX_LISTED: usize = 64;
/// Maximum number of pairs listed.
const MAX_PAIRS: usize = 24;
/// Maximum length of a block's name in a chart, in characters.
const MAX_NAME_CHARACTERS: usize = 22;

/// Blocks merged with their neighbours for a chart.
struct MergedBlocks {
    names: Vec<String>,
    columns: Vec<String>,
    shares: Vec<Vec<Option<f64>>>,
    lift: Vec<Vec<Option<f64>>>,
    /// Number of blocks that are merged into one.
    together: usize,
}

impl Map {
    /// Renders the map as one HTML file. `command` is shown as the command that repeats it.
    pub(crate) fn page(&self, command: &str) -> String {
        let drawn = self.drawn();
        let mut leads = vec!["Rows are queries, columns keys.".to_owned()];
        if drawn.together > 1 {
            leads.push(format!(
                "{} neighbouring blocks are drawn as one; all numbers are in `--parquet` and `--format json`.",
                drawn.together
            ));
        }
        let lead = leads.join(" ");
        let MergedBlocks { names, columns, shares, lift, .. } = &drawn;
        let scale = ColourScale::shares(shares.iter().flatten().flatten().copied());
        let share_map = heat_map("share of attention by block", names, columns, shares, scale);
        let lift_map = heat_map(
            "attention relative to even attention",
            names,
            columns,
            lift,
            ColourScale::Lift,
        );
        let mut sections = vec![
            Section::new(
                "shares",
                "Share of attention",
                &format!("Share of a block's attention that goes to each block. {lead}"),
                vec![Block::Drawing(share_map)],
            ),
            Section::new(
                "lift",
                "Lift over even attention",
                &format!(
                    "Share of attention relative to attention that is spread evenly over all visible tokens. Blue: more; orange: less. {lead}"
                ),
                vec![Block::Drawing(lift_map)],
            ),
        ];
        let pairs = self.strongest();
        if !pairs.is_empty() {
            let rows = pairs.iter().take(MAX_PAIRS).map(|(query, key, share, lift)| {
                vec![
                    self.name(*query),
                    self.name(*key),
                    format!("{share:.4}"),
                    format!("{lift:.2}"),
                ]
            });
            sections.push(Section::new(
                "pairs",
                "Strongest pairs",
                "Non-adjacent blocks with at least 1 % of the attention, by descending lift.",
                vec![Block::table(["from", "to", "share", "lift"], rows.collect())],
            ));
        }
        sections.push(self.listed());
        if !self.notes.is_empty() {
            let notes = self.notes.iter().map(|note| line_safe(note)).collect();
            sections.push(Section::new("notes", "Notes", "", vec![Block::List(notes)]));
        }
        sections.push(Section::new("repeat", "Command", "", vec![Block::Code(command.to_owned())]));
        let rows = self.rows_drawn.map_or("all".to_owned(), count);
        let tile = |figure: String, label: &str| Tile { figure, label: label.to_owned() };
        let page = Page {
            title: format!("Attention between the blocks of {}", shortened(&self.id, 80)),
            kicker: format!(
                "longsift map · {} · {} row {}",
                self.pipeline, self.input_file, self.input_row
            ),
            lead: format!("{}, kernel {}.", capitalised(&self.measured()), self.kernel),
            tiles: vec![
                tile(count(self.tokens), "tokens"),
                tile(count(self.blocks.len() as u64), "blocks"),
                tile(rows, "rows measured"),
                tile(bytes(self.memory_bytes), "peak memory"),
                tile(format!("{:.2} s", self.seconds), "measurement time"),
            ],
            sections,
        };
        page.html()
    }

    fn listed(&self) -> Section {
        let line = |(index, block): (usize, &super::Block)| {
            let tokens = format!("tokens {} to {}", count(block.start), count(block.end));
            let text = block
                .text
                .as_deref()
                .map_or_else(String::new, |text| format!(": {}", visible(text)));
            format!("{} · {tokens}{text}", self.name(index))
        };
        let lines = self.blocks.iter().enumerate().take(MAX_LISTED).map(line).collect();
        let mut blocks = vec![Block::List(lines)];
        if self.blocks.len() > MAX_LISTED {
            let more = count((self.blocks.len() - MAX_LISTED) as u64);
            blocks.push(Block::Note(format!("{more} more blocks are not listed.")));
        }
        Section::new("blocks", "Blocks", "", blocks)
    }

    fn drawn(&self) -> MergedBlocks {
        let together = self.blocks.len().div_ceil(MAX_CHART_BLOCKS);
        let starts: Vec<usize> = (0..self.blocks.len()).step_by(together.max(1)).collect();
        let of = |start: usize| start..self.blocks.len().min(start + together);
        let merged = |cells: &[Vec<Option<f64>>]| -> Vec<Vec<Option<f64>>> {
            let cell = |queries: usize, keys: usize| {
                let (mut sum, mut rows, mut any) = (0.0, 0.0, false);
                for query in of(queries) {
                    let tokens = (self.blocks[query].end - self.blocks[query].start) as f64;
                    let row = &cells[query];
                    if row.iter().any(Option::is_some) {
                        rows += tokens;
                    }
                    for key in of(keys) {
                        if let (Some(share), Some(_)) = (row[key], self.matrix.lift[query][key]) {
                            sum += tokens * share;
                            any = true;
                        }
                    }
                }
                (any && rows > 0.0).then(|| sum / rows)
            };
            starts
                .iter()
                .map(|query| starts.iter().map(|key| cell(*query, *key)).collect())
                .collect()
        };
        let (shares, uniform) =
            (merged(&self.matrix.block_attention), merged(&self.matrix.uniform_attention));
        let lift = shares.iter().zip(&uniform).map(|(shares, uniform)| {
            let cells = shares.iter().zip(uniform);
            cells.map(|(share, uniform)| Some((*share)? / (*uniform)?)).collect()
        });
        let name = |start: &usize| shortened(&self.name(*start), MAX_NAME_CHARACTERS);
        MergedBlocks {
            names: starts.iter().map(name).collect(),
            columns: starts.iter().map(usize::to_string).collect(),
            lift: lift.collect(),
            shares,
            together,
        }
    }
}

/// Replaces line breaks by signs.
fn visible(text: &str) -> String {
    text.replace("\r\n", "⏎ ").replace('\n', "⏎ ")
}

fn shortened(text: &str, most: usize) -> String {
    let text = line_safe(text);
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
