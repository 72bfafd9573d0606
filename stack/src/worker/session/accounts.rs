//! Whose applications are: each has an account, which counts what it has of that which applications share.

use super::application::COMMANDS_PER_TURN;
use super::put_off::{BYTES_ALONE, BYTES_PER_TURN, Parts, Ration};

/// The accounts of applications: as many as there can be applications, so that one is free when a place is. Those of one process
/// have one.
#[derive(Debug)]
pub(super) struct Accounts {
    slots: Vec<Place>,
    all: Vec<Account>,
    /// The turn and the round, and what each busy account may have of the turn.
    parts: Parts,
    /// How many accounts have had something to do in this round, and the most in the last ones: one that has some in every other round
    /// only counts all the time.
    busy_now: u32,
    busy: u32,
    /// The same of those for which bytes were touched.
    touching_now: u32,
    touching: u32,
    /// Commands and bytes that all accounts together have left in this turn. An account that is looked at when nothing is left still has
    /// one command, and an even part of the bytes: nobody knew that so many would come.
    commands: usize,
    bytes: i64,
    /// What was done in this turn of the worker's loop, in bytes: a command counts for [`COMMAND`]. It is read before anything is done for
    /// applications without a backlog.
    done: i64,
}

/// Bytes that a command counts for, beside those that it touches.
const COMMAND: i64 = BYTES_PER_TURN / COMMANDS_PER_TURN as i64;

/// A turn that has touched so many bytes for applications with a backlog, or executed as many commands as count for these, leaves the
/// rest of the round for the next ones: packets are not to wait for the commands of many.
const ENOUGH: i64 = BYTES_PER_TURN / 4;

/// The application in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    account: u32,
    /// Whether it is there and not leaving.
    is_open: bool,
    /// How many peers it may have in the address book.
    peers: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// The operating system's process that had it last, as far as it is known.
    tenant: Option<u32>,
    /// Its sessions, those that are leaving included, and how many of them are not.
    sessions: u32,
    open: u32,
    /// How many peers those that are not leaving may have together.
    peers: u64,
    ration: Ration,
    /// The slot of the application with a backlog that has its turn in the next round, before all others of the account.
    next: Option<u32>,
}

impl Account {
    /// Whether the process `tenant` had it last, as far as it is known.
    fn is_of(&self, tenant: Option<u32>) -> bool {
        tenant.is_some() && self.tenant == tenant
    }
}

impl Accounts {
    /// Those of up to `applications`, of which none is there.
    pub(super) fn new(applications: usize) -> Accounts {
        let (slots, all) = (vec![Place::default(); applications], vec![Account::default(); applications]);
        let (commands, bytes) = (COMMANDS_PER_TURN, BYTES_PER_TURN);
        Accounts {
            slots,
            all,
            parts: Parts { round: 0, turn: 0, commands, bytes: BYTES_ALONE },
            busy_now: 0,
            busy: 0,
            touching_now: 0,
            touching: 0,
            commands,
            bytes,
            done: 0,
        }
    }

    /// A turn of the worker's loop begins.
    pub(super) fn begin_turn(&mut self) {
        self.parts.turn = self.parts.turn.wrapping_add(1);
        (self.commands, self.bytes, self.done) = (COMMANDS_PER_TURN, BYTES_PER_TURN, 0);
    }

    /// Whether this turn has done enough for applications with a backlog.
    #[inline]
    pub(super) fn have_enough(&self) -> bool {
        self.done >= ENOUGH
    }

    /// A round begins.
    pub(super) fn begin_round(&mut self) {
        self.parts.round = self.parts.round.wrapping_add(1);
        let (busy, touching) = (self.busy, self.touching);
        self.busy = lately(&mut self.busy_now, busy);
        self.touching = lately(&mut self.touching_now, touching);
        if (self.busy, self.touching) != (busy, touching) {
            self.parts.commands = COMMANDS_PER_TURN / self.busy.max(1) as usize;
            self.parts.bytes = BYTES_ALONE.min(BYTES_PER_TURN / i64::from(self.touching.max(1)));
        }
    }

    /// Whether the application in `slot`, which has a backlog, has its turn in this round: no other one of its account has had one in an
    /// earlier turn of the worker, nor comes before it. `has_backlog` says whether those in other slots have one.
    pub(super) fn has_its_turn(&mut self, slot: u32, has_backlog: impl Fn(u32) -> bool) -> bool {
        let account = self.of(slot);
        let account = &mut self.all[account as usize];
        if account.next.is_some_and(|next| next != slot && has_backlog(next)) {
            return false;
        }
        account.next = None;
        let has_it = account.ration.goes_on_with_round(&self.parts);
        if !has_it {
            account.next = Some(slot);
        }
        has_it
    }

    /// The application in `slot` has had to wait for others of its account: it has its turn before these, unless another one waits.
    #[cold]
    pub(super) fn lets_pass(&mut self, slot: u32) {
        let account = self.of(slot);
        self.all[account as usize].next.get_or_insert(slot);
    }

    /// The ration that the account of the application in `slot` has left in this turn. The call counts the account as busy.
    #[inline]
    pub(super) fn ration(&mut self, slot: u32) -> Ration {
        let account = self.of(slot);
        let ration = &mut self.all[account as usize].ration;
        self.busy_now += u32::from(ration.renew(&self.parts, self.commands));
        let ration = *ration;
        let bytes = if self.bytes < self.parts.bytes { self.least_bytes() } else { self.bytes };
        ration.within(self.commands, bytes)
    }

    /// The bytes that may be touched for an account when all together have nearly none left.
    #[cold]
    fn least_bytes(&self) -> i64 {
        let even = BYTES_PER_TURN / i64::from(self.touching.max(self.touching_now + 1));
        self.bytes.max(even)
    }

    /// The application in `slot` has had its turn, in which it gave so many commands, and so many bytes were touched for it.
    #[inline]
    pub(super) fn take(&mut self, slot: u32, commands: usize, bytes: i64) {
        let account = self.of(slot);
        self.all[account as usize].ration.take(commands);
        self.commands = self.commands.saturating_sub(commands);
        self.done += COMMAND * commands as i64;
        self.touch(slot, bytes);
    }

    /// So many bytes were touched for the application in `slot`.
    #[inline]
    pub(super) fn touch(&mut self, slot: u32, bytes: i64) {
        let account = self.of(slot);
        self.touching_now += u32::from(self.all[account as usize].ration.touch(bytes));
        self.bytes -= bytes;
        self.done += bytes;
    }

    /// The account of the application in `slot`.
    pub(super) fn of(&self, slot: u32) -> u32 {
        self.slots[slot as usize].account
    }

    /// How many sessions of `account` are not leaving.
    pub(super) fn open(&self, account: u32) -> u32 {
        self.all[account as usize].open
    }

    /// How many peers the sessions of `account` that are not leaving may have in the address book together.
    pub(super) fn peers(&self, account: u32) -> u64 {
        self.all[account as usize].peers
    }

    /// Whether there is a session in `slot` that is not leaving.
    pub(super) fn is_open(&self, slot: u32) -> bool {
        self.slots[slot as usize].is_open
    }

    /// How many accounts have sessions that are not leaving, or are `account`.
    pub(super) fn there_with(&self, account: u32) -> usize {
        (0..).zip(&self.all).filter(|(n, one)| one.open > 0 || *n == account).count()
    }

    /// How many accounts have sessions that are not leaving.
    pub(super) fn there(&self) -> usize {
        self.all.iter().filter(|one| one.open > 0).count()
    }

    /// The account of a session of `tenant`: that of its other sessions, or else the one that it had before, or else the one that
    /// ranks lowest by `rank`. By joining several times, or leaving and coming again, a process does not get what others may use.
    /// The sessions of this process have accounts of their own: its owner has opened them for whom it likes.
    pub(super) fn choose<R: Ord>(&self, tenant: Option<u32>, rank: impl Fn(u32) -> R) -> Option<u32> {
        let is_its_own = |account: &Account| account.is_of(tenant);
        if tenant != Some(std::process::id())
            && let Some((account, _)) = self.look().find(|(_, one)| is_its_own(one) && one.sessions > 0)
        {
            return Some(account);
        }
        let free = self.look().filter(|(_, one)| one.sessions == 0);
        free.min_by_key(|(account, one)| (!is_its_own(one), rank(*account))).map(|(account, _)| account)
    }

    /// Whether a session of `tenant` with `account` is the first one after those of another process.
    pub(super) fn changes_hands(&self, account: u32, tenant: Option<u32>) -> bool {
        let account = &self.all[account as usize];
        account.sessions == 0 && !account.is_of(tenant)
    }

    /// Looks at one after the other.
    fn look(&self) -> impl Iterator<Item = (u32, &Account)> {
        #[cfg(test)]
        let of_all = self.all.iter().inspect(|_| crate::steps::count(1));
        #[cfg(not(test))]
        let of_all = self.all.iter();
        (0..).zip(of_all)
    }

    /// A session of `tenant`, which may have so many `peers`, begins in `slot`, with an account that was
    /// [chosen](Accounts::choose) for it.
    pub(super) fn begin(&mut self, slot: u32, account: u32, tenant: Option<u32>, peers: u32) {
        self.slots[slot as usize] = Place { account, is_open: true, peers };
        let account = &mut self.all[account as usize];
        account.tenant = tenant;
        account.sessions += 1;
        account.open += 1;
        account.peers += u64::from(peers);
    }

    /// The session in `slot` is leaving from now on.
    pub(super) fn leave(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if std::mem::take(&mut place.is_open) {
            let account = &mut self.all[place.account as usize];
            account.open -= 1;
            account.peers -= u64::from(place.peers);
            account.next = account.next.filter(|next| *next != slot);
        }
    }

    /// The session in `slot`, which was leaving, is gone.
    pub(super) fn end(&mut self, slot: u32) {
        let account = self.of(slot);
        let account = &mut self.all[account as usize];
        account.sessions -= 1;
        if account.sessions == 0 {
            // The account has no applications left: the next ones start without debt.
            account.ration = Ration::default();
        }
    }

    /// Checks that the sessions that are there are counted, of which these are the slots, and whether they are leaving.
    #[cfg(test)]
    pub(super) fn check(&self, sessions: impl Iterator<Item = (u32, bool)>) {
        let mut counted = vec![(0, 0, 0); self.all.len()];
        for (slot, is_leaving) in sessions {
            assert_eq!(self.is_open(slot), !is_leaving);
            let (sessions, open, peers) = &mut counted[self.of(slot) as usize];
            *sessions += 1;
            if !is_leaving {
                *open += 1;
                *peers += u64::from(self.slots[slot as usize].peers);
            }
        }
        let counts = self.all.iter().map(|account| (account.sessions, account.open, account.peers));
        assert!(counts.eq(counted));
    }
}

/// How many have had something to do in the last rounds: as many as in this one, which ends, or an eighth less than before.
fn lately(now: &mut u32, before: u32) -> u32 {
    std::mem::take(now).max(before - before.div_ceil(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps;

    #[test]
    fn choosing_an_account_looks_at_each_of_them_twice_at_most() {
        const APPLICATIONS: u32 = 4095;
        let mut accounts = Accounts::new(APPLICATIONS as usize);
        let own = std::process::id();
        for slot in 0..APPLICATIONS {
            let tenant = Some(own + 1 + slot / 3);
            let before = accounts.there_with(u32::MAX);
            let steps = steps::of(|| {
                let account = accounts.choose(tenant, |_| 0).expect("one is free");
                accounts.begin(slot, account, tenant, 7);
            });
            assert!(steps <= 2 * u64::from(APPLICATIONS), "{steps} steps");
            assert_eq!(
                accounts.there_with(u32::MAX),
                before + usize::from(slot % 3 == 0),
                "one for three sessions"
            );
        }
        accounts.check((0..APPLICATIONS).map(|slot| (slot, false)));
        // A process that has an account gets no other one, whether its sessions are leaving or not.
        accounts.leave(0);
        let account = accounts.of(0);
        assert_eq!(accounts.peers(account), 14);
        assert_eq!((accounts.open(account), accounts.choose(Some(own + 1), |_| 0)), (2, Some(account)));
        assert_eq!(
            accounts.choose(Some(own), |n| APPLICATIONS - n),
            Some(APPLICATIONS - 1),
            "the lowest rank"
        );
    }
}
