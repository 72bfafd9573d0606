//! Properties of reading frames that hold for any bytes. A property test and a fuzz target share them.

use core::net::Ipv4Addr;

use super::predict::Predictions;
use super::{AddressBook, Checksum, Codec, HostAddr, LinkConfig, ReadError, Strangers};
use crate::choices::Choices;
use crate::packet::{Addr, Class, Network, Packet, Payload};
use crate::port::{Frame, FramePool, MIN_FRAME, PortCaps, Timestamps};
use crate::spray::Entropy;
use crate::wire::class::{DscpClasses, Priority};
use crate::wire::crc;
use crate::wire::edit::mark_ce;
use crate::wire::ethernet::MacAddr;
use crate::wire::frame::{ChecksumFill, TrimFormat, TrimOutcome, TrimPoint, TrimPolicy};
use crate::wire::frame::{finish_checksums, trim_frame};
use crate::wire::pds::{
    Ack, AckRequest, AckTrigger, DeliveryMode, Destination, NextHeader, PdcId, Pds, Psn, Request, VendorFlags,
};
use crate::wire::prefix;
use crate::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};

/// Bytes of the longest frame.
const LONGEST: usize = 600;
/// The endpoint that reads, and the peers whose frames it expects. The last one's share an entry of the predictions with
/// the first one's.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEERS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 3), Ipv4Addr::new(10, 0, 0x80, 0)];
/// Room for two of the peers and one more, if strangers are learnt.
const BOOK: usize = 4;

/// Frames of several peers, well-formed and damaged in any way, one after the other: reading each with the predictions
/// from those before gives the same packet, payload or error as reading it without, in one piece or in two.
pub fn predictions_change_no_result(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let [link, strangers] = choices.bytes();
    let checksum = [Checksum::WhereNeeded, Checksum::Always, Checksum::Never][usize::from(link % 3)];
    let has_crc = link & 0x80 != 0;
    let codec = Codec::new(LinkConfig { checksum, ..LinkConfig::default() }, &CAPS).with_crc(has_crc);
    let strangers = if strangers & 1 == 0 { Strangers::Refuse } else { Strangers::Learn };
    let mut reader = Reader::new(codec, strangers);
    while let Some(choice) = choices.next() {
        let mut frame = match choice % 8 {
            0 => (0..choices.byte()).map(|_| choices.byte()).collect(),
            _ => choices.frame(&codec),
        };
        choices.damage(&mut frame, has_crc);
        frame.resize(frame.len().max(MIN_FRAME), 0);
        let cut = (choice & 0x80 != 0).then(|| usize::from(choices.byte()));
        reader.read(&frame, choice & 0x40 != 0, cut);
    }
}

const CAPS: PortCaps = PortCaps {
    max_frame: LONGEST,
    mac: [2; 6],
    tx_ipv4_checksum: false,
    tx_udp_checksum: false,
    rx_checksum: true,
    multi_segment: false,
    timestamps: Timestamps::Burst,
    in_memory: false,
};

/// An endpoint that reads each frame with predictions and without.
struct Reader {
    codec: Codec,
    pool: FramePool,
    expected: Predictions,
    with: AddressBook,
    without: AddressBook,
}

impl Reader {
    fn new(codec: Codec, strangers: Strangers) -> Reader {
        let mut book = AddressBook::new(Addr(1), host(OWN), BOOK, strangers).expect("an endpoint");
        book.insert(Addr(0), host(PEERS[0])).expect("a peer");
        book.insert(Addr(2), host(PEERS[2])).expect("a peer");
        let pool = FramePool::heap(2, 2 * LONGEST).expect("memory");
        Reader { codec, pool, expected: Predictions::new(), with: book.clone(), without: book }
    }

    /// Reads `bytes`, whose checksums the port has found good or not looked at. With `cut` the frame comes in two parts.
    fn read(&mut self, bytes: &[u8], is_good: bool, cut: Option<usize>) {
        let mut frame = self.pool.copy(bytes).expect("a free buffer");
        if is_good {
            frame.verified();
        }
        let plain = self.codec.read(&mut self.without, &frame);
        let plain = plain.map(|(packet, payload)| (packet, payload.to_vec()));
        let parts = cut.and_then(|cut| Frame::in_two_parts(bytes, cut)).filter(|_| !is_good);
        let predicted = match &parts {
            Some(parts) => self.read_parts(parts),
            None => self.read_expecting(&frame),
        };
        assert_eq!(predicted, plain);
    }

    /// As the worker reads a frame that goes on elsewhere.
    fn read_parts(&mut self, frame: &Frame) -> Result<(Packet, Vec<u8>), ReadError> {
        let mut packet = Packet::BLANK;
        if let Some(payload) = self.codec.read_with_tail(&self.with, &self.expected, frame, &mut packet) {
            let mut bytes = vec![0; payload.len() as usize];
            payload.copy_to(&mut bytes);
            return Ok((packet, bytes));
        }
        let whole = frame.gather(&self.pool).expect("a free buffer");
        self.read_expecting(&whole)
    }

    /// As the worker reads a frame in one piece.
    fn read_expecting(&mut self, frame: &Frame) -> Result<(Packet, Vec<u8>), ReadError> {
        let (codec, next, mut packet) = (&self.codec, &mut self.expected, Packet::BLANK);
        let payload = match codec.read_expected(&self.with, next, frame, &mut packet) {
            Some(payload) => payload,
            None => codec.read_any(&mut self.with, next, frame, &mut packet)?,
        };
        Ok((packet, payload.to_vec()))
    }
}

fn host(ip: Ipv4Addr) -> HostAddr {
    let [.., network, host] = ip.octets();
    HostAddr { mac: MacAddr([2, 0, 0, 0, network, host]), ip: ip.into() }
}

impl Choices<'_> {
    /// A well-formed frame of one of the peers.
    fn frame(&mut self, codec: &Codec) -> Vec<u8> {
        let [who, kind, len, entropy, hops] = self.bytes();
        let mut book = AddressBook::new(Addr(0), host(PEERS[usize::from(who % 3)]), 2, Strangers::Refuse)
            .expect("an endpoint");
        book.insert(Addr(1), host(OWN)).expect("a peer");
        let len = if kind & 1 == 0 { u32::from(len) } else { 0 };
        let net = Network {
            src: Addr(0),
            dst: Addr(1),
            entropy: Entropy(entropy.into()),
            class: if kind & 1 == 0 { Class::Data } else { Class::Control },
            priority: Priority::LOWEST,
            ecn: kind & 2 != 0,
            // Nearly always one value, as from a peer whose packets all take the same number of hops.
            hops: hops.saturating_sub(240),
        };
        let (pds, ses) = if kind & 1 == 0 {
            request(len as u16, Destination::Pdc(PdcId(7)))
        } else {
            (ack(len), Ses::None)
        };
        let packet = Packet { net, payload_len: len, pds, ses };
        let pool = FramePool::heap(1, LONGEST).expect("memory");
        let mut frame = pool.allocate(LONGEST).expect("a buffer");
        let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
        codec.write(&book, &packet, Payload::Bytes(&payload), &mut frame).expect("it fits");
        frame.to_vec()
    }

    /// What may happen to a frame on its way: bits flip, and its checksums may be made right again; it is marked, trimmed,
    /// cut, or becomes longer.
    fn damage(&mut self, frame: &mut Vec<u8>, has_crc: bool) {
        let [kinds, flips] = self.bytes();
        if kinds & 1 != 0 && mark_ce(frame).is_err() {
            return;
        }
        for _ in 0..flips % 4 {
            let [at, low, value] = self.bytes();
            let at = if low & 1 == 0 {
                usize::from(at % 64)
            } else {
                usize::from(at) << 1 | usize::from(low >> 7)
            };
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= value;
            }
        }
        if kinds & 2 != 0 {
            if let Some(packet) = frame.get_mut(prefix::SOURCE..).filter(|_| has_crc) {
                let _ = crc::fill(packet, prefix::UDP - prefix::SOURCE);
            }
            let _ = finish_checksums(frame, ChecksumFill::default());
        }
        if kinds & 4 != 0 {
            let point = if kinds & 8 == 0 { TrimPoint::Fabric } else { TrimPoint::LastHop };
            let format = if kinds & 16 == 0 { TrimFormat::LengthKept } else { TrimFormat::LengthRewritten };
            let policy = TrimPolicy { size: 128, format, point };
            if let Ok(TrimOutcome::Trimmed(len)) = trim_frame(frame, &DscpClasses::default(), &policy) {
                frame.truncate(len);
            }
        }
        if kinds & 32 != 0 {
            frame.truncate(usize::from(self.byte()));
        }
        if kinds & 64 != 0 {
            frame.resize(frame.len() + usize::from(self.byte() % 16), 0xee);
        }
    }
}

/// A part of a message in a packet with so many bytes of payload.
pub(super) fn request(len: u16, destination: Destination) -> (Pds, Ses) {
    let pds = Pds::Request(Request {
        mode: DeliveryMode::Rud,
        next: NextHeader::RequestStandard,
        retx: false,
        ack_request: true,
        clear_psn_offset: -3,
        psn: Psn(77),
        spdcid: PdcId(5),
        destination,
        vendor: VendorFlags::NONE,
        cc: None,
    });
    let ses = Ses::Standard(StandardRequest {
        opcode: Opcode::SEND,
        flags: RequestFlags::NONE,
        msg_id: 9,
        ri_generation: 0,
        job_id: 0,
        pid_on_fep: 0,
        resource_index: 0,
        buffer_offset: 0,
        initiator: 0,
        match_bits: 0,
        placement: Placement::Continue { payload_len: len, msg_offset: 64 },
        request_length: 100_000,
    });
    (pds, ses)
}

fn ack(cack: u32) -> Pds {
    Pds::Ack(Ack {
        next: NextHeader::None,
        ecn: true,
        retx: false,
        request: AckRequest::None,
        trigger: AckTrigger::Psn(0),
        cack_psn: Psn(cack),
        spdcid: PdcId(1),
        dpdcid: PdcId(2),
        cc: None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_frames_read_as_without_predictions(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            predictions_change_no_result(&bytes);
        }

        /// Most frames as they were sent, so that most are as predicted.
        #[test]
        fn frames_read_as_without_predictions(bytes in prop::collection::vec(prop_oneof![2 => Just(1u8), 1 => any::<u8>()], 0..600)) {
            predictions_change_no_result(&bytes);
        }
    }

    /// The seeds of the fuzz target: frames of one peer, of several, damaged ones, and one byte for byte.
    #[test]
    fn the_seeds_are_frames() {
        // Which frame, its peer, kind, length, entropy and hops, and what happens to it.
        let frames = |all: &[[u8; 8]]| [&[0, 1][..], all.as_flattened()].concat();
        let codec = Codec::new(LinkConfig::default(), &CAPS);
        let frame = Choices(&[0, 0, 60, 1, 0]).frame(&codec);
        let raw = [&[0, 1, 0, frame.len() as u8][..], &frame, &[0, 0]].concat();
        let seeds = [
            ("requests", frames(&[[1, 0, 0, 200, 1, 0, 0, 0]; 4])),
            (
                "acks",
                frames(&[[1, 0, 1, 200, 1, 0, 0, 0], [1, 1, 1, 7, 1, 0, 0, 0], [1, 0, 3, 201, 1, 0, 0, 0]]),
            ),
            (
                "marked_and_trimmed",
                frames(&[
                    [1, 0, 0, 200, 1, 0, 0, 0],
                    [1, 0, 0, 200, 1, 0, 5, 0],
                    [1, 0, 0, 200, 1, 0, 20, 0],
                ]),
            ),
            (
                "peers_in_turn",
                frames(&[[1, 0, 0, 9, 1, 0, 0, 0], [1, 2, 0, 9, 1, 0, 0, 0], [1, 1, 0, 9, 1, 241, 0, 0]]),
            ),
            ("whole", raw),
        ];
        crate::seeds::check("predictions", &seeds, predictions_change_no_result);
    }

    /// Else nothing would have been tried above.
    #[test]
    fn the_second_frame_of_a_peer_is_predicted_in_one_piece_and_in_two() {
        let codec = Codec::new(LinkConfig { checksum: Checksum::Never, ..LinkConfig::default() }, &CAPS);
        let frame = Choices(&[0, 0, 200, 1, 0]).frame(&codec);
        let mut reader = Reader::new(codec, Strangers::Refuse);
        reader.read(&frame, false, None);
        let (whole, mut packet) = (reader.pool.copy(&frame).unwrap(), Packet::BLANK);
        let (book, next) = (&reader.with, &reader.expected);
        assert!(codec.read_expected(book, next, &whole, &mut packet).is_some());
        let headers = frame.len() - 200;
        let parts = Frame::in_two_parts(&frame, headers).unwrap();
        assert_eq!(
            codec.read_with_tail(book, next, &parts, &mut packet).map(|payload| payload.len()),
            Some(200)
        );
    }
}
