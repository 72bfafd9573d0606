//! Traces in real time.

use super::TraceFile;
use crate::Failure;
use crossbeam_queue::ArrayQueue;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use weft_cc::Time;
use weft_stack::event::{Event, Record, Selection, Subscriber};
use weft_stack::packet::Addr;

/// Records that wait for the writer: 5 MB, which 13 million records a second fill between two looks.
const QUEUE: usize = 1 << 16;
/// How often the writer looks for records. A process that is killed loses those of this time.
const LOOK: Duration = Duration::from_millis(5);

/// A trace that a thread of its own writes. Dropped, it still writes what has been recorded.
pub(crate) struct LiveTrace {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<Result<(), Failure>>>,
}

struct Shared {
    selection: Selection,
    queue: ArrayQueue<Record>,
    /// Records for which the queue had no room, and of which the trace does not say so yet.
    lost: AtomicU64,
    over: AtomicBool,
}

impl LiveTrace {
    /// Makes the file, or empties it, and starts the thread that writes.
    pub(super) fn begin(path: &Path, selection: Selection) -> Result<LiveTrace, Failure> {
        let file = TraceFile::create(path)?;
        let (lost, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { selection, queue: ArrayQueue::new(QUEUE), lost, over });
        let write = {
            let shared = Arc::clone(&shared);
            move || shared.write(file)
        };
        let writer = thread::Builder::new().name("weft-trace".to_owned()).spawn(write);
        let writer = writer.map_err(|error| Failure::Run(format!("--trace: no thread: {error}")))?;
        Ok(LiveTrace { shared, writer: Some(writer) })
    }

    /// A subscriber for the endpoint of `host`, which knows its peers by their places in `hosts`; if there are
    /// none, peers keep the endpoint's numbers. `None` if the host is not selected.
    pub(crate) fn subscriber(
        &self,
        host: u32,
        hosts: &Option<Arc<[u32]>>,
    ) -> Option<Box<dyn Subscriber + Send>> {
        let shared = || Arc::clone(&self.shared);
        let selected = self.shared.selection.has_host(host);
        selected.then(|| {
            Box::new(HostTrace { shared: shared(), host, hosts: hosts.clone() }) as Box<dyn Subscriber + Send>
        })
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), Failure> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        self.shared.over.store(true, Ordering::Release);
        writer.thread().unpark();
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for LiveTrace {
    fn drop(&mut self) {
        // The command has failed for another reason, which is the one to report.
        let _ = self.stop();
    }
}

impl Shared {
    /// Writes records until the trace is over.
    fn write(&self, mut file: TraceFile) -> Result<(), Failure> {
        loop {
            let over = self.over.load(Ordering::Acquire);
            while let Some(record) = self.queue.pop() {
                file.record(&record);
            }
            match self.lost.swap(0, Ordering::Relaxed) {
                0 => {}
                count => file.lost(count),
            }
            file.flush();
            if over {
                return file.finish();
            }
            thread::park_timeout(LOOK);
        }
    }
}

/// Queues the events of one endpoint. Never waits.
struct HostTrace {
    shared: Arc<Shared>,
    host: u32,
    hosts: Option<Arc<[u32]>>,
}

impl Subscriber for HostTrace {
    fn on_event(&mut self, now: Time, event: &Event) {
        if !self.shared.selection.has_event(event) {
            return;
        }
        let mut record = Record { at: now, host: self.host, event: *event };
        if let (Some(hosts), Some(peer)) = (&self.hosts, record.event.peer_mut()) {
            *peer = hosts.get(peer.0 as usize).map_or(*peer, |number| Addr(*number));
        }
        if self.shared.queue.push(record).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn records_that_do_not_fit_are_counted_and_the_trace_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl");
        let (lost, over) = (AtomicU64::new(0), AtomicBool::new(true));
        let selection = Selection::default();
        let shared = Arc::new(Shared { selection, queue: ArrayQueue::new(2), lost, over });
        let hosts = Some([7, 9].into());
        let mut host = HostTrace { shared: Arc::clone(&shared), host: 7, hosts };
        for ps in 1..=5 {
            host.on_event(Time::from_ps(ps), &Event::Ignored { peer: Addr(1), why: "no PDC" });
        }
        shared.write(TraceFile::create(&path).unwrap()).unwrap();
        let lines = lines(&path);
        let times: Vec<_> = lines.iter().filter_map(|line| line["time_ps"].as_u64()).collect();
        assert_eq!(times, [1, 2]);
        assert_eq!((lines[0]["host"].as_u64(), lines[0]["peer"].as_u64()), (Some(7), Some(9)));
        assert_eq!((&lines[2]["event"], &lines[2]["count"]), (&"lost_records".into(), &3.into()));
    }

    #[test]
    fn a_trace_that_is_dropped_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl");
        let trace = LiveTrace::begin(&path, Selection::default()).unwrap();
        let mut host = trace.subscriber(0, &None).unwrap();
        for ps in 0..1_000 {
            host.on_event(Time::from_ps(ps), &Event::Ignored { peer: Addr(1), why: "no PDC" });
        }
        drop(trace);
        assert_eq!(lines(&path).len(), 1_000);
    }

    #[test]
    fn unwritable_files_are_refused_before_the_run() {
        let path = Path::new("/no/such/directory/t.jsonl");
        let refused = LiveTrace::begin(path, Selection::default()).err().unwrap().to_string();
        assert!(refused.starts_with("--trace: /no/such/directory/t.jsonl: "), "{refused}");
    }
}
