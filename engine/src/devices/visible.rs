//! `CUDA_VISIBLE_DEVICES`: which GPUs a program may use, and in which order it counts them.

use super::nvml::{self, Gpu};

/// Positions in `uuids` (ordered by PCI bus) of the GPUs that are visible, in the order in which `cuda:0`, `cuda:1`, …
/// count them. Entries are numbers or the beginnings of UUIDs; the first that names no GPU, or one that was named before,
/// ends the list, as in CUDA.
pub(super) fn visible(variable: Option<&str>, uuids: &[&str]) -> Vec<usize> {
    let Some(variable) = variable else { return (0..uuids.len()).collect() };
    let mut positions = Vec::new();
    for entry in variable.split(',') {
        match position(entry.trim(), uuids) {
            Some(position) if !positions.contains(&position) => positions.push(position),
            _ => break,
        }
    }
    positions
}

fn position(entry: &str, uuids: &[&str]) -> Option<usize> {
    if let Ok(number) = entry.parse::<usize>() {
        return (number < uuids.len()).then_some(number);
    }
    let mut matching = uuids.iter().enumerate().filter(|(_, uuid)| uuid.starts_with(entry));
    let first = matching.next().filter(|_| entry.starts_with("GPU-"))?;
    matching.next().is_none().then_some(first.0)
}

/// The GPUs that this process may use, in CUDA's order.
///
/// # Errors
/// Why there is none.
pub fn visible_gpus() -> Result<Vec<Gpu>, String> {
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    if variable.as_deref() == Some("") {
        return Ok(Vec::new());
    }
    let gpus = nvml::gpus()?;
    let uuids: Vec<&str> = gpus.iter().map(Gpu::uuid).collect();
    Ok(visible(variable.as_deref(), &uuids).into_iter().map(|index| gpus[index]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUIDS: [&str; 4] = ["GPU-aa01", "GPU-aa02", "GPU-bb03", "GPU-cc04"];

    #[test]
    fn without_the_variable_all_are_visible_and_an_empty_one_hides_all() {
        assert_eq!(visible(None, &UUIDS), [0, 1, 2, 3]);
        assert!(visible(Some(""), &UUIDS).is_empty());
        assert!(visible(Some("-1"), &UUIDS).is_empty());
    }

    #[test]
    fn numbers_and_beginnings_of_uuids_give_the_order() {
        assert_eq!(visible(Some("2,0"), &UUIDS), [2, 0]);
        assert_eq!(visible(Some("GPU-cc, GPU-aa02,1"), &UUIDS), [3, 1]);
    }

    #[test]
    fn the_first_entry_that_means_nothing_ends_the_list() {
        assert_eq!(visible(Some("1,9,0"), &UUIDS), [1]);
        assert_eq!(visible(Some("0,0,1"), &UUIDS), [0]);
        assert_eq!(visible(Some("3,GPU-aa,0"), &UUIDS), [3], "two GPUs begin like this");
    }
}
