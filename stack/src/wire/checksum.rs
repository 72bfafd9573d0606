//! The Internet checksum (RFC 1071), its incremental update (RFC 1624), and the pseudo-headers that
//! UDP includes.
//!
//! weft emits no CRC-32C trailer: public sources do not agree on whether one follows a packet over
//! UDP, and the UDP checksum covers the same bytes. See `docs/wire.md`.

use super::ip::IpAddrs;

/// A sum of 16-bit words, not yet folded. Sums of parts add up as long as every part but the last has an even length. There
/// are at most 65,536 parts and single words, so 32 bits suffice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u32);

impl Sum {
    /// Adds the bytes of `data` as big-endian words; an odd last byte is padded with zero.
    #[inline]
    pub fn with(self, data: &[u8]) -> Sum {
        // Words in the machine's byte order and wider than 16 bits, swapped once at the end: ones' complement sums
        // allow both (RFC 1071 §2).
        let (words, rest) = data.as_chunks::<8>();
        let (whole, high) = sum_words(words);
        // Less than 2⁶⁴ below 16 GiB, so exact although `whole` is not.
        let low = whole.wrapping_sub(high << 32);
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let last = u64::from_ne_bytes(last);
        let sum = u64::from(fold(low)) + u64::from(fold(high)) + u64::from(fold(last));
        self.with_word(u16::from_be(fold(sum)))
    }

    /// Adds one word.
    #[inline]
    pub fn with_word(self, word: u16) -> Sum {
        Sum(self.0 + u32::from(word))
    }

    /// The sum folded to 16 bits, not complemented.
    #[inline]
    pub fn fold(self) -> u16 {
        // The first step leaves 17 bits at most, and what the second one adds to the lower 16 does not carry again.
        let sum = (self.0 & 0xffff) + (self.0 >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    /// The checksum field's value: the complement of the folded sum.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }
}

/// The sum of `words` modulo 2⁶⁴, and the sum of their upper halves. Computing these two takes one operation less for
/// each vector than summing both halves.
#[inline]
fn sum_words(words: &[[u8; 8]]) -> (u64, u64) {
    let (mut whole, mut high) = (0u64, 0);
    for word in words {
        let word = u64::from_ne_bytes(*word);
        whole = whole.wrapping_add(word);
        high += word >> 32;
    }
    (whole, high)
}

/// A sum of 16-bit words folded to 16 bits.
#[inline]
pub(super) fn fold(sum: u64) -> u16 {
    // Each step halves the width, with a carry.
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum of `data`. Zero if `data` includes its own, correct checksum.
pub fn checksum(data: &[u8]) -> u16 {
    Sum::default().with(data).finish()
}

/// The value of `checksum` after one word that it covers changes from `old` to `new` (RFC 1624, equation 3). A wrong
/// checksum stays wrong, so earlier damage is not hidden.
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::default().with_word(!checksum).with_word(!old).with_word(new).finish()
}

/// The sum of the pseudo-header for a payload of `len` bytes of `protocol`. A port that offloads the UDP checksum
/// expects it, folded, in the checksum field.
#[inline]
pub fn pseudo_header(ip: &IpAddrs, protocol: u8, len: u16) -> Sum {
    let addrs = match ip {
        IpAddrs::V4 { src, dst } => [src, dst].into_iter().fold(Sum::default(), |sum, addr| {
            let [a, b, c, d] = addr.octets();
            sum.with_word(u16::from_be_bytes([a, b])).with_word(u16::from_be_bytes([c, d]))
        }),
        IpAddrs::V6 { src, dst } => Sum::default().with(&src.octets()).with(&dst.octets()),
    };
    addrs.with_word(u16::from(protocol)).with_word(len)
}

/// The checksum of a UDP datagram whose checksum field holds zero. The result is never zero, which would mean that
/// there is no checksum (RFC 768).
pub fn udp(ip: &IpAddrs, datagram: &[u8]) -> u16 {
    // The field has 16 bits; no datagram that gets here is longer.
    let sum = pseudo_header(ip, super::udp::PROTOCOL, datagram.len() as u16).with(datagram);
    match sum.finish() {
        0 => 0xffff,
        c => c,
    }
}

/// Whether a UDP datagram agrees with the checksum that it carries.
#[inline]
pub fn udp_is_valid(ip: &IpAddrs, datagram: &[u8]) -> bool {
    pseudo_header(ip, super::udp::PROTOCOL, datagram.len() as u16).with(datagram).fold() == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    #[test]
    fn rfc1071_example() {
        // RFC 1071 §3: the words 0001 f203 f4f5 f6f7 sum to ddf2 after folding.
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().with(&data).fold(), 0xddf2);
        assert_eq!(checksum(&data), 0x220d);
    }

    #[test]
    fn rfc1624_example() {
        // RFC 1624 §4: checksum DD2F, a word changes from 5555 to 3285; the result is 0000.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn ipv4_header_known_value() {
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&header), 0);
        let mut blank = header;
        blank[10..12].fill(0);
        assert_eq!(checksum(&blank), 0xb861);
    }

    #[test]
    fn udp_zero_becomes_ffff() {
        // Pseudo-header and datagram chosen to sum to ffff: 0011 + 000a + 000a + ffda.
        let any4 = IpAddrs::V4 { src: Ipv4Addr::UNSPECIFIED, dst: Ipv4Addr::UNSPECIFIED };
        let any6 = IpAddrs::V6 { src: Ipv6Addr::UNSPECIFIED, dst: Ipv6Addr::UNSPECIFIED };
        let mut datagram = [0, 0, 0, 0, 0, 10, 0, 0, 0xff, 0xda];
        for ip in [any4, any6] {
            assert_eq!(udp(&ip, &datagram), 0xffff);
        }
        datagram[6..8].copy_from_slice(&[0xff, 0xff]);
        assert!(udp_is_valid(&any4, &datagram));
    }

    /// The definition, word by word.
    fn slow(data: &[u8]) -> u16 {
        let mut s: u32 = 0;
        for c in data.chunks(2) {
            s += u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0));
            s = (s & 0xffff) + (s >> 16);
        }
        !(s as u16)
    }

    proptest! {
        #[test]
        fn the_sum_agrees_with_the_definition(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(checksum(&data), slow(&data));
        }

        #[test]
        fn sums_of_even_length_parts_add_up(
            data in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0usize..150,
        ) {
            let (a, b) = data.split_at((cut * 2).min(data.len() & !1));
            prop_assert_eq!(Sum::default().with(a).with(b).finish(), checksum(&data));
        }

        #[test]
        fn an_incremental_update_equals_recomputation(
            mut data in proptest::collection::vec(any::<u8>(), 20..40),
            at in 0usize..9,
            new: u16,
        ) {
            data.truncate(data.len() & !1);
            // Not all zero: 0000 and ffff are the same number in ones' complement, and only a sum of zeros gives 0000.
            data[19] |= 1;
            let before = checksum(&data);
            let old = u16::from_be_bytes([data[2 * at], data[2 * at + 1]]);
            data[2 * at..2 * at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), checksum(&data));
        }
    }
}
