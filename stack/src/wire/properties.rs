//! Properties that hold for arbitrary bytes. Property tests and fuzz targets share these functions.

use super::edit;
use super::frame::{
    ChecksumFill, ChecksumPolicy, DscpClasses, Frame, TrimFormat, TrimOutcome, TrimPoint, TrimPolicy,
    emit_headers, finish_checksums, headers_len, parse_delivery, parse_frame, trim_frame,
};
use super::pds::{NextHeader, PacketType, Pds};
use super::ses::{Extension, Ses};
use super::{WireError, edit::mark_ce};
use crate::packet::Packet;

/// A PDS header that parses is emitted to the same length and to bytes that parse equal; emitting into a shorter
/// buffer fails.
pub fn pds(bytes: &[u8]) {
    delivery(bytes);
    let Ok((header, rest)) = Pds::decode(bytes) else { return };
    let mut out = [0xa5; PacketType::AckCcx.header_len()];
    let n = header.emit(&mut out).expect("a header that was parsed can be emitted");
    assert_eq!((n, header.encoded_len()), (bytes.len() - rest.len(), n));
    assert_eq!(Pds::decode(&out[..n]), Ok((header, &[][..])));
    for room in 0..n {
        assert!(matches!(header.emit(&mut out[..room]), Err(WireError::NoRoom { .. })));
    }
}

/// Parsing everything after UDP in one call gives the same result as parsing the headers one by one.
fn delivery(bytes: &[u8]) {
    let one_by_one = Pds::decode(bytes).and_then(|(pds, rest)| {
        let (ses, payload) = Ses::decode(pds.next_header(), rest)?;
        Ok((pds, ses, payload))
    });
    let Packet { mut pds, mut ses, .. } = Packet::BLANK;
    let at_once = parse_delivery(bytes, &mut pds, &mut ses).map(|payload| (pds, ses, payload));
    assert_eq!(at_once, one_by_one);
}

/// As [`pds`], for SES and its extensions; the first byte chooses the header.
pub fn ses(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let Some(next) = NextHeader::from_bits(choice & 7) else { return };
    let Ok((header, rest)) = Ses::decode(next, bytes) else { return };
    let mut out = [0xa5; NextHeader::RequestStandard.header_len()];
    let n = header.emit(&mut out).expect("a header that was parsed can be emitted");
    assert_eq!((n, header.encoded_len()), (bytes.len() - rest.len(), n));
    assert_eq!(Ses::decode(next, &out[..n]), Ok((header, &[][..])));
    for room in 0..n {
        assert!(matches!(header.emit(&mut out[..room]), Err(WireError::NoRoom { .. })));
    }
    if let Ses::Standard(request) = header {
        let Ok((Some(extension), payload)) = Extension::decode(request.opcode, rest) else { return };
        let n = extension.emit(&mut out).expect("an extension that was parsed can be emitted");
        assert_eq!((n, extension.encoded_len()), (rest.len() - payload.len(), n));
        assert_eq!(Extension::decode(request.opcode, &out[..n]), Ok((Some(extension), &[][..])));
    }
}

/// A frame that parses is emitted to bytes that parse equal. Trimming or editing arbitrary bytes does no harm, and a
/// frame that parses still does so, with the same contents.
pub fn frame(bytes: &[u8]) {
    let classes = DscpClasses::default();
    for policy in [ChecksumPolicy::VERIFY, ChecksumPolicy::OFFLOADED] {
        let parsed = parse_frame(bytes, &classes, policy);
        if let Ok(frame) = &parsed {
            re_emits(frame, &classes);
        }
        for format in [TrimFormat::LengthRewritten, TrimFormat::LengthKept] {
            for (size, point) in [(0, TrimPoint::Fabric), (128, TrimPoint::LastHop)] {
                let trim = TrimPolicy { size, format, point };
                trims(bytes, parsed.as_ref().ok(), &classes, policy, &trim);
            }
        }
        edits(bytes, parsed.ok(), &classes, policy);
    }
}

fn re_emits(frame: &Frame<'_>, classes: &DscpClasses) {
    let at = headers_len(&frame.meta, &frame.pds, &frame.ses);
    let mut out = vec![0xa5; at + frame.payload.len()];
    let n = emit_headers(&mut out, &frame.meta, &frame.pds, &frame.ses, frame.payload.len());
    assert_eq!(n, Ok(at));
    out[at..].copy_from_slice(frame.payload);
    finish_checksums(&mut out, ChecksumFill::default()).expect("a frame just emitted");
    assert_eq!(parse_frame(&out, classes, ChecksumPolicy::VERIFY).as_ref(), Ok(frame));
}

fn trims(
    bytes: &[u8],
    before: Option<&Frame<'_>>,
    classes: &DscpClasses,
    checksums: ChecksumPolicy,
    policy: &TrimPolicy,
) {
    let mut cut = bytes.to_vec();
    let Ok(TrimOutcome::Trimmed(len)) = trim_frame(&mut cut, classes, policy) else {
        assert_eq!(cut, bytes);
        return;
    };
    assert!(len < bytes.len());
    cut.truncate(len);
    assert_eq!(trim_frame(&mut cut.clone(), classes, policy), Ok(TrimOutcome::AlreadyTrimmed));
    let Some(before) = before else { return };
    let after = parse_frame(&cut, classes, checksums);
    if before.pds.encoded_len() > 16 {
        // Headers longer than a request's may be cut by trimming; the property is only that nothing panics.
        return;
    }
    let after = after.expect("a trimmed frame with its PDS header");
    assert_eq!(after.pds, before.pds);
    assert_eq!(after.payload, []);
    assert!(after.ses == before.ses || after.ses == Ses::None);
    let mut meta = before.meta;
    meta.dscp = classes.dscp(policy.point.class());
    meta.trimmed = Some(policy.point);
    assert_eq!(after.meta, meta);
}

fn edits(bytes: &[u8], before: Option<Frame<'_>>, classes: &DscpClasses, checksums: ChecksumPolicy) {
    let mut out = bytes.to_vec();
    let edited = mark_ce(&mut out).and(edit::decrement_ttl(&mut out)).and(edit::set_dscp(&mut out, 46));
    let Some(mut frame) = before else { return };
    edited.expect("a frame that parses can be edited");
    frame.meta.ttl = frame.meta.ttl.saturating_sub(1);
    if frame.meta.ecn != super::ip::Ecn::NotEct {
        frame.meta.ecn = super::ip::Ecn::Ce;
    }
    if frame.meta.trimmed.is_none() {
        frame.meta.dscp = 46;
        assert_eq!(parse_frame(&out, classes, checksums), Ok(frame));
    }
}
