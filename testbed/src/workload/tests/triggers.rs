//! Tests of triggers, and of workloads that can never end.

use super::play;
use crate::workload::{CmOptions, TriggerBank, TriggerIdx, Workload, parse_cm};

/// Parses a matrix of four hosts whose counts are right.
fn matrix(body: &str) -> Result<Workload, String> {
    let count = |what: &str| body.lines().filter(|line| line.contains(what)).count();
    let triggers = body.lines().filter(|line| line.starts_with("trigger")).count();
    let text = format!("Nodes 4\nConnections {}\nTriggers {triggers}\n{body}", count("->"));
    parse_cm("x", &text, CmOptions::default()).map_err(|e| e.to_string())
}

fn activate_all(workload: &Workload, times: usize) -> Vec<Vec<u32>> {
    let mut bank = TriggerBank::new(workload);
    let trigger = TriggerIdx::new(0).unwrap();
    let mut flows = || bank.activate(workload, trigger).map_or(&[][..], |fired| fired.flows).to_vec();
    (0..times).map(|_| flows()).collect()
}

const THREE_WAIT: &str = "\
0->1 start 0 size 1 send_done_trigger 1
0->2 start 0 size 1 send_done_trigger 1
0->3 start 0 size 1 recv_done_trigger 1
1->0 id 1 trigger 1 size 1
2->0 id 2 trigger 1 size 1
3->0 id 3 trigger 1 size 1
";

#[test]
fn the_first_activation_of_a_oneshot_starts_all_its_flows() {
    let w = matrix(&format!("{THREE_WAIT}trigger id 1 oneshot")).unwrap();
    assert_eq!(activate_all(&w, 3), [vec![3, 4, 5], vec![], vec![]]);
}

#[test]
fn each_activation_of_a_multishot_starts_its_next_flow() {
    let w = matrix(&format!("{THREE_WAIT}trigger id 1 multishot")).unwrap();
    assert_eq!(activate_all(&w, 5), [vec![3], vec![4], vec![5], vec![], vec![]]);
}

#[test]
fn the_last_activation_of_a_barrier_starts_all_its_flows() {
    let w = matrix(&format!("{THREE_WAIT}trigger id 1 barrier count 3")).unwrap();
    assert_eq!(activate_all(&w, 4), [vec![], vec![], vec![3, 4, 5], vec![]]);
    let mut bank = TriggerBank::new(&w);
    let trigger = TriggerIdx::new(0).unwrap();
    assert_eq!(bank.activations(trigger), 0);
    bank.activate(&w, trigger);
    assert_eq!(bank.activations(trigger), 1);
}

#[test]
fn a_flow_may_activate_one_trigger_twice() {
    let twice = "0->1 start 0 size 1 send_done_trigger 1 recv_done_trigger 1\n1->0 trigger 1 size 1\n";
    let w = matrix(&format!("{twice}trigger id 1 barrier count 2")).unwrap();
    play(&w, 1, |_, _| {});
}

#[test]
fn triggers_need_enough_activations() {
    let one_less = THREE_WAIT.replacen(" recv_done_trigger 1", "", 1);
    let message = "trigger 1 needs 3 activations to start all of its flows but gets 2";
    for kind in ["multishot", "barrier count 3"] {
        assert_eq!(
            matrix(&format!("{one_less}trigger id 1 {kind}")).unwrap_err(),
            format!("x:10: {message}")
        );
    }
    play(&matrix(&format!("{one_less}trigger id 1 barrier count 2")).unwrap(), 1, |_, _| {});
    play(&matrix(&format!("{one_less}trigger id 1 oneshot")).unwrap(), 1, |_, _| {});
}

#[test]
fn a_trigger_may_start_nothing() {
    let w = matrix("0->1 start 0 size 1 send_done_trigger 1\ntrigger id 1 multishot").unwrap();
    assert_eq!(activate_all(&w, 1), [Vec::<u32>::new()]);
}

#[test]
fn cycles_are_refused() {
    let itself = "0->1 id 1 trigger 1 size 1 send_done_trigger 1\ntrigger id 1 oneshot";
    assert_eq!(
        matrix(itself).unwrap_err(),
        "x:4: flow 1 can never start: it is part of a cycle of 1 flow(s) through trigger 1"
    );
    let three = "0->1 id 1 start 0 size 1 send_done_trigger 9\n\
                 1->2 id 2 trigger 9 size 1 send_done_trigger 9\n\
                 2->3 id 3 trigger 5 size 1 recv_done_trigger 6\n\
                 3->0 id 4 trigger 6 size 1 send_done_trigger 7\n\
                 0->1 id 5 trigger 7 size 1 send_done_trigger 5\n\
                 0->1 id 6 trigger 7 size 1\n\
                 trigger id 5 oneshot\ntrigger id 6 oneshot\ntrigger id 7 oneshot\ntrigger id 9 oneshot";
    assert_eq!(
        matrix(three).unwrap_err(),
        "x:6: flow 3 can never start: it is part of a cycle of 3 flow(s) through trigger 5"
    );
}

#[test]
fn a_barrier_that_waits_for_a_flow_it_starts_is_a_cycle() {
    let text = "0->1 id 1 start 0 size 1 send_done_trigger 1\n\
                1->0 id 2 trigger 1 size 1 send_done_trigger 1\n\
                trigger id 1 barrier count 2";
    assert_eq!(
        matrix(text).unwrap_err(),
        "x:5: flow 2 can never start: it is part of a cycle of 1 flow(s) through trigger 1"
    );
    // A multishot trigger that its own flows activate is a window, not a cycle.
    let window = "0->1 id 1 start 0 size 1 send_done_trigger 1\n\
                  0->2 id 2 trigger 1 size 1 send_done_trigger 1\n\
                  0->3 id 3 trigger 1 size 1 send_done_trigger 1\n\
                  trigger id 1 multishot";
    play(&matrix(window).unwrap(), 1, |_, running| assert_eq!(running.len(), 1));
}

#[test]
fn long_chains_do_not_overflow_the_stack() {
    let mut body = String::from("0->1 id 1 start 0 size 1 send_done_trigger 1\n");
    for i in 1..50_000 {
        body += &format!("0->1 id {} trigger {i} size 1 send_done_trigger {}\n", i + 1, i + 1);
    }
    for i in 1..=50_000 {
        body += &format!("trigger id {i} oneshot\n");
    }
    let w = matrix(&body).unwrap();
    assert_eq!(w.flows().len(), 50_000);
}
