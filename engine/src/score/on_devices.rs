//! Runs a function while the scheduler and the monitor of a plan's devices are active.

use longsift_stages::first_layer_attention::FirstLayer;

use super::context::{OnDevices, ScoreContext};
use super::watch::Watch;
use crate::base::error::Result;
use crate::devices::scheduler::Scheduler;
use crate::plan::attention::Attention;
use crate::run_directory::summary::DeviceUse;

/// Runs `work` with devices in its context; returns its result and the use of the devices.
pub fn run<T>(
    context: ScoreContext<'_>,
    attention: &Attention,
    layer: &FirstLayer,
    work: impl FnOnce(ScoreContext<'_>) -> Result<T>,
) -> (Result<T>, DeviceUse) {
    let devices = &attention.devices;
    tracing::info!(
        devices = devices.names(),
        why = devices.why,
        kernel = devices.kernel.name(),
        "measuring windows"
    );
    let watch = Watch::new(&context.plan.directory, context.progress, &devices.list);
    let done = Scheduler::run(&devices.list, layer, attention.policy(), |scheduler| {
        let on_devices = OnDevices { attention, scheduler, watch: &watch };
        let done = work(ScoreContext { devices: Some(on_devices), ..context });
        context.progress.took("first-layer-attention", scheduler.busy());
        watch.finish(scheduler)?;
        done
    });
    (done, watch.into_use())
}
