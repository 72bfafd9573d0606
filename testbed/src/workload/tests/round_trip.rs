//! Written workloads parse to the same workload.

use core::num::NonZeroU16;
use proptest::prelude::*;
use weft_cc::{Rate, Span, Time};
use weft_stack::rng::Rng;
use weft_stack::wire::class::Priority;

use super::play;
use crate::topology::HostId;
use crate::workload::{
    Background, BackgroundIdx, CmOptions, Connection, Flow, LinkFailure, MessageNumber, Start, Trigger,
    TriggerIdx, TriggerKind, Workload, WorkloadSpec, parse_cm,
};

fn written(workload: &Workload) -> String {
    let mut text = String::new();
    workload.write_cm(&mut text).unwrap();
    text
}

/// A workload that uses every feature. Flows wait only for earlier flows, so all can start.
fn random_workload(seed: u64) -> Workload {
    let mut rng = Rng::new(seed, 0);
    let hosts = 2 + rng.below(20);
    let mut flows: Vec<Flow> = Vec::new();
    let mut connections: Vec<Connection> = Vec::new();
    let mut triggers: Vec<Trigger> = Vec::new();
    let mut backgrounds: Vec<Background> = Vec::new();
    for i in 0..rng.below(40) {
        let reuse = !connections.is_empty() && rng.chance(0.3);
        let connection = if reuse { rng.below(connections.len() as u32) } else { connections.len() as u32 };
        if !reuse {
            let src = rng.below(hosts);
            let dst = (src + 1 + rng.below(hosts - 1)) % hosts;
            let priority = Priority::new(rng.below(16) as u8).unwrap_or_default();
            // Numbered in the order of the file.
            let background = BackgroundIdx::new(rng.below(backgrounds.len() as u32 + 1) as usize);
            let background = background.filter(|_| rng.chance(0.2));
            if background.is_some_and(|kind| kind.index() == backgrounds.len()) {
                let rate = Rate::from_bps(1 + backgrounds.len() as u64);
                backgrounds
                    .push(Background { rate, path: rng.chance(0.5).then(|| rng.below(16_384) as u16) });
            }
            let (src, dst) = (HostId(src), HostId(dst));
            let pool = NonZeroU16::new(rng.below(4) as u16).unwrap_or(NonZeroU16::MIN);
            connections.push(Connection {
                priority,
                background,
                pool,
                ..Connection::new(1000 - 7 * i, src, dst)
            });
        }
        let Connection { id, src, dst, .. } = connections[connection as usize];
        let start = random_start(&mut rng, &mut flows, &mut triggers);
        let message = (reuse || rng.chance(0.2)).then(|| if rng.chance(0.5) { 0 } else { i + 1 });
        let message = message.and_then(MessageNumber::new);
        let bytes = u64::from(rng.next_u64() as u32);
        flows.push(Flow {
            id,
            connection,
            src,
            dst,
            bytes,
            start,
            on_sent: None,
            on_received: None,
            message,
        });
    }
    let failure =
        |rng: &mut Rng| LinkFailure { tier: rng.below(3) as u8, switch: rng.below(9), link: rng.below(9) };
    let failures = (0..rng.below(3)).map(|_| failure(&mut rng)).collect();
    let workload = Workload::new(hosts, flows, connections, triggers, failures).unwrap();
    workload.with_backgrounds(backgrounds).unwrap()
}

/// A start time, or a trigger that one or two of the earlier flows activate.
fn random_start(rng: &mut Rng, flows: &mut [Flow], triggers: &mut Vec<Trigger>) -> Start {
    let at = Start::At(Time::from_ps(rng.next_u64() >> (2 + rng.below(60))));
    let free: Vec<usize> = (0..flows.len()).filter(|&f| flows[f].on_sent.is_none()).collect();
    if free.is_empty() || rng.chance(0.4) {
        return at;
    }
    let trigger = TriggerIdx::new(triggers.len() as u32).unwrap();
    let first = free[rng.below(free.len() as u32) as usize];
    flows[first].on_sent = Some(trigger);
    let both = flows[first].on_received.is_none() && rng.chance(0.5);
    if both {
        flows[first].on_received = Some(trigger);
    }
    let kind = match rng.below(3) {
        0 => TriggerKind::Oneshot,
        1 => TriggerKind::Multishot,
        _ => TriggerKind::Barrier(1 + u32::from(both)),
    };
    let delay = Span::from_ps(if rng.chance(0.5) { 0 } else { u64::from(rng.below(9_000_000)) });
    triggers.push(Trigger { delay, ..Trigger::new(500 - triggers.len() as u32, kind) });
    // Another trigger that this one activates, and that starts nothing; or it is activated at a time.
    if rng.chance(0.3) {
        triggers[trigger.index()].then = TriggerIdx::new(triggers.len() as u32);
        let at = rng.chance(0.5).then(|| Time::from_ps(u64::from(rng.below(9_000_000))));
        triggers.push(Trigger { at, ..Trigger::new(500 - triggers.len() as u32, TriggerKind::Oneshot) });
    }
    Start::Trigger(trigger)
}

proptest! {
    #[test]
    fn any_written_workload_parses_to_the_same_workload(seed in any::<u64>()) {
        let workload = random_workload(seed);
        play(&workload, seed, |_, _| {});
        let text = written(&workload);
        prop_assert_eq!(parse_cm("x", &text, CmOptions::default()), Ok(workload), "{}", text);
    }
}

#[test]
fn written_generated_workloads_parse_to_the_same_workload() {
    for text in ["incast:5", "permutation", "all-to-all:3"] {
        let spec: WorkloadSpec = text.parse().unwrap();
        let workload = spec.build(Some(12), 2 << 20, &mut Rng::new(1, 0)).unwrap();
        assert_eq!(parse_cm("x", &written(&workload), CmOptions::default()), Ok(workload), "{text}");
    }
}

#[test]
fn the_written_text_follows_the_format() {
    let text = "\
Nodes 4
Connections 3
Triggers 1
Failures 1
0->1 id 7 start 1.000001 size 10 send_done_trigger 3
1->2 id 8 msg 2 trigger 3 size 20
1->2 id 8 msg start 12 size 0 recv_done_trigger 3
trigger id 3 barrier count 2
failure switch_type CORE switch_id 1 link_id 2
";
    let workload = parse_cm("x", text, CmOptions::default()).unwrap();
    assert_eq!(written(&workload), text);
}
