//! The kernels alone, on one thread and on all, beside the processor's limits in the same run.

use longsift_kernels::Kernel;
use longsift_kernels::bench::Case;

use super::{BenchOptions, Figure, Figures};

/// Key heads of the measured window: what is a head's is paid per head, so a few stand for all.
const KEY_HEADS: usize = 2;

pub(super) fn measure(options: &BenchOptions, figures: &mut Figures<'_>) {
    let all = rayon::current_num_threads();
    for &kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_supported()) {
        for &head_dim in &options.head_dims {
            for threads in if all > 1 { vec![1, all] } else { vec![1] } {
                for &tokens in &options.windows {
                    let case = Case { kernel, head_dim, tokens, key_heads: KEY_HEADS, threads };
                    one(&case, options.repeats, figures);
                }
            }
        }
    }
}

fn one(case: &Case, repeats: usize, figures: &mut Figures<'_>) {
    let speed = case.measure(repeats);
    let threads = match case.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    let series = format!("{}, d={}, {threads}", case.kernel.name(), case.head_dim);
    let mut add = |group, value, unit| {
        let (series, at) = (series.clone(), case.tokens as f64);
        figures.add(Figure { group, series, at, at_unit: "tokens", value, unit });
    };
    add("kernel", case.pairs() / speed.seconds, "pairs/s");
    // A table of 32 query heads, the geometry of Llama 3.1 8B at a head width of 128.
    add(
        "kernel, 32 heads",
        case.tokens as f64 * KEY_HEADS as f64 / 8.0 / speed.seconds,
        "tokens/s",
    );
    add("kernel, of limit", 100.0 * speed.share, "%");
}
