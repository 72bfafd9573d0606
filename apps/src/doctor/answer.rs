//! The answering end of a path: reports how each probe arrived.

use super::probe::{Kind, Probe, ReceivedProbe};
use super::wire::Wire;
use crate::Failure;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use weft_cc::Span;
use weft_stack::wire::class::{DscpClasses, PacketClass};

/// The largest number of hosts whose bursts are counted at the same time.
const MAX_COUNTED_HOSTS: usize = 64;
/// How often the time without requests is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The packets of a burst that have arrived.
struct Count {
    from: IpAddr,
    session: u32,
    whole: u16,
    trimmed: u16,
    /// Packets that the port had dropped before the burst.
    missed: u64,
}

/// Answers until no request has arrived for `wait`; for ever without it.
pub(super) fn answer(mut wire: Wire, wait: Option<Span>) -> Result<(), Failure> {
    let wait = wait.map(|span| Duration::from_nanos(span.as_ps() / 1000));
    let mut counts = VecDeque::new();
    let mut last = Instant::now();
    loop {
        match wire.next(Instant::now() + POLL_INTERVAL) {
            Some(received) => {
                last = Instant::now();
                if let Some((length, reply)) = respond(&mut counts, &received, || wire.missed()) {
                    // A response is never longer than its request, so responses cannot be used to flood a third host.
                    wire.send(received.from, received.tos, length, &reply)?;
                }
            }
            None if wait.is_some_and(|wait| last.elapsed() >= wait) => return Ok(()),
            None => {}
        }
    }
}

/// The response to a probe, with the length of its IP packet in bytes. `missed` returns how many packets the port has
/// dropped.
fn respond(
    counts: &mut VecDeque<Count>,
    received: &ReceivedProbe,
    missed: impl Fn() -> u64,
) -> Option<(usize, Probe)> {
    let ReceivedProbe { probe, .. } = received;
    let reply = |kind| Probe {
        tos: received.tos,
        length: received.length,
        ..Probe::new(kind, probe.session, probe.number)
    };
    match probe.kind {
        Kind::Request => Some((0, reply(Kind::Response))),
        // The request was repeated because the response took long. The burst may have begun, so counting goes on.
        Kind::Start if find(counts, received).is_some() => Some((0, reply(Kind::Response))),
        Kind::Start => {
            counts.retain(|count| count.from != received.from.ip);
            if counts.len() >= MAX_COUNTED_HOSTS {
                counts.pop_front();
            }
            let (from, session, missed) = (received.from.ip, probe.session, missed());
            counts.push_back(Count { from, session, whole: 0, trimmed: 0, missed });
            Some((0, reply(Kind::Response)))
        }
        Kind::Burst => {
            let count = find(counts, received)?;
            let class = DscpClasses::default().classify(received.tos >> 2);
            let trimmed = received.cut || matches!(class, PacketClass::Trimmed | PacketClass::TrimmedLastHop);
            let counter = if trimmed { &mut count.trimmed } else { &mut count.whole };
            *counter = counter.saturating_add(1);
            None
        }
        Kind::CountRequest => {
            let count = find(counts, received)?;
            let (whole, trimmed) = (count.whole, count.trimmed);
            let missed = missed().saturating_sub(count.missed).try_into().unwrap_or(u16::MAX);
            Some((0, Probe { whole, trimmed, missed, ..reply(Kind::CountResponse) }))
        }
        Kind::Response | Kind::CountResponse => None,
    }
}

fn find<'a>(counts: &'a mut VecDeque<Count>, received: &ReceivedProbe) -> Option<&'a mut Count> {
    counts.iter_mut().find(|count| count.from == received.from.ip && count.session == received.probe.session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_stack::wire::ethernet::MacAddr;
    use weft_stack::worker::HostAddr;

    fn received(kind: Kind, tos: u8, cut: bool, n: u8) -> ReceivedProbe {
        let from = HostAddr { mac: MacAddr([2; 6]), ip: [10, 0, 0, n].into() };
        ReceivedProbe { probe: Probe::new(kind, 9, 1), from, tos, hops: 0, length: 500, cut }
    }

    #[test]
    fn a_response_reports_how_the_request_arrived() {
        let ask = received(Kind::Request, 0x22, false, 1);
        let (_, reply) = respond(&mut VecDeque::new(), &ask, || 0).unwrap();
        assert_eq!((reply.kind, reply.tos, reply.length, reply.session), (Kind::Response, 0x22, 500, 9));
        let answer = received(Kind::Response, 0, false, 1);
        assert_eq!(respond(&mut VecDeque::new(), &answer, || 0), None, "no endless talk");
    }

    #[test]
    fn bursts_are_counted_whole_and_trimmed() {
        let mut counts = VecDeque::new();
        let mut say = |received: &ReceivedProbe, missed| respond(&mut counts, received, || missed);
        let classes = DscpClasses::default();
        assert_eq!(say(&received(Kind::CountRequest, 0, false, 1), 0), None, "nothing has begun");
        say(&received(Kind::Start, 0, false, 1), 40).unwrap();
        for (dscp, cut) in
            [(classes.trimmable[0], false), (classes.trimmable[0], true), (classes.trimmed, false)]
        {
            assert_eq!(say(&received(Kind::Burst, dscp << 2, cut, 1), 0), None);
        }
        say(&received(Kind::Start, 0, false, 1), 45).expect("it is answered, and counting goes on");
        let (_, reply) = say(&received(Kind::CountRequest, 0, false, 1), 47).unwrap();
        assert_eq!((reply.whole, reply.trimmed, reply.missed), (1, 2, 7));
        for n in 2..200 {
            say(&received(Kind::Start, 0, false, n), 0);
        }
        assert_eq!(counts.len(), MAX_COUNTED_HOSTS, "whoever comes, memory is bounded");
    }

    #[test]
    fn late_packets_of_one_burst_do_not_count_for_the_next() {
        let mut counts = VecDeque::new();
        let of = |kind, session| {
            let base = received(kind, DscpClasses::default().trimmable[0] << 2, false, 1);
            ReceivedProbe { probe: Probe::new(kind, session, 1), ..base }
        };
        for (kind, session) in [(Kind::Start, 9), (Kind::Burst, 9), (Kind::Start, 10), (Kind::Burst, 9)] {
            respond(&mut counts, &of(kind, session), || 0);
        }
        respond(&mut counts, &of(Kind::Burst, 10), || 0);
        let (_, reply) = respond(&mut counts, &of(Kind::CountRequest, 10), || 0).unwrap();
        assert_eq!((reply.whole, reply.trimmed), (1, 0));
    }
}
