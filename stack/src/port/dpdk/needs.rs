//! The rights that drivers need and this process lacks: DPDK itself says only that a call failed.

use std::fmt::Write;
use std::fs;

use super::facts::is_pci_address;

/// Numbers of capabilities, from capabilities(7).
const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const SYS_ADMIN: u32 = 21;
const BPF: u32 = 39;

/// The map of user ids in the first user namespace, which maps all ids to themselves.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// The device file with which TAP devices are made.
const TUN: &str = "/dev/net/tun";

/// Drivers of virtual devices, as docs/ports.md lists them.
const VIRTUAL: &str =
    "net_memif, net_ring, net_pcap, net_null, net_af_packet, net_af_xdp, net_tap, net_virtio_user, net_vhost";

/// The rights of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    /// Its effective capabilities, one bit each.
    capabilities: u64,
    /// Whether these are capabilities of the first user namespace.
    first_namespace: bool,
    /// Whether it may open [`TUN`].
    tun: bool,
}

impl Rights {
    /// The rights of the calling thread; none if the system does not report them.
    fn own() -> Rights {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        let users = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Rights {
            capabilities: capabilities.unwrap_or(0),
            first_namespace: users.split_whitespace().eq(ALL_USERS),
            tun: fs::File::options().read(true).write(true).open(TUN).is_ok(),
        }
    }

    fn has(self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }

    /// The rights that `driver` needs and that are missing here.
    fn lacks(self, driver: &str) -> Vec<&'static str> {
        let (admin, raw) = (("CAP_NET_ADMIN", self.has(NET_ADMIN)), ("CAP_NET_RAW", self.has(NET_RAW)));
        let needs = match driver {
            "net_af_packet" => vec![raw],
            "net_tap" => vec![admin, ("access to /dev/net/tun", self.tun)],
            // Maps and programs belong to no namespace.
            "net_af_xdp" => vec![
                admin,
                raw,
                ("CAP_BPF", self.has(BPF) || self.has(SYS_ADMIN)),
                ("the first user namespace", self.first_namespace),
            ],
            _ => Vec::new(),
        };
        needs.into_iter().filter(|(_, given)| !given).map(|(name, _)| name).collect()
    }
}

/// Advice on the device `name` (without arguments) that does not start, to be appended to the failure.
pub(super) fn advice(name: &str) -> String {
    advice_to(Rights::own(), name)
}

fn advice_to(rights: Rights, name: &str) -> String {
    let driver = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let lacks = rights.lacks(driver);
    let mut text = String::new();
    if !lacks.is_empty() {
        let _ =
            write!(text, "; {driver} needs {}, which this process has not: run it as root", lacks.join(", "));
    } else if is_pci_address(name) {
        text += "; a card needs a driver that lets user space have it, such as vfio-pci";
    } else {
        text += "; DPDK's own lines say more";
    }
    text + "; weft doctor says what is there and what to type"
}

/// An explanation of DPDK's error when it opens the device `name`.
pub(super) fn refusal(name: &str, result: i32) -> String {
    /// `-EFAULT`: the bus does not know such a name.
    const UNKNOWN: i32 = -14;
    match result {
        UNKNOWN if is_pci_address(name) => "that is no PCI address, such as 0000:3b:00.0".to_owned(),
        UNKNOWN => format!("DPDK has no driver of this name; expected one of {VIRTUAL} and a number"),
        // Not an error number, although -1 reads as "Operation not permitted": drivers return it after they have
        // logged the reason.
        -1 => format!("its driver refuses it{}", advice(name)),
        _ => format!("{}{}", super::error::describe(-result), advice(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const NOBODY: Rights = Rights { capabilities: 0, first_namespace: true, tun: true };
    const ROOT: Rights = Rights { capabilities: u64::MAX, first_namespace: true, tun: true };

    #[test]
    fn missing_rights_are_named() {
        let lacks = |rights: Rights, driver| rights.lacks(driver).join(" ");
        assert_eq!(lacks(NOBODY, "net_af_packet"), "CAP_NET_RAW");
        assert_eq!(lacks(NOBODY, "net_tap"), "CAP_NET_ADMIN");
        assert_eq!(lacks(Rights { tun: false, ..ROOT }, "net_tap"), "access to /dev/net/tun");
        assert_eq!(lacks(NOBODY, "net_af_xdp"), "CAP_NET_ADMIN CAP_NET_RAW CAP_BPF");
        let elsewhere = Rights { first_namespace: false, ..ROOT };
        assert_eq!(lacks(elsewhere, "net_af_xdp"), "the first user namespace");
        let older = Rights { capabilities: 1 << NET_ADMIN | 1 << NET_RAW | 1 << SYS_ADMIN, ..ROOT };
        assert_eq!(lacks(older, "net_af_xdp"), "");
        for driver in ["net_af_packet", "net_af_xdp", "net_tap", "net_memif"] {
            assert_eq!(lacks(ROOT, driver), "");
        }
    }

    #[test]
    fn advice_names_the_next_step() {
        let said = advice_to(NOBODY, "net_af_packet12");
        let expected = "; net_af_packet needs CAP_NET_RAW, which this process has not: run it as root; \
                        weft doctor says what is there and what to type";
        assert_eq!(said, expected);
        assert!(advice_to(ROOT, "net_tap0").starts_with("; DPDK's own lines say more; weft doctor"));
        assert!(advice_to(NOBODY, "0000:3b:00.0").contains("vfio-pci; weft doctor"));
    }

    #[test]
    fn malformed_and_unknown_device_names_get_different_errors() {
        assert!(
            refusal("net_foo0", -14)
                .starts_with("DPDK has no driver of this name; expected one of net_memif")
        );
        assert_eq!(refusal("0:zz", -14), "that is no PCI address, such as 0000:3b:00.0");
    }

    #[test]
    fn own_rights_match_the_systems_answer() {
        use rustix::net::{AddressFamily, SocketType, socket};
        let rights = Rights::own();
        // In a user namespace that does not own the network, capabilities are not enough.
        let made = socket(AddressFamily::PACKET, SocketType::RAW, None);
        assert!(made.is_err() || rights.has(NET_RAW), "{rights:?}");
        assert!(!rights.tun || Path::new(TUN).exists(), "{rights:?}");
    }
}
