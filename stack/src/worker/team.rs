//! Several workers, each in a thread on a core of its own.
//!
//! Workers share nothing: each has an endpoint, and a port or a queue of one ([`super::Steering`] tells whose
//! packets come to which queue).

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use super::{PinError, Waker, pin_to};

/// The thread of a team in which a job runs.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// The number of the thread, from 0.
    pub index: usize,
    /// The core that the thread is pinned to.
    pub core: usize,
    /// Stops the worker: pass it to [`super::Worker::run`].
    pub waker: Waker,
}

/// Why a team cannot start. Threads that had started have been stopped.
#[derive(Debug, thiserror::Error)]
pub enum TeamError {
    /// There are fewer cores than jobs.
    #[error("{jobs} workers need as many cores, and {cores} are given")]
    Cores {
        /// The number of jobs.
        jobs: usize,
        /// The number of cores.
        cores: usize,
    },
    /// A thread cannot run on its core.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The system could not provide a thread, or a descriptor for a waker.
    #[error("worker {index} cannot be started: {error}")]
    Start {
        /// The number of the worker.
        index: usize,
        /// The system's reason.
        error: io::Error,
    },
}

/// Threads at work. Dropping it stops them and waits for them.
#[derive(Debug)]
pub struct Team<T> {
    threads: Vec<(Waker, JoinHandle<Option<T>>)>,
}

impl<T: Send + 'static> Team<T> {
    /// Runs each job in a thread pinned to the core at the same index of `cores`. A job makes its worker, or
    /// owns it, and runs it with the waker that it gets; it ends when the waker is stopped.
    ///
    /// # Errors
    /// There are too few cores, a core cannot be used, or the system has no more threads.
    pub fn start<J>(cores: &[usize], jobs: Vec<J>) -> Result<Team<T>, TeamError>
    where
        J: FnOnce(WorkerSpec) -> T + Send + 'static,
    {
        if cores.len() < jobs.len() {
            return Err(TeamError::Cores { jobs: jobs.len(), cores: cores.len() });
        }
        let mut team = Team { threads: Vec::with_capacity(jobs.len()) };
        for (index, (job, &core)) in jobs.into_iter().zip(cores).enumerate() {
            let fail = |error| TeamError::Start { index, error };
            let spec = WorkerSpec { index, core, waker: Waker::new().map_err(fail)? };
            let waker = spec.waker.clone();
            let (report, reports) = channel();
            let name = format!("weft-{core}");
            let thread =
                thread::Builder::new().name(name).spawn(move || work(job, spec, &report)).map_err(fail)?;
            team.threads.push((waker, thread));
            reports.recv().unwrap_or(Ok(()))?;
        }
        Ok(team)
    }

    /// Stops all workers, waits for them, and returns the results of their jobs, in order.
    ///
    /// # Panics
    /// A job has panicked.
    pub fn stop(mut self) -> Vec<T> {
        self.stop_all();
        let threads = std::mem::take(&mut self.threads);
        threads
            .into_iter()
            .filter_map(|(_, thread)| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    }
}

impl<T> Team<T> {
    fn stop_all(&self) {
        self.threads.iter().for_each(|(waker, _)| waker.stop());
    }
}

impl<T> Drop for Team<T> {
    fn drop(&mut self) {
        self.stop_all();
        for (_, thread) in self.threads.drain(..) {
            // The job's panic has been printed; a second one here would abort the process.
            let _ = thread.join();
        }
    }
}

/// The body of a thread: runs the job, if the thread can be pinned.
fn work<T, J: FnOnce(WorkerSpec) -> T>(
    job: J,
    spec: WorkerSpec,
    report: &Sender<Result<(), PinError>>,
) -> Option<T> {
    let pinned = pin_to(spec.core);
    let may = pinned.is_ok();
    // The thread that starts the team waits for this.
    let _ = report.send(pinned);
    may.then(|| job(spec))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::worker::usable_cores;

    /// Waits to be stopped, and counts those that have been.
    fn job(stopped: &Arc<AtomicUsize>) -> impl FnOnce(WorkerSpec) -> (usize, Vec<usize>) + Send + use<> {
        let stopped = Arc::clone(stopped);
        move |spec| {
            while !spec.waker.is_stopped() {
                thread::yield_now();
            }
            stopped.fetch_add(1, Ordering::Relaxed);
            (spec.index, usable_cores())
        }
    }

    #[test]
    fn each_job_runs_on_its_core_until_it_is_stopped() {
        let cores = usable_cores();
        let stopped = Arc::new(AtomicUsize::new(0));
        let team = Team::start(&cores, cores.iter().map(|_| job(&stopped)).collect()).unwrap();
        let expected: Vec<_> = cores.iter().enumerate().map(|(index, core)| (index, vec![*core])).collect();
        assert_eq!(team.stop(), expected);
        assert_eq!(stopped.load(Ordering::Relaxed), cores.len());
    }

    #[test]
    fn a_team_that_is_not_complete_is_dissolved() {
        let first = usable_cores()[0];
        let stopped = Arc::new(AtomicUsize::new(0));
        let error = Team::start(&[first, 100_000], vec![job(&stopped), job(&stopped)]).unwrap_err();
        assert!(matches!(error, TeamError::Pin(PinError::NotUsable { core: 100_000, .. })), "{error}");
        assert_eq!(stopped.load(Ordering::Relaxed), 1, "the first one was stopped");
        let error = Team::start(&[first], vec![job(&stopped), job(&stopped)]).unwrap_err();
        assert!(matches!(error, TeamError::Cores { jobs: 2, cores: 1 }), "{error}");
    }
}
