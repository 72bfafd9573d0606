//! `--sample`: the state of ports and flows while a run goes on, as two Parquet files. docs/samples.md describes
//! their columns.

mod fairness;
mod names;

#[cfg(test)]
mod tests;

use crate::Failure;
use crate::columnar::{Column, Columns, ROWS_PER_GROUP, Table};
use crate::output::OutputFile;
use fairness::Shares;
pub(crate) use fairness::{FairnessOverTime, SameFlows};
pub(crate) use names::Names;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use weft_cc::{Span, Time};
use weft_testbed::sim::{FlowSample, PortSample, RunConfig, SampleSink, SenderSample};
use weft_testbed::topology::{PortId, Topology};
use weft_testbed::workload::Workload;

/// Writes samples to two files, a group of rows at a time.
pub(crate) struct SampleFiles<'a> {
    paths: [PathBuf; 2],
    files: [OutputFile; 2],
    tables: Tables<'a, File>,
    shares: Shares,
}

impl<'a> SampleFiles<'a> {
    /// Makes `PATH.ports.parquet` and `PATH.flows.parquet`, for the run that `config` describes.
    pub(crate) fn create(path: &Path, config: &'a RunConfig) -> Result<SampleFiles<'a>, Failure> {
        let RunConfig { topology, workload, .. } = config;
        let paths = paths(path);
        let create = |path: &PathBuf| {
            let file = OutputFile::create(path).map_err(|e| failed(path, &e))?;
            let writer = file.writer().map_err(|e| failed(path, &e))?;
            Ok((file, writer))
        };
        let ((ports, ports_writer), (flows, flows_writer)) = (create(&paths[0])?, create(&paths[1])?);
        let tables = Tables::new(ports_writer, flows_writer, topology, workload, ROWS_PER_GROUP);
        Ok(SampleFiles {
            tables: tables.map_err(|e| failed(path, &e))?,
            files: [ports, flows],
            paths,
            shares: Shares::default(),
        })
    }

    /// Writes the last rows and moves the files to their places. Without this there are no files.
    ///
    /// # Errors
    /// The first error of any write.
    pub(crate) fn finish(self) -> Result<FairnessOverTime, Failure> {
        let fairness = self.shares.result();
        self.tables.finish().map_err(|(table, error)| failed(&self.paths[table], &error))?;
        for (file, path) in self.files.into_iter().zip(&self.paths) {
            file.commit().map_err(|error| failed(path, &error))?;
        }
        Ok(fairness)
    }
}

impl SampleSink for SampleFiles<'_> {
    fn sample(&mut self, interval: Range<Time>, ports: &[PortSample], flows: &[FlowSample]) {
        self.shares.sample(interval.start, flows);
        self.tables.sample(interval, ports, flows);
    }
}

/// The files of the ports and of the flows whose names begin with `path`.
pub(crate) fn paths(path: &Path) -> [PathBuf; 2] {
    ["ports", "flows"].map(|table| with_suffix(path, table))
}

fn with_suffix(path: &Path, table: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{table}.parquet"));
    name.into()
}

fn failed(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::Run(format!("{}: {error}", path.display()))
}

fn named<const N: usize>(columns: [(&str, Column); N]) -> Columns {
    columns.map(|(name, column)| (name.to_owned(), column)).into()
}

/// The columns of the ports' table, in order.
fn port_columns() -> Columns {
    named([
        ("time_us", Column::double()),
        ("port", Column::int()),
        ("owner", Column::text()),
        ("peer", Column::text()),
        ("tier", Column::int()),
        ("direction", Column::text()),
        ("queue_bytes", Column::int()),
        ("control_bytes", Column::int()),
        ("sent_bytes", Column::long()),
        ("utilisation", Column::double()),
    ])
}

/// The columns of the flows' table, in order.
fn flow_columns() -> Columns {
    named([
        ("time_us", Column::double()),
        ("index", Column::int()),
        ("flow", Column::int()),
        ("src", Column::int()),
        ("dst", Column::int()),
        ("received_bytes", Column::long()),
        ("goodput_gbps", Column::double()),
        ("cwnd_bytes", Column::long()),
        ("in_flight_bytes", Column::long()),
        ("rtt_us", Column::double()),
        ("base_rtt_us", Column::double()),
        ("host_us", Column::double()),
        ("queueing_us", Column::double()),
        ("phase", Column::text()),
    ])
}

/// The two tables, whatever they are written to.
struct Tables<'a, W: Write + Send> {
    topology: &'a Topology,
    workload: &'a Workload,
    names: Names,
    ports: Table<W>,
    flows: Table<W>,
    /// The first thing that went wrong, and in which table.
    error: Option<(usize, ParquetError)>,
}

impl<'a, W: Write + Send> Tables<'a, W> {
    fn new(
        ports: W,
        flows: W,
        topology: &'a Topology,
        workload: &'a Workload,
        group: usize,
    ) -> Result<Tables<'a, W>, ParquetError> {
        Ok(Tables {
            topology,
            workload,
            names: Names::of(topology),
            ports: Table::new(ports, port_columns(), group)?,
            flows: Table::new(flows, flow_columns(), group)?,
            error: None,
        })
    }

    fn add_port(&mut self, time_us: f64, interval: Span, sample: &PortSample) -> Result<(), ParquetError> {
        let port = self.topology.port(PortId(sample.port));
        let direction = self.names.direction(port.direction);
        let row = &mut self.ports;
        row.double(time_us);
        row.int(sample.port);
        row.text(self.names.node(port.owner));
        row.text(self.names.node(port.peer));
        row.int(u32::from(port.tier));
        row.text(direction);
        row.int(sample.data_bytes);
        row.int(sample.control_bytes);
        row.long(sample.sent_bytes);
        row.double(gbps(sample.sent_bytes, interval) / (port.rate.as_bps() as f64 / 1e9));
        row.end()
    }

    fn add_flow(&mut self, time_us: f64, interval: Span, sample: &FlowSample) -> Result<(), ParquetError> {
        let flow = &self.workload.flows()[sample.flow as usize];
        let row = &mut self.flows;
        row.double(time_us);
        row.int(sample.flow);
        row.int(flow.id);
        row.int(flow.src.0);
        row.int(flow.dst.0);
        row.long(sample.received_bytes);
        row.double(gbps(sample.received_bytes, interval));
        let (sender, us) = (sample.sender.as_ref(), |span: Option<Span>| span.map_or(0.0, Span::as_us_f64));
        // An endless window is longer than a column of signed numbers can say.
        row.long(sender.map_or(0, |sender| sender.cwnd.min(i64::MAX as u64)));
        row.long(sender.map_or(0, |sender| sender.in_flight));
        row.double(us(sender.and_then(|sender| sender.rtt)));
        row.double(us(sender.map(|sender| sender.base_rtt)));
        row.double(us(sender.map(|sender| sender.in_hosts)));
        row.double(us(sender.and_then(SenderSample::queueing)));
        row.text(ByteArray::from(sender.map_or("", |sender| sender.phase)));
        row.end()
    }

    fn finish(self) -> Result<(), (usize, ParquetError)> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.ports.finish().map_err(|e| (0, e))?;
        self.flows.finish().map_err(|e| (1, e))
    }
}

/// `bytes` over `interval`; 0 over no time.
fn gbps(bytes: u64, interval: Span) -> f64 {
    crate::stats::gbps(bytes, interval).unwrap_or(0.0)
}

impl<W: Write + Send> SampleSink for Tables<'_, W> {
    fn sample(&mut self, interval: Range<Time>, ports: &[PortSample], flows: &[FlowSample]) {
        if self.error.is_some() {
            return;
        }
        let time_us = interval.end.since(Time::ZERO).as_us_f64();
        let interval = interval.end.since(interval.start);
        let ports = ports.iter().try_for_each(|sample| self.add_port(time_us, interval, sample));
        let flows = flows.iter().try_for_each(|sample| self.add_flow(time_us, interval, sample));
        self.error = ports.err().map(|e| (0, e)).or(flows.err().map(|e| (1, e)));
    }
}
