//! The other end of a path: says what arrived of each probe.

use super::probe::{Heard, Kind, Probe};
use super::wire::Wire;
use crate::Failure;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use weft_cc::Span;
use weft_stack::wire::class::{DscpClasses, PacketClass};

/// Others whose bursts are counted at a time.
const COUNTED: usize = 64;
/// How often the time is looked at.
const SLICE: Duration = Duration::from_millis(100);

/// What has arrived of a burst.
struct Count {
    from: IpAddr,
    session: u32,
    whole: u16,
    trimmed: u16,
    /// What the port had dropped when the burst began.
    missed: u64,
}

/// Answers until nothing has arrived for `wait`, or for ever.
pub(super) fn answer(mut wire: Wire, wait: Option<Span>) -> Result<(), Failure> {
    let wait = wait.map(|span| Duration::from_nanos(span.as_ps() / 1000));
    let mut counts = VecDeque::new();
    let mut last = Instant::now();
    loop {
        match wire.next(Instant::now() + SLICE) {
            Some(heard) => {
                last = Instant::now();
                if let Some((length, reply)) = react(&mut counts, &heard, || wire.missed()) {
                    // An answer is never longer than its question: nobody can be flooded with answers.
                    wire.send(heard.from, heard.tos, length, &reply)?;
                }
            }
            None if wait.is_some_and(|wait| last.elapsed() >= wait) => return Ok(()),
            None => {}
        }
    }
}

/// What is answered to a probe, in an IP packet of how many bytes. `missed` is what the port has dropped.
fn react(counts: &mut VecDeque<Count>, heard: &Heard, missed: impl Fn() -> u64) -> Option<(usize, Probe)> {
    let Heard { probe, .. } = heard;
    let reply = |kind| Probe {
        tos: heard.tos,
        length: heard.length,
        ..Probe::new(kind, probe.session, probe.number)
    };
    match probe.kind {
        Kind::Ask => Some((0, reply(Kind::Answer))),
        // Asked again, because the answer took long: the burst may have begun.
        Kind::Begin if find(counts, heard).is_some() => Some((0, reply(Kind::Answer))),
        Kind::Begin => {
            counts.retain(|count| count.from != heard.from.ip);
            if counts.len() >= COUNTED {
                counts.pop_front();
            }
            let (from, session, missed) = (heard.from.ip, probe.session, missed());
            counts.push_back(Count { from, session, whole: 0, trimmed: 0, missed });
            Some((0, reply(Kind::Answer)))
        }
        Kind::Burst => {
            let count = find(counts, heard)?;
            let class = DscpClasses::default().classify(heard.tos >> 2);
            let trimmed = heard.cut || matches!(class, PacketClass::Trimmed | PacketClass::TrimmedLastHop);
            let counter = if trimmed { &mut count.trimmed } else { &mut count.whole };
            *counter = counter.saturating_add(1);
            None
        }
        Kind::Count => {
            let count = find(counts, heard)?;
            let (whole, trimmed) = (count.whole, count.trimmed);
            let missed = missed().saturating_sub(count.missed).try_into().unwrap_or(u16::MAX);
            Some((0, Probe { whole, trimmed, missed, ..reply(Kind::Counted) }))
        }
        Kind::Answer | Kind::Counted => None,
    }
}

fn find<'a>(counts: &'a mut VecDeque<Count>, heard: &Heard) -> Option<&'a mut Count> {
    counts.iter_mut().find(|count| count.from == heard.from.ip && count.session == heard.probe.session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_stack::wire::ethernet::MacAddr;
    use weft_stack::worker::HostAddr;

    fn heard(kind: Kind, tos: u8, cut: bool, n: u8) -> Heard {
        let from = HostAddr { mac: MacAddr([2; 6]), ip: [10, 0, 0, n].into() };
        Heard { probe: Probe::new(kind, 9, 1), from, tos, hops: 0, length: 500, cut }
    }

    #[test]
    fn questions_are_answered_with_what_arrived() {
        let ask = heard(Kind::Ask, 0x22, false, 1);
        let (_, reply) = react(&mut VecDeque::new(), &ask, || 0).unwrap();
        assert_eq!((reply.kind, reply.tos, reply.length, reply.session), (Kind::Answer, 0x22, 500, 9));
        let answer = heard(Kind::Answer, 0, false, 1);
        assert_eq!(react(&mut VecDeque::new(), &answer, || 0), None, "no endless talk");
    }

    #[test]
    fn bursts_are_counted_whole_and_trimmed() {
        let mut counts = VecDeque::new();
        let mut say = |heard: &Heard, missed| react(&mut counts, heard, || missed);
        let classes = DscpClasses::default();
        assert_eq!(say(&heard(Kind::Count, 0, false, 1), 0), None, "nothing has begun");
        say(&heard(Kind::Begin, 0, false, 1), 40).unwrap();
        for (dscp, cut) in [(classes.trimmable, false), (classes.trimmable, true), (classes.trimmed, false)] {
            assert_eq!(say(&heard(Kind::Burst, dscp << 2, cut, 1), 0), None);
        }
        say(&heard(Kind::Begin, 0, false, 1), 45).expect("it is answered, and counting goes on");
        let (_, reply) = say(&heard(Kind::Count, 0, false, 1), 47).unwrap();
        assert_eq!((reply.whole, reply.trimmed, reply.missed), (1, 2, 7));
        for n in 2..200 {
            say(&heard(Kind::Begin, 0, false, n), 0);
        }
        assert_eq!(counts.len(), COUNTED, "whoever comes, memory is bounded");
    }

    #[test]
    fn what_is_late_of_one_burst_does_not_count_for_the_next() {
        let mut counts = VecDeque::new();
        let of = |kind, session| {
            let base = heard(kind, DscpClasses::default().trimmable << 2, false, 1);
            Heard { probe: Probe::new(kind, session, 1), ..base }
        };
        for (kind, session) in [(Kind::Begin, 9), (Kind::Burst, 9), (Kind::Begin, 10), (Kind::Burst, 9)] {
            react(&mut counts, &of(kind, session), || 0);
        }
        react(&mut counts, &of(Kind::Burst, 10), || 0);
        let (_, reply) = react(&mut counts, &of(Kind::Count, 10), || 0).unwrap();
        assert_eq!((reply.whole, reply.trimmed), (1, 0));
    }
}
