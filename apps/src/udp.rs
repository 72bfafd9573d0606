//! `--on udp`: the workload between endpoints in this process, each over kernel UDP sockets of its own on
//! 127.0.0.1: no privileges, no DPDK, real payload, compared byte by byte, in real time.
//!
//! The hosts that have flows or ranks take part, at most [`MAX_HOSTS`]. The kernel has no switch that trims: what comes
//! in faster than it is taken is lost for want of receive buffer. So the windows of all who send to one host at
//! a time are made to fit into that buffer; see docs/udp.md.

use crate::{Failure, live};
use weft_testbed::sim::RunConfig;

/// The largest number of endpoints: each has a socket to receive from and one for each path, and one thread drives all.
pub(crate) const MAX_HOSTS: usize = 64;
/// The default number of paths: each endpoint binds as many source ports.
pub(crate) const DEFAULT_PATHS: u16 = 8;
/// The largest number of paths.
pub(crate) const MAX_PATHS: u16 = 64;

/// Refuses a workload of more hosts than one process can have.
pub(crate) fn check_hosts(config: &RunConfig) -> Result<(), Failure> {
    match live::hosts(config).len() {
        hosts if hosts <= MAX_HOSTS => Ok(()),
        hosts => Err(Failure::Usage(format!(
            "--on udp: {hosts} hosts take part; expected at most {MAX_HOSTS} in one process"
        ))),
    }
}

pub(crate) use sockets::run;

mod sockets {
    use super::MAX_HOSTS;
    use crate::Failure;
    use crate::interrupt::Interrupt;
    use crate::live::{self, Live, LiveError, LiveHost};
    use crate::trace::LiveTrace;
    use std::collections::BTreeSet;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;
    use weft::BuildError;
    use weft::core::{FepConfig, Settings};
    use weft_cc::{Rate, Span};
    use weft_stack::port::udp::{Notice, UdpConfig, UdpError, UdpPort, mac_of};
    use weft_stack::worker::HostAddr;
    use weft_testbed::sim::{RunConfig, RunProgress, RunReport};
    use weft_testbed::workload::Start;

    /// Bytes of receive buffer asked for.
    const RECEIVE_BUFFER: usize = 4 << 20;
    /// The round-trip time that congestion control assumes: some turns of the loop, and no less than the time to carry a
    /// packet of each flow.
    const RTT: Span = Span::from_us(100);
    const RTT_PER_FLOW: Span = Span::from_us(4);
    /// Bytes that one sender may have in flight, where the receive buffer holds as much: enough for full bursts
    /// in every turn of the loop.
    const LARGEST_WINDOW: u64 = 1 << 20;
    /// Bytes that all senders together may have in flight: one thread carries everything, some 1 GB/s, and what waits for it
    /// must not wait for longer than timers do.
    const ALL_WINDOWS: u64 = 4 << 20;
    /// Largest windows in bandwidth-delay products, of the algorithms that have any (`max_window_bdp`).
    const WINDOW_BDP: f64 = 1.5;

    /// Runs all flows of `config`'s workload, or its program. Returns the report, and what is worth knowing about the ports.
    ///
    /// # Errors
    /// Sockets that the system does not give, or options that do not go together.
    pub(crate) fn run(
        config: &RunConfig,
        trace: Option<&LiveTrace>,
        progress: &mut dyn FnMut(&RunProgress),
        interrupt: &Interrupt,
    ) -> Result<(RunReport, Vec<String>), Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("--on udp: {error}"));
        let hosts = live::hosts(config);
        let ports = open(config, hosts.len(), RECEIVE_BUFFER).map_err(|error| failed(&error))?;
        let endpoints = endpoints(config, &ports).map_err(|error| failed(&error))?;
        let hosts = live_hosts(hosts, ports);
        let mut live = Live::new(config, &endpoints, hosts).map_err(|error: LiveError| failed(&error))?;
        live.trace(trace);
        live.run(progress, interrupt);
        let notes = notes(live.ports());
        Ok((live.into_report(), notes))
    }

    /// A port for each host, which knows all other hosts and requests this many bytes of receive buffer.
    pub(super) fn open(
        config: &RunConfig,
        count: usize,
        receive_buffer: usize,
    ) -> Result<Vec<UdpPort>, UdpError> {
        debug_assert!(count <= MAX_HOSTS, "addresses have one byte for the host");
        let open = |n: u8| {
            UdpPort::open(
                &UdpConfig {
                    // Within the process only: all datagrams are between ports of 127.0.0.1.
                    alias: Some(Ipv4Addr::new(10, 0, 0, n).into()),
                    sources: config.paths,
                    mtu: config.longest_packet(),
                    tx_frames: 64,
                    receive_buffer,
                    ..UdpConfig::at(IpAddr::V4(Ipv4Addr::LOCALHOST))
                }
                .with_free_ports(),
            )
        };
        let mut ports: Vec<UdpPort> = (1..=count as u8).map(open).collect::<Result<_, _>>()?;
        let peers: Vec<_> = ports.iter().map(UdpPort::as_peer).collect();
        for (own, port) in ports.iter_mut().enumerate() {
            for (_, peer) in peers.iter().enumerate().filter(|(other, _)| *other != own) {
                port.meet(peer)?;
            }
        }
        Ok(ports)
    }

    /// The hosts with their ports.
    pub(super) fn live_hosts(hosts: Vec<u32>, ports: Vec<UdpPort>) -> Vec<LiveHost<UdpPort>> {
        let live_host = |(number, port): (u32, UdpPort)| {
            let host = HostAddr { mac: mac_of(port.ip()), ip: port.ip() };
            LiveHost { number, host, port }
        };
        hosts.into_iter().zip(ports).map(live_host).collect()
    }

    /// The endpoints' configuration: so that all windows towards one host fit into its receive buffer.
    pub(super) fn endpoints(config: &RunConfig, ports: &[UdpPort]) -> Result<Arc<FepConfig>, BuildError> {
        let buffer = ports.iter().map(UdpPort::receive_buffer).min().unwrap_or(0) as u64;
        let flows = flows_at_a_time(config);
        let window = window(buffer, most_senders(config), flows).max(config.wire_mtu());
        let rtt = RTT.max(RTT_PER_FLOW.times(flows));
        let bits = window as f64 * 8.0 / WINDOW_BDP;
        let network = Settings {
            rtt: Some(rtt),
            link: Some(Rate::from_bps((bits / rtt.as_secs_f64()) as u64)),
            // The system may take the CPU away for some time.
            rto: Some(Span::from_ms(50) + rtt.times(10)),
            // With doubling, a packet is sent until the run is given up for its silence.
            max_retries: Some(8),
            mp_range: 1024,
            ..Settings::default()
        };
        live::configure(config, ports.first().map_or(1, UdpPort::entropies), network)
    }

    /// The largest window of each of `flows` flows, of which `senders` lead to one host whose receive buffer has
    /// `buffer` bytes.
    ///
    /// The kernel counts each datagram with its own structures, up to twice its length if it is not joined
    /// with others, and acknowledgements of what the host itself sends come into the same buffer.
    fn window(buffer: u64, senders: u64, flows: u64) -> u64 {
        (buffer / 4 / senders.max(1)).min(LARGEST_WINDOW).min(ALL_WINDOWS / flows.max(1))
    }

    /// The most hosts that send to a single one.
    fn most_senders(config: &RunConfig) -> u64 {
        let pairs: BTreeSet<_> = config.transfers().map(|(src, dst, _)| (dst, src)).collect();
        let pairs: Vec<_> = pairs.into_iter().collect();
        pairs.chunk_by(|a, b| a.0 == b.0).map(|senders| senders.len() as u64).max().unwrap_or(0)
    }

    /// Flows that start by themselves; flows with a trigger take their places when they are done. Ranks may send on all their
    /// connections at the same time.
    fn flows_at_a_time(config: &RunConfig) -> u64 {
        if let Some(job) = &config.job {
            let pairs: BTreeSet<_> = job.messages().map(|message| (message.from, message.to)).collect();
            return pairs.len() as u64;
        }
        let flows = config.workload.flows().iter();
        flows.filter(|flow| matches!(flow.start, Start::At(_))).count() as u64
    }

    /// The notices of all ports, one of each kind.
    fn notes<'a>(ports: impl Iterator<Item = &'a UdpPort>) -> Vec<String> {
        let mut kinds = Vec::new();
        let mut said: Vec<&Notice> = Vec::new();
        for notice in ports.flat_map(UdpPort::notices) {
            let kind = std::mem::discriminant(notice);
            if !kinds.contains(&kind) {
                kinds.push(kind);
                said.push(notice);
            }
        }
        said.iter().map(ToString::to_string).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn windows_fit_the_receive_buffer() {
            assert_eq!(window(8 << 20, 1, 1), LARGEST_WINDOW);
            assert_eq!(window(8 << 20, 7, 7), (8 << 20) / 28);
            assert_eq!(window(425_984, 2, 2), 53_248);
            assert_eq!(window(8 << 20, 7, 56), (4 << 20) / 56);
        }

        #[test]
        fn senders_are_counted_by_receiver() {
            let matrix = "Nodes 5\nConnections 5\n1->0 id 1 start 0 size 1\n2->0 id 2 start 0 size 1\n\
                1->0 id 3 start 0 size 1\n1->3 id 4 start 0 size 1\n0->4 id 5 start 0 size 1\n";
            assert_eq!(most_senders(&crate::live::tests::config(matrix)), 2);
        }
    }
}

#[cfg(test)]
mod tests;
