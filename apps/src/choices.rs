//! The words that options choose from, and what belongs to each choice wherever it is made.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use weft_stack::fep::Windows;

/// Source ports of each host that is attached by kernel UDP: paths that ECMP can be made to choose.
pub(crate) const UDP_ENTROPIES: u16 = 16;

/// `on` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Which connections share a congestion context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WindowsOf {
    /// All connections between two endpoints.
    #[default]
    Pair,
    /// One connection.
    Flow,
}

impl From<WindowsOf> for Windows {
    fn from(of: WindowsOf) -> Windows {
        match of {
            WindowsOf::Pair => Windows::Pair,
            WindowsOf::Flow => Windows::Flow,
        }
    }
}

/// Whether messages have bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Payload {
    /// A length without bytes.
    Virtual,
    /// Bytes, which the receiver compares with those sent.
    Real,
}

/// The platform that a workload runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Platform {
    /// In the simulator, in virtual time.
    Sim,
    /// Between two DPDK ports of this process.
    Loopback,
    /// Over kernel UDP sockets of this process.
    Udp,
    /// Over software switches of this process.
    Soft,
}

impl Platform {
    /// Whether switches and links lie between the hosts.
    pub(crate) fn has_fabric(self) -> bool {
        matches!(self, Platform::Sim | Platform::Soft)
    }
}

impl Display for Platform {
    /// The platform's name as part of a sentence.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Platform::Sim => "a simulation",
            Platform::Loopback => "a loopback",
            Platform::Udp => "kernel UDP",
            Platform::Soft => "software switches",
        })
    }
}

/// How hosts in processes of their own are attached to software switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HostsBy {
    /// Over kernel UDP on the loopback interface: no privileges, no DPDK.
    Udp,
    /// Over shared memory by memif: no privileges.
    Memif,
    /// In network namespaces of their own, by packet sockets on veth: as root.
    Veth,
}

impl HostsBy {
    /// The word for it on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            HostsBy::Udp => "udp",
            HostsBy::Memif => "memif",
            HostsBy::Veth => "veth",
        }
    }

    /// Whether a host could not see that a frame was damaged: the kernel writes UDP checksums of its own, and over
    /// memif packets have none.
    pub(crate) fn hides_damage(self) -> bool {
        matches!(self, HostsBy::Udp | HostsBy::Memif)
    }
}
