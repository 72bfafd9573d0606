//! What must be true after every run: each flow is done, or it has ended with an error that the faults explain, within
//! the bound that the endpoints' configuration states; and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prop_assert;
use proptest::test_runner::TestCaseError;

use weft_cc::{Span, Time};
use weft_stack::event::{Event, Record};
use weft_stack::fep::{Failure, FepConfig, SendError};
use weft_stack::pdc::{MAX_DOUBLINGS, PdcConfig};
use weft_stack::wire::pds::{NackCode, PdcId, Psn};
use weft_testbed::sim::{FlowFailure, FlowRecord, RunConfig, RunReport, TraceSink};
use weft_testbed::topology::{HostId, Node, PortId, Topology};
use weft_testbed::workload::{Flow, Start, TriggerIdx};

use super::case::{Case, LIMIT};

/// How much longer than its least value the retransmission timeout may be, in RTTs: a leeway of four RTTs for
/// reordering, the RTT itself, the smoothed RTT and four deviations from it.
const RTTS_IN_RTO: u64 = 10;

/// Checks the properties that every run must have.
pub(crate) fn check(
    case: &Case,
    config: &RunConfig,
    report: &RunReport,
    witness: &Witness,
) -> Result<(), TestCaseError> {
    let court = Court::new(case, config, report);
    let mut complaints = Vec::new();
    if !report.end.is_before(Time::ZERO + LIMIT) {
        complaints.push("the run does not end".to_owned());
    }
    complaints.extend(report.payload_errors.iter().cloned());
    complaints.extend(report.leaks.iter().filter(|leak| !court.excuses_leak(leak)).cloned());
    if !case.has_lasting_faults() {
        complaints.extend(report.stuck.iter().map(ToString::to_string));
    }
    for (index, record) in report.flows.iter().enumerate() {
        complaints.extend(court.judge(index, record, witness));
    }
    complaints.extend(court.judge_end());
    prop_assert!(
        complaints.is_empty(),
        "ended at {:?}\ncomplaints: {:#?}\nstuck: {:#?}\npackets: {:?}\nRTO {:?}, busy {:?}, idle {:?}",
        report.end,
        complaints,
        report.stuck.iter().map(ToString::to_string).collect::<Vec<_>>(),
        report.packets,
        court.pdc().rto_init,
        court.endpoint.busy_timeout,
        court.endpoint.idle_timeout,
    );
    Ok(())
}

/// A run and what follows from its configuration.
struct Court<'a> {
    case: &'a Case,
    config: &'a RunConfig,
    report: &'a RunReport,
    endpoint: FepConfig,
    /// The sending ports of the links that never recover.
    broken: BTreeSet<PortId>,
}

impl<'a> Court<'a> {
    fn new(case: &'a Case, config: &'a RunConfig, report: &'a RunReport) -> Court<'a> {
        let lasting = case.faults.outages.iter().filter(|outage| outage.length.is_none());
        let topology = &config.topology;
        let broken = lasting.flat_map(|outage| outage.link(topology).ports(topology)).collect();
        Court { case, config, report, endpoint: config.endpoint(), broken }
    }

    fn pdc(&self) -> PdcConfig {
        self.endpoint.zones.iter().next().expect("there is a zone").pdc
    }

    /// The longest retransmission timeout that measured RTTs can lead to.
    fn longest_rto(&self) -> Span {
        let queues = self.pdc().rto_init;
        let rtt = queues + self.config.network_rtt() + self.case.longest_delay(&self.config.topology);
        if self.case.production_timers { self.pdc().rto_init.max(rtt) } else { rtt.times(RTTS_IN_RTO) }
    }

    /// The longest time between two looks at a connection that makes no progress.
    fn slack(&self) -> Span {
        self.longest_rto().times(1 << MAX_DOUBLINGS)
    }

    fn busy_timeout(&self) -> Span {
        self.endpoint.busy_timeout.bound().expect("all cases have one")
    }

    /// The longest time from the last progress of a connection to its end.
    fn patience(&self) -> Span {
        self.busy_timeout() + self.slack()
    }

    fn flow(&self, index: usize) -> &Flow {
        &self.config.workload.flows()[index]
    }

    /// Complaints about flow `index`.
    fn judge(&self, index: usize, record: &FlowRecord, witness: &Witness) -> Vec<String> {
        let failure = self.report.failures.iter().find(|failure| failure.flow as usize == index);
        let complaint = match (record.start, record.end, failure) {
            (None, None, None) if self.waits_in_vain(index) => None,
            (None, ..) => Some("has not begun".to_owned()),
            (Some(_), Some(_), None) => None,
            (Some(_), Some(_), Some(failure)) => Some(format!("is done and has failed: {}", failure.error)),
            (Some(_), None, None) => Some("is neither done nor has it failed".to_owned()),
            (Some(start), None, Some(failure)) => {
                return self.judge_failure(index, start, failure, witness);
            }
        };
        complaint.into_iter().map(|what| format!("flow {index} ({} B) {what}", record.bytes)).collect()
    }

    /// Whether flow `index` begins after other ones of which one has not ended well.
    fn waits_in_vain(&self, index: usize) -> bool {
        let Start::Trigger(trigger) = self.flow(index).start else { return false };
        let workload = &self.config.workload;
        let mut ahead = vec![trigger];
        let mut found = BTreeSet::new();
        while let Some(trigger) = ahead.pop() {
            let activates = |flow: &Flow| flow.on_sent == Some(trigger) || flow.on_received == Some(trigger);
            let mut before = workload.flows().iter().zip(&self.report.flows);
            if before.any(|(flow, record)| activates(flow) && record.end.is_none()) {
                return true;
            }
            if found.insert(trigger) {
                let chained = (0..).map_while(TriggerIdx::new).zip(workload.triggers());
                ahead
                    .extend(chained.filter(|(_, other)| other.then == Some(trigger)).map(|(index, _)| index));
            }
        }
        false
    }

    /// Complaints about the failure of flow `index`, which began at `start`.
    fn judge_failure(
        &self,
        index: usize,
        start: Time,
        failure: &FlowFailure,
        witness: &Witness,
    ) -> Vec<String> {
        let flow = self.flow(index);
        let mut complaints = Vec::new();
        let mut complain = |what: String| complaints.push(format!("flow {index}: {what}: {}", failure.error));
        if !self.is_broken(flow.src, flow.dst) {
            complain("no fault explains its failure".to_owned());
        }
        let SendError::Failed(why) = failure.error else {
            complain("it failed in a way that no fault explains".to_owned());
            return complaints;
        };
        // Or it was silent for most of the time in which a busy peer is waited for.
        let bound = self.busy_timeout().min(self.endpoint.idle_timeout.times(2));
        let silence = self.pdc().silence(self.pdc().rto_init).min(bound.mul_f64(0.5));
        let within = |least: Span, waited: Span| (least..=self.patience()).contains(&waited);
        let (waited, is_in_time) = match why {
            Failure::NoAnswer { waited, .. } => (waited, within(silence, waited)),
            Failure::Busy { waited, .. }
            | Failure::NoCredit { waited, .. }
            | Failure::NoProgress { waited, .. } => {
                let least = self.busy_timeout().min(self.endpoint.idle_timeout.times(2));
                (waited, within(least, waited))
            }
            // A target that has heard nothing for twice its idle timeout has forgotten the PDC.
            Failure::Refused { code: NackCode::INV_DPDCID, .. } => {
                (Span::ZERO, failure.at.since(Time::ZERO) >= self.endpoint.idle_timeout.times(2))
            }
            Failure::Refused { .. } | Failure::FalseAck { .. } | Failure::ClosedByPeer { .. } => {
                (Span::ZERO, false)
            }
        };
        if !is_in_time {
            complain(format!("it was given up after {waited}, silence {silence}"));
        }
        let arrived = witness.last_arrival(flow).map_or(start, |arrived| arrived.latest(start));
        // What the target has, the initiator learns within one bound, and gives up within another; unless it learns
        // of several packets one after the other.
        if failure.at.since(arrived) > self.patience().times(3) {
            complain(format!("nothing had arrived for {}", failure.at.since(arrived)));
        }
        if let Failure::NoAnswer { pdc, psn, .. } = why {
            let sent = witness.sent(flow.src, (pdc, psn), failure.at, waited);
            let most = transmissions_in_silence(&self.pdc());
            if sent > most {
                complain(format!("its packet was sent {sent} times into a hole, at most {most} are right"));
            }
        }
        complaints
    }

    /// The run must end soon after its last flow: targets forget PDCs after twice their idle timeout.
    fn judge_end(&self) -> Option<String> {
        let flows = self.report.flows.iter().flat_map(|flow| [flow.start, flow.end]);
        let failures = self.report.failures.iter().map(|failure| Some(failure.at));
        let last = flows.chain(failures).flatten().reduce(Time::latest).unwrap_or(Time::ZERO);
        let idle = self.endpoint.idle_timeout;
        // An idle connection is closed at the request of its target, and may fail while it closes.
        let closes = idle.times(2) + self.patience();
        let latest = last + closes + idle.times(2) + self.endpoint.time_wait + self.slack();
        self.report.end.is_at_or_after(latest).then(|| format!("something happens after {latest:?}"))
    }

    /// Whether a link that never recovers may be on the way of a packet from `src` to `dst`, or of its answer.
    fn is_broken(&self, src: HostId, dst: HostId) -> bool {
        let topology = &self.config.topology;
        [(src, dst), (dst, src)]
            .into_iter()
            .any(|(a, b)| !ports_between(topology, a, b).is_disjoint(&self.broken))
    }

    /// A receive is posted for a message whose connection failed before the target took a packet of it. And a connection
    /// stays open if a flow of it cannot begin, unless its target's request to close it gets through.
    fn excuses_leak(&self, leak: &str) -> bool {
        let failed = !self.report.failures.is_empty();
        let waits =
            |flow: &FlowRecord| flow.start.is_none() && leak.starts_with(&format!("endpoint {}: ", flow.src));
        let open = ["connections", "congestion contexts"].into_iter().any(|what| leak.ends_with(what));
        failed && (leak.ends_with("posted receives") || open && self.report.flows.iter().any(waits))
    }
}

/// How often a packet leaves while its peer is silent, until it is given up.
fn transmissions_in_silence(config: &PdcConfig) -> usize {
    let (mut sent, mut at) = (0, Span::ZERO);
    while at < config.silence(config.rto_init) {
        at = at + config.rto_init.times(1 << sent.min(u32::from(MAX_DOUBLINGS)));
        sent += 1;
    }
    sent as usize
}

/// The sending ports of all links that a packet from `src` to `dst` can take.
fn ports_between(topology: &Topology, src: HostId, dst: HostId) -> BTreeSet<PortId> {
    let mut found = BTreeSet::new();
    let mut ahead = vec![topology.nic(src)];
    while let Some(port) = ahead.pop() {
        if found.insert(port)
            && let Node::Switch(switch) = topology.port(port).peer
        {
            ahead.extend(topology.next_ports(switch, dst).iter());
        }
    }
    found
}

/// What the endpoints of a run have reported.
#[derive(Default)]
pub(crate) struct Witness {
    /// When a packet last arrived at its target that had not arrived before, by source and destination.
    arrivals: BTreeMap<(u32, u32), Time>,
    /// When each packet was sent.
    sent: BTreeMap<(u32, u16, u32), Vec<Time>>,
}

impl TraceSink for Witness {
    fn records(&mut self, records: &[Record]) {
        for record in records {
            match record.event {
                Event::DataReceived { peer, .. } => {
                    self.arrivals.insert((peer.0, record.host), record.at);
                }
                Event::DataSent { pdc, psn, .. } => {
                    self.sent.entry((record.host, pdc.0, psn.0)).or_default().push(record.at);
                }
                _ => {}
            }
        }
    }
}

impl Witness {
    fn last_arrival(&self, flow: &Flow) -> Option<Time> {
        self.arrivals.get(&(flow.src.0, flow.dst.0)).copied()
    }

    /// How often a packet left in the time `waited` before `at`.
    fn sent(&self, src: HostId, (pdc, psn): (PdcId, Psn), at: Time, waited: Span) -> usize {
        let sent = self.sent.get(&(src.0, pdc.0, psn.0)).into_iter().flatten();
        sent.filter(|sent| at.since(**sent) <= waited).count()
    }
}
