//! Steering: which of several workers at one address receives a peer's packets.
//!
//! Each worker has an endpoint and a receive queue of its own. All packets from one peer must arrive at the worker
//! that has the connections with it, whatever their entropy. So queues are chosen by addresses, never by the
//! five-tuple, which spraying changes with each packet. Network cards choose by the Toeplitz hash (receive-side
//! scaling over IP addresses only); [`Steering`] computes their choice in advance, so that a connection is opened at
//! the worker where its packets will arrive.

use core::net::IpAddr;

/// Bytes of a key: enough for two IPv6 addresses and the 32 bits behind them.
pub const KEY_LEN: usize = 40;

/// A key that gives both directions between two hosts the same hash: its bits repeat every 16 bits, so
/// exchanging source and destination changes nothing (Woo and Park, "Scalable TCP session
/// monitoring with symmetric receive-side scaling", 2012). Two hosts with equally many queues then meet in
/// queues of the same number.
pub const SYMMETRIC_KEY: [u8; KEY_LEN] = {
    let mut key = [0x6d; KEY_LEN];
    let mut at = 1;
    while at < KEY_LEN {
        key[at] = 0x5a;
        at += 2;
    }
    key
};

/// Entries of a card's table from hashes to queues; entry `i` names queue `i mod queues`, as DPDK fills it
/// unless told otherwise. Cards have 64, 128, 256, … entries: with a power of two of queues all agree.
pub const TABLE: u32 = 128;

/// How a card spreads packets over queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    key: [u8; KEY_LEN],
    table: u32,
    queues: u16,
}

impl Steering {
    /// Steering over `queues` queues, at least one, with [`SYMMETRIC_KEY`] and a table of [`TABLE`] entries.
    pub fn over(queues: u16) -> Steering {
        Steering { key: SYMMETRIC_KEY, table: TABLE, queues: queues.max(1) }
    }

    /// The same steering with another key.
    pub fn with_key(self, key: [u8; KEY_LEN]) -> Steering {
        Steering { key, ..self }
    }

    /// The same steering with a table of `entries` entries, at least one; entry `i` is queue `i mod queues`.
    pub fn with_table(self, entries: u32) -> Steering {
        Steering { table: entries.max(1), ..self }
    }

    /// The queue, and so the worker, that packets from `peer` to `own` come to. Addresses of different
    /// versions never meet in a packet; they give queue 0.
    pub fn queue(&self, peer: IpAddr, own: IpAddr) -> u16 {
        let hash = match (peer, own) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => toeplitz(&self.key, &[src.octets(), dst.octets()].concat()),
            (IpAddr::V6(src), IpAddr::V6(dst)) => toeplitz(&self.key, &[src.octets(), dst.octets()].concat()),
            _ => 0,
        };
        // Less than the number of queues, which is a u16.
        (hash % self.table % u32::from(self.queues)) as u16
    }
}

/// The Toeplitz hash: for each bit of the input that is set, the 32 bits of the key that begin there.
fn toeplitz(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let [a, b, c, d, rest @ ..] = key;
    let mut window = u32::from_be_bytes([*a, *b, *c, *d]);
    let mut hash = 0;
    for (byte, next) in input.iter().zip(rest) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the hashes over addresses only of Microsoft's "Verifying the RSS hash calculation".
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn hash(src: &str, dst: &str) -> u32 {
        match (src.parse().unwrap(), dst.parse().unwrap()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => toeplitz(&KEY, &[src.octets(), dst.octets()].concat()),
            (IpAddr::V6(src), IpAddr::V6(dst)) => toeplitz(&KEY, &[src.octets(), dst.octets()].concat()),
            mixed => panic!("{mixed:?}"),
        }
    }

    #[test]
    fn published_hashes() {
        assert_eq!(hash("66.9.149.187", "161.142.100.80"), 0x323e_8fc2);
        assert_eq!(hash("199.92.111.2", "65.69.140.83"), 0xd718_262a);
        assert_eq!(hash("24.19.198.95", "12.22.207.184"), 0xd2d0_a5de);
        assert_eq!(hash("3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1"), 0x2cc1_8cd5);
        assert_eq!(hash("3ffe:501:8::260:97ff:fe40:efab", "ff02::1"), 0x0f0c_461c);
    }

    #[test]
    fn both_directions_meet_and_queues_are_used_evenly() {
        let steering = Steering::over(4);
        let mut peers = [0; 4];
        for n in 0..=255 {
            let (peer, own) = (IpAddr::from([10, 1, 2, n]), IpAddr::from([10, 1, 3, 200]));
            let queue = steering.queue(peer, own);
            assert_eq!(steering.queue(own, peer), queue);
            peers[usize::from(queue)] += 1;
        }
        assert!(peers.iter().all(|count| (48..=80).contains(count)), "{peers:?}");
        assert_eq!(
            steering.with_key(KEY).with_table(64).queue([10, 0, 0, 1].into(), "::1".parse().unwrap()),
            0
        );
        assert_eq!(Steering::over(0).queue([10, 0, 0, 1].into(), [10, 0, 0, 2].into()), 0);
    }
}
