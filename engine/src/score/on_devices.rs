//! Runs a function while the schedulers and the monitors of a plan's devices are active.

use longsift_stages::first_layer_attention::FirstLayer;

use super::context::{OnDevices, ScoreContext};
use super::passes::{ModelOnDevices, PassScheduler, Passes};
use super::watch::Watch;
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::stop::Stop;
use crate::devices::scheduler::Scheduler;
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::run_directory::layout::RunDirectory;
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

/// Runs `work` with the devices of all whole models; returns its result and the use of GPUs. `watched`: for their monitors.
pub fn run_models<T>(
    plan: &Plan,
    stop: &Stop,
    watched: Option<(&RunDirectory, &Progress)>,
    work: impl FnOnce(&[ModelOnDevices<'_>]) -> Result<T>,
) -> (Result<T>, Option<DeviceUse>) {
    let passes: Vec<_> =
        plan.whole_models.iter().map(|(index, whole)| (*index, Passes::new(whole, stop))).collect();
    let schedulers: Vec<_> = passes.iter().map(|(_, passes)| passes.scheduler()).collect();
    let models = passes.iter().zip(&schedulers).map(|((index, passes), scheduler)| {
        let on_gpus = scheduler.devices.iter().any(|device| device.compute.name() != "cpu");
        let watch = |(directory, progress)| Watch::new(directory, progress, scheduler.devices);
        let watch = watched.filter(|_| on_gpus).map(watch);
        ModelOnDevices { measure_index: *index, passes, scheduler, watch }
    });
    let models: Vec<ModelOnDevices<'_>> = models.collect();
    let done = PassScheduler::run_all(&schedulers, || {
        let done = work(&models);
        for model in &models {
            model.watch.as_ref().map_or(Ok(()), |watch| watch.finish(model.scheduler))?;
        }
        done
    });
    let uses = models.into_iter().filter_map(|model| model.watch).map(Watch::into_use);
    (done, uses.reduce(DeviceUse::merged_with))
}
