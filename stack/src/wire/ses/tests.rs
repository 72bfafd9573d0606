//! Known values, round trips and refusals of SES headers; strategies for the frame tests.

use super::*;
use crate::wire::pds::NextHeader;
use crate::wire::pds::tests::hex;
use crate::wire::{WireError, properties};
use proptest::prelude::*;

/// Parses and emits, byte for byte.
fn check(text: &str, header: Ses) {
    let bytes = hex(text);
    assert_eq!(Ses::decode(header.next_header(), &bytes), Ok((header, &[][..])), "{text}");
    let mut out = vec![0xa5; bytes.len()];
    assert_eq!(header.emit(&mut out), Ok(bytes.len()));
    assert_eq!(out, bytes, "{text}");
}

fn standard() -> StandardRequest {
    StandardRequest {
        opcode: Opcode::READ,
        flags: RequestFlags::WHOLE_MESSAGE.with(RequestFlags::DELIVERY_COMPLETE).with(RequestFlags::RELATIVE),
        msg_id: 0x1234,
        ri_generation: 0x77,
        job_id: 0xab_cdef,
        pid_on_fep: 0x678,
        resource_index: 0x9ab,
        buffer_offset: 0xfedc_ba98_7654_3210,
        initiator: 0xfedc_ba98,
        match_bits: 0x1122_3344_5566_7788,
        placement: Placement::Start { header_data: 0xaabb_dddd_eeff_0011 },
        request_length: 0x9988_7766,
    }
}

const COMMON: &str = "77 abcdef 0678 09ab fedcba9876543210";

#[test]
fn standard_request() {
    // The bytes that a public packet generator writes.
    let som = format!("02 2b 1234 {COMMON} fedcba98 1122334455667788 aabbddddeeff0011 99887766");
    check(&som, Ses::Standard(standard()));
    let flags = standard().flags.without(RequestFlags::START_OF_MESSAGE);
    let placement = Placement::Continue { payload_len: 0x3fff, msg_offset: 0x0102_0304 };
    let later = format!("02 2a 1234 {COMMON} fedcba98 1122334455667788 00003fff01020304 99887766");
    check(&later, Ses::Standard(StandardRequest { flags, placement, ..standard() }));
}

#[test]
fn response_vector() {
    let response = Response {
        list: List::Reserved(3),
        opcode: 1,
        version: 0,
        return_code: ReturnCode(9),
        msg_id: 0x1234,
        ri_generation: 0x99,
        job_id: 0x65_4321,
        modified_length: 0x09ab_cdef,
    };
    check("c1 09 1234 99 654321 09abcdef", Ses::Response(response));
}

#[test]
fn small_and_medium_layout() {
    let s = standard();
    let small = SmallRequest {
        opcode: Opcode::WRITE,
        flags: RequestFlags::from_bits(3 << 6)
            .with(RequestFlags::INITIATOR_ERROR)
            .with(RequestFlags::HEADER_DATA),
        length: 0x3abc,
        ri_generation: s.ri_generation,
        job_id: s.job_id,
        pid_on_fep: s.pid_on_fep,
        resource_index: s.resource_index,
        buffer_offset: s.buffer_offset,
    };
    check(&format!("01 d4 3abc {COMMON}"), Ses::Small(small));
    let medium = MediumRequest {
        opcode: Opcode::TAGGED_SEND,
        flags: RequestFlags::NONE,
        length: 1,
        ri_generation: s.ri_generation,
        job_id: s.job_id,
        pid_on_fep: s.pid_on_fep,
        resource_index: s.resource_index,
        header_data_or_offset: s.buffer_offset,
        initiator: s.initiator,
        match_bits: s.match_bits,
    };
    check(&format!("09 00 0001 {COMMON} fedcba98 1122334455667788"), Ses::Medium(medium));
}

#[test]
fn responses_with_data_layout() {
    let response = ResponseWithData {
        list: List::Overflow,
        opcode: 2,
        version: 1,
        return_code: ReturnCode::OK,
        msg_id: 0x1234,
        job_id: 0xab_cdef,
        read_request_msg_id: 0x5678,
        payload_len: 0x1fff,
        modified_length: 0x0102_0304,
        msg_offset: 0x0506_0708,
    };
    check("42 41 1234 00 abcdef 5678 1fff 01020304 05060708", Ses::ResponseWithData(response));
    let small = SmallResponseWithData {
        list: List::Expected,
        opcode: 2,
        version: 0,
        return_code: ReturnCode::DROPPED,
        payload_len: 8,
        job_id: 0xab_cdef,
        original_request_psn: 0x9988_7766,
    };
    check("02 24 0008 00 abcdef 99887766", Ses::SmallResponseWithData(small));
}

#[test]
fn extension_layouts() {
    let check = |opcode, text: &str, extension: Extension| {
        let bytes = hex(text);
        assert_eq!(Extension::decode(opcode, &bytes), Ok((Some(extension), &[][..])));
        let mut out = vec![0xa5; bytes.len()];
        assert_eq!(extension.emit(&mut out), Ok(bytes.len()));
        assert_eq!(out, bytes);
        assert!(matches!(
            Extension::decode(opcode, &bytes[..bytes.len() - 1]),
            Err(WireError::Truncated { .. })
        ));
    };
    let rendezvous = RendezvousExtension {
        eager_length: 0x0102_0304,
        ri_generation: 5,
        pid_on_fep: 0xabc,
        resource_index: 0xdef,
        buffer_offset: 0x1122_3344_5566_7788,
        memory_key: 0x99aa_bbcc_ddee_ff00,
    };
    check(
        Opcode::RENDEZVOUS_SEND,
        "01020304 05 abc def 1122334455667788 99aabbccddeeff00",
        Extension::Rendezvous(rendezvous),
    );
    let atomic = AtomicExtension { op: AtomicOp(2), datatype: 7, semantic: 0x40 };
    check(Opcode::ATOMIC, "02 07 40 00", Extension::Atomic(atomic));
    let swap = CompareSwapExtension {
        atomic: AtomicExtension { op: AtomicOp::COMPARE_SWAP, ..atomic },
        compare: 1,
        swap: 0xff << 120,
    };
    check(
        Opcode::FETCHING_ATOMIC,
        "0d 07 40 00 00000000000000000000000000000001 ff000000000000000000000000000000",
        Extension::CompareSwap(swap),
    );
    assert_eq!(Extension::decode(Opcode::SEND, &[1, 2]), Ok((None, &[1, 2][..])));
    let mut out = [0; 36];
    let wrong = Extension::CompareSwap(CompareSwapExtension { atomic, ..swap });
    assert!(matches!(wrong.emit(&mut out), Err(WireError::Inconsistent { .. })));
    let wrong = Extension::Atomic(swap.atomic);
    assert!(matches!(wrong.emit(&mut out), Err(WireError::Inconsistent { .. })));
    let wide = RendezvousExtension { pid_on_fep: 0x1000, ..rendezvous };
    assert!(matches!(wide.emit(&mut out), Err(WireError::TooWide { .. })));
}

#[test]
fn invalid_headers_are_not_emitted() {
    let mut out = [0; 44];
    let mut wide = |ses: Ses| {
        let e = ses.emit(&mut out).unwrap_err();
        assert!(matches!(e, WireError::TooWide { .. } | WireError::Inconsistent { .. }), "{e}");
    };
    let s = standard();
    wide(Ses::Standard(StandardRequest { opcode: Opcode(64), ..s }));
    wide(Ses::Standard(StandardRequest { job_id: 1 << 24, ..s }));
    wide(Ses::Standard(StandardRequest { pid_on_fep: 1 << 12, ..s }));
    wide(Ses::Standard(StandardRequest { resource_index: 1 << 12, ..s }));
    let placement = Placement::Continue { payload_len: 1 << 14, msg_offset: 0 };
    wide(Ses::Standard(StandardRequest { placement, ..s }));
    let flags = s.flags.without(RequestFlags::START_OF_MESSAGE);
    wide(Ses::Standard(StandardRequest { flags, placement, ..s }));
    wide(Ses::Standard(StandardRequest { flags, ..s }));
    let r = Response {
        list: List::Expected,
        opcode: 0,
        version: 0,
        return_code: ReturnCode::OK,
        msg_id: 0,
        ri_generation: 0,
        job_id: 0,
        modified_length: 0,
    };
    wide(Ses::Response(Response { list: List::Reserved(4), ..r }));
    wide(Ses::Response(Response { list: List::Reserved(0), ..r }));
    wide(Ses::Response(Response { opcode: 64, ..r }));
    wide(Ses::Response(Response { return_code: ReturnCode(64), ..r }));
    wide(Ses::Response(Response { version: 4, ..r }));
    wide(Ses::Response(Response { job_id: 1 << 24, ..r }));
}

prop_compose! {
    fn any_standard()(
        opcode in 0u8..64,
        flags in any::<u8>().prop_map(RequestFlags::from_bits),
        numbers: (u16, u8, u64, u32, u64, u32),
        job_id in 0u32..1 << 24,
        pid_on_fep in 0u16..1 << 12,
        resource_index in 0u16..1 << 12,
        place: (u64, u16, u32),
    ) -> StandardRequest {
        let (msg_id, ri_generation, buffer_offset, initiator, match_bits, request_length) = numbers;
        let placement = if flags.has(RequestFlags::START_OF_MESSAGE) {
            Placement::Start { header_data: place.0 }
        } else {
            Placement::Continue { payload_len: place.1 & 0x3fff, msg_offset: place.2 }
        };
        StandardRequest {
            opcode: Opcode(opcode), flags, msg_id, ri_generation, job_id, pid_on_fep, resource_index,
            buffer_offset, initiator, match_bits, placement, request_length,
        }
    }
}

fn list() -> impl Strategy<Value = List> {
    prop_oneof![Just(List::Expected), Just(List::Overflow), (2u8..4).prop_map(List::Reserved)]
}

/// Strategy for a header of kind `next`.
pub(crate) fn ses_of(next: NextHeader) -> BoxedStrategy<Ses> {
    let response = (list(), 0u8..64, 0u8..4, 0u8..64, 0u32..1 << 24, any::<(u16, u8, u32, u16, u32)>());
    match next {
        NextHeader::None => Just(Ses::None).boxed(),
        NextHeader::RequestStandard => any_standard().prop_map(Ses::Standard).boxed(),
        NextHeader::RequestSmall => (any_standard(), 0u16..1 << 14)
            .prop_map(|(s, length)| {
                Ses::Small(SmallRequest {
                    opcode: s.opcode,
                    flags: s.flags,
                    length,
                    ri_generation: s.ri_generation,
                    job_id: s.job_id,
                    pid_on_fep: s.pid_on_fep,
                    resource_index: s.resource_index,
                    buffer_offset: s.buffer_offset,
                })
            })
            .boxed(),
        NextHeader::RequestMedium => (any_standard(), 0u16..1 << 14)
            .prop_map(|(s, length)| {
                Ses::Medium(MediumRequest {
                    opcode: s.opcode,
                    flags: s.flags,
                    length,
                    ri_generation: s.ri_generation,
                    job_id: s.job_id,
                    pid_on_fep: s.pid_on_fep,
                    resource_index: s.resource_index,
                    header_data_or_offset: s.buffer_offset,
                    initiator: s.initiator,
                    match_bits: s.match_bits,
                })
            })
            .boxed(),
        NextHeader::Response => response
            .prop_map(
                |(list, opcode, version, code, job_id, (msg_id, ri_generation, modified_length, ..))| {
                    let return_code = ReturnCode(code);
                    Ses::Response(Response {
                        list,
                        opcode,
                        version,
                        return_code,
                        msg_id,
                        ri_generation,
                        job_id,
                        modified_length,
                    })
                },
            )
            .boxed(),
        NextHeader::ResponseData => response
            .prop_map(
                |(list, opcode, version, code, job_id, (msg_id, _, modified_length, len, msg_offset))| {
                    Ses::ResponseWithData(ResponseWithData {
                        list,
                        opcode,
                        version,
                        return_code: ReturnCode(code),
                        msg_id,
                        job_id,
                        read_request_msg_id: !msg_id,
                        payload_len: len & 0x3fff,
                        modified_length,
                        msg_offset,
                    })
                },
            )
            .boxed(),
        NextHeader::ResponseDataSmall => response
            .prop_map(|(list, opcode, version, code, job_id, (_, _, _, len, original_request_psn))| {
                let (return_code, payload_len) = (ReturnCode(code), len & 0x3fff);
                Ses::SmallResponseWithData(SmallResponseWithData {
                    list,
                    opcode,
                    version,
                    return_code,
                    payload_len,
                    job_id,
                    original_request_psn,
                })
            })
            .boxed(),
    }
}

fn any_ses() -> impl Strategy<Value = Ses> {
    (0u8..7).prop_flat_map(|bits| ses_of(NextHeader::from_bits(bits).unwrap()))
}

proptest! {
    #[test]
    fn headers_parse_back_as_they_were_emitted(header in any_ses(), tail in proptest::collection::vec(any::<u8>(), 0..9)) {
        let mut bytes = vec![0xa5; header.encoded_len()];
        prop_assert_eq!(header.emit(&mut bytes), Ok(bytes.len()));
        for len in 0..bytes.len() {
            let short = Ses::decode(header.next_header(), &bytes[..len]);
            prop_assert!(matches!(short, Err(WireError::Truncated { .. })), "{} bytes", len);
        }
        bytes.extend(&tail);
        prop_assert_eq!(Ses::decode(header.next_header(), &bytes), Ok((header, &tail[..])));
    }

    #[test]
    fn parsing_any_bytes_keeps_the_properties(bytes in proptest::collection::vec(any::<u8>(), 0..90)) {
        properties::ses(&bytes);
    }

    #[test]
    fn parsing_any_bytes_of_an_opcode_with_extension_keeps_the_properties(
        opcode in 3u8..15,
        mut bytes in proptest::collection::vec(any::<u8>(), 45..90),
    ) {
        bytes[0] = 3;
        bytes[1] = opcode;
        properties::ses(&bytes);
    }
}
