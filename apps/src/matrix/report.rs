//! The results of `weft matrix`, under the names of those of `weft run`.

use super::MatrixArgs;
use crate::Failure;
use crate::report::{Done, FlowCount, makespan};
use crate::stats::{self, Summary};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::{self, Write};
use weft_cc::{Span, Time};
use weft_testbed::sim::{FlowRecord, Lines};

/// The results that rank 0 writes to its standard output, as JSON.
#[derive(Debug, Deserialize)]
pub(super) struct Results {
    provider: String,
    ranks: u32,
    flows: Vec<Row>,
    wrong: Vec<String>,
}

/// A flow; times since its sender has begun, ps.
#[derive(Debug, Deserialize)]
struct Row {
    id: u32,
    src: u32,
    dst: u32,
    bytes: u64,
    start: Option<u64>,
    end: Option<u64>,
}

impl Results {
    /// The flows, of which nobody has counted the packets.
    pub(super) fn records(&self) -> Vec<FlowRecord> {
        let time = |ps: u64| Time::ZERO + Span::from_ps(ps);
        let record = |row: &Row| FlowRecord {
            id: row.id.into(),
            src: row.src,
            dst: row.dst,
            bytes: row.bytes,
            start: row.start.map(time),
            end: row.end.map(time),
            retransmitted: 0,
        };
        self.flows.iter().map(record).collect()
    }

    /// Fails if data arrived wrong, or flows are unfinished.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        if !self.wrong.is_empty() {
            let lines: Lines = self.wrong.iter().collect();
            return Err(Failure::Run(format!("data arrived wrong:{lines}")));
        }
        let unfinished: Vec<String> =
            self.flows.iter().filter(|row| row.end.is_none()).map(Row::state).collect();
        if unfinished.is_empty() {
            return Ok(());
        }
        let (count, total) = (unfinished.len(), self.flows.len());
        let lines: Lines = unfinished.iter().collect();
        Err(Failure::Unfinished(format!("{count} of {total} flows unfinished:{lines}")))
    }
}

impl Row {
    fn state(&self) -> String {
        let Row { id, src, dst, start, .. } = self;
        match start {
            Some(_) => format!("flow {id} from rank {src} has not arrived at rank {dst}"),
            None => format!("flow {id} from rank {src} to rank {dst} has not started"),
        }
    }
}

/// The results, in the order and under the names of the JSON report.
#[derive(Debug, Serialize)]
pub(super) struct MatrixReport {
    flows: FlowCount,
    fct_us: Summary,
    jain: Option<f64>,
    goodput_gbps: Option<f64>,
    config: Config,
}

#[derive(Debug, Serialize)]
struct Config {
    version: &'static str,
    on: &'static str,
    matrix: String,
    hosts: u32,
    provider: String,
    verify: bool,
}

impl MatrixReport {
    pub(super) fn new(args: &MatrixArgs, results: &Results) -> MatrixReport {
        let flows = results.records();
        let done: Vec<Done> = flows.iter().filter_map(Done::of).collect();
        let goodputs: Vec<f64> = done.iter().filter_map(|done| stats::gbps(done.bytes, done.fct())).collect();
        let bytes = done.iter().map(|done| done.bytes).sum();
        MatrixReport {
            flows: FlowCount { total: flows.len() as u64, completed: done.len() as u64 },
            fct_us: Summary::of(done.iter().map(Done::fct).collect()),
            jain: stats::jain(&goodputs),
            goodput_gbps: makespan(&done).and_then(|time| stats::gbps(bytes, time)),
            config: Config {
                version: env!("CARGO_PKG_VERSION"),
                on: "libfabric",
                matrix: args.matrix.display().to_string(),
                hosts: results.ranks,
                provider: results.provider.clone(),
                verify: args.verify,
            },
        }
    }

    pub(super) fn write_json(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut out, self)?;
        writeln!(out)?;
        out.flush()
    }

    /// The report for people.
    pub(super) fn table(&self) -> String {
        use crate::report::table::{completion_times, number};
        let (FlowCount { total, completed }, config) = (self.flows, &self.config);
        let mut text = String::new();
        let note =
            if completed == total { String::new() } else { format!(", {} UNFINISHED", total - completed) };
        let rows = [
            ("flows", format!("{completed} of {total} done{note}")),
            ("FCT", completion_times(&self.fct_us)),
            ("fairness", format!("{} (Jain)", number(self.jain, 4))),
            ("goodput", format!("{} Gbit/s", number(self.goodput_gbps, 2))),
        ];
        let Config { matrix, hosts, provider, .. } = config;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{matrix} between {hosts} ranks, over {provider}");
        for (name, row) in rows {
            let _ = writeln!(text, "  {name:<9} {row}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_flows_and_wrong_bytes_are_failures() {
        let text = r#"{"provider":"tcp;ofi_rxm","ranks":2,"wrong":[],"flows":[
            {"id":1,"src":0,"dst":1,"bytes":9,"start":1,"end":2},
            {"id":2,"src":0,"dst":1,"bytes":9,"start":1,"end":null},
            {"id":3,"src":1,"dst":0,"bytes":9,"start":null,"end":null}]}"#;
        let mut results: Results = serde_json::from_str(text).unwrap();
        let failure = results.verdict().unwrap_err();
        assert_eq!(failure.status(), 3);
        let text = failure.to_string();
        assert!(text.contains("2 of 3 flows unfinished"), "{text}");
        assert!(text.contains("flow 2 from rank 0 has not arrived at rank 1"), "{text}");
        assert!(text.contains("flow 3 from rank 1 to rank 0 has not started"), "{text}");
        results.wrong.push("flow 1 arrived with another byte at offset 3".to_owned());
        assert_eq!(results.verdict().unwrap_err().status(), 1);
    }
}
