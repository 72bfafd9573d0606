//! A simulated host: an endpoint, its link, and its events within a window.

use weft_cc::{Span, Time};
use weft_stack::fep::{Fep, PayloadRef};
use weft_stack::packet::{Packet, Payload};
use weft_stack::prefetch::prefetch_start;
use weft_stack::wire::pds::Pds;
use weft_stack::wire::ses::Ses;

use super::config::{MIN_FRAME, NETWORK_OVERHEAD, Overhead, TRIMMED_PDS};
use super::faults::LinkChange;
use super::flows::{Begin, Beginning, Flows};
use super::link::{Link, LinkSpec};
use super::packets::Transit;
use super::ranks::Ranks;
use super::receiver::Receiver;
use super::sample::PortSample;
use super::wires::{Arrival, Wires};
use crate::switch::Routing;
use crate::topology::{Distances, HostId};

/// A host. The fields that each packet needs come first.
#[repr(C)]
pub(super) struct Host {
    /// The number of the host, which is also the number of its port.
    pub(super) id: u32,
    /// The index of the inbox for packets on their way here.
    pub(super) inbox: u32,
    /// The time of the last event here, ps.
    pub(super) now: u64,
    /// What is yet to begin here at a given time, the next one last.
    pub(super) starts: Vec<(u64, Begin)>,
    /// The numbers of switches on the way to other hosts.
    pub(super) distances: Distances,
    /// Packets that the link lost, packets that arrived damaged, and packets for which the receive queue had no room.
    pub(super) dropped: u64,
    /// The queue for received packets; `None`: they cost no time.
    pub(super) receiver: Option<Box<Receiver>>,
    pub(super) nic: Link,
    pub(super) fep: Fep,
    /// The port at the other end of the link, which sends to this host.
    pub(super) last_hop: u32,
    /// The ranks of a program that run here.
    pub(super) ranks: Option<Box<Ranks>>,
    /// The bytes that the link had sent at the last sample.
    pub(super) sampled_bytes: u64,
}

/// Bytes at the start of [`Host`] that each packet needs.
const HOT: usize = 832;

/// An event at a host. The order of the variants decides between events at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HostEvent {
    /// A received packet has been processed. This comes first, so that it makes room for one that arrives.
    Processed,
    /// A packet arrives.
    Arrival,
    /// The link is free and there is more to send.
    LinkFree,
    /// The endpoint's timer expires.
    Timer,
    /// A flow starts, a trigger is activated, or ranks go on after a time of their own.
    Start,
}

/// Settings of the run that hosts need.
pub(super) struct HostEnv {
    pub(super) shard: u32,
    pub(super) overhead: Overhead,
    pub(super) routing: Routing,
    pub(super) seed: u64,
    /// Whether the arriving bytes of each flow are counted.
    pub(super) sampling: bool,
    /// Whether ranks execute a program, in place of flows.
    pub(super) runs_ranks: bool,
}

impl Host {
    /// The next event and its time.
    #[inline]
    pub(super) fn next_event(&self, wires: &Wires) -> (u64, HostEvent) {
        let mut next = (wires.first(self.inbox), HostEvent::Arrival);
        if let Some(receiver) = &self.receiver {
            next = receiver.or_before(next);
        }
        if self.nic.busy_until < next.0 && self.fep.wants_to_transmit() {
            next = (self.nic.busy_until, HostEvent::LinkFree);
        }
        if let Some(at) = self.fep.poll_timeout()
            && let at = at.as_ps().max(self.now)
            && at < next.0
        {
            next = (at, HostEvent::Timer);
        }
        match self.starts.last() {
            Some(&(at, _)) if at < next.0 => (at, HostEvent::Start),
            _ => next,
        }
    }

    /// Prefetches the fields that each packet needs.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_start(self, HOT);
    }

    /// Prefetches the packets that arrive before `end`, and the endpoint's state for them.
    #[inline]
    pub(super) fn prefetch_arrivals(&self, end: u64, wires: &Wires) {
        self.fep.prefetch();
        wires.before(self.inbox, end).for_each(|arrival| wires.packets.prefetch(&arrival.transit));
    }

    /// Handles one event. Flows that start because of it go to `flows.started`.
    pub(super) fn handle(
        &mut self,
        now: u64,
        event: HostEvent,
        env: &HostEnv,
        flows: &mut Flows,
        wires: &mut Wires,
    ) {
        self.now = now;
        match event {
            HostEvent::Arrival => {
                let Some(Arrival { transit, .. }) = wires.pop(self.inbox) else { return };
                if self.receiver.is_some() {
                    // Until it is processed, the packet changes nothing at the endpoint.
                    return self.queue(now, &transit, wires);
                }
                if !self.refuse_damaged(&transit, wires) {
                    self.take_in(now, Span::ZERO, &transit, env, flows, wires);
                }
            }
            HostEvent::Processed => return self.process(now, env, flows, wires),
            HostEvent::LinkFree => return self.transmit(now, env, wires),
            HostEvent::Timer => self.fep.on_timeout(Time::from_ps(now)),
            HostEvent::Start => match (&mut self.ranks, self.starts.pop().map(|(_, begin)| begin.what())) {
                (Some(ranks), _) => ranks.go_on(now, &mut self.fep),
                (None, Some(Beginning::Flow(slot))) => flows.start(now, slot, &mut self.fep),
                (None, Some(Beginning::Activation(trigger))) => flows.activate(now, Some(trigger)),
                (None, None) => {}
            },
        }
        self.serve(now, env, flows, wires);
    }

    /// Notes what begins here later. Of what begins at the same time, what was noted first comes first.
    #[cold]
    pub(super) fn note(&mut self, at: u64, begin: Begin) {
        let place = self.starts.partition_point(|(other, _)| *other > at);
        self.starts.insert(place, (at, begin));
    }

    /// Starts a flow that a trigger has released.
    #[cold]
    pub(super) fn start(&mut self, now: u64, slot: u32, env: &HostEnv, flows: &mut Flows, wires: &mut Wires) {
        self.now = now;
        flows.start(now, slot, &mut self.fep);
        self.serve(now, env, flows, wires);
    }

    /// Collects the endpoint's completions and lets it send.
    #[inline(always)]
    fn serve(&mut self, now: u64, env: &HostEnv, flows: &mut Flows, wires: &mut Wires) {
        match env.runs_ranks {
            false => flows.collect(now, &mut self.fep),
            true => self.serve_ranks(now, flows),
        }
        self.transmit(now, env, wires);
    }

    /// Hands the endpoint's completions to the ranks.
    #[inline(never)]
    fn serve_ranks(&mut self, now: u64, flows: &mut Flows) {
        let Some(ranks) = &mut self.ranks else { return };
        ranks.collect(now, &mut self.fep, flows);
        self.starts.clear();
        self.starts.extend(ranks.next());
    }

    /// Removes a packet that has been damaged: checksums detect it, so the endpoint never sees the packet.
    #[inline(always)]
    fn refuse_damaged(&mut self, transit: &Transit, wires: &mut Wires) -> bool {
        let damaged = transit.is_corrupt();
        if damaged {
            self.dropped += 1;
            wires.packets.remove(transit);
        }
        damaged
    }

    /// A packet arrives at a host that takes time.
    #[cold]
    fn queue(&mut self, now: u64, transit: &Transit, wires: &mut Wires) {
        if self.refuse_damaged(transit, wires) {
            return;
        }
        if let Some(receiver) = &mut self.receiver
            && !receiver.arrive(now, transit)
        {
            self.dropped += 1;
            wires.packets.lose(transit, now, self.last_hop);
        }
    }

    /// A host that takes time has processed a packet.
    #[cold]
    fn process(&mut self, now: u64, env: &HostEnv, flows: &mut Flows, wires: &mut Wires) {
        if let Some((waited, transit)) = self.receiver.as_mut().and_then(|queue| queue.finish(now)) {
            self.take_in(now, waited, &transit, env, flows, wires);
        }
        self.serve(now, env, flows, wires);
    }

    /// Hands a packet that arrived `waited` before `now` to the endpoint.
    #[inline(always)]
    fn take_in(
        &mut self,
        now: u64,
        waited: Span,
        transit: &Transit,
        env: &HostEnv,
        flows: &mut Flows,
        wires: &mut Wires,
    ) {
        let (packet, payload) = wires.packets.arrived(transit);
        if let Ses::Standard(header) = &packet.ses
            && !env.runs_ranks
        {
            flows.expect(header.match_bits, &mut self.fep);
            if env.sampling {
                flows.count(header.match_bits, payload.len());
            }
        }
        self.fep.on_packet_after(Time::from_ps(now), waited, packet, payload);
        wires.packets.remove(transit);
    }

    /// Lets the endpoint send while the link is free.
    fn transmit(&mut self, now: u64, env: &HostEnv, wires: &mut Wires) {
        while self.nic.busy_until <= now && self.fep.wants_to_transmit() {
            let name = wires.packets.reserve();
            let headers = wires.packets.headers(name);
            let mut payload = PayloadRef::NONE;
            if !self.fep.poll_transmit_into(Time::from_ps(now), headers, &mut payload) {
                return wires.packets.unreserve(name);
            }
            let hops = self.distances.switches_to(HostId(headers.net.dst.0));
            let mut transit = Transit::new(env.shard, name, &headers.net, sizes(env.overhead, headers), hops);
            if env.routing == Routing::Exact {
                transit.flow_hash = u32::from(headers.net.entropy.0);
            }
            if let Payload::Bytes(bytes) = self.fep.payload(&payload)
                && !bytes.is_empty()
            {
                wires.packets.set_bytes(name, bytes.into());
            }
            wires.packets.dispatch(&mut transit);
            self.nic.launch(now, self.id, env.seed, &transit, wires, &mut self.dropped);
        }
    }

    /// Applies a change to the link that leaves this host.
    pub(super) fn change(&mut self, spec: &LinkSpec, change: LinkChange) {
        self.nic.change(spec, change);
    }

    pub(super) fn sample(&mut self, samples: &mut Vec<PortSample>) {
        let sent_bytes = self.nic.take_sent_bytes(&mut self.sampled_bytes);
        if sent_bytes > 0 {
            samples.push(PortSample { port: self.id, data_bytes: 0, control_bytes: 0, sent_bytes });
        }
    }
}

/// The size of a packet on the wire, whole and trimmed, bytes.
fn sizes(overhead: Overhead, packet: &Packet) -> (u16, u16) {
    let fits = |bytes: u32| bytes.min(u32::from(u16::MAX)) as u16;
    match overhead {
        Overhead::Fixed(bytes) => (fits(packet.payload_len + bytes), fits(bytes)),
        Overhead::Auto => {
            let pds = match &packet.pds {
                Pds::Request(request) => 12 + if request.cc.is_some() { 4 } else { 0 },
                Pds::Ack(ack) => 12 + if ack.cc.is_some() { 20 } else { 0 },
                _ => 16,
            };
            let ses = match &packet.ses {
                Ses::None => 0,
                Ses::Standard(_) => 44,
                Ses::ResponseWithData(_) => 20,
                _ => 12,
            };
            let whole = NETWORK_OVERHEAD + pds + ses + packet.payload_len;
            (fits(whole.max(MIN_FRAME)), fits((NETWORK_OVERHEAD + TRIMMED_PDS).max(MIN_FRAME)))
        }
    }
}
