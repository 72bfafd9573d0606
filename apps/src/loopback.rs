//! `--on loopback`: a part of the workload between two endpoints in this process, over a pair of DPDK
//! `net_ring` devices: real frames in real mbufs, real payload, compared byte by byte, in real time.
//!
//! Two endpoints are two hosts: of the workload those flows run that go from the first flow's source to
//! its destination, or back. They start at their times; those that wait for another flow start at once,
//! because what they wait for may not be here.
//!
//! One thread drives both ends in turn, so that a round trip is one turn of the loop and the run needs
//! one core. There is no link: nothing bounds the rate but the CPU.

#[cfg(any(feature = "dpdk", test))]
mod transfer;

use crate::Failure;
use weft_testbed::sim::{Progress, RunConfig, RunReport};
use weft_testbed::workload::Workload;

/// The two hosts of `workload` that a loopback runs: its first flow's source and destination.
pub(crate) fn first_pair(workload: &Workload) -> Option<[u32; 2]> {
    workload.flows().first().map(|flow| [flow.src.0, flow.dst.0])
}

/// Runs the flows between the first two hosts over DPDK.
#[cfg(feature = "dpdk")]
pub(crate) fn run(config: &RunConfig, progress: &mut dyn FnMut(&Progress)) -> Result<RunReport, Failure> {
    let (ports, pool) = ring_pair(config.mtu).map_err(|e| Failure::Run(format!("--on loopback: {e}")))?;
    let mut transfer = transfer::Transfer::new(config, ports)?;
    transfer.run(config.until, progress);
    let mut report = transfer.into_report();
    // The ports are closed: every mbuf must be back.
    let missing = pool.capacity() - pool.available();
    if missing > 0 {
        report.leaks.push(format!("{missing} mbufs"));
    }
    Ok(report)
}

/// Says why not.
#[cfg(not(feature = "dpdk"))]
pub(crate) fn run(_config: &RunConfig, _progress: &mut dyn FnMut(&Progress)) -> Result<RunReport, Failure> {
    Err(Failure::Run(
        "--on loopback needs DPDK, and this weft was built without its feature `dpdk`".to_owned(),
    ))
}

#[cfg(feature = "dpdk")]
type RingPair = ([weft_stack::port::dpdk::DpdkPort; 2], weft_stack::port::dpdk::MbufPool);

#[cfg(feature = "dpdk")]
fn ring_pair(mtu: u32) -> Result<RingPair, weft_stack::port::dpdk::DpdkError> {
    use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
    /// Ethernet, IPv4, UDP and the longest headers of a data packet.
    const HEADERS: u32 = 14 + 20 + 8 + 16 + 44;
    /// Frames that each direction holds.
    const RING: u32 = 1024;
    // A payload that no packet can have is refused by the endpoint, after this.
    let frame = u16::try_from(mtu + HEADERS).unwrap_or(u16::MAX / 2);
    let eal = Eal::init(&EalOptions::default())?;
    // Both rings full, both bursts, and what is being received.
    let pool_config = MbufPoolConfig { buffers: 4 * RING, buffer_size: frame, ..MbufPoolConfig::default() };
    let pool = MbufPool::create(eal, "loopback", &pool_config)?;
    let port_config = DpdkPortConfig { mtu: frame - 14, ..DpdkPortConfig::default() };
    let (a, b) = DpdkPort::ring_pair(eal, "loopback", RING, pool, &port_config)?;
    Ok(([a, b], pool))
}
