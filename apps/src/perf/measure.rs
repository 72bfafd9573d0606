//! Counts events and processor time between two moments of a test.

use super::report::{CountedBy, CpuReport, EndReport};
use crate::stats;
use perf_event::events::Hardware;
use perf_event::{Builder, Counter, Group};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::Once;
use weft::Endpoint;
use weft_cc::{Span, Time};
use weft_stack::event::Counters;
use weft_stack::port::Port;

/// Turns that took longer tell nothing about the loop: the system had the processor, or the worker slept.
const LONGEST_TURN: Span = Span::from_ms(1);
const LONGEST_IDLE_TURN: Span = Span::from_us(20);

/// Counts from [`Meter::begin`] to [`Meter::end`], on the thread that calls both.
#[derive(Default)]
pub(super) struct Meter {
    cpu: Option<CpuMeter>,
    turns: Turns,
    begin: Option<Mark>,
    end: Option<Mark>,
}

/// The state of everything at one moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Time,
    progress: Progress,
    fep: Counters,
    lost: u64,
    turns: Turns,
    cpu: Option<Cpu>,
}

/// Time in turns of the loop in which there was something to do, and in those without.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    busy: Span,
    idle: Span,
}

/// Messages and bytes that an end has dealt with so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Meter {
    /// A meter that does not count the processor: its thread drives another end too.
    pub(super) fn without_cpu() -> Meter {
        Meter::default()
    }

    /// A meter for an end that has its thread to itself, or for all that a thread does.
    pub(super) fn with_cpu() -> Meter {
        Meter { cpu: Some(CpuMeter::Closed), ..Meter::default() }
    }

    /// Begins, or begins anew.
    pub(super) fn begin(&mut self, now: Time, endpoint: &Endpoint, progress: Progress) {
        self.begin = Some(self.mark(now, endpoint, progress));
        self.end = None;
    }

    /// Has begun at `at`, but counts all since [`Meter::begin`].
    pub(super) fn begins_at(&mut self, at: Time) {
        if let Some(begin) = &mut self.begin {
            begin.at = at;
        }
    }

    /// Ends, as of `at`.
    pub(super) fn end(&mut self, at: Time, endpoint: &Endpoint, progress: Progress) {
        self.end = Some(self.mark(at, endpoint, progress));
    }

    /// When it began.
    pub(super) fn began(&self) -> Option<Time> {
        self.begin.map(|mark| mark.at)
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Notes what a turn of the loop was good for.
    #[inline]
    pub(super) fn turned(&mut self, span: Span, idle: bool) {
        let (sum, longest) = if idle {
            (&mut self.turns.idle, LONGEST_IDLE_TURN)
        } else {
            (&mut self.turns.busy, LONGEST_TURN)
        };
        if span <= longest {
            *sum = sum.plus(span);
        }
    }

    fn mark(&mut self, at: Time, endpoint: &Endpoint, progress: Progress) -> Mark {
        let lost = endpoint.worker().map_or(0, |worker| {
            let (port, dropped) = (worker.port().counters(), worker.counters());
            let lost = port.rx_missed + port.rx_errors + port.tx_errors + port.tx_no_link;
            lost + dropped.malformed + dropped.not_taken + worker.fep().counters().control_dropped
        });
        Mark {
            at,
            progress,
            fep: endpoint.worker().map_or_else(Counters::default, |worker| *worker.fep().counters()),
            lost,
            turns: self.turns,
            cpu: self.cpu.as_mut().map(CpuMeter::read),
        }
    }

    /// The counts in between; all 0 if it has not ended.
    pub(super) fn report(&self) -> EndReport {
        let (Some(begin), Some(end)) = (self.begin, self.end) else { return EndReport::default() };
        let span = end.at.since(begin.at);
        let messages = end.progress.messages - begin.progress.messages;
        let bytes = end.progress.bytes - begin.progress.bytes;
        let count = |of: fn(&Counters) -> u64| of(&end.fep) - of(&begin.fep);
        let packets = count(|c| c.data_sent) + count(|c| c.data_received);
        let busy = end.turns.busy_since(&begin.turns);
        let cpu = begin.cpu.zip(end.cpu).map(|(begin, end)| end.since(&begin, busy, packets));
        EndReport {
            seconds: span.as_secs_f64(),
            messages,
            bytes,
            goodput_gbps: stats::gbps(bytes, span),
            messages_per_s: per_second(messages, span),
            packets,
            packets_per_s: per_second(packets, span),
            acks: count(|c| c.acks_sent) + count(|c| c.acks_received),
            retransmitted: count(|c| c.data_retransmitted),
            timeouts: count(|c| c.timeouts),
            duplicates: count(|c| c.duplicates_received),
            trimmed: count(|c| c.trimmed_received),
            dropped: end.lost - begin.lost,
            cpu,
            ..EndReport::default()
        }
    }
}

impl Turns {
    /// The share of time since `begin` in which there was something to do.
    fn busy_since(&self, begin: &Turns) -> f64 {
        let busy = (self.busy.as_ps() - begin.busy.as_ps()) as f64;
        let idle = (self.idle.as_ps() - begin.idle.as_ps()) as f64;
        if busy + idle > 0.0 { busy / (busy + idle) } else { 1.0 }
    }
}

fn per_second(count: u64, span: Span) -> Option<f64> {
    (span > Span::ZERO).then(|| count as f64 / span.as_secs_f64())
}

/// Where the thread's counters come from. They are opened by the thread that they count.
enum CpuMeter {
    Closed,
    Time,
    Hardware(Box<HardwareCounters>),
}

/// Processor time and events of a thread.
#[derive(Clone, Copy)]
struct Cpu {
    ns: u64,
    hardware: Option<HardwareCount>,
}

#[derive(Clone, Copy)]
struct HardwareCount {
    cycles: u64,
    instructions: u64,
    kernel: bool,
}

struct HardwareCounters {
    group: Group,
    cycles: Counter,
    instructions: Counter,
    /// Whether time in the kernel counts.
    kernel: bool,
}

impl CpuMeter {
    fn read(&mut self) -> Cpu {
        if matches!(self, CpuMeter::Closed) {
            *self = CpuMeter::open();
        }
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        let hardware = match self {
            CpuMeter::Hardware(counters) => counters.read(),
            CpuMeter::Closed | CpuMeter::Time => None,
        };
        Cpu { ns, hardware }
    }

    fn open() -> CpuMeter {
        static SAID: Once = Once::new();
        match HardwareCounters::open(true).or_else(|_| HardwareCounters::open(false)) {
            Ok(counters) => CpuMeter::Hardware(Box::new(counters)),
            Err(error) => {
                SAID.call_once(|| {
                    eprintln!(
                        "weft: no hardware counters here ({error}): cycles are CPU time times the clock rate, and \
                         instructions are not known"
                    );
                });
                CpuMeter::Time
            }
        }
    }
}

impl HardwareCounters {
    fn open(kernel: bool) -> io::Result<HardwareCounters> {
        let mut group = Group::new()?;
        let mut add = |event| group.add(Builder::new(event).exclude_kernel(!kernel));
        let (cycles, instructions) = (add(Hardware::CPU_CYCLES)?, add(Hardware::INSTRUCTIONS)?);
        group.enable()?;
        Ok(HardwareCounters { group, cycles, instructions, kernel })
    }

    fn read(&mut self) -> Option<HardwareCount> {
        let counts = self.group.read().ok()?;
        let value = |counter: &Counter| counts.get(counter).map(|entry| entry.value());
        Some(HardwareCount {
            cycles: value(&self.cycles)?,
            instructions: value(&self.instructions)?,
            kernel: self.kernel,
        })
    }
}

impl Cpu {
    /// Use since `begin`, for `packets` data packets, by a loop that was busy for a share of
    /// `busy` of the time.
    fn since(&self, begin: &Cpu, busy: f64, packets: u64) -> CpuReport {
        let ns = self.ns - begin.ns;
        let each = |total: f64| (packets > 0).then(|| total * busy / packets as f64);
        let counted = self.hardware.zip(begin.hardware).map(|(end, begin)| {
            let by = if end.kernel { CountedBy::UserAndKernel } else { CountedBy::User };
            (end.cycles - begin.cycles, end.instructions - begin.instructions, by)
        });
        let seconds = ns as f64 / 1e9;
        let ns_per_packet = each(ns as f64);
        match counted {
            Some((cycles, instructions, by)) => CpuReport {
                seconds,
                busy,
                ns_per_packet,
                cycles_per_packet: each(cycles as f64),
                instructions_per_packet: each(instructions as f64),
                counted_by: by,
            },
            None => CpuReport {
                seconds,
                busy,
                ns_per_packet,
                cycles_per_packet: clock_mhz().and_then(|mhz| each(ns as f64 * mhz / 1000.0)),
                instructions_per_packet: None,
                counted_by: CountedBy::ClockRate,
            },
        }
    }
}

/// The clock rate of the first core, MHz.
fn clock_mhz() -> Option<f64> {
    parse_mhz(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn parse_mhz(cpuinfo: &str) -> Option<f64> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("cpu MHz"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_counters_go_before_the_clock_rate() {
        let at = |ns, cycles| {
            let hardware = Some(HardwareCount { cycles, instructions: 3 * cycles, kernel: false });
            Cpu { ns, hardware }
        };
        let report = at(3000, 5000).since(&at(1000, 1000), 1.0, 4);
        assert_eq!(report.ns_per_packet, Some(500.0));
        assert_eq!((report.cycles_per_packet, report.instructions_per_packet), (Some(1000.0), Some(3000.0)));
        assert_eq!(report.counted_by, CountedBy::User);
        let idle = at(3000, 5000).since(&at(1000, 1000), 1.0, 0);
        assert_eq!((idle.ns_per_packet, idle.cycles_per_packet), (None, None));
    }

    #[test]
    fn without_them_cycles_are_time() {
        let at = |ns| Cpu { ns, hardware: None };
        let report = at(2_000_000).since(&at(0), 0.5, 1000);
        assert_eq!((report.ns_per_packet, report.instructions_per_packet), (Some(1000.0), None));
        assert_eq!(report.counted_by, CountedBy::ClockRate);
        assert_eq!(parse_mhz("processor : 0\ncpu MHz\t\t: 2000.500\n"), Some(2000.5));
        assert_eq!(parse_mhz("processor : 0\n"), None);
    }

    #[test]
    fn turns_without_work_do_not_count() {
        let mut meter = Meter::without_cpu();
        let begin = meter.turns;
        assert_eq!(meter.turns.busy_since(&begin), 1.0);
        meter.turned(Span::from_us(30), false);
        meter.turned(Span::from_us(10), true);
        assert_eq!(meter.turns.busy_since(&begin), 0.75);
        // Asleep, or somebody else's.
        meter.turned(Span::from_us(500), true);
        meter.turned(Span::from_ms(4), false);
        assert_eq!(meter.turns.busy_since(&begin), 0.75);
    }

    #[test]
    fn a_thread_that_works_uses_time() {
        let mut meter = CpuMeter::Closed;
        let begin = meter.read();
        let mut end = meter.read();
        while end.ns - begin.ns < 1_000_000 {
            end = meter.read();
        }
        assert!(end.since(&begin, 1.0, 1).seconds >= 0.001);
    }
}
