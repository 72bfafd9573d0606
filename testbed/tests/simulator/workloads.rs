//! Generated workloads in simulations, beside closed forms: queues of random arrivals, idle flows, collectives.

use weft_cc::{CcChoice, Rate, Span, Time};
use weft_stack::rng::Rng;
use weft_testbed::sim::{Options, Overhead, RunConfig, RunReport, run_with};
use weft_testbed::topology::{HostId, Topology, TopologySpec};
use weft_testbed::workload::{Connection, Flow, Setting, Start, Workload, WorkloadSpec};

fn topology(text: &str) -> Topology {
    text.parse::<TopologySpec>().unwrap().build().unwrap()
}

/// The workload that `specs` describe on `fabric`. The file `sizes.txt` has the text `sizes`.
fn workload(specs: &[&str], fabric: &Topology, sizes: &str) -> Workload {
    let read = |_: &str| Ok(sizes.to_owned());
    let specs: Vec<WorkloadSpec> = specs.iter().map(|text| text.parse().unwrap()).collect();
    let setting =
        Setting { hosts: fabric.hosts(), topology: Some(fabric), bytes: 1 << 20, slow: 1, read: &read };
    WorkloadSpec::build_all(&specs, &setting, |i| Rng::new(3, i as u64)).unwrap()
}

fn config(fabric: &str, specs: &[&str]) -> RunConfig {
    let fabric = topology(fabric);
    let workload = workload(specs, &fabric, "");
    RunConfig::new(fabric, workload)
}

fn run(config: &RunConfig, threads: usize) -> RunReport {
    let report = run_with(config, Options { threads, ..Options::default() }).unwrap();
    assert!(report.is_complete() && report.leaks.is_empty(), "{:?} {:?}", report.stuck, report.leaks);
    report
}

/// Senders of the queues below: so many that the queues at their own links do not count.
const SENDERS: u32 = 200;

/// The mean time that a packet waits for the link to one host, to which Poisson arrivals of single packets come from many
/// hosts, in ns. `sizes` is their distribution, and `load` counts payload.
fn mean_wait(load: f64, sizes: &str, packets: u32) -> f64 {
    let fabric = topology(&format!("leaf-spine:hosts={},leaves=1,spines=1,link=10G", SENDERS + 1));
    let per_host = load / f64::from(SENDERS + 1);
    let spec = format!("poisson:load={per_host:.12},sizes=sizes.txt,flows={packets}");
    let drawn = workload(&[&spec], &fabric, sizes);
    let connections = (0..SENDERS).map(|i| Connection::new(i + 1, HostId(i + 1), HostId(0)));
    let connections: Vec<Connection> = connections.collect();
    let mut rng = Rng::new(8, 0);
    let redirected = drawn.flows().iter().map(|flow| {
        let connection = rng.below(SENDERS);
        let Connection { id, src, dst, .. } = connections[connection as usize];
        Flow { id, connection, src, dst, ..*flow }
    });
    let flows: Vec<Flow> = redirected.collect();
    let workload = Workload::new(SENDERS + 1, flows, connections.clone(), Vec::new(), Vec::new()).unwrap();
    let config = RunConfig {
        cc: CcChoice::parse("constant").unwrap(),
        ecn: None,
        queue_bytes: Some(100_000_000),
        // Control packets take as good as no time.
        wire_overhead: Overhead::Fixed(1),
        ..RunConfig::new(fabric, workload)
    };
    let report = run(&config, 1);
    assert_eq!((report.packets.data, report.packets.retransmitted), (u64::from(packets), 0));
    let waits = report.flows.iter().map(|flow| {
        let fct = flow.end.unwrap().since(flow.start.unwrap());
        fct.minus(config.ideal_fct(HostId(flow.src), HostId(flow.dst), flow.bytes)).as_us_f64()
    });
    waits.sum::<f64>() / f64::from(packets) * 1e3
}

/// The mean wait in an M/G/1 queue, ns (Pollaczek and Khinchine): λ E[S²] / (2 (1 - ρ)), for the given sizes in bytes on a
/// link of 10 Gbit/s.
fn pollaczek_khinchine(load: f64, sizes: &[f64]) -> f64 {
    let mean = |of: &dyn Fn(f64) -> f64| sizes.iter().map(|size| of(*size)).sum::<f64>() / sizes.len() as f64;
    let service = |payload: f64| (payload + 1.0) * 8.0 / 10.0;
    // `load` counts payload.
    let rate = load / mean(&|size| size * 8.0 / 10.0);
    let busy = rate * mean(&service);
    rate * mean(&|size| service(size) * service(size)) / (2.0 * (1.0 - busy))
}

#[test]
fn poisson_arrivals_of_equal_packets_wait_as_in_an_m_d_1_queue() {
    for (load, packets) in [(0.5, 300_000), (0.7, 400_000)] {
        let (seen, expected) = (mean_wait(load, "4096 100", packets), pollaczek_khinchine(load, &[4096.0]));
        assert!((seen / expected - 1.0).abs() < 0.02, "load {load}: {seen} ns, not {expected}");
    }
}

#[test]
fn poisson_arrivals_of_different_packets_wait_as_in_an_m_g_1_queue() {
    let (seen, expected) =
        (mean_wait(0.5, "200 50\n4096 50\n4096 100", 300_000), pollaczek_khinchine(0.5, &[200.0, 4096.0]));
    assert!((seen / expected - 1.0).abs() < 0.02, "{seen} ns, not {expected}");
}

fn one_flow(fabric: &Topology, src: u32, dst: u32, bytes: u64) -> Workload {
    let connection = Connection::new(1, HostId(src), HostId(dst));
    let flow = Flow {
        id: 1,
        connection: 0,
        src: HostId(src),
        dst: HostId(dst),
        bytes,
        start: Start::At(Time::from_ps(1_000)),
        on_sent: None,
        on_received: None,
        message: None,
    };
    Workload::new(fabric.hosts(), vec![flow], vec![connection], Vec::new(), Vec::new()).unwrap()
}

/// The time of one flow and its ideal time, ps.
fn idle(fabric: &str, dst: u32, bytes: u64, change: impl Fn(&mut RunConfig)) -> (u64, u64) {
    let fabric = topology(fabric);
    let workload = one_flow(&fabric, 0, dst, bytes);
    let mut config = RunConfig { wire_overhead: Overhead::Fixed(64), ..RunConfig::new(fabric, workload) };
    change(&mut config);
    let report = run(&config, 1);
    let ideal = config.ideal_fct(HostId(0), HostId(dst), bytes);
    let fct = report.flows[0].end.unwrap().since(report.flows[0].start.unwrap());
    (fct.as_ps(), ideal.as_ps())
}

#[test]
fn a_flow_in_an_idle_fabric_takes_its_ideal_time() {
    // One way for all packets, or several, over links as fast as the hosts'.
    for fabric in [
        "leaf-spine:hosts=16,leaves=4,spines=4,latency=700ns,switch-latency=300ns",
        "leaf-spine:hosts=16,leaves=4,spines=1,link=100G,uplink=400G",
        "leaf-spine:hosts=16,leaves=4,spines=1,link=400G,uplink=100G",
        "fat-tree:k=4,latency=500ns",
    ] {
        let is_one_way = fabric.contains("spines=1");
        for dst in [1, 4, 15] {
            for bytes in [0, 1, 64, 4096, 4097, 8192, 20_480, 30_000] {
                let (fct, ideal) = idle(fabric, dst, bytes, |_| ());
                // A last packet that is shorter may stand behind the one before it, or go another way; an acknowledgement
                // may stand behind the one before it, and takes 5 ns on a link. Each link rounds to whole picoseconds.
                let is_even = bytes <= 4096 || bytes % 4096 == 0;
                let more = if is_even || is_one_way || dst == 1 { 6_000 } else { 1_000_000 };
                assert!(
                    fct + 20 >= ideal && fct <= ideal + more,
                    "{fabric}, {bytes} bytes to {dst}: {fct}, not {ideal} ps"
                );
            }
            let (fct, ideal) = idle(fabric, dst, 3_000_000, |_| ());
            assert!(
                fct + 1000 >= ideal && fct < ideal + ideal / 50,
                "{fabric}, to {dst}: {fct}, not {ideal} ps"
            );
        }
    }
}

/// Four uplinks of 100 Gbit/s carry what a link of 400 Gbit/s brings, if packets spread evenly; they nearly do.
#[test]
fn packets_that_spread_over_several_links_do_not_queue_ideally() {
    let fabric = "leaf-spine:hosts=16,leaves=4,spines=4,link=400G,uplink=100G";
    for bytes in [4096, 30_000, 1_000_000] {
        let (fct, ideal) = idle(fabric, 15, bytes, |_| ());
        assert!(fct + 20 >= ideal && fct < 2 * ideal, "{bytes} bytes: {fct}, not {ideal} ps");
    }
}

/// Headers take their true sizes, and acknowledgements have a few bytes more than the smallest.
#[test]
fn with_true_headers_an_idle_flow_takes_its_ideal_time_and_a_few_nanoseconds() {
    for cc in ["nscc", "constant", "nscc+rccc"] {
        let (fct, ideal) = idle("fat-tree:k=4", 15, 30_000, |config| {
            config.wire_overhead = Overhead::Auto;
            config.cc = CcChoice::parse(cc).unwrap();
        });
        assert!(fct >= ideal && fct <= ideal + 20_000, "{cc}: {fct}, not {ideal} ps");
    }
}

/// Five gigabytes are 75 messages over one connection.
#[test]
fn a_flow_of_more_than_four_gibibytes_arrives_at_line_rate() {
    const BYTES: u64 = 5_000_000_000;
    let (fct, ideal) = idle("leaf-spine:hosts=2,leaves=1,spines=1", 1, BYTES, |config| config.mtu = 16_000);
    assert!(fct >= ideal && fct < ideal + ideal / 100, "{fct}, not {ideal} ps");
}

/// The times of the tasks of a collective on eight hosts of one switch, and the ideal one, ns.
fn collective(spec: &str) -> Vec<(f64, f64)> {
    let config = config("leaf-spine:hosts=8,leaves=1,spines=1", &[spec]);
    let report = run(&config, 1);
    let ns = |span: Span| span.as_us_f64() * 1e3;
    let times =
        report.tasks.iter().map(|task| (ns(task.end.unwrap().since(task.start.unwrap())), ns(task.ideal)));
    times.collect()
}

#[test]
fn collectives_in_an_idle_fabric_take_their_ideal_times() {
    const BYTES: u64 = 400_000;
    let config = config("leaf-spine:hosts=8,leaves=1,spines=1", &["permutation"]);
    let one_way = |bytes| config.ideal_delivery(HostId(0), HostId(1), bytes).as_us_f64() * 1e3;
    let acknowledged = |bytes| config.ideal_fct(HostId(0), HostId(1), bytes).as_us_f64() * 1e3;
    for (name, expected) in [
        ("all-reduce:ring", 14.0 * one_way(BYTES / 8)),
        ("all-reduce:recursive-doubling", 3.0 * one_way(BYTES)),
        // Up in three steps; down to the last child of the root, which hears of the two before it.
        ("all-reduce:tree", 4.0 * one_way(BYTES) + 2.0 * acknowledged(BYTES)),
        ("all-to-all:1", 6.0 * acknowledged(BYTES) + one_way(BYTES)),
    ] {
        let iterations = collective(&format!("{name},size={BYTES},iterations=3,compute=20us"));
        assert_eq!(iterations.len(), 3, "{name}");
        for (time, ideal) in iterations {
            assert!((ideal / expected - 1.0).abs() < 1e-6, "{name}: the ideal is {ideal}, not {expected} ns");
            assert!(time >= ideal && time < 1.01 * ideal, "{name}: {time}, not {ideal} ns");
        }
    }
}

#[test]
fn ranks_compute_between_iterations() {
    let report = run(
        &config(
            "leaf-spine:hosts=8,leaves=1,spines=1",
            &["all-reduce:ring,size=100KB,iterations=4,compute=50us,start=7us"],
        ),
        1,
    );
    assert_eq!(report.tasks[0].start, Some(Time::from_ps(7_000_000)));
    for pair in report.tasks.windows(2) {
        let pause = pair[1].start.unwrap().since(pair[0].end.unwrap()).as_us_f64();
        // The first rank to end an iteration starts the next one, while others wait for their last chunk.
        assert!((45.0..=50.1).contains(&pause), "{pause} µs");
    }
}

#[test]
fn requests_and_responses_take_their_ideal_times_and_the_service_time() {
    let config = config(
        "leaf-spine:hosts=8,leaves=2,spines=1",
        &["rpc:load=0.001,sizes=5000,response=20000,service=9us,flows=50"],
    );
    let report = run(&config, 1);
    assert_eq!(report.tasks.len(), 50);
    for (task, flows) in report.tasks.iter().zip(report.flows.chunks(2)) {
        let (src, dst) = (HostId(flows[0].src), HostId(flows[0].dst));
        let expected = config.ideal_delivery(src, dst, 5000)
            + Span::from_us(9)
            + config.ideal_delivery(dst, src, 20_000);
        assert_eq!(task.ideal, expected);
        let time = task.end.unwrap().since(task.start.unwrap());
        assert!(
            time >= task.ideal && time.as_us_f64() < task.ideal.as_us_f64() * 1.01,
            "{time:?}, {expected:?}"
        );
        assert!(flows[1].start.unwrap().since(flows[0].start.unwrap()) > Span::from_us(9));
    }
}

#[test]
fn a_burst_ends_when_its_receivers_link_has_carried_it() {
    let report = run(
        &config(
            "leaf-spine:hosts=16,leaves=2,spines=8",
            &["bursts:senders=8,size=100KB,every=100us,bursts=5"],
        ),
        1,
    );
    for task in &report.tasks {
        let (time, ideal) = (task.end.unwrap().since(task.start.unwrap()), task.ideal);
        let wire = Rate::from_gbps(100).time_for(8 * 100_000);
        assert!(ideal > wire && time >= ideal && time < wire.times(2), "{time:?}, {ideal:?}");
    }
}

#[test]
fn no_flow_is_faster_than_its_ideal_time() {
    let config = config(
        "leaf-spine:hosts=16,leaves=4,spines=2",
        &[
            "poisson:load=0.6,sizes=WebSearch,duration=300us,connections=2",
            "bursts:senders=5,size=20KB,load=0.05,arrivals=poisson,duration=300us",
        ],
    );
    for flow in run(&config, 1).flows {
        let ideal = config.ideal_fct(HostId(flow.src), HostId(flow.dst), flow.bytes);
        assert!(
            flow.end.unwrap().since(flow.start.unwrap()) + Span::from_ns(1) >= ideal,
            "{flow:?}, {ideal:?}"
        );
    }
}

/// Delayed triggers and flows of many kinds, distributed over threads.
#[test]
fn any_number_of_threads_gives_the_same_results() {
    let config = config(
        "leaf-spine:hosts=16,leaves=4,spines=4",
        &[
            "all-reduce:ring,size=64KiB,iterations=2,compute=3us,jitter=2us",
            "all-reduce:tree,ranks=4-12,size=64KiB,iterations=2,compute=5us",
            "all-to-all:2,ranks=8,size=10KB,iterations=2",
            "rpc:load=0.2,sizes=GoogleRPC2008,service=1us,connections=2,duration=100us",
            "lognormal:load=0.2,sizes=FbHdp,duration=100us",
            "bursts:senders=6,size=30KB,every=30us,duration=100us,jitter=1us",
        ],
    );
    let one = run(&config, 1);
    for threads in [2, 4] {
        assert!(run(&config, threads) == one, "{threads} threads");
    }
}
