//! Chooses devices by the pipeline's `devices` setting.

use std::sync::Arc;

use longsift_stages::contract::{BrokenRule, Decimal};
use longsift_stages::load_partial_model::Precision;
use longsift_stages::shard_across_devices::{DeviceKind, DeviceSettings, WorkersPerDevice};

use super::cpu::Cpu;
use super::device::{Device, DeviceCriteria, Devices};
use super::ledger::{Ledger, Limit, MemorySource as _};
use super::nvml::visible_gpus;
use super::simulated::{self, SimulatedDevice};

/// Default for concurrent windows on a simulated device: it uses the processor's threads, so that nothing overlaps.
const SIMULATED_WORKERS: usize = 1;

/// GPUs that can measure windows, in the order of `cuda:0`, `cuda:1`, …; and the reason for the choice or their absence.
type GpuSearch = (Vec<Device>, String);

/// Returns the devices that the settings select on this machine, or the setting of the stage that rules this out.
pub fn choose(choice: DeviceCriteria<'_>) -> Result<Devices, BrokenRule> {
    let settings = choice.settings;
    let (mut list, why) = match &settings.devices {
        DeviceSettings::Kind(DeviceKind::Cpu) => (vec![cpu(choice)], "as set".to_owned()),
        DeviceSettings::Kind(DeviceKind::Auto) => {
            let (gpus, why) = find(choice)?;
            if gpus.is_empty() { (vec![cpu(choice)], why) } else { (gpus, why) }
        }
        DeviceSettings::Names(names) if names.iter().all(|name| name == "cpu") => {
            (vec![cpu(choice)], "as set".to_owned())
        }
        DeviceSettings::Count(count) => {
            let names: Vec<String> = (0..*count).map(|number| format!("cuda:{number}")).collect();
            let wanted = if *count == 1 { "a GPU".to_owned() } else { format!("{count} GPUs") };
            (named(&names, &wanted, find(choice)?)?, "as set".to_owned())
        }
        DeviceSettings::Names(names) => {
            let wanted = format!("`{}`", names.join(", "));
            (named(names, &wanted, find(choice)?)?, "as set".to_owned())
        }
    };
    set_workers(&mut list, settings.workers_per_device.as_ref())?;
    let kernel = list[0].compute.kernel();
    if let Some(named) = choice.named.filter(|named| *named != kernel) {
        let message = format!(
            "the kernel `{}` was requested, but the devices ({why}) run `{}`",
            named.name(),
            kernel.name()
        );
        let hint = "GPUs run the kernels called `cuda-…`, the processor all others: change `devices` or leave out `--kernel`";
        return Err(BrokenRule::new("devices", message, hint));
    }
    Ok(Devices { list, why, threads: choice.threads, kernel })
}

pub fn processor(choice: DeviceCriteria<'_>, why: &str) -> Devices {
    let (list, why) = (vec![cpu(choice)], why.to_owned());
    Devices { list, why, threads: choice.threads, kernel: choice.kernel }
}

pub fn is_simulation() -> bool {
    std::env::var_os(simulated::VARIABLE).is_some()
}

fn cpu(choice: DeviceCriteria<'_>) -> Device {
    Device {
        compute: Arc::new(Cpu { kernel: choice.kernel, threads: choice.threads }),
        ledger: Ledger::new(Arc::new(Limit(choice.window_memory_bytes)), 0),
        workers: choice.threads,
        uuid: None,
    }
}

fn find(choice: DeviceCriteria<'_>) -> Result<GpuSearch, BrokenRule> {
    if let Ok(value) = std::env::var(simulated::VARIABLE) {
        return simulate(choice, &value).map_err(|message| {
            let message = format!("{}: {message}", simulated::VARIABLE);
            let hint = "unset this variable: it is for tests and rehearsals";
            BrokenRule::new("devices", message, hint)
        });
    }
    if let Some(named) = choice.named.filter(|named| !named.is_cuda()) {
        return Ok((Vec::new(), format!("the kernel `{}` is for processors", named.name())));
    }
    if choice.precision == Precision::Int16 {
        return Ok((Vec::new(), "`precision: int16` is for processors".to_owned()));
    }
    let (gpus, why) = match real_gpus(choice) {
        Ok(gpus) if gpus.is_empty() => (gpus, "`CUDA_VISIBLE_DEVICES` hides every GPU".to_owned()),
        Ok(gpus) => {
            let why = format!("{} GPUs were found", gpus.len());
            (gpus, why)
        }
        Err(why) => (Vec::new(), why),
    };
    tracing::debug!(gpus = gpus.len(), why, "looked for GPUs");
    Ok((gpus, why))
}

#[cfg(feature = "cuda")]
fn real_gpus(choice: DeviceCriteria<'_>) -> Result<Vec<Device>, String> {
    super::cuda::find(choice)
}

#[cfg(not(feature = "cuda"))]
fn real_gpus(_: DeviceCriteria<'_>) -> Result<Vec<Device>, String> {
    match visible_gpus()?.len() {
        0 => Ok(Vec::new()),
        gpus => {
            Err(format!("{gpus} GPUs were found, but this build of longsift has no GPU support"))
        }
    }
}

fn simulate(choice: DeviceCriteria<'_>, value: &str) -> Result<GpuSearch, String> {
    let descriptions = simulated::describe(value, visible_gpus)?;
    let why = format!("{} simulated devices", descriptions.len());
    let Decimal(headroom_fraction) = choice.settings.headroom_fraction;
    let device = |(number, description): (usize, simulated::Description)| {
        let uuid = description.gpu.map(|gpu| gpu.uuid.to_owned());
        let (name, number_bytes) = (format!("cuda:{number}"), choice.precision.bytes());
        let device = SimulatedDevice::new(name, choice.kernel, number_bytes, description);
        let device = Arc::new(device);
        let headroom = (device.read()?.total as f64 * headroom_fraction) as u64;
        let ledger = Ledger::new(Arc::clone(&device) as _, headroom);
        Ok(Device { compute: device, ledger, workers: SIMULATED_WORKERS, uuid })
    };
    let gpus = descriptions.into_iter().enumerate().map(device).collect::<Result<_, String>>()?;
    tracing::warn!("{} is set: {why}, no real ones", simulated::VARIABLE);
    Ok((gpus, why))
}

/// Selects devices by name, each at most once.
fn named(
    names: &[String],
    wanted: &str,
    (gpus, why): GpuSearch,
) -> Result<Vec<Device>, BrokenRule> {
    let hint = "GPUs need an NVIDIA driver and a build with `--features cuda`; set `devices: cpu`, or `auto` to use GPUs if there are any";
    let refused =
        |why: String| BrokenRule::new("devices", format!("{wanted} cannot be used: {why}"), hint);
    let known: Vec<String> = gpus.iter().map(|device| device.compute.name().to_owned()).collect();
    if known.is_empty() {
        return Err(refused(why));
    }
    let mut list: Vec<Device> = Vec::new();
    for name in names {
        let Some(position) = known.iter().position(|known| known == name) else {
            let why = if name == "cpu" {
                "the processor runs another kernel than GPUs, and their scores are never mixed"
                    .to_owned()
            } else {
                format!("`{name}` does not exist; available are {}", known.join(", "))
            };
            return Err(refused(why));
        };
        if list.iter().any(|device| device.compute.name() == name) {
            return Err(refused(format!("`{name}` is listed twice")));
        }
        list.push(gpus[position].clone());
    }
    Ok(list)
}

fn set_workers(list: &mut [Device], workers: Option<&WorkersPerDevice>) -> Result<(), BrokenRule> {
    let given: Vec<usize> = match workers {
        None => return Ok(()),
        Some(WorkersPerDevice::Same(workers)) => vec![*workers as usize; list.len()],
        Some(WorkersPerDevice::Each(workers)) => {
            workers.iter().map(|workers| *workers as usize).collect()
        }
    };
    if given.len() != list.len() {
        let names: Vec<&str> = list.iter().map(|device| device.compute.name()).collect();
        let message = format!(
            "`workers_per_device`: expected one number per device ({}), got {}",
            names.join(", "),
            given.len()
        );
        let hint = "give one number for all, or one per device";
        return Err(BrokenRule::new("workers_per_device", message, hint));
    }
    for (device, workers) in list.iter_mut().zip(given) {
        device.workers = workers.max(1);
    }
    Ok(())
}
