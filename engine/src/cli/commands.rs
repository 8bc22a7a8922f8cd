//! Dispatch of commands: one function per command.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;

use clap::{CommandFactory, Parser};

use super::answer::{
    answer, answer_with, check_output_paths, color, eprint, is_printed, print, print_line,
    refuse_result_folder, report, report_failure, terminal_text, unknown_name, write_page,
    write_requested,
};
use super::planned::{make_plan, make_plan_with, named_run, plan_options, refuse_without_effect};
use super::run::run;
use super::validate::validate;
use super::{cache, logging};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{DONE, Result};
use crate::base::progress::Progress;
use crate::base::secrets::shown;
use crate::base::stop::Stop;
use crate::base::text::json_safe;
use crate::cli::{
    AnswerFormat, BenchArguments, Cli, Command, EvaluateArguments, ExplainArguments, LogFormat,
    ManualFormat, MapArguments, PlanArguments,
};
use crate::devices::catalogue;
use crate::plan::explain::{PlanExplanation, json};
use crate::plan::identity::{Digests, whole_model_digests};
use crate::plan::lock;
use crate::plan::options::{PlanOptions, Subject};
use crate::plan::sizing::Sizing;
use crate::report::diff::diff;
use crate::report::verify::verify;
use crate::report::whatif::whatif;
use crate::report::{overview, status};
use crate::run::finished::done;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::pipeline_lock::{self, PipelineLock};
use crate::spec::Overrides;
use crate::storage::files;
use crate::storage::marked::{self, Mark};
use crate::storage::store::is_address;
use crate::tools::bench::{self, chart};
use crate::tools::{
    evaluate, explain, forward, inspect, lengths, map, reference, reference_pages, tokens, tune,
};

const MAX_IDS_BYTES: u64 = 16 << 20;

/// Runs the command of the command line and returns the exit code.
pub fn main() -> u8 {
    match Cli::try_parse() {
        Ok(cli) => run_command(&cli),
        Err(refused) => {
            // An unexpected argument may be an address with a password.
            match shown(&refused.render().to_string()) {
                Cow::Owned(public) => eprint(&public),
                Cow::Borrowed(_) => _ = refused.print(),
            }
            refused.exit_code() as u8
        }
    }
}

/// Runs a command, reports a failure once and returns the exit code.
fn run_command(cli: &Cli) -> u8 {
    let bars = matches!(
        cli.command,
        Command::Run(_) | Command::Bench(_) | Command::Evaluate(_) | Command::Map(_)
    ) && std::io::stderr().is_terminal()
        && !cli.quiet
        && cli.log_format == LogFormat::Text;
    logging::start(cli, bars);
    // First, because any command may write files.
    let answered = Stop::ignore_file_size_signal().and_then(|()| command(cli, bars));
    answered.unwrap_or_else(|failure| {
        report_failure(cli, &failure);
        failure.exit_code()
    })
}

fn command(cli: &Cli, bars: bool) -> Result<u8> {
    match &cli.command {
        Command::Run(arguments) => run(cli, arguments, bars),
        Command::Validate { arguments, format } => validate(cli, arguments, *format),
        Command::Test(arguments) => super::fixtures::test(arguments),
        Command::Plan { arguments, devices, format } => {
            plan(cli, arguments, devices.as_deref(), *format)
        }
        Command::Devices(arguments) => super::devices::devices(arguments),
        Command::Tune { arguments, seconds, html, format } => {
            tune(cli, arguments, *seconds, html.as_deref(), *format)
        }
        Command::Status(arguments) if arguments.watch => super::status::watch(arguments),
        Command::Status(arguments) => {
            answer(arguments.format, &status::read(&RunDirectory::open(&arguments.run_dir)?)?)
        }
        Command::Verify { run_dir, format } => {
            let found = verify(&RunDirectory::open(run_dir)?)?;
            answer(*format, &found)?;
            Ok(found.exit_code())
        }
        Command::Diff { first, second, documents, format } => {
            let (first, second) = (RunDirectory::open(first)?, RunDirectory::open(second)?);
            let difference = diff(&first, &second, *documents)?;
            answer(*format, &difference)?;
            Ok(difference.exit_code())
        }
        Command::Report { run_dir, html, no_text, format } => {
            check_output_paths([(html.as_deref(), Mark::PAGE)])?;
            let overview = overview::read(&RunDirectory::open(run_dir)?, !no_text)?;
            answer_with(*format, || overview.to_string(), &overview.json())?;
            write_requested(html.as_deref(), Mark::PAGE, || overview.page().into_bytes())?;
            Ok(DONE)
        }
        Command::Whatif { run_dir, set, list, format } => {
            let overrides = Overrides { set: set.clone(), ..Overrides::default() };
            let stop = Stop::on_signals()?;
            let found = whatif(&RunDirectory::open(run_dir)?, &overrides, *list, &stop)?;
            report(cli, &found.warnings);
            answer(*format, &found)
        }
        Command::Schema { name } => schema(name.as_deref()),
        Command::Stages { name } => stages(cli, name.as_deref()),
        Command::Init(arguments) => super::init::init(cli, arguments),
        Command::Inspect { model_dir, forward: Some(ids), backend, format } => {
            let text = files::read_limited(ids, MAX_IDS_BYTES)?;
            let ids = forward::token_ids(ids, &text)?;
            answer(*format, &forward::forward(model_dir, &ids, backend.name())?)
        }
        Command::Inspect { model_dir, forward: None, backend: _, format } => {
            answer(*format, &inspect::inspect(model_dir)?)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "longsift", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Cache(arguments) => answer(arguments.format, &cache::cache(arguments)?),
        Command::Manual { folder, format } => manual(folder, *format),
        Command::Lock(arguments) => write_lock(cli, arguments),
        Command::Bench(arguments) => bench(cli, arguments, bars),
        Command::Evaluate(arguments) => evaluate(cli, arguments, bars),
        Command::Explain(arguments) => explain(cli, arguments),
        Command::Map(arguments) => map(cli, arguments, bars),
        Command::Tokens { arguments, ids } => {
            let plan = make_plan(cli, arguments)?;
            let run = named_run(arguments)?;
            tokens::print(&plan, run.as_ref(), *ids, |line| is_printed(&format!("{line}\n")))?;
            Ok(DONE)
        }
    }
}

fn plan(
    cli: &Cli,
    arguments: &PlanArguments,
    absent: Option<&str>,
    format: AnswerFormat,
) -> Result<u8> {
    let cards = absent.map(catalogue::cards).transpose()?;
    let mut options = plan_options(arguments);
    options.devices_absent = cards.is_some();
    let mut plan = make_plan_with(cli, arguments, options)?;
    let sample = lengths::sample(&plan);
    let lost = sample.quarantine_warning(&plan).into_iter().chain(sample.dropped_warning(&plan));
    let warnings: Vec<_> = lost.collect();
    report(cli, &warnings);
    plan.warnings.extend(warnings);
    plan.estimate.windows = sample.windows().unwrap_or(plan.estimate.windows);
    plan.estimate.tokens = sample.tokens().unwrap_or(plan.estimate.tokens);
    let sizing = cards.map(|cards| Sizing::new(&plan, &cards)).transpose()?;
    if let Some(sizing) = &sizing {
        report(cli, &sizing.warnings);
        plan.warnings.extend(sizing.warnings.iter().cloned());
    }
    let done = done(&plan)?;
    if !done.finished {
        plan.check_output()?;
    }
    let refused = done.refused.clone();
    let explanation = PlanExplanation { plan: &plan, done, sizing, sample };
    answer_with(format, || explanation.to_string(), &json(&explanation))?;
    refused.map_or(Ok(DONE), |refused| Err(refused.into()))
}

fn write_lock(cli: &Cli, arguments: &PlanArguments) -> Result<u8> {
    let path = pipeline_lock::path_next_to(&arguments.pipeline.pipeline);
    marked::check(&path, PipelineLock::MARK)?;
    let plan = make_plan(cli, arguments)?;
    let weights = plan.attention.as_ref().map(|attention| -> Result<String> {
        match longsift_stages::model::known_weights_digest(&attention.model, &plan.cache_folder) {
            Some(weights) => Ok(weights),
            None => Ok(plan.open_table(attention, &|_, _| {})?.weights_digest),
        }
    });
    let weights = weights.transpose()?;
    let whole = whole_model_digests(&plan.whole_models, &BTreeMap::new(), &plan.options.stop)?;
    lock::lock(&plan, &Digests::new(&plan, weights, whole)?).write_next_to(&path)?;
    print_line(&terminal_text(&format!("wrote `{}`", path.display())))
}

fn bench(cli: &Cli, arguments: &BenchArguments, bars: bool) -> Result<u8> {
    if let Some(problem) = arguments.options.problem() {
        return Err(problem.into());
    }
    check_output_paths([
        (arguments.json.as_deref(), BENCH),
        (arguments.chart.as_deref(), Mark::DRAWING),
        (arguments.html.as_deref(), Mark::PAGE),
    ])?;
    let bench = bench::bench(&arguments.options, &Progress::new(bars), &|measurement| {
        if !cli.quiet {
            eprint(&format!("{measurement}\n"));
        }
    })?;
    let json = || serde_json::to_vec_pretty(&bench).expect("plain data");
    write_requested(arguments.json.as_deref(), BENCH, json)?;
    let drawing = || chart::draw(&bench).into_bytes();
    write_requested(arguments.chart.as_deref(), Mark::DRAWING, drawing)?;
    write_page(arguments.html.as_deref(), || chart::page(&bench))?;
    print(&bench.to_string())
}

fn schema(name: Option<&str>) -> Result<u8> {
    let schemas = reference::schemas();
    let names: Vec<&str> = schemas.iter().map(|(name, _)| *name).collect();
    let Some(name) = name else { return print_line(&names.join("\n")) };
    match schemas.iter().find(|(known, _)| *known == name) {
        Some((_, schema)) => print(&reference::schema_text(schema)),
        None => Err(unknown_name("schema", name, &names)),
    }
}

fn stages(cli: &Cli, name: Option<&str>) -> Result<u8> {
    let width = 100;
    match reference::stage_page(name, width, color(cli, std::io::stdout().is_terminal())) {
        Some(page) => print(&page),
        None => Err(unknown_name("stage", name.unwrap_or_default(), &reference::page_names())),
    }
}

const BENCH: Mark = Mark::Keys(&["longsift", "figures"]);

const MANUAL: &str = "<!-- written by longsift manual -->";

fn manual(folder: &Path, format: ManualFormat) -> Result<u8> {
    let command = Cli::command();
    refuse_result_folder(folder)?;
    files::create_folder(folder)?;
    let (mark, pages): (Mark, Vec<(String, Vec<u8>)>) = match format {
        ManualFormat::Markdown => {
            let pages = reference_pages::pages(&command).into_iter();
            let marked = |text: String| format!("{text}\n{MANUAL}\n").into_bytes();
            let pages = pages.map(|(name, text)| (name.to_owned(), marked(text)));
            (Mark::Contains(MANUAL), pages.collect())
        }
        ManualFormat::Man => {
            let mut built = command.disable_help_subcommand(true);
            built.build();
            let page_of = |command: clap::Command| {
                let page = clap_mangen::Man::new(command);
                let mut text = Vec::new();
                page.render(&mut text).expect("writing to memory does not fail");
                (page.get_filename(), text)
            };
            let subcommands = built.get_subcommands().cloned();
            let pages = std::iter::once(built.clone()).chain(subcommands).map(page_of);
            (Mark::Contains(".TH longsift"), pages.collect())
        }
    };
    let paths: Vec<_> = pages.iter().map(|(name, _)| folder.join(name)).collect();
    paths.iter().try_for_each(|path| marked::check(path, mark))?;
    for (path, (_, text)) in paths.iter().zip(&pages) {
        marked::write(path, mark, text)?;
    }
    print_line(&terminal_text(&format!("wrote {} pages into `{}`", pages.len(), folder.display())))
}

fn tune(
    cli: &Cli,
    arguments: &PlanArguments,
    seconds: f64,
    html: Option<&Path>,
    format: AnswerFormat,
) -> Result<u8> {
    check_output_paths([(html, Mark::PAGE)])?;
    let options = PlanOptions { stop: Stop::on_signals()?, ..plan_options(arguments) };
    let plan = make_plan_with(cli, arguments, options)?;
    let tuned = tune::tune(&plan, seconds)?;
    write_page(html, || tuned.page())?;
    answer(format, &tuned)
}

const EVALUATION: Mark = Mark::Keys(&["pipeline", "seed"]);

fn evaluate(cli: &Cli, arguments: &EvaluateArguments, bars: bool) -> Result<u8> {
    refuse_without_effect(
        &arguments.plan,
        "an evaluation",
        ["its windows are not those of a run", "it samples the whole input"],
    )?;
    let mut plan = make_plan(cli, &arguments.plan)?;
    let options = &arguments.options;
    plan.options.stop = Stop::on_signals()?;
    let progress = Progress::new(bars);
    let folder = evaluate::folder(&plan, options);
    if is_address(&folder) {
        let message = format!("`{}` is not a folder on this machine", folder.display());
        let hint =
            "an evaluation stores its measurements on this machine: name a folder with `--out`";
        return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
    }
    let file = folder.join("evaluation.json");
    check_output_paths([(arguments.html.as_deref(), Mark::PAGE), (Some(&file), EVALUATION)])?;
    files::create_folder(&folder)?;
    if arguments.dry_run {
        let would = evaluate::with_evaluator(&plan, options, &progress, evaluate::dry_run)?;
        progress.finish();
        return answer(arguments.format, &would);
    }
    let found = evaluate::with_evaluator(&plan, options, &progress, evaluate::evaluate)?;
    progress.finish();
    let json = serde_json::to_value(&found).expect("plain data");
    marked::write(&file, EVALUATION, json_safe(&format!("{json:#}\n")).as_bytes())?;
    answer_with(arguments.format, || found.text(arguments.details), &json)?;
    write_page(arguments.html.as_deref(), || found.page())?;
    Ok(DONE)
}

fn explain(cli: &Cli, arguments: &ExplainArguments) -> Result<u8> {
    let needless = ["the window is measured again", "the window is searched in the whole input"];
    refuse_without_effect(&arguments.plan, "one window", needless)?;
    check_output_paths([(arguments.html.as_deref(), Mark::PAGE)])?;
    let plan = make_plan(cli, &arguments.plan)?;
    let run = named_run(&arguments.plan)?;
    let found = explain::explain(&plan, run.as_ref(), &arguments.sample, arguments.layer)?;
    answer(arguments.format, &found)?;
    write_page(arguments.html.as_deref(), || found.page())?;
    Ok(DONE)
}

fn map(cli: &Cli, arguments: &MapArguments, bars: bool) -> Result<u8> {
    let needless =
        ["the document is measured again", "the document is searched in the whole input"];
    refuse_without_effect(&arguments.plan, "a map", needless)?;
    // Signals are not caught: one pass leaves nothing to resume.
    let messages = arguments.options.messages.clone();
    let subject = messages.map_or(Subject::Document, Subject::Conversation);
    let options = PlanOptions { subject, ..plan_options(&arguments.plan) };
    check_output_paths([
        (arguments.html.as_deref(), Mark::PAGE),
        (arguments.png.as_deref(), Mark::IMAGE),
        (arguments.parquet.as_deref(), Mark::TABLE),
    ])?;
    let plan = make_plan_with(cli, &arguments.plan, options)?;
    let progress = Progress::new(bars);
    let run = named_run(&arguments.plan)?;
    let map = map::map(&plan, run.as_ref(), &arguments.options, &progress)?;
    progress.finish();
    answer(arguments.format, &map)?;
    write_page(arguments.html.as_deref(), || map.page())?;
    write_requested(arguments.png.as_deref(), Mark::IMAGE, || map.png())?;
    write_requested(arguments.parquet.as_deref(), Mark::TABLE, || map.parquet())?;
    Ok(DONE)
}
