//! Choice of the devices that measure windows, and of how much of their memory may be used.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::Decimal;

/// Chooses the devices that score windows, and how much of their memory may be used. Scores do not depend on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShardAcrossDevices {
    /// `auto` (default: GPUs where the program finds any, else the CPU), `cpu`, a number of GPUs, or a list like
    /// `[cuda:0, cuda:1]`.
    #[serde(default)]
    pub devices: Devices,
    /// Share of each device's memory that is never used, 0 to 0.9. Default 0.15: other programs share the device, and
    /// drivers need room of their own.
    #[serde(default = "default_headroom_fraction")]
    #[schemars(range(min = 0.0, max = 0.9))]
    pub headroom_fraction: Decimal,
    /// How many windows a device has in flight at most: one number, or one per device. Default: 2 on a GPU,
    /// which measures one while the other is prepared; as many as there are threads on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_per_device: Option<WorkersPerDevice>,
    /// What is handed out to devices: whole `windows` (default), or the `heads` of one window across devices.
    #[serde(default)]
    pub by: ShardBy,
    /// How long to wait, when not even one head of a window fits any device, for other programs to give memory back
    /// before the window's row is set aside (0 to 86,400). Default 300: restarts of a neighbour pass, a full card does not.
    #[serde(default = "default_memory_wait_seconds")]
    #[schemars(range(min = 0, max = 86_400))]
    pub memory_wait_seconds: u32,
    /// Key heads of a window that are measured at once on a device, at most (1 to 4,096). Default: all, or as many as fit
    /// its memory. `longsift tune` finds out what is fastest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub key_heads_at_once: Option<u32>,
}

impl Default for ShardAcrossDevices {
    fn default() -> Self {
        Self {
            devices: Devices::default(),
            headroom_fraction: default_headroom_fraction(),
            workers_per_device: None,
            by: ShardBy::default(),
            memory_wait_seconds: default_memory_wait_seconds(),
            key_heads_at_once: None,
        }
    }
}

fn default_headroom_fraction() -> Decimal {
    Decimal(0.15)
}

fn default_memory_wait_seconds() -> u32 {
    300
}

/// Which devices score windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Devices {
    /// `auto` or `cpu`.
    Kind(DeviceKind),
    /// The first N GPUs.
    Count(#[schemars(range(min = 1, max = 64))] u32),
    /// Devices by name.
    Names(#[schemars(length(min = 1))] Vec<String>),
}

impl Default for Devices {
    fn default() -> Self {
        Self::Kind(DeviceKind::Auto)
    }
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// GPUs where there are any, else the CPU.
    Auto,
    /// The processor.
    Cpu,
}

/// How many windows a device has in flight at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum WorkersPerDevice {
    /// The same for every device.
    Same(#[schemars(range(min = 1, max = 64))] u32),
    /// One number per device, in the order of `devices`.
    Each(#[schemars(length(min = 1))] Vec<u32>),
}

/// What is handed out to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ShardBy {
    /// Whole windows.
    #[default]
    Windows,
    /// The heads of one window.
    Heads,
}
