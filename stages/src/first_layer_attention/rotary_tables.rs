//! Cache of rotary tables, shared by the windows of a run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longsift_kernels::{Rope, Rotation};

/// Maximum number of cached tables: more than one is needed only if frequencies depend on the length of the window.
const MAX_TABLES: usize = 4;

/// Rotary tables in use. A table serves every window with the same frequencies that is not longer.
#[derive(Debug, Default)]
pub(super) struct RotaryTables {
    /// Each with its rotation and its length in tokens.
    kept: Mutex<Vec<(Rotation, usize, Arc<Rope>)>>,
}

impl RotaryTables {
    /// Returns a cached table of `rotation` for windows of `tokens` tokens, or the result of `build` for `longest` tokens. No
    /// lock is held meanwhile, since threads of the pool may request a table; several threads may each build it.
    pub(super) fn get(
        &self,
        rotation: &Rotation,
        tokens: usize,
        longest: usize,
        build: impl FnOnce(&Rotation, usize) -> Rope,
    ) -> Arc<Rope> {
        if let Some(rope) = find(&self.lock(), rotation, tokens) {
            return rope;
        }
        let length = tokens.max(longest);
        let rope = Arc::new(build(rotation, length));
        let mut kept = self.lock();
        if let Some(rope) = find(&kept, rotation, tokens) {
            return rope;
        }
        if kept.len() == MAX_TABLES {
            kept.remove(0);
        }
        kept.push((rotation.clone(), length, Arc::clone(&rope)));
        rope
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Rotation, usize, Arc<Rope>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(
    kept: &[(Rotation, usize, Arc<Rope>)],
    rotation: &Rotation,
    tokens: usize,
) -> Option<Arc<Rope>> {
    let fits = |(known, length, _): &&(_, usize, _)| known == rotation && *length >= tokens;
    kept.iter().find(fits).map(|(_, _, rope)| Arc::clone(rope))
}

#[cfg(test)]
mod tests {
    use longsift_kernels::RopeStyle;

    use super::*;

    fn rotation(frequency: f32) -> Rotation {
        let style = RopeStyle::Half;
        Rotation { style, inverse_frequencies: vec![frequency], attention_factor: 1.0 }
    }

    fn built(rotation: &Rotation, tokens: usize) -> Rope {
        rotation.table(tokens)
    }

    fn never(_: &Rotation, _: usize) -> Rope {
        panic!("a cached table is long enough")
    }

    #[test]
    fn no_lock_is_held_while_a_table_is_built() {
        let tables = RotaryTables::default();
        // Simulates a pool thread that starts another window while this one waits.
        let inner = rotation(0.25);
        tables.get(&rotation(0.5), 8, 8, |outer, length| {
            tables.get(&inner, 4, 4, built);
            built(outer, length)
        });
        tables.get(&inner, 4, 4, never);
        tables.get(&rotation(0.5), 8, 8, never);
    }

    #[test]
    fn a_table_serves_shorter_windows_of_its_frequencies() {
        let tables = RotaryTables::default();
        let long = tables.get(&rotation(0.5), 3, 100, built);
        assert!(Arc::ptr_eq(&long, &tables.get(&rotation(0.5), 100, 100, never)));
        assert!(!Arc::ptr_eq(&long, &tables.get(&rotation(0.5), 101, 100, built)));
        assert!(!Arc::ptr_eq(&long, &tables.get(&rotation(0.25), 3, 100, built)));
    }

    #[test]
    fn the_oldest_table_is_evicted() {
        let tables = RotaryTables::default();
        for frequency in 1..=MAX_TABLES as u8 + 1 {
            tables.get(&rotation(f32::from(frequency)), 2, 2, built);
        }
        let mut built_again = false;
        tables.get(&rotation(1.0), 2, 2, |rotation, tokens| {
            built_again = true;
            built(rotation, tokens)
        });
        assert!(built_again);
        assert_eq!(tables.lock().len(), MAX_TABLES);
    }
}
