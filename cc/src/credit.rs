//! Credit between one sender and one receiver, in the cumulative 24-bit counters of the wire.
//!
//! Both directions carry the same counter: quanta of 256 bytes since the connection began, modulo 2^24 (UET:
//! `credit` in CREDIT packets and ACKs, `credit_target` in RUD_CC requests). The receiver states the total that
//! it has granted, the sender the total that it wants. Because these are totals, the next message makes up for
//! a lost or reordered one.
//!
//! [`SenderCredit`] is the sender's half, [`GrantLedger`] the receiver's. A
//! [`ReceiverCc`](crate::ReceiverCc) such as [`Rccc`](crate::rccc::Rccc) decides when each sender is served.

/// Bytes in one quantum of credit.
pub const QUANTUM: u64 = 256;
/// Bits of a cumulative counter on the wire.
pub const COUNTER_BITS: u32 = 24;

const COUNTER_MASK: u32 = (1 << COUNTER_BITS) - 1;
/// Half of the counter's range: a larger step forward would look like a step back.
const HALF_RANGE: i64 = 1 << (COUNTER_BITS - 1);
/// The most credit that either end handles at a time, bytes: a quarter of the counter's range, 1 GiB.
pub const LARGEST_CREDIT: u64 = (1 << (COUNTER_BITS - 2)) * QUANTUM;

/// The largest step ahead at which a sender accepts a total, quanta: 1.5 GiB. It exceeds the 1 GiB up to which a
/// receiver answers a sender that lags behind with its total. It is less than half of the range: otherwise two
/// ends with unrelated counters could adopt each other's counter again and again and gain credit each time.
const FARTHEST_TOTAL: i64 = 3 << (COUNTER_BITS - 3);

/// The counter `at` as it is on the wire.
fn on_wire(at: i64) -> u32 {
    (at & i64::from(COUNTER_MASK)) as u32
}

/// The full counter nearest to `near` whose low 24 bits are `wire`.
fn from_wire(near: i64, wire: u32) -> i64 {
    let ahead = i64::from(wire.wrapping_sub(on_wire(near)) & COUNTER_MASK);
    near + if ahead >= HALF_RANGE { ahead - 2 * HALF_RANGE } else { ahead }
}

/// The number of whole quanta that hold `bytes`.
fn quanta_up(bytes: i64) -> i64 {
    (bytes + QUANTUM as i64 - 1).div_euclid(QUANTUM as i64)
}

/// A sender's credit towards one receiver.
///
/// It starts with a speculative balance, so that the first window leaves without a grant. The first feedback
/// of any kind (ACK, NACK, credit) cancels the rest of that balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderCredit {
    /// Bytes that may leave. It is negative after a packet that was larger than the balance.
    balance: i64,
    /// Total credit received, quanta.
    pulled: i64,
    /// The highest target requested so far, quanta.
    asked: i64,
    /// The largest balance, and the most that is requested at a time, bytes.
    cap: i64,
    wire_mtu: i64,
    /// The size of the largest of the last packets, bytes: it sinks by a 64th with each smaller one.
    recent: u64,
    speculating: bool,
}

/// The least credit that a sender stores whatever its rivals, packets: a grant arrives before the last one is used up.
const LEAST_SHARE: u64 = 4;

impl SenderCredit {
    /// The account of a new connection. `cap`: the most credit that may be stored, and the speculative first
    /// balance, bytes (1.5 BDP). `wire_mtu`: bytes of a full packet on the wire.
    pub fn new(cap: u64, wire_mtu: u64) -> SenderCredit {
        let cap = cap.clamp(1, LARGEST_CREDIT) as i64;
        let wire_mtu = wire_mtu.clamp(1, LARGEST_CREDIT) as i64;
        SenderCredit {
            balance: cap,
            pulled: 0,
            asked: 0,
            cap,
            wire_mtu,
            recent: wire_mtu as u64,
            speculating: true,
        }
    }

    /// Whether a packet may leave: any positive balance suffices.
    pub fn may_send(&self) -> bool {
        self.balance > 0
    }

    /// Whether there is credit left to send from `backlog` bytes, so that only the sender's link is in the way.
    pub fn holds_for(&self, backlog: u64) -> bool {
        backlog > 0 && self.may_send()
    }

    /// The balance, bytes; negative after a packet that was larger than the balance.
    pub fn balance(&self) -> i64 {
        self.balance
    }

    /// Whether packets still use the speculative balance. Such packets are not `scheduled`.
    pub fn is_speculating(&self) -> bool {
        self.speculating
    }

    /// Whether as many more `packets` may use up the balance, if none is larger than those that left lately.
    pub fn ends_within(&self, packets: u64) -> bool {
        self.balance <= packets.saturating_mul(self.recent).min(i64::MAX as u64) as i64
    }

    /// A packet of `bytes` has left.
    pub fn on_send(&mut self, bytes: u64) {
        self.recent = bytes.max(self.recent - self.recent.div_ceil(64));
        self.balance = (self.balance - bytes.min(LARGEST_CREDIT) as i64).max(-(LARGEST_CREDIT as i64));
    }

    /// Feedback of any kind has arrived from the receiver, which ends speculation. Repeated calls are harmless.
    pub fn on_feedback(&mut self) {
        if self.speculating {
            self.speculating = false;
            self.balance = self.balance.min(0);
        }
    }

    /// A total of credit has arrived, in a CREDIT packet or an ACK. Implies
    /// [`on_feedback`](Self::on_feedback). Returns the bytes gained: zero for an old or repeated total, and for
    /// one so far ahead that it belongs to an unrelated counter.
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

    /// The target for the next request: a total of quanta modulo 2^24.
    ///
    /// `backlog`: bytes not sent yet; `rtx_backlog`: bytes to retransmit; `cwnd`: the sender's own window, if it
    /// has one, so that it requests no credit that the window would not let it use. `rivals`: other contexts of the
    /// sender that hold credit and have something to send. They leave this one a part of the sender's link, and it
    /// stores credit for no more than that part: what lies unused here could serve other senders.
    pub fn credit_target(&mut self, backlog: u64, rtx_backlog: u64, cwnd: Option<u64>, rivals: u32) -> u32 {
        let target = self.target(backlog, rtx_backlog, cwnd, rivals);
        self.asked = self.asked.max(target);
        on_wire(target)
    }

    /// Bytes requested and not granted yet.
    pub fn awaited(&self) -> u64 {
        ((self.asked - self.pulled).max(0) as u64).saturating_mul(QUANTUM)
    }

    fn target(&self, backlog: u64, rtx_backlog: u64, cwnd: Option<u64>, rivals: u32) -> i64 {
        let own_window = cwnd.map_or(u64::MAX, |w| w.saturating_add(self.wire_mtu as u64));
        let cap = self.cap as u64;
        let share = (cap / (u64::from(rivals) + 1)).max(LEAST_SHARE * self.wire_mtu as u64).min(cap);
        let usable = backlog.saturating_add(rtx_backlog).min(own_window).min(share);
        let mut lacking = usable as i64 - self.balance;
        // The speculative balance may cover a short message, but its packets may be trimmed: request at least
        // one packet.
        if self.speculating && backlog > 0 {
            lacking = lacking.max(self.wire_mtu);
        }
        self.pulled + quanta_up(lacking)
    }
}

/// A target may be this many largest demands ahead before the counters count as unrelated. Senders with faster
/// links request more at a time than the receiver would: 800 Gbit/s compared with 50 Gbit/s.
const LENIENCY: i64 = 16;

/// The receiver's account of one sender: the credit that it requested and the credit that it was granted.
///
/// The counters of the two ends may become unrelated: a receiver forgets a sender whose connections are all
/// closed while the sender keeps its counter, or a sender restarts while the receiver still has its account.
/// No message says so, but the targets show it:
/// - A target up to 1 GiB behind the grants is old, or comes from a restarted sender. In both cases the total
///   that answers its next request suffices, because the sender adopts it.
/// - If a target is further ahead than any sender requests, or so far behind that the sender would misread the
///   total, the counters are unrelated. The account restarts one largest demand before the target.
///
/// A late copy of a packet can cause such a restart by mistake; the next target undoes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantLedger {
    /// Total credit granted, quanta.
    granted: i64,
    /// The highest target received, quanta.
    target: i64,
    /// Bytes granted beyond whole quanta.
    remainder: u64,
    /// The most credit that the sender lacks at a time, quanta.
    reach: i64,
    /// Whether no target has arrived yet.
    fresh: bool,
}

impl GrantLedger {
    /// The account of a sender whose largest demand is unknown: every demand up to [`LARGEST_CREDIT`] is accepted.
    pub fn new() -> GrantLedger {
        GrantLedger::with_largest_demand(LARGEST_CREDIT)
    }

    /// The account of a new sender. `bytes`: the most that it requests beyond its credit
    /// ([`RcccConfig::largest_demand`](crate::rccc::RcccConfig::largest_demand)).
    pub fn with_largest_demand(bytes: u64) -> GrantLedger {
        let reach = quanta_up(bytes.clamp(1, LARGEST_CREDIT) as i64);
        GrantLedger { granted: 0, target: 0, remainder: 0, reach, fresh: true }
    }

    /// A target has arrived, in a request or with a data packet, whole or trimmed. Returns the bytes requested
    /// beyond the grants, for [`ReceiverCc::on_demand`](crate::ReceiverCc::on_demand). Old targets change nothing.
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

    /// Whether `heard` can come from a sender whose counter is related to this account.
    fn is_related(&self, heard: i64) -> bool {
        const FARTHEST: i64 = (LARGEST_CREDIT / QUANTUM) as i64;
        let ahead = heard - self.granted;
        if self.fresh {
            return ahead.abs() <= self.reach;
        }
        (-FARTHEST..=FARTHEST.min(LENIENCY * self.reach)).contains(&ahead)
    }

    /// Bytes requested beyond the grants.
    pub fn wanted(&self) -> u64 {
        let quanta = (self.target - self.granted).max(0) as u64;
        (quanta * QUANTUM).saturating_sub(self.remainder)
    }

    /// Another `bytes` are granted. Returns the total to announce ([`total`](Self::total)).
    pub fn on_grant(&mut self, bytes: u64) -> u32 {
        let bytes = bytes.min(LARGEST_CREDIT) + self.remainder;
        self.granted += (bytes / QUANTUM) as i64;
        self.remainder = bytes % QUANTUM;
        self.total()
    }

    /// The total of credit to announce, quanta modulo 2^24. Announce it again whenever a request arrives that
    /// requests nothing new: the earlier announcement may have been lost.
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
    fn a_full_counter_is_recovered_from_its_24_bits() {
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
    fn an_overdrawn_balance_remains_after_speculation() {
        let mut credit = SenderCredit::new(1_000, MTU);
        credit.on_send(MTU);
        credit.on_feedback();
        assert_eq!(credit.balance(), 1_000 - MTU as i64);
        assert_eq!(credit.on_credit_total(16), 4_096);
        assert_eq!(credit.balance(), 936);
    }

    #[test]
    fn a_total_adds_only_its_new_part() {
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
        // The part above the cap is requested again when it is needed.
        credit.on_send(CAP);
        assert_eq!(credit.credit_target(MTU, 0, None, 0), 4_000 + 17);
    }

    #[test]
    fn targets_request_the_missing_credit() {
        let mut credit = scheduled();
        // 10,000 B with an empty balance: 10,000 / 256 = 39.06, so 40 quanta.
        assert_eq!(credit.credit_target(10_000, 0, None, 0), 40);
        assert_eq!(credit.credit_target(4_000, 6_000, None, 0), 40);
        assert_eq!(credit.awaited(), 40 * 256);
        // The sender's window allows 8,320 B + one packet of 4,160 B = 12,480 B: 48.75 quanta.
        assert_eq!(credit.credit_target(1 << 30, 0, Some(8_320), 0), 49);
        // Never more than the cap: 225,000 / 256 = 878.9.
        assert_eq!(credit.credit_target(1 << 40, 0, None, 0), 879);
        credit.on_credit_total(64);
        // 16,384 B are stored: no credit is missing, and the target is below the total granted.
        assert_eq!(credit.credit_target(10_000, 0, None, 0), 64 - 24);
    }

    #[test]
    fn a_speculating_sender_requests_at_least_one_packet() {
        let mut credit = SenderCredit::new(CAP, MTU);
        assert_eq!(credit.credit_target(1_000, 0, None, 0), 17);
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
        assert_eq!(ledger.on_grant(16_384), 104, "unrequested credit");
        assert_eq!(ledger.on_target(104), 0);
    }

    /// The largest demand that the ledgers of these tests accept, quanta.
    const REACH: i64 = ((CAP + MTU).div_ceil(QUANTUM)) as i64;

    #[test]
    fn a_forgotten_sender_continues_after_one_demand() {
        for pulled in [0, 5_000, (1_200 << 20) / 256, 1 << 22, 1 << 23, (1 << 24) - 1, (1 << 24) + 77] {
            let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
            let target = pulled + 100;
            let wanted = ledger.on_target(on_wire(target));
            assert!(wanted > 0 && wanted <= CAP + MTU + QUANTUM, "{wanted} B at {pulled}");
            let total = ledger.on_grant(wanted);
            assert_eq!(total, on_wire(target), "one demand suffices");
        }
    }

    #[test]
    fn larger_demands_of_a_faster_sender_do_not_restart_the_account() {
        let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
        ledger.on_target(64);
        ledger.on_grant(64 * QUANTUM);
        let four_times = 64 + 4 * REACH;
        assert_eq!(ledger.on_target(on_wire(four_times)), (4 * REACH) as u64 * QUANTUM);
        assert_eq!(ledger.total(), 64);
    }

    #[test]
    fn a_restarted_sender_adopts_the_total() {
        // 1 GiB is a quarter of the counter's range. Beyond it the sender could mistake the total for an old one.
        for granted in
            [3_000, 1 << 20, (1 << 22) - 1, (1 << 22) + 1_000, 1 << 23, 3 << 22, (1 << 24) - 20_000]
        {
            let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
            ledger.on_target(on_wire(granted));
            ledger.on_grant(ledger.wanted());
            assert_eq!(ledger.total(), on_wire(granted));

            let mut credit = scheduled();
            let wanted = ledger.on_target(credit.credit_target(1 << 30, 0, None, 0));
            assert!(wanted <= CAP + MTU + QUANTUM, "{wanted} B at {granted}");
            let gained = credit.on_credit_total(ledger.on_grant(wanted));
            assert!(gained > 0 && credit.may_send(), "stuck at {granted}");
        }
    }

    #[test]
    fn a_late_copy_of_a_target_is_undone_by_the_next_one() {
        let mut ledger = GrantLedger::with_largest_demand(CAP + MTU);
        ledger.on_target(5_000_000);
        ledger.on_grant(ledger.wanted());
        ledger.on_target(100);
        assert_eq!(ledger.on_target(5_000_000 + 64), (CAP + MTU).div_ceil(QUANTUM) * QUANTUM);
    }
}
