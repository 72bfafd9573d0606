//! The `weft` command, as a library for its own binary and for the fuzz targets.
#![forbid(unsafe_code)]

mod backoff;
mod chart;
mod choices;
mod cli;
mod columnar;
mod doctor;
mod failure;
mod goal;
mod htsim;
mod interrupt;
mod list;
mod live;
mod logs;
mod loopback;
mod matrix;
mod options;
mod output;
mod parent;
mod perf;
mod plot;
mod port_spec;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod properties;
mod ranks;
mod report;
mod reproduce;
mod resolve;
mod run;
mod sample;
mod serve;
mod settings;
mod soft;
mod stats;
mod sweep;
mod testbed;
mod text;
mod trace;
mod udp;
mod units;
mod usage;
mod zones;

use clap::Parser;
use clap::error::ErrorKind;
use cli::{Cli, Command};
pub(crate) use failure::Failure;
use interrupt::Interrupt;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs the command that the arguments of this process ask for.
pub fn main() -> ExitCode {
    let outcome = match command_line() {
        Ok(cli) => logs::begin().and_then(|()| dispatch(cli.command)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            _ => {
                let help = cli::help(std::env::args_os().skip(1));
                Err(Failure::Usage(format!("{} (see {help})", options::one_line(&error))))
            }
        },
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("weft: {failure}");
            ExitCode::from(failure.status())
        }
    }
}

/// The command that was asked for, by a word or by the name of the link that led here.
fn command_line() -> Result<Cli, clap::Error> {
    match htsim::called_by_its_name(std::env::args_os()) {
        Some(args) => Ok(Cli { command: Command::Htsim(args) }),
        None => Cli::try_parse(),
    }
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => run::run(&args, Interrupt::on_signals),
        Command::Htsim(args) => htsim::htsim(&args, Interrupt::on_signals),
        Command::Sweep(args) => sweep::sweep(&args),
        Command::SweepRun { parent, rehearse, run } => sweep::one_run(parent, rehearse, &run),
        Command::Reproduce(args) => reproduce::reproduce(&args),
        Command::Plot(args) => plot::plot(&args),
        Command::Perf(args) => perf::perf(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Testbed(args) => testbed::testbed(&args),
        Command::Matrix(args) => matrix::matrix(&args),
        Command::Goal(args) => goal::goal(&args),
        Command::RunHost { parent_process, number, run } => {
            let plan = resolve::resolve(&run);
            let outcome =
                plan.and_then(|plan| soft::processes::be_host(parent_process, number, &plan.config, &run));
            outcome.map_err(|failure| Failure::Run(format!("host {number}: {failure}")))
        }
        Command::List { what, name } => {
            let text = list::list(what, name.as_deref())?;
            print(text.as_bytes()).map_err(|error| Failure::Run(format!("standard output: {error}")))
        }
    }
}

/// Writes to standard output. A reader that has seen enough (`weft list cc | head -1`) is no error.
pub(crate) fn print(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}
