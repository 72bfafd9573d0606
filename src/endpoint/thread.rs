//! The thread of a worker that serves the endpoint of the caller.

use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use weft_stack::worker::session::{Client, SessionConfig, SessionServer};
use weft_stack::worker::{Waker, Worker, pin_to};

use super::builder::system;
use super::error::BuildError;
use crate::port::{AnyPort, PortInfo};

/// A thread that drives a worker. It ends, within about a second, when this is dropped: peers hear first that nobody is
/// here any more.
pub(super) struct WorkerThread {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl WorkerThread {
    /// Starts a thread for `worker`, on `core` if there is one, and opens a session with it.
    pub(super) fn spawn(
        mut worker: Worker<AnyPort>,
        port: &PortInfo,
        config: &SessionConfig,
        process: u16,
        core: Option<usize>,
    ) -> Result<(WorkerThread, Client), BuildError> {
        let waker = Waker::new().map_err(|error| system("a descriptor to wake the worker", error))?;
        let mut server = SessionServer::new(&mut worker, 1, waker.clone());
        if let Some(place) = port.place_peers() {
            server.place_peers(place);
        }
        let client = server.open(&mut worker, config, Some(process))?;
        let (tell, pinned) = mpsc::channel();
        let body = move || {
            let outcome = core.map_or(Ok(()), pin_to);
            #[cfg(feature = "dpdk")]
            let _lcore = weft_stack::port::dpdk::Eal::get().and_then(|eal| eal.register_thread().ok());
            let failed = outcome.is_err();
            // The caller waits for it.
            let _ = tell.send(outcome);
            if !failed {
                server.run(worker, |_| ());
            }
        };
        let thread = Builder::new().name("weft-worker".to_owned()).spawn(body);
        let thread = thread.map_err(|error| system("a thread for the worker", error))?;
        pinned.recv().unwrap_or(Ok(()))?;
        Ok((WorkerThread { waker, thread: Some(thread) }, client))
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.waker.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}
