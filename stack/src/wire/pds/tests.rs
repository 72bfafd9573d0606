//! Known values, round trips and refusals of PDS headers; strategies for the frame tests.

use weft_cc::Span;

use super::*;
use crate::wire::properties;
use crate::wire::{HeaderName, WireError};
use proptest::option;
use proptest::prelude::*;

pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    assert!(digits.len().is_multiple_of(2), "{text}");
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Parses and emits, byte for byte.
fn check(text: &str, header: Pds) {
    let bytes = hex(text);
    assert_eq!(Pds::decode(&bytes), Ok((header, &[][..])), "{text}");
    let mut out = vec![0xa5; bytes.len()];
    assert_eq!(header.emit(&mut out), Ok(bytes.len()));
    assert_eq!(out, bytes, "{text}");
}

fn request() -> Request {
    Request {
        mode: DeliveryMode::Rud,
        next: NextHeader::RequestStandard,
        retx: true,
        ack_request: false,
        clear_psn_offset: 0x1234,
        psn: Psn(0x9876_5432),
        spdcid: PdcId(0x3456),
        destination: Destination::Pdc(PdcId(0x9abc)),
        vendor: VendorFlags::NONE,
        cc: None,
    }
}

// The vectors of this file come from a public packet generator: the bytes it puts right after the UDP header.

#[test]
fn request_vectors() {
    let syn = Destination::Syn { use_reserved: true, psn_offset: 0x876 };
    let cc = Some(RequestCc { ccc_id: 0x77, credit_target: 0x88_7766 });
    let rod = Request { mode: DeliveryMode::Rod, ..request() };
    check("1190 1234 98765432 3456 9abc", Pds::Request(request()));
    check("1194 1234 98765432 3456 8876", Pds::Request(Request { destination: syn, ..request() }));
    check("6990 1234 98765432 3456 9abc 77 887766", Pds::Request(Request { cc, ..request() }));
    check("1990 1234 98765432 3456 9abc", Pds::Request(rod));
    check("1994 1234 98765432 3456 8876", Pds::Request(Request { destination: syn, ..rod }));
    check("7190 1234 98765432 3456 9abc 77 887766", Pds::Request(Request { cc, ..rod }));
}

fn ack() -> Ack {
    Ack {
        next: NextHeader::Response,
        ecn: true,
        retx: true,
        request: AckRequest::Clear,
        trigger: AckTrigger::Psn(0x8642_u16 as i16),
        cack_psn: Psn(0x2468_ace0),
        spdcid: PdcId(0x3456),
        dpdcid: PdcId(0x789a),
        cc: None,
    }
}

#[test]
fn ack_vectors() {
    check("3a32 8642 2468ace0 3456 789a", Pds::Ack(ack()));
    let nscc = AckCc {
        flags: 0xf,
        mpr: 0x87,
        sack_psn_offset: 0x6789,
        sack_bitmap: 0x1234_5678_9abc_def0,
        state: CcState::Nscc(NsccState {
            service_time: 0x99aa,
            restore_cwnd: true,
            rcv_cwnd_pend: 0x7f,
            rcvd_bytes: 0x88_7766,
            ooo_count: 0x8765,
        }),
    };
    check(
        "4232 2121 2468ace0 3456 789a 0f 87 6789 123456789abcdef0 99aa ff 887766 8765",
        Pds::Ack(Ack { trigger: AckTrigger::Psn(0x2121), cc: Some(nscc), ..ack() }),
    );
    let credit = AckCc {
        sack_psn_offset: 0x9988_u16 as i16,
        state: CcState::Credit { credit: 0x12_3456, ooo_count: 0x8765 },
        ..nscc
    };
    check(
        "4232 9876 2468ace0 3456 789a 1f 87 9988 123456789abcdef0 123456 000000 8765",
        Pds::Ack(Ack { trigger: AckTrigger::Psn(0x9876_u16 as i16), cc: Some(credit), ..ack() }),
    );
    let extended = AckCc { state: CcState::Extended { kind: 0xe, bits: (0xfedc << 112 | 1).into() }, ..nscc };
    check(
        "4a3a 2121 2468ace0 3456 789a ef 87 6789 123456789abcdef0 fedc0000000000000000000000000001",
        Pds::Ack(Ack { trigger: AckTrigger::Probe(0x2121), cc: Some(extended), ..ack() }),
    );
}

#[test]
fn other_vectors() {
    let nack = Nack {
        next: NextHeader::Response,
        ecn: true,
        retx: true,
        rudi: true,
        code: NackCode::PDC_MODE_MISMATCH,
        vendor_code: 0x87,
        psn: Psn(0x9988_7766),
        spdcid: PdcId(0x3456),
        dpdcid: PdcId(0x789a),
        payload: 0x5678_9abc,
        ccx: None,
    };
    check("5238 16 87 99887766 3456 789a 56789abc", Pds::Nack(Nack { ..nack }));
    let ccx = Some(NackCcx { kind: 0xf, bits: (0x0123 << 108 | 7).into() });
    check(
        "6238 16 87 99887766 3456 789a 56789abc f0123000000000000000000000000007",
        Pds::Nack(Nack { ccx, ..nack }),
    );
    check("3180 0000", Pds::Uud(Uud { next: NextHeader::RequestStandard }));
    let next = NextHeader::RequestStandard;
    let rudi = Rudi { response: false, next, ecn: true, retx: false, pkt_id: 0x9988_7766 };
    check("21a0 0000 99887766", Pds::Rudi(rudi));
    let next = NextHeader::Response;
    check("2a20 0000 99887766", Pds::Rudi(Rudi { response: true, next, ..rudi }));
}

/// Weft's own code points (docs/wire.md, "Vendor code points").
#[test]
fn vendor_layout() {
    use VendorFlags as Flags;
    let all = [Flags::DELAY_ECHO, Flags::CONGESTED_SENDER, Flags::UNSCHEDULED, Flags::CODED];
    let texts = ["11d0", "11b0", "1192", "1191"];
    for (flag, text) in all.into_iter().zip(texts) {
        let flagged = Request { vendor: flag, ..request() };
        check(&format!("{text} 1234 98765432 3456 9abc"), Pds::Request(flagged));
    }
    let vendor = all.into_iter().fold(Flags::NONE, Flags::with);
    let cc = Some(RequestCc { ccc_id: 0x77, credit_target: 0x88_7766 });
    check("69f3 1234 98765432 3456 9abc 77 887766", Pds::Request(Request { vendor, cc, ..request() }));
    assert!(vendor.has(Flags::CODED) && !Flags::NONE.has(Flags::CODED));

    let echo = DelayEcho { rcvd_bytes: 0x88_7766, hops: 5, remote_queueing: 0x1234, ooo_count: 0x8765 };
    let answer = Ack {
        next: NextHeader::None,
        ecn: true,
        retx: false,
        request: AckRequest::None,
        trigger: AckTrigger::Psn(0x2121),
        cack_psn: Psn(0x2468_ace0),
        spdcid: PdcId(0x3456),
        dpdcid: PdcId(0x789a),
        cc: Some(AckCc {
            flags: 0,
            mpr: 0x87,
            sack_psn_offset: 0x6789,
            sack_bitmap: 0x1234_5678_9abc_def0,
            state: CcState::DelayEcho(echo),
        }),
    };
    check("4020 2121 2468ace0 3456 789a f0 87 6789 123456789abcdef0 887766 05 1234 8765", Pds::Ack(answer));
    let nscc = NsccState { rcvd_bytes: 0x88_7766, ooo_count: 0x8765, ..NsccState::default() };
    let queued = Some(Span::from_ns(0x1234 * 32));
    assert_eq!(DelayEcho::of(&nscc, 5, queued), echo);
    assert_eq!(echo.queued(), queued);
    assert_eq!(DelayEcho::of(&nscc, 0, None).queued(), None);
    assert_eq!(DelayEcho::of(&nscc, 0, Some(Span::MAX)).remote_queueing, 0xfffe);

    let nack = Nack {
        next: NextHeader::None,
        ecn: false,
        retx: false,
        rudi: false,
        code: NackCode::TRIMMED,
        vendor_code: 0,
        psn: Psn(0),
        spdcid: PdcId(0x3456),
        dpdcid: PdcId(0x789a),
        payload: 0,
        ccx: None,
    };
    assert_eq!(BlockLoss::of(&nack), None);
    let loss = BlockLoss { first: Psn(u32::MAX), missing: 0b1000_0101 };
    let nack = loss.nack(&nack);
    check("5000 1a 01 ffffffff 3456 789a 00000085", Pds::Nack(nack));
    assert_eq!(BlockLoss::of(&nack), Some(loss));
    assert_eq!(loss.psns().collect::<Vec<_>>(), [Psn(u32::MAX), Psn(1), Psn(6)]);
    assert_eq!(BlockLoss::of(&Nack { vendor_code: 2, ..nack }), None, "another vendor's");
}

#[test]
fn control_and_security_layout() {
    let probe = Control {
        kind: ControlKind::Probe,
        rod: false,
        retx: false,
        ack_request: true,
        probe_opaque: 0xbeef,
        psn: Psn(0x0102_0304),
        spdcid: PdcId(0x1122),
        destination: Destination::Pdc(PdcId(0x3344)),
        payload: 0x5566_7788,
    };
    check("5b08 beef 01020304 1122 3344 55667788", Pds::Control(probe));
    let noop = Control { kind: ControlKind::Noop, rod: true, ..probe };
    check("5828 beef 01020304 1122 3344 55667788", Pds::Control(noop));
    let with_isrod = hex("5b28 beef 01020304 1122 3344 55667788");
    assert_eq!(Pds::decode(&with_isrod).unwrap().0, Pds::Control(probe), "ISROD of a probe is ignored");
    let refused = Pds::Control(Control { rod: true, ..probe }).emit(&mut [0; 16]);
    assert!(matches!(refused, Err(WireError::Inconsistent { offset: 1, .. })));
    let destination = Destination::Syn { use_reserved: false, psn_offset: 0xabc };
    let credit = Control { kind: ControlKind::Credit, destination, payload: 0x12_3456, ..probe };
    check("5b8c beef 01020304 1122 0abc 00123456", Pds::Control(credit));
    let tss = Tss { an: true, sdi: 0xab_cdef, ssi: None, epoch: 0x1234, counter: 0x5678_9abc_def0 };
    check("09 abcdef 1234 56789abcdef0", Pds::Tss(tss));
    check("0d abcdef 99887766 1234 56789abcdef0", Pds::Tss(Tss { ssi: Some(0x9988_7766), ..tss }));
}

#[test]
fn a_credit_keeps_its_24_bits() {
    let bytes = hex("5b80 0000 00000000 0001 0002 ff123456");
    let (Pds::Control(cp), _) = Pds::decode(&bytes).unwrap() else { panic!() };
    assert_eq!(cp.payload, 0x12_3456);
    let wide = Control { payload: 1 << 24, ..cp };
    assert!(matches!(wide.emit(&mut [0; 16]), Err(WireError::TooWide { bits: 24, .. })));
}

#[test]
fn undefined_values_are_refused() {
    let refused = |text: &str, header: HeaderName| match Pds::decode(&hex(text)) {
        Err(WireError::Unexpected { header: found, .. }) => assert_eq!(found, header, "{text}"),
        other => panic!("{text}: {other:?}"),
    };
    let tail = "0000 00000000 0001 0002 00000000";
    for kind in [0u16, 15, 16, 31] {
        refused(&format!("{:04x} {tail}", kind << 11), HeaderName::PdsPrologue);
    }
    for next in 7u16..16 {
        refused(&format!("{:04x} {tail}", 2 << 11 | next << 7), HeaderName::Request);
        refused(&format!("{:04x} {tail}", 7 << 11 | next << 7), HeaderName::Ack);
        refused(&format!("{:04x} {tail}", 6 << 11 | next << 7), HeaderName::Uud);
    }
    for control in 10u16..16 {
        refused(&format!("{:04x} {tail}", 11 << 11 | control << 7), HeaderName::Control);
    }
    refused(&format!("{:04x} {tail}", 7 << 11 | 0x40), HeaderName::Ack);
}

#[test]
fn reserved_bits_are_ignored_and_written_zero() {
    let (plain, _) = Pds::decode(&hex("1190 1234 98765432 3456 9abc")).map(|(h, r)| (h, r.len())).unwrap();
    let (noisy, _) = Pds::decode(&hex("11f3 1234 98765432 3456 9abc")).map(|(h, r)| (h, r.len())).unwrap();
    // All reserved flags of a request are weft's own.
    let Pds::Request(flagged) = noisy else { panic!("{noisy:?}") };
    assert_eq!(Pds::Request(Request { vendor: VendorFlags::NONE, ..flagged }), plain);
    let bytes = hex("1104 0000 00000000 0001 f001");
    let (Pds::Request(syn), _) = Pds::decode(&bytes).unwrap() else { panic!() };
    assert_eq!(syn.destination, Destination::Syn { use_reserved: true, psn_offset: 1 });
}

#[test]
fn wide_values_are_refused() {
    let mut out = [0; 64];
    let mut wide = |header: Pds| {
        let e = header.emit(&mut out).unwrap_err();
        assert!(matches!(e, WireError::TooWide { .. } | WireError::Inconsistent { .. }), "{e}");
    };
    let destination = Destination::Syn { use_reserved: false, psn_offset: 0x1000 };
    wide(Pds::Request(Request { destination, ..request() }));
    wide(Pds::Request(Request { cc: Some(RequestCc { ccc_id: 0, credit_target: 1 << 24 }), ..request() }));
    let cc = |flags, state| {
        let cc = AckCc { flags, mpr: 0, sack_psn_offset: 0, sack_bitmap: 0, state };
        Pds::Ack(Ack { cc: Some(cc), ..ack() })
    };
    let nscc = NsccState::default();
    wide(cc(16, CcState::Nscc(nscc)));
    wide(cc(0, CcState::Nscc(NsccState { rcv_cwnd_pend: 0x80, ..nscc })));
    wide(cc(0, CcState::Nscc(NsccState { rcvd_bytes: 1 << 24, ..nscc })));
    wide(cc(0, CcState::Credit { credit: 1 << 24, ooo_count: 0 }));
    wide(cc(0, CcState::Other { kind: 16, bits: 0 }));
    wide(cc(0, CcState::Other { kind: 0, bits: 0 }));
    wide(cc(0, CcState::Other { kind: 1, bits: 0 }));
    wide(cc(0, CcState::Extended { kind: 16, bits: Bits128::default() }));
    let tss = Tss { an: false, sdi: 0, ssi: None, epoch: 0, counter: 0 };
    wide(Pds::Tss(Tss { sdi: 1 << 24, ..tss }));
    wide(Pds::Tss(Tss { counter: 1 << 48, ..tss }));
}

#[test]
fn views_of_another_type_are_refused() {
    let bytes = hex("3180 0000");
    let view = PdsView::new_checked(&bytes).unwrap();
    assert!(matches!(Request::parse(&view), Err(WireError::Unexpected { found: 6, .. })));
    assert!(Ack::parse(&view).is_err() && Nack::parse(&view).is_err() && Control::parse(&view).is_err());
    assert!(Rudi::parse(&view).is_err() && Tss::parse(&view).is_err());
}

#[test]
fn psns_wrap_around() {
    let top = Psn(u32::MAX);
    assert_eq!(top.plus(1), Psn(0));
    assert_eq!(Psn(0).minus(1), top);
    assert_eq!(top.offset(-1), Psn(u32::MAX - 1));
    assert!(top.is_before(Psn(0)) && !Psn(0).is_before(top) && !top.is_before(top));
    assert_eq!(Psn(5).distance(top), 6);
    assert_eq!(Psn(3).circular_cmp(Psn(3)), Ordering::Equal);
}

#[test]
fn headers_stay_small() {
    // They are copied along the fast path; the 128 bits of ACK_CCX determine their size.
    assert!(size_of::<Request>() <= 32 && size_of::<Pds>() <= 64, "{}", size_of::<Pds>());
}

fn psn() -> impl Strategy<Value = Psn> {
    any::<u32>().prop_map(Psn)
}

fn pdc() -> impl Strategy<Value = PdcId> {
    any::<u16>().prop_map(PdcId)
}

fn next() -> impl Strategy<Value = NextHeader> {
    (0u8..7).prop_map(|bits| NextHeader::from_bits(bits).unwrap())
}

fn destination() -> impl Strategy<Value = Destination> {
    prop_oneof![
        pdc().prop_map(Destination::Pdc),
        (any::<bool>(), 0u16..0x1000)
            .prop_map(|(use_reserved, psn_offset)| Destination::Syn { use_reserved, psn_offset }),
    ]
}

prop_compose! {
    pub(crate) fn any_request()(
        rod: bool,
        next in next(),
        flags: [bool; 2],
        vendor in 0u16..0x80,
        clear_psn_offset: i16,
        psn in psn(),
        spdcid in pdc(),
        destination in destination(),
        cc in option::of((any::<u8>(), 0u32..1 << 24)),
    ) -> Request {
        Request {
            mode: if rod { DeliveryMode::Rod } else { DeliveryMode::Rud },
            next,
            retx: flags[0],
            ack_request: flags[1],
            clear_psn_offset,
            psn,
            spdcid,
            destination,
            vendor: VendorFlags::from_prologue(vendor),
            cc: cc.map(|(ccc_id, credit_target)| RequestCc { ccc_id, credit_target }),
        }
    }
}

fn cc_state() -> impl Strategy<Value = CcState> {
    let nscc = (any::<(u16, bool)>(), 0u8..0x80, 0u32..1 << 24, any::<u16>());
    let nscc = nscc.prop_map(|((service_time, restore_cwnd), rcv_cwnd_pend, rcvd_bytes, ooo_count)| {
        CcState::Nscc(NsccState { service_time, restore_cwnd, rcv_cwnd_pend, rcvd_bytes, ooo_count })
    });
    prop_oneof![
        nscc,
        (0u32..1 << 24, any::<u16>()).prop_map(|(credit, ooo_count)| CcState::Credit { credit, ooo_count }),
        any::<u64>().prop_map(|bits| CcState::DelayEcho(DelayEcho::from_bits(bits))),
        (2u8..15, any::<u64>()).prop_map(|(kind, bits)| CcState::Other { kind, bits }),
        (0u8..16, any::<u128>()).prop_map(|(kind, bits)| CcState::Extended { kind, bits: bits.into() }),
    ]
}

prop_compose! {
    fn ack_cc()(
        flags in 0u8..16,
        mpr: u8,
        sack_psn_offset: i16,
        sack_bitmap: u64,
        state in cc_state(),
    ) -> AckCc {
        AckCc { flags, mpr, sack_psn_offset, sack_bitmap, state }
    }
}

prop_compose! {
    fn any_ack()(
        next in next(),
        flags: [bool; 3],
        request in 0usize..4,
        word: u16,
        cack_psn in psn(),
        ids in (pdc(), pdc()),
        cc in option::of(ack_cc()),
    ) -> Ack {
        use AckRequest::{Clear, Close, None, Reserved};
        Ack {
            next,
            ecn: flags[0],
            retx: flags[1],
            request: [None, Clear, Close, Reserved][request],
            trigger: if flags[2] { AckTrigger::Probe(word) } else { AckTrigger::Psn(word as i16) },
            cack_psn,
            spdcid: ids.0,
            dpdcid: ids.1,
            cc,
        }
    }
}

prop_compose! {
    fn any_nack()(
        next in next(),
        flags: [bool; 3],
        codes: [u8; 2],
        psn in psn(),
        ids in (pdc(), pdc()),
        payload: u32,
        ccx in option::of((0u8..16, any::<u128>())),
    ) -> Nack {
        Nack {
            next,
            ecn: flags[0],
            retx: flags[1],
            rudi: flags[2],
            code: NackCode(codes[0]),
            vendor_code: codes[1],
            psn,
            spdcid: ids.0,
            dpdcid: ids.1,
            payload,
            ccx: ccx.map(|(kind, bits)| NackCcx { kind, bits: (bits >> 4).into() }),
        }
    }
}

prop_compose! {
    fn any_control()(
        kind in 0u8..10,
        flags: [bool; 3],
        probe_opaque: u16,
        psn in psn(),
        spdcid in pdc(),
        destination in destination(),
        payload: u32,
    ) -> Control {
        let kind = ControlKind::from_bits(kind).unwrap();
        let payload = if kind == ControlKind::Credit { payload >> 8 } else { payload };
        let [rod, retx, ack_request] = flags;
        let rod = rod && kind.states_mode();
        Control { kind, rod, retx, ack_request, probe_opaque, psn, spdcid, destination, payload }
    }
}

pub(crate) fn any_pds() -> impl Strategy<Value = Pds> {
    let rudi =
        (any::<[bool; 3]>(), next(), any::<u32>()).prop_map(|([response, ecn, retx], next, pkt_id)| {
            Pds::Rudi(Rudi { response, next, ecn, retx, pkt_id })
        });
    let tss = (any::<bool>(), 0u32..1 << 24, any::<Option<u32>>(), any::<u16>(), 0u64..1 << 48)
        .prop_map(|(an, sdi, ssi, epoch, counter)| Pds::Tss(Tss { an, sdi, ssi, epoch, counter }));
    prop_oneof![
        any_request().prop_map(Pds::Request),
        any_ack().prop_map(Pds::Ack),
        any_nack().prop_map(Pds::Nack),
        any_control().prop_map(Pds::Control),
        next().prop_map(|next| Pds::Uud(Uud { next })),
        rudi,
        tss,
    ]
}

proptest! {
    #[test]
    fn headers_parse_back_as_they_were_emitted(header in any_pds(), tail in proptest::collection::vec(any::<u8>(), 0..9)) {
        let mut bytes = vec![0xa5; header.encoded_len()];
        prop_assert_eq!(header.emit(&mut bytes), Ok(bytes.len()));
        for len in 0..bytes.len() {
            let truncated = matches!(Pds::decode(&bytes[..len]), Err(WireError::Truncated { .. }));
            prop_assert!(truncated, "{} bytes", len);
        }
        bytes.extend(&tail);
        prop_assert_eq!(Pds::decode(&bytes), Ok((header, &tail[..])));
    }

    #[test]
    fn parsing_any_bytes_keeps_the_properties(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
        properties::pds(&bytes);
    }

    #[test]
    fn parsing_any_bytes_of_a_defined_type_keeps_the_properties(kind in 1u8..15, mut bytes in proptest::collection::vec(any::<u8>(), 40..90)) {
        bytes[0] = kind << 3 | bytes[0] & 7;
        properties::pds(&bytes);
    }

    #[test]
    fn psn_arithmetic_is_circular(a in psn(), n: u32, d in -0x7fff_ffffi32..=0x7fff_ffff) {
        prop_assert_eq!(a.plus(n).minus(n), a);
        prop_assert_eq!(a.offset(d).distance(a), d);
        prop_assert_eq!(a.distance(a.offset(d)), -d);
        prop_assert_eq!(a.offset(d).is_before(a), d < 0);
        prop_assert_eq!(a.offset(d).circular_cmp(a), d.cmp(&0));
        prop_assert_eq!(a.offset(d).circular_cmp(a), a.circular_cmp(a.offset(d)).reverse());
    }
}
