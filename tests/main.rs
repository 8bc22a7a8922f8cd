//! Integration tests in one binary: every test runs the real `longsift` in a temporary folder.

#[cfg(test)]
mod audit;
#[cfg(test)]
mod bad_data;
#[cfg(test)]
#[cfg(feature = "cloud")]
mod bucket;
#[cfg(test)]
mod cascade;
#[cfg(test)]
mod changed_input;
#[cfg(test)]
mod checkpoint_formats;
mod checks;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod concurrent;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod determinism;
#[cfg(test)]
mod device_faults;
#[cfg(test)]
mod devices;
#[cfg(test)]
mod documentation;
mod edges;
#[cfg(test)]
mod eight_devices;
#[cfg(test)]
mod evaluate;
#[cfg(test)]
mod evaluate_heads;
#[cfg(test)]
mod evaluate_labels;
#[cfg(test)]
mod evaluate_natural;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod external;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod folders;
#[cfg(test)]
mod formats;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod hub;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod increments;
#[cfg(test)]
mod integrity;
#[cfg(test)]
mod kill_campaign;
#[cfg(test)]
mod language_model;
mod later_scores;
#[cfg(test)]
mod lines;
#[cfg(test)]
mod load;
#[cfg(test)]
mod map;
#[cfg(test)]
mod map_layers;
#[cfg(test)]
mod marks;
#[cfg(test)]
mod measures;
#[cfg(test)]
mod mirror;
#[cfg(test)]
mod model_devices;
#[cfg(test)]
mod observers;
#[cfg(test)]
mod output;
#[cfg(test)]
mod part_sizes;
#[cfg(test)]
mod passthrough;
#[cfg(test)]
mod perplexity;
#[cfg(test)]
mod plans;
#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod presets;
#[cfg(test)]
mod published_rankings;
#[cfg(test)]
mod quarantine;
#[cfg(test)]
mod random_scores;
#[cfg(test)]
mod ranking;
#[cfg(test)]
mod remote_models;
#[cfg(test)]
mod report;
#[cfg(test)]
mod resume;
#[cfg(test)]
mod reuse;
#[cfg(test)]
mod robust;
#[cfg(test)]
mod rooms;
#[cfg(test)]
mod sampled_rows;
#[cfg(test)]
mod sampled_windows;
#[cfg(test)]
mod scales;
#[cfg(test)]
mod selected;
#[cfg(test)]
#[cfg(feature = "cloud")]
mod servers;
#[cfg(test)]
mod shards;
#[cfg(test)]
mod silent_loss;
#[cfg(test)]
mod stopped;
#[cfg(test)]
#[cfg(feature = "cloud")]
mod store_kills;
#[cfg(test)]
#[cfg(feature = "cloud")]
mod store_output;
#[cfg(test)]
mod stores;
#[cfg(test)]
mod supply_chain;
#[cfg(test)]
mod support;
#[cfg(test)]
mod untouched;
#[cfg(test)]
mod whatif;
#[cfg(test)]
mod whole_models;
#[cfg(test)]
mod windows;
#[cfg(test)]
mod without_model;
