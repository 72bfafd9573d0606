//! `weft htsim`: the command line of `htsim_uec`, the program of uet-htsim (commit 40ccb05), over weft's simulator.
//!
//! A call through a link named `htsim_uec` is a call of `weft htsim`, so scripts that call that program need no change.
//! The options become those of `weft run` ([`plan`]), and standard output gets the lines that scripts read
//! ([`lines`]).

mod lines;
mod options;
mod plan;

use crate::Failure;
use crate::interrupt::Interrupt;
use crate::resolve::Plan;
use crate::run;
use clap::Args;
use options::Options;
use plan::HtsimPlan;
use std::ffi::OsString;
use std::path::Path;

/// The name of a link through which the command is `weft htsim`.
const LINK: &str = "htsim_uec";

/// The words that follow `weft htsim`. They have one dash each, which clap does not read.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct HtsimArgs {
    /// Options of htsim_uec.
    #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The words of the command line, without the program's name, if the program was called through a link named
/// `htsim_uec`.
pub(crate) fn called_by_its_name(mut words: impl Iterator<Item = OsString>) -> Option<HtsimArgs> {
    let program = words.next()?;
    let name = Path::new(&program).file_name()?;
    (name == LINK).then(|| HtsimArgs { words: words.collect() })
}

/// Runs what `args` describe, and prints what `htsim_uec` prints of it. Flows that have not finished when the time is over
/// are no failure: they have no line.
pub(crate) fn htsim(
    args: &HtsimArgs,
    catch_signals: impl FnOnce() -> Result<Interrupt, Failure>,
) -> Result<(), Failure> {
    let Some(options) = Options::parse(&args.words)? else {
        return print(&options::help());
    };
    let plan = HtsimPlan::new(&options)?;
    let interrupt = catch_signals()?;
    options.notes().iter().for_each(|note| eprintln!("weft: {note}"));
    print(&format!("weft run {}\n", plan.command()))?;
    let report = run::simulate_plan(plan.plan(), &interrupt)?;
    print(&lines::of(&report, plan.plan(), options.reuses_connections()))?;
    interrupt.failure("").map_or(Ok(()), Err)
}

/// The arguments of `weft run` that make the run of `words`, which follow `weft htsim`, and its plan.
pub(crate) fn as_run(words: &[OsString]) -> Result<(Vec<String>, Plan), Failure> {
    let options = Options::parse(words)?;
    let options = options.ok_or_else(|| Failure::Usage("-help: expected options of a run".to_owned()))?;
    HtsimPlan::new(&options).map(HtsimPlan::into_run)
}

fn print(text: &str) -> Result<(), Failure> {
    crate::print(text.as_bytes()).map_err(|error| Failure::Run(format!("standard output: {error}")))
}
