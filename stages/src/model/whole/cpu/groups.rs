//! Groups of sequences that run in parallel.

/// Returns how many consecutive states of these lengths run through a layer in parallel: no group of several is longer than
/// `max`, by default the longest state.
pub(super) fn parallel_groups(lengths: &[usize], max: Option<usize>) -> Vec<usize> {
    let max = max.or_else(|| lengths.iter().copied().max()).unwrap_or(0);
    let mut groups: Vec<(usize, usize)> = Vec::new();
    for length in lengths {
        match groups.last_mut() {
            Some((count, total)) if *total + length <= max => {
                (*count, *total) = (*count + 1, *total + length);
            }
            _ => groups.push((1, *length)),
        }
    }
    groups.into_iter().map(|(count, _)| count).collect()
}

#[cfg(test)]
mod tests {
    use super::parallel_groups;

    #[test]
    fn parallel_states_are_no_longer_than_the_longest() {
        assert_eq!(parallel_groups(&[8, 3, 3, 3, 8, 1], None), [1, 2, 1, 1, 1]);
        assert_eq!(parallel_groups(&[8, 4, 4, 4, 1, 1], None), [1, 2, 3]);
        assert_eq!(parallel_groups(&[9, 2, 2, 1], Some(4)), [1, 2, 1]);
        assert_eq!(parallel_groups(&[2, 2], None), [1, 1]);
        assert!(parallel_groups(&[], None).is_empty());
    }
}
