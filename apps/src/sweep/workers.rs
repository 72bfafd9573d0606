//! The workers: one thread per concurrent run, which waits for the process of that run. A run that panics or exhausts
//! memory ends only its own process, and all processes end with the sweep.

use super::grid::Grid;
use super::long;
use super::results::{Outcome, Places, Results};
use super::table::{self, Identities};
use crate::Failure;
use crate::interrupt::Interrupt;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// How often to look whether a signal has arrived.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// This program, even if its file has been replaced since the sweep started.
const PROGRAM: &str = "/proc/self/exe";
/// The longest error message of a failed run, in characters.
const MAX_COMPLAINT: usize = 300;

/// Makes the runs `todo`, `jobs` at a time, and writes the result of each as it ends. Returns early on a signal, as
/// [`Failure::Interrupted`]; the runs in progress end with this process.
pub(crate) fn run(
    grid: &Arc<Grid>,
    ids: &Identities,
    todo: Vec<usize>,
    jobs: usize,
    results: &mut Results,
) -> Result<(), Failure> {
    let bar = progress_bar(todo.len(), "done");
    let interrupt = Interrupt::on_signals()?;
    let (sender, outcomes) = mpsc::channel();
    let total = todo.len();
    let long = (results.parts().to_vec(), results.places());
    start(grid, ids, todo, jobs, &long, &sender);
    let (mut done, mut failed) = (0, 0);
    while done < total {
        let text =
            format!("; {done} of {total} runs were done and are kept: the same command goes on from there");
        if let Some(failure) = interrupt.failure(&text) {
            bar.finish_and_clear();
            return Err(failure);
        }
        // A timeout: this function holds a sender, so the channel is never closed.
        let Ok((run, outcome)) = outcomes.recv_timeout(POLL_INTERVAL) else { continue };
        if let Err(error) = &outcome {
            failed += 1;
            bar.suspend(|| eprintln!("weft: {}: {error}", grid.label(run)));
            bar.set_message(format!(", {failed} failed"));
        }
        results.add(run, outcome)?;
        done += 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Starts the threads. They are never joined: a signal ends the process.
fn start(
    grid: &Arc<Grid>,
    ids: &Identities,
    todo: Vec<usize>,
    jobs: usize,
    long: &(Vec<&'static str>, Places),
    sender: &mpsc::Sender<(usize, Outcome)>,
) {
    let next = Arc::new(AtomicUsize::new(0));
    let todo = Arc::new(todo);
    for _ in 0..jobs.min(todo.len()) {
        let (grid, todo, next) = (Arc::clone(grid), Arc::clone(&todo), Arc::clone(&next));
        let (sender, ids, (parts, places)) = (sender.clone(), ids.clone(), long.clone());
        thread::spawn(move || {
            while let Some(&run) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                let outputs = long::options(&parts, &places, run);
                if sender.send((run, run_one(&grid, run, outputs, &ids))).is_err() {
                    return;
                }
            }
        });
    }
}

/// Makes run `index` in a process of its own, with the options `outputs` besides those of the grid, and waits for its
/// end.
fn run_one(grid: &Grid, index: usize, outputs: Vec<String>, ids: &Identities) -> Outcome {
    let arguments = [grid.arguments(index), outputs].concat();
    let output = spawn_run(&["--json=-"], &arguments).map_err(|e| format!("no process: {e}"))?;
    match output.status.code() {
        // 3: some flows have not completed, which is a result too.
        Some(0 | 3) => table::row(grid, index, ids, &output.stdout),
        _ => Err(complaint(&output)),
    }
}

/// Checks the run with `arguments` by building its fabric; the error says why it cannot be made.
pub(crate) fn rehearse(arguments: &[String]) -> Result<(), String> {
    let output = spawn_run(&["--rehearse"], arguments).map_err(|e| format!("no process: {e}"))?;
    match output.status.code() {
        Some(1 | 2) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(stderr.trim_start_matches("weft: ").trim_end().to_owned())
        }
        // If the check has died, for lack of memory for example, the run may die too, and its row will say so.
        _ => Ok(()),
    }
}

/// Starts this program again for the run with `arguments`, and waits for its end.
pub(crate) fn spawn_run(how: &[&str], arguments: &[String]) -> io::Result<Output> {
    Command::new(PROGRAM)
        .args(["sweep-run", "--parent", &process::id().to_string()])
        .args(how)
        .args(arguments)
        .stdin(Stdio::null())
        // An interrupt from the terminal must reach only the sweep, which ends its runs itself.
        .process_group(0)
        .output()
}

/// One line that says how a run failed.
pub(crate) fn complaint(output: &Output) -> String {
    let how = match (output.status.signal(), output.status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, code) => format!("exit status {}", code.unwrap_or_default()),
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The text of a panic without the name and number of its thread.
    let said = stderr.split_once("panicked at ").map_or(stderr.as_ref(), |(_, said)| said);
    let said = said.trim_start_matches("weft: ");
    let lines: Vec<&str> = said.lines().take(2).map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = [how, lines.join(" ")].join(": ");
    text.trim_end_matches(": ").chars().take(MAX_COMPLAINT).collect()
}

/// Arranges that this process, which makes one run of a sweep, does not outlive `parent`.
pub(crate) fn end_with_parent(parent: u32) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| Failure::Run(format!("prctl: {e}")))?;
    // The parent may have ended before the call above.
    match getppid() {
        Some(pid) if pid.as_raw_nonzero().get() as u32 == parent => Ok(()),
        _ => Err(Failure::Run("the sweep that started this run has ended".to_owned())),
    }
}

/// A progress bar for `runs` runs with the verb `what`; hidden if standard error is not a terminal.
pub(crate) fn progress_bar(runs: usize, what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = format!("{{bar:30}} {{pos}} of {{len}} runs {what}{{msg}}, {{eta}} to go");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(runs as u64).with_style(style);
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;

    #[test]
    fn complaints_are_one_short_line() {
        let said = |status: i32, stderr: &str| {
            let status = ExitStatus::from_raw(status);
            complaint(&Output { status, stdout: Vec::new(), stderr: stderr.as_bytes().to_vec() })
        };
        let panic = "\nthread 'main' (17) panicked at a.rs:3:5:\nno such host\nnote: run with\n";
        assert_eq!(said(6, panic), "killed by signal 6: a.rs:3:5: no such host");
        assert_eq!(said(9, ""), "killed by signal 9");
        assert_eq!(
            said(1 << 8, "weft: data arrived wrong:\n  flow 3\n  flow 4\n"),
            "exit status 1: data arrived wrong: flow 3"
        );
        assert_eq!(said(1 << 8, &"µ".repeat(400)).chars().count(), MAX_COMPLAINT);
    }
}
