//! Two endpoints with the timers of production, over a path whose faults depend on direction, size and time, and may
//! last for ever. Every message is delivered, or fails within the bound that the configuration states; if all faults
//! end, every message is delivered.

use std::collections::BTreeMap;

use weft_cc::{CcParams, Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::event::{Event, Recorder};
use weft_stack::fep::{
    Completion, ConnectOptions, Failure, Fep, FepConfig, Receive, ReceiveError, Send, SendError, Windows,
};
use weft_stack::packet::Addr;
use weft_stack::pdc::{MAX_DOUBLINGS, PdcConfig};
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::spray::LbChoice;
use weft_stack::spray::registry::BALANCERS;
use weft_stack::wire::pds::{DeliveryMode, NackCode};

use super::{Choices, congestion_control};
use crate::harness::{self, Pair, Transit, params};

/// No run lasts so long.
const LIMIT: Span = Span::from_ms(3_600_000);

/// How often a packet leaves while its peer is silent: after 0, 1, 3, 7, … 59 RTO. At 63 RTO it is given up.
const TRANSMISSIONS_IN_SILENCE: usize = 17;

/// What happens to the packets of one direction.
#[derive(Debug)]
struct Direction {
    /// Probability that a packet is lost.
    loss: f64,
    /// From when on, and until when, packets are lost, or those whose payload is longer than `over`, if there is one.
    hole: Option<(Time, Option<Time>)>,
    over: Option<u32>,
    /// How long a packet takes: from the first to both together.
    delay: (Span, Span),
}

impl Direction {
    fn new(choices: &mut Choices<'_>, rto: Span, lasts: bool) -> Direction {
        let begin = Time::ZERO + rto.mul_f64(f64::from(choices.byte() % 8) / 4.0);
        let length = rto.times(u64::from(choices.byte() % 20));
        let has_hole = choices.byte() & 1 == 0;
        Direction {
            loss: choices.pick(&[0.0, 0.0, 0.1, 0.15]),
            hole: has_hole.then(|| (begin, (!lasts).then(|| begin + length))),
            over: choices.pick(&[None, None, Some(0), Some(60), Some(500)]),
            delay: (Span::from_us(20), Span::from_us(choices.pick(&[0, 5, 200]))),
        }
    }

    fn lasts(&self) -> bool {
        matches!(self.hole, Some((_, None)))
    }

    /// How long `transit` takes; `None` if it is lost.
    fn pass(&self, rng: &mut Rng, transit: &Transit) -> Option<Span> {
        let inside = self.hole.is_some_and(|(begin, end)| {
            transit.sent_at.is_at_or_after(begin) && end.is_none_or(|end| transit.sent_at.is_before(end))
        });
        let swallowed = inside && self.over.is_none_or(|over| transit.packet.payload_len > over);
        let lost = rng.chance(self.loss) || swallowed;
        let more = self.delay.1.mul_f64(rng.below(1_000) as f64 / 1_000.0);
        (!lost).then(|| self.delay.0 + more)
    }
}

/// A message, and what has become of it at its sender and at its receiver.
struct Message {
    from: usize,
    len: u32,
    sent: Option<Result<(), SendError>>,
    received: Option<Result<(), ReceiveError>>,
}

struct Run {
    config: FepConfig,
    pair: Pair,
    rng: Rng,
    directions: [Direction; 2],
    under_way: Vec<(Time, Transit)>,
    messages: Vec<Message>,
    recorder: Recorder,
    /// When each packet was sent, by endpoint, PDC and PSN.
    sent: BTreeMap<(u32, u16, u32), Vec<Time>>,
    /// When a packet last arrived that had not arrived before, or a message was posted.
    news_at: Time,
}

fn config(choices: &mut Choices<'_>) -> FepConfig {
    let cc = congestion_control(choices);
    let params = CcParams {
        mtu: choices.pick(&[64, 1_000]),
        network_rtt: Span::from_us(50),
        trimming: choices.byte() & 1 == 0,
        ..params()
    };
    let base = FepConfig::new(&cc, &params).with_zones(|zone| {
        zone.lb = LbChoice::parse(BALANCERS[choices.below(BALANCERS.len())].name).unwrap();
        zone.pdc = PdcConfig { ack_bytes: choices.pick(&[1, 4_096, 16_384]), ..zone.pdc };
    });
    FepConfig { windows: choices.pick(&[Windows::Pair, Windows::Flow]), ..base }
}

fn bytes_of(number: usize, len: u32) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(29) ^ (number as u32 * 11)) as u8).collect()
}

impl Run {
    fn new(choices: &mut Choices<'_>) -> Run {
        let config = config(choices);
        let rto = config.zones.longest_rto();
        let lasting = choices.byte() % 4;
        let feps = [0, 1].map(|n| harness::fep(n, config.clone(), u64::from(choices.byte()), Time::ZERO));
        let mut run = Run {
            pair: Pair::of(feps, Time::ZERO),
            rng: Rng::new(u64::from(choices.word()), 5),
            directions: [0, 1].map(|n| Direction::new(choices, rto, lasting >> n & 1 == 1)),
            under_way: Vec::new(),
            messages: Vec::new(),
            recorder: Recorder::default(),
            sent: BTreeMap::new(),
            news_at: Time::ZERO,
            config,
        };
        for (fep, host) in run.pair.feps.iter_mut().zip(0..) {
            fep.subscribe(run.recorder.subscriber(host).expect("all hosts are selected"));
        }
        run
    }

    fn lasts(&self) -> bool {
        self.directions.iter().any(Direction::lasts)
    }

    /// Posts messages on a new connection, which is closed after them, and their receives.
    fn post(&mut self, choices: &mut Choices<'_>) {
        let from = choices.below(2);
        let mode = choices.pick(&[DeliveryMode::Rud, DeliveryMode::Rud, DeliveryMode::Rod]);
        let options = ConnectOptions::default().mode(mode);
        let connection = self.pair.connect_from(from, options);
        for _ in 0..=choices.below(4) {
            let number = self.messages.len();
            let len = match choices.byte() % 4 {
                0 => u32::from(choices.byte() % 2),
                1 => u32::from(choices.byte()),
                2 => u32::from(choices.byte()) * 16,
                _ => self.config.mtu * u32::from(choices.byte() % 64),
            };
            let receive = Receive {
                buffer: Buffer::Heap(vec![0; len as usize]),
                from: Some(Addr(from as u32).into()),
                matching: Matching::Tagged { tag: number as u64, ignore: 0 },
                context: number as u64,
            };
            self.pair.feps[1 - from].post_receive(receive).unwrap();
            let buffer = Buffer::Heap(bytes_of(number, len));
            let (tag, context) = (Some(number as u64), number as u64);
            let send = Send { buffer, tag, header_data: 0, context };
            self.pair.feps[from].post_send(connection, send).unwrap();
            self.messages.push(Message { from, len, sent: None, received: None });
        }
        self.pair.feps[from].close(self.pair.now, connection).unwrap();
        self.news_at = self.pair.now;
    }

    /// Goes on until `until`, or until no packet is under way and no timer is left. Returns whether the latter is so.
    fn advance(&mut self, until: Time) -> bool {
        loop {
            for side in 0..2 {
                while let Some(transit) = self.pair.transmit(side) {
                    if let Some(delay) = self.directions[side].pass(&mut self.rng, &transit) {
                        self.under_way.push((self.pair.now + delay, transit));
                    }
                }
            }
            self.collect();
            let first = self.under_way.iter().map(|(at, _)| *at).reduce(Time::earliest);
            let next = first.into_iter().chain(self.pair.next_timer()).reduce(Time::earliest);
            let Some(next) = next else { return true };
            if !next.is_before(until) {
                self.pair.now = until;
                return false;
            }
            self.pair.now = next.latest(self.pair.now);
            let now = self.pair.now;
            for (_, transit) in self.under_way.extract_if(.., |(at, _)| now.is_at_or_after(*at)) {
                self.pair.arrive(&transit);
            }
            self.pair.feps.iter_mut().for_each(|fep| fep.on_timeout(now));
        }
    }

    fn collect(&mut self) {
        for record in self.recorder.take() {
            match record.event {
                Event::DataReceived { .. } => self.news_at = record.at,
                Event::DataSent { pdc, psn, .. } => {
                    self.sent.entry((record.host, pdc.0, psn.0)).or_default().push(record.at);
                }
                _ => {}
            }
        }
        for side in 0..2 {
            for completion in self.pair.completions(side) {
                self.complete(side, completion);
            }
        }
    }

    fn complete(&mut self, side: usize, completion: Completion) {
        match completion {
            Completion::Sent { context, result, .. } => {
                let message = &mut self.messages[context as usize];
                assert_eq!((message.from, message.sent), (side, None), "a message completes once");
                message.sent = Some(result);
                if let Err(error) = result {
                    self.judge(context as usize, error);
                }
            }
            Completion::Received { context, buffer, result, .. } => {
                let number = context as usize;
                let message = &mut self.messages[number];
                assert_eq!((1 - message.from, message.received), (side, None), "a message is received once");
                let whole = result.is_err() || buffer == Buffer::Heap(bytes_of(number, message.len));
                assert!(whole, "message {number} is not what was sent");
                assert!(matches!(result, Ok(()) | Err(ReceiveError::PeerLost)), "{result:?}");
                message.received = Some(result);
            }
            Completion::Read { .. } | Completion::Accessed { .. } | Completion::Written(_) => {
                panic!("this model reads nothing")
            }
            Completion::Closed { result, .. } => {
                assert!(result.is_ok() || self.lasts(), "{result:?}");
            }
        }
    }

    /// A message fails only for a fault that lasts, and in time.
    fn judge(&self, number: usize, error: SendError) {
        assert!(self.lasts(), "message {number} has failed without a fault that lasts: {error}");
        let SendError::Failed(failure) = error else { panic!("message {number}: {error}") };
        let pdc = self.config.zones.iter().next().expect("there is a zone").pdc;
        let busy = self.busy_timeout();
        // Or it was silent for most of the time in which a busy peer is waited for.
        let silence = pdc.silence(pdc.rto_init).min(busy.mul_f64(0.5));
        let (least, waited) = match failure {
            Failure::NoAnswer { pdc: id, psn, waited, .. } => {
                let name = (self.messages[number].from as u32, id.0, psn.0);
                let sent = self.sent.get(&name).into_iter().flatten();
                let vain = sent.filter(|at| self.pair.now.since(**at) <= waited).count();
                assert!(vain <= TRANSMISSIONS_IN_SILENCE, "message {number}: {failure}: {vain} in vain");
                (silence, waited)
            }
            Failure::Busy { waited, .. }
            | Failure::NoCredit { waited, .. }
            | Failure::NoProgress { waited, .. } => (busy, waited),
            Failure::Refused { code: NackCode::INV_DPDCID, .. } => return,
            other => panic!("message {number}: {other}"),
        };
        let slack = pdc.rto_init.times(1 << MAX_DOUBLINGS);
        assert!((least..=busy + slack).contains(&waited), "message {number}: {failure}");
    }

    fn busy_timeout(&self) -> Span {
        self.config.busy_timeout.bound().expect("it is not endless")
    }

    /// The longest time for which anything may happen after the last news: initiators learn within one bound what has
    /// arrived and give up within another, their closing may take a third, and then targets notice.
    fn patience(&self) -> Span {
        let slack = self.config.zones.longest_rto().times(1 << MAX_DOUBLINGS);
        (self.busy_timeout() + slack).times(3) + self.config.idle_timeout.times(2) + self.config.time_wait
    }

    /// Runs until nothing happens any more, and checks the result.
    fn finish(&mut self) {
        let settled = self.advance(Time::ZERO + LIMIT);
        assert!(settled, "something goes on: {:#?}", self.pair.explain());
        let late = self.pair.now.since(self.news_at);
        assert!(late <= self.patience(), "something happened for {late} after the last news");
        let mut failed = BTreeMap::new();
        for (number, message) in self.messages.iter().enumerate() {
            match (message.sent, message.received) {
                (Some(Ok(())), Some(Ok(()))) => {}
                // The last answers were lost, or the receiver has nothing of the message, or a part.
                (Some(Err(_)), Some(Ok(()) | Err(ReceiveError::PeerLost)) | None) => {
                    *failed.entry(1 - message.from).or_insert(0) += usize::from(message.received.is_none());
                }
                (sent, received) => panic!("message {number}: sent {sent:?}, received {received:?}"),
            }
        }
        for (side, fep) in self.pair.feps.iter().enumerate() {
            let waiting = failed.get(&side).copied().unwrap_or(0);
            let excused = (waiting > 0).then(|| format!("{waiting} posted receives"));
            let leaks: Vec<String> = Fep::leaks(fep).filter(|leak| Some(leak) != excused.as_ref()).collect();
            assert!(leaks.is_empty(), "endpoint {side}: {leaks:?}");
        }
    }
}

/// Whatever the path swallows, every message is delivered once, or ends with an error in time; and nothing is left. Returns the packets
/// that arrived, and the bytes of their payloads.
pub(crate) fn every_message_ends(bytes: &[u8]) -> (u64, u64) {
    let mut choices = Choices(bytes);
    let mut run = Run::new(&mut choices);
    for _ in 0..=choices.below(8) {
        run.post(&mut choices);
        let pause = choices.pick(&[Span::ZERO, Span::from_us(30), Span::from_ms(100), Span::from_ms(15_000)]);
        run.advance(run.pair.now + pause);
    }
    run.finish();
    run.pair.arrived
}
