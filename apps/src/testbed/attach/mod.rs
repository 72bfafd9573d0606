//! How hosts are attached: the fabric's end of their links, and the options for endpoints at the hosts.

mod memif;
mod udp;
#[cfg(feature = "dpdk")]
mod veth;

use super::rundir::Owned;
use crate::Failure;
use crate::choices::HostsBy;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
#[cfg(feature = "dpdk")]
use weft_stack::port::dpdk::DpdkPort;
use weft_stack::port::memif::MemifPort;
use weft_stack::port::{FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use weft_testbed::sim::RunConfig;
use weft_testbed::soft::{SoftFabric, SoftOptions};
use weft_testbed::topology::HostId;

/// The largest number of hosts: each needs a process, and some file descriptors of the switches' process.
const MAX_HOSTS: u32 = 250;

/// The options for an endpoint at a host, and its address for the other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostFacts {
    pub(crate) host: u32,
    /// The value of `--port`.
    pub(crate) port: String,
    /// The value of `--ip`; `None` if the port implies it.
    pub(crate) ip: Option<IpAddr>,
    /// The value of `--port-mtu`: the longest IP packet, bytes.
    pub(crate) mtu: u32,
    /// The network namespace in which the endpoint must run.
    pub(crate) namespace: Option<String>,
    /// The address by which other hosts reach it: `IP` or `IP/MAC`.
    pub(crate) called: String,
    /// The socket of the host's `weft serve`, if there is one.
    pub(crate) serve: Option<PathBuf>,
}

/// The fabric's end of a host's link.
pub(crate) enum HostLink {
    /// A DPDK device.
    #[cfg(feature = "dpdk")]
    Dpdk(Box<DpdkPort>),
    /// Memory shared with the host.
    Memif(Box<MemifPort>),
    /// Sockets that represent all hosts.
    Udp(udp::UdpLink),
}

/// A fabric with its hosts.
pub(crate) struct AttachedFabric {
    pub(crate) fabric: SoftFabric<HostLink>,
    pub(crate) hosts: Vec<HostFacts>,
}

/// An attached host.
struct Attached {
    facts: HostFacts,
    /// Its address in frames within the fabric.
    ip: IpAddr,
    link: HostLink,
}

impl HostsBy {
    /// Creates ports for `hosts` of the fabric of `config`. Everything that exists outside of this process is noted in
    /// `owned` before it is created.
    ///
    /// # Errors
    /// There are too many hosts, or a port cannot be created.
    pub(crate) fn attach(
        self,
        config: &RunConfig,
        plan: &weft_testbed::sim::FaultPlan,
        hosts: &[u32],
        owned: &Owned,
        name: &str,
    ) -> Result<AttachedFabric, Failure> {
        if let Some(host) = hosts.iter().find(|host| **host >= MAX_HOSTS) {
            return Err(Failure::Usage(format!(
                "host {host}: expected at most {MAX_HOSTS} hosts in a testbed"
            )));
        }
        let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("testbed: {error}"));
        let options = SoftOptions { discard_damaged: self.hides_damage(), ..SoftOptions::default() };
        let mut fabric =
            SoftFabric::new(config, plan, options, weft_cc::Time::ZERO).map_err(|error| failed(&error))?;
        let mtu = config.longest_packet() as u32;
        let attached = match self {
            HostsBy::Udp => udp::attach(hosts, mtu, owned, name)?,
            HostsBy::Memif => memif::attach(hosts, mtu, owned)?,
            #[cfg(feature = "dpdk")]
            HostsBy::Veth => veth::attach(hosts, mtu, owned, name)?,
            #[cfg(not(feature = "dpdk"))]
            HostsBy::Veth => {
                return Err(Failure::Run(
                    "this weft was built without its feature `dpdk`; expected --hosts udp or memif"
                        .to_owned(),
                ));
            }
        };
        let mut facts = Vec::new();
        for host in attached {
            fabric.attach(HostId(host.facts.host), host.ip, host.link).map_err(|error| failed(&error))?;
            facts.push(host.facts);
        }
        Ok(AttachedFabric { fabric, hosts: facts })
    }
}

/// The address of `host` where any address will do.
fn address(host: u32) -> IpAddr {
    let [_, b, c, d] = (host + 1).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(10, b, c, d))
}

impl HostFacts {
    /// Options of `weft perf` and `weft serve` for this host's port.
    pub(crate) fn port_options(&self) -> String {
        let ip = self.ip.map(|ip| format!(" --ip {ip}")).unwrap_or_default();
        format!("--port {}{ip} --port-mtu {}", self.port, self.mtu)
    }

    /// The beginning of a command line that runs at this host.
    pub(crate) fn prefix(&self) -> String {
        self.namespace.as_ref().map(|name| format!("ip netns exec {name} ")).unwrap_or_default()
    }
}

macro_rules! each {
    ($link:expr, $inner:ident => $do:expr) => {
        match $link {
            #[cfg(feature = "dpdk")]
            HostLink::Dpdk($inner) => $do,
            HostLink::Memif($inner) => $do,
            HostLink::Udp($inner) => $do,
        }
    };
}

impl Port for HostLink {
    #[inline]
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        each!(self, link => link.receive(burst))
    }

    #[inline]
    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        each!(self, link => link.transmit(burst))
    }

    fn capabilities(&self) -> PortCaps {
        each!(self, link => link.capabilities())
    }

    fn pool(&self) -> FramePool {
        each!(self, link => link.pool())
    }

    fn counters(&self) -> PortCounters {
        each!(self, link => link.counters())
    }
}
