//! A target keeps quiet about up to 16 KiB that it has accepted. Nobody may ever wait for what is kept quiet
//! about: where no packet is lost, everything is delivered without a timer, whatever is trimmed or overtaken and
//! whatever the windows do meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_stack::buffer::Buffer;
use weft_stack::cc::{AckSample, CcChoice, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Window};
use weft_stack::fep::{Completion, ConnectOptions, ConnectionId, Fep, FepConfig, Receive, Send};
use weft_stack::packet::{Addr, Class, Packet, Payload};
use weft_stack::pdc::{PdcConfig, RodReceive};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::pds::{DeliveryMode, PdcId, Pds};
use weft_stack::wire::ses::Ses;
use weft_stack::{Rate, Span, Time};

/// Longer than any run lasts: no retransmission timer expires.
const NEVER: Span = Span::from_ms(1_000_000);

/// A window that jumps with every answer, as no sane one does.
struct Jumps {
    rng: Rng,
    packet: u64,
    /// Packets, to draw from.
    windows: &'static [u64],
    window: u64,
}

impl Jumps {
    fn jump(&mut self) {
        let which = self.rng.below(self.windows.len() as u32) as usize;
        self.window = self.windows[which] * self.packet;
    }
}

impl SenderCc for Jumps {
    fn on_ack(&mut self, _: Time, _: &AckSample) {
        self.jump();
    }
    fn on_nack(&mut self, _: Time, _: &NackSample) {
        self.jump();
    }
    fn on_timeout(&mut self, _: Time, _: &LossSample) {
        panic!("a timer has expired");
    }
    fn window(&self) -> Window {
        Window(self.window)
    }
    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot { cwnd: self.window, ..CcSnapshot::default() }
    }
}

/// What a case draws from its seed.
struct Case {
    seed: u64,
    trim: f64,
    mark: f64,
    slow: f64,
    mtu: u32,
    windows: &'static [u64],
    rod: Option<RodReceive>,
    connections: usize,
    messages: u32,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u32) as usize]
}

impl Case {
    fn new(seed: u64) -> Case {
        let rng = &mut Rng::new(seed, 1);
        Case {
            seed,
            trim: pick(rng, &[0.0, 0.05, 0.3, 0.6]),
            mark: pick(rng, &[0.0, 0.0, 0.2]),
            slow: pick(rng, &[0.0, 0.02, 0.2]),
            mtu: pick(rng, &[256, 1_000, 4_096, 9_000]),
            windows: pick(rng, &[&[1][..], &[0, 1, 2], &[1, 8], &[1, 2, 3, 4, 12, 40], &[1 << 20]]),
            rod: pick(rng, &[None, None, Some(RodReceive::GoBackN)]),
            connections: pick(rng, &[1, 1, 2, 5]),
            messages: pick(rng, &[1, 2, 6]),
        }
    }

    fn config(&self) -> FepConfig {
        let windows = self.windows;
        let seed = self.seed;
        let factory = move |params: &CcParams| {
            let window = 40 * params.wire_mtu();
            Box::new(Jumps { rng: Rng::new(seed, 2), packet: params.wire_mtu(), windows, window })
                as Box<dyn SenderCc + std::marker::Send>
        };
        let params = CcParams {
            mtu: self.mtu,
            overhead: 64,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(20),
            trimming: true,
        };
        let base = FepConfig::new(&CcChoice::custom("jumps", Arc::new(factory)), &params);
        let rod_receive = self.rod.unwrap_or(base.pdc.rod_receive);
        let pdc = PdcConfig { rto_init: NEVER, mp_range: 128, rod_receive, ..base.pdc };
        FepConfig { pdc, idle_timeout: NEVER, busy_timeout: NEVER, ..base }
    }
}

/// Two endpoints and a network that delays, trims and marks, and loses nothing.
struct World {
    case: Case,
    rng: Rng,
    now: Time,
    feps: [Fep; 2],
    /// By arrival, and by number where that is the same.
    wire: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    /// When the last packet of each ROD PDC arrives: all of one take the same path.
    in_order: BTreeMap<PdcId, u64>,
}

impl World {
    fn new(case: Case) -> World {
        let config = Arc::new(case.config());
        let fep = |n| Fep::new(Addr(n), config.clone(), Rng::new(case.seed, u64::from(n)), Time::ZERO);
        World {
            rng: Rng::new(case.seed, 3),
            now: Time::ZERO,
            feps: [fep(0).unwrap(), fep(1).unwrap()],
            wire: BTreeMap::new(),
            sent: 0,
            in_order: BTreeMap::new(),
            case,
        }
    }

    /// Posts all messages; returns how many.
    fn post(&mut self) -> u64 {
        let mode = if self.case.rod.is_some() { DeliveryMode::Rod } else { DeliveryMode::Rud };
        let options = ConnectOptions { mode, ..ConnectOptions::default() };
        let connect = |_| self.feps[0].connect(self.now, Addr(1), options).unwrap();
        let connections: Vec<ConnectionId> = (0..self.case.connections).map(connect).collect();
        let mut tag = 0;
        for connection in connections {
            for _ in 0..self.case.messages {
                let packets = pick(&mut self.rng, &[1, 3, 4, 9, 60, 300]);
                let len = packets * self.case.mtu - pick(&mut self.rng, &[0, 1, self.case.mtu - 1]);
                let buffer = || Buffer::Virtual(len);
                let send = Send { buffer: buffer(), tag: Some(tag), header_data: 0, context: 0 };
                self.feps[0].post_send(connection, send).unwrap();
                let matching = Matching::Tagged { tag, ignore: 0 };
                let receive = Receive { buffer: buffer(), from: None, matching, context: 0 };
                self.feps[1].post_receive(receive).unwrap();
                tag += 1;
            }
        }
        tag
    }

    /// Everything that wants to leave does.
    fn transmit(&mut self) {
        for fep in 0..2 {
            while let Some(transmit) = self.feps[fep].poll_transmit(self.now) {
                self.put_on_wire(transmit.packet);
            }
        }
    }

    fn put_on_wire(&mut self, mut packet: Packet) {
        let mut delay = Span::from_us(5).as_ps() + u64::from(self.rng.below(15_000_000));
        if self.rng.chance(self.case.slow) {
            // Not more: an endpoint does not believe a NACK that comes eight times as soon as any answer did.
            delay += Span::from_us(20).as_ps();
        }
        let mut arrival = self.now.since(Time::ZERO).as_ps() + delay;
        if packet.net.class == Class::Data {
            if self.rng.chance(self.case.trim) {
                packet.net.class = Class::Trimmed;
                packet.ses = Ses::None;
            } else if let Pds::Request(request) = &packet.pds
                && request.mode == DeliveryMode::Rod
            {
                let last = self.in_order.entry(request.spdcid).or_default();
                arrival = arrival.max(*last);
                *last = arrival;
            }
            packet.net.ecn = self.rng.chance(self.case.mark);
        }
        self.sent += 1;
        self.wire.insert((arrival, self.sent), packet);
    }

    /// The next packet arrives. False if there is none.
    fn deliver(&mut self) -> bool {
        let Some(((arrival, _), packet)) = self.wire.pop_first() else { return false };
        self.now = Time::ZERO + Span::from_ps(arrival);
        let trimmed = packet.net.class != Class::Data;
        let payload = if trimmed { Payload::EMPTY } else { Payload::Virtual(packet.payload_len) };
        self.feps[packet.net.dst.0 as usize].on_packet(self.now, &packet, payload);
        true
    }

    /// Messages of which the sender has learned that they have arrived.
    fn delivered(&mut self) -> u64 {
        let completions = std::iter::from_fn(|| self.feps[0].poll_completion());
        completions.filter(|done| matches!(done, Completion::Sent { result: Ok(()), .. })).count() as u64
    }

    /// Runs until nothing moves.
    fn run(&mut self) {
        let posted = self.post();
        let mut delivered = 0;
        loop {
            self.transmit();
            delivered += self.delivered();
            assert!(self.sent < 1_000_000, "seed {}: does not come to an end", self.case.seed);
            if !self.deliver() {
                break;
            }
        }
        let waiting = self.feps[0].explain(self.now);
        assert_eq!(delivered, posted, "seed {}: all is quiet, but {waiting:#?}", self.case.seed);
    }
}

#[test]
fn nothing_waits_for_an_acknowledgement_that_is_withheld() {
    let cases = std::env::var("WEFT_WITHHELD_CASES").map_or(3_000, |text| text.parse().unwrap());
    for seed in 0..cases {
        World::new(Case::new(seed)).run();
    }
}
