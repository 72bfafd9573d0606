//! Packet trimming: a switch whose data queue is full cuts packets instead of dropping them.
//!
//! The frame loses its tail, gets the DSCP of trimmed packets and keeps its ECN bits. The UDP length is never
//! rewritten, so it still tells the original size. IP length and IPv4 header checksum are rewritten or left alone,
//! according to [`TrimFormat`]: both kinds of switch exist.

use super::class::{DscpClasses, PacketClass, TrimPoint};
use super::edit::{put_word, set_traffic_class_v6};
use super::error::WireError;
use super::ethernet::EthernetView;
use super::ip::traffic_class;
use super::network::Network;
use super::udp;

/// Least number of bytes of IP payload that trimming leaves over UDP: 8 of UDP and 16 of PDS, enough to identify PDC
/// and PSN.
pub const MIN_IP_PAYLOAD_UDP: usize = 24;
/// Least number of bytes of IP payload that trimming leaves over native IP: 4 of the entropy header and 16 of PDS.
pub const MIN_IP_PAYLOAD_NATIVE: usize = 20;

/// The treatment of the IP length when a frame is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum TrimFormat {
    /// IP length and IPv4 header checksum are rewritten to match the trimmed frame.
    #[default]
    LengthRewritten,
    /// Both are left alone: the checksum no longer matches, since the DSCP has changed.
    LengthKept,
}

/// Trimming parameters of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrimPolicy {
    /// Length of trimmed frames, bytes from the Ethernet header on, without FCS. Raised to the length that keeps the
    /// least IP payload; zero means that length.
    pub size: usize,
    /// The treatment of the IP length.
    pub format: TrimFormat,
    /// Position of this switch, which determines the DSCP of trimmed frames.
    pub point: TrimPoint,
}

/// Result of [`trim_frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrimOutcome {
    /// The frame was trimmed to this length in bytes; the caller truncates it.
    Trimmed(usize),
    /// Unchanged: the frame was trimmed before.
    AlreadyTrimmed,
    /// Unchanged: the frame is no longer than a trimmed frame.
    AlreadySmall,
    /// Unchanged: the frame's DSCP does not permit trimming.
    NotTrimmable,
}

/// Trims the frame in place, if that is permitted and makes it shorter. Leaves the hop count to forwarding
/// ([`decrement_ttl`](super::edit::decrement_ttl)).
///
/// # Errors
/// The frame carries no well-formed IP packet.
pub fn trim_frame(
    frame: &mut [u8],
    classes: &DscpClasses,
    policy: &TrimPolicy,
) -> Result<TrimOutcome, WireError> {
    let eth = EthernetView::new_checked(frame)?;
    let net = Network::open(&eth)?;
    match classes.classify(net.dscp()) {
        PacketClass::Trimmable(_) => {}
        class if class.trim_point().is_some() => return Ok(TrimOutcome::AlreadyTrimmed),
        _ => return Ok(TrimOutcome::NotTrimmable),
    }
    net.check_length()?;
    let ip = eth.header_len();
    let payload_at = ip + net.header_len();
    let least = if net.protocol() == udp::PROTOCOL { MIN_IP_PAYLOAD_UDP } else { MIN_IP_PAYLOAD_NATIVE };
    let keep = policy.size.saturating_sub(payload_at).max(least);
    if net.announced_len() <= keep {
        return Ok(TrimOutcome::AlreadySmall);
    }
    let class = traffic_class(classes.dscp(policy.point.class()), net.ecn());
    let (v4, ip_header_len) = (matches!(net, Network::V4(_)), net.header_len());
    rewrite(frame, ip, v4, class, policy.format, keep + if v4 { ip_header_len } else { 0 });
    Ok(TrimOutcome::Trimmed(payload_at + keep))
}

/// Writes `len` to the length field: total length in IPv4, payload length in IPv6. It is less than the old value.
fn rewrite(frame: &mut [u8], ip: usize, v4: bool, class: u8, format: TrimFormat, len: usize) {
    match (v4, format) {
        (true, TrimFormat::LengthRewritten) => {
            let first = frame[ip];
            put_word(frame, ip, 0, u16::from_be_bytes([first, class]));
            put_word(frame, ip, 2, len as u16);
        }
        (true, TrimFormat::LengthKept) => frame[ip + 1] = class,
        (false, format) => {
            set_traffic_class_v6(frame, ip, class);
            if format == TrimFormat::LengthRewritten {
                frame[ip + 4..ip + 6].copy_from_slice(&(len as u16).to_be_bytes());
            }
        }
    }
}
