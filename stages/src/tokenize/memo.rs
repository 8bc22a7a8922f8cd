//! Cache of a thread's encoded parts: most parts of a text have occurred before.

use hashbrown::HashMap;

/// Token of a part: its id, and the byte of the part at which it ends.
pub(super) type PartToken = (u32, u32);

/// Maximum length of a cached part, in bytes.
const MAX_PART_BYTES: usize = 128;
/// Maximum number of cached parts per generation: about 4 MB.
const MAX_PARTS: usize = 1 << 15;

/// Tokens of parts, in two generations: when one is full, parts that were not used for long are evicted.
#[derive(Debug, Default)]
pub(super) struct Memo {
    recent: HashMap<Box<str>, Box<[PartToken]>>,
    older: HashMap<Box<str>, Box<[PartToken]>>,
}

impl Memo {
    /// Passes the tokens of `part`, cached or from `encode`, to `take`.
    pub(super) fn tokens<E>(
        &mut self,
        part: &str,
        encode: impl FnOnce() -> Result<Vec<PartToken>, E>,
        take: impl FnOnce(&[PartToken]),
    ) -> Result<(), E> {
        if part.len() > MAX_PART_BYTES {
            take(&encode()?);
        } else if let Some(tokens) = self.recent.get(part) {
            take(tokens);
        } else {
            let (part, tokens) = match self.older.remove_entry(part) {
                Some(known) => known,
                None => (part.into(), encode()?.into()),
            };
            take(&tokens);
            if self.recent.len() == MAX_PARTS {
                self.older = std::mem::take(&mut self.recent);
            }
            self.recent.insert(part, tokens);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_parts_are_cached_and_old_ones_evicted() {
        let (mut memo, mut encoded) = (Memo::default(), 0);
        let mut tokens = |part: String| {
            let encode = || {
                encoded += 1;
                Ok::<_, ()>(vec![(u32::try_from(part.len()).unwrap(), 7)])
            };
            memo.tokens(&part, encode, |tokens| assert_eq!(tokens, [(part.len() as u32, 7)]))
                .unwrap();
            encoded
        };
        for number in 0..3 * MAX_PARTS {
            tokens("again".to_owned());
            tokens(number.to_string());
        }
        assert_eq!(tokens("again".to_owned()), 1 + 3 * MAX_PARTS);
        assert_eq!(tokens((3 * MAX_PARTS - 1).to_string()), 1 + 3 * MAX_PARTS);
        assert_eq!(tokens("0".to_owned()), 2 + 3 * MAX_PARTS, "the part was evicted");
        assert_eq!(tokens("x".repeat(MAX_PART_BYTES + 1)), 3 + 3 * MAX_PARTS);
        assert_eq!(
            tokens("x".repeat(MAX_PART_BYTES + 1)),
            4 + 3 * MAX_PARTS,
            "long parts are not kept"
        );
    }
}
