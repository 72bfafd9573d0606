//! Samples that are written can be read back.

use super::*;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Row, RowAccessor};
use std::fs;
use std::io::{self, Error};
use weft_stack::rng::Rng;
use weft_testbed::sim::{Options, RunConfig, Sampling, run_with};
use weft_testbed::topology::{HostId, SwitchId, TopologySpec};
use weft_testbed::workload::{CmOptions, WorkloadSpec, parse_cm};

/// A place for files that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("weft-samples-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn rows(&self, file: &str) -> Vec<Row> {
        let reader = SerializedFileReader::new(File::open(self.0.join(file)).unwrap()).unwrap();
        reader.get_row_iter(None).unwrap().map(Result::unwrap).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fabric() -> Topology {
    let spec: TopologySpec = "leaf-spine:hosts=8,leaves=2".parse().unwrap();
    spec.build().unwrap()
}

fn two_flows() -> Workload {
    let text = "Nodes 8\nConnections 2\n3->7 id 40 start 0 size 9000\n1->0 id 4000000000 start 0 size 1\n";
    parse_cm("two.cm", text, CmOptions::default()).unwrap()
}

fn config(workload: Workload) -> RunConfig {
    RunConfig { paths: 64, ..RunConfig::new(fabric(), workload) }
}

/// The interval between two times in picoseconds.
fn between(since: u64, at: u64) -> Range<Time> {
    Time::from_ps(since)..Time::from_ps(at)
}

fn port(port: PortId, data_bytes: u32, control_bytes: u32, sent_bytes: u64) -> PortSample {
    PortSample { port: port.0, data_bytes, control_bytes, sent_bytes }
}

#[test]
fn every_value_reads_as_it_was_written() {
    let (scratch, config) = (Scratch::new("values"), config(two_flows()));
    let mut files = SampleFiles::create(&scratch.0.join("out"), &config).unwrap();
    let topology = &config.topology;
    let nic = topology.nic(HostId(3));
    let down = topology.down_ports(SwitchId(1)).nth(2);
    let up = topology.up_ports(SwitchId(0)).nth(0);
    let flow = |flow, received_bytes| FlowSample { flow, received_bytes, sender: None };
    // 100 Gbit/s send 12,500 bytes in a microsecond.
    files.sample(between(0, 1_000_000), &[port(nic, 0, 0, 6_250), port(down, u32::MAX, 64, 0)], &[]);
    files.sample(between(1_000_000, 1_500_001), &[], &[flow(0, 9_000), flow(1, 1)]);
    files.sample(between(1_500_001, 3_500_001), &[port(up, 1, 2, 25_000)], &[flow(1, 1 << 40)]);
    files.finish().unwrap();

    let names = |row: &Row| [2, 3, 5].map(|i| row.get_string(i).unwrap().clone());
    let numbers = |row: &Row| [1, 4, 6, 7].map(|i| row.get_uint(i).unwrap());
    let rows = scratch.rows("out.ports.parquet");
    assert_eq!(rows.len(), 3);
    let columns: Vec<String> = rows[0].get_column_iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(
        columns.join(" "),
        "time_us port owner peer tier direction queue_bytes control_bytes sent_bytes utilisation"
    );
    assert_eq!(rows.iter().map(|row| row.get_double(0).unwrap()).collect::<Vec<_>>(), [1.0, 1.0, 3.500_001]);
    assert_eq!(numbers(&rows[0]), [nic.0, 0, 0, 0]);
    assert_eq!(numbers(&rows[1]), [down.0, 0, u32::MAX, 64]);
    assert_eq!(numbers(&rows[2]), [up.0, 1, 1, 2]);
    assert_eq!(names(&rows[0]), ["host3", "tor0", "up"]);
    assert_eq!(names(&rows[1]), ["tor1", "host6", "down"]);
    assert_eq!(names(&rows[2]), ["tor0", "agg0", "up"]);
    assert_eq!(rows.iter().map(|row| row.get_long(8).unwrap()).collect::<Vec<_>>(), [6_250, 0, 25_000]);
    assert_eq!(rows.iter().map(|row| row.get_double(9).unwrap()).collect::<Vec<_>>(), [0.5, 0.0, 1.0]);

    let rows = scratch.rows("out.flows.parquet");
    let columns: Vec<String> = rows[0].get_column_iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(
        columns.join(" "),
        "time_us index flow src dst received_bytes goodput_gbps cwnd_bytes in_flight_bytes rtt_us base_rtt_us \
         host_us queueing_us phase"
    );
    let ends = |row: &Row| [1, 2, 3, 4].map(|i| row.get_uint(i).unwrap());
    assert_eq!(
        rows.iter().map(ends).collect::<Vec<_>>(),
        [[0, 40, 3, 7], [1, 4_000_000_000, 1, 0], [1, 4_000_000_000, 1, 0]]
    );
    assert_eq!(rows.iter().map(|row| row.get_long(5).unwrap()).collect::<Vec<_>>(), [9_000, 1, 1 << 40]);
    let rate = rows[2].get_double(6).unwrap();
    assert!((rate - (1u64 << 43) as f64 / 2_000.0).abs() < 1e-3, "{rate}");
}

#[test]
fn rows_are_written_in_groups_while_the_run_goes_on() {
    let (scratch, topology, workload) = (Scratch::new("groups"), fabric(), two_flows());
    let [ports, flows] = ["ports", "flows"].map(|name| File::create(scratch.0.join(name)).unwrap());
    let mut tables = Tables::new(ports, flows, &topology, &workload, 7).unwrap();
    let mut written = 0;
    for n in 1..=10u32 {
        let samples: Vec<PortSample> = (0..3).map(|i| port(PortId(i), n, i, u64::from(n * i))).collect();
        tables.sample(between(0, u64::from(n) * 1_000_000), &samples, &[]);
        let buffered = tables.ports.buffered();
        assert_eq!(buffered, n as usize * 3 % 7);
        written += usize::from(buffered < 3);
    }
    assert_eq!(written, 4);
    tables.finish().unwrap();
    let reader = SerializedFileReader::new(File::open(scratch.0.join("ports")).unwrap()).unwrap();
    let groups: Vec<i64> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(groups, [7, 7, 7, 7, 2]);
    for (i, row) in scratch.rows("ports").iter().enumerate() {
        let (n, port) = (i as u32 / 3 + 1, i as u32 % 3);
        assert_eq!(row.get_uint(6).unwrap(), n);
        assert_eq!((row.get_uint(1).unwrap(), row.get_long(8).unwrap()), (port, i64::from(n * port)));
    }
    assert!(scratch.rows("flows").is_empty());
}

/// Takes so many bytes and no more.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(Error::other("the disk is full"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_write_error_is_reported_at_the_end() {
    let (topology, workload) = (fabric(), two_flows());
    for (room, table) in [([100, 1 << 20], 0), ([1 << 20, 100], 1), ([1 << 20, 1 << 20], 2)] {
        let mut tables = Tables::new(Full(room[0]), Full(room[1]), &topology, &workload, 500).unwrap();
        for n in 1..2_000u64 {
            let flow = FlowSample { flow: 0, received_bytes: n * n, sender: None };
            tables.sample(between(0, n * 1_000), &[port(PortId(0), n as u32, 0, n * n)], &[flow]);
        }
        match tables.finish() {
            Ok(()) => assert_eq!(table, 2),
            Err((failed, error)) => {
                assert_eq!(failed, table);
                assert!(error.to_string().contains("the disk is full"), "{error}");
            }
        }
    }
}

/// An incast of two flows whose receiver spends 1 µs on each packet, three times what its link does.
#[test]
fn the_time_in_hosts_is_told_from_that_in_the_fabric() {
    let scratch = Scratch::new("hosts");
    let spec: WorkloadSpec = "incast:2".parse().unwrap();
    let workload = spec.build(Some(8), 500_000, &mut Rng::new(1, 0)).unwrap();
    let host = crate::units::host("per-packet=1us").unwrap();
    let config = RunConfig { host: Some(host), ..config(workload) };
    let mut files = SampleFiles::create(&scratch.0.join("run"), &config).unwrap();
    let sampling = Sampling { every: Span::from_us(10), sink: &mut files };
    let report = run_with(&config, Options { sampling: Some(sampling), ..Options::default() }).unwrap();
    files.finish().unwrap();
    assert!(report.is_complete());
    let rows = scratch.rows("run.flows.parquet");
    let parts = |row: &Row| [9, 10, 11, 12].map(|column| row.get_double(column).unwrap());
    let measured: Vec<[f64; 4]> = rows.iter().map(parts).filter(|parts| parts[0] > 0.0).collect();
    assert!(measured.len() > 20, "{}", measured.len());
    for [rtt, base, host, queueing] in &measured {
        // Time in hosts is reported in units of 128 ns.
        assert!(
            *host >= 1.0 - 0.128 && (rtt - base - host - queueing).abs() < 0.3,
            "{rtt} {base} {host} {queueing}"
        );
    }
    // Packets arrive three times as fast as they are processed, so nearly all of the waiting is in the host.
    let sum = |place: usize| measured.iter().map(|parts| parts[place]).sum::<f64>();
    assert!(sum(2) > 5.0 * sum(3), "{} in hosts, {} in the fabric", sum(2), sum(3));
}

#[test]
fn the_samples_of_a_run_add_up() {
    let scratch = Scratch::new("run");
    let spec: WorkloadSpec = "permutation".parse().unwrap();
    let workload = spec.build(Some(8), 500_000, &mut Rng::new(1, 0)).unwrap();
    let config = config(workload);
    let mut files = SampleFiles::create(&scratch.0.join("run"), &config).unwrap();
    let sampling = Sampling { every: Span::from_us(5), sink: &mut files };
    let report = run_with(&config, Options { sampling: Some(sampling), ..Options::default() }).unwrap();
    files.finish().unwrap();
    assert!(report.is_complete());

    let (ports, flows) = (scratch.rows("run.ports.parquet"), scratch.rows("run.flows.parquet"));
    for flow in &report.flows {
        let of = |row: &&Row| u64::from(row.get_uint(2).unwrap()) == flow.id;
        let received: i64 = flows.iter().filter(of).map(|row| row.get_long(5).unwrap()).sum();
        assert_eq!(received, 500_000, "flow {}", flow.id);
    }
    for row in flows.iter().filter(|row| !row.get_string(13).unwrap().is_empty()) {
        let [cwnd, in_flight] = [7, 8].map(|column| row.get_long(column).unwrap());
        // A window may shrink while packets are in flight, but not to less than a packet.
        assert!(cwnd > 4_096 && (0..500_000 * 2).contains(&in_flight), "{row}");
        let [rtt, base, queueing] = [9, 10, 12].map(|column| row.get_double(column).unwrap());
        assert!(rtt == 0.0 || (rtt - base - queueing).abs() < 1e-6 || queueing == 0.0, "{row}");
        assert!(base > 0.0 && rtt < 1_000.0, "{row}");
        assert_eq!(row.get_double(11).unwrap(), 0.0, "hosts take no time: {row}");
    }
    assert!(flows.iter().any(|row| row.get_double(9).unwrap() > 0.0), "RTTs are measured");
    // Each host sends its flow and acknowledges another.
    for host in 0..8 {
        let of = |row: &&Row| row.get_string(2).unwrap() == &format!("host{host}");
        let sent: i64 = ports.iter().filter(of).map(|row| row.get_long(8).unwrap()).sum();
        assert!((500_000..600_000).contains(&sent), "host {host}: {sent}");
    }
    // A packet counts where its transmission begins.
    let packet = (4_096.0 + 200.0) * 8.0 / 100e9 / 5e-6;
    assert!(ports.iter().all(|row| row.get_double(9).unwrap() <= 1.0 + packet));
    assert!(ports.iter().any(|row| row.get_double(9).unwrap() > 0.8));
    let instants = |rows: &[Row]| rows.iter().map(|row| row.get_double(0).unwrap()).collect::<Vec<_>>();
    assert!(instants(&ports).is_sorted() && instants(&flows).is_sorted());
}
