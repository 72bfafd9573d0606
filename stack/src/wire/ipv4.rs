//! IPv4. Options are checked and skipped; fragments are refused, since weft always sets DF.

use super::bytes::{be16, head, put, room, take};
use super::checksum;
use super::error::{HeaderName, WireError, fits};
use super::ip::{Ecn, traffic_class};
use core::net::Ipv4Addr;

const HEADER: HeaderName = HeaderName::Ipv4;

/// Length of a header without options, which is the only kind weft emits, bytes.
pub const HEADER_LEN: usize = 20;
const DONT_FRAGMENT: u16 = 0x4000;

/// Bytes known to hold a whole IPv4 header of version 4.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<'a> {
    bytes: &'a [u8],
    fixed: &'a [u8; HEADER_LEN],
}

impl<'a> Ipv4View<'a> {
    /// Checks the header, and that the packet is complete. `bytes` may be longer, because Ethernet pads.
    ///
    /// # Errors
    /// Truncated; wrong version or header length; malformed options; a fragment.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Ipv4View<'a>, WireError> {
        let view = Ipv4View::new_trimmed(bytes)?;
        view.check_length()?;
        Ok(view)
    }

    /// Checks that the packet is as long as its total length.
    #[inline]
    pub(super) fn check_length(&self) -> Result<(), WireError> {
        let (needed, found) = (usize::from(self.total_len()), self.bytes.len());
        if needed > found { Err(WireError::Truncated { header: HEADER, needed, found }) } else { Ok(()) }
    }

    /// As [`Ipv4View::new_checked`], but the total length may exceed `bytes`, as in a trimmed packet whose switch
    /// leaves the field alone.
    ///
    /// # Errors
    /// As [`Ipv4View::new_checked`], except for the total length.
    #[inline]
    pub fn new_trimmed(bytes: &'a [u8]) -> Result<Ipv4View<'a>, WireError> {
        let fixed: &[u8; HEADER_LEN] = head(bytes, HEADER)?;
        let view = Ipv4View { bytes, fixed };
        let bad = |offset, expected, found| WireError::Unexpected { header: HEADER, offset, expected, found };
        if fixed[0] >> 4 != 4 {
            return Err(bad(0, "version 4", u64::from(fixed[0] >> 4)));
        }
        let header_len = view.header_len();
        if header_len < HEADER_LEN {
            return Err(bad(0, "a header length of at least five words", u64::from(fixed[0] & 0xf)));
        }
        if header_len > bytes.len() {
            return Err(WireError::Truncated { header: HEADER, needed: header_len, found: bytes.len() });
        }
        if usize::from(view.total_len()) < header_len {
            return Err(bad(2, "a total length that covers the header", u64::from(view.total_len())));
        }
        // MF, the reserved bit, or an offset: anything but DF.
        let fragment = be16(fixed, 6);
        if fragment & !DONT_FRAGMENT != 0 {
            return Err(bad(6, "an unfragmented packet", u64::from(fragment)));
        }
        if header_len > HEADER_LEN {
            check_options(&bytes[HEADER_LEN..header_len])?;
        }
        Ok(view)
    }

    /// Length of the header including options, bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.fixed[0] & 0xf) * 4
    }

    /// The total length field: bytes of header and payload.
    #[inline]
    pub fn total_len(&self) -> u16 {
        be16(self.fixed, 2)
    }

    /// DSCP, 6 bits.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.fixed[1] >> 2
    }

    /// ECN bits.
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.fixed[1])
    }

    /// Identification.
    #[inline]
    pub fn identification(&self) -> u16 {
        be16(self.fixed, 4)
    }

    /// Whether DF is set.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        be16(self.fixed, 6) & DONT_FRAGMENT != 0
    }

    /// Time to live (TTL), hops.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from(take::<HEADER_LEN, 4>(self.fixed, 12))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from(take::<HEADER_LEN, 4>(self.fixed, 16))
    }

    /// Verifies the header checksum, options included.
    ///
    /// # Errors
    /// [`WireError::Checksum`].
    #[inline]
    pub fn verify_checksum(&self) -> Result<(), WireError> {
        let header = &self.bytes[..self.header_len()];
        let found = be16(self.fixed, 10);
        // The checksum over the whole header, including the field itself, is zero if it is correct.
        if checksum::checksum(header) == 0 {
            return Ok(());
        }
        let expected = checksum::Sum::default().with(header).with_word(!found).finish();
        Err(WireError::Checksum { header: HEADER, offset: 10, expected, found })
    }

    /// The payload, up to the total length or the end of the bytes, whichever comes first.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len()..usize::from(self.total_len()).min(self.bytes.len())]
    }
}

/// Options are a list of one-byte kinds 0 (end) and 1 (no operation), and of (kind, length, data)
/// (RFC 791 §3.1).
#[cold]
fn check_options(options: &[u8]) -> Result<(), WireError> {
    let mut at = 0;
    while at < options.len() && options[at] != 0 {
        let len = match options[at] {
            1 => 1,
            _ => options.get(at + 1).map_or(0, |l| usize::from(*l)),
        };
        if (options[at] != 1 && len < 2) || at + len > options.len() {
            return Err(WireError::Unexpected {
                header: HEADER,
                offset: HEADER_LEN + at,
                expected: "an option that ends within the header",
                found: len as u64,
            });
        }
        at += len;
    }
    Ok(())
}

/// An IPv4 header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// DSCP, 6 bits.
    pub dscp: u8,
    /// Congestion bits.
    pub ecn: Ecn,
    /// Identification; 0 in packets that are never fragmented (RFC 6864).
    pub identification: u16,
    /// Don't-fragment flag (DF).
    pub dont_fragment: bool,
    /// Time to live (TTL), hops.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Announced length of the payload, bytes; at most 65,515.
    pub payload_len: u16,
}

impl Ipv4Header {
    /// Reads a header and drops its options. Does not verify the checksum.
    ///
    /// # Errors
    /// None: the view has checked everything. The result type is that of all headers.
    #[inline]
    pub fn parse(view: &Ipv4View<'_>) -> Result<Ipv4Header, WireError> {
        Ok(Ipv4Header {
            dscp: view.dscp(),
            ecn: view.ecn(),
            identification: view.identification(),
            dont_fragment: view.dont_fragment(),
            ttl: view.ttl(),
            protocol: view.protocol(),
            src: view.src(),
            dst: view.dst(),
            payload_len: view.total_len() - view.header_len() as u16,
        })
    }

    /// Bytes that [`Ipv4Header::emit`] writes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header with a checksum of zero, which the port or [`fill_checksum`] replaces.
    ///
    /// # Errors
    /// No room; a DSCP or payload length too wide.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        self.write(buf, |_| 0)
    }

    /// Writes the header with its checksum.
    ///
    /// # Errors
    /// As [`Ipv4Header::emit`].
    #[inline]
    pub fn emit_with_checksum(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        // Summed before the words are written: reading back bytes just written in pieces stalls on store forwarding.
        self.write(buf, |words| !checksum::fold(words.iter().map(|word| u64::from(*word)).sum()))
    }

    #[inline]
    fn write(&self, buf: &mut [u8], checksum: impl Fn(&[u32; 5]) -> u16) -> Result<usize, WireError> {
        fits(HEADER, 1, "DSCP", u64::from(self.dscp), 6)?;
        let total = u64::from(self.payload_len) + HEADER_LEN as u64;
        fits(HEADER, 2, "total length", total, 16)?;
        let b: &mut [u8; HEADER_LEN] = room(buf, HEADER)?;
        let word = |high: [u8; 2], low: u16| u32::from(u16::from_be_bytes(high)) << 16 | u32::from(low);
        let fragment = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        let mut words = [
            word([0x45, traffic_class(self.dscp, self.ecn)], total as u16),
            word(self.identification.to_be_bytes(), fragment),
            word([self.ttl, self.protocol], 0),
            u32::from(self.src),
            u32::from(self.dst),
        ];
        words[2] |= u32::from(checksum(&words));
        for (at, word) in words.iter().enumerate() {
            put(b, 4 * at, word.to_be_bytes());
        }
        Ok(HEADER_LEN)
    }
}

/// Computes and stores the header checksum of the IPv4 packet at the start of `packet`.
///
/// # Errors
/// As [`Ipv4View::new_trimmed`].
pub fn fill_checksum(packet: &mut [u8]) -> Result<(), WireError> {
    let header_len = Ipv4View::new_trimmed(packet)?.header_len();
    let header = &mut packet[..header_len];
    header[10..12].fill(0);
    let sum = checksum::checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Ipv4Header {
        Ipv4Header {
            dscp: 46,
            ecn: Ecn::Ect0,
            identification: 0,
            dont_fragment: true,
            ttl: 64,
            protocol: 17,
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
            payload_len: 4,
        }
    }

    fn packet() -> [u8; 24] {
        let mut b = [0; 24];
        header().emit(&mut b).unwrap();
        fill_checksum(&mut b).unwrap();
        b
    }

    #[test]
    fn an_emitted_header_has_known_bytes_and_parses_back() {
        let b = packet();
        assert_eq!(b[..10], [0x45, 0xba, 0, 24, 0, 0, 0x40, 0, 64, 17]);
        let view = Ipv4View::new_checked(&b).unwrap();
        assert_eq!(view.verify_checksum(), Ok(()));
        assert_eq!(Ipv4Header::parse(&view), Ok(header()));
        assert_eq!(view.payload().len(), 4);
    }

    #[test]
    fn emitting_with_the_checksum_and_filling_it_in_later_agree() {
        for (payload_len, ttl) in [(0, 0), (4, 64), (4180, 255), (65_515, 1)] {
            let header = Ipv4Header { payload_len, ttl, ..header() };
            let (mut filled, mut at_once) = ([0xee; HEADER_LEN], [0xee; HEADER_LEN]);
            header.emit(&mut filled).unwrap();
            assert_eq!(filled[10..12], [0, 0]);
            fill_checksum(&mut filled).unwrap();
            header.emit_with_checksum(&mut at_once).unwrap();
            assert_eq!(filled, at_once);
        }
    }

    #[test]
    fn any_flipped_bit_fails_the_checksum_or_the_check() {
        for bit in 0..160 {
            let mut b = packet();
            b[bit / 8] ^= 1 << (bit % 8);
            let ok = Ipv4View::new_checked(&b).and_then(|v| v.verify_checksum());
            assert!(ok.is_err(), "bit {bit}");
        }
        let mut b = packet();
        let good = be16(head::<20>(&b, HEADER).unwrap(), 10);
        b[10] ^= 0x55;
        let e = Ipv4View::new_checked(&b).unwrap().verify_checksum().unwrap_err();
        assert!(matches!(e, WireError::Checksum { expected, .. } if expected == good));
    }

    #[test]
    fn fragments_are_refused() {
        for word in [0x2000u16, 0x8000, 0x0001, 0x5fff] {
            let mut b = packet();
            b[6..8].copy_from_slice(&word.to_be_bytes());
            assert!(matches!(Ipv4View::new_checked(&b), Err(WireError::Unexpected { offset: 6, .. })));
        }
    }

    #[test]
    fn options_are_checked_and_skipped() {
        let with = |options: [u8; 4]| {
            let mut b = packet();
            b[0] = 0x46;
            b[20..].copy_from_slice(&options);
            Ipv4View::new_checked(&b).map(|v| v.payload().len())
        };
        assert_eq!(with([1, 1, 1, 0]), Ok(0));
        assert_eq!(with([0x94, 4, 0, 0]), Ok(0));
        assert_eq!(with([0, 0xff, 0xff, 0xff]), Ok(0));
        for bad in [[0x94, 5, 0, 0], [0x94, 1, 0, 0], [0x94, 0, 0, 0], [1, 1, 1, 0x94]] {
            assert!(matches!(with(bad), Err(WireError::Unexpected { .. })), "{bad:?}");
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let b = packet();
        for len in 0..24 {
            assert!(matches!(Ipv4View::new_checked(&b[..len]), Err(WireError::Truncated { .. })));
            assert_eq!(Ipv4View::new_trimmed(&b[..len]).is_ok(), len >= 20);
        }
        let mut short = b;
        short[3] = 19;
        assert!(matches!(Ipv4View::new_checked(&short), Err(WireError::Unexpected { offset: 2, .. })));
        let mut buf = [0; 20];
        let huge = Ipv4Header { payload_len: 65516, ..header() };
        assert!(matches!(huge.emit(&mut buf), Err(WireError::TooWide { .. })));
    }
}
