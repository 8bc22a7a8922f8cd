//! State of a sample before it is ranked.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SampleState {
    /// This statistic is missing: the sample has no score and does not count for `keep_fraction`.
    Missing(usize),
    /// Without a score, because sampling excluded it from a measure.
    NotMeasured,
    /// Out of the bounds of this guard, with a score on the scale of the samples that pass; `NaN` without one.
    Rejected(usize, f64),
    /// Within the bounds of every guard, with this score; `NaN` if its group has no scale.
    Ranked(f64),
}

/// Value of a statistic whose measure sampling excluded: a `NaN` with a payload, never used in arithmetic.
pub(super) const NOT_SAMPLED: f64 = f64::from_bits(0x7FF8_0000_5A4D_504C);

pub(super) fn is_not_sampled(value: f64) -> bool {
    value.to_bits() == NOT_SAMPLED.to_bits()
}

impl SampleState {
    pub(super) fn score(self) -> f64 {
        match self {
            Self::Missing(_) | Self::NotMeasured => f64::NAN,
            Self::Rejected(_, score) | Self::Ranked(score) => score,
        }
    }

    /// Score of a sample that passes every guard; `NaN` for others.
    pub(super) fn passing_score(self) -> f64 {
        if let Self::Ranked(score) = self { score } else { f64::NAN }
    }

    /// Whether the sample counts for `keep_fraction`.
    pub(super) fn counts(self) -> bool {
        match self {
            Self::Missing(_) => false,
            Self::NotMeasured | Self::Rejected(..) => true,
            Self::Ranked(score) => !score.is_nan(),
        }
    }
}
