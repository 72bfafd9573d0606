//! Credit between one sender and one receiver, in the cumulative 24-bit counters of the wire.
//!
//! Both directions speak of the same counter, in quanta of 256 bytes since the connection began,
//! modulo 2^24 (UET: `credit` in CREDIT packets and ACKs, `credit_target` in RUD_CC requests). The
//! receiver says up to where it has granted, the sender up to where it would like to be granted.
//! Because they are totals, a lost or reordered message is healed by the next one.
//!
//! [`SenderCredit`] is the sender's half, [`GrantLedger`] the receiver's. Which sender is served
//! when is the business of a [`ReceiverCc`](crate::ReceiverCc), such as [`Rccc`](crate::rccc::Rccc).

/// Bytes in one quantum of credit.
pub const QUANTUM: u64 = 256;
/// Bits of a cumulative counter on the wire.
pub const COUNTER_BITS: u32 = 24;

const COUNTER_MASK: u32 = (1 << COUNTER_BITS) - 1;
/// Half of the counter's range, the largest distance that can be told apart from a step back.
const HALF_RANGE: i64 = 1 << (COUNTER_BITS - 1);
/// Most credit that either side handles at once: a quarter of the counter's range, 1 GiB.
pub const LARGEST_CREDIT: u64 = (1 << (COUNTER_BITS - 2)) * QUANTUM;

/// The farthest ahead that a total is taken over by a sender, quanta: 1.5 GiB. More than the 1 GiB up to which a receiver
/// answers a sender that lags behind with its total; and less than half of the range, so that two ends that have lost each
/// other cannot both take over the other's counter, again and again, and gain credit each time.
const FARTHEST_TOTAL: i64 = 3 << (COUNTER_BITS - 3);

/// The cumulative counter `at`, as it travels.
fn on_wire(at: i64) -> u32 {
    (at & i64::from(COUNTER_MASK)) as u32
}

/// The full counter nearest to `near` whose low 24 bits are `wire`.
fn from_wire(near: i64, wire: u32) -> i64 {
    let ahead = i64::from(wire.wrapping_sub(on_wire(near)) & COUNTER_MASK);
    near + if ahead >= HALF_RANGE { ahead - 2 * HALF_RANGE } else { ahead }
}

/// Whole quanta that hold `bytes`.
fn quanta_up(bytes: i64) -> i64 {
    (bytes + QUANTUM as i64 - 1).div_euclid(QUANTUM as i64)
}

/// A sender's credit towards one receiver.
///
/// It begins with a speculative balance: the first window leaves without asking. The first
/// feedback of any kind (ACK, NACK, credit) takes what is left of it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderCredit {
    /// Bytes that may leave. A packet may overdraw it, so it can be negative.
    balance: i64,
    /// Cumulative credit received, quanta.
    pulled: i64,
    /// The highest target stated so far, quanta.
    asked: i64,
    /// Largest balance, and largest request beyond it, bytes.
    cap: i64,
    wire_mtu: i64,
    speculating: bool,
}

impl SenderCredit {
    /// A new connection. `cap`: the most credit that may be stored and the first, speculative
    /// balance, bytes (1.5 BDP). `wire_mtu`: bytes of a full packet on the wire.
    pub fn new(cap: u64, wire_mtu: u64) -> SenderCredit {
        let cap = cap.clamp(1, LARGEST_CREDIT) as i64;
        let wire_mtu = wire_mtu.clamp(1, LARGEST_CREDIT) as i64;
        SenderCredit { balance: cap, pulled: 0, asked: 0, cap, wire_mtu, speculating: true }
    }

    /// Whether a packet may leave: any positive balance will do.
    pub fn may_send(&self) -> bool {
        self.balance > 0
    }

    /// Bytes of credit left; negative after a packet larger than the balance.
    pub fn balance(&self) -> i64 {
        self.balance
    }

    /// Whether packets still leave on the speculative balance: they are not `scheduled`.
    pub fn is_speculating(&self) -> bool {
        self.speculating
    }

    /// A packet of `bytes` has left.
    pub fn on_send(&mut self, bytes: u64) {
        self.balance = (self.balance - bytes.min(LARGEST_CREDIT) as i64).max(-(LARGEST_CREDIT as i64));
    }

    /// Any feedback has arrived from the receiver: speculation is over. Harmless to repeat.
    pub fn on_feedback(&mut self) {
        if self.speculating {
            self.speculating = false;
            self.balance = self.balance.min(0);
        }
    }

    /// A cumulative credit has arrived, in a CREDIT packet or an ACK; implies
    /// [`on_feedback`](Self::on_feedback). Returns the bytes gained: zero for an old or repeated
    /// total, and for one so far ahead that it belongs to another counter.
    pub fn on_credit_total(&mut self, total: u32) -> u64 {
        self.on_feedback();
        let extra = from_wire(self.pulled, total & COUNTER_MASK) - self.pulled;
        if !(1..=FARTHEST_TOTAL).contains(&extra) {
            return 0;
        }
        self.pulled += extra;
        let before = self.balance;
        self.balance = (before + extra * QUANTUM as i64).min(self.cap.max(before));
        (self.balance - before) as u64
    }

    /// The target to state in the next request, a cumulative count of quanta modulo 2^24.
    ///
    /// `backlog`: bytes not yet sent for the first time; `rtx_backlog`: bytes to send again;
    /// `cwnd`: the sender's own window where one is in force, so that no credit is asked for that
    /// it would forbid to use.
    pub fn credit_target(&mut self, backlog: u64, rtx_backlog: u64, cwnd: Option<u64>) -> u32 {
        let target = self.target(backlog, rtx_backlog, cwnd);
        self.asked = self.asked.max(target);
        on_wire(target)
    }

    /// Bytes stated as wanted and not yet granted.
    pub fn awaited(&self) -> u64 {
        ((self.asked - self.pulled).max(0) as u64).saturating_mul(QUANTUM)
    }

    fn target(&self, backlog: u64, rtx_backlog: u64, cwnd: Option<u64>) -> i64 {
        let own_window = cwnd.map_or(u64::MAX, |w| w.saturating_add(self.wire_mtu as u64));
        let usable = backlog.saturating_add(rtx_backlog).min(own_window).min(self.cap as u64);
        let mut lacking = usable as i64 - self.balance;
        // While speculating the balance may cover a short message whose packets get trimmed:
        // ask for one packet at least.
        if self.speculating && backlog > 0 {
            lacking = lacking.max(self.wire_mtu);
        }
        self.pulled + quanta_up(lacking)
    }
}

/// How many times the largest demand a target may lie ahead before the counters count as unrelated.
/// Senders with faster links ask for more at a time than the receiver would: 800 Gb/s against 50.
const LENIENCY: i64 = 16;

/// The receiver's record of one sender: what it asked for and what it was granted.
///
/// The two ends may lose each other: a receiver forgets a sender whose connections are all closed
/// while the sender counts on, or a sender begins anew while the receiver still knows it. No
/// message says so, but the targets do:
/// - Up to 1 GiB behind what is granted: an old target, or a sender that has begun anew. Either way the
///   total, announced in answer to its next request, is all it needs: it takes it over as its own.
/// - Further ahead than a sender ever asks, or so far behind that it would misread the total: the
///   counters are unrelated. The ledger begins anew at one largest demand before the target.
///
/// A late copy of a packet can mislead it, but only until the next target, which gets it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantLedger {
    /// Cumulative credit granted, quanta.
    granted: i64,
    /// The highest target heard, quanta.
    target: i64,
    /// Bytes granted beyond whole quanta.
    remainder: u64,
    /// The most that a sender lacks at a time, quanta.
    reach: i64,
    /// No target has been heard yet.
    fresh: bool,
}

impl GrantLedger {
    /// A sender of which nothing is known, not even how much it asks for at a time: any demand up to
    /// [`LARGEST_CREDIT`] is believed.
    pub fn new() -> GrantLedger {
        GrantLedger::with_largest_demand(LARGEST_CREDIT)
    }

    /// A sender of which nothing is known but `bytes`, the most that it asks for beyond what it has
    /// received ([`RcccConfig::largest_demand`](crate::rccc::RcccConfig::largest_demand)).
    pub fn with_largest_demand(bytes: u64) -> GrantLedger {
        let reach = quanta_up(bytes.clamp(1, LARGEST_CREDIT) as i64);
        GrantLedger { granted: 0, target: 0, remainder: 0, reach, fresh: true }
    }

    /// A target has arrived, with a data packet, trimmed or whole, or a request. Returns the bytes
    /// asked for beyond what is granted: the argument of
    /// [`ReceiverCc::on_demand`](crate::ReceiverCc::on_demand). Old targets change nothing.
    pub fn on_target(&mut self, target: u32) -> u64 {
        let heard = from_wire(self.granted, target & COUNTER_MASK);
        if self.is_related(heard) {
            self.target = self.target.max(heard);
        } else {
            self.granted = heard - self.reach;
            self.target = heard;
            self.remainder = 0;
        }
        self.fresh = false;
        self.wanted()
    }

    /// Whether a sender that counts from where this ledger does could say `heard`.
    fn is_related(&self, heard: i64) -> bool {
        const FARTHEST: i64 = (LARGEST_CREDIT / QUANTUM) as i64;
        let ahead = heard - self.granted;
        if self.fresh {
            return ahead.abs() <= self.reach;
        }
        (-FARTHEST..=FARTHEST.min(LENIENCY * self.reach)).contains(&ahead)
    }

    /// Bytes asked for beyond what is granted.
    pub fn wanted(&self) -> u64 {
        let quanta = (self.target - self.granted).max(0) as u64;
        (quanta * QUANTUM).saturating_sub(self.remainder)
    }

    /// `bytes` more are granted. Returns the total to announce ([`total`](Self::total)).
    pub fn on_grant(&mut self, bytes: u64) -> u32 {
        let bytes = bytes.min(LARGEST_CREDIT) + self.remainder;
        self.granted += (bytes / QUANTUM) as i64;
        self.remainder = bytes % QUANTUM;
        self.total()
    }

    /// The cumulative credit to announce, quanta modulo 2^24. Announce it again whenever a request
    /// comes in that asks for nothing new: the credit that answered it may have been lost.
    pub fn total(&self) -> u32 {
        on_wire(self.granted)
    }
}

impl Default for GrantLedger {
    fn default() -> Self {
        GrantLedger::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: u64 = 225_000;
    const MTU: u64 = 4_160;

    fn scheduled() -> SenderCredit {
        let mut credit = SenderCredit::new(CAP, MTU);
        credit.on_feedback();
        credit
    }

    #[test]
    fn counters_find_their_way_back_from_the_wire() {
        for near in [-5_i64, 0, 3, (1 << 24) - 1, 1 << 24, (1 << 40) + 12_345] {
            for step in [0, 1, 64, 1 << 20, HALF_RANGE - 1, -1, -64, -HALF_RANGE] {
                assert_eq!(from_wire(near, on_wire(near + step)), near + step, "{near} {step}");
            }
        }
    }

    #[test]
    fn the_first_window_is_speculative_and_ends_with_the_first_feedback() {
        let mut credit = SenderCredit::new(CAP, MTU);
        assert!(credit.may_send() && credit.is_speculating());
        credit.on_send(MTU);
        assert_eq!(credit.balance(), (CAP - MTU) as i64);
        credit.on_feedback();
        assert_eq!(credit.balance(), 0);
        assert!(!credit.may_send() && !credit.is_speculating());
    }

    #[test]
    fn an_overdrawn_balance_outlives_speculation() {
        let mut credit = SenderCredit::new(1_000, MTU);
        credit.on_send(MTU);
        credit.on_feedback();
        assert_eq!(credit.balance(), 1_000 - MTU as i64);
        assert_eq!(credit.on_credit_total(16), 4_096);
        assert_eq!(credit.balance(), 936);
    }

    #[test]
    fn only_what_is_new_in_a_total_counts() {
        let mut credit = scheduled();
        assert_eq!(credit.on_credit_total(64), 16_384);
        assert_eq!(credit.on_credit_total(64), 0, "repeated");
        assert_eq!(credit.on_credit_total(63), 0, "overtaken");
        assert_eq!(credit.on_credit_total(192), 32_768, "one lost in between");
        assert_eq!(credit.balance(), 49_152);
    }

    #[test]
    fn stored_credit_is_capped() {
        let mut credit = scheduled();
        credit.on_credit_total(4_000);
        assert_eq!(credit.balance(), CAP as i64);
        // The part cut off is asked for again as soon as it is needed.
        credit.on_send(CAP);
        assert_eq!(credit.credit_target(MTU, 0, None), 4_000 + 17);
    }

    #[test]
    fn targets_ask_for_what_is_lacking() {
        let mut credit = scheduled();
        // 10,000 B, none held: 10,000 / 256 = 39.06, so 40 quanta.
        assert_eq!(credit.credit_target(10_000, 0, None), 40);
        assert_eq!(credit.credit_target(4_000, 6_000, None), 40);
        assert_eq!(credit.awaited(), 40 * 256);
        // The sender's window allows 8,320 B + one packet of 4,160 B = 12,480 B: 48.75 quanta.
        assert_eq!(credit.credit_target(1 << 30, 0, Some(8_320)), 49);
        // Never more than the cap: 225,000 / 256 = 878.9.
        assert_eq!(credit.credit_target(1 << 40, 0, None), 879);
        credit.on_credit_total(64);
        // 16,384 B held: nothing lacks, and the target lies below what was granted.
        assert_eq!(credit.credit_target(10_000, 0, None), 64 - 24);
    }

    #[test]
    fn a_short_message_asks_for_one_packet_while_speculating() {
        let mut credit = SenderCredit::new(CAP, MTU);
        assert_eq!(credit.credit_target(1_000, 0, None), 17);
    }

    #[test]
    fn the_ledger_answers_targets_with_totals() {
        let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
        assert_eq!(ledger.on_target(40), 10_240);
        assert_eq!(ledger.on_target(30), 10_240, "an older target changes nothing");
        assert_eq!(ledger.on_grant(10_000), 39, "39 whole quanta and 16 bytes");
        assert_eq!(ledger.wanted(), 240);
        assert_eq!(ledger.on_grant(240), 40);
        assert_eq!(ledger.wanted(), 0);
        assert_eq!(ledger.on_grant(16_384), 104, "credit nobody asked for");
        assert_eq!(ledger.on_target(104), 0);
    }

    /// What the ledgers of these tests take for the largest demand, quanta.
    const REACH: i64 = ((CAP + MTU).div_ceil(QUANTUM)) as i64;

    #[test]
    fn a_forgotten_sender_is_met_where_it_is() {
        for pulled in [0, 5_000, (1_200 << 20) / 256, 1 << 22, 1 << 23, (1 << 24) - 1, (1 << 24) + 77] {
            let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
            let target = pulled + 100;
            let wanted = ledger.on_target(on_wire(target));
            assert!(wanted > 0 && wanted <= CAP + MTU + QUANTUM, "{wanted} B at {pulled}");
            let total = ledger.on_grant(wanted);
            assert_eq!(total, on_wire(target), "one demand heals it");
        }
    }

    #[test]
    fn a_sender_of_a_faster_link_is_not_taken_for_another() {
        let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
        ledger.on_target(64);
        ledger.on_grant(64 * QUANTUM);
        let four_times = 64 + 4 * REACH;
        assert_eq!(ledger.on_target(on_wire(four_times)), (4 * REACH) as u64 * QUANTUM);
        assert_eq!(ledger.total(), 64);
    }

    #[test]
    fn a_sender_that_begins_anew_takes_the_total_over() {
        // 1 GiB is a quarter of the counter: beyond it the sender could take the total for an old one.
        for granted in
            [3_000, 1 << 20, (1 << 22) - 1, (1 << 22) + 1_000, 1 << 23, 3 << 22, (1 << 24) - 20_000]
        {
            let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
            ledger.on_target(on_wire(granted));
            ledger.on_grant(ledger.wanted());
            assert_eq!(ledger.total(), on_wire(granted));

            let mut credit = scheduled();
            let wanted = ledger.on_target(credit.credit_target(1 << 30, 0, None));
            assert!(wanted <= CAP + MTU + QUANTUM, "{wanted} B at {granted}");
            let gained = credit.on_credit_total(ledger.on_grant(wanted));
            assert!(gained > 0 && credit.may_send(), "stuck at {granted}");
        }
    }

    #[test]
    fn a_late_copy_misleads_for_one_target_only() {
        let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
        ledger.on_target(5_000_000);
        ledger.on_grant(ledger.wanted());
        ledger.on_target(100);
        assert_eq!(ledger.on_target(5_000_000 + 64), (CAP + MTU).div_ceil(QUANTUM) * QUANTUM);
    }
}
