//! `CUDA_VISIBLE_DEVICES`: the GPUs that a program may use, and their order.

use super::nvml::{self, NvmlGpu};

/// Returns the indexes in `uuids` (ordered by PCI bus) of the visible GPUs, in the order of `cuda:0`, `cuda:1`, …
///
/// Entries are numbers or prefixes of UUIDs. As in CUDA, the first entry that is invalid or repeated ends the list.
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

/// Lists the GPUs that this process may use, in CUDA's order.
///
/// # Errors
/// The driver is missing or does not respond.
pub fn visible_gpus() -> Result<Vec<NvmlGpu>, String> {
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    if variable.as_deref() == Some("") {
        return Ok(Vec::new());
    }
    let gpus = nvml::gpus()?;
    let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid).collect();
    Ok(visible(variable.as_deref(), &uuids).into_iter().map(|index| gpus[index]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUIDS: [&str; 4] = ["GPU-aa01", "GPU-aa02", "GPU-bb03", "GPU-cc04"];

    #[test]
    fn all_gpus_are_visible_without_the_variable_and_none_if_it_is_empty() {
        assert_eq!(visible(None, &UUIDS), [0, 1, 2, 3]);
        assert!(visible(Some(""), &UUIDS).is_empty());
        assert!(visible(Some("-1"), &UUIDS).is_empty());
    }

    #[test]
    fn numbers_and_uuid_prefixes_set_the_order() {
        assert_eq!(visible(Some("2,0"), &UUIDS), [2, 0]);
        assert_eq!(visible(Some("GPU-cc, GPU-aa02,1"), &UUIDS), [3, 1]);
    }

    #[test]
    fn first_invalid_entry_ends_the_list() {
        assert_eq!(visible(Some("1,9,0"), &UUIDS), [1]);
        assert_eq!(visible(Some("0,0,1"), &UUIDS), [0]);
        assert_eq!(visible(Some("3,GPU-aa,0"), &UUIDS), [3], "the prefix matches two GPUs");
    }
}
