//! Kernel benchmarks, on one thread and on all threads.

use longsift_kernels::bench::BenchCase;
use longsift_kernels::{ElementType, Kernel};

use super::measurements::{BenchOptions, DEFAULT_REPEATS, Measurements};
use crate::base::text::count;

/// Key heads of the measured window. Cost is per head, so a few are representative.
const KEY_HEADS: usize = 2;
/// Query heads per key head, as in Llama 3.1 8B.
const GROUP: usize = 4;

/// Default time budget of all kernels in seconds; with overhead they finish in a minute.
const BUDGET_SECONDS: f64 = 45.0;

/// Tokens of the window from which a kernel's speed is estimated.
const PROBE_TOKENS: usize = 1024;

#[derive(Clone, Debug, PartialEq)]
struct RepeatedCase {
    case: BenchCase,
    /// Estimated duration of one repetition in seconds.
    seconds: f64,
    repeats: usize,
}

pub(super) fn measure(measurements: &mut Measurements<'_>) {
    let options = measurements.options;
    let kernels = chosen(options.all_kernels);
    let mut turns = Vec::new();
    for case in cases(options, &kernels, rayon::current_num_threads()) {
        let probe = BenchCase { tokens: PROBE_TOKENS, threads: 1, ..case };
        let seconds = probe.measure(1).seconds * case.pairs() / probe.pairs() / case.threads as f64;
        turns.push(RepeatedCase { case, seconds, repeats: 0 });
    }
    assign_repeats(options, &mut turns);
    let work = |turn: &RepeatedCase| (1e3 * turn.seconds * turn.repeats as f64) as u64;
    measurements.progress.phase("kernel", turns.iter().map(work).sum());
    for turn in turns.iter().filter(|turn| turn.repeats > 0) {
        let (case, speed) = (&turn.case, turn.case.measure(turn.repeats));
        let tokens = case.tokens as f64;
        let mut add = |group, value: f64, unit| {
            let at = (tokens, "tokens");
            measurements.add(group, series(case), at, value / speed.seconds, unit);
        };
        add("kernel", case.pairs(), "pairs/s");
        // Extrapolated to 32 query heads, the geometry of Llama 3.1 8B at a head width of 128.
        add("kernel, 32 heads", tokens * KEY_HEADS as f64 / 8.0, "tokens/s");
        measurements.progress.steps(work(turn));
    }
    for turn in turns.iter().filter(|turn| turn.repeats == 0) {
        measurements.left_out.push(format!(
            "{}, {} tokens: about {:.0} s; `--repeats 1` measures it",
            series(&turn.case),
            count(turn.case.tokens as u64),
            turn.seconds
        ));
    }
}

/// Returns the kernels that runs on this machine select; if `all`, followed by the others, the portable float32 kernel last.
fn chosen(all: bool) -> Vec<Kernel> {
    let mut chosen =
        [ElementType::F32, ElementType::Bf16, ElementType::Int16].map(Kernel::detect).to_vec();
    if all {
        chosen.extend(Kernel::ALL.iter().rev().filter(|kernel| kernel.is_supported()));
    }
    let mut seen = Vec::new();
    chosen.retain(|kernel| !seen.contains(kernel) && (seen.push(*kernel), true).1);
    chosen
}

fn cases(options: &BenchOptions, kernels: &[Kernel], all: usize) -> Vec<BenchCase> {
    let mut cases = Vec::new();
    for &kernel in kernels {
        for &head_dim in &options.head_dims {
            for threads in if all > 1 { vec![1, all] } else { vec![1] } {
                for &tokens in &options.windows {
                    cases.push(BenchCase {
                        kernel,
                        head_dim,
                        tokens,
                        key_heads: KEY_HEADS,
                        group: GROUP,
                        threads,
                    });
                }
            }
        }
    }
    cases
}

/// Distributes repetitions: as requested, or up to [`DEFAULT_REPEATS`] per case within [`BUDGET_SECONDS`]. Every case
/// gets its first repetition before any gets a second, fast ones first.
fn assign_repeats(options: &BenchOptions, turns: &mut [RepeatedCase]) {
    if let Some(repeats) = options.repeats.or(options.all_kernels.then_some(DEFAULT_REPEATS)) {
        for turn in turns {
            turn.repeats = repeats.max(1);
        }
        return;
    }
    let mut fastest: Vec<&mut RepeatedCase> = turns.iter_mut().collect();
    fastest.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let mut left = BUDGET_SECONDS;
    for _ in 0..DEFAULT_REPEATS {
        for turn in &mut fastest {
            if turn.seconds <= left {
                left -= turn.seconds;
                turn.repeats += 1;
            }
        }
    }
}

fn series(case: &BenchCase) -> String {
    let threads = match case.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    format!("{}, d={}, {threads}", case.kernel.name(), case.head_dim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Overrides;

    fn options(repeats: Option<usize>, all_kernels: bool) -> BenchOptions {
        BenchOptions {
            pipeline: None,
            overrides: Overrides::default(),
            windows: vec![4096, 8192, 16_384, 32_768],
            head_dims: vec![64, 128],
            repeats,
            all_kernels,
        }
    }

    /// Returns the turns of a processor with these speeds in pairs per second.
    fn turns(options: &BenchOptions, speeds: &[(Kernel, f64)]) -> Vec<RepeatedCase> {
        let kernels: Vec<Kernel> = speeds.iter().map(|(kernel, _)| *kernel).collect();
        let speed = |of: Kernel| speeds.iter().find(|(kernel, _)| *kernel == of).unwrap().1;
        let mut turns: Vec<RepeatedCase> = cases(options, &kernels, 2)
            .into_iter()
            .map(|case| {
                let seconds = case.pairs() / speed(case.kernel) / case.threads as f64;
                RepeatedCase { case, seconds, repeats: 0 }
            })
            .collect();
        assign_repeats(options, &mut turns);
        turns
    }

    fn seconds(turns: &[RepeatedCase]) -> f64 {
        turns.iter().map(|turn| turn.seconds * turn.repeats as f64).sum()
    }

    #[test]
    fn selected_kernels_come_first_and_the_portable_one_last() {
        let chosen_by_runs = chosen(false);
        assert_eq!(chosen_by_runs[0], Kernel::detect(ElementType::F32));
        assert!(chosen_by_runs.contains(&Kernel::detect(ElementType::Bf16)));
        assert!(chosen_by_runs.contains(&Kernel::detect(ElementType::Int16)));
        let all = chosen(true);
        assert!(all.starts_with(&chosen_by_runs));
        let supported = Kernel::ALL.iter().filter(|kernel| kernel.is_supported()).count();
        assert_eq!(all.len(), supported);
        assert_eq!(all.last(), Some(&Kernel::PortableF32));
    }

    #[test]
    fn kernels_take_less_than_a_minute_at_any_speed() {
        for speed in [5e7, 4e8, 2e9, 1e11] {
            let turns = turns(&options(None, false), &[(Kernel::PortableF32, speed)]);
            assert!(seconds(&turns) <= BUDGET_SECONDS, "{turns:?}");
            assert!(
                turns.iter().filter(|turn| turn.case.tokens == 4096).all(|turn| turn.repeats > 0)
            );
        }
        let quick = turns(&options(None, false), &[(Kernel::Avx2F32, 1e11)]);
        assert!(quick.iter().all(|turn| turn.repeats == DEFAULT_REPEATS));
    }

    #[test]
    fn long_windows_of_slow_kernels_are_skipped_first() {
        let turns = turns(&options(None, false), &[(Kernel::PortableF32, 8e7)]);
        let left_out: Vec<usize> =
            turns.iter().filter(|turn| turn.repeats == 0).map(|turn| turn.case.tokens).collect();
        assert!(
            !left_out.is_empty() && left_out.iter().all(|tokens| *tokens >= 16_384),
            "{turns:?}"
        );
    }

    #[test]
    fn cases_have_the_requested_repetitions() {
        let speeds = [(Kernel::Avx2F32, 1e9), (Kernel::PortableF32, 1e7)];
        for (options, repeats) in
            [(options(Some(2), false), 2), (options(None, true), DEFAULT_REPEATS)]
        {
            assert!(turns(&options, &speeds).iter().all(|turn| turn.repeats == repeats));
        }
    }
}
