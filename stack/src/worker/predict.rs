//! Header prediction: frames of one peer agree in nearly all bytes before PDS. If a frame agrees with the peer's last
//! well-formed frame in all fields but lengths and checksums, only these have to be checked. (The idea is Van
//! Jacobson's, for TCP.)
//!
//! Only for the usual frames: IPv4 without options, untagged, not trimmed.

use core::net::IpAddr;

use crate::packet::Addr;
use crate::wire::checksum::{Sum, udp_is_valid};
use crate::wire::crc;
use crate::wire::frame::{ChecksumPolicy, DEFAULT_TTL, IpAddrs};
use crate::wire::prefix::{PREFIX_LEN, UDP};

/// Bytes compared, a multiple of a word. The shortest frame, with the shortest PDS header, is longer.
const COMPARED: usize = 48;

/// Fields that differ from frame to frame: traffic class, total length, header checksum; source port, UDP length
/// and UDP checksum; and the bytes behind these headers.
const VARYING: [core::ops::Range<usize>; 6] = [15..18, 24..26, 34..36, 38..40, 40..42, PREFIX_LEN..COMPARED];

const MASK: [u64; COMPARED / 8] = mask();

const fn mask() -> [u64; COMPARED / 8] {
    let mut bytes = [[0xff; 8]; COMPARED / 8];
    let mut range = 0;
    while range < VARYING.len() {
        let mut at = VARYING[range].start;
        while at < VARYING[range].end {
            bytes[at / 8][at % 8] = 0;
            at += 1;
        }
        range += 1;
    }
    let mut words = [0; COMPARED / 8];
    let mut word = 0;
    while word < words.len() {
        words[word] = u64::from_ne_bytes(bytes[word]);
        word += 1;
    }
    words
}

/// The number of predictions kept.
const KEPT: usize = 256;

/// Offset of the source address.
const SOURCE_ADDRESS: usize = 14 + 12;
/// The last two bytes of it.
const SOURCE: usize = SOURCE_ADDRESS + 2;

/// A prediction of each peer's next headers. Peers whose addresses map to the same entry share it: the last one to
/// send has it.
#[derive(Clone, Debug, Default)]
pub(super) struct Predictions(Vec<Option<Prediction>>);

impl Predictions {
    /// An empty table. (The default value has no room for predictions.)
    pub(super) fn new() -> Predictions {
        Predictions(vec![None; KEPT])
    }

    /// The prediction for the peer that this frame seems to come from.
    #[inline]
    pub(super) fn of(&self, frame: &[u8]) -> Option<&Prediction> {
        self.0.get(place_of(frame)?)?.as_ref()
    }

    /// Learns from `frame`, a well-formed frame of `src` with the addresses `ip`.
    pub(super) fn learn(&mut self, frame: &[u8], ip: IpAddrs, src: Addr) {
        let Some(place) = place_of(frame).and_then(|at| self.0.get_mut(at)) else { return };
        if let Some(prediction) = Prediction::learn(frame, ip, src) {
            *place = Some(prediction);
        }
    }

    /// Forgets the prediction for `peer`, whose IP address is `ip`.
    pub(super) fn forget(&mut self, peer: Addr, ip: IpAddr) {
        let IpAddr::V4(ip) = ip else { return };
        let [.., network, host] = ip.octets();
        let place = self.0.get_mut(place_at(network, host));
        if let Some(entry) = place.filter(|entry| entry.as_ref().is_some_and(|next| next.src == peer)) {
            *entry = None;
        }
    }
}

/// Index of the entry for a frame's peer. Neighbours differ in the last byte of the address, hosts of several networks
/// also in the one before.
#[inline]
fn place_of(frame: &[u8]) -> Option<usize> {
    let [network, host] = *frame.get(SOURCE..)?.first_chunk()?;
    Some(place_at(network, host))
}

#[inline]
fn place_at(network: u8, host: u8) -> usize {
    usize::from(host ^ network.reverse_bits())
}

/// A prediction of a peer's next headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prediction {
    words: [u64; COMPARED / 8],
    /// The checksum over the words of the IPv4 header that all frames have in common.
    sum: Sum,
    ip: IpAddrs,
    src: Addr,
    hops: u8,
}

/// The fields of a frame that are not predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Predicted<'a> {
    pub(super) src: Addr,
    pub(super) hops: u8,
    /// DSCP and ECN.
    pub(super) traffic_class: u8,
    pub(super) src_port: u16,
    /// The bytes behind the UDP header.
    pub(super) body: &'a [u8],
}

impl Prediction {
    /// A prediction from `frame`, a well-formed frame of `src` with the addresses `ip`. `None` if frames of its kind
    /// are not predicted.
    fn learn(frame: &[u8], ip: IpAddrs, src: Addr) -> Option<Prediction> {
        let head: &[u8; COMPARED] = frame.first_chunk()?;
        let plain = head[12..15] == [8, 0, 0x45];
        let hops = DEFAULT_TTL.saturating_sub(head[22]);
        let mut common = *head;
        VARYING.into_iter().for_each(|field| common[field].fill(0));
        let sum = Sum::default().with(&common[14..UDP]);
        plain.then(|| Prediction { words: words(head), sum, ip, src, hops })
    }

    /// Reads a frame whose headers are as predicted, and whose lengths and checksums are right. After `None` the frame
    /// may still be valid.
    #[inline]
    pub(super) fn check<'a>(&self, frame: &'a [u8], checksums: ChecksumPolicy) -> Option<Predicted<'a>> {
        let head: &[u8; COMPARED] = frame.first_chunk()?;
        let ip_len = self.check_headers(head, checksums.ipv4_header)?;
        let datagram = frame.get(UDP..14 + ip_len)?;
        if checksums.udp && head[40..42] != [0; 2] && !udp_is_valid(&self.ip, datagram) {
            return None;
        }
        let mut end = datagram.len();
        if checksums.crc {
            crc::verify(&frame[SOURCE_ADDRESS..14 + ip_len], UDP - SOURCE_ADDRESS).ok()?;
            end -= crc::LEN;
        }
        Some(self.predicted(head, &datagram[PREFIX_LEN - UDP..end]))
    }

    /// As [`Prediction::check`], for a frame that continues for `more` bytes after `frame`, and has no UDP checksum.
    #[inline]
    pub(super) fn check_head<'a>(&self, frame: &'a [u8], more: usize) -> Option<Predicted<'a>> {
        let head: &[u8; COMPARED] = frame.first_chunk()?;
        let ip_len = self.check_headers(head, true)?;
        let all_there = 14 + ip_len == frame.len() + more;
        (all_there && head[40..42] == [0; 2]).then(|| self.predicted(head, &frame[PREFIX_LEN..]))
    }

    /// The length of the IP packet, if its headers are as predicted.
    #[inline]
    fn check_headers(&self, head: &[u8; COMPARED], ipv4_checksum: bool) -> Option<usize> {
        let words = words(head);
        let differ = (0..words.len()).fold(0, |all, at| all | (words[at] ^ self.words[at]) & MASK[at]);
        let (ip_len, udp_len) = (half(head, 16), half(head, 38));
        let sum = self.sum.with_word(head[15].into()).with_word(ip_len).with_word(half(head, 24));
        let lengths = udp_len >= 8 && u32::from(ip_len) == 20 + u32::from(udp_len);
        let right = differ == 0 && lengths && (!ipv4_checksum || sum.finish() == 0);
        right.then_some(usize::from(ip_len))
    }

    #[inline]
    fn predicted<'a>(&self, head: &[u8; COMPARED], body: &'a [u8]) -> Predicted<'a> {
        let (src, hops) = (self.src, self.hops);
        Predicted { src, hops, traffic_class: head[15], src_port: half(head, 34), body }
    }
}

#[inline]
fn half(head: &[u8; COMPARED], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

#[inline]
fn words(head: &[u8; COMPARED]) -> [u64; COMPARED / 8] {
    let (chunks, _) = head.as_chunks::<8>();
    core::array::from_fn(|at| u64::from_ne_bytes(chunks[at]))
}
