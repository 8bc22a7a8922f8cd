//! What a sample is before it is ranked.

/// What a sample is before it is ranked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Standing {
    /// Without this statistic: it has no score, and is none of the samples that a fraction is one of.
    Missing(usize),
    /// Without a score, because a measure was not taken of it by sampling.
    NotMeasured,
    /// Out of the bounds of this guard. Its score is on the scale of the samples that pass; `NaN` where a statistic of the score
    /// was not measured, or no sample passes.
    Refused(usize, f64),
    /// Within the bounds of every guard, with this score; `NaN` where its group has no scale to score it by.
    Ranked(f64),
}

/// The value of a statistic whose measure was not taken of a sample, by sampling. Like every value that is not there it is not a
/// number, but one with bits of its own, which tell it from what a measure could not give; nothing computes with it.
pub(super) const NOT_SAMPLED: f64 = f64::from_bits(0x7FF8_0000_5A4D_504C);

/// Whether a value is [`NOT_SAMPLED`].
pub(super) fn is_not_sampled(value: f64) -> bool {
    value.to_bits() == NOT_SAMPLED.to_bits()
}

impl Standing {
    /// The score; `NaN` without one.
    pub(super) fn score(self) -> f64 {
        match self {
            Self::Missing(_) | Self::NotMeasured => f64::NAN,
            Self::Refused(_, score) | Self::Ranked(score) => score,
        }
    }

    /// The score of a sample that passes every guard; `NaN` of all others.
    pub(super) fn passing_score(self) -> f64 {
        if let Self::Ranked(score) = self { score } else { f64::NAN }
    }

    /// Whether the sample is one of those that a fraction is one of.
    pub(super) fn counts(self) -> bool {
        match self {
            Self::Missing(_) => false,
            Self::NotMeasured | Self::Refused(..) => true,
            Self::Ranked(score) => !score.is_nan(),
        }
    }
}
