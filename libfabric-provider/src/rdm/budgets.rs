//! How much of what was sent at once a peer has not taken: a sender has a budget for each peer, so that what nobody receives never fills
//! the peer's server, and what stands for longer messages always gets there
//! ([decision 0120](../../../docs/decisions/0120-senders-have-budgets.md)).
//!
//! Messages with tags that are sent at once carry the number of an *epoch* of their sender in bits 34 to 63 of the header data, where
//! [stand-ins](super::stand_in) have something else. Their receiver counts what it takes of each epoch, and says so when the sender
//! asks. An epoch ends when the count cannot be right any more: if the receiver is another process, or a message has failed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weft::{Addr, Source};

use super::stand_in::STANDS;
use crate::random;

/// Bytes that a message counts for besides its own.
const EACH: u64 = 1 << 10;
/// The longest message that any receiver has memory for: a quarter of the least `FI_WEFT_MEMORY`.
pub(super) const SURE: usize = 256 << 10;
/// Bytes that a receiver lets all senders of a host together send at once, in equal parts. A server keeps four times as many.
pub(super) const ALL: u64 = 16 << 20;
/// The longest message that is sent at once, if all before it were taken: a server keeps it and what stands for those behind it.
const MOST: u64 = 48 << 20;
/// Bytes that all senders of a host together may have untaken before a further one is let send no more than [`LEAST`].
pub(super) const UNTAKEN: u64 = 32 << 20;
/// Bytes that a server keeps of a host.
const KEPT: u64 = 64 << 20;
/// Bytes that it lets each send nevertheless.
pub(super) const LEAST: u64 = 512 << 10;
/// Bytes that a sender sends to a receiver that has not said anything yet.
pub(super) const FIRST: u64 = 256 << 10;
/// How many questions a receiver may have got and not answered when it is taken for one that does not know what they are, such as an
/// application that uses no libfabric. It is sent what memory holds.
pub(super) const UNHEARD: u32 = 4;
/// How long a sender that asks no more counts among those that share.
const RECENT: Duration = Duration::from_secs(10);
/// How long it is told without a further question when the receiver has taken what it has asked for.
const TELLS: Duration = Duration::from_secs(60);
/// How long what a sender that asks no more has untaken counts against others of its host.
const LIES: Duration = Duration::from_secs(600);
/// Senders that are counted.
pub(super) const SENDERS: usize = 8192;
/// Senders that may ask, and those of one host.
pub(super) const ASKERS: usize = 4096;
pub(super) const ASKERS_OF_ONE: usize = 1024;
/// Peers that a sender has a budget for.
const PEERS: usize = 8192;
/// Epochs of one sender that are counted: processes may have had its number before.
const EPOCHS: usize = 4;

/// The bits of the header data that are an epoch.
const STAMP: u32 = 34;
/// Numbers of epochs.
const STAMPS: u32 = 1 << 30;

/// What a message of `len` bytes counts for.
fn cost(len: usize) -> u64 {
    len as u64 + EACH
}

/// The epoch of a message that was sent at once.
fn epoch_of(header_data: u64) -> Option<u32> {
    Some((header_data >> STAMP) as u32).filter(|epoch| *epoch != 0 && header_data & STANDS == 0)
}

/// Header data without an epoch.
pub(super) fn unstamped(header_data: u64) -> u64 {
    if epoch_of(header_data).is_some() { header_data & ((1 << STAMP) - 1) } else { header_data }
}

/// What a receiver says when it is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// The epoch that the asker has named last; 0 if it has not.
    pub(super) epoch: u32,
    /// What was taken of it.
    pub(super) taken: u64,
    /// How much more may be under way, or lie untaken.
    pub(super) budget: u64,
    /// Another number than before says that the receiver has forgotten what it had taken.
    pub(super) count: u32,
    /// The longest message that the receiver has memory for, after it was kept at the server; 0 if it does not say.
    pub(super) longest: u32,
}

/// What a sender asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// 0 if it asks nothing.
    pub(super) epoch: u32,
    /// It wants to be told at once, and again when so much was taken.
    pub(super) taken: u64,
    /// What it has sent.
    pub(super) sent: u64,
}

/// The sender's side.
#[derive(Debug)]
pub(super) struct Budgets {
    peers: HashMap<Source, Budget>,
    /// The number of the next epoch. The first is random, so that processes with the same number have different ones.
    next: u32,
}

#[derive(Debug, Default)]
struct Budget {
    epoch: u32,
    /// What was sent at once in this epoch, and what of it was taken when the receiver has said so last.
    sent: u64,
    taken: u64,
    /// What the receiver has granted.
    size: Option<u64>,
    /// Which receiver has said so.
    life: u64,
    count: u32,
    /// The longest message that it has memory for; 0 if it has not said.
    longest: u32,
    /// The receiver was asked to say when it has taken so much.
    asked: Option<u64>,
    /// Whether it has said anything since.
    is_answered: bool,
    /// Only answers to this question and later ones count; none before the first question.
    since: Option<u32>,
    /// Questions that it has got before it has answered any.
    unheard: u32,
}

impl Default for Budgets {
    fn default() -> Budgets {
        Budgets { peers: HashMap::new(), next: random::number() as u32 }
    }
}

impl Budget {
    fn size(&self) -> u64 {
        self.size.unwrap_or(FIRST)
    }

    fn untaken(&self) -> u64 {
        self.sent.saturating_sub(self.taken)
    }

    fn is_deaf(&self) -> bool {
        self.size.is_none() && self.unheard >= UNHEARD
    }
}

impl Budgets {
    fn next_epoch(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1) % STAMPS;
        self.next = self.next.max(1);
        self.next
    }

    fn of(&mut self, peer: Source) -> &mut Budget {
        if !self.peers.contains_key(&peer) {
            if self.peers.len() >= PEERS {
                self.peers.retain(|_, budget| budget.untaken() > 0 || budget.asked.is_some());
            }
            if self.peers.len() >= PEERS {
                self.peers.clear();
            }
            let epoch = self.next_epoch();
            self.peers.insert(peer, Budget { epoch, ..Budget::default() });
        }
        self.peers.entry(peer).or_default()
    }

    /// Whether a message of `len` bytes may be sent to `peer` at once now.
    pub(super) fn has_room(&self, peer: Source, len: usize) -> bool {
        match self.peers.get(&peer) {
            None => true,
            Some(budget) => match budget.untaken() {
                // One that is longer than the budget goes much faster so than it would be fetched.
                0 => true,
                untaken => budget.is_deaf() || untaken + cost(len) <= budget.size(),
            },
        }
    }

    /// Whether no message of `len` bytes may be sent to `peer` at once, whatever that has taken.
    pub(super) fn never_has_room(&self, peer: Source, len: usize) -> bool {
        cost(len) > MOST && !self.peers.get(&peer).is_some_and(Budget::is_deaf)
    }

    /// Whether a message of `len` bytes is longer than what `peer` has memory for, if that was kept at its server.
    pub(super) fn is_too_long(&self, peer: Source, len: usize) -> bool {
        self.peers.get(&peer).is_some_and(|budget| budget.longest > 0 && len > budget.longest as usize)
    }

    /// Whether `peer` has to be asked before a message of `len` bytes is sent at once, since it may be too long.
    pub(super) fn may_be_too_long(&self, peer: Source, len: usize) -> bool {
        let is_unknown = |budget: &Budget| budget.size.is_none() && !budget.is_deaf();
        len > SURE && self.peers.get(&peer).is_none_or(is_unknown)
    }

    /// The header data of a message to `peer` that is sent at once, if it is [spent](Budgets::spend).
    pub(super) fn stamped(&mut self, peer: Source, header_data: u64) -> u64 {
        header_data | u64::from(self.of(peer).epoch) << STAMP
    }

    /// A message was sent at once.
    pub(super) fn spend(&mut self, peer: Source, len: usize) {
        let budget = self.of(peer);
        budget.sent = budget.sent.saturating_add(cost(len));
    }

    /// A message with this header data was not sent after all.
    pub(super) fn refund(&mut self, peer: Source, header_data: u64, len: usize) {
        if let Some(budget) = self.peers.get_mut(&peer)
            && epoch_of(header_data) == Some(budget.epoch)
        {
            budget.sent = budget.sent.saturating_sub(cost(len));
        }
    }

    /// A message with this header data has failed, and nobody knows whether it was taken.
    pub(super) fn renew(&mut self, peer: Source, header_data: u64) {
        let epoch = self.next_epoch();
        if let Some(budget) = self.peers.get_mut(&peer)
            && epoch_of(header_data) == Some(budget.epoch)
        {
            budget.renew(epoch);
        }
    }

    /// Whether `peer` is to be asked now, since half of the budget is used up, or for a message of `waiting` bytes that waits for it.
    pub(super) fn asks(&mut self, peer: Source, waiting: Option<usize>) -> bool {
        let is_too_long = waiting.is_some_and(|len| self.is_too_long(peer, len));
        let budget = self.of(peer);
        let size = budget.size();
        let taken = match waiting {
            _ if budget.is_deaf() => return false,
            // It is fetched, unless the receiver never answers.
            Some(len) if is_too_long || cost(len) > MOST && budget.size.is_some() => return false,
            Some(len) => budget.sent.min((budget.sent + cost(len)).saturating_sub(size)),
            None if budget.untaken() > size / 2 => budget.sent - size / 2,
            None => return false,
        };
        // The first answer says how much there is to ask for.
        let taken = if budget.size.is_some() { taken } else { 0 };
        // Who was asked for more may never take so much. A question for less waits for the answer to the one before, and what was asked for
        // when half of the budget was used up is little enough: else there would be a question for each message that waits.
        let most = taken.max(budget.sent.saturating_sub(size / 2));
        let is_asked =
            budget.asked.is_some_and(|asked| asked >= taken && (asked <= most || !budget.is_answered));
        if !is_asked {
            (budget.asked, budget.is_answered) = (Some(taken), false);
        }
        !is_asked
    }

    /// What the question to `peer` with this number asks.
    pub(super) fn question(&mut self, peer: Source, number: u32) -> Wanted {
        let Some(budget) = self.peers.get_mut(&peer) else { return Wanted::default() };
        budget.since.get_or_insert(number);
        let (epoch, sent) = (budget.epoch, budget.sent);
        budget.asked.map_or_else(Wanted::default, |taken| Wanted { epoch, taken, sent })
    }

    /// Whether `peer` was asked and has not said yet what was asked for.
    pub(super) fn awaits(&self, peer: Source) -> bool {
        self.peers.get(&peer).is_some_and(|budget| budget.asked.is_some())
    }

    /// A question to `peer` could not be sent.
    pub(super) fn is_unasked(&mut self, peer: Source) {
        if let Some(budget) = self.peers.get_mut(&peer) {
            budget.asked = None;
        }
    }

    /// A question to `peer` was delivered.
    pub(super) fn has_asked(&mut self, peer: Source) {
        if let Some(budget) = self.peers.get_mut(&peer)
            && budget.size.is_none()
            && budget.asked.is_some()
        {
            budget.unheard = budget.unheard.saturating_add(1);
        }
    }

    /// `peer` is gone. Nothing that it was sent counts for a process that takes its place.
    pub(super) fn forget(&mut self, peer: Source) {
        self.peers.remove(&peer);
    }

    /// `peer`, which is the process with this life, has said this in answer to `question`. The question that comes next has the number
    /// `next`.
    pub(super) fn learn(&mut self, peer: Source, life: u64, told: &Told, [question, next]: [u32; 2]) {
        let epoch = self.next_epoch();
        let Some(budget) = self.peers.get_mut(&peer) else { return };
        let was_asked = |since: &u32| question.wrapping_sub(*since) < next.wrapping_sub(*since);
        if budget.since.filter(was_asked).is_none() {
            // Who has answered an earlier one may be gone, or nobody has asked.
            return;
        }
        (budget.since, budget.is_answered) = (Some(question), true);
        let is_another = budget.size.is_some() && (budget.life, budget.count) != (life, told.count);
        (budget.life, budget.count, budget.size, budget.unheard) = (life, told.count, Some(told.budget), 0);
        budget.longest = told.longest;
        if is_another {
            budget.renew(epoch);
        } else if told.epoch == budget.epoch {
            budget.taken = budget.taken.max(told.taken.min(budget.sent));
            budget.asked = budget.asked.filter(|asked| *asked > budget.taken);
        }
    }
}

impl Budget {
    fn renew(&mut self, epoch: u32) {
        (self.epoch, self.sent, self.taken, self.asked) = (epoch, 0, 0, None);
    }
}

/// The receiver's side: what was taken of each sender.
#[derive(Debug)]
pub(super) struct Takings {
    /// The last epochs of each sender.
    counts: HashMap<Source, Vec<(u32, u64)>>,
    /// Changes when they are forgotten.
    count: u32,
    hosts: HashMap<Addr, Host>,
    /// Senders that have asked, of all hosts.
    askers: usize,
}

/// The senders of a host that have asked, by the number of their process.
#[derive(Debug, Default)]
struct Host {
    askers: HashMap<u16, Asker>,
    /// How many of them share what is taken.
    sharing: usize,
    /// What all of them have untaken, as far as they have said.
    untaken: u64,
}

/// A sender that has asked.
#[derive(Debug)]
struct Asker {
    epoch: u32,
    /// It is to be told when so much was taken.
    taken: Option<u64>,
    /// Its last question, and when it has asked that.
    question: u32,
    since: Instant,
    /// What of that which it had sent then is untaken.
    untaken: u64,
    /// Whether it counts among those that share.
    shares: bool,
}

impl Default for Takings {
    fn default() -> Takings {
        let count = random::number() as u32;
        Takings { counts: HashMap::new(), count, hosts: HashMap::new(), askers: 0 }
    }
}

impl Takings {
    /// A message of `sender` was taken, or dropped. Returns the question that is to be answered now, if there is one.
    pub(super) fn take(&mut self, sender: Source, header_data: u64, len: u32) -> Option<u32> {
        let epoch = epoch_of(header_data)?;
        if self.counts.len() >= SENDERS && !self.counts.contains_key(&sender) {
            self.counts.clear();
            self.count = self.count.wrapping_add(1);
        }
        let host = self.hosts.get_mut(&sender.peer);
        let asker = host.and_then(|host| Some((host.askers.get_mut(&sender.process)?, &mut host.untaken)));
        let epochs = self.counts.entry(sender).or_default();
        // The last one was taken of last.
        let at = epochs.iter().position(|(other, _)| *other == epoch);
        let (_, before) = at.map_or((epoch, 0), |at| epochs.remove(at));
        if epochs.len() == EPOCHS {
            let asked = asker.as_ref().map(|(asker, _)| asker.epoch);
            epochs.remove(epochs.iter().position(|(other, _)| Some(*other) != asked).unwrap_or(0));
        }
        let taken = before.saturating_add(cost(len as usize));
        epochs.push((epoch, taken));
        let (asker, untaken) = asker.filter(|(asker, _)| asker.epoch == epoch)?;
        let less = cost(len as usize).min(asker.untaken);
        (asker.untaken, *untaken) = (asker.untaken - less, untaken.saturating_sub(less));
        let is_enough = asker.taken.is_some_and(|wanted| wanted <= taken);
        is_enough.then(|| {
            asker.taken = None;
            asker.question
        })
    }

    fn taken(&self, sender: Source, epoch: u32) -> u64 {
        let epochs = self.counts.get(&sender).into_iter().flatten();
        epochs.filter(|(other, _)| *other == epoch).map(|(_, taken)| *taken).sum()
    }

    fn asker(&self, sender: Source) -> Option<&Asker> {
        self.hosts.get(&sender.peer)?.askers.get(&sender.process)
    }

    /// `sender` asks. It is to be answered at once, in any case.
    pub(super) fn ask(&mut self, sender: Source, wanted: Wanted, question: u32) {
        let before = self.taken(sender, wanted.epoch);
        let of_host = self.hosts.get(&sender.peer).map_or(0, |host| host.askers.len());
        let is_new = self.asker(sender).is_none();
        if is_new && (self.askers >= ASKERS || of_host >= ASKERS_OF_ONE) {
            return;
        }
        let taken = Some(wanted.taken).filter(|taken| *taken > before);
        let untaken = wanted.sent.saturating_sub(before).min(KEPT);
        let (epoch, since) = (wanted.epoch, Instant::now());
        let asker = Asker { epoch, taken, question, since, untaken, shares: true };
        let host = self.hosts.entry(sender.peer).or_default();
        let last = host.askers.insert(sender.process, asker);
        host.sharing += usize::from(!last.as_ref().is_some_and(|last| last.shares));
        host.untaken = host.untaken.saturating_sub(last.map_or(0, |last| last.untaken)) + untaken;
        self.askers += usize::from(is_new);
    }

    /// What `sender` is told.
    pub(super) fn told(&self, sender: Source) -> Told {
        let asker = self.asker(sender);
        let (sharing, all) = self.hosts.get(&sender.peer).map_or((0, 0), |host| (host.sharing, host.untaken));
        let others = all.saturating_sub(asker.map_or(0, |asker| asker.untaken));
        // In steps, so that each answer does not lead to a further question.
        let free = UNTAKEN.saturating_sub(others) / LEAST * LEAST;
        let budget = (ALL / sharing.max(1) as u64).min(free).max(LEAST);
        let epoch = asker.map_or(0, |asker| asker.epoch);
        Told { epoch, taken: self.taken(sender, epoch), budget, count: self.count, longest: 0 }
    }

    /// Forgets senders that have not asked for some time.
    pub(super) fn keep_recent(&mut self) {
        for host in self.hosts.values_mut() {
            for asker in host.askers.values_mut() {
                let shares = if asker.taken.is_some() { TELLS } else { RECENT };
                asker.shares = asker.since.elapsed() < shares;
            }
            host.askers.retain(|_, asker| asker.shares || asker.untaken > 0 && asker.since.elapsed() < LIES);
            host.sharing = host.askers.values().filter(|asker| asker.shares).count();
            host.untaken = host.askers.values().map(|asker| asker.untaken).sum();
        }
        self.hosts.retain(|_, host| !host.askers.is_empty());
        self.askers = self.hosts.values().map(|host| host.askers.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::error::FiError;

    const PEER: Source = Source { peer: Addr(3), process: 4 };
    const OTHER: Source = Source { peer: Addr(3), process: 5 };
    const LEN: usize = 100_000;

    /// A question and its answer.
    fn exchange(budgets: &mut Budgets, takings: &mut Takings, life: u64) {
        let wanted = budgets.question(PEER, 1);
        assert!(wanted.epoch != 0);
        takings.ask(OTHER, wanted, 1);
        budgets.learn(PEER, life, &takings.told(OTHER), [1, 2]);
    }

    /// Sends as many messages as the budget has room for, and returns their header data.
    fn spend(budgets: &mut Budgets) -> Vec<u64> {
        let mut sent = Vec::new();
        while budgets.has_room(PEER, LEN) {
            sent.push(budgets.stamped(PEER, 1 << 32 | 7));
            budgets.spend(PEER, LEN);
        }
        sent
    }

    #[test]
    fn a_sender_has_no_more_untaken_than_its_budget_and_is_told_when_there_is_room() {
        let (mut budgets, mut takings) = (Budgets::default(), Takings::default());
        let first = spend(&mut budgets).len();
        assert_eq!(first as u64, FIRST / cost(LEN));
        assert!(budgets.asks(PEER, None) && !budgets.asks(PEER, None) && budgets.awaits(PEER));
        exchange(&mut budgets, &mut takings, 9);
        let sent = spend(&mut budgets);
        assert_eq!((first + sent.len()) as u64, ALL / cost(LEN));
        assert_eq!(unstamped(sent[0]), 1 << 32 | 7);
        assert!(budgets.asks(PEER, Some(LEN)));
        exchange(&mut budgets, &mut takings, 9);
        assert!(!budgets.has_room(PEER, LEN) && budgets.awaits(PEER) && !budgets.asks(PEER, Some(LEN)));
        // The receiver says so when it has taken enough, and not before.
        assert_eq!(takings.take(OTHER, sent[0], LEN as u32), Some(1));
        assert_eq!(takings.take(OTHER, sent[0], LEN as u32), None);
        budgets.learn(PEER, 9, &takings.told(OTHER), [1, 2]);
        assert!(!budgets.awaits(PEER));
        assert_eq!(spend(&mut budgets).len(), 2);
        // What stands for messages, and messages of others, count for nothing.
        assert_eq!(takings.take(OTHER, sent[0] | STANDS, 50), None);
        assert_eq!(takings.take(OTHER, 7, 50), None);
        assert_eq!(takings.told(OTHER).taken, 2 * cost(LEN));
    }

    #[test]
    fn senders_share_what_a_receiver_takes_and_those_that_ask_no_more_make_room() {
        let mut takings = Takings::default();
        let wanted = Wanted { epoch: 5, taken: 0, sent: 0 };
        for process in 0..8 {
            takings.ask(Source { process, ..PEER }, wanted, 1);
            takings.ask(Source { process, ..PEER }, wanted, 2);
        }
        assert_eq!(takings.told(PEER).budget, ALL / 8);
        assert_eq!(takings.told(Source { peer: Addr(4), process: 1 }).budget, ALL);
        for asker in takings.hosts.get_mut(&PEER.peer).unwrap().askers.values_mut().take(4) {
            asker.since -= RECENT;
        }
        takings.keep_recent();
        assert_eq!((takings.askers, takings.told(PEER).budget), (4, ALL / 4));
    }

    #[test]
    fn a_host_that_asks_with_many_numbers_leaves_room_for_those_of_others() {
        let mut takings = Takings::default();
        let wanted = Wanted { epoch: 5, taken: 9, sent: 0 };
        let hosts = [3, 4, 5, 6, 7].map(Addr);
        for peer in hosts {
            for process in 0..ASKERS_OF_ONE as u16 + 9 {
                takings.ask(Source { peer, process }, wanted, 1);
            }
        }
        let askers = hosts.map(|peer| takings.hosts.get(&peer).map_or(0, |host| host.askers.len()));
        assert_eq!(askers, [ASKERS_OF_ONE, ASKERS_OF_ONE, ASKERS_OF_ONE, ASKERS_OF_ONE, 0]);
        assert_eq!((takings.askers, takings.told(PEER).budget), (ASKERS, LEAST));
    }

    #[test]
    fn senders_that_come_one_after_the_other_have_little_more_untaken_together_than_half_of_what_a_server_keeps()
     {
        let mut takings = Takings::default();
        let sender = |process| Source { process, ..PEER };
        let age = |takings: &mut Takings, by: Duration| {
            for asker in takings.hosts.get_mut(&PEER.peer).unwrap().askers.values_mut() {
                asker.since -= by;
            }
            takings.keep_recent();
        };
        let mut granted = Vec::new();
        for process in 0..6 {
            let mut wanted = Wanted { epoch: 5, ..Wanted::default() };
            takings.ask(sender(process), wanted, 1);
            granted.push(takings.told(sender(process)).budget);
            // It sends as much as it may, says so, and is quiet.
            wanted.sent = granted[process as usize];
            takings.ask(sender(process), wanted, 2);
            age(&mut takings, RECENT);
        }
        assert_eq!(granted, [ALL, ALL, LEAST, LEAST, LEAST, LEAST]);
        // What is taken makes room for others, and so does what is forgotten.
        let len = ALL / 2 - EACH;
        takings.take(sender(0), 5 << STAMP, len as u32);
        takings.ask(sender(2), Wanted { epoch: 5, taken: 0, sent: LEAST }, 3);
        assert_eq!(takings.told(sender(2)).budget, ALL / 2 - 3 * LEAST);
        age(&mut takings, LIES);
        assert_eq!((takings.askers, takings.told(sender(2)).budget), (0, ALL));
    }

    #[test]
    fn nothing_that_was_sent_to_a_process_that_is_gone_counts_for_the_one_in_its_place() {
        let mut state = State::new(None);
        let sent = spend(&mut state.budgets);
        assert!(!state.budgets.has_room(PEER, LEN));
        // The first has answered nothing.
        state.fail_stand_ins_of(PEER, FiError::REFUSED).unwrap();
        assert!(state.budgets.has_room(PEER, LEN));
        assert!(epoch_of(spend(&mut state.budgets)[0]) != epoch_of(sent[0]));
    }

    #[test]
    fn only_answers_to_questions_since_the_last_answered_one_count() {
        let (mut budgets, mut takings) = (Budgets::default(), Takings::default());
        assert!(budgets.asks(PEER, Some(LEN)));
        // Nothing was asked yet.
        budgets.learn(PEER, 9, &takings.told(OTHER), [6, 7]);
        let wanted = budgets.question(PEER, 7);
        takings.ask(OTHER, wanted, 7);
        for question in [6, 8, 9] {
            budgets.learn(PEER, 9, &takings.told(OTHER), [question, 8]);
            assert_eq!(budgets.peers[&PEER].size, None, "question {question}");
        }
        budgets.learn(PEER, 9, &takings.told(OTHER), [7, 8]);
        budgets.question(PEER, 8);
        budgets.learn(PEER, 9, &takings.told(OTHER), [8, 9]);
        let sent = spend(&mut budgets);
        // The process before has the question before, and says so late.
        budgets.learn(PEER, 5, &Takings::default().told(OTHER), [7, 9]);
        assert_eq!(epoch_of(sent[0]), Some(budgets.peers[&PEER].epoch));
        budgets.learn(PEER, 5, &Takings::default().told(OTHER), [8, 9]);
        assert!(epoch_of(sent[0]) != Some(budgets.peers[&PEER].epoch));
    }

    #[test]
    fn who_waits_for_less_than_was_asked_for_asks_once_more_after_the_answer() {
        let (mut budgets, mut takings) = (Budgets::default(), Takings::default());
        assert!(budgets.asks(PEER, Some(LEN)));
        exchange(&mut budgets, &mut takings, 9);
        spend(&mut budgets);
        assert!(budgets.asks(PEER, Some(10 << 20)) && !budgets.asks(PEER, Some(LEN)));
        let before = budgets.question(PEER, 1);
        exchange(&mut budgets, &mut takings, 9);
        assert!(budgets.asks(PEER, Some(LEN)) && !budgets.asks(PEER, Some(LEN)));
        assert!(budgets.question(PEER, 1).taken < before.taken);
        exchange(&mut budgets, &mut takings, 9);
        assert!(!budgets.asks(PEER, Some(LEN)));
        // Half of the budget is no more than what it waits for.
        assert!(budgets.asks(PEER, None));
        exchange(&mut budgets, &mut takings, 9);
        assert!(!budgets.asks(PEER, Some(LEN)) && !budgets.asks(PEER, None));
    }

    #[test]
    fn the_epoch_that_is_asked_for_and_those_of_which_something_was_taken_last_are_kept() {
        let mut takings = Takings::default();
        takings.ask(PEER, Wanted { epoch: 1, taken: 9_000, sent: 9_000 }, 1);
        for epoch in [1, 2, 3, 4, 2, 5, 6, 7u64] {
            takings.take(PEER, epoch << STAMP, 10);
            assert!(takings.counts[&PEER].len() <= EPOCHS);
        }
        let taken = [1, 2, 3, 4, 5, 6, 7].map(|epoch| takings.taken(PEER, epoch) / cost(10));
        assert_eq!(taken, [1, 0, 0, 0, 1, 1, 1]);
        takings.take(PEER, 5 << STAMP, 10);
        takings.take(PEER, 8 << STAMP, 10);
        let taken = [1, 5, 6, 7, 8].map(|epoch| takings.taken(PEER, epoch) / cost(10));
        assert_eq!(taken, [1, 2, 0, 1, 1]);
    }

    #[test]
    fn counts_begin_anew_when_the_receiver_is_another_one_or_has_forgotten_or_a_message_has_failed() {
        let (mut budgets, mut takings) = (Budgets::default(), Takings::default());
        budgets.asks(PEER, Some(LEN));
        exchange(&mut budgets, &mut takings, 9);
        let full = |budgets: &mut Budgets| {
            let sent = spend(budgets);
            assert!(sent.len() > 100);
            budgets.asks(PEER, Some(LEN));
            sent
        };
        let of_the_first = full(&mut budgets);
        // Another process.
        exchange(&mut budgets, &mut Takings::default(), 10);
        let of_the_second = full(&mut budgets);
        assert!(of_the_first[0] != of_the_second[0]);
        // Messages for the process before count for nothing.
        let mut takings = Takings::default();
        of_the_first.iter().for_each(|sent| assert_eq!(takings.take(OTHER, *sent, LEN as u32), None));
        budgets.peers.get_mut(&PEER).unwrap().count = takings.count;
        exchange(&mut budgets, &mut takings, 10);
        assert!(!budgets.has_room(PEER, LEN));
        // The same process with no counts.
        for process in 0..SENDERS as u32 {
            takings.take(Source { peer: weft::Addr(process + 9), process: 1 }, of_the_first[0], 9);
        }
        assert!(takings.counts.len() <= SENDERS);
        exchange(&mut budgets, &mut takings, 10);
        let sent = full(&mut budgets);
        // A message that has failed, and those of epochs before, which end nothing.
        budgets.renew(PEER, of_the_second[0]);
        assert!(!budgets.has_room(PEER, LEN));
        budgets.renew(PEER, sent[0]);
        assert!(budgets.has_room(PEER, LEN));
        // One that was not sent.
        let sent = full(&mut budgets);
        budgets.refund(PEER, of_the_second[0], LEN);
        assert!(!budgets.has_room(PEER, LEN));
        budgets.refund(PEER, sent[0], LEN);
        assert!(budgets.has_room(PEER, LEN));
    }

    #[test]
    fn a_receiver_that_never_answers_is_sent_what_memory_holds() {
        let mut budgets = Budgets::default();
        // The first message is.
        assert!(budgets.has_room(PEER, 1 << 20));
        budgets.spend(PEER, 1 << 20);
        assert!(!budgets.has_room(PEER, 1 << 20) && !budgets.never_has_room(PEER, 47 << 20));
        assert!(budgets.never_has_room(PEER, 48 << 20));
        assert!(budgets.asks(PEER, Some(48 << 20)) && !budgets.asks(PEER, Some(1 << 20)));
        for _ in 0..UNHEARD {
            assert!(!budgets.has_room(PEER, 1 << 20));
            budgets.has_asked(PEER);
        }
        assert!(budgets.has_room(PEER, 48 << 20) && !budgets.never_has_room(PEER, 48 << 20));
        assert!(!budgets.may_be_too_long(PEER, 48 << 20));
        // Until it does.
        budgets.question(PEER, 1);
        budgets.learn(PEER, 3, &Takings::default().told(OTHER), [1, 2]);
        assert!(!budgets.has_room(PEER, 17 << 20));
    }

    #[test]
    fn a_receiver_says_how_long_messages_may_be() {
        let (mut budgets, takings) = (Budgets::default(), Takings::default());
        assert!(budgets.may_be_too_long(PEER, SURE + 1) && !budgets.may_be_too_long(PEER, SURE));
        assert!(budgets.asks(PEER, Some(SURE + 1)), "it is asked for a first message");
        let question = budgets.question(PEER, 1);
        assert!(question.epoch != 0);
        let longest = 1 << 20;
        budgets.learn(PEER, 9, &Told { longest, ..takings.told(OTHER) }, [1, 2]);
        assert!(!budgets.may_be_too_long(PEER, 2 << 20));
        assert!(budgets.is_too_long(PEER, (1 << 20) + 1) && !budgets.is_too_long(PEER, 1 << 20));
        // No budget would help.
        assert!(!budgets.asks(PEER, Some(2 << 20)));
        // Another process has the peer's number now, and states no longest message.
        budgets.learn(PEER, 10, &takings.told(OTHER), [1, 2]);
        assert!(!budgets.is_too_long(PEER, 2 << 20) && !budgets.may_be_too_long(PEER, 2 << 20));
    }

    #[test]
    fn a_message_that_is_longer_than_the_budget_is_sent_at_once_when_all_before_it_were_taken() {
        const LONG: usize = 20 << 20;
        let (mut budgets, mut takings) = (Budgets::default(), Takings::default());
        let first = budgets.stamped(PEER, 0);
        budgets.spend(PEER, LONG);
        assert!(!budgets.has_room(PEER, LONG) && budgets.asks(PEER, Some(LONG)));
        exchange(&mut budgets, &mut takings, 9);
        assert!(!budgets.has_room(PEER, 9) && budgets.asks(PEER, Some(LONG)));
        exchange(&mut budgets, &mut takings, 9);
        assert_eq!(takings.take(OTHER, first, LONG as u32), Some(1));
        budgets.learn(PEER, 9, &takings.told(OTHER), [1, 2]);
        assert!(budgets.has_room(PEER, LONG) && !budgets.awaits(PEER));
    }

    #[test]
    fn old_epochs_of_a_sender_make_room_for_new_ones() {
        let mut takings = Takings::default();
        for epoch in 1..=EPOCHS as u64 + 2 {
            takings.take(PEER, epoch << STAMP, 10);
            takings.take(PEER, epoch << STAMP, 10);
        }
        let taken: Vec<u64> = (1..=6).map(|epoch| takings.taken(PEER, epoch)).collect();
        assert_eq!(taken, [0, 0, 2 * cost(10), 2 * cost(10), 2 * cost(10), 2 * cost(10)]);
    }
}
