//! `--trace`: the events of endpoints as lines of JSON. docs/trace.md describes their fields.
//!
//! Traces of simulations are written between two windows of virtual time ([`TraceFile`]). In real time the thread
//! of a worker only puts records into a queue, and another thread writes them ([`LiveTrace`]).
//!
//! Unlike other files of results, a trace is written in its place while the run goes on: the trace of a process
//! that was killed is the one that is needed most.

mod live;

pub(crate) use live::LiveTrace;

use crate::Failure;
use clap::Args;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use weft_stack::event::{Record, Selection, json};
use weft_stack::port::Port;
use weft_stack::wire::pds::PdcId;
use weft_stack::worker::Worker;
use weft_testbed::sim::TraceSink;

/// The options of traces.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TraceArgs {
    /// Write each event of the endpoints as a line of JSON, with its time, while the run goes on.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) trace: Option<PathBuf>,
    /// Trace the events of these PDCs only, by their numbers at each host [default: all].
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',', requires = "trace",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) trace_pdc: Vec<u16>,
}

impl TraceArgs {
    /// The events to trace: those of `hosts`, or of all hosts if there are none.
    pub(crate) fn selection(&self, hosts: &[u32]) -> Selection {
        fn some<T: Ord>(values: impl Iterator<Item = T>) -> Option<BTreeSet<T>> {
            let values: BTreeSet<T> = values.collect();
            (!values.is_empty()).then_some(values)
        }
        Selection {
            hosts: some(hosts.iter().copied()),
            pdcs: some(self.trace_pdc.iter().copied().map(PdcId)),
        }
    }

    /// The options for the process of one host, which writes a trace of its own: `t.jsonl` becomes `t.host3.jsonl`.
    pub(crate) fn of_host(&self, host: u32) -> TraceArgs {
        let trace = self.trace.as_ref().map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
            path.with_file_name(format!("{name}.host{host}{extension}"))
        });
        TraceArgs { trace, ..self.clone() }
    }

    /// Begins the trace of endpoints in real time, if the options request one. Call this before the calling thread is
    /// pinned to a core, which the thread that writes would inherit.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(crate) fn begin(&self, hosts: &[u32]) -> Result<Option<LiveTrace>, Failure> {
        self.trace.as_deref().map(|path| LiveTrace::begin(path, self.selection(hosts))).transpose()
    }
}

/// Puts the events of `worker`'s endpoint, which is to be called `host`, into `trace` from now on. Its peers keep the
/// numbers of its address book.
pub(crate) fn attach<P: Port>(trace: Option<&LiveTrace>, worker: &mut Worker<P>, host: u32) {
    if let Some(subscriber) = trace.and_then(|trace| trace.subscriber(host, &None)) {
        worker.fep_mut().subscribe(subscriber);
    }
}

/// Ends a trace, if there is one, after a command with `outcome`, whose failure comes first.
pub(crate) fn end(trace: Option<LiveTrace>, outcome: Result<(), Failure>) -> Result<(), Failure> {
    outcome.and(trace.map_or(Ok(()), LiveTrace::finish))
}

/// Text is handed to the system in pieces of this many bytes.
const PIECE: usize = 1 << 16;

/// A trace that is being written, in pieces that end with a line.
pub(crate) struct TraceFile {
    path: PathBuf,
    file: File,
    text: String,
    written: io::Result<()>,
}

impl TraceFile {
    /// Makes the file, or empties it.
    pub(crate) fn create(path: &Path) -> Result<TraceFile, Failure> {
        let file = File::create(path).map_err(|error| failed(path, &error))?;
        Ok(TraceFile { path: path.to_owned(), file, text: String::new(), written: Ok(()) })
    }

    fn record(&mut self, record: &Record) {
        json::write_record(&mut self.text, record);
        if self.text.len() >= PIECE {
            self.flush();
        }
    }

    fn lost(&mut self, count: u64) {
        json::write_lost(&mut self.text, count);
    }

    /// Hands the system all lines. After an error nothing more is written.
    fn flush(&mut self) {
        if self.written.is_ok() {
            self.written = self.file.write_all(self.text.as_bytes());
        }
        self.text.clear();
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// The first error since the file was made.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.flush();
        self.written.map_err(|error| failed(&self.path, &error))
    }
}

impl TraceSink for TraceFile {
    fn records(&mut self, records: &[Record]) {
        records.iter().for_each(|record| self.record(record));
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Run(format!("--trace: {}: {error}", path.display()))
}
