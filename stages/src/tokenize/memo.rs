//! Cache of a thread's encoded parts: most parts of a text have occurred before.

use hashbrown::HashMap;

/// Token of a part: its id, and the byte of the part at which it ends.
pub(super) type PartToken = (u32, u32);

/// Maximum length of a cached part, in bytes.
const MAX_PART_BYTES: usize = 128;
/// Maximum number of cached parts: about 8 MB.
const MAX_PARTS: usize = 1 << 16;

/// Tokens of parts; forgets all when it is full.
#[derive(Debug, Default)]
pub(super) struct Memo(HashMap<Box<str>, Box<[PartToken]>>);

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
        } else if let Some(tokens) = self.0.get(part) {
            take(tokens);
        } else {
            let tokens = encode()?;
            take(&tokens);
            if self.0.len() == MAX_PARTS {
                self.0.clear();
            }
            self.0.insert(part.into(), tokens.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_parts_are_cached_until_the_cache_is_full() {
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
        for number in 0..MAX_PARTS {
            tokens(number.to_string());
        }
        assert_eq!(tokens("0".to_owned()), MAX_PARTS);
        assert_eq!(tokens("other".to_owned()), MAX_PARTS + 1);
        assert_eq!(tokens("other".to_owned()), MAX_PARTS + 1);
        assert_eq!(tokens("0".to_owned()), MAX_PARTS + 2, "the cache was full");
        for again in 3..=4 {
            let long = "x".repeat(MAX_PART_BYTES + 1);
            assert_eq!(tokens(long), MAX_PARTS + again, "long parts are not kept");
        }
    }
}
