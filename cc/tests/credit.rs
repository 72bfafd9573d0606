//! Credit over a network that loses and reorders messages: it must neither leak nor stall.

use std::collections::VecDeque;

use proptest::prelude::*;
use weft_cc::credit::{GrantLedger, QUANTUM, SenderCredit};
use weft_cc::rccc::{Rccc, RcccConfig};
use weft_cc::{CcParams, DataSample, Delays, Rate, ReceiverCc, SenderId, Span, Time, Trim};

const PARAMS: CcParams = CcParams {
    mtu: 4096,
    overhead: 64,
    link_rate: Rate::from_gbps(100),
    network_rtt: Span::from_us(12),
    trimming: true,
    delays: Delays::Known,
};
const STEP: Span = Span::from_us(2);
const ME: SenderId = SenderId(0);

/// A message on the network.
#[derive(Clone, Copy)]
enum Message {
    Data { bytes: u64, scheduled: bool, trimmed: bool, target: u32 },
    Request { target: u32 },
    Credit { total: u32 },
    Nack { bytes: u64 },
}

/// The treatment of one message by the network.
enum Fate {
    Deliver,
    Delay,
    Trim,
    Lose,
}

/// The quality of the network: chances in percent, drawn with a generator of its own.
#[derive(Clone, Copy, Debug)]
struct Weather {
    seed: u64,
    lose: u64,
    trim: u64,
    delay: u64,
}

impl Weather {
    const FINE: Weather = Weather { seed: 1, lose: 0, trim: 0, delay: 0 };

    fn fate(&mut self) -> Fate {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let draw = (self.seed >> 32) % 100;
        if draw < self.lose {
            Fate::Lose
        } else if draw < self.lose + self.trim {
            Fate::Trim
        } else if draw < self.lose + self.trim + self.delay {
            Fate::Delay
        } else {
            Fate::Deliver
        }
    }
}

struct Link {
    credit: SenderCredit,
    ledger: GrantLedger,
    receiver: Rccc,
    cap: u64,
    now: Time,
    messages: VecDeque<Message>,
    delayed: Vec<Message>,
    weather: Weather,
    backlog: u64,
    rtx_backlog: u64,
    lost: u64,
    /// Bytes granted in all, bytes sent on credit, bytes delivered whole.
    granted: u64,
    /// Bytes of credit that may come of nothing, because the two ends had lost each other.
    forgiven: u64,
    scheduled_sent: u64,
    delivered: u64,
}

impl Link {
    fn new(config: &RcccConfig, params: &CcParams, weather: Weather) -> Link {
        let cap = config.credit_cap(params);
        Link {
            credit: SenderCredit::new(cap, params.wire_mtu()),
            ledger: GrantLedger::with_largest_demand(config.largest_demand(params)),
            receiver: Rccc::new(config, params),
            cap,
            now: Time::from_ps(u64::MAX - 50_000_000),
            messages: VecDeque::new(),
            delayed: Vec::new(),
            weather,
            backlog: 0,
            rtx_backlog: 0,
            lost: 0,
            granted: 0,
            forgiven: 0,
            scheduled_sent: 0,
            delivered: 0,
        }
    }

    /// The sender forgets everything but what it has to send. Its balance, however small, is gone; the
    /// total that it then takes over fills the new one.
    fn restart_sender(&mut self, wire_mtu: u64) {
        self.credit = SenderCredit::new(self.cap, wire_mtu);
        self.forgiven += 2 * self.cap;
    }

    /// The receiver forgets the sender.
    fn restart_receiver(&mut self, config: &RcccConfig, params: &CcParams) {
        self.ledger = GrantLedger::with_largest_demand(config.largest_demand(params));
        self.receiver.on_leave(self.now, ME);
        self.forgiven += 2 * self.cap;
    }

    /// Both ends have been in use for long, and count from places that have nothing to do with each
    /// other. The sender has no credit left.
    fn estrange(&mut self, pulled: u32, granted: Option<u32>) {
        for part in 1..=8 {
            self.credit.on_credit_total((u64::from(pulled) * part / 8) as u32);
            self.credit.on_send(self.credit.balance().max(0) as u64);
        }
        for _ in 0..granted.map_or(0, |_| 8) {
            self.ledger.on_grant(u64::from(granted.unwrap_or(0)) / 8 * QUANTUM);
        }
        if granted.is_some() {
            self.ledger.on_target(self.ledger.total());
        }
        self.forgiven += 2 * self.cap;
    }

    fn transmit(&mut self, message: Message) {
        match (self.weather.fate(), message) {
            (Fate::Deliver, m) => self.messages.push_back(m),
            (Fate::Delay, m) => self.delayed.push(m),
            (Fate::Trim, Message::Data { bytes, scheduled, target, .. }) => {
                self.messages.push_back(Message::Data { bytes, scheduled, trimmed: true, target });
            }
            (Fate::Trim, m) => self.messages.push_back(m),
            (Fate::Lose, Message::Data { bytes, .. } | Message::Nack { bytes }) => self.lost += bytes,
            (Fate::Lose, _) => {}
        }
    }

    fn send(&mut self, wire_mtu: u64) {
        while self.credit.may_send() && self.backlog + self.rtx_backlog > 0 {
            let fresh = self.rtx_backlog == 0;
            let from = if fresh { &mut self.backlog } else { &mut self.rtx_backlog };
            let bytes = (*from).min(wire_mtu);
            *from -= bytes;
            let scheduled = !self.credit.is_speculating();
            self.credit.on_send(bytes);
            self.scheduled_sent += if scheduled { bytes } else { 0 };
            let target = self.credit.credit_target(self.backlog, self.rtx_backlog, None, 0);
            self.transmit(Message::Data { bytes, scheduled, trimmed: false, target });
        }
        if self.backlog + self.rtx_backlog > 0 && !self.credit.may_send() {
            let target = self.credit.credit_target(self.backlog, self.rtx_backlog, None, 0);
            self.transmit(Message::Request { target });
        }
    }

    fn grant(&mut self) {
        while let Some(grant) = self.receiver.poll_credit(self.now) {
            self.granted += grant.bytes;
            let total = self.ledger.on_grant(grant.bytes);
            self.transmit(Message::Credit { total });
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Data { bytes, scheduled, trimmed, target } => {
                let trim = trimmed.then_some(Trim::InFabric);
                let sample =
                    DataSample { bytes, scheduled, ecn: false, trimmed: trim, congested_sender: false };
                self.receiver.on_data(self.now, ME, &sample);
                self.receiver.on_demand(self.now, ME, self.ledger.on_target(target));
                if trimmed {
                    self.transmit(Message::Nack { bytes });
                } else {
                    self.delivered += bytes;
                    self.transmit(Message::Credit { total: self.ledger.total() });
                }
            }
            Message::Request { target } => {
                let wanted = self.ledger.on_target(target);
                self.receiver.on_demand(self.now, ME, wanted);
                if wanted == 0 {
                    self.transmit(Message::Credit { total: self.ledger.total() });
                }
            }
            Message::Credit { total } => {
                self.credit.on_credit_total(total);
            }
            Message::Nack { bytes } => {
                self.credit.on_feedback();
                self.rtx_backlog += bytes;
            }
        }
        self.grant();
    }

    fn step(&mut self, wire_mtu: u64) {
        self.now += STEP;
        self.send(wire_mtu);
        for message in std::mem::take(&mut self.messages) {
            self.deliver(message);
        }
        // Delayed messages have been overtaken by now.
        for message in std::mem::take(&mut self.delayed) {
            self.messages.push_back(message);
        }
        // The retransmission timer.
        self.rtx_backlog += std::mem::take(&mut self.lost);
        self.grant();
        assert!(self.credit.balance() <= self.cap as i64, "stored credit is capped");
        assert!(
            self.scheduled_sent <= self.granted + self.forgiven + wire_mtu,
            "{} B sent on {} B of credit",
            self.scheduled_sent,
            self.granted
        );
    }
}

fn weather() -> impl Strategy<Value = Weather> {
    (1..u64::MAX, 0..40_u64, 0..30_u64, 0..30_u64).prop_map(|(seed, lose, trim, delay)| Weather {
        seed,
        lose,
        trim,
        delay,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_message_arrives_and_no_credit_stays_outstanding(
        slow_credit_bdp in prop_oneof![Just(0.0), Just(1.5)],
        weather in weather(),
        sizes in prop::collection::vec(1..400_000_u64, 1..12),
    ) {
        let config = RcccConfig { slow_credit_bdp, ..RcccConfig::default() };
        let mut link = Link::new(&config, &PARAMS, weather);
        for size in &sizes {
            let goal = link.delivered + size;
            link.backlog += size;
            let mut steps = 0;
            while link.delivered < goal {
                link.step(PARAMS.wire_mtu());
                steps += 1;
                prop_assert!(steps < 20_000, "stalled at {} of {goal} B", link.delivered);
            }
        }
        // Let everything in the network arrive, then stay silent until credit counts as lost.
        link.weather = Weather::FINE;
        for _ in 0..200 {
            link.step(PARAMS.wire_mtu());
        }
        prop_assert_eq!(link.delivered, sizes.iter().sum::<u64>());
        link.now += Span::from_ms(10);
        link.receiver.on_demand(link.now, ME, 0);
        prop_assert_eq!(link.receiver.outstanding(ME), 0);
    }
}

/// Steps that the link takes for `bytes` of credit.
fn steps_for(bytes: u64) -> u64 {
    Span::from_ps(bytes * 80 * 100 / 99).as_ps().div_ceil(STEP.as_ps())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn either_end_may_restart_at_any_time(
        weather in weather(),
        pulled in 0..1_u32 << 24,
        restarts in prop::collection::vec((1..300_u64, any::<bool>()), 1..8),
    ) {
        let config = RcccConfig::default();
        let wire_mtu = PARAMS.wire_mtu();
        let mut link = Link::new(&config, &PARAMS, weather);
        link.estrange(pulled, None);
        let mut goal = 0;
        for (steps, sender) in restarts {
            link.backlog += steps * 20_000;
            goal += steps * 20_000;
            for _ in 0..steps {
                link.step(wire_mtu);
            }
            if sender {
                link.restart_sender(wire_mtu);
            } else {
                link.restart_receiver(&config, &PARAMS);
            }
        }
        // Enough time even if only every third packet arrives.
        let patience = 40 * (steps_for(goal) + steps_for(16 * link.cap));
        let mut steps = 0;
        while link.delivered < goal {
            link.step(wire_mtu);
            steps += 1;
            prop_assert!(steps < patience, "stalled at {} of {goal} B", link.delivered);
        }
    }

    #[test]
    fn a_receiver_that_forgot_the_sender_delays_it_by_one_demand(pulled in 0..1_u32 << 24, size in 1..2_000_000_u64) {
        let config = RcccConfig::default();
        let mut link = Link::new(&config, &PARAMS, Weather::FINE);
        link.estrange(pulled, None);
        link.backlog = size;
        let patience = steps_for(size + config.largest_demand(&PARAMS)) + 4;
        for _ in 0..patience {
            link.step(PARAMS.wire_mtu());
        }
        prop_assert_eq!(link.delivered, size);
    }

    #[test]
    fn unrelated_counters_agree_again(
        pulled in 0..1_u32 << 24,
        granted in 0..1_u32 << 24,
        size in 1..2_000_000_u64,
    ) {
        let config = RcccConfig::default();
        let mut link = Link::new(&config, &PARAMS, Weather::FINE);
        link.estrange(pulled, Some(granted));
        link.backlog = size;
        let patience = steps_for(size + 16 * config.largest_demand(&PARAMS)) + 4;
        for _ in 0..patience {
            link.step(PARAMS.wire_mtu());
        }
        prop_assert_eq!(link.delivered, size);
    }
}

#[test]
fn transfers_continue_when_the_counters_wrap() {
    let params = CcParams { mtu: 65_536 - 64, network_rtt: Span::from_ms(2), ..PARAMS };
    let config = RcccConfig { pull: 1 << 20, ..RcccConfig::default() };
    let mut link = Link::new(&config, &params, Weather { seed: 7, lose: 20, trim: 5, delay: 20 });
    // 9 GiB are more than twice round a counter of 2^24 · 256 B = 4 GiB.
    let size = 9 << 30;
    link.backlog = size;
    let started = link.now;
    while link.delivered < size {
        link.step(params.wire_mtu());
        assert!(link.now.since(started) < Span::from_ms(3_000), "stalled at {} B", link.delivered);
    }
    assert!(link.granted > 2 * (QUANTUM << 24));
}

/// A sender restarts when the receiver's counter is half of the range away from the sender's new one. The messages
/// in the network then tell each end the other's counter.
#[test]
fn the_two_ends_do_not_swap_their_counters() {
    for pulled in (8_355_000..8_400_000).step_by(500) {
        let wire_mtu = PARAMS.wire_mtu();
        let mut link = Link::new(&RcccConfig::default(), &PARAMS, Weather::FINE);
        link.estrange(pulled, None);
        link.backlog = 10_000_000;
        (0..20).for_each(|_| link.step(wire_mtu));
        link.restart_sender(wire_mtu);
        let patience = 2 * steps_for(link.backlog + 16 * link.cap);
        let mut steps = 0;
        while link.delivered < 10_000_000 {
            link.step(wire_mtu);
            steps += 1;
            assert!(steps < patience, "stalled at {} B", link.delivered);
        }
    }
}
