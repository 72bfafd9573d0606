//! Examines a path: the longest packet that arrives, whether DSCP and ECN are kept, and whether switches trim packets
//! that do not fit into their queues.

use super::burst::{Burst, Fate};
use super::finding::Finding;
use super::probe::{Kind, Probe, ReceivedProbe};
use super::wire::Wire;
use crate::Failure;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};
use weft_stack::wire::class::DscpClasses;
use weft_stack::worker::HostAddr;

/// How often a request is sent before it counts as lost.
const MAX_TRIES: u32 = 4;
/// How long a response may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(250);
/// A burst has ended after this time without a packet of it.
const BURST_GAP: Duration = Duration::from_millis(200);
/// How long a burst may take.
const BURST_TIMEOUT: Duration = Duration::from_secs(10);
/// Lengths of IP packets to try: the minimum MTU of IPv4 and of IPv6, the MTU of Ethernet, a payload of 4 KiB, and
/// jumbo frames.
const LENGTHS: [usize; 5] = [576, 1280, 1500, 4204, 9000];

/// A path under examination.
pub(super) struct PathCheck {
    wire: Wire,
    peer: HostAddr,
    burst: Burst,
    session: u32,
    number: u32,
}

/// A response and the time it took.
struct Reply {
    received: ReceivedProbe,
    took: Duration,
}

impl PathCheck {
    pub(super) fn new(wire: Wire, peer: HostAddr, burst: Burst) -> PathCheck {
        let session = RandomState::new().build_hasher().finish() as u32;
        PathCheck { wire, peer, burst, session, number: 0 }
    }

    /// Makes all checks. If the peer does not respond, the first is the only one.
    pub(super) fn examine(&mut self) -> Result<Vec<Finding>, Failure> {
        let ip = self.peer.ip;
        let Some(first) = self.request(0, 0)? else {
            let seen = format!("no answer from {ip}");
            let mend = format!("at {ip}: weft doctor --answer --port …; and let UDP port 4793 through");
            return Ok(vec![Finding::bad("path", seen, mend)]);
        };
        let us = first.took.as_micros();
        let hops = first.received.hops;
        let mut findings =
            vec![Finding::ok("path", format!("{ip} answers after {us} µs, {hops} routers away"))];
        findings.push(self.lengths()?);
        findings.extend(self.marks()?);
        findings.push(self.trimming()?);
        Ok(findings)
    }

    /// The response to a request in an IP packet of at least `length` bytes with the DSCP and ECN in `tos`.
    fn request(&mut self, tos: u8, length: usize) -> Result<Option<Reply>, Failure> {
        self.exchange(Kind::Request, Kind::Response, tos, length)
    }

    fn exchange(
        &mut self,
        ask: Kind,
        answer: Kind,
        tos: u8,
        length: usize,
    ) -> Result<Option<Reply>, Failure> {
        self.number += 1;
        let probe = Probe::new(ask, self.session, self.number);
        for _ in 0..MAX_TRIES {
            let begin = Instant::now();
            self.wire.send(self.peer, tos, length, &probe)?;
            let deadline = begin + RESPONSE_TIMEOUT;
            while let Some(received) = self.wire.next(deadline) {
                let got =
                    (received.from.ip, received.probe.kind, received.probe.session, received.probe.number);
                if got == (self.peer.ip, answer, self.session, self.number) {
                    return Ok(Some(Reply { received, took: begin.elapsed() }));
                }
            }
        }
        Ok(None)
    }

    fn lengths(&mut self) -> Result<Finding, Failure> {
        let (own, mut longest) = (self.wire.mtu(), self.wire.shortest());
        let tried = LENGTHS.into_iter().filter(|length| *length < own).chain([own]);
        for length in tried {
            match self.request(0, length)? {
                Some(reply) if reply.received.probe.length as usize == length => longest = length,
                _ => {
                    let seen = format!(
                        "packets of {length} bytes do not arrive, those of {longest} do; the port's MTU is {own}"
                    );
                    let mend = format!(
                        "--port-mtu {longest} at both ends; or raise the MTU of all switches on the path"
                    );
                    return Ok(Finding::bad("path-mtu", seen, mend));
                }
            }
        }
        Ok(Finding::ok("path-mtu", format!("packets of {own} bytes arrive")))
    }

    /// Checks whether DSCP and ECN are kept in both directions.
    fn marks(&mut self) -> Result<Vec<Finding>, Failure> {
        let classes = DscpClasses::default();
        let (mut rewritten, mut bleached, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        let mut congested = 0;
        for dscp in [0, classes.trimmable[0], classes.control] {
            for ecn in 0..4 {
                let tos = dscp << 2 | ecn;
                let Some(Reply { received, .. }) = self.request(tos, 0)? else {
                    lost.push(format!("DSCP {dscp} with ECN {ecn}"));
                    continue;
                };
                // The response was sent with the DSCP and ECN with which the request arrived.
                let there = (received.probe.tos, tos, "there");
                let back = (received.tos, received.probe.tos, "back");
                for (seen, sent, way) in [there, back] {
                    note(&mut rewritten, seen >> 2 != sent >> 2, || {
                        format!("{} arrives as {} ({way})", sent >> 2, seen >> 2)
                    });
                    let marked = seen & 3 == 3 && matches!(sent & 3, 1 | 2);
                    congested += usize::from(marked);
                    note(&mut bleached, seen & 3 != sent & 3 && !marked, || {
                        format!("{} arrives as {} ({way})", sent & 3, seen & 3)
                    });
                }
            }
        }
        let keep = "make the switches and routers on the path trust and keep the DSCP of weft's classes";
        let dscp = match (lost.is_empty(), rewritten.is_empty()) {
            (true, true) => Finding::ok("path-dscp", "kept, there and back"),
            (false, _) => Finding::bad("path-dscp", format!("packets are lost: {}", lost.join(", ")), keep),
            (true, false) => {
                Finding::bad("path-dscp", format!("rewritten: DSCP {}", rewritten.join(", ")), keep)
            }
        };
        let ecn = if bleached.is_empty() {
            let note =
                if congested > 0 { format!("; {congested} probes came back marked") } else { String::new() };
            Finding::ok("path-ecn", format!("kept, there and back{note}"))
        } else {
            Finding::bad(
                "path-ecn",
                format!("changed: ECN {}", bleached.join(", ")),
                "find the router or firewall that clears the ECN field: congestion control sees no marks",
            )
        };
        Ok(vec![dscp, ecn])
    }

    /// Sends bursts of trimmable packets of the longest size, each burst longer than the one before, until a queue
    /// overflows.
    fn trimming(&mut self) -> Result<Finding, Failure> {
        let mut before = None;
        for size in self.burst.sizes() {
            let Some(fate) = self.overflow(size)? else {
                let seen = "the peer does not say what came of a burst";
                return Ok(Finding::warn("trimming", seen, "try again"));
            };
            let last = before.replace(fate);
            if fate.settles(last) {
                break;
            }
        }
        Ok(self.burst.judge(before.unwrap_or_default()))
    }

    /// Sends a burst of `size` packets and asks the peer how many arrived. `None` if the peer does not answer.
    fn overflow(&mut self, size: u16) -> Result<Option<Fate>, Failure> {
        // A new session number excludes late packets of the previous burst.
        self.session = self.session.wrapping_add(1);
        if self.exchange(Kind::Start, Kind::Response, 0, 0)?.is_none() {
            return Ok(None);
        }
        let marks = DscpClasses::default().trimmable[0] << 2 | 2;
        let (length, unsent) = (self.wire.mtu(), self.wire.unsent());
        let (begin, gap) = (Instant::now(), self.burst.gap(length));
        for n in 0..size {
            self.wire.wait_until(begin + gap * u32::from(n));
            let probe = Probe::new(Kind::Burst, self.session, n.into());
            self.wire.send(self.peer, marks, length, &probe)?;
        }
        let Some(counted) = self.count(size)? else { return Ok(None) };
        let unsent = (self.wire.unsent() - unsent).try_into().unwrap_or(u16::MAX);
        let Probe { whole, trimmed, missed, .. } = counted;
        Ok(Some(Fate { sent: size, whole, trimmed, unsent, missed }))
    }

    /// Requests the counts of a burst of `size` packets until they no longer grow.
    fn count(&mut self, size: u16) -> Result<Option<Probe>, Failure> {
        let deadline = Instant::now() + BURST_TIMEOUT;
        let mut last: Option<Probe> = None;
        loop {
            // The request may wait in the same queue behind the burst, or be dropped there.
            let reply = self
                .exchange(Kind::CountRequest, Kind::CountResponse, 0, 0)?
                .map(|reply| reply.received.probe);
            let arrived = |probe: &Probe| probe.whole.saturating_add(probe.trimmed);
            let over = match (&last, &reply) {
                (_, Some(now)) if arrived(now) >= size => true,
                (Some(before), Some(now)) => arrived(before) == arrived(now),
                _ => false,
            };
            last = reply.or(last);
            if over || Instant::now() >= deadline {
                return Ok(last);
            }
            self.wire.wait_until(Instant::now() + BURST_GAP);
        }
    }
}

/// Adds a text to `list` if it `applies` and is not there yet.
fn note(list: &mut Vec<String>, applies: bool, text: impl FnOnce() -> String) {
    if applies {
        let text = text();
        if !list.contains(&text) {
            list.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer;
    use super::super::burst::Visibility;
    use super::super::finding::State;
    use super::*;
    use crate::port_spec::{AnyPort, OpenPort};
    use std::thread;
    use weft_cc::Span;
    use weft_stack::port::memory::{MemoryConfig, pair};

    fn wires() -> (Wire, Wire) {
        let (a, b) = pair(&MemoryConfig::default()).unwrap();
        let open = |port, n| Wire::new(OpenPort::in_process(AnyPort::Memory(Box::new(port)), n));
        (open(a, 1), open(b, 2))
    }

    #[test]
    fn a_path_without_faults_is_ok() {
        let (near, far) = wires();
        let peer = far.own();
        let other =
            thread::spawn(move || answer::answer(far, Some(Span::from_ms(1500))).map_err(|e| e.to_string()));
        let findings = PathCheck::new(near, peer, Burst::new(Visibility::Full, None)).examine().unwrap();
        other.join().unwrap().unwrap();
        let states: Vec<_> = findings.iter().map(|finding| (finding.check, finding.state)).collect();
        let good = ["path", "path-mtu", "path-dscp", "path-ecn"].map(|check| (check, State::Ok));
        assert_eq!(states[..4], good, "{findings:?}");
        assert_eq!(states[4], ("trimming", State::Warn), "nothing overflows in memory: {findings:?}");
    }

    #[test]
    fn a_peer_that_does_not_respond_is_named() {
        let (near, far) = wires();
        let findings = PathCheck::new(near, far.own(), Burst::new(Visibility::Full, None)).examine().unwrap();
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].check, findings[0].state), ("path", State::Bad));
        assert!(findings[0].seen.contains("127.0.0.2"));
    }
}
