//! A switch's changes to a frame that it forwards: the congestion mark, the DSCP, the hop count. The IPv4 header
//! checksum is updated incrementally, so that earlier damage stays visible.

use super::checksum;
use super::error::WireError;
use super::ethernet::EthernetView;
use super::ip::{Ecn, traffic_class};
use super::network::Network;

/// Offset and contents of the fields to edit.
struct Place {
    ip: usize,
    v4: bool,
    dscp: u8,
    ecn: Ecn,
    ttl: u8,
}

fn locate(frame: &[u8]) -> Result<Place, WireError> {
    let eth = EthernetView::new_checked(frame)?;
    let net = Network::open(&eth)?;
    let v4 = matches!(net, Network::V4(_));
    Ok(Place { ip: eth.header_len(), v4, dscp: net.dscp(), ecn: net.ecn(), ttl: net.ttl() })
}

/// Marks the frame as congestion-experienced if its sender is ECN-capable; returns whether it is marked now.
///
/// # Errors
/// The frame carries no well-formed IP header.
pub fn mark_ce(frame: &mut [u8]) -> Result<bool, WireError> {
    let place = locate(frame)?;
    match place.ecn {
        Ecn::NotEct => Ok(false),
        Ecn::Ce => Ok(true),
        Ecn::Ect0 | Ecn::Ect1 => {
            set_traffic_class(frame, place.ip, place.v4, traffic_class(place.dscp, Ecn::Ce));
            Ok(true)
        }
    }
}

/// Sets the DSCP (the low 6 bits of `dscp`) and keeps ECN.
///
/// # Errors
/// The frame carries no well-formed IP header.
pub fn set_dscp(frame: &mut [u8], dscp: u8) -> Result<(), WireError> {
    let place = locate(frame)?;
    set_traffic_class(frame, place.ip, place.v4, traffic_class(dscp & 0x3f, place.ecn));
    Ok(())
}

/// Decrements TTL or hop limit and returns the new value. A frame whose value was 0 is left unchanged; the caller must
/// drop the frame if 0 is returned.
///
/// # Errors
/// The frame carries no well-formed IP header.
pub fn decrement_ttl(frame: &mut [u8]) -> Result<u8, WireError> {
    let place = locate(frame)?;
    let Some(left) = place.ttl.checked_sub(1) else { return Ok(0) };
    if place.v4 {
        let protocol = frame[place.ip + 9];
        put_word(frame, place.ip, 8, u16::from_be_bytes([left, protocol]));
    } else {
        frame[place.ip + 7] = left;
    }
    Ok(left)
}

fn set_traffic_class(frame: &mut [u8], ip: usize, v4: bool, class: u8) {
    if v4 {
        let first = frame[ip];
        put_word(frame, ip, 0, u16::from_be_bytes([first, class]));
    } else {
        set_traffic_class_v6(frame, ip, class);
    }
}

pub(super) fn set_traffic_class_v6(frame: &mut [u8], ip: usize, class: u8) {
    frame[ip] = 0x60 | class >> 4;
    frame[ip + 1] = class << 4 | frame[ip + 1] & 0xf;
}

/// Replaces the IPv4 header's word at offset `at` and updates the header checksum.
pub(super) fn put_word(frame: &mut [u8], ip: usize, at: usize, new: u16) {
    let word = |f: &[u8], i: usize| u16::from_be_bytes([f[i], f[i + 1]]);
    let sum = checksum::update(word(frame, ip + 10), word(frame, ip + at), new);
    frame[ip + at..ip + at + 2].copy_from_slice(&new.to_be_bytes());
    frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
}
