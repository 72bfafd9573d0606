//! The CRC-32C behind the payload, where a network has it: agreed out of band, for all its packets.
//!
//! It covers the packet from the source IP address to the end of the payload, with the UDP checksum counted as zero: all
//! that no switch changes. A trimmed packet has none, because the switch cut it off with the payload.

use super::error::{HeaderName, WireError};
use super::udp;

/// Bytes of the CRC.
pub const LEN: usize = 4;

/// Offset of the checksum in the UDP header.
const UDP_CHECKSUM: core::ops::Range<usize> = 6..8;

/// The CRC of `covered`, the bytes from the source IP address on; the UDP header begins at offset `udp`.
fn of(covered: &[u8], udp: usize) -> u32 {
    let (head, rest) = covered.split_at((udp + UDP_CHECKSUM.start).min(covered.len()));
    let (_, body) = rest.split_at(UDP_CHECKSUM.len().min(rest.len()));
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(head), &[0; 2]), body)
}

/// Fills in the CRC, the last bytes of `packet`, which holds everything from the source IP address on; the UDP header
/// begins at offset `udp`.
///
/// # Errors
/// `packet` is shorter than these headers and the CRC.
pub(crate) fn fill(packet: &mut [u8], udp: usize) -> Result<(), WireError> {
    let (needed, found) = (udp + udp::HEADER_LEN + LEN, packet.len());
    match packet.split_last_chunk_mut() {
        Some((covered, crc)) if found >= needed => *crc = of(covered, udp).to_be_bytes(),
        _ => return Err(WireError::Truncated { header: HeaderName::Udp, needed, found }),
    }
    Ok(())
}

/// Whether the CRC at the end of `packet`, everything from the source IP address on, is right. The UDP header begins at
/// offset `udp`.
///
/// # Errors
/// There is none, or it is another.
pub(crate) fn verify(packet: &[u8], udp: usize) -> Result<(), WireError> {
    let needed = udp + udp::HEADER_LEN + LEN;
    let (covered, crc) = match packet.split_last_chunk() {
        Some(parts) if packet.len() >= needed => parts,
        _ => return Err(WireError::Truncated { header: HeaderName::Udp, needed, found: packet.len() }),
    };
    let (expected, found) = (of(covered, udp), u32::from_be_bytes(*crc));
    if expected == found { Ok(()) } else { Err(WireError::Crc { expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-32C bit by bit, from its polynomial 0x1EDC6F41 (reflected 0x82F63B78).
    fn slow(bytes: impl Iterator<Item = u8>) -> u32 {
        !bytes.fold(!0, |crc: u32, byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
        })
    }

    #[test]
    fn the_udp_checksum_counts_as_zero() {
        // RFC 3720 §B.4: 32 bytes of zeros.
        assert_eq!(slow([0; 32].into_iter()), 0x8a91_36aa);
        for udp in [8, 32] {
            let mut packet: Vec<u8> = (0..100).collect();
            let covered = (0..96).map(|n| if (udp + 6..udp + 8).contains(&n) { 0 } else { n as u8 });
            let expected = slow(covered);
            fill(&mut packet, udp).unwrap();
            assert_eq!(packet[96..], expected.to_be_bytes());
            packet[udp + 6..udp + 8].fill(0xff);
            assert_eq!(verify(&packet, udp), Ok(()));
            packet[50] ^= 4;
            assert!(matches!(verify(&packet, udp), Err(WireError::Crc { found, .. }) if found == expected));
        }
    }

    #[test]
    fn short_packets_are_refused() {
        for len in 0..20 {
            let mut packet = vec![0; len];
            assert!(matches!(verify(&packet, 8), Err(WireError::Truncated { needed: 20, .. })));
            assert!(fill(&mut packet, 8).is_err());
        }
    }
}
