//! The runs of a suite: made by processes of their own, and kept under a hash of their options.

use super::experiments::end_column;
use super::pattern::Pattern;
use super::suite::{Suite, plain};
use crate::interrupt::Interrupt;
use crate::options::RunArgs;
use crate::resolve::{Plan, resolve};
use crate::sweep::{complaint, identity_of, spawn_run, version};
use crate::{Failure, plot, sample};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// How often to look whether a signal has arrived.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The option that stands for several others: a name of [`Suite::case`].
const CASE: &str = "case";

/// A run to be made.
#[derive(Clone, Debug)]
pub(super) struct Job {
    figure: String,
    /// Its options with their values.
    point: BTreeMap<String, String>,
    arguments: Vec<String>,
    /// The hash of its options and files.
    id: String,
    /// Packets of its workload: how long it takes, about.
    weight: u64,
    /// Flows, by their names `Uec_SRC_DST`, whose ends are read from its table.
    watched: Vec<String>,
}

impl Job {
    /// The run of `figure` with the options `point`, which is refused here if it makes no sense. Matrices that the `suite`
    /// describes are written to `out`.
    pub(super) fn new(
        figure: &str,
        point: BTreeMap<String, String>,
        suite: &Suite,
        out: &Path,
    ) -> Result<Job, Failure> {
        let refused = |what: String| Failure::Usage(format!("figure {figure}: {what}"));
        let mut options = point.clone();
        if let Some(name) = options.remove(CASE) {
            let case = suite.case.get(&name);
            let case = case.ok_or_else(|| refused(format!("there is no [case.{name}]")))?;
            options.extend(case.iter().map(|(option, value)| (option.clone(), plain(value))));
        }
        let mut arguments = Vec::new();
        for (option, value) in &options {
            let value = match (option.as_str(), Pattern::parse(value), suite.matrix.get(value)) {
                ("matrix", Some(pattern), _) => {
                    let seed = point.get("seed").and_then(|seed| seed.parse().ok()).unwrap_or(1);
                    let name = format!("{}-{seed}", value.replace([':', ','], "-"));
                    write_matrix(&name, &pattern.map_err(refused)?.matrix(seed), out)?
                }
                ("matrix", None, Some(text)) => write_matrix(value, text, out)?,
                _ => value.clone(),
            };
            // An option that may be repeated has its values apart by blanks, and an algorithm its settings behind it.
            let mut words = value.split_whitespace();
            match option.as_str() {
                "workload" => arguments.extend(words.map(|word| format!("--workload={word}"))),
                "cc" | "lb" => {
                    arguments.extend(words.by_ref().take(1).map(|name| format!("--{option}={name}")));
                    arguments.extend(words.map(|word| format!("--{option}-set={word}")));
                }
                set if set.ends_with("-set") => arguments.extend(words.map(|word| format!("--{set}={word}"))),
                _ => arguments.push(format!("--{option}={value}")),
            }
        }
        let args = RunArgs::parse(arguments.iter().cloned()).map_err(|e| refused(e.to_string()))?;
        let plan = resolve(&args).map_err(|e| refused(e.to_string()))?;
        Job::with_arguments(figure, point, arguments, &plan).map_err(|e| refused(e.to_string()))
    }

    /// The run of `plan`, which `arguments` of `weft run` describe. `point` tells it from others of `figure`.
    pub(super) fn with_arguments(
        figure: &str,
        point: BTreeMap<String, String>,
        arguments: Vec<String>,
        plan: &Plan,
    ) -> io::Result<Job> {
        let packets =
            plan.config.workload.flows().iter().map(|flow| 1 + flow.bytes / u64::from(plan.config.mtu));
        let id = identity_of(&arguments, &version(), &mut BTreeMap::new())?;
        let (figure, weight, watched) = (figure.to_owned(), packets.sum(), Vec::new());
        Ok(Job { figure, weight, id, point, arguments, watched })
    }

    fn is_sampled(&self) -> bool {
        self.point.contains_key("sample")
    }

    /// The same run, whose results have the ends of `flows` too.
    pub(super) fn watching(self, flows: Vec<String>) -> Job {
        Job { watched: flows, ..self }
    }
}

/// Writes a matrix of the suite to a file beside the results, and returns its path.
fn write_matrix(name: &str, text: &str, out: &Path) -> Result<String, Failure> {
    let path = out.join("runs").join(format!("{name}.cm"));
    fs::write(&path, text).map_err(|e| Failure::at(&path, &e))?;
    Ok(path.display().to_string())
}

/// A run with its results.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) figure: String,
    pub(super) point: BTreeMap<String, String>,
    /// The numbers of its report, by their names joined with `_`, and some that follow from them.
    pub(super) columns: BTreeMap<String, f64>,
    /// Completion times, µs.
    pub(super) fct_us: Vec<f64>,
    /// The samples of its flows, if it is sampled.
    pub(super) samples: Option<PathBuf>,
}

impl Finished {
    /// Its options, for people.
    pub(super) fn options(&self) -> String {
        let words: Vec<String> =
            self.point.iter().map(|(option, value)| format!("{option} {value}")).collect();
        words.join(", ")
    }

    /// Whether all its flows have finished.
    ///
    /// # Errors
    /// Some have not: how many, and with which options.
    pub(super) fn is_whole(&self) -> Result<(), String> {
        let number = |name: &str| self.columns.get(name).copied().unwrap_or(0.0);
        match number("unfinished") {
            0.0 => Ok(()),
            left => Err(format!(
                "{left} of {} flows did not finish with {}",
                number("flows_total"),
                self.options()
            )),
        }
    }
}

/// The directory with the results of runs.
pub(super) struct Store {
    directory: PathBuf,
}

impl Store {
    /// Opens the directory in `out`, which is made if it is not there.
    pub(super) fn open(out: &Path) -> Result<Store, Failure> {
        let directory = out.join("runs");
        fs::create_dir_all(&directory).map_err(|e| Failure::at(&directory, &e))?;
        Ok(Store { directory })
    }

    fn path(&self, id: &str, ending: &str) -> PathBuf {
        self.directory.join(format!("{id}.{ending}"))
    }

    /// The samples of a run without the endings of their names.
    fn samples(&self, job: &Job) -> PathBuf {
        self.directory.join(&job.id)
    }

    fn has(&self, job: &Job) -> bool {
        self.path(&job.id, "json").is_file()
    }

    /// Makes those of `jobs` that have no results yet, `at_once` at a time, and reads all results.
    ///
    /// # Errors
    /// A run fails, or a signal has arrived. What is done is kept.
    pub(super) fn run(
        &mut self,
        jobs: Vec<Job>,
        at_once: usize,
        interrupt: &Interrupt,
    ) -> Result<Vec<Finished>, Failure> {
        let mut todo: Vec<Job> = Vec::new();
        for job in jobs.iter().filter(|job| !self.has(job)) {
            // Figures share runs.
            if !todo.iter().any(|other| other.id == job.id) {
                todo.push(job.clone());
            }
        }
        // Long runs first, so that none is left alone at the end.
        todo.sort_by(|a, b| b.weight.cmp(&a.weight).then(a.id.cmp(&b.id)));
        self.make(todo, at_once, interrupt)?;
        jobs.iter().map(|job| self.read(job)).collect()
    }

    fn make(&self, todo: Vec<Job>, at_once: usize, interrupt: &Interrupt) -> Result<(), Failure> {
        let total = todo.len();
        let bar = progress_bar(&todo);
        let (sender, outcomes) = mpsc::channel();
        let (next, stop, todo) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)), Arc::new(todo));
        for _ in 0..at_once.min(total) {
            let (next, stop, todo, sender) = (next.clone(), stop.clone(), todo.clone(), sender.clone());
            let directory = self.directory.clone();
            // Never joined: a signal ends the process, and its runs with it.
            thread::spawn(move || {
                let store = Store { directory };
                while let Some(job) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = store.make_one(job);
                    if stop.load(Ordering::Relaxed) || sender.send((job.clone(), outcome)).is_err() {
                        return;
                    }
                }
            });
        }
        let mut done = 0;
        while done < total {
            let text = format!(
                "; {done} of {total} runs were done and are kept: the same command goes on from there"
            );
            if let Some(failure) = interrupt.failure(&text) {
                bar.finish_and_clear();
                return Err(failure);
            }
            let Ok((job, outcome)) = outcomes.recv_timeout(POLL_INTERVAL) else { continue };
            if let Err(error) = outcome {
                stop.store(true, Ordering::Relaxed);
                bar.finish_and_clear();
                let command = job.arguments.join(" ");
                return Err(Failure::Run(format!("figure {}: weft run {command}: {error}", job.figure)));
            }
            done += 1;
            bar.inc(job.weight);
            bar.set_message(format!("{done} of {total} runs"));
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn make_one(&self, job: &Job) -> Result<(), String> {
        let flows = self.path(&job.id, "csv");
        let written = format!("--flows={}", flows.display());
        let samples = job.is_sampled().then(|| format!("--sample-file={}", self.samples(job).display()));
        let options: Vec<&str> = ["--json=-", &written].into_iter().chain(samples.as_deref()).collect();
        let output = spawn_run(&options, &job.arguments).map_err(|e| format!("no process: {e}"))?;
        if !matches!(output.status.code(), Some(0 | 3)) {
            return Err(complaint(&output));
        }
        // The table of flows is complete before the report is there.
        let (draft, path) = (self.path(&job.id, "new"), self.path(&job.id, "json"));
        fs::write(&draft, &output.stdout)
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|e| format!("{}: {e}", path.display()))
    }

    fn read(&self, job: &Job) -> Result<Finished, Failure> {
        let path = self.path(&job.id, "json");
        let text = fs::read(&path).map_err(|e| Failure::at(&path, &e))?;
        let damaged = |e: &dyn std::fmt::Display| {
            Failure::Run(format!("{}: {e}; remove the file to make the run again", path.display()))
        };
        let report: Value = serde_json::from_slice(&text).map_err(|e| damaged(&e))?;
        let mut columns = BTreeMap::new();
        flatten("", &report, &mut columns);
        let of = |name: &str| columns.get(name).copied();
        let derived = [
            ("fct_us_spread", of("fct_us_max").zip(of("fct_us_min")).map(|(max, min)| max - min)),
            ("fct_max_over_min", of("fct_us_max").zip(of("fct_us_min")).map(|(max, min)| max / min)),
            ("drop_share", drop_share(of)),
            ("utilisation_max", report.pointer("/hot_spots/busiest/0/utilisation").and_then(Value::as_f64)),
            ("unfinished", of("flows_total").zip(of("flows_completed")).map(|(all, done)| all - done)),
        ];
        columns.extend(derived.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        let table = self.path(&job.id, "csv");
        let text = fs::read_to_string(&table).map_err(|e| Failure::at(&table, &e))?;
        let flows = plot::Flows::parse(&table, &text)?;
        let fct_us = flows.numbers(&table, "fct_us")?.unwrap_or_default();
        let ends = flows.numbers(&table, "end_us")?.unwrap_or_default();
        columns.extend(ends.into_iter().reduce(f64::max).map(|end| ("end_us_max".to_owned(), end)));
        for flow in &job.watched {
            let ends = flows.ends(&table, flow)?;
            columns.extend(ends.into_iter().reduce(f64::max).map(|end| (end_column(flow), end)));
        }
        let [_, samples] = sample::paths(&self.samples(job));
        let samples = job.is_sampled().then_some(samples);
        Ok(Finished { figure: job.figure.clone(), point: job.point.clone(), columns, fct_us, samples })
    }
}

/// Packets dropped over data packets sent.
fn drop_share(of: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let sent = of("packets_data")? + of("packets_retransmitted")?;
    (sent > 0.0).then_some(of("packets_dropped")? / sent)
}

/// The numbers in `value`, by their names joined with `_`. The engine's costs differ from run to run and are left out.
fn flatten(name: &str, value: &Value, columns: &mut BTreeMap<String, f64>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members.iter().filter(|(key, _)| *key != "engine" && *key != "config") {
                let name = if name.is_empty() { key.clone() } else { format!("{name}_{key}") };
                flatten(&name, value, columns);
            }
        }
        Value::Number(number) => {
            columns.extend(number.as_f64().map(|number| (name.to_owned(), number)));
        }
        _ => {}
    }
}

/// Progress in packets: runs differ in length, so the time to go follows from their sizes and not from their number.
fn progress_bar(todo: &[Job]) -> ProgressBar {
    if !io::stderr().is_terminal() || todo.is_empty() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {msg}, {eta} to go");
    let bar = ProgressBar::new(todo.iter().map(|job| job.weight).sum());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(format!("0 of {} runs", todo.len()));
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}
