//! How hosts are attached: the fabric's end of their links, and what they are to be told.

mod memif;
mod udp;
#[cfg(feature = "dpdk")]
mod veth;

use super::rundir::Owned;
use crate::Failure;
use crate::choices::HostsBy;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
#[cfg(feature = "dpdk")]
use weft_stack::port::dpdk::DpdkPort;
use weft_stack::port::memif::MemifPort;
use weft_stack::port::{FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use weft_stack::wire::MAX_IPV4_HEADERS;
use weft_testbed::sim::RunConfig;
use weft_testbed::soft::{SoftFabric, SoftOptions};
use weft_testbed::topology::HostId;

/// Most hosts: each has a process, and some descriptors of the switches' process.
const MAX_HOSTS: u32 = 250;

/// What a host is to be told, and what others are to be told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostFacts {
    pub(crate) host: u32,
    /// Its port, as `--port` takes it.
    pub(crate) port: String,
    /// Its address, if the port does not say it, as `--ip` takes it.
    pub(crate) ip: Option<IpAddr>,
    /// Its longest IP packet, bytes, as `--port-mtu` takes it.
    pub(crate) mtu: u32,
    /// The network namespace in which it must be.
    pub(crate) namespace: Option<String>,
    /// What others call it: `IP` or `IP/MAC`.
    pub(crate) called: String,
}

/// The fabric's end of a host's link.
pub(crate) enum HostLink {
    /// A device of DPDK.
    #[cfg(feature = "dpdk")]
    Dpdk(Box<DpdkPort>),
    /// Memory shared with the host.
    Memif(Box<MemifPort>),
    /// Sockets that stand for all hosts.
    Udp(udp::UdpLink),
}

/// A fabric with its hosts.
pub(crate) struct AttachedFabric {
    pub(crate) fabric: SoftFabric<HostLink>,
    pub(crate) hosts: Vec<HostFacts>,
}

/// A host that is attached.
struct Attached {
    facts: HostFacts,
    /// What frames in the fabric call it.
    ip: IpAddr,
    link: HostLink,
}

impl HostsBy {
    /// Makes ports for `hosts` of `config`'s fabric. What exists outside of this process is noted in `owned`
    /// before it is made.
    ///
    /// # Errors
    /// What the system does not give.
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
        let mtu = config.mtu + MAX_IPV4_HEADERS as u32;
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

/// The address of `host`, which can be any.
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

    /// What a command line for this host begins with.
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
