//! Packet trimming: what a switch whose data queue is full does instead of dropping.
//!
//! The frame loses its tail, gets the DSCP of trimmed packets and keeps its ECN bits. The UDP length
//! is never rewritten, so that it still tells the original size. IP length and IPv4 header checksum
//! are rewritten or left as they were, according to [`TrimFormat`]: both are seen in the field.

use super::class::{DscpClasses, PacketClass, TrimPoint};
use super::edit::{put_word, set_traffic_class_v6};
use super::error::WireError;
use super::ethernet::EthernetView;
use super::ip::traffic_class;
use super::network::Network;
use super::udp;

/// Bytes of IP payload that trimming leaves at least over UDP: 8 of UDP and 16 of PDS, enough to
/// name PDC and PSN.
pub const MIN_IP_PAYLOAD_UDP: usize = 24;
/// The same over native IP: 4 of the entropy header and 16 of PDS.
pub const MIN_IP_PAYLOAD_NATIVE: usize = 20;

/// What happens to the IP length when a frame is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum TrimFormat {
    /// IP length and IPv4 header checksum are rewritten to match the trimmed frame.
    #[default]
    LengthRewritten,
    /// Both are left as they were: the checksum no longer matches, since the DSCP has changed.
    LengthKept,
}

/// How a switch trims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrimPolicy {
    /// Length of trimmed frames, bytes from the Ethernet header on, without FCS. Where that would
    /// leave less than the least IP payload, the least it is; zero means just that.
    pub size: usize,
    /// What happens to the IP length.
    pub format: TrimFormat,
    /// Where this switch stands: which DSCP trimmed frames get.
    pub point: TrimPoint,
}

/// What [`trim_frame`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrimOutcome {
    /// The frame now ends after so many bytes: the caller cuts it there.
    Trimmed(usize),
    /// Nothing: it was trimmed before.
    AlreadyTrimmed,
    /// Nothing: it is as small as a trimmed frame would be.
    AlreadySmall,
    /// Nothing: its DSCP does not say that it may be trimmed.
    NotTrimmable,
}

/// Trims the frame in place, if it may and need be. The hop count is forwarding's affair
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
        PacketClass::Trimmable => {}
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

/// `len` goes to the length field: total length in IPv4, payload length in IPv6. It is less than
/// what stood there.
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
