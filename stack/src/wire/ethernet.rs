//! Ethernet II with at most one 802.1Q tag.

use super::bytes::{be16, head, put, room, take};
use super::error::{HeaderName, WireError, fits};
use core::fmt;

const HEADER: HeaderName = HeaderName::Ethernet;

/// Bytes of a header without a tag.
pub const HEADER_LEN: usize = 14;
/// Bytes that a VLAN tag adds.
pub const VLAN_TAG_LEN: usize = 4;
/// Tag protocol identifier of 802.1Q.
pub const TPID_VLAN: u16 = 0x8100;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// A MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct VlanTag {
    /// Priority code point, 3 bits.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 12 bits.
    pub id: u16,
}

impl VlanTag {
    #[inline]
    fn from_tci(tci: u16) -> VlanTag {
        VlanTag { priority: (tci >> 13) as u8, drop_eligible: tci & 0x1000 != 0, id: tci & 0xfff }
    }

    #[inline]
    fn tci(self) -> Result<u16, WireError> {
        fits(HEADER, 14, "VLAN priority", u64::from(self.priority), 3)?;
        fits(HEADER, 14, "VLAN id", u64::from(self.id), 12)?;
        Ok(u16::from(self.priority) << 13 | u16::from(self.drop_eligible) << 12 | self.id)
    }
}

/// Bytes known to hold a whole Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct EthernetView<'a> {
    bytes: &'a [u8],
    fixed: &'a [u8; HEADER_LEN],
    tag: Option<&'a [u8; VLAN_TAG_LEN]>,
}

impl<'a> EthernetView<'a> {
    /// Checks that the header, and the tag it announces, are there.
    ///
    /// # Errors
    /// [`WireError::Truncated`].
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<EthernetView<'a>, WireError> {
        let fixed: &[u8; HEADER_LEN] = head(bytes, HEADER)?;
        let tag = if be16(fixed, 12) == TPID_VLAN {
            let whole: &[u8; HEADER_LEN + VLAN_TAG_LEN] = head(bytes, HEADER)?;
            whole.last_chunk()
        } else {
            None
        };
        Ok(EthernetView { bytes, fixed, tag })
    }

    /// Destination MAC address.
    #[inline]
    pub fn dst(&self) -> MacAddr {
        MacAddr(take(self.fixed, 0))
    }

    /// Source MAC address.
    #[inline]
    pub fn src(&self) -> MacAddr {
        MacAddr(take(self.fixed, 6))
    }

    /// The VLAN tag, if there is one.
    #[inline]
    pub fn vlan(&self) -> Option<VlanTag> {
        self.tag.map(|t| VlanTag::from_tci(be16(t, 0)))
    }

    /// EtherType of the payload; the one behind the tag if there is a tag.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        self.tag.map_or_else(|| be16(self.fixed, 12), |t| be16(t, 2))
    }

    /// Length of the header, bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        if self.tag.is_some() { HEADER_LEN + VLAN_TAG_LEN } else { HEADER_LEN }
    }

    /// The bytes after the header, including any padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len()..]
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Destination MAC address.
    pub dst: MacAddr,
    /// Source MAC address.
    pub src: MacAddr,
    /// The VLAN tag, if any.
    pub vlan: Option<VlanTag>,
    /// EtherType of the payload; must not be [`TPID_VLAN`].
    pub ethertype: u16,
}

impl EthernetHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`WireError::Unexpected`] for a second tag.
    #[inline]
    pub fn parse(view: &EthernetView<'_>) -> Result<EthernetHeader, WireError> {
        let ethertype = view.ethertype();
        no_second_tag(ethertype)?;
        Ok(EthernetHeader { dst: view.dst(), src: view.src(), vlan: view.vlan(), ethertype })
    }

    /// Bytes that [`EthernetHeader::emit`] writes.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        if self.vlan.is_some() { HEADER_LEN + VLAN_TAG_LEN } else { HEADER_LEN }
    }

    /// Writes the header; returns its length. The port pads frames to Ethernet's minimum.
    ///
    /// # Errors
    /// No room; a tag's field too wide; an EtherType that would be read as a tag.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, WireError> {
        no_second_tag(self.ethertype)?;
        let Some(tag) = self.vlan else {
            let b: &mut [u8; HEADER_LEN] = room(buf, HEADER)?;
            put(b, 0, self.dst.0);
            put(b, 6, self.src.0);
            put(b, 12, self.ethertype.to_be_bytes());
            return Ok(HEADER_LEN);
        };
        let tci = tag.tci()?;
        let b: &mut [u8; HEADER_LEN + VLAN_TAG_LEN] = room(buf, HEADER)?;
        put(b, 0, self.dst.0);
        put(b, 6, self.src.0);
        put(b, 12, TPID_VLAN.to_be_bytes());
        put(b, 14, tci.to_be_bytes());
        put(b, 16, self.ethertype.to_be_bytes());
        Ok(HEADER_LEN + VLAN_TAG_LEN)
    }
}

#[inline]
fn no_second_tag(ethertype: u16) -> Result<(), WireError> {
    if ethertype == TPID_VLAN {
        return Err(WireError::Unexpected {
            header: HEADER,
            offset: 16,
            expected: "at most one VLAN tag",
            found: u64::from(ethertype),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DST: MacAddr = MacAddr([0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0xfa]);
    const SRC: MacAddr = MacAddr([1, 2, 3, 4, 5, 6]);

    #[test]
    fn tagged_bytes() {
        let h = EthernetHeader {
            dst: DST,
            src: SRC,
            vlan: Some(VlanTag { priority: 5, drop_eligible: true, id: 0x123 }),
            ethertype: ETHERTYPE_IPV6,
        };
        let mut buf = [0; 18];
        assert_eq!(h.emit(&mut buf), Ok(18));
        assert_eq!(buf[12..], [0x81, 0x00, 0xb1, 0x23, 0x86, 0xdd]);
        let view = EthernetView::new_checked(&buf).unwrap();
        assert_eq!(EthernetHeader::parse(&view), Ok(h));
        assert!(view.payload().is_empty());
        assert_eq!(SRC.to_string(), "01:02:03:04:05:06");
    }

    #[test]
    fn every_short_length_is_refused() {
        let mut tagged = [0; 18];
        let tag = Some(VlanTag::default());
        EthernetHeader { dst: DST, src: SRC, vlan: tag, ethertype: ETHERTYPE_IPV4 }
            .emit(&mut tagged)
            .unwrap();
        for len in 0..18 {
            assert!(matches!(EthernetView::new_checked(&tagged[..len]), Err(WireError::Truncated { .. })));
        }
    }

    #[test]
    fn double_tags_and_wide_fields_are_refused() {
        let mut buf = [0; 18];
        let mut h = EthernetHeader { dst: DST, src: SRC, vlan: None, ethertype: TPID_VLAN };
        assert!(matches!(h.emit(&mut buf), Err(WireError::Unexpected { .. })));
        h.ethertype = ETHERTYPE_IPV4;
        for vlan in
            [VlanTag { priority: 8, ..VlanTag::default() }, VlanTag { id: 0x1000, ..VlanTag::default() }]
        {
            h.vlan = Some(vlan);
            assert!(matches!(h.emit(&mut buf), Err(WireError::TooWide { .. })));
        }
        buf[12..].copy_from_slice(&[0x81, 0, 0, 1, 0x81, 0]);
        let view = EthernetView::new_checked(&buf).unwrap();
        assert!(matches!(EthernetHeader::parse(&view), Err(WireError::Unexpected { offset: 16, .. })));
    }
}
