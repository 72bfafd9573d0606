//! Processes of one endpoint have equal parts of its link, and of a window or credit that they share, however many
//! connections they have. So have the connections of a process.

use std::collections::VecDeque;

use crate::harness::{Alone, MTU, Pair, fep, params, receive_any};
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Fep, FepConfig, Send};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::wire::pds::Pds;
use weft_stack::{Span, Time};

/// The usual network with `cc`, whose window is `packets` long if it is constant.
fn config(cc: &str, packets: u64) -> FepConfig {
    let mut cc = CcChoice::parse(cc).unwrap();
    if cc.name() == "constant" {
        cc.set("window", &(packets * params().wire_mtu()).to_string()).unwrap();
    }
    FepConfig::new(&cc, &params())
}

/// Longer than anything that a test sends.
fn message() -> Send {
    Send { buffer: Buffer::Virtual(1 << 30), tag: None, header_data: 0, context: 0 }
}

/// The place of a packet's connection in the order in which they were opened, if it carries data.
fn connection_of(packet: &Packet) -> Option<usize> {
    match packet.pds {
        Pds::Request(request) => Some(usize::from(request.spdcid.0) - 1),
        _ => None,
    }
}

/// Sums `packets` of connections up by their processes, of which each has so many connections as `processes` says.
fn by_process(packets: &[u64], processes: &[usize]) -> Vec<u64> {
    let mut rest = packets;
    let mut sums = Vec::new();
    for &connections in processes {
        let (own, others) = rest.split_at(connections);
        sums.push(own.iter().sum());
        rest = others;
    }
    sums
}

/// The least and the most of `counts`.
fn extremes(counts: &[u64]) -> (u64, u64) {
    (*counts.iter().min().unwrap(), *counts.iter().max().unwrap())
}

#[test]
fn processes_have_equal_parts_of_the_link() {
    let mut alone = Alone::new(config("constant", 1 << 16));
    let processes = [50, 1, 4];
    // The order in which they come does not matter, nor that one has another peer.
    for (process, connections) in (1..).zip(processes) {
        for _ in 0..connections {
            let (peer, options) = (Addr(1 + u32::from(process == 2)), ConnectOptions::default());
            let connection = alone.fep.connect_of(process, alone.now, peer, options).unwrap();
            alone.post_send(connection, message());
        }
    }
    let mut packets = [0; 55];
    for _ in 0..300 {
        let packet = alone.transmit().expect("the window is long");
        packets[connection_of(&packet).unwrap()] += 1;
    }
    assert_eq!(by_process(&packets, &processes), [100, 100, 100], "{packets:?}");
    assert_eq!((extremes(&packets[..50]), extremes(&packets[51..])), ((2, 2), (25, 25)), "{packets:?}");
}

#[test]
fn connections_of_one_process_take_turns_packet_by_packet() {
    let mut alone = Alone::new(config("constant", 1 << 16));
    for _ in 0..3 {
        let connection = alone.fep.connect_of(7, alone.now, Addr(1), ConnectOptions::default()).unwrap();
        alone.post_send(connection, message());
    }
    let sent: Vec<_> = (0..7).map(|_| connection_of(&alone.transmit().unwrap()).unwrap()).collect();
    assert_eq!(sent, [0, 1, 2, 0, 1, 2, 0]);
}

/// Packets of each connection that processes with so many connections to one peer send in 2 ms.
fn packets_to_a_peer(config: &FepConfig, processes: &[usize]) -> Vec<u64> {
    let mut pair = Pair::new(config);
    for (process, &connections) in (1..).zip(processes) {
        for _ in 0..connections {
            let connection =
                pair.feps[0].connect_of(process, pair.now, Addr(1), ConnectOptions::default()).unwrap();
            pair.post_send(connection, message());
            pair.feps[1].post_receive(receive_any(MTU as usize)).unwrap();
        }
    }
    let mut packets = vec![0; processes.iter().sum()];
    pair.run(Time::ZERO + Span::from_ms(2), |transit| {
        if let Some(connection) = connection_of(&transit.packet) {
            packets[connection] += 1;
        }
        Some(Span::from_us(5))
    });
    packets
}

#[test]
fn processes_have_equal_parts_of_a_window_and_of_credit() {
    for (cc, window) in
        [("constant", 1), ("constant", 3), ("constant", 30), ("nscc", 0), ("rccc", 0), ("swift", 0)]
    {
        let processes = [40, 1, 3, 1];
        let packets = packets_to_a_peer(&config(cc, window), &processes);
        let parts = by_process(&packets, &processes);
        let ((least, most), all) = (extremes(&parts), parts.iter().sum::<u64>());
        assert!(all >= 190, "{cc}, {window} packets: {parts:?}");
        // The last window may have packets of some only.
        assert!(most - least <= 4 + all / 50, "{cc}, {window} packets: {parts:?}");
        let (least, most) = extremes(&packets[..40]);
        assert!(most - least <= 2 + all / 40 / 10, "{cc}, {window} packets: {packets:?}");
    }
}

#[test]
fn a_process_that_comes_later_has_its_part_at_once() {
    let mut pair = Pair::new(&config("constant", 4));
    let connect = |pair: &mut Pair, process| {
        let connection =
            pair.feps[0].connect_of(process, pair.now, Addr(1), ConnectOptions::default()).unwrap();
        pair.post_send(connection, message());
        pair.feps[1].post_receive(receive_any(MTU as usize)).unwrap();
    };
    (0..100).for_each(|_| connect(&mut pair, 1));
    let mut packets = Vec::new();
    let rounds = |pair: &mut Pair, packets: &mut Vec<usize>| {
        for _ in 0..20 {
            while let Some(transit) = pair.transmit(0) {
                packets.extend(connection_of(&transit.packet));
                pair.arrive(&transit);
            }
            assert!(pair.flush(1), "each window is acknowledged");
        }
    };
    rounds(&mut pair, &mut packets);
    assert_eq!(packets.len(), 80);
    connect(&mut pair, 2);
    packets.clear();
    rounds(&mut pair, &mut packets);
    let later = packets.iter().filter(|connection| **connection == 100).count();
    // Targets may withhold the acknowledgement of a quarter of the window. The window that is open already is that of the others.
    assert!(packets.len() >= 60 && packets.len().abs_diff(2 * later) <= 4, "{later} of {packets:?}");
}

/// Packets that each process sends of `count`, whose network delivers them one by one in the order in which they left. Process 1
/// has one connection with a long message. Each other process has so many as `processes` says, and sends a message of one
/// packet on each whenever the one before is acknowledged.
fn packets_beside_single_ones(config: &FepConfig, processes: &[usize], count: usize) -> Vec<u64> {
    let mut pair = Pair::new(config);
    let single = |pair: &mut Pair, id: ConnectionId, place: usize| {
        pair.feps[1].post_receive(receive_any(MTU as usize)).unwrap();
        pair.post_send(id, Send { buffer: Buffer::Virtual(MTU), context: place as u64, ..message() });
    };
    let mut connections = Vec::new();
    for (process, &number) in (1..).zip(processes) {
        for _ in 0..number {
            let options = ConnectOptions::default();
            let id = pair.feps[0].connect_of(process, pair.now, Addr(1), options).unwrap();
            match process {
                1 => _ = pair.post_send(id, message()),
                _ => single(&mut pair, id, connections.len()),
            }
            connections.push(id);
        }
    }
    let mut packets = vec![0; connections.len()];
    let mut wire = VecDeque::new();
    pair.feps[1].post_receive(receive_any(MTU as usize)).unwrap();
    for _ in 0..count {
        wire.extend(std::iter::from_fn(|| pair.transmit(0)));
        let mut first = wire.pop_front().expect("the window is never empty");
        if let Some(connection) = connection_of(&first.packet) {
            packets[connection] += 1;
        }
        if let Pds::Request(request) = &mut first.packet.pds {
            request.ack_request = true;
        }
        pair.now += Span::from_us(1);
        pair.arrive(&first);
        pair.flush(1);
        for done in pair.completions(0) {
            let Completion::Sent { context, result: Ok(()), .. } = done else { panic!("{done:?}") };
            single(&mut pair, connections[context as usize], context as usize);
        }
    }
    by_process(&packets, processes)
}

#[test]
fn a_process_that_sends_single_packets_over_many_connections_has_its_part_of_a_window() {
    for window in [2, 3, 8, 20] {
        for processes in [&[1, 40][..], &[1, 200], &[3, 1, 40]] {
            let config = config("constant", window);
            let parts = packets_beside_single_ones(&config, processes, 2_000);
            let case = format!("window {window}, {processes:?} connections: {parts:?}");
            assert!(parts[0].abs_diff(*parts.last().unwrap()) <= 40, "{case}");
            // A process with one connection has one packet in the network and waits for its turn no longer than a round.
            assert!(parts.iter().all(|part| part * (window + 4) >= 2_000), "{case}");
        }
    }
}

/// A packet that is sent again, whether it is CLOSE_CMD or a part of a message, does not wait behind new messages of the same
/// process: those wait for places in the window, and it had one.
#[test]
fn packets_that_are_sent_again_do_not_wait_behind_new_messages() {
    let places = [false, true].map(|closes| {
        let mut pair = Pair::new(&config("constant", 8));
        let connect = |pair: &mut Pair, process| {
            pair.feps[0].connect_of(process, pair.now, Addr(1), ConnectOptions::default()).unwrap()
        };
        let early = connect(&mut pair, 2);
        let receive = |pair: &mut Pair, len| pair.feps[1].post_receive(receive_any(len)).unwrap();
        receive(&mut pair, MTU as usize);
        pair.post_send(early, Send { buffer: Buffer::Virtual(1), ..message() });
        pair.exchange();
        pair.sent_result().unwrap();
        match closes {
            true => pair.feps[0].close(pair.now, early).unwrap(),
            false => {
                receive(&mut pair, MTU as usize);
                _ = pair.post_send(early, Send { buffer: Buffer::Virtual(1), ..message() });
            }
        }
        let lost = pair.transmit(0).expect("a packet, which is lost");
        let is_lost_one = |packet: &Packet| match (packet.pds, lost.packet.pds) {
            (Pds::Request(one), Pds::Request(other)) => (one.spdcid, one.psn) == (other.spdcid, other.psn),
            (Pds::Control(one), Pds::Control(other)) => (one.spdcid, one.psn) == (other.spdcid, other.psn),
            _ => false,
        };
        let expiry = pair.feps[0].poll_timeout().unwrap();
        // Others fill the window.
        for process in [1].into_iter().chain([2; 10]) {
            let connection = connect(&mut pair, process);
            pair.post_send(connection, message());
            receive(&mut pair, MTU as usize);
        }
        pair.now = expiry;
        let packets: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
        assert!(packets.len() >= 7, "{closes}: the window is full with {}", packets.len());
        let mut at = expiry;
        while pair.feps[0].counters().timeouts == 0 {
            pair.expire_at(0, at);
            at = pair.feps[0].poll_timeout().unwrap();
        }
        packets.iter().for_each(|packet| pair.arrive(packet));
        pair.flush(1);
        let packets: Vec<_> = std::iter::from_fn(|| pair.transmit(0)).collect();
        packets.iter().position(|transit| is_lost_one(&transit.packet))
    });
    assert!(places.iter().all(|place| place.is_some_and(|place| place <= 2)), "{places:?}");
}

/// Aborts take turns by process. One that aborts many connections with many messages does not keep the other one's waiting.
#[test]
fn processes_take_turns_with_the_messages_that_they_abort() {
    let mut alone = Alone::new(config("constant", 8));
    let connect = |alone: &mut Alone, process| {
        alone.fep.connect_of(process, alone.now, Addr(1), ConnectOptions::default()).unwrap()
    };
    let many = [(); 5].map(|()| connect(&mut alone, 1));
    let few = connect(&mut alone, 2);
    for (&connection, count) in many.iter().zip([400; 5]).chain([(&few, 60)]) {
        for _ in 0..count {
            alone.post_send(connection, message());
        }
    }
    for &connection in many.iter().chain([&few]) {
        alone.fep.begin_abort(alone.now, connection).unwrap();
    }
    let closed = |alone: &mut Alone| -> Vec<ConnectionId> {
        let done = std::iter::from_fn(|| alone.fep.poll_completion());
        done.filter_map(|done| match done {
            Completion::Closed { id, .. } => Some(id),
            _ => None,
        })
        .collect()
    };
    // A turn of the worker each.
    let turn = |alone: &mut Alone| alone.fep.cancel_aborted(alone.now, &mut { 64 << 10 });
    let mut cancelled = 0;
    while closed(&mut alone).is_empty() {
        let count = turn(&mut alone);
        assert!((1..=40).contains(&count), "{count} in a turn");
        cancelled += count;
    }
    assert!((110..=180).contains(&cancelled), "{cancelled} when the few were");
    // The connections of a process take turns as well, so that they end at about the same time.
    let mut ends = Vec::new();
    loop {
        ends.extend(closed(&mut alone).iter().map(|_| cancelled));
        match turn(&mut alone) {
            0 => break,
            count => cancelled += count,
        }
    }
    assert_eq!((cancelled, ends.len()), (2_060, 5));
    assert!(ends[0] >= 1_900, "{ends:?}");
    assert_eq!(alone.fep.leaks().collect::<Vec<_>>(), Vec::<String>::new());
}

/// An endpoint with connections to three peers, of which each acknowledges each packet.
struct Star {
    alone: Alone,
    peers: [Fep; 3],
}

impl Star {
    /// Each process of `processes` has so many connections to each peer. They are opened peer by peer.
    fn new(config: &FepConfig, processes: &[usize]) -> Star {
        let peers = [1, 2, 3].map(|n| fep(n, config.clone(), 3, Time::ZERO));
        let mut star = Star { alone: Alone::new(config.clone()), peers };
        for peer in 0..3 {
            for (process, &connections) in (1..).zip(processes) {
                for _ in 0..connections {
                    star.connect(process, peer);
                }
            }
        }
        star
    }

    fn connect(&mut self, process: u16, peer: usize) {
        let Star { alone, peers } = self;
        let options = ConnectOptions::default();
        let connection = alone.fep.connect_of(process, alone.now, Addr(1 + peer as u32), options).unwrap();
        alone.post_send(connection, message());
        peers[peer].post_receive(receive_any(MTU as usize)).unwrap();
    }

    /// `packet` arrives, and is acknowledged at once.
    fn acknowledge(&mut self, mut packet: Packet) {
        let Pds::Request(request) = &mut packet.pds else { panic!("{packet:?}") };
        request.ack_request = true;
        let Star { alone, peers } = self;
        let peer = &mut peers[packet.net.dst.0 as usize - 1];
        peer.on_packet(alone.now, &packet, Payload::Virtual(packet.payload_len));
        while let Some(answer) = peer.poll_transmit(alone.now) {
            alone.arrive(&answer.packet, &[]);
        }
    }

    /// Closes all windows once and has all packets acknowledged. Then so many packets leave, one by one, the window of each
    /// being open again when it has left. Returns how many of them each connection has sent.
    fn send_one_by_one(&mut self, connections: usize, steps: usize) -> Vec<u64> {
        let burst = self.alone.transmit_all();
        burst.into_iter().for_each(|packet| self.acknowledge(packet));
        let mut packets = vec![0; connections];
        for _ in 0..steps {
            let packet = self.alone.transmit().expect("no window is full");
            packets[connection_of(&packet).unwrap()] += 1;
            self.acknowledge(packet);
        }
        packets
    }
}

#[test]
fn no_connection_starves_at_an_open_window_while_the_link_is_the_limit() {
    let (processes, each) = ([20, 20], 40);
    for window in [1, 3, 8] {
        let packets = Star::new(&config("constant", window), &processes).send_one_by_one(3 * each, 2_400);
        let to_peers: Vec<_> = packets.chunks(each).map(|of_peer| by_process(of_peer, &processes)).collect();
        let of_processes = [0, 1].map(|process| to_peers.iter().map(|parts| parts[process]).sum::<u64>());
        assert!(of_processes[0].abs_diff(of_processes[1]) <= 10, "window {window}: {to_peers:?}");
        let (least, most) = extremes(&to_peers.concat());
        assert!(most - least <= 100, "window {window}: {to_peers:?}");
        let (least, most) = extremes(&packets);
        assert!(least >= 10 && most <= 30, "window {window}: {packets:?}");
    }
}

/// One process has connections to all peers, and others to one only.
#[test]
fn processes_have_equal_parts_of_the_link_when_their_window_is_open_again() {
    let mut star = Star::new(&config("constant", 3), &[30]);
    (2..5).for_each(|process| star.connect(process, 0));
    let packets = star.send_one_by_one(93, 1_000);
    let parts = by_process(&packets, &[90, 1, 1, 1]);
    let (least, most) = extremes(&parts);
    assert!(least >= 200 && most <= 300, "{parts:?}");
}

#[test]
fn processes_leave_no_memory_behind_where_their_connections_waited() {
    let mut alone = Alone::new(config("constant", 1));
    let connect = |alone: &mut Alone, process| {
        let options = ConnectOptions::default();
        let connection = alone.fep.connect_of(process, alone.now, Addr(1), options).unwrap();
        alone.post_send(connection, message());
        connection
    };
    // The window stays full.
    (1..3).for_each(|process| _ = connect(&mut alone, process));
    assert_eq!(alone.transmit_all().len(), 1);
    let mut after = Vec::new();
    for process in 3..103 {
        let waiting: Vec<_> = (0..64).map(|_| connect(&mut alone, process)).collect();
        assert!(alone.transmit().is_none());
        waiting.into_iter().for_each(|connection| alone.fep.abort(alone.now, connection).unwrap());
        alone.transmit_all();
        alone.completions();
        after.push(alone.fep.footprint().contexts);
    }
    assert_eq!(after.last(), after.first(), "{after:?}");
}

/// Another process has connections to the same peers, which have nothing to send.
#[test]
fn no_peer_s_connections_wait_for_ever_for_those_of_others_at_the_link() {
    let mut star = Star::new(&config("constant", 8), &[20]);
    for peer in 1..4 {
        star.alone.fep.connect_of(2, star.alone.now, Addr(peer), ConnectOptions::default()).unwrap();
    }
    let packets = star.send_one_by_one(60, 1_200);
    let (least, most) = extremes(&packets);
    assert!(least >= 10 && most <= 30, "{packets:?}");
}
