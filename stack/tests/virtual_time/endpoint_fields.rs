//! The header fields that endpoints fill in, as UET defines them. Two endpoints of ours would agree on any meaning, so
//! what they send is compared with the standard's words instead of with what the other end makes of it.

use crate::harness::{Alone, MTU, Pair, content, forge, params, untagged};
use weft_stack::Span;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{CallError, ConnectOptions, FepConfig, JobId, SendError};
use weft_stack::packet::{Packet, Payload};
use weft_stack::wire::pds::{
    Ack, CcState, ControlKind, DelayEcho, DeliveryMode, NsccState, Pds, VendorFlags,
};
use weft_stack::wire::ses::{ReturnCode, Ses};

/// All packets of a message of `len` bytes over a connection that is then closed, in the order in which they arrive.
fn packets_of(config: &FepConfig, mode: DeliveryMode, len: usize) -> Vec<Packet> {
    let mut pair = Pair::new(config);
    let connection = pair.connect_from(0, ConnectOptions { mode, ..ConnectOptions::default() });
    pair.post_send(connection, untagged(content(1, len), 0));
    let mut packets = Vec::new();
    exchange(&mut pair, &mut packets);
    assert_eq!(pair.sent_result(), Ok(()));
    pair.feps[0].close(pair.now, connection).unwrap();
    exchange(&mut pair, &mut packets);
    packets
}

/// Delivers packets, a microsecond apart, until both endpoints are silent for a while.
fn exchange(pair: &mut Pair, packets: &mut Vec<Packet>) {
    for _ in 0..2_000 {
        for from in [0, 1] {
            while let Some(transit) = pair.transmit(from) {
                packets.push(transit.packet);
                pair.arrive(&transit);
            }
        }
        pair.now += Span::from_us(1);
        (0..2).for_each(|side| pair.feps[side].on_timeout(pair.now));
    }
}

fn with_cc(name: &str) -> FepConfig {
    FepConfig::new(&CcChoice::parse(name).unwrap(), &params())
}

/// UET §3.6.13.2: a receiver without flow control sends 0, which has no effect.
#[test]
fn acknowledgements_request_no_penalty() {
    let packets = packets_of(&with_cc("nscc"), DeliveryMode::Rud, 100 * MTU as usize);
    let mut acks = 0;
    for packet in &packets {
        let Pds::Ack(ack) = &packet.pds else { continue };
        let Some(CcState::Nscc(state)) = ack.cc.map(|cc| cc.state) else { panic!("{ack:?}") };
        assert_eq!((state.rcv_cwnd_pend, state.restore_cwnd), (0, false));
        acks += 1;
    }
    assert!(acks > 20, "{acks} acknowledgements");
}

/// UET §3.6.12: the total counts first copies by UDP length + 40, which is 104 bytes more than the payload and 4 more
/// again with the congestion-control fields, rounded up to 256.
#[test]
fn the_total_counts_nominal_packet_sizes() {
    for (name, headers) in [("nscc", 104), ("rccc", 108)] {
        let config = with_cc(name);
        assert_ne!(config.overhead, headers, "what the fabric counts is another matter");
        let packets = packets_of(&config, DeliveryMode::Rud, 9 * MTU as usize + 100);
        let mut totals = packets.iter().filter_map(|packet| match &packet.pds {
            Pds::Ack(ack) => ack.cc.map(|cc| cc.state),
            _ => None,
        });
        let Some(CcState::Nscc(last)) = totals.next_back() else { panic!("no acknowledgement") };
        assert_eq!(last.rcvd_bytes, (9 * (MTU + headers) + 100 + headers).div_ceil(256), "{name}");
    }
}

/// Answers with a vendor's state go only to those who ask, and say as much of what has arrived as others.
#[test]
fn an_echo_is_sent_only_to_those_who_ask() {
    for vendor in [VendorFlags::NONE, VendorFlags::CONGESTED_SENDER, VendorFlags::DELAY_ECHO] {
        let mut alone = Alone::new(with_cc("nscc"));
        let mut packet = forge::syn(5, 1, 0, 100);
        let Pds::Request(request) = &mut packet.pds else { unreachable!() };
        request.vendor = vendor;
        packet.net.hops = 3;
        alone.arrive(&packet, &[0; 100]);
        let answer = alone.transmit().expect("the packet asks for an acknowledgement");
        let Pds::Ack(Ack { cc: Some(cc), .. }) = answer.pds else { panic!("{answer:?}") };
        let rcvd_bytes = 1;
        match cc.state {
            CcState::DelayEcho(echo) if vendor == VendorFlags::DELAY_ECHO => {
                let unknown = DelayEcho::UNKNOWN;
                assert_eq!(echo, DelayEcho { rcvd_bytes, hops: 3, remote_queueing: unknown, ooo_count: 0 });
            }
            CcState::Nscc(state) if vendor != VendorFlags::DELAY_ECHO => {
                assert_eq!(state, NsccState { rcvd_bytes, ..NsccState::default() });
            }
            other => panic!("{other:?} to {vendor:?}"),
        }
    }
}

/// Both kinds of acknowledgement say how long the packet that they answer has waited at the host, and no other.
#[test]
fn acknowledgements_report_how_long_the_packet_has_waited() {
    let mut alone = Alone::new(with_cc("nscc"));
    for (n, waited, expected) in
        [(1, 0, (0, DelayEcho::UNKNOWN)), (2, 1, (8, 31)), (3, 900_000, (0xffff, 0xfffe))]
    {
        for vendor in [VendorFlags::NONE, VendorFlags::DELAY_ECHO] {
            let pdc = 2 * n + u16::from(vendor == VendorFlags::NONE);
            let mut packet = forge::syn(5, pdc, 0, 100);
            let Pds::Request(request) = &mut packet.pds else { unreachable!() };
            request.vendor = vendor;
            let payload = Payload::Bytes(&[0; 100]);
            alone.fep.on_packet_after(alone.now, Span::from_us(waited), &packet, payload);
            let answer = alone.transmit().expect("the packet asks for an acknowledgement");
            let Pds::Ack(Ack { cc: Some(cc), .. }) = answer.pds else { panic!("{answer:?}") };
            match cc.state {
                CcState::Nscc(state) => assert_eq!(state.service_time, expected.0, "{waited} µs"),
                CcState::DelayEcho(echo) => assert_eq!(echo.remote_queueing, expected.1, "{waited} µs"),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Credit comes in packets of its own, so acknowledgements have room for an echo.
#[test]
fn echoes_are_asked_for_and_sent_beside_receiver_credit() {
    let packets = packets_of(&with_cc("swift+rccc"), DeliveryMode::Rud, 100 * MTU as usize);
    let (mut requests, mut echoes, mut credits) = (0, 0, 0);
    for packet in &packets {
        match &packet.pds {
            Pds::Request(request) => {
                assert!(request.vendor.has(VendorFlags::DELAY_ECHO) && request.cc.is_some(), "{request:?}");
                requests += 1;
            }
            Pds::Ack(Ack { cc: Some(cc), .. }) => {
                echoes += u32::from(matches!(cc.state, CcState::DelayEcho(_)))
            }
            Pds::Control(control) => credits += u32::from(control.kind == ControlKind::Credit),
            _ => {}
        }
    }
    assert!(requests >= 100 && echoes == requests && credits > 0, "{requests}, {echoes}, {credits}");
}

/// No request asks for anything that the standard does not have.
#[test]
fn requests_have_no_vendor_flags() {
    for packet in packets_of(&with_cc("nscc+rccc"), DeliveryMode::Rud, 100 * MTU as usize) {
        if let Pds::Request(request) = &packet.pds {
            assert_eq!(request.vendor, VendorFlags::NONE);
        }
    }
}

/// ISROD means something in NOOP and NEGOTIATION only.
#[test]
fn control_packets_do_not_repeat_the_mode_of_their_pdc() {
    let packets = packets_of(&with_cc("nscc"), DeliveryMode::Rod, 3 * MTU as usize);
    let controls = packets.iter().filter_map(|packet| match &packet.pds {
        Pds::Control(control) => Some(control),
        _ => None,
    });
    let kinds: Vec<ControlKind> = controls.inspect(|control| assert!(!control.rod)).map(|c| c.kind).collect();
    assert!(kinds.contains(&ControlKind::CloseCommand), "{kinds:?}");
}

/// Credit carries the target's PDCID as acknowledgements do.
#[test]
fn credit_names_both_ends_of_its_pdc() {
    let packets = packets_of(&with_cc("rccc"), DeliveryMode::Rud, 1 << 20);
    let mut announced = 0;
    let mut named = None;
    for packet in &packets {
        match &packet.pds {
            Pds::Ack(ack) => named = Some(ack.spdcid),
            Pds::Control(control) if control.kind == ControlKind::Credit && named.is_some() => {
                assert_eq!(Some(control.spdcid), named);
                announced += 1;
            }
            _ => {}
        }
    }
    assert!(announced > 10, "{announced} announcements");
}

/// UET's requests name the job of their process; a target of another job answers BAD_JOB_ID.
#[test]
fn requests_and_their_responses_carry_the_job_of_the_sender() {
    let job = |number| JobId::new(number).unwrap();
    let theirs = job(0xab_cdef);
    for (ours, accepted) in [(theirs, true), (job(1), false), (JobId::NONE, false)] {
        let mut pair = Pair::new(&with_cc("nscc"));
        pair.feps[0].set_job(0, ours).unwrap();
        pair.feps[1].set_job(0, theirs).unwrap();
        let connection = pair.connect_from(0, ConnectOptions::default());
        pair.post_send(connection, untagged(content(1, 10), 0));
        pair.post_send(connection, untagged(content(1, 20 * MTU as usize), 0));
        let mut packets = Vec::new();
        exchange(&mut pair, &mut packets);
        let wanted = if accepted { Ok(()) } else { Err(SendError::Answered(ReturnCode::BAD_JOB_ID)) };
        assert_eq!([pair.sent_result(), pair.sent_result()], [wanted, wanted], "{ours:?}");
        let (mut requests, mut refusals) = (0, 0);
        for packet in &packets {
            match &packet.ses {
                Ses::Standard(request) => {
                    assert_eq!(request.job_id, ours.get());
                    requests += 1;
                }
                Ses::Response(response) if response.return_code == ReturnCode::BAD_JOB_ID => {
                    assert_eq!(response.job_id, ours.get());
                    refusals += 1;
                }
                _ => {}
            }
        }
        assert!(requests >= 2 && (refusals > 0) != accepted, "{requests} requests, {refusals} refusals");
    }
    // Of no job: takes those of any.
    let mut pair = Pair::new(&with_cc("nscc"));
    pair.feps[0].set_job(0, theirs).unwrap();
    assert_eq!(pair.feps[0].set_job(5, theirs), Err(CallError::ProcessNotOpen(5)));
    let connection = pair.connect_from(0, ConnectOptions::default());
    pair.post_send(connection, untagged(content(1, 3 * MTU as usize), 0));
    exchange(&mut pair, &mut Vec::new());
    assert_eq!(pair.sent_result(), Ok(()));
    // A process that opens under the number of one that is gone belongs to no job.
    let fep = &mut pair.feps[0];
    fep.close_process(0).unwrap();
    fep.open_process(0).unwrap();
    let connection = pair.connect_from(0, ConnectOptions::default());
    pair.post_send(connection, untagged(content(1, 10), 0));
    let mut packets = Vec::new();
    exchange(&mut pair, &mut packets);
    let jobs = packets.iter().filter_map(|packet| match &packet.ses {
        Ses::Standard(request) => Some(request.job_id),
        _ => None,
    });
    assert!(jobs.eq([0]), "{packets:?}");
}
