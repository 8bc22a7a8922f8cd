//! Windows of an evaluation for one length: their documents, offsets and kinds.

use schemars::JsonSchema;
use serde::Serialize;

use super::constructions::{Base, KINDS, KindRole, WindowKind};
use super::sample::EvaluatedDocument;
use crate::base::random::{Rng, key};

/// Maximum number of base windows of a document, which are spread over it.
pub(crate) const WINDOWS_PER_DOCUMENT: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(into = "String")]
#[schemars(with = "String", rename = "Tokens", extend("pattern" = "^S[0-9]+$"))]
pub(crate) struct WindowLength(pub(crate) u64);

/// Returns the key in results: `S2048`.
impl From<WindowLength> for String {
    fn from(length: WindowLength) -> Self {
        format!("S{}", length.0)
    }
}

/// Sampled documents of a category, in sample order.
#[derive(Clone, Debug)]
pub(crate) struct Category<'a> {
    /// Value of the category column; empty without one.
    pub(crate) name: &'a str,
    pub(crate) index: usize,
    /// Documents, each at least as long as a window.
    pub(crate) documents: &'a [EvaluatedDocument],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowOrigin {
    pub(crate) category: usize,
    /// Index of its base document in the category.
    pub(crate) document: usize,
    /// First token of its base in the document.
    pub(crate) start: usize,
    /// Index into [`KINDS`].
    pub(crate) kind: usize,
}

impl WindowOrigin {
    pub(crate) fn kind(&self) -> &'static WindowKind {
        &KINDS[self.kind]
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.kind().role == KindRole::Whole
    }

    pub(crate) fn same_base(&self, other: &Self) -> bool {
        let base = |origin: &Self| (origin.category, origin.document, origin.start);
        base(self) == base(other)
    }
}

/// Returns the maximum number of windows of a document: fewer long ones, because these contain more text.
pub(crate) fn windows_per_document(tokens: usize) -> usize {
    match tokens {
        0..=4_096 => 8,
        4_097..=16_384 => 4,
        _ => 2,
    }
}

/// Returns the offsets of at most `max` windows of a document, ascending and spread over it.
pub(crate) fn starts(
    tokens: usize,
    window_tokens: usize,
    max: usize,
) -> impl Iterator<Item = usize> {
    let whole = tokens / window_tokens;
    let windows = whole.min(max);
    (0..windows).map(move |window| window * whole / windows * window_tokens)
}

/// Returns all windows of a category and length, ordered by document, offset and kind. `kinds` decides which are
/// built. Every kind draws its own random numbers, so that kinds do not affect each other.
pub(crate) fn windows<'a>(
    category: &'a Category<'a>,
    window_tokens: usize,
    seed: u64,
    kinds: impl Fn(&WindowKind) -> bool + Copy + 'a,
) -> impl Iterator<Item = (WindowOrigin, Vec<u32>)> + 'a {
    category.documents.iter().enumerate().flat_map(move |(document, base)| {
        let others = category.documents.iter().enumerate();
        let others: Vec<&[u32]> = others
            .filter(|(other, _)| *other != document)
            .map(|(_, other)| &other.ids[..])
            .collect();
        starts(base.ids.len(), window_tokens, WINDOWS_PER_DOCUMENT).flat_map(move |start| {
            let window = &base.ids[start..start + window_tokens];
            let others = others.clone();
            let text = start.to_string();
            let build = move |(index, kind): (usize, &WindowKind)| {
                let rng = key(seed, &[category.name, &base.id, &text, kind.key()]);
                let ids = (kind.construct)(&Base { window, others: &others }, &mut Rng::new(rng))?;
                Some((WindowOrigin { category: category.index, document, start, kind: index }, ids))
            };
            KINDS.iter().enumerate().filter(move |(_, kind)| kinds(kind)).filter_map(build)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(documents: &[(&str, usize)]) -> Vec<EvaluatedDocument> {
        let document = |(id, tokens): &(&str, usize)| {
            let ids = (0..*tokens as u32).map(|id| id + 1000 * u32::from(id.is_multiple_of(7)));
            let ids = ids.collect();
            EvaluatedDocument { id: (*id).into(), ids, ..EvaluatedDocument::default() }
        };
        documents.iter().map(document).collect()
    }

    fn built(
        of: &[(&str, usize)],
        tokens: usize,
        seed: u64,
        kinds: impl Fn(&WindowKind) -> bool + Copy,
    ) -> Vec<(WindowOrigin, Vec<u32>)> {
        let documents = documents(of);
        let category = Category { name: "a", index: 3, documents: &documents };
        windows(&category, tokens, seed, kinds).collect()
    }

    #[test]
    fn windows_are_spread_over_the_document() {
        let starts = |tokens| super::starts(tokens, 10, 4).collect::<Vec<_>>();
        assert_eq!(starts(9), [0; 0]);
        assert_eq!(starts(10), [0]);
        assert_eq!(starts(39), [0, 10, 20]);
        assert_eq!(starts(59), [0, 10, 20, 30]);
        assert_eq!(starts(119), [0, 20, 50, 80]);
        assert_eq!(super::starts(119, 10, 2).collect::<Vec<_>>(), [0, 50]);
    }

    #[test]
    fn kinds_without_enough_other_documents_are_skipped() {
        let names = |of: &[(&str, usize)]| {
            built(of, 384, 1, |_| true)
                .iter()
                .map(|(origin, _)| origin.kind().name)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(&[("x", 400)]),
            [
                "whole",
                "far_permute",
                "chunk_shuffle",
                "token_shuffle",
                "dup",
                "rep",
                "boil_far",
                "boil_near",
                "header",
                "boil_jit",
                "header_jit",
                "dup_indel"
            ]
        );
        let two = names(&[("x", 400), ("y", 384)]);
        assert_eq!(two.len(), 2 * 16, "all but four and eight pieces");
        assert!(!two.contains(&"pieces_4") && two.contains(&"pieces_2"));
    }

    #[test]
    fn kinds_do_not_affect_each_other() {
        let of = [("x", 700), ("y", 400), ("z", 500)];
        let all = built(&of, 200, 3, |_| true);
        let alone = built(&of, 200, 3, |kind| kind.name == "far_swap");
        assert!(!alone.is_empty());
        assert!(alone.iter().all(|window| all.contains(window)));
        assert_ne!(alone, built(&of, 200, 4, |kind| kind.name == "far_swap"), "another seed");
    }

    #[test]
    fn every_window_has_as_many_tokens_as_its_base() {
        // Odd lengths, and the minimum lengths of kinds.
        for tokens in [1, 2, 15, 16, 17, 31, 32, 33, 100, 383, 384, 385, 1001] {
            for (origin, ids) in built(&[("d", tokens + 3); 9], tokens, 1, |_| true) {
                assert_eq!(ids.len(), tokens, "{}", origin.kind().name);
            }
        }
    }

    #[test]
    fn twins_of_planted_windows_have_the_same_tokens() {
        let all = built(&[("x", 400), ("y", 500)], 384, 1, |kind| kind.key() == "plant");
        assert_eq!(all.len(), 2 * 2);
        for pair in all.chunks(2) {
            let [(planted, ids), (twin, others)] = pair else {
                panic!("expected a window and its twin")
            };
            assert!(planted.same_base(twin));
            let sorted = |ids: &Vec<u32>| {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids
            };
            assert_ne!(ids, others);
            assert_eq!(sorted(ids), sorted(others));
        }
    }
}
