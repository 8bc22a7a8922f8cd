//! Statistics as they are declared, and their values for one window.

use std::borrow::Cow;

/// A statistic. Tables, plan, calibration, terms, guards, output, report, evaluation and the manual read this
/// declaration; nothing else says what a statistic is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// `dependency_strength`: lower case, unique in a pipeline; `longsift_dependency_strength` in the output.
    pub name: Cow<'static, str>,
    /// What its values are.
    pub kind: Kind,
    /// `share`, `tokens`, `compressed bytes per byte`.
    pub unit: Cow<'static, str>,
    /// One sentence: for the manual, the field's metadata in Parquet, the report.
    pub doc: Cow<'static, str>,
    /// A document's value from those of its windows; `score.document_score` chooses another for all terms.
    pub merge: Merge,
    /// Whether more means more long-range. An evaluation negates `Lower`, reports colour by it; it chooses no sign of a
    /// term.
    pub orientation: Orientation,
    /// The statistic that holds its standard error, where rows are sampled.
    pub error: Option<&'static str>,
}

/// What the values of a statistic are. Only single numbers are terms of a score and guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Float64.
    Number,
    /// An Int64: below 2^63.
    Count,
    /// A list of Float64.
    Numbers,
}

/// How the values of a document's windows become the document's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Their mean, every window counting the same.
    Mean,
    /// The largest.
    Max,
    /// Their sum.
    Sum,
    /// The sum of one statistic of the measure over the sum of another: a mean over tokens, whatever windows they are in.
    Ratio {
        /// The statistic above.
        numerator: Cow<'static, str>,
        /// The statistic below.
        denominator: Cow<'static, str>,
        /// Whether it is e to the power of the ratio: a perplexity.
        exponential: bool,
    },
    /// The first: of statistics that are the document's own, so that all its windows have the same.
    First,
    /// There is none: lists are not merged.
    Never,
}

/// Whether more means more long-range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// More means more long-range.
    Higher,
    /// More means less long-range.
    Lower,
}

/// One measure's values for one window, in the order of its columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures(pub Vec<Value>);

/// The value of a statistic for one window.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// There is none: the window has nothing to take it of.
    Null,
    /// Of [`Kind::Number`].
    Number(f64),
    /// Of [`Kind::Count`]; below 2^63.
    Count(u64),
    /// Of [`Kind::Numbers`].
    Numbers(Vec<f64>),
}

impl Column {
    /// The same under names that begin with `prefix`.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Self {
        let named = |name: &str| Cow::Owned(format!("{prefix}_{name}"));
        self.name = named(&self.name);
        if let Merge::Ratio { numerator, denominator, exponential } = self.merge {
            let (numerator, denominator) = (named(&numerator), named(&denominator));
            self.merge = Merge::Ratio { numerator, denominator, exponential };
        }
        self
    }
}

impl Value {
    /// The number that terms and guards take it for; none for a null, a list, and what is not finite.
    pub fn finite(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number).filter(|number| number.is_finite()),
            Self::Count(count) => Some(*count as f64),
            Self::Null | Self::Numbers(_) => None,
        }
    }

    /// The numbers of a list; none of anything else.
    pub fn numbers(&self) -> &[f64] {
        match self {
            Self::Numbers(numbers) => numbers,
            Self::Null | Self::Number(_) | Self::Count(_) => &[],
        }
    }

    /// A number where there is one.
    pub fn number(number: Option<f64>) -> Self {
        number.map_or(Self::Null, Self::Number)
    }
}

/// The byte before each value in [`Figures::encode`].
mod tag {
    pub(super) const NULL: u8 = 0;
    pub(super) const NUMBER: u8 = 1;
    pub(super) const COUNT: u8 = 2;
    pub(super) const NUMBERS: u8 = 3;
}

impl Figures {
    /// Appends the values as the journal keeps them, bit for bit, `NaN`s too: a byte for what follows, then eight bytes
    /// little-endian, or four for the length of a list and eight for each number of it.
    pub fn encode(&self, into: &mut Vec<u8>) {
        for value in &self.0 {
            match value {
                Value::Null => into.push(tag::NULL),
                Value::Number(number) => {
                    into.push(tag::NUMBER);
                    into.extend(number.to_bits().to_le_bytes());
                }
                Value::Count(count) => {
                    into.push(tag::COUNT);
                    into.extend(count.to_le_bytes());
                }
                Value::Numbers(numbers) => {
                    let length = u32::try_from(numbers.len()).expect("lists are of heads or bins");
                    into.push(tag::NUMBERS);
                    into.extend(length.to_le_bytes());
                    into.extend(numbers.iter().flat_map(|number| number.to_bits().to_le_bytes()));
                }
            }
        }
    }

    /// What [`Figures::encode`] wrote of these columns; none where the bytes are anything else. Takes no more memory than
    /// the bytes have, whatever they say.
    pub fn decode(bytes: &[u8], columns: &[Column]) -> Option<Self> {
        let mut rest = bytes;
        let values = columns.iter().map(|column| Value::decode(&mut rest, column.kind));
        let values = values.collect::<Option<Vec<_>>>()?;
        rest.is_empty().then_some(Self(values))
    }
}

impl Value {
    fn decode(rest: &mut &[u8], kind: Kind) -> Option<Self> {
        let (&written, after) = rest.split_first()?;
        *rest = after;
        match (written, kind) {
            (tag::NULL, _) => Some(Self::Null),
            (tag::NUMBER, Kind::Number) => {
                Some(Self::Number(f64::from_bits(u64::from_le_bytes(take(rest)?))))
            }
            (tag::COUNT, Kind::Count) => Some(Self::Count(u64::from_le_bytes(take(rest)?))),
            (tag::NUMBERS, Kind::Numbers) => {
                let length = usize::try_from(u32::from_le_bytes(take(rest)?)).ok()?;
                let (numbers, after) = rest.split_at_checked(length.checked_mul(8)?)?;
                *rest = after;
                let number = |bytes: &[u8; 8]| f64::from_bits(u64::from_le_bytes(*bytes));
                Some(Self::Numbers(numbers.as_chunks().0.iter().map(number).collect()))
            }
            _ => None,
        }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(kind: Kind) -> Column {
        Column {
            name: "x".into(),
            kind,
            unit: "share".into(),
            doc: "a statistic".into(),
            merge: Merge::Mean,
            orientation: Orientation::Higher,
            error: None,
        }
    }

    fn encoded(values: &[Value]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Figures(values.to_vec()).encode(&mut bytes);
        bytes
    }

    /// Any value and a kind it may stand for; any bits of numbers.
    fn value() -> impl Strategy<Value = (Kind, Value)> {
        let number = || any::<u64>().prop_map(f64::from_bits);
        let kind = prop_oneof![Just(Kind::Number), Just(Kind::Count), Just(Kind::Numbers)];
        prop_oneof![
            kind.prop_map(|kind| (kind, Value::Null)),
            number().prop_map(|number| (Kind::Number, Value::Number(number))),
            any::<u64>().prop_map(|count| (Kind::Count, Value::Count(count))),
            prop::collection::vec(number(), 0..9)
                .prop_map(|numbers| (Kind::Numbers, Value::Numbers(numbers))),
        ]
    }

    fn columns(values: &[(Kind, Value)]) -> (Vec<Column>, Vec<Value>) {
        values.iter().map(|(kind, value)| (column(*kind), value.clone())).unzip()
    }

    proptest! {
        #[test]
        fn values_come_back_bit_for_bit(values in prop::collection::vec(value(), 0..6)) {
            let (columns, values) = columns(&values);
            let bytes = encoded(&values);
            let back = Figures::decode(&bytes, &columns).expect("these are the columns");
            prop_assert_eq!(encoded(&back.0), bytes, "NaN is equal to nothing, its bits are");
        }

        #[test]
        fn a_cut_or_longer_record_has_no_figures(
            values in prop::collection::vec(value(), 1..6), cut in any::<prop::sample::Index>(), more: u8,
        ) {
            let (columns, values) = columns(&values);
            let mut bytes = encoded(&values);
            prop_assert_eq!(Figures::decode(&bytes[..cut.index(bytes.len())], &columns), None);
            bytes.push(more);
            prop_assert_eq!(Figures::decode(&bytes, &columns), None);
        }

        #[test]
        fn any_bytes_are_figures_or_none(
            bytes in prop::collection::vec(prop_oneof![0_u8..5, any::<u8>()], 0..60),
            kinds in prop::collection::vec(value(), 0..4),
        ) {
            let (columns, _) = columns(&kinds);
            if let Some(figures) = Figures::decode(&bytes, &columns) {
                prop_assert_eq!(encoded(&figures.0), bytes, "one text for one meaning");
            }
        }
    }

    #[test]
    fn figures_of_other_columns_are_none() {
        let number = encoded(&[Value::Number(1.0)]);
        assert_eq!(Figures::decode(&number, &[column(Kind::Count)]), None);
        assert_eq!(Figures::decode(&number, &[column(Kind::Number), column(Kind::Number)]), None);
        assert_eq!(Figures::decode(&number, &[]), None);
        assert_eq!(Figures::decode(&[4], &[column(Kind::Number)]), None);
    }

    #[test]
    fn a_list_longer_than_its_bytes_is_none() {
        let hostile = [&[tag::NUMBERS][..], &u32::MAX.to_le_bytes(), &[0; 16]].concat();
        assert_eq!(Figures::decode(&hostile, &[column(Kind::Numbers)]), None);
    }

    #[test]
    fn only_finite_single_numbers_count() {
        assert_eq!(Value::Number(2.5).finite(), Some(2.5));
        assert_eq!(Value::Count(7).finite(), Some(7.0));
        let without = [Value::Number(f64::NAN), Value::Number(f64::INFINITY), Value::Null];
        assert!(without.iter().all(|value| value.finite().is_none()));
        assert_eq!(Value::Numbers(vec![1.0]).finite(), None);
    }
}
