//! What a person can act on: sentences from figures, by rules that stand here and are tested.
//!
//! | a figure whose interval | says |
//! |---|---|
//! | lies above ½ | the first side wins more often than not |
//! | holds ½ | no difference is shown |
//! | lies below ½ | the other side wins |
//!
//! A guard guards against a kind of junk where it refuses nine of ten such windows and at most one of ten whole ones; one that
//! refuses more whole windows than that is bad. Fewer than eight documents say nothing.

use serde::Serialize;

use super::constructions::{KINDS, Role};
use super::figures::Figure;
use super::report::{MOST_MIXED, Report, Windows};
use super::statistics::Statistic;

/// Documents below which a category gets no verdict.
pub(crate) const LEAST_DOCUMENTS: usize = 8;
/// From which share of refused junk a guard guards, and up to which share of refused whole windows.
const REFUSES_JUNK: f64 = 0.9;
const REFUSES_WHOLE: f64 = 0.1;

/// What a figure says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Says {
    /// The side that ought to win wins.
    Good,
    /// No difference is shown.
    Nothing,
    /// The side that ought to lose wins.
    Bad,
}

/// A sentence, and the figure behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Verdict {
    /// The statistic, or the guard.
    pub(crate) of: String,
    pub(crate) says: Says,
    pub(crate) text: String,
}

impl Says {
    /// Of a figure against the value that chance gives. None without an interval.
    fn of(figure: &Figure, chance: f64) -> Option<Self> {
        let [low, high] = figure.interval?;
        Some(match (low > chance, high < chance) {
            (true, _) => Self::Good,
            (_, true) => Self::Bad,
            _ => Self::Nothing,
        })
    }
}

/// `0.53, 0.44 to 0.62`.
fn shown(figure: &Figure) -> String {
    let value = figure.value.unwrap_or(f64::NAN);
    let [low, high] = figure.interval.unwrap_or([f64::NAN; 2]);
    format!("{value:.2}, {low:.2} to {high:.2}")
}

/// All that is said of a statistic. `documents`: of each category.
pub(crate) fn of_statistic(
    statistic: &Statistic,
    report: &Report,
    windows: &Windows<'_>,
    documents: &[usize],
) -> Vec<Verdict> {
    let name = &statistic.name;
    let mut verdicts = Vec::new();
    let mut add =
        |says: Says, text: String| verdicts.push(Verdict { of: name.clone(), says, text });
    let ladder = report.ladder.get(MOST_MIXED).copied().unwrap_or_default();
    if let Some(says) = Says::of(&ladder, 0.5) {
        add(says, format!("{name} {} ({})", separates(says, ""), shown(&ladder)));
    }
    let by_category = match windows.categories.len() {
        0 | 1 => Vec::new(),
        _ => windows.most_mixed_by_category(&statistic.values),
    };
    for (category, figure) in by_category.into_iter().enumerate() {
        if documents[category] < LEAST_DOCUMENTS {
            continue;
        }
        // Only where a category says something else than all together.
        if let Some(says) = Says::of(&figure, 0.5)
            && Some(says) != Says::of(&ladder, 0.5)
        {
            let place = format!(" in `{}`", windows.categories[category]);
            add(says, format!("{name} {} ({})", separates(says, &place), shown(&figure)));
        }
    }
    for kind in KINDS.iter().filter(|kind| matches!(kind.role, Role::Dependence | Role::Junk)) {
        let figure = report.paired.get(kind.name).copied().unwrap_or_default();
        let Some(says) = Says::of(&figure, 0.5) else { continue };
        let text = match says {
            Says::Good => format!("{name} ranks a whole window above the same with {}", kind.doc),
            Says::Nothing => {
                format!("{name} does not tell a whole window from the same with {}", kind.doc)
            }
            Says::Bad => format!("{name} ranks a whole window below the same with {}", kind.doc),
        };
        add(says, format!("{text} ({})", shown(&figure)));
    }
    let shares = &report.top_fifth_real_share;
    if let (Some(chance), Some(says)) =
        (shares.by_chance, shares.by_chance.and_then(|chance| Says::of(&shares.plain, chance)))
    {
        let than = match says {
            Says::Good => "more than",
            Says::Nothing => "about what",
            Says::Bad => "less than",
        };
        let text = format!(
            "of the top fifth by {name}, {:.0} % are real, {than} chance gives ({:.0} %)",
            100.0 * shares.plain.value.unwrap_or(f64::NAN),
            100.0 * chance,
        );
        add(says, text);
    }
    verdicts
}

fn separates(says: Says, place: &str) -> String {
    match says {
        Says::Good => format!("separates whole from mixed windows{place}"),
        Says::Nothing => format!("does not separate whole from mixed windows{place}"),
        Says::Bad => format!("ranks mixed windows above whole ones{place}"),
    }
}

/// What a guard refuses. `passes`: by window.
pub(crate) fn of_guard(name: &str, windows: &Windows<'_>, passes: &[bool]) -> Vec<Verdict> {
    let refused = |kind: &str| {
        let of = windows.places.iter().zip(passes).filter(|(place, _)| place.kind().name == kind);
        let (all, refused) = of.fold((0_u64, 0_u64), |(all, refused), (_, passes)| {
            (all + 1, refused + u64::from(!passes))
        });
        (all > 0).then(|| refused as f64 / all as f64)
    };
    let Some(whole) = refused("whole") else { return Vec::new() };
    let mut verdicts = Vec::new();
    for kind in KINDS.iter().filter(|kind| kind.role == Role::Junk) {
        let Some(junk) = refused(kind.name) else { continue };
        let says = if whole > REFUSES_WHOLE {
            Says::Bad
        } else if junk >= REFUSES_JUNK {
            Says::Good
        } else {
            Says::Nothing
        };
        let does = if says == Says::Good { "guards" } else { "does not guard" };
        let text = format!(
            "{name} {does} against a window with {}: it refuses {:.0} % of them, and {:.0} % of whole windows",
            kind.doc,
            100.0 * junk,
            100.0 * whole
        );
        verdicts.push(Verdict { of: format!("guard on {name}"), says, text });
    }
    verdicts
}

/// Categories that get no verdict, said once.
pub(crate) fn too_few(categories: &[String], documents: &[usize]) -> Option<String> {
    let few: Vec<String> = categories
        .iter()
        .zip(documents)
        .filter(|(_, documents)| **documents < LEAST_DOCUMENTS)
        .map(|(name, documents)| format!("`{name}` ({documents})"))
        .collect();
    (!few.is_empty()).then(|| {
        format!(
            "no verdict of its own for {}: fewer than {LEAST_DOCUMENTS} documents are long enough. It is in the figures of all.",
            few.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, low: f64, high: f64) -> Figure {
        Figure { value: Some(value), interval: Some([low, high]) }
    }

    #[test]
    fn an_interval_that_holds_chance_says_nothing() {
        assert_eq!(Says::of(&figure(0.53, 0.44, 0.62), 0.5), Some(Says::Nothing));
        assert_eq!(Says::of(&figure(0.6, 0.5, 0.7), 0.5), Some(Says::Nothing), "its end is chance");
        assert_eq!(Says::of(&figure(0.6, 0.51, 0.7), 0.5), Some(Says::Good));
        assert_eq!(Says::of(&figure(0.4, 0.3, 0.49), 0.5), Some(Says::Bad));
        assert_eq!(Says::of(&figure(0.2, 0.1, 0.3), 1.0 / 6.0), Some(Says::Nothing));
        assert_eq!(Says::of(&Figure::default(), 0.5), None);
    }

    #[test]
    fn few_documents_are_named() {
        let names = ["code".to_owned(), "papers".to_owned()];
        assert_eq!(too_few(&names, &[8, 9]), None);
        assert_eq!(
            too_few(&names, &[7, 9]).unwrap(),
            "no verdict of its own for `code` (7): fewer than 8 documents are long enough. It is in the figures of all."
        );
    }
}
