//! `longsift devices --watch --html FILE`: charts of memory and load of this machine's devices over time.

use std::collections::BTreeMap;

use crate::base::text::{bytes, count, line_safe};
use crate::devices::survey::{Survey, Surveyed};
use crate::report::page::drawing::{Drawing, colour};
use crate::report::page::{Block, Figure, Page, Section, Tile};

/// Maximum number of polls kept; beyond it every second one is dropped, so that the size of the page is bounded.
const MAX_POLLS: usize = 240;
/// Size of a chart in pixels.
const WIDTH: f64 = 340.0;
const TALL: f64 = 90.0;

/// Polls so far.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    polls: Vec<Survey>,
    /// One of `every` polls is kept.
    every: u64,
    seen: u64,
}

impl Monitor {
    /// Adds a poll.
    pub(crate) fn add(&mut self, survey: Survey) {
        let every = self.every.max(1);
        if self.seen.is_multiple_of(every) {
            self.polls.push(survey);
        }
        self.seen += 1;
        if self.polls.len() > MAX_POLLS {
            let mut place = 0;
            self.polls.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.every = 2 * every;
        }
    }

    /// Renders the charts as one HTML file.
    pub(crate) fn page(&self) -> String {
        let mut devices: BTreeMap<&str, Vec<&Surveyed>> = BTreeMap::new();
        for device in self.polls.iter().flat_map(|poll| &poll.devices) {
            devices.entry(&device.device).or_default().push(device);
        }
        let sections = devices.into_iter().enumerate().map(|(place, (device, polls))| {
            let name = polls.first().map_or(String::new(), |poll| line_safe(&poll.name));
            let mut figures = vec![figure(
                "memory",
                &polls,
                &[
                    ("used", colour::BLUE, |poll| poll.used_bytes),
                    ("reserved", colour::GREEN, |poll| Some(poll.reserved_bytes)),
                ],
                bytes,
            )];
            let busy = |poll: &Surveyed| poll.utilisation_percent.map(u64::from);
            if polls.iter().any(|poll| poll.utilisation_percent.is_some()) {
                figures.push(figure("busy, %", &polls, &[("busy", colour::ORANGE, busy)], count));
            }
            let flight = |poll: &Surveyed| Some(poll.in_flight as u64);
            figures.push(figure(
                "windows in flight",
                &polls,
                &[("windows", colour::PURPLE, flight)],
                count,
            ));
            Section::new(
                &format!("device{place}"),
                &line_safe(device),
                &name,
                vec![Block::Figures(figures)],
            )
        });
        let time = |poll: Option<&Survey>| poll.map_or(String::new(), |poll| poll.time.clone());
        let page = Page {
            title: "Devices of this machine".to_owned(),
            kicker: format!(
                "longsift devices · {} to {}",
                time(self.polls.first()),
                time(self.polls.last())
            ),
            lead: "Memory used by all programs, and memory reserved by longsift processes of this user."
                .to_owned(),
            tiles: vec![Tile { figure: count(self.seen), label: "refreshes".to_owned() }],
            sections: sections.collect(),
        };
        page.html()
    }
}

type Series<'a> = (&'a str, &'static str, fn(&Surveyed) -> Option<u64>);

/// Draws lines over the polls, from 0 to the maximum.
fn figure(
    title: &str,
    polls: &[&Surveyed],
    series: &[Series<'_>],
    shown: fn(u64) -> String,
) -> Figure {
    let values =
        |of: fn(&Surveyed) -> Option<u64>| polls.iter().map(move |poll| of(poll).unwrap_or(0));
    let most = series.iter().flat_map(|(.., of)| values(*of)).max().unwrap_or(0);
    let (top, mut drawing) = (24.0, Drawing::new(WIDTH as u32, 130, title));
    let bottom = top + TALL;
    let mut x = 0.0;
    for (name, stroke, of) in series {
        let step = (WIDTH - 2.0) / (polls.len().max(2) - 1) as f64;
        let height = |value: u64| TALL * value as f64 / most.max(1) as f64;
        let line = values(*of)
            .enumerate()
            .map(|(place, value)| (1.0 + step * place as f64, bottom - height(value)));
        drawing.polyline(&line.collect::<Vec<_>>(), stroke, *name);
        drawing.rect((x, 2.0), (10.0, 10.0), *stroke, "");
        drawing.text((x + 14.0, 11.0), "start", *name);
        x += 90.0;
    }
    drawing.line((0.0, bottom), (WIDTH, bottom), colour::GREY);
    Figure { title: title.to_owned(), caption: format!("up to {}", shown(most)), drawing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_watch_is_thinned_and_its_page_stays_small() {
        let mut monitor = Monitor::default();
        let survey = Survey::now(0.1);
        for minute in 0..5000 {
            monitor.add(Survey { time: format!("{minute}"), ..survey.clone() });
        }
        assert!((MAX_POLLS / 2..=MAX_POLLS).contains(&monitor.polls.len()));
        let times: Vec<u64> = monitor.polls.iter().map(|poll| poll.time.parse().unwrap()).collect();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == monitor.every));
        assert!(monitor.page().len() < 100_000);
    }
}
