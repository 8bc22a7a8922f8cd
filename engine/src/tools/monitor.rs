//! `longsift devices --watch --html FILE`: charts of memory and load of this machine's devices over time.

use std::collections::BTreeMap;

use crate::base::text::{bytes, count, line_safe};
use crate::devices::survey::{DeviceSurvey, Survey};
use crate::report::page::chart::{Polls, over_time};
use crate::report::page::{Block, CaptionedChart, KeyNumber, Page, Section};

pub(crate) fn page(polls: &Polls<Survey>) -> String {
    let mut devices: BTreeMap<&str, (Vec<&str>, Vec<&DeviceSurvey>)> = BTreeMap::new();
    for poll in &polls.kept {
        for device in &poll.devices {
            let (times, polls) = devices.entry(&device.device).or_default();
            times.push(&poll.time);
            polls.push(device);
        }
    }
    let sections = devices.into_iter().enumerate().map(|(index, (device, (times, polls)))| {
        let name = polls.first().map_or(String::new(), |poll| line_safe(&poll.name));
        let chart = |title: &str, series: &[SurveySeries<'_>], shown: fn(u64) -> String| {
            let values = series
                .iter()
                .map(|(name, of)| (*name, polls.iter().map(|poll| of(poll)).collect()));
            let chart = over_time(title, &times, values.collect(), shown);
            CaptionedChart::new(title, "", Block::Chart(chart))
        };
        let memory: [SurveySeries<'_>; 2] = [
            ("used", |poll| poll.used_bytes.unwrap_or(0)),
            ("reserved", |poll| poll.reserved_bytes),
        ];
        let busy: SurveySeries<'_> = ("busy", |poll| poll.utilisation_percent.unwrap_or(0).into());
        let flight: SurveySeries<'_> = ("windows", |poll| poll.in_flight as u64);
        let mut charts = vec![chart("memory", &memory, bytes)];
        if polls.iter().any(|poll| poll.utilisation_percent.is_some()) {
            charts.push(chart("busy, %", &[busy], count));
        }
        charts.push(chart("windows in flight", &[flight], count));
        let id = format!("device{index}");
        Section::new(&id, &line_safe(device), &name, vec![Block::Charts(charts)])
    });
    let time = |poll: Option<&Survey>| poll.map_or(String::new(), |poll| poll.time.clone());
    let page = Page {
        title: "Devices of this machine".to_owned(),
        kicker: format!(
            "longsift devices · {} to {}",
            time(polls.kept.first()),
            time(polls.kept.last())
        ),
        lead:
            "Memory used by all programs, and memory reserved by longsift processes of this user."
                .to_owned(),
        tiles: vec![KeyNumber::new(count(polls.seen), "refreshes")],
        sections: sections.collect(),
    };
    page.html()
}

type SurveySeries<'a> = (&'a str, fn(&DeviceSurvey) -> u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_thinned_so_that_the_page_stays_small() {
        let mut polls = Polls::default();
        let survey = Survey::now(0.1);
        for minute in 0..5000 {
            polls.add(Survey { time: format!("{minute}"), ..survey.clone() });
        }
        assert!((120..240).contains(&polls.kept.len()));
        let times: Vec<u64> = polls.kept.iter().map(|poll| poll.time.parse().unwrap()).collect();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == times[1]));
        assert!(page(&polls).len() < 100_000);
    }
}
