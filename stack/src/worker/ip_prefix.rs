//! Prefixes of IP addresses, and the zones of peers that they name.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use std::sync::Arc;

use crate::fep::{ZoneId, ZoneTable};
use crate::packet::Addr;

/// The addresses that agree in their first bits, such as `10.1.0.0/16` or `fd00:1::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpPrefix {
    ip: IpAddr,
    /// Number of bits that count.
    len: u8,
}

/// A text is no prefix of IP addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no prefix of IP addresses; expected one such as 10.1.0.0/16 or fd00:1::/32, without further bits"
)]
pub struct PrefixError {
    /// The text.
    pub text: String,
}

impl IpPrefix {
    /// Whether `ip` is one of the addresses.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4() && self.differing(ip) == 0
    }

    /// What belongs to the longest of `prefixes` that contains `ip`, if any does.
    pub fn longest<T>(prefixes: &[(IpPrefix, T)], ip: IpAddr) -> Option<&T> {
        let fitting = prefixes.iter().filter(|(prefix, _)| prefix.contains(ip));
        fitting.max_by_key(|(prefix, _)| prefix.len).map(|(_, value)| value)
    }

    /// The bits of the prefix in which `ip`, of the same version, differs.
    fn differing(&self, ip: IpAddr) -> u128 {
        // IPv4 addresses take the upper 32 of 128 bits.
        let bits = |ip| match ip {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        (bits(self.ip) ^ bits(ip)) & !u128::MAX.checked_shr(self.len.into()).unwrap_or(0)
    }
}

impl FromStr for IpPrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<IpPrefix, PrefixError> {
        let parse = || {
            let (ip, len) = text.split_once('/')?;
            let (ip, len): (IpAddr, u8) = (ip.parse().ok()?, len.parse().ok()?);
            let most = if ip.is_ipv4() { 32 } else { 128 };
            let zero = if ip.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
            let further = IpPrefix { ip, len: 128 }.differing(zero) != IpPrefix { ip, len }.differing(zero);
            (len <= most && !further).then_some(IpPrefix { ip, len })
        };
        parse().ok_or_else(|| PrefixError { text: text.to_owned() })
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.len)
    }
}

/// Puts peers into the zones of the prefixes of their IP addresses, the longest if several fit. Peers without one are in
/// the default zone.
#[derive(Clone, Debug, Default)]
pub struct PrefixZones {
    prefixes: Vec<(IpPrefix, ZoneId)>,
    table: Arc<ZoneTable>,
}

impl PrefixZones {
    /// The zones of `prefixes`, to be entered in the endpoint's `table`.
    pub fn new(prefixes: Vec<(IpPrefix, ZoneId)>, table: Arc<ZoneTable>) -> PrefixZones {
        PrefixZones { prefixes, table }
    }

    /// Enters the zone of `peer`, which has the address `ip`.
    pub(super) fn enter(&self, peer: Addr, ip: IpAddr) {
        let zone = IpPrefix::longest(&self.prefixes, ip);
        // Its place in the book may have been that of a peer in another zone.
        self.table.set(peer, zone.copied().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> IpPrefix {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_prefix_contains_the_addresses_that_begin_with_it() {
        for (text, inside, outside) in [
            ("10.1.0.0/16", "10.1.255.7", "10.2.0.0"),
            ("10.1.2.3/32", "10.1.2.3", "10.1.2.2"),
            ("128.0.0.0/1", "255.0.0.1", "127.255.255.255"),
            ("fd00:1::/32", "fd00:1:ffff::", "fd00:2::"),
            ("fd00::1/128", "fd00::1", "fd00::"),
        ] {
            let prefix = prefix(text);
            assert!(prefix.contains(ip(inside)) && !prefix.contains(ip(outside)), "{text}");
            assert_eq!(prefix.to_string(), text);
        }
        assert!(prefix("0.0.0.0/0").contains(ip("255.255.255.255")));
        assert!(!prefix("0.0.0.0/0").contains(ip("::")) && !prefix("::/0").contains(ip("10.0.0.1")));
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        for text in
            ["10.1.0.0", "10.1.0.0/33", "10.1.0.1/16", "::/129", "fd00::1/64", "x/8", "10.0.0.0/", "/8"]
        {
            assert!(text.parse::<IpPrefix>().is_err(), "{text}");
        }
    }
}
