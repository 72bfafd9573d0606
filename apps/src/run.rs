//! `weft run`: one run, from its options to its reports.

use crate::Failure;
use crate::choices::Platform;
use crate::interrupt::Interrupt;
use crate::loopback;
use crate::options::RunArgs;
use crate::output::OutputFile;
use crate::report::measures;
use crate::report::{Report, csv, json, parquet, table};
use crate::resolve::{Plan, resolve};
use crate::sample::{FairnessOverTime, SampleFiles};
use crate::trace::{LiveTrace, TraceFile};
use crate::{soft, udp, usage};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, BufWriter, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use weft_cc::Span;
use weft_testbed::sim::{
    self, Lines, RunConfig, RunProgress, RunReport, SampleSink, Sampling, TraceSink, Tracing,
};
use weft_testbed::soft::SoftCounters;

/// Runs what `args` describe and writes the reports that they ask for.
///
/// `catch_signals` is called when there is something to report: before, signals end the process as they always do.
pub(crate) fn run(
    args: &RunArgs,
    catch_signals: impl FnOnce() -> Result<Interrupt, Failure>,
) -> Result<(), Failure> {
    let plan = resolve(args)?;
    let interrupt = &catch_signals()?;
    // Before the run: a report that cannot be written should not cost one.
    let outputs = Outputs::open(args)?;
    // Hosts in processes of their own write traces of their own.
    let live_trace = (args.on != Platform::Sim && args.processes.is_none())
        .then(|| args.trace.begin(&args.trace_host))
        .transpose()?
        .flatten();
    let predicted = (args.on == Platform::Soft)
        .then(|| soft::predict(&plan.config, &plan.faults, interrupt))
        .transpose()?;
    let (clock, cpu) = (Instant::now(), usage::cpu_seconds());
    let (mut extras, mut switches) = (Ok(None), None);
    let mut outcome = match args.on {
        Platform::Sim => simulate(&plan, args, &mut extras, interrupt)?,
        Platform::Loopback => loopback(&plan.config, live_trace.as_ref(), interrupt)?,
        Platform::Udp => over_udp(&plan.config, live_trace.as_ref(), interrupt)?,
        Platform::Soft => over_switches(&plan, args, live_trace.as_ref(), &mut switches, interrupt)?,
    };
    let traced = live_trace.map_or(Ok(()), LiveTrace::finish);
    let (shares, extras) = match extras {
        Ok(shares) => (shares, traced),
        Err(failure) => (None, Err(failure)),
    };
    let cpu_s = usage::cpu_seconds() - cpu;
    if let Some(predicted) = &predicted {
        outcome.bound = predicted.bound.clone();
    }
    let mut report = Report::new(&outcome, &plan, cpu_s, usage::max_rss_mb());
    report.shares = shares;
    if let Some(predicted) = &predicted {
        report.compare(predicted);
    }
    if let Some(counters) = &switches {
        report.judge(counters, plan.config.network_rtt());
        // The table says so too, but is not printed here.
        if outputs.quiet {
            report.doubt().iter().for_each(|doubt| eprintln!("weft: soft: {doubt}"));
        }
    }
    outputs.write(&report, &outcome, &plan.config, clock)?;
    match (extras, verdict(&report, &outcome, interrupt)) {
        (Err(unwritten), Err(failure)) => {
            eprintln!("weft: {unwritten}");
            Err(failure)
        }
        (extras, verdict) => extras.and(verdict),
    }
}

/// Whether the run that `plan` describes can be made: it is built, and ended at once.
pub(crate) fn rehearse(mut plan: Plan) -> Result<(), Failure> {
    plan.config.until = Some(Span::from_ps(1));
    let options = sim::Options { faults: plan.faults, ..sim::Options::default() };
    let outcome = sim::run_with(&plan.config, options);
    outcome.map(drop).map_err(|error| Failure::Usage(error.to_string()))
}

/// Runs `plan` in virtual time, without samples or a trace.
pub(crate) fn simulate_plan(plan: &Plan, interrupt: &Interrupt) -> Result<RunReport, Failure> {
    let bar = progress_bar();
    let mut progress = |progress: &RunProgress| show(&bar, progress, "virtual time");
    let options = sim::Options {
        faults: plan.faults.clone(),
        progress: Some(&mut progress),
        stop: Some(interrupt.flag()),
        ..sim::Options::default()
    };
    let outcome = sim::run_with(&plan.config, options);
    bar.finish_and_clear();
    outcome.map_err(|error| Failure::Run(error.to_string()))
}

/// Runs in virtual time. If samples or a trace cannot be written, `extras` says so, and the results are as without.
fn simulate(
    plan: &Plan,
    args: &RunArgs,
    extras: &mut Result<Option<FairnessOverTime>, Failure>,
    interrupt: &Interrupt,
) -> Result<RunReport, Failure> {
    let mut samples =
        args.sample.map(|_| SampleFiles::create(args.sample_path(), &plan.config)).transpose()?;
    let sink = samples.as_mut().map(|files| files as &mut dyn SampleSink);
    let mut trace = args.trace.trace.as_deref().map(TraceFile::create).transpose()?;
    let trace_sink = trace.as_mut().map(|file| file as &mut dyn TraceSink);
    let selection = Arc::new(args.trace.selection(&args.trace_host));
    let bar = progress_bar();
    let mut progress = |progress: &RunProgress| show(&bar, progress, "virtual time");
    let options = sim::Options {
        faults: plan.faults.clone(),
        settle: false,
        threads: args.threads.map_or(1, usize::from),
        measure: args.json.is_some() || args.links.is_some(),
        sampling: args.sample.zip(sink).map(|(every, sink)| Sampling { every, sink }),
        tracing: trace_sink.map(|sink| Tracing { selection, sink }),
        progress: Some(&mut progress),
        stop: Some(interrupt.flag()),
    };
    let outcome = sim::run_with(&plan.config, options);
    bar.finish_and_clear();
    let sampled = samples.map(SampleFiles::finish).transpose();
    let traced = trace.map_or(Ok(()), TraceFile::finish);
    *extras = sampled.and_then(|shares| traced.map(|()| shares));
    outcome.map_err(|error| Failure::Run(error.to_string()))
}

/// Runs over real mbufs through DPDK, in this process.
fn loopback(
    config: &RunConfig,
    trace: Option<&LiveTrace>,
    interrupt: &Interrupt,
) -> Result<RunReport, Failure> {
    let bar = progress_bar();
    let outcome = loopback::run(config, trace, &mut |progress| show(&bar, progress, "real time"), interrupt);
    bar.finish_and_clear();
    outcome
}

/// Runs over kernel UDP, in this process.
fn over_udp(
    config: &RunConfig,
    trace: Option<&LiveTrace>,
    interrupt: &Interrupt,
) -> Result<RunReport, Failure> {
    let bar = progress_bar();
    let outcome = udp::run(config, trace, &mut |progress| show(&bar, progress, "real time"), interrupt);
    bar.finish_and_clear();
    let (report, notes) = outcome?;
    notes.iter().for_each(|note| eprintln!("weft: udp: {note}"));
    Ok(report)
}

/// Runs over software switches in this process, with hosts in this process or other ones. `switches` gets the counters
/// of the switches.
fn over_switches(
    plan: &Plan,
    args: &RunArgs,
    trace: Option<&LiveTrace>,
    switches: &mut Option<SoftCounters>,
    interrupt: &Interrupt,
) -> Result<RunReport, Failure> {
    let bar = progress_bar();
    let mut progress = |progress: &RunProgress| show(&bar, progress, "real time");
    let outcome = match args.processes {
        Some(by) => soft::processes::run(&plan.config, &plan.faults, by, &mut progress, interrupt),
        None => soft::run(&plan.config, &plan.faults, trace, &mut progress, interrupt),
    };
    bar.finish_and_clear();
    let (report, counters) = outcome?;
    soft::notes(&counters).iter().for_each(|note| eprintln!("weft: soft: {note}"));
    *switches = Some(counters);
    Ok(report)
}

fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} flows done, {msg}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, progress: &RunProgress, kind_of_time: &str) {
    if bar.is_hidden() {
        return;
    }
    bar.set_length(progress.flows_total);
    bar.set_position(progress.flows_done);
    let us = progress.now.since(weft_cc::Time::ZERO).as_us_f64();
    bar.set_message(format!("{us:.0} µs of {kind_of_time}, {:.1} M events", progress.events as f64 / 1e6));
}

/// The files that reports are written to.
struct Outputs<'a> {
    json: Option<(&'a Path, OutputFile)>,
    flows: Option<(&'a Path, OutputFile)>,
    links: Option<(&'a Path, OutputFile)>,
    /// Whether standard output is the JSON report's alone.
    quiet: bool,
}

impl<'a> Outputs<'a> {
    fn open(args: &'a RunArgs) -> Result<Outputs<'a>, Failure> {
        let create = |path: &'a Path| match OutputFile::create(path) {
            Ok(file) => Ok((path, file)),
            Err(error) => Err(failed(path, &error)),
        };
        let quiet = args.json.as_deref() == Some(Path::new("-"));
        let json = args.json.as_deref().filter(|_| !quiet);
        Ok(Outputs {
            json: json.map(create).transpose()?,
            flows: args.flows.as_deref().map(create).transpose()?,
            links: args.links.as_deref().map(create).transpose()?,
            quiet,
        })
    }

    fn write(
        self,
        report: &Report,
        outcome: &RunReport,
        config: &RunConfig,
        clock: Instant,
    ) -> Result<(), Failure> {
        if self.quiet {
            json::write(report, BufWriter::new(io::stdout()))
                .map_err(|error| failed(Path::new("-"), &error))?;
        } else {
            let text = &mut Vec::new();
            table::write(report, clock.elapsed(), text)
                .and_then(|()| crate::print(text))
                .map_err(|error| Failure::Run(format!("standard output: {error}")))?;
        }
        if let Some((path, mut file)) = self.json {
            let written = json::write(report, BufWriter::new(&mut file)).and_then(|()| file.commit());
            written.map_err(|error| failed(path, &error))?;
        }
        if let Some((path, file)) = self.flows {
            write_flows(path, file, outcome, report.run_config).map_err(|error| failed(path, &error))?;
        }
        if let Some(((path, mut file), measured)) = self.links.zip(outcome.measures.as_ref()) {
            let written =
                measures::write_links(measured, &config.topology, &mut file).and_then(|()| file.commit());
            written.map_err(|error| failed(path, &error))?;
        }
        Ok(())
    }
}

/// Writes the table of flows in the form that the ending of `path` names.
fn write_flows(
    path: &Path,
    mut file: OutputFile,
    outcome: &RunReport,
    fabric: Option<&RunConfig>,
) -> io::Result<()> {
    if path.extension().is_some_and(|ending| ending == "parquet") {
        parquet::write(&outcome.flows, fabric, file.writer()?).map_err(io::Error::other)?;
    } else {
        csv::write(&outcome.flows, fabric, &mut file)?;
    }
    file.commit()
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}

/// Fails if data arrived wrong, flows are unfinished, or something is left over.
fn verdict(report: &Report, outcome: &RunReport, interrupt: &Interrupt) -> Result<(), Failure> {
    if !outcome.payload_errors.is_empty() {
        return Err(Failure::Run(listed("data arrived wrong:", &outcome.payload_errors)));
    }
    if !report.complete() {
        let missing = report.flows.total - report.flows.completed;
        let total = report.flows.total;
        let of_ranks = report.ranks.is_some();
        let losses: Lines = report.fabric.iter().flat_map(|fabric| fabric.losses(of_ranks)).collect();
        let text = match &report.ranks {
            None => format!("{missing} of {total} flows unfinished:{}{losses}", outcome.stuck),
            Some(ranks) => {
                let waiting = ranks.total - ranks.finished;
                format!("{waiting} of {} ranks unfinished:{}{losses}", ranks.total, outcome.stuck)
            }
        };
        return Err(interrupt.failure(&format!("; {text}")).unwrap_or(Failure::Unfinished(text)));
    }
    if !outcome.leaks.is_empty() {
        return Err(Failure::Run(listed("left over after all flows were done:", &outcome.leaks)));
    }
    Ok(())
}

/// `lines` below `head`, the first of them if there are many.
fn listed(head: &str, lines: &[String]) -> String {
    format!("{head}{}", lines.iter().collect::<Lines>())
}
