//! Data of a page's what-if panel: samples counted in cells of the two components of a score, so that any weight
//! between them and any share can be tried without the samples.
//!
//! One component is the terms of the first measure, the other is all other terms: their sum or their minimum. A score
//! of one measure has one component.

use longsift_stages::score::terms::Combine;
use serde::Serialize;

use super::bins::{BinScale, shifted};
use super::cells::{Cells, Sum};
use crate::report::amount::Amount;

/// Cells per axis with two components and with one.
const BINS_OF_TWO: i64 = 64;
const BINS_OF_ONE: i64 = 4096;

/// Maximum number of cells of all groups of a page; beyond it cells are merged.
const MAX_CELLS: usize = 20_000;

/// Component of each term.
#[derive(Clone, Debug)]
pub(super) struct Components {
    combine: Combine,
    /// By term, whether it belongs to the first measure.
    first: Vec<bool>,
}

impl Components {
    /// Groups terms by measure. `measures`: the measure of each term's statistic.
    pub(super) fn new(combine: Combine, measures: &[Option<&str>]) -> Self {
        let first = measures.iter().map(|measure| *measure == measures[0]).collect();
        Self { combine, first }
    }

    /// Returns whether there is a second component.
    pub(super) fn has_two(&self) -> bool {
        self.first.contains(&false)
    }

    /// Returns by term whether it belongs to the first component.
    pub(super) fn first(&self) -> &[bool] {
        &self.first
    }

    /// Returns the components of a sample with these terms.
    pub(super) fn values(&self, terms: impl Iterator<Item = f64>) -> (f64, f64) {
        let (neutral, add): (f64, fn(f64, f64) -> f64) = match self.combine {
            Combine::Sum => (0.0, |sum, term| sum + term),
            Combine::Least => (f64::INFINITY, f64::min),
        };
        let (mut x, mut y) = (neutral, neutral);
        for (term, first) in terms.zip(&self.first) {
            let component = if *first { &mut x } else { &mut y };
            *component = add(*component, term);
        }
        (x, if self.has_two() { y } else { 0.0 })
    }
}

/// Samples of a cell: those that pass the guards, and those that a guard rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    passing: Amount,
    refused: Amount,
}

impl Sum for Cell {
    const NONE: Self = Self { passing: Amount::NONE, refused: Amount::NONE };

    fn sum(&mut self, other: Self) {
        self.passing.add(other.passing);
        self.refused.add(other.refused);
    }
}

/// Samples of a group, by cell.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    axes: [BinScale; 2],
    cells: Cells<(i64, i64), Cell>,
}

/// A grid, as serialized for the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct GridCells {
    /// Lower bound of bin 0 and width of a bin, by axis.
    from: [f64; 2],
    width: [f64; 2],
    /// Six numbers per cell: its two bins, samples and tokens that pass the guards, samples and tokens that a guard
    /// rejects.
    numbers: Vec<u64>,
}

impl Grid {
    pub(super) fn new(components: &Components) -> Self {
        let (x, y) =
            if components.has_two() { (BINS_OF_TWO, BINS_OF_TWO) } else { (BINS_OF_ONE, 1) };
        Self { axes: [BinScale::new(x), BinScale::new(y)], cells: Cells::new() }
    }

    /// Counts a sample with these components.
    pub(super) fn add(&mut self, (x, y): (f64, f64), refused: bool, amount: Amount) {
        if !x.is_finite() || !y.is_finite() {
            return;
        }
        let ((x, x_wider), (y, y_wider)) = (self.axes[0].add(x), self.axes[1].add(y));
        self.widen(x_wider, y_wider);
        let mut cell = Cell::NONE;
        *if refused { &mut cell.refused } else { &mut cell.passing } = amount;
        self.cells.add((x, y), cell);
    }

    /// Adds the cells of another.
    pub(super) fn append(&mut self, other: &Self) {
        let (own_x, x) = self.axes[0].join(&other.axes[0]);
        let (own_y, y) = self.axes[1].join(&other.axes[1]);
        self.widen(own_x, own_y);
        self.cells.append(&other.cells, |at| (shifted(at.0, x), shifted(at.1, y)));
    }

    fn widen(&mut self, x: u32, y: u32) {
        if x > 0 || y > 0 {
            self.cells.merge(|at| (shifted(at.0, x), shifted(at.1, y)));
        }
    }

    fn halve(&mut self) {
        let wider = [self.axes[0].halve(), self.axes[1].halve()];
        self.widen(wider[0], wider[1]);
    }

    /// Returns the cells; `None` without samples.
    pub(super) fn cells(&mut self) -> Option<GridCells> {
        let ((x, _), (y, _)) = (self.axes[0].range()?, self.axes[1].range()?);
        let numbers = |(at, cell): &((i64, i64), Cell)| {
            let Cell { passing, refused } = *cell;
            let bins = [(at.0 - x) as u64, (at.1 - y) as u64];
            let amounts = [passing.samples, passing.tokens, refused.samples, refused.tokens];
            [bins[0], bins[1], amounts[0], amounts[1], amounts[2], amounts[3]]
        };
        Some(GridCells {
            from: [self.axes[0].value(x), self.axes[1].value(y)],
            width: [self.axes[0].width(), self.axes[1].width()],
            numbers: self.cells.compacted().iter().flat_map(numbers).collect(),
        })
    }
}

/// Merges cells until those of all groups fit on a page.
pub(super) fn limit_cells(grids: &mut [&mut Grid]) {
    while grids.iter_mut().map(|grid| grid.cells.compacted().len()).sum::<usize>() > MAX_CELLS {
        for grid in &mut *grids {
            grid.halve();
        }
    }
}

impl GridCells {
    /// Estimates a selection of the best `share` of `counted` samples: kept samples and tokens, and the lowest kept
    /// score, accurate to a cell. The panel shows it before anything is moved.
    pub(crate) fn kept(
        &self,
        combine: Combine,
        two: bool,
        share: f64,
        counted: u64,
    ) -> (Amount, f64) {
        let middle =
            |axis: usize, bin: u64| self.from[axis] + (bin as f64 + 0.5) * self.width[axis];
        let score = |cell: &[u64]| {
            let (x, y) = (middle(0, cell[0]), middle(1, cell[1]));
            match combine {
                _ if !two => x,
                Combine::Sum => x + y,
                Combine::Least => x.min(y),
            }
        };
        let mut cells: Vec<(f64, &[u64])> =
            self.numbers.chunks_exact(6).map(|cell| (score(cell), cell)).collect();
        cells.sort_by(|one, other| other.0.total_cmp(&one.0));
        let wanted = (share * counted as f64).floor() as u64;
        let (mut kept, mut edge) = (Amount::default(), f64::NAN);
        for (score, cell) in cells {
            let left = wanted - kept.samples;
            if left == 0 {
                break;
            }
            let samples = cell[2].min(left);
            if samples > 0 {
                let tokens =
                    (u128::from(cell[3]) * u128::from(samples) / u128::from(cell[2])) as u64;
                kept.add(Amount { samples, tokens });
                edge = score;
            }
        }
        (kept, edge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Amount = Amount { samples: 1, tokens: 10 };

    fn grid(components: &Components, samples: std::ops::Range<u32>) -> Grid {
        let mut grid = Grid::new(components);
        for sample in samples {
            let terms = [0.1, 0.7].map(|factor| (f64::from(sample) * factor).sin());
            grid.add(components.values(terms.into_iter()), sample % 10 == 0, SAMPLE);
        }
        grid
    }

    #[test]
    fn shares_are_accurate_to_a_cell_and_independent_of_parts() {
        for combine in [Combine::Sum, Combine::Least] {
            for measures in [[Some("a"), Some("b")], [Some("a"), Some("a")]] {
                let components = Components::new(combine, &measures);
                let whole = grid(&components, 0..5000).cells().unwrap();
                let mut parts = grid(&components, 1700..5000);
                parts.append(&grid(&components, 0..1700));
                assert_eq!(parts.cells().unwrap(), whole);
                let mut scores: Vec<f64> = (0..5000_u32)
                    .filter(|sample| sample % 10 != 0)
                    .map(|sample| {
                        let [x, y] = [0.1, 0.7].map(|factor| (f64::from(sample) * factor).sin());
                        if combine == Combine::Sum { x + y } else { x.min(y) }
                    })
                    .collect();
                scores.sort_by(|one, other| other.total_cmp(one));
                for share in [0.01, 0.25, 0.5] {
                    let (kept, edge) = whole.kept(combine, components.has_two(), share, 5000);
                    let wanted = (share * 5000.0) as usize;
                    assert_eq!(kept, Amount { samples: wanted as u64, tokens: 10 * wanted as u64 });
                    let width = whole.width[0] + whole.width[1];
                    assert!((edge - scores[wanted - 1]).abs() < 2.0 * width, "{combine:?} {share}");
                }
                let (all, _) = whole.kept(combine, components.has_two(), 1.0, 5000);
                assert_eq!(all.samples, 4500, "a guard refuses a tenth");
            }
        }
    }

    #[test]
    fn the_cells_of_many_groups_are_bounded() {
        let components = Components::new(Combine::Sum, &[Some("a"), Some("b")]);
        let mut grids: Vec<Grid> = (0..40).map(|_| grid(&components, 0..20_000)).collect();
        limit_cells(&mut grids.iter_mut().collect::<Vec<_>>());
        let cells = grids.iter_mut().map(|grid| grid.cells.compacted().len());
        assert!(cells.sum::<usize>() <= MAX_CELLS);
        let numbers = grids[7].cells().unwrap().numbers;
        let samples = numbers.chunks_exact(6).map(|cell| cell[2] + cell[4]).sum::<u64>();
        assert_eq!(samples, 20_000);
    }
}
