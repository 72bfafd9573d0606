//! Tests that check which frames the worker believes and answers, and how long it repeats a question.

use std::sync::Arc;

use proptest::prelude::*;
use weft_cc::{CcChoice, CcParams, Delays, Rate, Time};

use super::wire::{hear, reply};
use super::*;
use crate::buffer::Buffer;
use crate::fep::{Completion, Datagram, Fep, FepConfig, Receive, Send, SendError};
use crate::port::RxBurst;
use crate::port::memory::{MemoryConfig, MemoryPort, pair};
use crate::rng::Rng;
use crate::ses::Matching;
use crate::steps;
use crate::worker::{Clock, LinkConfig, Strangers, WriteError};

/// Just before [`Time`] begins anew.
const START: Time = Time::from_ps(u64::MAX - 1_500_000_000_000);

fn unreachable(peer: u32, why: Unreachable) -> CallError {
    CallError::Unreachable { peer: Addr(peer), why }
}

fn host(n: u8, v6: bool) -> HostAddr {
    let ip = if v6 { format!("fd00::ab:{n}").parse().unwrap() } else { [10, 0, 0, n].into() };
    HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip }
}

fn speaker(n: u8, v6: bool) -> Speaker {
    Speaker { host: host(n, v6), vlan: None }
}

const TAG: VlanTag = VlanTag { priority: 3, drop_eligible: false, id: 7 };

/// A frame as `write` makes it.
fn frame(write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut bytes = vec![0xaa; 2_000];
    let len = write(&mut bytes).expect("there is room, and versions agree");
    bytes.truncate(len);
    bytes
}

fn question(from: &Speaker, ip: IpAddr) -> Vec<u8> {
    frame(|buf| wire::ask(from, ip, buf))
}

#[test]
fn an_arp_request_follows_rfc_826() {
    let bytes = question(&speaker(1, false), host(2, false).ip);
    let expected = [
        &[0xff; 6][..],                   // to all
        &[2, 0, 0, 0, 0, 1, 8, 6],        // from 1, ARP
        &[0, 1, 8, 0, 6, 4, 0, 1],        // Ethernet, IPv4, request
        &[2, 0, 0, 0, 0, 1, 10, 0, 0, 1], // sender
        &[0, 0, 0, 0, 0, 0, 10, 0, 0, 2], // target
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn a_solicitation_goes_to_the_multicast_group_of_its_target() {
    let bytes = question(&speaker(1, true), host(2, true).ip);
    assert_eq!(bytes[..14], [0x33, 0x33, 0xff, 0xab, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]);
    assert_eq!(bytes[21], 255, "hop limit");
    let group: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xab, 0, 2];
    assert_eq!(bytes[38..54], group);
    assert_eq!(bytes[54..56], [135, 0], "neighbour solicitation");
    assert_eq!(bytes[78..], [1, 1, 2, 0, 0, 0, 0, 1], "source link-layer address");
}

#[test]
fn questions_are_answered_on_the_same_vlan_only() {
    for v6 in [false, true] {
        for vlan in [None, Some(TAG)] {
            let [asking, asked] = [1, 2].map(|n| Speaker { vlan, ..speaker(n, v6) });
            let bytes = question(&asking, asked.host.ip);
            let heard = hear(&bytes, &asked).unwrap();
            assert_eq!(heard.told, Some(asking.host));
            let answer = frame(|buf| reply(&asked, &heard.answer.unwrap(), buf));
            let told = Heard { told: Some(asked.host), answer: None };
            assert_eq!(hear(&answer, &asking), Some(told), "IPv6 {v6}, {vlan:?}");
            assert_eq!(
                hear(&bytes, &Speaker { vlan, ..speaker(3, v6) }).and_then(|heard| heard.answer),
                None
            );
            let other = Speaker { vlan: Some(VlanTag { id: 9, ..TAG }), ..asked };
            assert_eq!(hear(&bytes, &other), None);
            assert_eq!(hear(&bytes, &Speaker { vlan: vlan.xor(Some(TAG)), ..asked }), None);
        }
    }
}

#[test]
fn advertisements_that_have_passed_a_router_are_ignored() {
    let mut bytes = question(&speaker(1, true), host(2, true).ip);
    assert!(hear(&bytes, &speaker(2, true)).unwrap().answer.is_some());
    bytes[21] = 254;
    assert_eq!(hear(&bytes, &speaker(2, true)), Some(Heard::default()));
    bytes[21] = 255;
    bytes[60] ^= 1;
    assert_eq!(hear(&bytes, &speaker(2, true)), Some(Heard::default()), "damaged");
}

#[test]
fn group_addresses_are_never_learnt() {
    let answer = |ip: &str| {
        let own = Speaker { host: HostAddr { ip: ip.parse().unwrap(), ..host(2, true) }, vlan: None };
        frame(|buf| reply(&own, &Answer::Advert { to: host(1, true), solicited: true }, buf))
    };
    let told = |ip| hear(&answer(ip), &speaker(1, true)).unwrap().told.map(|told| told.ip);
    assert_eq!(told("fd00::7"), Some("fd00::7".parse().unwrap()));
    assert_eq!([told("ff02::7"), told("::")], [None, None]);
}

#[test]
fn duplicate_address_probes_are_answered() {
    let nobody = HostAddr { ip: "::".parse().unwrap(), ..host(1, true) };
    let mut bytes = question(&speaker(1, true), host(2, true).ip);
    // From the unspecified address, without the option that has the sender's address, and with the checksum of that.
    bytes[22..38].fill(0);
    bytes.truncate(78);
    bytes[18..20].copy_from_slice(&24u16.to_be_bytes());
    let sum = |bytes: &[u8]| bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum::<u32>();
    bytes[56..58].fill(0);
    let total = sum(&bytes[22..78]) + 24 + 58;
    let folded = !(((total & 0xffff) + (total >> 16)) as u16);
    bytes[56..58].copy_from_slice(&folded.to_be_bytes());
    let heard = hear(&bytes, &speaker(2, true)).unwrap();
    assert_eq!(heard.told, None, "{nobody:?} is nowhere");
    let answer = frame(|buf| reply(&speaker(2, true), &heard.answer.unwrap(), buf));
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1], "to all nodes");
    assert_eq!(answer[58], 0x20, "overrides, and was not solicited");
}

/// An echo request.
fn ping(from: &Speaker, to: HostAddr, data: &[u8]) -> Vec<u8> {
    let v6 = to.ip.is_ipv6();
    // An answer differs from a request by its type only.
    let answer = Answer::Echo { to, ident: 5, seq: 6, data };
    let mut request = frame(|buf| reply(from, &answer, buf));
    let icmp = if v6 { 54 } else { 34 };
    let (reply_type, request_type) = if v6 { (129, 128) } else { (0, 8) };
    assert_eq!(request[icmp], reply_type);
    request[icmp] = request_type;
    // The one's complement sum changes by the difference of the types.
    let sum = u16::from_be_bytes([request[icmp + 2], request[icmp + 3]]);
    let delta = (i32::from(reply_type) - i32::from(request_type)) << 8;
    let sum = (i32::from(sum) + delta).rem_euclid(0xffff) as u16;
    request[icmp + 2..icmp + 4].copy_from_slice(&sum.to_be_bytes());
    request
}

#[test]
fn echo_requests_are_answered() {
    for v6 in [false, true] {
        let [pinging, pinged] = [speaker(1, v6), speaker(2, v6)];
        let data: Vec<u8> = (0..1_000).map(|n| n as u8).collect();
        let request = ping(&pinging, pinged.host, &data);
        let icmp = if v6 { 54 } else { 34 };

        let heard = hear(&request, &pinged).unwrap();
        let expected = Answer::Echo { to: pinging.host, ident: 5, seq: 6, data: &data };
        assert_eq!(heard, Heard { told: None, answer: Some(expected) });
        let back = frame(|buf| reply(&pinged, &heard.answer.unwrap(), buf));
        assert_eq!(back.len(), request.len());
        assert_eq!(back[icmp + 4..], request[icmp + 4..]);
        assert_eq!(hear(&back, &pinging), Some(Heard::default()), "an answer asks for nothing");
        assert_eq!(hear(&request, &speaker(3, v6)).and_then(|heard| heard.answer), None);
    }
}

proptest! {
    #[test]
    fn nothing_that_arrives_does_harm(
        v6: bool,
        answer: bool,
        len in 0usize..200,
        changes in prop::collection::vec((0usize..200, any::<u8>()), 0..8),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let own = speaker(2, v6);
        let mut bytes = question(&speaker(1, v6), own.host.ip);
        if answer {
            bytes = frame(|buf| reply(&speaker(1, v6), &hear(&bytes, &own).unwrap().answer.unwrap(), buf));
        }
        bytes.extend(&noise);
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.truncate(len);
        properties::frame(&bytes);
        properties::frame(&noise);
    }
}

fn worker(own: u8, port: MemoryPort, link: LinkConfig, v6: bool) -> Worker<MemoryPort> {
    worker_with(own, port, link, v6, 8)
}

/// A worker whose book has room for so many.
fn worker_with(own: u8, port: MemoryPort, link: LinkConfig, v6: bool, capacity: usize) -> Worker<MemoryPort> {
    let params = CcParams {
        mtu: 4096,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(10),
        trimming: true,
        delays: Delays::Known,
    };
    let config = Arc::new(FepConfig::new(&CcChoice::default(), &params));
    let fep = Fep::new(Addr(own.into()), config, Rng::new(1, own.into()), START).unwrap();
    let book = AddressBook::new(fep.addr(), host(own, v6), capacity, Strangers::Refuse).unwrap();
    Worker::new(fep, port, book, link, Clock::system(START)).unwrap()
}

fn seconds(n: u64) -> Span {
    Span::from_ms(n * 1_000)
}

/// The frames on the link.
fn sent(port: &mut MemoryPort) -> Vec<Vec<u8>> {
    let mut rx = RxBurst::new();
    port.receive(&mut rx);
    rx.drain().map(|frame| frame.to_vec()).collect()
}

fn inject(port: &mut MemoryPort, bytes: &[u8]) {
    let mut tx = TxBurst::new(port);
    let mut frame = tx.reserve(bytes.len()).unwrap();
    frame.copy_from_slice(bytes);
    frame.commit();
    assert_eq!(port.transmit(&mut tx), 1);
}

/// The frame in which `who` answers a question of endpoint 1.
fn told_to_1(who: HostAddr) -> Vec<u8> {
    frame(|buf| reply(&Speaker { host: who, vlan: None }, &Answer::Arp { to: host(1, false) }, buf))
}

#[test]
fn two_workers_that_know_only_ip_addresses_exchange_a_message() {
    for v6 in [false, true] {
        for vlan in [None, Some(TAG)] {
            let link = LinkConfig { vlan, ..LinkConfig::default() };
            let (left, right) = pair(&MemoryConfig::default()).unwrap();
            let (mut a, mut b) = (worker(1, left, link, v6), worker(2, right, link, v6));
            a.meet(Addr(2), host(2, v6).ip, None).unwrap();
            b.meet(Addr(1), host(1, v6).ip, None).unwrap();
            let asked = a.connect(START, Addr(2), ConnectOptions::default());
            assert_eq!(asked, Err(unreachable(2, Unreachable::Resolving { hop: host(2, v6).ip, asked: 0 })));

            let mut now = START;
            let mut turn = |a: &mut Worker<MemoryPort>, b: &mut Worker<MemoryPort>| {
                now += Span::from_us(1);
                a.poll_at(now);
                b.poll_at(now);
                now
            };
            let mut at = turn(&mut a, &mut b);
            for _ in 0..2 {
                at = turn(&mut a, &mut b);
            }
            assert_eq!(
                (a.is_reachable(Addr(2)), b.is_reachable(Addr(1))),
                (Ok(()), Ok(())),
                "IPv6 {v6}, {vlan:?}"
            );
            let connection = a.connect(at, Addr(2), ConnectOptions::default()).unwrap();
            let receive = Receive {
                buffer: Buffer::Heap(vec![0; 5]),
                from: None,
                matching: Matching::Untagged,
                context: 0,
            };
            b.fep_mut().post_receive(receive).unwrap();
            let buffer = Buffer::Heap(b"hello".to_vec());
            a.fep_mut()
                .post_send(connection, Send { buffer, tag: None, header_data: 0, context: 0 })
                .unwrap();
            turn(&mut a, &mut b);
            let Some(Completion::Received { buffer, .. }) = b.fep_mut().poll_completion() else { panic!() };
            assert_eq!(buffer, Buffer::Heap(b"hello".to_vec()));
            for side in [&a, &b] {
                assert_eq!((side.counters().malformed, side.counters().neighbours), (0, 2));
            }
        }
    }
}

#[test]
fn a_silent_neighbour_is_asked_a_few_times_and_connecting_fails() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    let hop = host(2, false).ip;
    worker.meet(Addr(2), hop, None).unwrap();
    let connect = |worker: &mut Worker<MemoryPort>, at| {
        worker.connect(at, Addr(2), ConnectOptions::default()).unwrap_err()
    };
    let mut questions = Vec::new();
    for tenth in 0..30 {
        let now = START + Span::from_ms(100).times(tenth);
        worker.poll_at(now);
        questions.extend(sent(&mut far).iter().map(|_| tenth));
        let asked = tenth as u32 / 10 + 1;
        assert_eq!(connect(&mut worker, now), unreachable(2, Unreachable::Resolving { hop, asked }));
    }
    assert_eq!(questions, [0, 10, 20]);
    assert_eq!(worker.next_timer(), Some(START + seconds(3)));
    let given_up = START + seconds(3);
    worker.poll_at(given_up);
    let error = connect(&mut worker, given_up);
    assert_eq!(error, unreachable(2, Unreachable::NoAnswer { hop }));
    assert!(error.to_string().contains("10.0.0.2"), "{error}");
    assert!(sent(&mut far).is_empty());

    // No packet waits for the peer: the worker asks again after half a minute.
    worker.poll_at(given_up + seconds(29));
    assert!(sent(&mut far).is_empty());
    worker.poll_at(given_up + REFRESH);
    assert_eq!(sent(&mut far).len(), 1);
    // It comes to life.
    inject(&mut far, &told_to_1(host(2, false)));
    worker.poll_at(given_up + REFRESH + Span::from_us(5));
    assert_eq!(worker.is_reachable(Addr(2)), Ok(()));
}

#[test]
fn a_silent_neighbour_is_asked_again_once_a_second_while_there_are_packets_for_it() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    worker.meet(Addr(2), host(2, false).ip, None).unwrap();
    for second in 0..4 {
        worker.poll_at(START + seconds(second));
    }
    assert_eq!(sent(&mut far).len(), 3);
    // A connection that is opened without `Worker::connect`.
    let now = START + seconds(10);
    let connection = worker.fep_mut().connect(now, Addr(2), ConnectOptions::default()).unwrap();
    let send = Send { buffer: Buffer::Heap(vec![0; 10]), tag: None, header_data: 0, context: 0 };
    worker.fep_mut().post_send(connection, send).unwrap();
    worker.poll_at(now);
    worker.poll_at(now);
    assert_eq!(worker.counters().unresolved, 1);
    let unresolved = WriteError::Unresolved { peer: Addr(2), ip: host(2, false).ip };
    assert_eq!(worker.last_write_error(), Some(unresolved));
    assert_eq!(sent(&mut far).len(), 1);
    worker.poll_at(now + Span::from_ms(500));
    assert!(sent(&mut far).is_empty());
}

#[test]
fn an_address_is_learnt_only_while_a_question_is_open() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    let mac_of = |worker: &Worker<MemoryPort>, n| worker.book().get(Addr(n)).map(|host| host.mac);
    let [two, three] = [host(2, false), host(3, false)];
    let moved = HostAddr { mac: MacAddr([2, 9, 9, 9, 9, 9]), ..two };
    worker.book_mut().insert(Addr(3), three).unwrap();
    worker.meet(Addr(3), three.ip, None).unwrap();
    worker.meet(Addr(2), two.ip, None).unwrap();

    // Before the question.
    let mut now = START;
    inject(&mut far, &told_to_1(moved));
    worker.poll_at(now);
    assert_eq!(mac_of(&worker, 2), None);
    assert_eq!(sent(&mut far).len(), 1, "only 2 has to be asked");
    // The answer, and one that comes too late.
    inject(&mut far, &told_to_1(two));
    inject(&mut far, &told_to_1(moved));
    now += Span::from_us(1);
    worker.poll_at(now);
    assert_eq!(mac_of(&worker, 2), Some(two.mac));
    // A third host claims the addresses of both.
    now += seconds(5);
    inject(&mut far, &told_to_1(moved));
    inject(&mut far, &told_to_1(HostAddr { mac: moved.mac, ..three }));
    worker.poll_at(now);
    assert_eq!((mac_of(&worker, 2), mac_of(&worker, 3)), (Some(two.mac), Some(three.mac)));
    let questions = sent(&mut far);
    assert_eq!(questions, [question(&speaker(1, false), two.ip)], "2 is asked whether it has moved");
    inject(&mut far, &told_to_1(moved));
    now += Span::from_us(1);
    worker.poll_at(now);
    assert_eq!(mac_of(&worker, 2), Some(moved.mac), "it has");
}

#[test]
fn a_known_address_is_confirmed_and_kept_without_an_answer() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    let two = host(2, false);
    worker.meet(Addr(2), two.ip, None).unwrap();
    worker.poll_at(START);
    inject(&mut far, &told_to_1(two));
    worker.poll_at(START);
    // Confirmed after 20 s.
    inject(&mut far, &told_to_1(two));
    worker.poll_at(START + seconds(20));
    assert_eq!(sent(&mut far).len(), 1);
    worker.poll_at(START + seconds(40));
    assert!(sent(&mut far).is_empty());
    for second in 50..60 {
        worker.poll_at(START + seconds(second));
    }
    assert_eq!(sent(&mut far).len(), QUESTIONS as usize);
    assert_eq!(worker.is_reachable(Addr(2)), Ok(()));
    assert_eq!(worker.next_timer(), Some(START + seconds(53) + REFRESH));
}

#[test]
fn a_router_is_asked_once_for_all_peers_behind_it() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    let router = host(9, false);
    for n in [2, 3] {
        worker.meet(Addr(n.into()), [192, 168, 0, n].into(), Some(router.ip)).unwrap();
    }
    worker.poll_at(START);
    assert_eq!(sent(&mut far), [question(&speaker(1, false), router.ip)]);
    inject(&mut far, &told_to_1(router));
    worker.poll_at(START);
    worker.meet(Addr(4), [192, 168, 0, 4].into(), Some(router.ip)).unwrap();
    for n in [2, 3, 4] {
        let reached = HostAddr { mac: router.mac, ip: [192, 168, 0, n].into() };
        assert_eq!(worker.book().get(Addr(n.into())), Some(&reached));
    }
    let not_met = worker.connect(START, Addr(5), ConnectOptions::default()).unwrap_err();
    assert_eq!(not_met, unreachable(5, Unreachable::Unknown(Addr(5))));
}

#[test]
fn a_peer_that_is_met_again_behind_a_router_is_reached_through_that() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    let (old, new) = (host(8, false), host(9, false));
    let meet = |worker: &mut Worker<MemoryPort>, via: HostAddr| {
        worker.meet(Addr(2), [192, 168, 0, 2].into(), Some(via.ip)).unwrap();
    };
    meet(&mut worker, old);
    for second in 0..=3 {
        worker.poll_at(START + seconds(second));
    }
    assert_eq!(worker.is_reachable(Addr(2)), Err(Unreachable::NoAnswer { hop: old.ip }));
    let settled = worker.resolutions();
    meet(&mut worker, new);
    meet(&mut worker, new);
    assert_eq!(worker.resolutions(), settled + 1);
    assert_eq!(worker.is_reachable(Addr(2)), Err(Unreachable::Resolving { hop: new.ip, asked: 0 }));
    let now = START + seconds(3) + REFRESH;
    worker.poll_at(now);
    assert_eq!(worker.is_reachable(Addr(2)), Err(Unreachable::Resolving { hop: new.ip, asked: 1 }));
    assert_eq!(sent(&mut far).len(), 3 + 1, "nobody is behind the old one any more");
    inject(&mut far, &told_to_1(old));
    worker.poll_at(now);
    assert_eq!(worker.is_reachable(Addr(2)), Err(Unreachable::Resolving { hop: new.ip, asked: 1 }));
    inject(&mut far, &told_to_1(new));
    worker.poll_at(now);
    assert_eq!(worker.book().get(Addr(2)).map(|host| host.mac), Some(new.mac));
}

/// An application may lose a peer that it has no connection to while datagrams to it wait.
#[test]
fn a_datagram_whose_peer_is_forgotten_before_it_leaves_is_cancelled() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    for n in [2, 3] {
        let HostAddr { mac, ip } = host(n, false);
        worker.meet(Addr(n.into()), ip, None).unwrap();
        assert!(worker.book.suppose(Addr(n.into()), mac));
    }
    worker.poll_at(START);
    sent(&mut far);
    for (peer, context) in [(2, 20), (3, 30), (2, 21)] {
        let buffer = Buffer::Heap(vec![7; 8]);
        let datagram = Datagram { buffer, peer: Addr(peer), process: 0, header_data: 0, context };
        worker.fep.post_datagram_of(0, datagram).unwrap();
    }
    worker.book.lend(Addr(2));
    assert!(worker.make_room() && worker.book.is_forgotten(Addr(2)));
    worker.poll_at(START);
    worker.poll_at(START);
    let ended = std::iter::from_fn(|| worker.fep.poll_completion()).map(|done| match done {
        Completion::Sent { context, result, .. } => (context, result),
        other => panic!("{other:?}"),
    });
    let ended: std::collections::BTreeMap<_, _> = ended.collect();
    let cancelled = Err(SendError::Cancelled);
    assert_eq!(ended, [(20, cancelled), (21, cancelled), (30, Ok(()))].into());
    assert_eq!((sent(&mut far).len(), worker.counters().unsendable), (1, 2));
}

/// Nobody would ask for it but the worker itself, every [`REFRESH`].
#[test]
fn a_neighbour_whose_last_peer_is_reached_otherwise_is_asked_no_more() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    let [peer, other] = [Addr(2), Addr(3)];
    let [old, new] = [7, 8].map(|n| host(n, false).ip);
    worker.meet(peer, host(2, false).ip, Some(old)).unwrap();
    worker.meet(other, host(3, false).ip, Some(old)).unwrap();
    worker.meet(peer, host(2, false).ip, Some(new)).unwrap();
    let questions = |worker: &mut Worker<MemoryPort>, far: &mut MemoryPort, now| {
        worker.poll_at(now);
        sent(far)
    };
    let ask = |ip| question(&speaker(1, false), ip);
    assert_eq!(
        questions(&mut worker, &mut far, START),
        [ask(old), ask(new)],
        "one is behind the old one still"
    );
    worker.meet(other, host(3, false).ip, Some(new)).unwrap();
    assert_eq!(questions(&mut worker, &mut far, START + RETRY), [ask(new)]);
    assert!(worker.neighbours.all.0.len() == 1 && worker.neighbours.by_ip.len() == 1);
}

/// Neighbours, peers and heads of queues that are looked at for a peer that is added, a question, or a frame.
const MOST_STEPS: u64 = 10;

/// An application can add thousands of peers, and any host on the link can send frames.
#[test]
fn what_a_peer_or_a_frame_costs_does_not_depend_on_how_many_wait() {
    for count in [10u32, 4_000] {
        let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
        let mut worker = worker_with(1, near, LinkConfig::default(), false, 5_000);
        let who = |n: u32| {
            let [high, low] = [(n >> 8) as u8, n as u8];
            HostAddr { mac: MacAddr([2, 0, 0, 1, high, low]), ip: IpAddr::from([10, 1, high, low]) }
        };
        let most = (2..count).map(|n| steps::of(|| worker.meet(Addr(n), who(n).ip, None).unwrap())).max();
        assert!(most <= Some(MOST_STEPS), "{most:?} steps for one of {count}");
        let mut asked = 0;
        for _ in 0..count {
            let steps = steps::of(|| _ = worker.poll_at(START));
            let questions = sent(&mut far).len() as u64;
            assert!(steps <= MOST_STEPS * (1 + questions), "{steps} steps for {questions} of {count}");
            asked += questions;
        }
        assert_eq!(asked, u64::from(count) - 2);
        let last = count - 1;
        inject(&mut far, &told_to_1(who(last)));
        let steps = steps::of(|| _ = worker.poll_at(START));
        assert!(steps <= MOST_STEPS, "{steps} steps for a frame about one of {count}");
        assert_eq!(worker.is_reachable(Addr(last)), Ok(()));
        let waits = Unreachable::Resolving { hop: who(2).ip, asked: 1 };
        assert_eq!(worker.is_reachable(Addr(2)), Err(waits));
        for again in 1..QUESTIONS {
            for _ in 0..count {
                worker.poll_at(START + RETRY.times(again.into()));
                sent(&mut far);
            }
        }
        // All the others are to be given up at once.
        let before = worker.resolutions();
        let steps = steps::of(|| _ = worker.poll_at(START + RETRY.times(QUESTIONS.into())));
        let given_up = worker.resolutions() - before;
        assert_eq!(given_up, (PER_TURN as u64).min(u64::from(count) - 3));
        assert!(steps <= MOST_STEPS * (1 + given_up), "{steps} steps for {given_up} of {count}");
    }
}

#[test]
fn answers_are_limited_to_a_number_per_second_and_pings_to_one_of_their_own() {
    let (near, mut far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    let mut flood = |worker: &mut Worker<MemoryPort>, frame: &[u8], most: u32, now| {
        let mut answers = 0;
        for _ in 0..most / 10 + 5 {
            (0..10).for_each(|_| inject(&mut far, frame));
            worker.poll_at(now);
            answers += sent(&mut far).len() as u32;
        }
        answers
    };
    let (other, own) = (speaker(2, false), host(1, false));
    let (question, ping) = (question(&other, own.ip), ping(&other, own, &[7; 50]));
    for now in [START, START + seconds(1)] {
        assert_eq!(flood(&mut worker, &ping, ECHOES, now), ECHOES);
        assert_eq!(flood(&mut worker, &question, ANSWERS, now), ANSWERS);
    }
}

#[test]
fn resolve_fails_at_its_limit_and_for_unknown_peers() {
    let (near, _far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near, LinkConfig::default(), false);
    assert_eq!(worker.resolve(Addr(2), seconds(1)), Err(Unreachable::Unknown(Addr(2)).into()));
    worker.meet(Addr(2), host(2, false).ip, None).unwrap();
    let limit = Span::from_us(200);
    assert_eq!(worker.resolve(Addr(2), limit), Err(TimedOut(limit).into()));
}
