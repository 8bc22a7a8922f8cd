//! Rejections by guard: counts by group, and some windows with the passages that the guard's statistic counts.

use std::ops::Range;

use serde::Serialize;

use super::excerpts::Texts;
use super::gather::GroupCounts;
use super::groups;
use super::picks::{Pick, Picks};
use crate::base::error::Result;
use crate::base::text::{count, line_safe};
use crate::dataset::documents::DocumentContent;
use crate::plan::Plan;
use crate::report::page::numbers::{number, share};
use crate::report::page::{Block, SampleText, Section};
use crate::report::passages::{Passage, find_passages};
use crate::run_directory::calibration::CalibratedGroup;
use crate::run_directory::summary::GuardUse;

#[derive(Clone, Debug, Serialize)]
pub(super) struct GuardRejection {
    setting: String,
    statistic: String,
    /// Description of its bounds.
    bounds: String,
    /// Samples outside its bounds, regardless of other guards, and all samples.
    rejected: u64,
    samples: u64,
    /// Counts by shown group, and for all other groups combined.
    groups: Vec<GroupRejections>,
    /// Random examples.
    windows: Vec<RejectedWindow>,
    /// The guard's counts, if most samples do not pass it.
    #[serde(skip)]
    warning: Option<GuardUse>,
}

#[derive(Clone, Debug, Serialize)]
struct GroupRejections {
    value: Option<String>,
    /// Whether it combines all groups that are not shown separately.
    others: bool,
    rejected: u64,
    samples: u64,
}

/// A rejected window; for a rejected document its first window.
#[derive(Clone, Debug, Serialize)]
struct RejectedWindow {
    id: String,
    window: u32,
    group: Option<String>,
    value: f64,
    /// Reason for which it is not kept, which may be another guard.
    reason: Option<String>,
    passages: Vec<Passage>,
}

/// Builds the rejections: totals from `uses`, counts by group from `gathered`, examples from `picks`.
pub(super) fn build(
    uses: &[GuardUse],
    indices: &[Option<usize>],
    shown: &[&CalibratedGroup],
    gathered: &[GroupCounts],
    picks: &[Picks],
    texts: &Texts<'_>,
) -> Result<Vec<GuardRejection>> {
    let mut all = Vec::new();
    for (guard, of) in uses.iter().enumerate() {
        let groups = gathered.iter().enumerate().filter_map(|(index, group)| {
            let known = shown.get(index);
            let samples = group.outcomes.iter().map(|outcome| outcome.samples).sum::<u64>();
            (samples > 0).then(|| GroupRejections {
                value: known.and_then(|known| known.value.clone()),
                others: known.is_none(),
                rejected: group.rejected[guard],
                samples,
            })
        });
        let picks: Vec<Pick> =
            picks[guard].clone().shown().into_iter().map(|(_, pick)| pick).collect();
        all.push(GuardRejection {
            setting: of.setting.clone(),
            statistic: of.statistic.clone(),
            bounds: of.bounds.clone(),
            rejected: of.rejected,
            samples: of.samples,
            groups: groups.collect(),
            windows: windows(&of.statistic, indices[guard], &picks, texts)?,
            warning: of.rejects_most().then(|| of.clone()),
        });
    }
    Ok(all)
}

fn windows(
    statistic: &str,
    index: Option<usize>,
    picks: &[Pick],
    texts: &Texts<'_>,
) -> Result<Vec<RejectedWindow>> {
    let all: Vec<&Pick> = picks.iter().collect();
    let mut found = vec![Vec::new(); picks.len()];
    texts.read(&all, |plan, index, content| {
        found[index] = passages_of(plan, statistic, all[index], content).unwrap_or_default();
    })?;
    let window = |(pick, passages): (&Pick, Vec<Passage>)| RejectedWindow {
        id: pick.id.clone(),
        window: pick.location.window,
        group: pick.group.clone(),
        value: index.map_or(f64::NAN, |index| pick.statistics[index]),
        reason: pick.reason.clone(),
        passages,
    };
    Ok(picks.iter().zip(found).map(window).collect())
}

/// Returns the passages of a sample; `None` if its window is no longer in the document.
fn passages_of(
    plan: &Plan,
    statistic: &str,
    pick: &Pick,
    content: &DocumentContent,
) -> Option<Vec<Passage>> {
    let (start, end) = (pick.location.tokens.0 as usize, pick.location.tokens.1 as usize);
    let bos = usize::from(plan.bos.count);
    let own = |tokens: &Range<usize>| {
        start + tokens.start.saturating_sub(bos)..start + tokens.end.saturating_sub(bos)
    };
    match content {
        DocumentContent::Text(text) => {
            let encoded = plan.tokenize(pick.id.clone(), text).ok()?.ok()?;
            let ids = plan.bos.prepend_to(encoded.ids.get(start..end)?);
            let bytes = encoded.byte_range(start, end, text.len());
            let text_of = |tokens: Range<usize>| {
                let tokens = own(&tokens);
                text[encoded.byte_range(tokens.start, tokens.end, text.len())].to_owned()
            };
            Some(find_passages(plan, statistic, &ids, Some(&text[bytes]), &text_of))
        }
        DocumentContent::Tokens(tokens) => {
            let ids = plan.bos.prepend_to(tokens.get(start..end)?);
            let text_of = |range: Range<usize>| {
                let ids = ids[range].iter().map(u32::to_string);
                ids.collect::<Vec<_>>().join(" ")
            };
            Some(find_passages(plan, statistic, &ids, None, &text_of))
        }
    }
}

/// Renders the section of the page; `None` without guards. `samples`: windows or documents.
pub(super) fn section(all: &[GuardRejection], samples: &str) -> Option<Section> {
    if all.is_empty() {
        return None;
    }
    let mut blocks = Vec::new();
    for guard in all.iter().filter_map(|of| of.warning.as_ref()) {
        let words = guard.in_words(samples);
        blocks.push(Block::Note(format!("Warning: guard {words} ({}).", guard.setting)));
    }
    let name = |group: &GroupRejections| groups::name(group.value.as_deref(), group.others, false);
    let row = |guard: String, group: String, rejected: u64, all: u64| {
        vec![guard, group, count(rejected), count(all), share(rejected, all)]
    };
    let mut rows = Vec::new();
    for of in all {
        let guard = format!("{} {}", of.statistic, of.bounds);
        rows.push(row(guard, "all".to_owned(), of.rejected, of.samples));
        if of.groups.len() > 1 {
            let groups = of.groups.iter();
            rows.extend(groups.map(|own| row(String::new(), name(own), own.rejected, own.samples)));
        }
    }
    blocks.push(Block::table(["guard", "group", "rejected", samples, "share"], rows));
    for of in all.iter().filter(|of| !of.windows.is_empty()) {
        blocks.push(Block::details(
            format!("samples rejected by {} {}", of.statistic, of.bounds),
            all.len() == 1,
            of.windows.iter().map(|window| Block::Sample(sample(of, window))).collect(),
        ));
    }
    let lead = "Guards are counted separately: several may reject the same sample.";
    Some(Section::new("guards", "Rejected by guards", lead, blocks))
}

fn sample(of: &GuardRejection, window: &RejectedWindow) -> SampleText {
    let passages = window.passages.iter();
    let why = match &window.reason {
        Some(reason) => line_safe(reason),
        None => String::new(),
    };
    let texts: Vec<&str> = window.passages.iter().map(|passage| passage.text.as_str()).collect();
    let excerpt = (!texts.is_empty()).then(|| (texts.join("\n…\n"), String::new(), String::new()));
    SampleText {
        title: groups::short(&window.id),
        location: format!("window {}", window.window),
        why,
        statistics: std::iter::once((of.statistic.clone(), number(window.value)))
            .chain(passages.map(|passage| ("passage".to_owned(), passage.in_words())))
            .collect(),
        excerpt,
    }
}
