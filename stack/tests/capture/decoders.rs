//! Decoders of captures that share no code with weft: tshark for Ethernet, IP and UDP, and `decode_uet.py`, written
//! from docs/wire.md, for PDS and SES. Their output is compared with that of weft's own decoder.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use weft_stack::wire::frame::{ChecksumPolicy, DscpClasses, Frame, IpAddrs, TrimPoint, parse_frame};
use weft_stack::wire::pds::{
    Ack, AckRequest, AckTrigger, CcState, Control, DeliveryMode, Destination, Nack, Pds, Request,
};
use weft_stack::wire::ses::{List, Placement, RequestFlags, Ses};

use super::capture::read_capture;

/// Fails unless both decoders agree with weft's own about every frame of the capture. A decoder that is not installed
/// is skipped, except in continuous integration.
pub(crate) fn assert_decoders_agree(capture: &Path) {
    let frames = read_capture(capture);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decode_uet.py");
    let path = capture.to_str().unwrap();
    if let Some(text) = output("python3", &[script.to_str().unwrap(), path]) {
        compare(&frames, &text, |frame| uet_line(&parsed(frame)));
    }
    let mut arguments = vec!["-r", path, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
    arguments.extend(["-T", "fields", "-E", "separator=,", "-E", "occurrence=f"]);
    arguments.extend(TSHARK_FIELDS.iter().flat_map(|field| ["-e", field]));
    if let Some(text) = output("tshark", &arguments) {
        // Later versions print flags as words.
        compare(&frames, &text.replace("True", "1"), tshark_line);
    }
}

/// The output of `program`; `None` if it is not installed.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(arguments).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            crate::skipped::skipped(&format!("{program} is not installed (scripts/setup.sh does it)"));
            return None;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn compare(frames: &[Vec<u8>], text: &str, ours: impl Fn(&[u8]) -> String) {
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), frames.len(), "{text}");
    for (n, (frame, theirs)) in frames.iter().zip(lines).enumerate() {
        assert_eq!(ours(frame), theirs, "frame {n}: ours on the left");
    }
}

fn parsed(frame: &[u8]) -> Frame<'_> {
    parse_frame(frame, &DscpClasses::default(), ChecksumPolicy::VERIFY).unwrap()
}

const TSHARK_FIELDS: [&str; 25] = [
    "eth.src",
    "eth.dst",
    "vlan.id",
    "vlan.priority",
    "ip.src",
    "ip.dst",
    "ip.dsfield.dscp",
    "ip.dsfield.ecn",
    "ip.ttl",
    "ip.id",
    "ip.flags.df",
    "ip.proto",
    "ip.len",
    "ip.checksum.status",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.tclass.dscp",
    "ipv6.tclass.ecn",
    "ipv6.hlim",
    "ipv6.flow",
    "ipv6.plen",
    "udp.srcport",
    "udp.dstport",
    "udp.length",
    "udp.checksum.status",
];

const GOOD: u8 = 1;
const BAD: u8 = 0;
/// tshark's value for a truncated datagram, whose checksum covers bytes that are gone.
const UNVERIFIED: u8 = 2;

/// The line expected from tshark: fields of the other IP version stay empty.
fn tshark_line(bytes: &[u8]) -> String {
    let frame = parsed(bytes);
    let meta = &frame.meta;
    let pds = frame.pds;
    let uet = pds.encoded_len() + pds.next_header().header_len() + meta.original_payload_len as usize;
    let udp_len = 8 + uet;
    let (ethernet, vlan) = match meta.vlan {
        Some(tag) => (18, format!("{},{}", tag.id, tag.priority)),
        None => (14, ",".to_owned()),
    };
    let marks = format!("{},{},{}", meta.dscp, meta.ecn as u8, meta.ttl);
    let ip = match meta.ip {
        IpAddrs::V4 { src, dst } => {
            // A switch that leaves the length alone also leaves the checksum alone, although it covers the DSCP.
            let length = u16::from_be_bytes([bytes[ethernet + 2], bytes[ethernet + 3]]);
            let kept = usize::from(length) != bytes.len() - ethernet;
            assert_eq!(usize::from(length), if kept { 20 + udp_len } else { bytes.len() - ethernet });
            let status = if kept { BAD } else { GOOD };
            format!("{src},{dst},{marks},0x0000,1,17,{length},{status},,,,,,,")
        }
        IpAddrs::V6 { src, dst } => {
            let length = u16::from_be_bytes([bytes[ethernet + 4], bytes[ethernet + 5]]);
            let present = bytes.len() - ethernet - 40;
            assert!([present, udp_len].contains(&usize::from(length)));
            format!(",,,,,,,,,,{src},{dst},{marks},0x000000,{length}")
        }
    };
    let status = if meta.trimmed.is_some() { UNVERIFIED } else { GOOD };
    let (src, dst, port) = (meta.src_mac, meta.dst_mac, meta.entropy_port);
    format!("{src},{dst},{vlan},{ip},{port},4793,{udp_len},{status}")
}

/// The line expected from `decode_uet.py`.
pub(crate) fn uet_line(frame: &Frame<'_>) -> String {
    let pds = match &frame.pds {
        Pds::Request(request) => request_line(request),
        Pds::Ack(ack) => ack_line(ack),
        Pds::Nack(nack) => nack_line(nack),
        Pds::Control(control) => control_line(control),
        other => panic!("endpoints send no {other:?}"),
    };
    let ses = ses_line(&frame.ses);
    let rest = match frame.meta.trimmed {
        Some(point) => {
            let place = if point == TrimPoint::Fabric { "fabric" } else { "last-hop" };
            format!("trimmed={place} of={}", frame.meta.original_payload_len)
        }
        None => {
            let sum: u64 = frame.payload.iter().map(|byte| u64::from(*byte)).sum();
            format!("payload={} sum={sum}", frame.payload.len())
        }
    };
    format!("{pds} | {ses} | {rest}")
}

fn destination(destination: Destination) -> (u8, String) {
    match destination {
        Destination::Pdc(id) => (0, format!("dpdcid={}", id.0)),
        Destination::Syn { use_reserved, psn_offset } => {
            (1, format!("rsv_pdc={} psn_offset={psn_offset}", u8::from(use_reserved)))
        }
    }
}

fn request_line(request: &Request) -> String {
    let name = match (request.mode, request.cc) {
        (DeliveryMode::Rud, None) => "RUD_REQ",
        (DeliveryMode::Rod, None) => "ROD_REQ",
        (DeliveryMode::Rud, Some(_)) => "RUD_CC_REQ",
        (DeliveryMode::Rod, Some(_)) => "ROD_CC_REQ",
    };
    let (syn, target) = destination(request.destination);
    let (retx, ar) = (u8::from(request.retx), u8::from(request.ack_request));
    let mut line = format!(
        "{name} next={} retx={retx} ar={ar} syn={syn} clear={} psn={} spdcid={} {target}",
        request.next as u8, request.clear_psn_offset, request.psn.0, request.spdcid.0
    );
    if let Some(cc) = request.cc {
        write!(line, " ccc_id={} credit_target={}", cc.ccc_id, cc.credit_target).unwrap();
    }
    line
}

fn ack_line(ack: &Ack) -> String {
    let request = match ack.request {
        AckRequest::None => 0,
        AckRequest::Clear => 1,
        AckRequest::Close => 2,
        AckRequest::Reserved => 3,
    };
    let trigger = match ack.trigger {
        AckTrigger::Psn(offset) => format!("ack_offset={offset}"),
        AckTrigger::Probe(opaque) => format!("probe={opaque}"),
    };
    let mut line = format!(
        "{} next={} m={} retx={} req={request} {trigger} cack={} spdcid={} dpdcid={}",
        if ack.cc.is_some() { "ACK_CC" } else { "ACK" },
        ack.next as u8,
        u8::from(ack.ecn),
        u8::from(ack.retx),
        ack.cack_psn.0,
        ack.spdcid.0,
        ack.dpdcid.0
    );
    if let Some(cc) = ack.cc {
        let CcState::Nscc(state) = cc.state else { panic!("endpoints send NSCC's state") };
        write!(
            line,
            " cc_type=0 cc_flags={} mpr={} sack_offset={} sack={:016x} service_time={} rc={} pend={} rcvd_bytes={} ooo={}",
            cc.flags,
            cc.mpr,
            cc.sack_psn_offset,
            cc.sack_bitmap,
            state.service_time,
            u8::from(state.restore_cwnd),
            state.rcv_cwnd_pend,
            state.rcvd_bytes,
            state.ooo_count
        )
        .unwrap();
    }
    line
}

fn nack_line(nack: &Nack) -> String {
    format!(
        "NACK next={} m={} retx={} nt={} code={} vendor={} psn={} spdcid={} dpdcid={} payload={}",
        nack.next as u8,
        u8::from(nack.ecn),
        u8::from(nack.retx),
        u8::from(nack.rudi),
        nack.code.0,
        nack.vendor_code,
        nack.psn.0,
        nack.spdcid.0,
        nack.dpdcid.0,
        nack.payload
    )
}

fn control_line(control: &Control) -> String {
    let (syn, target) = destination(control.destination);
    format!(
        "CP ctl={} rod={} retx={} ar={} syn={syn} opaque={} psn={} spdcid={} {target} payload={}",
        control.kind as u8,
        u8::from(control.rod),
        u8::from(control.retx),
        u8::from(control.ack_request),
        control.probe_opaque,
        control.psn.0,
        control.spdcid.0,
        control.payload
    )
}

fn ses_line(ses: &Ses) -> String {
    match ses {
        Ses::None => "NONE".to_owned(),
        Ses::Standard(request) => {
            let flags = request.flags;
            let [dc, ie, rel, hd, eom, som] = [
                RequestFlags::DELIVERY_COMPLETE,
                RequestFlags::INITIATOR_ERROR,
                RequestFlags::RELATIVE,
                RequestFlags::HEADER_DATA,
                RequestFlags::END_OF_MESSAGE,
                RequestFlags::START_OF_MESSAGE,
            ]
            .map(|flag| u8::from(flags.has(flag)));
            let place = match request.placement {
                Placement::Start { header_data } => format!("header_data={header_data}"),
                Placement::Continue { payload_len, msg_offset } => {
                    format!("payload_len={payload_len} msg_offset={msg_offset}")
                }
            };
            format!(
                "STANDARD op={} ver={} dc={dc} ie={ie} rel={rel} hd={hd} eom={eom} som={som} msg_id={} ri_gen={} \
                 job={} pid={} ri={} buffer_offset={} initiator={} match={} {place} request_length={}",
                request.opcode.0,
                flags.version(),
                request.msg_id,
                request.ri_generation,
                request.job_id,
                request.pid_on_fep,
                request.resource_index,
                request.buffer_offset,
                request.initiator,
                request.match_bits,
                request.request_length
            )
        }
        Ses::Response(response) => {
            let list = match response.list {
                List::Expected => 0,
                List::Overflow => 1,
                List::Reserved(list) => list,
            };
            format!(
                "RESPONSE list={list} op={} ver={} rc={} msg_id={} ri_gen={} job={} modified={}",
                response.opcode,
                response.version,
                response.return_code.0,
                response.msg_id,
                response.ri_generation,
                response.job_id,
                response.modified_length
            )
        }
        other => panic!("endpoints send no {other:?}"),
    }
}
