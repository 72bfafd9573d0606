//! Receive interrupts: they wake a worker that sleeps until a queue has frames.
//!
//! A driver with receive interrupts offers a descriptor for `poll`. Whether interrupts really arrive only shows once
//! frames do: a driver may offer a descriptor, and report that interrupts are on, for a card that sends none. So the
//! alarm compares each sleep with the contents of the queue afterwards, and stops being used once it has proved to
//! miss frames or to ring without any.

/// How many times in a row an alarm may be wrong. A working alarm is wrong now and then: frames arrive just after it
/// was switched off, and cards delay interrupts for a while.
const PATIENCE: u8 = 8;

/// The alarm of one queue.
#[derive(Debug)]
pub(super) struct Alarm {
    /// The driver's descriptor, which the driver keeps open.
    fd: i32,
    kind: Kind,
    stage: Stage,
    /// How the last sleep ended, until the next look into the queue judges it.
    ended: Option<End>,
    trust: Trust,
    woken: u64,
}

/// The kind of descriptor that a driver offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An eventfd that counts interrupts: interrupts are switched on and off, and the counter is read empty.
    Counter,
    /// The queue itself, which is readable while it holds frames.
    Queue,
}

/// How far a waiting worker is on its way to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Awake,
    /// Interrupts are on, and the queue is checked once more.
    Armed,
    Asleep,
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The alarm rang.
    Rung,
    /// Something other than the alarm ended it.
    Silent,
    /// The worker did not rely on the alarm.
    Untrusted,
}

impl Alarm {
    /// An alarm on a descriptor of the driver; `None` if the descriptor is of an unknown kind.
    pub(super) fn new(fd: i32, kind: Kind) -> Option<Alarm> {
        let known = fd >= 0 && (kind == Kind::Queue || system::is_counter(fd));
        let alarm = Alarm { fd, kind, stage: Stage::Awake, ended: None, trust: Trust::default(), woken: 0 };
        known.then_some(alarm)
    }

    /// Prepares for a wait, and returns the descriptor that becomes readable when a frame arrives; `None` if the alarm
    /// is not reliable. `switch_on` switches interrupts on, and returns whether that worked.
    pub(super) fn arm(&mut self, switch_on: impl FnOnce() -> bool) -> Option<i32> {
        if self.stage != Stage::Awake {
            self.stage = Stage::Asleep;
        } else if self.kind == Kind::Queue || !self.trust.holds() || switch_on() {
            self.stage = Stage::Armed;
        } else {
            return None;
        }
        self.trust.holds().then_some(self.fd)
    }

    /// The wait is over, or did not take place.
    pub(super) fn disarm(&mut self, switch_off: impl FnOnce()) {
        let stage = std::mem::replace(&mut self.stage, Stage::Awake);
        if stage == Stage::Awake {
            return;
        }
        let end = if !self.trust.holds() {
            End::Untrusted
        } else if self.has_rung(switch_off) {
            End::Rung
        } else {
            End::Silent
        };
        if stage == Stage::Asleep {
            if self.ended == Some(End::Rung) {
                self.trust.record_false_alarm();
            }
            self.ended = Some(end);
            self.woken += u64::from(end == End::Rung);
        }
    }

    /// Interrupts go off first: an interrupt in between would stay in the counter, and end the next sleep without a
    /// frame.
    fn has_rung(&self, switch_off: impl FnOnce()) -> bool {
        match self.kind {
            Kind::Counter => {
                switch_off();
                system::read_empty(self.fd)
            }
            Kind::Queue => system::is_readable(self.fd),
        }
    }

    /// Records that the queue was checked, and whether it held frames.
    #[inline]
    pub(super) fn record_poll(&mut self, found: bool) {
        if self.ended.is_some() {
            self.compare(found);
        }
    }

    /// Frames may follow the alarm a moment later: TAP's driver looks for them once it has had a signal. Frames that
    /// came without an alarm are found by the first look.
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

    /// Number of sleeps that the alarm has ended.
    pub(super) fn woken(&self) -> u64 {
        self.woken
    }
}

/// Whether the alarm has proved reliable.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    /// Times in a row that a frame was there although the alarm had not rung.
    missed: u8,
    /// Times in a row that the alarm rang, and no frame was received before the next sleep.
    false_alarms: u8,
}

impl Trust {
    fn holds(self) -> bool {
        self.missed < PATIENCE && self.false_alarms < PATIENCE
    }

    /// A frame was there after a sleep. A sleep without the alarm leaves `missed` alone: a card that sends no interrupts
    /// will send none later.
    fn found(&mut self, end: End) {
        match end {
            End::Rung => *self = Trust::default(),
            End::Silent => self.missed = self.missed.saturating_add(1),
            End::Untrusted => self.false_alarms = 0,
        }
    }

    /// The alarm rang, and there was no frame. TAP's driver keeps frames for which it has no buffer in the queue until
    /// the next one arrives: a worker that slept on that would spin.
    fn record_false_alarm(&mut self) {
        self.false_alarms = self.false_alarms.saturating_add(1);
    }
}

/// Linux's descriptors.
mod system {
    use std::os::fd::BorrowedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_getfl};

    /// Whether `fd` is a non-blocking eventfd.
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

    /// An alarm on an eventfd, and a flag that says whether interrupts are on.
    struct Harness {
        bell: OwnedFd,
        alarm: Alarm,
        on: Cell<bool>,
    }

    impl Harness {
        fn new() -> Harness {
            let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let alarm = Alarm::new(bell.as_raw_fd(), Kind::Counter).unwrap();
            Harness { bell, alarm, on: false.into() }
        }

        fn arm(&mut self) -> bool {
            self.alarm.arm(|| !self.on.replace(true)).is_some()
        }

        fn ring(&self) {
            rustix::io::write(self.bell.as_fd(), &1u64.to_ne_bytes()).unwrap();
        }

        fn disarm(&mut self) {
            self.alarm.disarm(|| self.on.set(false));
        }

        /// One sleep. Returns whether the worker relied on the alarm.
        fn sleep(&mut self, rings: bool, finds: bool) -> bool {
            let armed = self.arm();
            self.alarm.record_poll(false);
            assert_eq!(self.arm(), armed);
            assert_eq!(self.on.get(), armed);
            if rings {
                self.ring();
            }
            self.disarm();
            assert!(!self.on.get());
            self.alarm.record_poll(finds);
            armed
        }
    }

    #[test]
    fn only_non_blocking_eventfds_are_counters() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Alarm::new(file.as_raw_fd(), Kind::Counter).is_none());
        let waits = eventfd(0, EventfdFlags::empty()).unwrap();
        assert!(Alarm::new(waits.as_raw_fd(), Kind::Counter).is_none());
        assert!(Alarm::new(-1, Kind::Queue).is_none());
        assert!(Alarm::new(file.as_raw_fd(), Kind::Queue).is_some());
    }

    #[test]
    fn an_alarm_that_has_rung_is_silent_the_next_time() {
        let mut harness = Harness::new();
        for round in 0..20 {
            assert!(harness.sleep(true, true) && !system::is_readable(harness.bell.as_raw_fd()));
            assert_eq!(harness.alarm.woken(), round + 1);
        }
        // It rings before the sleep, while the worker checks the queue.
        assert!(harness.arm());
        harness.ring();
        harness.disarm();
        assert!(!system::is_readable(harness.bell.as_raw_fd()) && harness.alarm.woken() == 20);
    }

    #[test]
    fn an_alarm_that_never_rings_is_given_up() {
        let mut harness = Harness::new();
        for _ in 0..PATIENCE {
            // Timers end sleeps as well, and then the queue may be empty; that proves nothing.
            assert!(harness.sleep(false, false) && harness.sleep(false, true));
        }
        for _ in 0..50 {
            assert!(!harness.sleep(false, true), "a card that sends no interrupts never starts to");
        }
    }

    #[test]
    fn an_alarm_that_misses_a_few_frames_is_kept() {
        let mut harness = Harness::new();
        for n in 0..100 {
            assert!(harness.sleep(n % u32::from(PATIENCE) == 0, true));
        }
    }

    #[test]
    fn an_alarm_that_rings_without_frames_is_given_up_until_a_frame_arrives() {
        let mut harness = Harness::new();
        for _ in 0..3 {
            // The last one is judged when the next one ends.
            for _ in 0..=PATIENCE {
                assert!(harness.sleep(true, false));
            }
            for _ in 0..20 {
                assert!(!harness.sleep(false, false));
            }
            assert!(!harness.sleep(false, true), "a sleep without the alarm that found a frame");
        }
        assert!(harness.sleep(true, true));
    }

    #[test]
    fn frames_may_follow_a_moment_after_the_alarm() {
        let mut harness = Harness::new();
        for _ in 0..100 {
            assert!(harness.sleep(true, false));
            harness.alarm.record_poll(false);
            harness.alarm.record_poll(true);
        }
    }

    #[test]
    fn a_driver_that_cannot_switch_interrupts_gets_no_alarm() {
        let mut harness = Harness::new();
        for _ in 0..20 {
            assert!(harness.alarm.arm(|| false).is_none());
            harness.alarm.disarm(|| panic!("interrupts are not on"));
        }
    }
}
