//! Whole frames: known bytes, round trips, trimming in both formats, checksums, edits, and the
//! committed fuzz corpora.

use super::frame::*;
use super::pds::tests::{any_pds, any_request, hex};
use super::pds::{
    Ack, AckRequest, AckTrigger, Control, ControlKind, DeliveryMode, Destination, NextHeader, PdcId, Pds,
    Psn, Request, Tss, VendorFlags,
};
use super::prefix::Prefix;
use super::ses::tests::ses_of;
use super::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};
use super::trim::{MIN_IP_PAYLOAD_NATIVE, MIN_IP_PAYLOAD_UDP};
use super::{HeaderName, WireError, edit, properties};
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::option;
use proptest::prelude::*;

const VERIFY: ChecksumPolicy = ChecksumPolicy::VERIFY;

fn classes() -> DscpClasses {
    DscpClasses::default()
}

fn v4() -> IpAddrs {
    IpAddrs::V4 { src: Ipv4Addr::new(10, 0, 0, 1), dst: Ipv4Addr::new(10, 0, 0, 2) }
}

fn v6() -> IpAddrs {
    let host = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
    IpAddrs::V6 { src: host(1), dst: host(2) }
}

fn meta(ip: IpAddrs) -> FrameMeta {
    FrameMeta {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        ip,
        dscp: 8,
        ecn: Ecn::Ect0,
        ttl: DEFAULT_TTL,
        entropy_port: 0xc001,
        trimmed: None,
        original_payload_len: 0,
    }
}

fn request() -> Pds {
    Pds::Request(Request {
        mode: DeliveryMode::Rud,
        next: NextHeader::RequestStandard,
        retx: false,
        ack_request: true,
        clear_psn_offset: -3,
        psn: Psn(0x0102_0304),
        spdcid: PdcId(5),
        destination: Destination::Pdc(PdcId(6)),
        vendor: VendorFlags::NONE,
        cc: None,
    })
}

fn send(request_length: u32) -> Ses {
    let flags = RequestFlags::WHOLE_MESSAGE;
    Ses::Standard(StandardRequest {
        opcode: Opcode::SEND,
        flags,
        msg_id: 7,
        ri_generation: 0,
        job_id: 1,
        pid_on_fep: 2,
        resource_index: 3,
        buffer_offset: 0,
        initiator: 4,
        match_bits: 0,
        placement: Placement::Start { header_data: 0 },
        request_length,
    })
}

fn build(meta: &FrameMeta, pds: &Pds, ses: &Ses, payload: &[u8]) -> Vec<u8> {
    let at = headers_len(meta, pds, ses);
    let mut bytes = vec![0xa5; at + payload.len()];
    assert_eq!(emit_headers(&mut bytes, meta, pds, ses, payload.len()), Ok(at));
    bytes[at..].copy_from_slice(payload);
    finish_checksums(&mut bytes, ChecksumFill::default()).unwrap();
    bytes
}

fn data_frame(meta: &FrameMeta, payload_len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload_len).map(|i| (i * 7) as u8).collect();
    build(meta, &request(), &send(payload_len as u32), &payload)
}

/// Every byte of a small frame, assembled by hand; the checksums were computed by another program.
#[test]
fn known_frame() {
    let pds = Pds::Ack(Ack {
        next: NextHeader::None,
        ecn: false,
        retx: false,
        request: AckRequest::None,
        trigger: AckTrigger::Psn(1),
        cack_psn: Psn(0x10),
        spdcid: PdcId(2),
        dpdcid: PdcId(3),
        cc: None,
    });
    let m = FrameMeta { dscp: 46, ..meta(v4()) };
    let expected = hex("020000000002 020000000001 0800
         45ba 0028 0000 4000 40 11 2609 0a000001 0a000002
         c001 12b9 0014 e0f2
         3800 0001 00000010 0002 0003");
    assert_eq!(build(&m, &pds, &Ses::None, &[]), expected);
    let frame = parse_frame(&expected, &classes(), VERIFY).unwrap();
    assert_eq!(frame, Frame { meta: m, pds, ses: Ses::None, payload: &[] });
}

#[test]
fn sizes_of_data_frames() {
    assert_eq!(headers_len(&meta(v4()), &request(), &send(0)), 14 + 20 + 8 + 12 + 44);
    let m = FrameMeta { vlan: Some(VlanTag::default()), ..meta(v6()) };
    assert_eq!(headers_len(&m, &request(), &send(0)), 18 + 40 + 8 + 12 + 44);
}

#[test]
fn ethernet_padding_is_no_payload() {
    for ip in [v4(), v6()] {
        let mut bytes = data_frame(&meta(ip), 5);
        bytes.extend([0xee; 40]);
        assert_eq!(parse_frame(&bytes, &classes(), VERIFY).unwrap().payload.len(), 5);
    }
}

#[test]
fn every_flipped_bit_behind_the_macs_is_noticed() {
    // The ones' complement sums cover all of IPv4 and UDP; Ethernet's type must be right as well.
    let bytes = data_frame(&meta(v4()), 9);
    let good = parse_frame(&bytes, &classes(), VERIFY).unwrap();
    for bit in 12 * 8..bytes.len() * 8 {
        let mut b = bytes.clone();
        b[bit / 8] ^= 0x80 >> (bit % 8);
        assert!(parse_frame(&b, &classes(), VERIFY).is_err(), "bit {bit}");
        if let Ok(other) = parse_frame(&b, &classes(), ChecksumPolicy::OFFLOADED) {
            // Without verification, changes of the two checksums and of reserved bits have no effect.
            let silent = [24, 25, 40, 41, 18, 19, 20];
            let reserved = [42, 43, 54, 62, 64];
            assert!(
                other != good || silent.contains(&(bit / 8)) || reserved.contains(&(bit / 8)),
                "bit {bit}"
            );
        }
    }
}

#[test]
fn an_absent_udp_checksum_is_accepted_over_ipv4_only() {
    let fill = |ip, udp| {
        let mut bytes = data_frame(&meta(ip), 100);
        finish_checksums(&mut bytes, ChecksumFill { ipv4_header: true, udp }).unwrap();
        bytes
    };
    let none = fill(v4(), UdpChecksum::None);
    assert_eq!(none[40..42], [0, 0]);
    assert!(parse_frame(&none, &classes(), VERIFY).is_ok());
    assert_eq!(fill(v6(), UdpChecksum::None), fill(v6(), UdpChecksum::Full));
    let mut bare = fill(v6(), UdpChecksum::Full);
    bare[60..62].fill(0);
    assert!(matches!(
        parse_frame(&bare, &classes(), VERIFY),
        Err(WireError::Unexpected { header: HeaderName::Udp, offset: 6, .. })
    ));
    assert!(parse_frame(&bare, &classes(), ChecksumPolicy::OFFLOADED).is_ok());
}

/// Imitates the hardware: adds the datagram to the pseudo-header sum, and complements.
#[test]
fn checksum_offload_completes_the_pseudo_header_sum() {
    for (ip, udp_at) in [(v4(), 34), (v6(), 54)] {
        let full = data_frame(&meta(ip), 33);
        let mut partial = full.clone();
        let fill = ChecksumFill { ipv4_header: true, udp: UdpChecksum::PseudoHeader };
        finish_checksums(&mut partial, fill).unwrap();
        let sum = super::checksum::checksum(&partial[udp_at..]);
        partial[udp_at + 6..udp_at + 8].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(partial, full);
    }
}

#[test]
fn checksum_errors_contain_the_correct_value() {
    let good = data_frame(&meta(v4()), 8);
    let mut bad = good.clone();
    bad[40] ^= 0x12;
    let right = u16::from_be_bytes([good[40], good[41]]);
    assert!(matches!(
        parse_frame(&bad, &classes(), VERIFY),
        Err(WireError::Checksum { header: HeaderName::Udp, expected, .. }) if expected == right
    ));
}

#[test]
fn frames_of_other_protocols_are_refused() {
    let refuse = |at: usize, value: u8, header: HeaderName| {
        let mut b = data_frame(&meta(v4()), 8);
        b[at] = value;
        match parse_frame(&b, &classes(), ChecksumPolicy::OFFLOADED) {
            Err(WireError::Unexpected { header: found, .. }) => assert_eq!(found, header),
            other => panic!("{other:?}"),
        }
    };
    refuse(13, 0x06, HeaderName::Ethernet);
    refuse(23, 6, HeaderName::Ipv4);
    refuse(37, 0xba, HeaderName::Udp);
    refuse(42, 0, HeaderName::PdsPrologue);
    let mut b = data_frame(&meta(v6()), 8);
    b[20] = 44;
    assert!(matches!(
        parse_frame(&b, &classes(), ChecksumPolicy::OFFLOADED),
        Err(WireError::Unexpected { header: HeaderName::Ipv6, offset: 6, found: 44, .. })
    ));
}

#[test]
fn contradictory_headers_are_not_emitted() {
    let mut buf = [0; 200];
    let m = meta(v4());
    let mismatch = emit_headers(&mut buf, &m, &request(), &Ses::None, 0);
    assert!(matches!(mismatch, Err(WireError::Inconsistent { .. })));
    let trimmed = FrameMeta { trimmed: Some(TrimPoint::Fabric), ..m };
    assert!(matches!(
        emit_headers(&mut buf, &trimmed, &request(), &Ses::None, 1),
        Err(WireError::Inconsistent { .. })
    ));
    let room = 65535 - 20 - 8 - 12 - 44;
    assert!(emit_headers(&mut buf, &m, &request(), &send(0), room).is_ok());
    for ip in [v4(), v6()] {
        let long = emit_headers(&mut buf, &meta(ip), &request(), &send(0), room + 21);
        assert!(matches!(long, Err(WireError::TooWide { .. })));
    }
}

#[test]
fn security_frames_keep_their_ciphertext() {
    let tss = Pds::Tss(Tss { an: false, sdi: 1, ssi: None, epoch: 2, counter: 3 });
    let bytes = build(&meta(v4()), &tss, &Ses::None, &[9; 50]);
    let frame = parse_frame(&bytes, &classes(), VERIFY).unwrap();
    assert_eq!((frame.ses, frame.payload), (Ses::None, &[9; 50][..]));
}

const FORMATS: [TrimFormat; 2] = [TrimFormat::LengthRewritten, TrimFormat::LengthKept];

fn policy(size: usize, format: TrimFormat) -> TrimPolicy {
    TrimPolicy { size, format, point: TrimPoint::Fabric }
}

fn trimmed(mut bytes: Vec<u8>, policy: &TrimPolicy) -> Vec<u8> {
    let Ok(TrimOutcome::Trimmed(len)) = trim_frame(&mut bytes, &classes(), policy) else { panic!() };
    bytes.truncate(len);
    bytes
}

/// The IP length, the IPv4 checksum and the UDP length, as a switch leaves them.
#[test]
fn trimmed_bytes() {
    let bytes = data_frame(&meta(v4()), 1000);
    let total = (20 + 8 + 12 + 44 + 1000u16).to_be_bytes();
    for format in FORMATS {
        let out = trimmed(bytes.clone(), &policy(0, format));
        assert_eq!(out.len(), 14 + 20 + MIN_IP_PAYLOAD_UDP);
        assert_eq!(out[15], 16 << 2 | 2, "trimmed DSCP, ECN kept");
        assert_eq!(out[38..40], (8 + 12 + 44 + 1000u16).to_be_bytes(), "the UDP length is never rewritten");
        assert_eq!(out[34..], bytes[34..out.len()]);
        match format {
            TrimFormat::LengthRewritten => {
                assert_eq!(out[16..18], 44u16.to_be_bytes());
                assert_eq!(super::checksum::checksum(&out[14..34]), 0);
            }
            TrimFormat::LengthKept => {
                assert_eq!(out[16..18], total);
                assert_eq!(out[24..26], bytes[24..26], "the checksum is left alone");
                assert_ne!(super::checksum::checksum(&out[14..34]), 0);
            }
        }
    }
    let bytes = data_frame(&meta(v6()), 1000);
    for (format, len) in FORMATS.into_iter().zip([24u16, 8 + 12 + 44 + 1000]) {
        let out = trimmed(bytes.clone(), &policy(0, format));
        assert_eq!(out.len(), 14 + 40 + MIN_IP_PAYLOAD_UDP);
        assert_eq!(out[14..16], [0x64, 0x20]);
        assert_eq!(out[18..20], len.to_be_bytes());
    }
}

#[test]
fn trimmed_frames_identify_the_packet_and_its_original_size() {
    for ip in [v4(), v6()] {
        for vlan in [None, Some(VlanTag { priority: 3, drop_eligible: false, id: 100 })] {
            for (format, point) in [(FORMATS[0], TrimPoint::Fabric), (FORMATS[1], TrimPoint::LastHop)] {
                let m = FrameMeta { vlan, ecn: Ecn::Ce, ..meta(ip) };
                for (size, ses) in [(0, Ses::None), (206, send(4096))] {
                    let out = trimmed(data_frame(&m, 4096), &TrimPolicy { size, format, point });
                    let frame = parse_frame(&out, &classes(), VERIFY).unwrap();
                    assert_eq!((frame.pds, frame.ses, frame.payload), (request(), ses, &[][..]));
                    assert_eq!(frame.meta.trimmed, Some(point));
                    assert_eq!((frame.meta.original_payload_len, frame.meta.ecn), (4096, Ecn::Ce));
                    assert_eq!(frame.meta.dscp, classes().dscp(point.class()));
                }
            }
        }
    }
}

#[test]
fn trimming_sizes() {
    for size in [128, 206, 256] {
        assert_eq!(trimmed(data_frame(&meta(v4()), 4096), &policy(size, FORMATS[0])).len(), size);
    }
    // A frame of just the size asked for, and one byte more.
    let headers = headers_len(&meta(v4()), &request(), &send(0));
    for (size, outcome) in
        [(headers + 50, TrimOutcome::AlreadySmall), (headers + 49, TrimOutcome::Trimmed(headers + 49))]
    {
        let mut bytes = data_frame(&meta(v4()), 50);
        assert_eq!(trim_frame(&mut bytes, &classes(), &policy(size, FORMATS[0])), Ok(outcome));
    }
}

#[test]
fn only_long_untrimmed_data_frames_are_trimmed() {
    for format in FORMATS {
        let p = policy(0, format);
        let untouched = |bytes: Vec<u8>, outcome| {
            let mut b = bytes.clone();
            assert_eq!(trim_frame(&mut b, &classes(), &p), Ok(outcome));
            assert_eq!(b, bytes);
        };
        for dscp in [0, 46, 63] {
            untouched(data_frame(&FrameMeta { dscp, ..meta(v4()) }, 900), TrimOutcome::NotTrimmable);
        }
        untouched(trimmed(data_frame(&meta(v6()), 900), &policy(500, format)), TrimOutcome::AlreadyTrimmed);
        let cp = Control {
            kind: ControlKind::Noop,
            rod: false,
            retx: false,
            ack_request: false,
            probe_opaque: 0,
            psn: Psn(0),
            spdcid: PdcId(1),
            destination: Destination::Pdc(PdcId(1)),
            payload: 0,
        };
        untouched(build(&meta(v4()), &Pds::Control(cp), &Ses::None, &[]), TrimOutcome::AlreadySmall);
    }
}

#[test]
fn native_ip_is_trimmed_shorter() {
    let mut bytes = data_frame(&meta(v4()), 900);
    bytes[23] = super::udp::NATIVE_IP_PROTOCOL;
    let cut = trim_frame(&mut bytes, &classes(), &policy(0, FORMATS[0]));
    assert_eq!(cut, Ok(TrimOutcome::Trimmed(14 + 20 + MIN_IP_PAYLOAD_NATIVE)));
}

#[test]
fn only_a_trimmed_dscp_allows_a_frame_to_be_short() {
    for ip in [v4(), v6()] {
        let mut out = trimmed(data_frame(&meta(ip), 900), &policy(0, TrimFormat::LengthKept));
        assert!(parse_frame(&out, &classes(), VERIFY).is_ok());
        edit::set_dscp(&mut out, 8).unwrap();
        let e = parse_frame(&out, &classes(), ChecksumPolicy::OFFLOADED).unwrap_err();
        assert!(matches!(e, WireError::Truncated { header: HeaderName::Ipv4 | HeaderName::Ipv6, .. }));
        let mut out = trimmed(data_frame(&meta(ip), 900), &policy(0, TrimFormat::LengthRewritten));
        edit::set_dscp(&mut out, 8).unwrap();
        let e = parse_frame(&out, &classes(), VERIFY).unwrap_err();
        assert!(matches!(e, WireError::Truncated { header: HeaderName::Udp, .. }));
    }
}

#[test]
fn damage_to_a_trimmed_header_is_noticed_if_its_checksum_was_rewritten() {
    let mut out = trimmed(data_frame(&meta(v4()), 900), &policy(0, TrimFormat::LengthRewritten));
    out[30] ^= 1;
    assert!(matches!(parse_frame(&out, &classes(), VERIFY), Err(WireError::Checksum { .. })));
}

#[test]
fn edits() {
    for ip in [v4(), v6()] {
        let mut bytes = data_frame(&meta(ip), 64);
        assert_eq!(edit::mark_ce(&mut bytes), Ok(true));
        assert_eq!(edit::decrement_ttl(&mut bytes), Ok(63));
        let frame = parse_frame(&bytes, &classes(), VERIFY).unwrap();
        assert_eq!((frame.meta.ecn, frame.meta.ttl, frame.meta.dscp), (Ecn::Ce, 63, 8));
        let mut deaf = data_frame(&FrameMeta { ecn: Ecn::NotEct, ttl: 0, ..meta(ip) }, 64);
        let before = deaf.clone();
        assert_eq!((edit::mark_ce(&mut deaf), edit::decrement_ttl(&mut deaf)), (Ok(false), Ok(0)));
        assert_eq!(deaf, before);
    }
}

prop_compose! {
    fn any_meta()(
        macs: [[u8; 6]; 2],
        vlan in option::of((0u8..8, any::<bool>(), 0u16..1 << 12)),
        addrs in prop_oneof![
            any::<[u32; 2]>().prop_map(|[s, d]| IpAddrs::V4 { src: s.into(), dst: d.into() }),
            any::<[u128; 2]>().prop_map(|[s, d]| IpAddrs::V6 { src: s.into(), dst: d.into() }),
        ],
        dscp in (0u8..64).prop_filter("not trimmed", |d| ![16, 18].contains(d)),
        ecn: u8,
        ttl: u8,
        entropy_port: u16,
    ) -> FrameMeta {
        FrameMeta {
            src_mac: MacAddr(macs[0]),
            dst_mac: MacAddr(macs[1]),
            vlan: vlan.map(|(priority, drop_eligible, id)| VlanTag { priority, drop_eligible, id }),
            ip: addrs,
            dscp,
            ecn: Ecn::from_bits(ecn),
            ttl,
            entropy_port,
            trimmed: None,
            original_payload_len: 0,
        }
    }
}

fn with_ses(pds: impl Strategy<Value = Pds>) -> impl Strategy<Value = (Pds, Ses)> {
    pds.prop_flat_map(|pds| (Just(pds), ses_of(pds.next_header())))
}

fn bytes(len: core::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), len)
}

proptest! {
    #[test]
    fn frames_parse_back_as_they_were_emitted(
        mut meta in any_meta(),
        (pds, ses) in with_ses(any_pds()),
        payload in bytes(0..300),
        padding in bytes(0..20),
    ) {
        let mut frame = build(&meta, &pds, &ses, &payload);
        for len in 0..frame.len() {
            prop_assert!(parse_frame(&frame[..len], &classes(), VERIFY).is_err());
        }
        let headers = frame.len() - payload.len();
        let no_room = emit_headers(&mut vec![0; headers - 1], &meta, &pds, &ses, payload.len());
        prop_assert!(matches!(no_room, Err(WireError::NoRoom { .. })), "{:?}", no_room);
        frame.extend(padding);
        meta.original_payload_len = payload.len() as u32;
        let parsed = parse_frame(&frame, &classes(), VERIFY);
        prop_assert_eq!(parsed, Ok(Frame { meta, pds, ses, payload: &payload }));
        properties::frame(&frame);
    }

    /// Headers from a prefix equal headers that are assembled for each packet.
    #[test]
    fn headers_from_a_prefix_equal_emitted_headers(
        meta in any_meta(),
        (src, dst) in any::<(u32, u32)>().prop_map(|(src, dst)| (Ipv4Addr::from(src), Ipv4Addr::from(dst))),
        (pds, ses) in with_ses(any_pds()),
        other_ses in option::of(any::<u8>()),
        payload_len in prop_oneof![0usize..5000, 65_300usize..66_000],
        room in prop_oneof![Just(200usize), 0usize..200],
    ) {
        let meta = FrameMeta { vlan: None, ip: IpAddrs::V4 { src, dst }, ttl: DEFAULT_TTL, ..meta };
        // Sometimes not the header that PDS announces.
        let ses = if other_ses.is_some_and(|other| other < 32) { Ses::None } else { ses };
        let (mut each, mut behind) = (vec![0xa5; room], vec![0x5a; room]);
        let expected = emit_headers_with_ipv4_checksum(&mut each, &meta, &pds, &ses, payload_len);
        let prefix = Prefix::new(meta.src_mac, meta.dst_mac, src, dst);
        let varying = (meta.dscp << 2 | meta.ecn as u8, meta.entropy_port);
        let found = emit_headers_behind(&mut behind, &prefix, varying, &pds, &ses, payload_len);
        match expected {
            Ok(len) => {
                prop_assert_eq!(found, Ok(len));
                prop_assert_eq!(&behind[..len], &each[..len]);
            }
            Err(expected) => prop_assert!(found.is_err(), "{:?}", expected),
        }
    }

    #[test]
    fn trimmed_requests_keep_their_headers(
        meta in any_meta(),
        (request, ses) in with_ses(any_request().prop_map(Pds::Request)),
        payload in bytes(60..300),
        size in 0usize..400,
        kept: bool,
        last: bool,
    ) {
        let meta = FrameMeta { dscp: 8, ..meta };
        let mut bytes = build(&meta, &request, &ses, &payload);
        let format = FORMATS[usize::from(kept)];
        let point = if last { TrimPoint::LastHop } else { TrimPoint::Fabric };
        let whole = bytes.len();
        let udp_at = headers_len(&meta, &request, &ses) - request.encoded_len() - ses.encoded_len() - 8;
        let goal = size.max(udp_at + MIN_IP_PAYLOAD_UDP);
        match trim_frame(&mut bytes, &classes(), &TrimPolicy { size, format, point }).unwrap() {
            TrimOutcome::AlreadySmall => prop_assert!(goal >= whole),
            TrimOutcome::Trimmed(len) => {
                prop_assert!(len == goal && goal < whole);
                bytes.truncate(len);
                let frame = parse_frame(&bytes, &classes(), VERIFY).unwrap();
                prop_assert_eq!(frame.pds, request);
                let dscp = classes().dscp(point.class());
                let original_payload_len = payload.len() as u32;
                let meta = FrameMeta { dscp, trimmed: Some(point), original_payload_len, ..meta };
                prop_assert_eq!(frame.meta, meta);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn parsing_any_bytes_keeps_the_properties(bytes in bytes(0..200)) {
        properties::frame(&bytes);
    }

    #[test]
    fn any_damage_to_a_frame(
        meta in any_meta(),
        (pds, ses) in with_ses(any_pds()),
        payload in bytes(0..100),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = build(&meta, &pds, &ses, &payload);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        properties::frame(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        properties::frame(&bytes);
    }
}

/// Replays the seeds of a fuzz target; returns the number of files.
fn replay(target: &str, property: fn(&[u8])) -> usize {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    files.map(|f| property(&std::fs::read(f.unwrap().path()).unwrap())).count()
}

#[test]
fn the_fuzz_corpora_replay() {
    assert!(replay("pds", properties::pds) >= 14);
    assert!(replay("ses", properties::ses) >= 10);
    assert!(replay("frame", properties::frame) >= 8);
}
