//! `longsift devices`: lists devices, their use, and the reservations of running longsift processes.

use std::fmt::{self, Write};

use serde::Serialize;

use super::nvml::NvmlGpu;
use super::presence::{DeviceClaim, claims};
use super::visible::visible_gpus;
use crate::base::machine::{self, free_memory_bytes};
use crate::base::text::{bytes, table};

/// Devices of this machine at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Time, UTC.
    pub time: String,
    /// GPUs in the order of `cuda:0`, `cuda:1`, …, then the processor.
    pub devices: Vec<DeviceSurvey>,
    /// Reason for the absence of GPUs.
    pub no_gpu: Option<String>,
}

/// A device at one moment. Sizes in bytes; `None` if unknown.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceSurvey {
    /// `cuda:0`, `cpu`.
    pub device: String,
    /// Model name.
    pub name: String,
    pub uuid: Option<String>,
    pub total_bytes: Option<u64>,
    /// Used by all processes.
    pub used_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// Memory that longsift never uses.
    pub headroom_bytes: u64,
    /// Reserved by running longsift processes of this user.
    pub reserved_bytes: u64,
    /// Windows that they are measuring.
    pub in_flight: usize,
    /// Recent utilisation in per cent.
    pub utilisation_percent: Option<u32>,
}

impl Survey {
    /// Surveys the devices. `headroom_fraction`: share of a GPU's memory that is never used.
    pub fn now(headroom_fraction: f64) -> Self {
        let claims = claims();
        let (mut devices, no_gpu) = match visible_gpus() {
            Ok(gpus) if gpus.is_empty() => {
                (Vec::new(), Some("`CUDA_VISIBLE_DEVICES` hides every GPU".to_owned()))
            }
            Ok(gpus) => {
                let gpu = |(number, gpu)| surveyed_gpu(number, gpu, headroom_fraction, &claims);
                (gpus.into_iter().enumerate().map(gpu).collect(), None)
            }
            Err(why) => (Vec::new(), Some(why)),
        };
        devices.push(surveyed_cpu(&claims));
        Self { time: crate::base::clock::now_utc(), devices, no_gpu }
    }

    pub fn csv(&self) -> String {
        let mut text = String::new();
        for device in &self.devices {
            let number = |number: Option<u64>| number.map_or(String::new(), |n| n.to_string());
            let quoted = format!("\"{}\"", device.name.replace('"', "\"\""));
            let _ = writeln!(
                text,
                "{},{},{quoted},{},{},{},{},{},{},{},{}",
                self.time,
                device.device,
                device.uuid.as_deref().unwrap_or_default(),
                number(device.total_bytes),
                number(device.used_bytes),
                number(device.free_bytes),
                device.headroom_bytes,
                device.reserved_bytes,
                device.in_flight,
                number(device.utilisation_percent.map(u64::from))
            );
        }
        text
    }
}

pub const CSV_HEADER: &str = "time,device,name,uuid,total_bytes,used_bytes,free_bytes,headroom_bytes,reserved_bytes,in_flight,utilisation_percent\n";

fn surveyed_gpu(
    number: usize,
    gpu: NvmlGpu,
    headroom_fraction: f64,
    claims: &[DeviceClaim],
) -> DeviceSurvey {
    let memory = gpu.memory().ok();
    let total = memory.map(|memory| memory.total);
    let (reserved_bytes, in_flight) = claimed(claims, gpu.uuid);
    DeviceSurvey {
        device: format!("cuda:{number}"),
        name: gpu.name.to_owned(),
        uuid: Some(gpu.uuid.to_owned()),
        total_bytes: total,
        used_bytes: memory.map(|memory| memory.used),
        free_bytes: memory.map(|memory| memory.total.saturating_sub(memory.used)),
        headroom_bytes: total.map_or(0, |total| (total as f64 * headroom_fraction) as u64),
        reserved_bytes,
        in_flight,
        utilisation_percent: gpu.utilisation(),
    }
}

/// Surveys the processor. It has no headroom of its own: `memory_limit_bytes` limits its use.
fn surveyed_cpu(claims: &[DeviceClaim]) -> DeviceSurvey {
    let total = machine::system_bytes("/proc/meminfo", "MemTotal:");
    let free = free_memory_bytes();
    let (reserved_bytes, in_flight) = claimed(claims, "cpu");
    DeviceSurvey {
        device: "cpu".to_owned(),
        name: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        uuid: None,
        total_bytes: total,
        used_bytes: total.zip(free).map(|(total, free)| total.saturating_sub(free)),
        free_bytes: free,
        headroom_bytes: 0,
        reserved_bytes,
        in_flight,
        utilisation_percent: None,
    }
}

/// Returns the model of the processor, if the system reports it.
pub(crate) fn processor() -> Option<String> {
    let name = machine::system_line("/proc/cpuinfo", "model name")?;
    Some(name.trim_start_matches([' ', '\t', ':']).to_owned())
}

fn claimed(claims: &[DeviceClaim], device: &str) -> (u64, usize) {
    let ours = claims.iter().filter(|claim| claim.device == device);
    ours.fold((0, 0), |(bytes, pieces), claim| {
        (bytes + claim.reserved_bytes, pieces + claim.in_flight)
    })
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |number: Option<u64>| number.map_or("?".to_owned(), bytes);
        let cells = self.devices.iter().map(|device| {
            vec![
                format!("{:<6}  {}", device.device, device.name),
                size(device.total_bytes),
                size(device.used_bytes),
                size(device.free_bytes),
                bytes(device.headroom_bytes),
                bytes(device.reserved_bytes),
                device.in_flight.to_string(),
                device.utilisation_percent.map_or("?".to_owned(), |percent| format!("{percent} %")),
            ]
        });
        let head =
            ["device  name", "total", "used", "free", "headroom", "reserved", "windows", "busy"];
        let rows: Vec<Vec<String>> =
            std::iter::once(head.map(str::to_owned).to_vec()).chain(cells).collect();
        table(&rows).iter().try_for_each(|line| writeln!(f, "{line}"))?;
        match &self.no_gpu {
            Some(why) => writeln!(f, "no GPU: {why}"),
            None if cfg!(feature = "cuda") => Ok(()),
            None => writeln!(
                f,
                "this build of longsift measures only on the processor: GPUs need a build with `--features cuda`"
            ),
        }
    }
}
