//! The options that go with `--port`. The ports and their names are the library's.

use clap::{Args, ValueEnum};
use std::net::IpAddr;
use weft::port::{LEAST_MTU, PortError, mac, vlan};
use weft_stack::wire::ethernet::{MacAddr, VlanTag};
use weft_stack::worker::Checksum;

pub(crate) use weft::port::{AnyPort, OpenPort, PeerAddress, PeerSpec, PortSpec};

/// Options that go with `--port`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PortOptions {
    /// The port's own IP address: needed with dpdk: and memif:, while udp: names it.
    #[arg(long, value_name = "IP")]
    pub(crate) ip: Option<IpAddr>,
    /// The Ethernet address that frames leave with [default: the device's].
    #[arg(long, value_name = "MAC", value_parser = mac)]
    pub(crate) mac: Option<MacAddr>,
    /// The longest IP packet, bytes; both ends should have the same [default: 9000, or less where
    /// the device or the interface of a udp: port has less].
    #[arg(long = "port-mtu", value_name = "BYTES", value_parser = clap::value_parser!(u16).range(i64::from(LEAST_MTU)..))]
    pub(crate) mtu: Option<u16>,
    /// The VLAN tag that frames leave with: an id of 1 to 4094, and a priority of 0 to 7. The MTU is that of the IP packets in
    /// it. For a udp: port, use the address of a VLAN interface of the kernel.
    #[arg(long, value_name = "ID[:PRIORITY]", value_parser = vlan)]
    pub(crate) vlan: Option<VlanTag>,
    /// Which IPv4 packets get a UDP checksum: auto, all but those over devices that join two memories
    /// (memif:, net_memif, net_ring); full, all, as needed where such a device leads to a switch with wires; or none.
    /// IPv6 requires it of all.
    #[arg(long, value_name = "auto|full|none", default_value = "auto")]
    pub(crate) checksum: ChecksumArg,
    /// Packets end with a CRC-32C, and those that arrive must have a right one: the same at all ends.
    #[arg(long)]
    pub(crate) crc: bool,
    /// Take DPDK's memory from huge pages; PCI devices always do.
    #[arg(long)]
    pub(crate) huge_pages: bool,
}

/// The IPv4 packets that get a UDP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChecksumArg {
    #[default]
    Auto,
    Full,
    None,
}

impl From<ChecksumArg> for Checksum {
    fn from(arg: ChecksumArg) -> Checksum {
        match arg {
            ChecksumArg::Auto => Checksum::WhereNeeded,
            ChecksumArg::Full => Checksum::Always,
            ChecksumArg::None => Checksum::Never,
        }
    }
}

impl PortOptions {
    /// Opens the port that `spec` names.
    ///
    /// # Errors
    /// Options that do not go together, by their names on the command line; or the system's or DPDK's complaint.
    pub(crate) fn open(&self, spec: &PortSpec) -> Result<OpenPort, String> {
        let PortOptions { ip, mac, mtu, vlan, checksum, crc, huge_pages } = *self;
        let options =
            weft::port::PortOptions { ip, mac, mtu, vlan, checksum: checksum.into(), crc, huge_pages };
        spec.open(&options).map_err(|error| match error {
            PortError::NoAddress(spec) => {
                format!("{spec}: this port has no IP address by itself: say --ip ADDRESS")
            }
            PortError::Address { spec, ip } => {
                format!("{spec}: --ip {ip} is another address than the port's")
            }
            PortError::MacOfKernel(_) => {
                error.to_string().replacen("an Ethernet address of one's own", "--mac", 1)
            }
            PortError::VlanOfKernel(_) => error.to_string().replacen("a VLAN tag", "--vlan", 1),
            error => error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_options() {
        let udp: PortSpec = "udp:127.77.1.1".parse().unwrap();
        let refused = |options: PortOptions| options.open(&udp).unwrap_err();
        let ip = refused(PortOptions { ip: Some([127, 0, 0, 9].into()), ..PortOptions::default() });
        assert_eq!(ip, "udp:127.77.1.1: --ip 127.0.0.9 is another address than the port's");
        let mac = refused(PortOptions { mac: Some(MacAddr([2; 6])), ..PortOptions::default() });
        assert_eq!(mac, "udp:127.77.1.1: --mac has no effect: the kernel writes the Ethernet headers");
        let vlan = refused(PortOptions { vlan: Some(VlanTag::default()), ..PortOptions::default() });
        assert!(vlan.starts_with("udp:127.77.1.1: --vlan has no effect: "), "{vlan}");
        let memif: PortSpec = "memif:@weft-options,role=client".parse().unwrap();
        let no_address = PortOptions::default().open(&memif).unwrap_err();
        assert!(
            no_address.ends_with(": this port has no IP address by itself: say --ip ADDRESS"),
            "{no_address}"
        );
    }
}
