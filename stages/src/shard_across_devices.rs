//! Choice of the devices that measure windows, and of how much of their memory may be used.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::Decimal;

/// Selects the devices that measure windows, and how much of their memory may be used. Scores do not depend on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShardAcrossDevices {
    /// `auto` (default: GPUs if any are found, else the CPU), `cpu`, a number of GPUs, or a list like `[cuda:0,
    /// cuda:1]`.
    #[serde(default)]
    pub devices: DeviceSettings,
    /// Share of each device's memory that is never used, 0 to 0.9. Default 0.15, which leaves room for other programs
    /// and the driver.
    #[serde(default = "default_headroom_fraction")]
    #[schemars(range(min = 0.0, max = 0.9))]
    pub headroom_fraction: Decimal,
    /// Maximum windows in flight per device: one number, or a list with one per device. Default: 2 on a GPU, so that
    /// one is prepared while the other is measured; the number of threads on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_per_device: Option<WorkersPerDevice>,
    /// Unit of work of a device: whole `windows` (default), or some `heads` of a window, so that several devices share
    /// one window.
    #[serde(default)]
    pub by: ShardBy,
    /// Maximum seconds to wait for other programs to release memory when not even one head of a window fits any device
    /// (0 to 86,400). Then the window's row is quarantined. Default 300, long enough for another program to restart.
    #[serde(default = "default_memory_wait_seconds")]
    #[schemars(range(min = 0, max = 86_400))]
    pub memory_wait_seconds: u32,
    /// Maximum key heads of a window that a device measures at once (1 to 4,096). Default: as many as fit its memory.
    /// `longsift tune` finds the fastest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub key_heads_at_once: Option<u32>,
}

impl Default for ShardAcrossDevices {
    fn default() -> Self {
        serde_json::from_str("{}").expect("every setting has a default")
    }
}

fn default_headroom_fraction() -> Decimal {
    Decimal(0.15)
}

fn default_memory_wait_seconds() -> u32 {
    300
}

/// Devices that measure windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Devices")]
pub enum DeviceSettings {
    /// `auto` or `cpu`.
    Kind(DeviceKind),
    /// The first N GPUs.
    Count(#[schemars(range(min = 1, max = 64))] u32),
    /// Devices by name.
    Names(#[schemars(length(min = 1))] Vec<String>),
}

impl Default for DeviceSettings {
    fn default() -> Self {
        Self::Kind(DeviceKind::Auto)
    }
}

/// Kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// GPUs if there are any, else the CPU.
    Auto,
    /// CPU.
    Cpu,
}

/// Maximum windows in flight per device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum WorkersPerDevice {
    /// Same number for every device.
    Same(#[schemars(range(min = 1, max = 64))] u32),
    /// One number per device, in the order of `devices`.
    Each(#[schemars(length(min = 1))] Vec<u32>),
}

/// Unit of work for devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ShardBy {
    /// Whole windows.
    #[default]
    Windows,
    /// Heads of one window.
    Heads,
}
