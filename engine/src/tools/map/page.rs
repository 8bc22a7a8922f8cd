//! Map as sections of a page, which are also its text.

use std::fmt::Write;

use super::{MAX_MATRIX_BLOCKS, Map};
use crate::base::text::{bytes, count, line_safe};
use crate::report::page::heat::{ColourScale, HeatMap};
use crate::report::page::{Block, KeyNumber, Page, SampleText, Section};

/// Maximum number of blocks in a chart; more are merged.
const MAX_CHART_BLOCKS: usize = 64;
const MAX_LISTED: usize = 64;
const MAX_PAIRS: usize = 24;
const MAX_NAME_CHARACTERS: usize = 22;

impl Map {
    /// Returns the sections. Text output shows the charts of few blocks, and the strongest pairs of many.
    pub(super) fn sections(&self) -> Vec<Section> {
        let together = self.blocks.len().div_ceil(MAX_CHART_BLOCKS).max(1);
        let [shares, lift] = self.heat_maps(together).map(Block::Heat);
        let mut lead =
            "Rows are queries, columns keys. Empty cells are not visible or not measured."
                .to_owned();
        if together > 1 {
            let _ = write!(
                lead,
                " {together} neighbouring blocks are drawn as one; all numbers are in `--parquet` and `--format json`."
            );
        }
        let lead_of = |what: &str| format!("{what} {lead}");
        let mut sections = vec![
            Section::new(
                "shares",
                "Share of attention",
                &lead_of("Share of a block's attention that goes to each block."),
                vec![shares],
            ),
            Section::new(
                "lift",
                "Lift over even attention",
                &lead_of(
                    "Share of attention relative to attention that is spread evenly over all visible tokens. Blue: more; orange: less.",
                ),
                vec![lift],
            ),
        ];
        let is_small = self.blocks.len() <= MAX_MATRIX_BLOCKS;
        for chart in &mut sections {
            chart.on_request = !is_small;
        }
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
            let mut pairs = Section::new(
                "pairs",
                "Strongest pairs",
                "Non-adjacent blocks with at least 1 % of the attention, by descending lift.",
                vec![Block::table(["from", "to", "share", "lift"], rows.collect())],
            );
            pairs.on_request = is_small;
            sections.push(pairs);
        }
        sections.push(self.listed().on_request());
        if !self.notes.is_empty() {
            let notes = self.notes.iter().map(|note| line_safe(note)).collect();
            sections.push(Section::new("notes", "Notes", "", vec![Block::List(notes)]));
        }
        sections
    }

    pub(crate) fn page(&self) -> Page {
        let rows = self.rows_drawn.map_or("all".to_owned(), count);
        Page {
            title: format!("Attention between the blocks of {}", shortened(&self.id, 80)),
            kicker: format!(
                "longsift map · {} · {} row {}",
                self.pipeline, self.input_file, self.input_row
            ),
            lead: format!("{}, kernel {}.", capitalised(&self.measured()), self.kernel),
            tiles: vec![
                KeyNumber::new(count(self.tokens), "tokens"),
                KeyNumber::new(count(self.blocks.len() as u64), "blocks"),
                KeyNumber::new(rows, "rows measured"),
                KeyNumber::new(bytes(self.memory_bytes), "peak memory"),
                KeyNumber::new(format!("{:.2} s", self.seconds), "measurement time"),
            ],
            sections: self.sections(),
        }
    }

    fn listed(&self) -> Section {
        let block = |(index, block): (usize, &super::MapBlock)| {
            let tokens = format!("tokens {} to {}", count(block.start), count(block.end));
            let title = format!("{} · {tokens}", self.name(index));
            match &block.text {
                Some(text) => Block::Sample(SampleText::passage(title, text)),
                None => Block::Note(title),
            }
        };
        let all = self.blocks.iter().enumerate().take(MAX_LISTED).map(block).collect();
        let mut blocks = vec![Block::details("Beginning of each block", false, all)];
        if self.blocks.len() > MAX_LISTED {
            let more = count((self.blocks.len() - MAX_LISTED) as u64);
            blocks.push(Block::Note(format!("{more} more blocks are not listed.")));
        }
        Section::new("blocks", "Blocks", "", blocks)
    }

    /// Returns the maps of shares and of lift, with `together` neighbouring blocks merged.
    fn heat_maps(&self, together: usize) -> [HeatMap; 2] {
        let starts: Vec<usize> = (0..self.blocks.len()).step_by(together).collect();
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
        let lift: Vec<Vec<Option<f64>>> = lift.collect();
        let scale = ColourScale::shares(shares.iter().flatten().flatten().copied());
        [(shares, scale), (lift, ColourScale::Lift)].map(|(cells, scale)| HeatMap {
            corner: "query ↓ key →".to_owned(),
            columns: starts.iter().map(usize::to_string).collect(),
            rows: starts
                .iter()
                .map(|start| shortened(&self.name(*start), MAX_NAME_CHARACTERS))
                .zip(cells)
                .collect(),
            scale,
        })
    }
}

fn shortened(text: &str, max: usize) -> String {
    let text = line_safe(text);
    if text.chars().count() <= max {
        return text;
    }
    text.chars().take(max - 1).chain(['…']).collect()
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
