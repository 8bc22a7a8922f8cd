//! Reference as Markdown, generated from the same doc comments as the JSON Schemas, `longsift stages` and `--help`.

use std::fmt::Write as _;

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction};
use longsift_stages::contract::Kind as ColumnKind;
use longsift_stages::{Role, StageSettings};

use super::reference::{SettingText, about, page_names, schemas, settings_of};
use crate::base::error::EXIT_CODES;
use crate::spec::rules::contract;
use crate::spec::schema;

/// Returns the file name and the text of every page. `command`: the command line.
pub fn pages(command: &clap::Command) -> Vec<(&'static str, String)> {
    vec![
        ("pipeline.md", pipeline()),
        ("commands.md", commands(command)),
        ("summary.md", summary()),
        ("exit-codes.md", exit_codes()),
    ]
}

fn pipeline() -> String {
    let mut out = String::from(
        "# Pipeline file\n\nEvery setting with its default. `longsift stages NAME` prints the same on a terminal.\n",
    );
    for name in page_names() {
        let _ = write!(out, "\n## {name}\n\n{}\n", escaped(&about(name)));
        write_settings(&settings_of(name), "###", &format!("{name}."), &mut out);
        statistics(name, &mut out);
    }
    out
}

fn write_settings(settings: &[SettingText], heading: &str, path: &str, out: &mut String) {
    for SettingText { key, takes, doc, names, items } in settings {
        let _ = write!(out, "\n{heading} `{path}{key}`\n\n*{}*\n", escaped(takes));
        let _ = write!(out, "\n{}\n", escaped(doc));
        if !names.is_empty() {
            out.push('\n');
        }
        for (name, meaning) in names {
            let _ = writeln!(out, "* `{name}`: {}", escaped(meaning).replace('\n', " "));
        }
        write_settings(items, "####", &format!("{path}{key}[]."), out);
    }
}

fn statistics(name: &str, out: &mut String) {
    let stage = contract(name);
    let Some(Role::Measure(measure)) = stage.as_ref().map(StageSettings::role) else { return };
    out.push_str("\n### Statistics\n\n| column | type | unit | |\n|---|---|---|---|\n");
    for column in measure.columns() {
        let kind = match column.kind {
            ColumnKind::Number => "number",
            ColumnKind::Count => "count",
            ColumnKind::Numbers => "list of numbers",
        };
        let doc = cell(&column.doc);
        let _ = writeln!(out, "| `{}` | {kind} | {} | {doc} |", column.name, cell(&column.unit));
    }
}

fn commands(command: &clap::Command) -> String {
    let mut out = String::from("# Commands\n\nFor all commands:\n\n");
    let mut built = command.clone();
    built.build();
    for argument in built.get_arguments().filter(|argument| argument.is_global_set()) {
        argument_of(argument, &mut out);
    }
    for subcommand in built.get_subcommands().filter(|found| found.get_name() != "help") {
        let about = subcommand.get_long_about().or_else(|| subcommand.get_about());
        let about = about.map_or_else(String::new, |about| sentence(&about.to_string()));
        let usage = subcommand.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        let _ = write!(
            out,
            "\n## longsift {}\n\n{about}\n\n```text\n{usage}\n```\n\n",
            subcommand.get_name()
        );
        let own = |argument: &&Arg| {
            let id = argument.get_id().as_str();
            !argument.is_global_set() && !argument.is_hide_set() && id != "help" && id != "version"
        };
        for argument in subcommand.get_arguments().filter(own) {
            argument_of(argument, &mut out);
        }
    }
    out
}

fn argument_of(argument: &Arg, out: &mut String) {
    let takes_value = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let value = argument.get_value_names().and_then(|names| names.first());
    let value =
        value.map_or_else(|| argument.get_id().as_str().to_uppercase(), ToString::to_string);
    let mut name = match argument.get_long() {
        Some(long) if takes_value => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None => value,
    };
    if let Some(short) = argument.get_short() {
        name = format!("-{short}, {name}");
    }
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let help = help.map_or_else(String::new, |help| sentence(&help.to_string()));
    let _ = write!(out, "* `{name}`: {help}");
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value && !defaults.is_empty() {
        let _ = write!(out, " Default `{}`.", defaults.join(","));
    }
    out.push('\n');
    if takes_value {
        for value in argument.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
            let help = PossibleValue::get_help(value);
            let help =
                help.map_or_else(String::new, |help| format!(": {}", escaped(&help.to_string())));
            let _ = writeln!(out, "  * `{}`{help}", value.get_name());
        }
    }
}

fn summary() -> String {
    let schemas = schemas();
    let (_, schema) = schemas.iter().find(|(name, _)| *name == "summary").expect("it is listed");
    let mut out = format!(
        "# Summary\n\n{} `longsift schema summary` prints its JSON Schema.\n\n| field | |\n|---|---|\n",
        escaped(schema::description(schema))
    );
    for (name, field) in schema::properties(schema) {
        let _ = writeln!(out, "| `{name}` | {} |", cell(schema::description(field)));
    }
    out
}

fn exit_codes() -> String {
    let mut out =
        String::from("# Exit codes\n\n| code | meaning | worth a retry |\n|---|---|---|\n");
    for (code, meaning, retry) in EXIT_CODES {
        let _ = writeln!(out, "| {code} | {meaning} | {retry} |");
    }
    out
}

/// Returns a help text on one line, with the full stop that clap removes from short ones.
fn sentence(text: &str) -> String {
    let text = escaped(text).replace('\n', " ");
    if text.is_empty() || text.ends_with(['.', ':', '?']) { text } else { text + "." }
}

/// Escapes a doc comment so that nothing is interpreted as a tag.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_code = false;
    for character in text.chars() {
        is_code ^= character == '`';
        match character {
            '<' if !is_code => out.push_str("&lt;"),
            '>' if !is_code => out.push_str("&gt;"),
            _ => out.push(character),
        }
    }
    out
}

/// Escapes a doc comment for a table cell.
fn cell(text: &str) -> String {
    escaped(text).replace('\n', " ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn pages_contain_every_setting_command_and_field() {
        let pages = pages(&clap::Command::new("longsift").subcommand(Probe::command()));
        let text = |name: &str| &pages.iter().find(|(page, _)| *page == name).unwrap().1;
        for heading in [
            "### `tokenize.window_tokens`",
            "#### `filter.guards[].max_quantile`",
            "#### `score.terms[].weight`",
            "### `checks.figure`",
            "| `far_recurrence` | number |",
        ] {
            assert!(text("pipeline.md").contains(heading), "{heading}");
        }
        let commands = text("commands.md");
        assert!(commands.contains("## longsift probe\n\nTries it.\n"), "{commands}");
        assert!(
            commands.contains("* `-s, --steps N`: How many &lt;steps&gt;. Default `3`.\n"),
            "{commands}"
        );
        assert!(text("summary.md").contains("| `rows_kept` |"));
        assert!(text("exit-codes.md").contains("| 6 |"));
    }

    /// Tries it.
    #[derive(clap::Parser)]
    #[command(name = "probe")]
    struct Probe {
        /// How many <steps>.
        #[arg(short, long, value_name = "N", default_value_t = 3)]
        steps: u32,
    }
}
