//! What wakes whoever waits for frames of a queue: the receive interrupts of its device.
//!
//! Where drivers have them they come as a descriptor that `poll` takes. Whether they really come is known only when
//! frames do: a driver may give a descriptor, and say that interrupts are on, of a card that sends none. So each
//! sleep is compared with what the queue holds after it, and an alarm that says nothing, or something without need,
//! is no longer slept on.

/// So many times in a row an alarm may be wrong. One that works is wrong now and then: frames arrive just after it
/// was switched off, and cards hold interrupts back for a while.
const PATIENCE: u8 = 8;

/// The alarm of one queue.
#[derive(Debug)]
pub(super) struct Alarm {
    /// The driver's.
    fd: i32,
    kind: Kind,
    stage: Stage,
    /// How the last sleep ended, until that is judged.
    ended: Option<End>,
    trust: Trust,
    woken: u64,
}

/// What the descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An eventfd, which counts interrupts: they are switched on and off, and it is read empty.
    Counter,
    /// The queue itself, readable while there are frames in it.
    Queue,
}

/// How far whoever waits is on its way to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Awake,
    /// Interrupts are on, and the queue is looked into once more.
    Listening,
    Asleep,
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The alarm rang.
    Rung,
    /// By something else.
    Silent,
    /// It was not left to the alarm.
    Nap,
}

impl Alarm {
    /// The alarm over a descriptor of the driver, unless it is of no known kind.
    pub(super) fn new(fd: i32, kind: Kind) -> Option<Alarm> {
        let known = fd >= 0 && (kind == Kind::Queue || system::is_counter(fd));
        let alarm = Alarm { fd, kind, stage: Stage::Awake, ended: None, trust: Trust::default(), woken: 0 };
        known.then_some(alarm)
    }

    /// Makes ready for a wait, and returns what becomes readable when a frame is there; `None` if that is not to be
    /// relied on. `switch_on` switches interrupts on, and returns whether they are.
    pub(super) fn listen(&mut self, switch_on: impl FnOnce() -> bool) -> Option<i32> {
        if self.stage != Stage::Awake {
            self.stage = Stage::Asleep;
        } else if self.kind == Kind::Queue || !self.trust.holds() || switch_on() {
            self.stage = Stage::Listening;
        } else {
            return None;
        }
        self.trust.holds().then_some(self.fd)
    }

    /// The wait is over, or did not take place.
    pub(super) fn hush(&mut self, switch_off: impl FnOnce()) {
        let stage = std::mem::replace(&mut self.stage, Stage::Awake);
        if stage == Stage::Awake {
            return;
        }
        let end = if !self.trust.holds() {
            End::Nap
        } else if self.has_rung(switch_off) {
            End::Rung
        } else {
            End::Silent
        };
        if stage == Stage::Asleep {
            if self.ended == Some(End::Rung) {
                self.trust.needless();
            }
            self.ended = Some(end);
            self.woken += u64::from(end == End::Rung);
        }
    }

    /// Interrupts go off first: one that came between would be left in the counter, and wake for nothing the next time.
    fn has_rung(&self, switch_off: impl FnOnce()) -> bool {
        match self.kind {
            Kind::Counter => {
                switch_off();
                system::read_empty(self.fd)
            }
            Kind::Queue => system::is_readable(self.fd),
        }
    }

    /// The queue has been looked into, and frames were in it or not.
    #[inline]
    pub(super) fn looked(&mut self, found: bool) {
        if self.ended.is_some() {
            self.compare(found);
        }
    }

    /// What has rung may take a moment: TAP's driver looks once it has had a signal. What was there without is
    /// found by the first look.
    #[cold]
    fn compare(&mut self, found: bool) {
        let Some(end) = self.ended else { return };
        if found {
            self.trust.found(end);
        }
        if found || end == End::Silent {
            self.ended = None;
        }
    }

    /// Sleeps that it has ended.
    pub(super) fn woken(&self) -> u64 {
        self.woken
    }
}

/// Whether an alarm is to be relied on.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    /// Times in a row that a frame was there, and it had not rung.
    unannounced: u8,
    /// Times in a row that it rang, and no frame came out before the next sleep.
    needless: u8,
}

impl Trust {
    fn holds(self) -> bool {
        self.unannounced < PATIENCE && self.needless < PATIENCE
    }

    /// A frame was there after a sleep. A card that sends no interrupts will send none later: no nap changes that.
    fn found(&mut self, end: End) {
        match end {
            End::Rung => *self = Trust::default(),
            End::Silent => self.unannounced = self.unannounced.saturating_add(1),
            End::Nap => self.needless = 0,
        }
    }

    /// It rang, and there was no frame. TAP's driver leaves frames in the queue for which it has no buffer, until the
    /// next one comes: to sleep on that would be to turn without end.
    fn needless(&mut self) {
        self.needless = self.needless.saturating_add(1);
    }
}

/// Descriptors, as Linux has them.
mod system {
    use std::os::fd::BorrowedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_getfl};

    /// Whether `fd` is an eventfd that can be read without waiting.
    pub(super) fn is_counter(fd: i32) -> bool {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
            && fcntl_getfl(borrow(fd)).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }

    /// Reads an eventfd empty. Returns whether anything was in it.
    pub(super) fn read_empty(fd: i32) -> bool {
        rustix::io::read(borrow(fd), &mut [0; 8]).is_ok()
    }

    /// Whether `fd` is readable now.
    pub(super) fn is_readable(fd: i32) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(borrow(fd), PollFlags::IN)], Some(&now))
            .is_ok_and(|ready| ready > 0)
    }

    fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
        // SAFETY: `fd` is a descriptor of the driver, which keeps it open as long as the device is started. An alarm
        // does not outlive its device (`Device::alarm`), and callers use the result only during their own call.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// An alarm over an eventfd, and a switch that says whether interrupts are on.
    struct Bench {
        bell: OwnedFd,
        alarm: Alarm,
        on: Cell<bool>,
    }

    impl Bench {
        fn new() -> Bench {
            let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let alarm = Alarm::new(bell.as_raw_fd(), Kind::Counter).unwrap();
            Bench { bell, alarm, on: false.into() }
        }

        fn listen(&mut self) -> bool {
            self.alarm.listen(|| !self.on.replace(true)).is_some()
        }

        fn ring(&self) {
            rustix::io::write(self.bell.as_fd(), &1u64.to_ne_bytes()).unwrap();
        }

        fn hush(&mut self) {
            self.alarm.hush(|| self.on.set(false));
        }

        /// One sleep. Returns whether it was left to the alarm.
        fn sleep(&mut self, rings: bool, finds: bool) -> bool {
            let listens = self.listen();
            self.alarm.looked(false);
            assert_eq!(self.listen(), listens);
            assert_eq!(self.on.get(), listens);
            if rings {
                self.ring();
            }
            self.hush();
            assert!(!self.on.get());
            self.alarm.looked(finds);
            listens
        }
    }

    #[test]
    fn only_eventfds_that_do_not_wait_are_counters() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Alarm::new(file.as_raw_fd(), Kind::Counter).is_none());
        let waits = eventfd(0, EventfdFlags::empty()).unwrap();
        assert!(Alarm::new(waits.as_raw_fd(), Kind::Counter).is_none());
        assert!(Alarm::new(-1, Kind::Queue).is_none());
        assert!(Alarm::new(file.as_raw_fd(), Kind::Queue).is_some());
    }

    #[test]
    fn what_has_rung_is_silent_the_next_time() {
        let mut bench = Bench::new();
        for round in 0..20 {
            assert!(bench.sleep(true, true) && !system::is_readable(bench.bell.as_raw_fd()));
            assert_eq!(bench.alarm.woken(), round + 1);
        }
        // Rung before the sleep, while the queue was looked into.
        assert!(bench.listen());
        bench.ring();
        bench.hush();
        assert!(!system::is_readable(bench.bell.as_raw_fd()) && bench.alarm.woken() == 20);
    }

    #[test]
    fn an_alarm_that_never_rings_is_given_up() {
        let mut bench = Bench::new();
        for _ in 0..PATIENCE {
            // Timers wake as well, and then there may be nothing, which says nothing.
            assert!(bench.sleep(false, false) && bench.sleep(false, true));
        }
        for _ in 0..50 {
            assert!(!bench.sleep(false, true), "cards do not learn it");
        }
    }

    #[test]
    fn an_alarm_that_misses_some_is_not_given_up() {
        let mut bench = Bench::new();
        for n in 0..100 {
            assert!(bench.sleep(n % u32::from(PATIENCE) == 0, true));
        }
    }

    #[test]
    fn an_alarm_that_rings_without_need_is_given_up_until_there_is_a_frame() {
        let mut bench = Bench::new();
        for _ in 0..3 {
            // The last one is judged when the next one ends.
            for _ in 0..=PATIENCE {
                assert!(bench.sleep(true, false));
            }
            for _ in 0..20 {
                assert!(!bench.sleep(false, false));
            }
            assert!(!bench.sleep(false, true), "a nap that has found one");
        }
        assert!(bench.sleep(true, true));
    }

    #[test]
    fn frames_may_come_out_a_moment_after_the_alarm() {
        let mut bench = Bench::new();
        for _ in 0..100 {
            assert!(bench.sleep(true, false));
            bench.alarm.looked(false);
            bench.alarm.looked(true);
        }
    }

    #[test]
    fn a_driver_that_does_not_switch_is_not_slept_on() {
        let mut bench = Bench::new();
        for _ in 0..20 {
            assert!(bench.alarm.listen(|| false).is_none());
            bench.alarm.hush(|| panic!("nothing is on"));
        }
    }
}
