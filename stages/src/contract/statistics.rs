//! Declarations of statistics, and their values for one window.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declaration of a statistic, the single source for everything that reads it. Files hold it without its rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Name: lower case, unique in a pipeline; `longsift_dependency_strength` in the output.
    pub name: Cow<'static, str>,
    pub kind: Kind,
    /// Unit: `share`, `tokens`, `compressed bytes per byte`.
    pub unit: Cow<'static, str>,
    /// One sentence for the manual, the field metadata in Parquet and the report.
    pub doc: Cow<'static, str>,
    /// Rule that merges the values of a document's windows; `score.document_score` overrides it for all terms.
    #[serde(skip)]
    pub merge: Merge,
    /// Evaluations negate `Lower` and reports colour by it; it does not set the sign of a term.
    #[serde(skip)]
    pub orientation: Orientation,
    /// Name of the statistic that holds the standard error, if rows are sampled.
    #[serde(skip)]
    pub error: Option<&'static str>,
}

/// Type of a statistic's values. Only single numbers can be terms of a score and guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Float64.
    Number,
    /// Int64, below 2^63.
    Count,
    /// List of Float64.
    Numbers,
}

/// Rule that merges the values of a document's windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// Mean over windows, each with the same weight.
    #[default]
    Mean,
    Max,
    Sum,
    /// Sum of one statistic over that of another: a mean over tokens, independent of the windows' lengths.
    Ratio {
        numerator: Cow<'static, str>,
        denominator: Cow<'static, str>,
        /// Whether the value is e to the power of the ratio: a perplexity.
        exponential: bool,
    },
    /// Value of the first window, for statistics of the whole document, which all its windows share.
    First,
    /// Not merged: lists.
    Never,
}

/// Whether higher values of a program's statistic mean more long-range structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "StatisticOrientation")]
pub enum Orientation {
    /// Higher means more.
    #[default]
    Higher,
    /// Lower means more.
    Lower,
}

/// Values of one measure for one window, in the order of its columns.
#[derive(Clone, Debug, PartialEq)]
pub struct StatisticValues(pub Vec<Value>);

/// Value of a statistic for one window; in JSON a null, a number or a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// No value: undefined for this window.
    Null,
    Number(f64),
    /// Below 2^63.
    Count(u64),
    Numbers(Vec<f64>),
}

impl Column {
    /// Declares a number that is merged by its mean and higher with more long-range structure.
    pub fn number(
        name: impl Into<Cow<'static, str>>,
        unit: impl Into<Cow<'static, str>>,
        doc: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            name: name.into(),
            kind: Kind::Number,
            unit: unit.into(),
            doc: doc.into(),
            merge: Merge::Mean,
            orientation: Orientation::Higher,
            error: None,
        }
    }

    /// Returns the column with `prefix` in front of all its names.
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
    /// Returns the number that terms and guards use; `None` for a null, a list, NaN and infinities.
    pub fn finite(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number).filter(|number| number.is_finite()),
            Self::Count(count) => Some(*count as f64),
            Self::Null | Self::Numbers(_) => None,
        }
    }

    /// Returns the numbers of a list; an empty slice for other values.
    pub fn numbers(&self) -> &[f64] {
        match self {
            Self::Numbers(numbers) => numbers,
            Self::Null | Self::Number(_) | Self::Count(_) => &[],
        }
    }

    /// Wraps an optional number; `None` becomes null.
    pub fn number(number: Option<f64>) -> Self {
        number.map_or(Self::Null, Self::Number)
    }
}

/// Type byte before each value in [`StatisticValues::encode`].
mod tag {
    pub(super) const NULL: u8 = 0;
    pub(super) const NUMBER: u8 = 1;
    pub(super) const COUNT: u8 = 2;
    pub(super) const NUMBERS: u8 = 3;
}

impl StatisticValues {
    /// Appends the values in the journal's encoding, which preserves all bits, also of a `NaN`: a type byte, then
    /// eight bytes little-endian; for a list four bytes for its length and eight for each number.
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
                    let length =
                        u32::try_from(numbers.len()).expect("a list has fewer than 2^32 numbers");
                    into.push(tag::NUMBERS);
                    into.extend(length.to_le_bytes());
                    into.extend(numbers.iter().flat_map(|number| number.to_bits().to_le_bytes()));
                }
            }
        }
    }

    /// Decodes values; `None` if the bytes do not match the columns. Corrupt lengths allocate at most as much as the input has.
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
        StatisticValues(values.to_vec()).encode(&mut bytes);
        bytes
    }

    /// Any value with a kind that allows it; numbers of any bit pattern.
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
        fn values_round_trip_bit_for_bit(values in prop::collection::vec(value(), 0..6)) {
            let (columns, values) = columns(&values);
            let bytes = encoded(&values);
            let back = StatisticValues::decode(&bytes, &columns).expect("the values were encoded for these columns");
            prop_assert_eq!(encoded(&back.0), bytes, "bits are compared, since NaN is not equal to itself");
        }

        #[test]
        fn truncated_and_extended_records_are_rejected(
            values in prop::collection::vec(value(), 1..6), cut in any::<prop::sample::Index>(), more: u8,
        ) {
            let (columns, values) = columns(&values);
            let mut bytes = encoded(&values);
            prop_assert_eq!(StatisticValues::decode(&bytes[..cut.index(bytes.len())], &columns), None);
            bytes.push(more);
            prop_assert_eq!(StatisticValues::decode(&bytes, &columns), None);
        }

        #[test]
        fn any_bytes_decode_or_are_rejected(
            bytes in prop::collection::vec(prop_oneof![0_u8..5, any::<u8>()], 0..60),
            kinds in prop::collection::vec(value(), 0..4),
        ) {
            let (columns, _) = columns(&kinds);
            if let Some(values) = StatisticValues::decode(&bytes, &columns) {
                prop_assert_eq!(encoded(&values.0), bytes, "each list of values has one encoding");
            }
        }
    }

    #[test]
    fn values_of_other_columns_are_rejected() {
        let number = encoded(&[Value::Number(1.0)]);
        assert_eq!(StatisticValues::decode(&number, &[column(Kind::Count)]), None);
        assert_eq!(
            StatisticValues::decode(&number, &[column(Kind::Number), column(Kind::Number)]),
            None
        );
        assert_eq!(StatisticValues::decode(&number, &[]), None);
        assert_eq!(StatisticValues::decode(&[4], &[column(Kind::Number)]), None);
    }

    #[test]
    fn a_list_longer_than_its_bytes_is_rejected() {
        let hostile = [&[tag::NUMBERS][..], &u32::MAX.to_le_bytes(), &[0; 16]].concat();
        assert_eq!(StatisticValues::decode(&hostile, &[column(Kind::Numbers)]), None);
    }

    #[test]
    fn only_finite_single_numbers_can_be_scored() {
        assert_eq!(Value::Number(2.5).finite(), Some(2.5));
        assert_eq!(Value::Count(7).finite(), Some(7.0));
        let not_finite = [Value::Number(f64::NAN), Value::Number(f64::INFINITY), Value::Null];
        assert!(not_finite.iter().all(|value| value.finite().is_none()));
        assert_eq!(Value::Numbers(vec![1.0]).finite(), None);
    }
}
