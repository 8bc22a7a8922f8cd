//! What a sample is before it is ranked.

/// What a sample is before it is ranked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Standing {
    /// Without this statistic: it has no score, and is none of the samples that a fraction is one of.
    Missing(usize),
    /// Out of the bounds of this guard. With a score, unless the guard spared it a measure.
    Refused(usize, f64),
    /// With this score; `NaN` where the figures of its group do not let it have one.
    Ranked(f64),
}

impl Standing {
    /// The score; `NaN` without one.
    pub(super) fn score(self) -> f64 {
        match self {
            Self::Missing(_) => f64::NAN,
            Self::Refused(_, score) | Self::Ranked(score) => score,
        }
    }

    /// Whether the sample is one of those that a fraction is one of.
    pub(super) fn counts(self) -> bool {
        match self {
            Self::Missing(_) => false,
            Self::Refused(..) => true,
            Self::Ranked(score) => !score.is_nan(),
        }
    }
}
