//! Division of a document into blocks of tokens.

use longsift_kernels::{BlockShares, MAX_BLOCKS};
use serde::Serialize;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text::count;

/// Default number of blocks, for which a map is legible.
const DEFAULT_BLOCKS: usize = 64;
const MIN_BLOCK_TOKENS: usize = 16;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct BlockAttentionMatrix {
    /// First tokens of the blocks, and the end of the last.
    pub(crate) block_boundaries: Vec<u64>,
    /// `[blocks][blocks]`: mean attention of a token of the query block to all tokens of the key block; null without a row.
    pub(crate) block_attention: Vec<Vec<Option<f64>>>,
    /// `[blocks][blocks]`: the shares for attention that is spread evenly over all visible tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) uniform_attention: Vec<Vec<Option<f64>>>,
    /// Ratio of the two; null if no token of the key block is visible.
    pub(crate) lift: Vec<Vec<Option<f64>>>,
}

impl BlockAttentionMatrix {
    pub(crate) fn new(ends: &[usize], shares: &BlockShares) -> Self {
        let BlockShares { shares, uniform, .. } = shares;
        let rows = |cells: &[Option<f64>]| cells.chunks(ends.len()).map(<[_]>::to_vec).collect();
        let lift = |(share, uniform): (&Option<f64>, &Option<f64>)| {
            let uniform = uniform.filter(|uniform| *uniform > 0.0)?;
            Some((*share)? / uniform)
        };
        let lift: Vec<Option<f64>> = shares.iter().zip(uniform).map(lift).collect();
        Self {
            block_boundaries: [0].into_iter().chain(ends.iter().map(|end| *end as u64)).collect(),
            block_attention: rows(shares),
            uniform_attention: rows(uniform),
            lift: rows(&lift),
        }
    }
}

/// Returns the ends of blocks of equal length, by default about 64 of at least sixteen tokens; the last one may be shorter.
pub(crate) fn equal_ends(tokens: usize, each: Option<usize>) -> Result<Vec<usize>> {
    let each = each.unwrap_or(tokens.div_ceil(DEFAULT_BLOCKS).max(MIN_BLOCK_TOKENS));
    let blocks = tokens.div_ceil(each);
    if blocks > MAX_BLOCKS {
        let min = tokens.div_ceil(MAX_BLOCKS);
        let [tokens, blocks, max] = [tokens, blocks, MAX_BLOCKS].map(|number| count(number as u64));
        let message = format!(
            "{tokens} tokens in blocks of {each} are {blocks} blocks; a map has at most {max}"
        );
        let hint = format!("give `--block-tokens {min}` or more");
        return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
    }
    Ok((1..blocks).map(|block| block * each).chain([tokens]).collect())
}

/// Returns the first token that begins at or after a byte: a token begins where the one before it ends.
pub(super) fn token_at(ends: &[u32], byte: usize) -> usize {
    let ended = ends.partition_point(|end| *end as usize <= byte);
    let reached = ended.checked_sub(1).map_or(0, |last| ends[last] as usize);
    if reached == byte { ended } else { (ended + 1).min(ends.len()) }
}

/// Returns the ends of blocks that begin at `boundaries`, BOS not counted; the last one may be the end of the document.
pub(super) fn ends_at(boundaries: &[usize], tokens: usize) -> Result<Vec<usize>> {
    let mut problems = Vec::new();
    let mut wrong = |message: String, hint: String| {
        let message = format!("`--block-boundaries`: {message}");
        problems.push(Diagnostic::error(Blame::Pipeline, message).hint(hint));
    };
    if let Some(first) = boundaries.first().filter(|first| **first != 0) {
        let hint = "begin the list with 0: every token is in a block".to_owned();
        wrong(format!("expected 0 as the first boundary, got {first}"), hint);
    }
    for pair in boundaries.windows(2) {
        let (before, at) = (pair[0], pair[1]);
        if at == before {
            let hint = "leave one of them out: a block has at least one token".to_owned();
            wrong(format!("{at} is listed twice"), hint);
        } else if at < before {
            wrong(format!("{at} comes after {before}"), "sort the list".to_owned());
        }
    }
    if let Some(beyond) = boundaries.iter().find(|at| **at > tokens) {
        let hint = format!("the last boundary may be {tokens}, the document's end");
        let tokens = count(tokens as u64);
        wrong(format!("{beyond} is beyond the document, which has {tokens} tokens"), hint);
    }
    if !problems.is_empty() {
        return Err(problems.into());
    }
    let starts = boundaries.iter().copied().filter(|at| *at > 0 && *at < tokens);
    let ends: Vec<usize> = starts.chain([tokens]).collect();
    if ends.len() > MAX_BLOCKS {
        let blocks = count(ends.len() as u64);
        let message = format!("{blocks} blocks; a map has at most {}", count(MAX_BLOCKS as u64));
        let hint = "give fewer boundaries";
        return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_length_end_with_the_document() {
        assert_eq!(equal_ends(10, Some(4)).unwrap(), [4, 8, 10]);
        assert_eq!(equal_ends(10, Some(10)).unwrap(), [10]);
        assert_eq!(equal_ends(10, Some(1000)).unwrap(), [10]);
        assert_eq!(equal_ends(1, Some(1)).unwrap(), [1]);
        let many = equal_ends(131_072, Some(4)).unwrap_err().to_string();
        assert!(many.contains("131,072 tokens in blocks of 4 are 32,768 blocks"), "{many}");
    }

    #[test]
    fn default_blocks_are_legible() {
        assert_eq!(equal_ends(20, None).unwrap(), [16, 20]);
        assert_eq!(equal_ends(131_072, None).unwrap().len(), 64);
        assert!(equal_ends(5000, None).unwrap().len() <= 64);
    }

    #[test]
    fn all_tokens_of_a_character_are_before_the_byte_after_it() {
        let ends = [3, 7, 7, 7, 9];
        let starts: Vec<usize> = [0, 1, 3, 7, 8, 9].map(|byte| token_at(&ends, byte)).into();
        assert_eq!(starts, [0, 1, 1, 4, 5, 5]);
    }

    #[test]
    fn boundaries_ascend_from_0_and_may_include_the_end() {
        let of = |boundaries: &[usize]| ends_at(boundaries, 40).map_err(|of| of.to_string());
        assert_eq!(of(&[0, 10, 29]).unwrap(), [10, 29, 40]);
        assert_eq!(of(&[0, 10, 29, 40]).unwrap(), [10, 29, 40]);
        assert_eq!(of(&[0]).unwrap(), [40]);
        assert_eq!(of(&[0, 40]).unwrap(), [40]);
        assert!(of(&[5, 10]).unwrap_err().contains("first boundary, got 5"));
        let several = of(&[0, 30, 10, 10, 41]).unwrap_err();
        for part in ["10 comes after 30", "10 is listed twice", "41 is beyond the document"] {
            assert!(several.contains(part), "{several}");
        }
        let many: Vec<usize> = (0..2000).collect();
        assert!(ends_at(&many, 4000).unwrap_err().to_string().contains("2,000 blocks"));
    }
}
