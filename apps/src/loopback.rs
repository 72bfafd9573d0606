//! `--on loopback`: a part of the workload between two endpoints in this process, over a pair of DPDK
//! `net_ring` devices: real frames in real mbufs, real payload, compared byte by byte, in real time.
//!
//! Two endpoints are two hosts: the flows that run are those from the first flow's source to its destination, and back.
//! They start at their times; those that wait for a flow between other hosts start
//! at once. A program runs if its ranks are on two hosts, or on one.
//!
//! There is no link: nothing bounds the rate but the CPU.

use crate::Failure;
use crate::interrupt::Interrupt;
use crate::trace::LiveTrace;
use weft_testbed::sim::{RunConfig, RunProgress, RunReport};
use weft_testbed::workload::Workload;

/// The two hosts of `workload` that a loopback runs: its first flow's source and destination.
pub(crate) fn first_pair(workload: &Workload) -> Option<[u32; 2]> {
    workload.flows().first().map(|flow| [flow.src.0, flow.dst.0])
}

/// Refuses a program whose ranks are on more hosts.
pub(crate) fn check_hosts(config: &RunConfig) -> Result<(), Failure> {
    match config.job.as_ref().map_or(0, |job| job.hosts()) {
        0..=2 => Ok(()),
        hosts => Err(Failure::Usage(format!(
            "--on loopback: the ranks are on {hosts} hosts; expected at most 2, by more --ranks-per-host"
        ))),
    }
}

/// Runs the flows between the first two hosts, or the program, over DPDK.
#[cfg(feature = "dpdk")]
pub(crate) fn run(
    config: &RunConfig,
    trace: Option<&LiveTrace>,
    progress: &mut dyn FnMut(&RunProgress),
    interrupt: &Interrupt,
) -> Result<RunReport, Failure> {
    fn failed(error: impl std::fmt::Display) -> Failure {
        Failure::Run(format!("--on loopback: {error}"))
    }
    let of_program = config.job.as_ref().map(|_| [0, 1]);
    let pair = of_program.or_else(|| first_pair(&config.workload));
    let pair = pair.ok_or_else(|| failed(crate::live::LiveError::NoFlows))?;
    let (ports, pool) = rings::open(config.mtu).map_err(failed)?;
    let hosts = rings::hosts(pair, ports).into();
    // A full ring keeps frames waiting: none is lost, so senders need not infer losses.
    let network = weft::core::Settings { trimming: true, ..Default::default() };
    let endpoints = crate::live::configure(config, config.paths, network).map_err(failed)?;
    let mut live = crate::live::Live::new(config, &endpoints, hosts).map_err(failed)?;
    live.trace(trace);
    live.run(progress, interrupt);
    let mut report = live.into_report();
    // The ports are closed: every mbuf must be back.
    let missing = pool.capacity() - pool.available();
    if missing > 0 {
        report.leaks.push(format!("{missing} mbufs"));
    }
    Ok(report)
}

/// Refuses to run without DPDK.
#[cfg(not(feature = "dpdk"))]
pub(crate) fn run(
    _config: &RunConfig,
    _trace: Option<&LiveTrace>,
    _progress: &mut dyn FnMut(&RunProgress),
    _interrupt: &Interrupt,
) -> Result<RunReport, Failure> {
    Err(Failure::Run(
        "--on loopback needs DPDK, and this weft was built without its feature `dpdk`".to_owned(),
    ))
}

/// The two ends and what lies between them.
#[cfg(feature = "dpdk")]
mod rings {
    use crate::live::LiveHost;
    use weft_stack::port::dpdk::{
        DpdkError, DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig,
    };
    use weft_stack::wire::ethernet::{self, MacAddr};
    use weft_stack::wire::{MAX_IPV4_HEADERS, crc};
    use weft_stack::worker::HostAddr;

    /// The longest headers of a data packet, and its CRC.
    const HEADERS: u32 = (ethernet::HEADER_LEN + MAX_IPV4_HEADERS + crc::LEN) as u32;
    /// Frames that each direction holds.
    const RING: u32 = 1024;

    pub(super) fn open(mtu: u32) -> Result<([DpdkPort; 2], MbufPool), DpdkError> {
        // A payload that no packet can have is refused by the endpoint, after this.
        let frame = u16::try_from(mtu + HEADERS).unwrap_or(u16::MAX / 2);
        let eal = Eal::init(&EalOptions::default())?;
        // Both rings full, both bursts, and what is being received.
        let pool_config =
            MbufPoolConfig { buffers: 4 * RING, buffer_size: frame, ..MbufPoolConfig::default() };
        let pool = MbufPool::create(eal, "loopback", &pool_config)?;
        let port_config = DpdkPortConfig { mtu: frame - 14, ..DpdkPortConfig::default() };
        let (a, b) = DpdkPort::ring_pair(eal, "loopback", RING, pool, &port_config)?;
        Ok(([a, b], pool))
    }

    pub(super) fn hosts([a, b]: [u32; 2], [left, right]: [DpdkPort; 2]) -> [LiveHost<DpdkPort>; 2] {
        let host = |number, n, port| LiveHost {
            number,
            host: HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: [127, 0, 0, n].into() },
            port,
        };
        [host(a, 1, left), host(b, 2, right)]
    }
}
