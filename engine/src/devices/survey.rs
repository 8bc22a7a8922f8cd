//! `longsift devices`: lists devices, their use, and the reservations of running longsift processes.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::nvml::{NvmlGpu, visible_gpus};
use super::presence::claims;
use crate::base::machine::{self, free_memory_bytes};
use crate::base::text::{bytes, table};

#[derive(Clone, Debug, Default, Serialize)]
pub struct Survey {
    pub time: String,
    /// GPUs in the order of `cuda:0`, `cuda:1`, …, then the processor.
    pub devices: Vec<DeviceSurvey>,
    pub no_gpu: Option<String>,
}

/// A device at one moment. Sizes in bytes; `None` if unknown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceSurvey {
    pub device: String,
    pub name: String,
    pub uuid: Option<String>,
    pub total_bytes: Option<u64>,
    pub used_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// Memory that longsift never uses.
    pub headroom_bytes: u64,
    /// Reserved by running longsift processes of this user.
    pub reserved_bytes: u64,
    pub in_flight: usize,
    pub utilisation_percent: Option<u32>,
}

impl Survey {
    /// Surveys the devices. `headroom_fraction`: share of a GPU's memory that is never used.
    pub fn now(headroom_fraction: f64) -> Self {
        let (gpus, no_gpu) = match visible_gpus() {
            Ok(gpus) if gpus.is_empty() => {
                (gpus, Some("`CUDA_VISIBLE_DEVICES` hides every GPU".to_owned()))
            }
            Ok(gpus) => (gpus, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let gpu = |(number, gpu)| surveyed_gpu(number, gpu, headroom_fraction);
        let gpus = gpus.into_iter().enumerate().map(gpu);
        let mut devices: Vec<DeviceSurvey> = gpus.chain([surveyed_cpu()]).collect();
        for claim in claims() {
            for device in &mut devices {
                if *device.uuid.as_ref().unwrap_or(&device.device) == claim.device {
                    device.reserved_bytes += claim.reserved_bytes;
                    device.in_flight += claim.in_flight;
                }
            }
        }
        Self { time: crate::base::clock::now_utc(), devices, no_gpu }
    }

    pub fn csv(&self) -> String {
        let cell = |(name, value): (&String, &Value)| match value {
            Value::Null => String::new(),
            Value::String(text) if name == "name" => format!("\"{}\"", text.replace('"', "\"\"")),
            Value::String(text) => text.clone(),
            number => number.to_string(),
        };
        let line = |device: &DeviceSurvey| {
            let fields = serde_json::to_value(device).expect("plain data");
            let cells = fields.as_object().into_iter().flatten().map(cell);
            [self.time.clone()].into_iter().chain(cells).collect::<Vec<_>>().join(",") + "\n"
        };
        self.devices.iter().map(line).collect()
    }
}

/// Names of the time and of the fields of [`DeviceSurvey`].
pub const CSV_HEADER: &str = "time,device,name,uuid,total_bytes,used_bytes,free_bytes,headroom_bytes,reserved_bytes,in_flight,utilisation_percent\n";

fn surveyed_gpu(number: usize, gpu: NvmlGpu, headroom_fraction: f64) -> DeviceSurvey {
    let memory = gpu.memory().ok();
    let total = memory.map(|memory| memory.total);
    DeviceSurvey {
        device: format!("cuda:{number}"),
        name: gpu.name.to_owned(),
        uuid: Some(gpu.uuid.to_owned()),
        total_bytes: total,
        used_bytes: memory.map(|memory| memory.used),
        free_bytes: memory.map(|memory| memory.total.saturating_sub(memory.used)),
        headroom_bytes: total.map_or(0, |total| (total as f64 * headroom_fraction) as u64),
        utilisation_percent: gpu.utilisation(),
        ..DeviceSurvey::default()
    }
}

/// Surveys the processor. It has no headroom of its own: `memory_limit_bytes` limits its use.
fn surveyed_cpu() -> DeviceSurvey {
    let total = machine::system_bytes("/proc/meminfo", "MemTotal:");
    let free = free_memory_bytes();
    DeviceSurvey {
        device: "cpu".to_owned(),
        name: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        total_bytes: total,
        used_bytes: total.zip(free).map(|(total, free)| total.saturating_sub(free)),
        free_bytes: free,
        ..DeviceSurvey::default()
    }
}

pub(crate) fn processor() -> Option<String> {
    let name = machine::system_line("/proc/cpuinfo", "model name")?;
    Some(name.trim_start_matches([' ', '\t', ':']).to_owned())
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
