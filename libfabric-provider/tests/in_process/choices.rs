//! `FI_WEFT_CC` and `FI_WEFT_LB`: every name that `weft list` prints is accepted, and unknown ones are refused with the choices.

use std::process::Command;

use crate::common::fabric::{How, Opened, Side, Wish, getinfo};
use crate::common::{Provider, full_name, inside_with, weft};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// The variable that makes the test of wrong names one of its processes.
const WRONG: &str = "WEFT_FI_WRONG";

/// The names that `weft list` prints of this catalogue; forms of names stand for one of each.
fn listed(catalogue: &str) -> Vec<String> {
    let Some(weft) = weft() else { return Vec::new() };
    let output = Command::new(weft).args(["list", catalogue]).output().unwrap();
    assert!(output.status.success(), "weft list {catalogue}");
    let text = String::from_utf8(output.stdout).unwrap();
    let name = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    let example = |name: String| name.replace("SENDER", "swift").replace("RECEIVER", "rccc");
    text.lines().map(name).map(example).collect()
}

/// Two endpoints with these choices exchange a message of many packets.
fn exchange_with(test: &str, variable: &str, name: &str) {
    if !inside_with(test, &[(variable, name)]) {
        return;
    }
    let (a, b) = (Side::open(&Wish::default(), How::default()), Side::open(&Wish::default(), How::default()));
    let to = a.insert(&b.name());
    b.insert(&a.name());
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n * 7 + (n >> 9)) as u8).collect();
    let mut room = vec![0; bytes.len()];
    b.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    a.send(to, &bytes, None, 2);
    assert_eq!(b.cq.next().unwrap().len, bytes.len());
    assert_eq!(a.cq.next().unwrap().context, 2);
    assert!(room == bytes);
}

fn exchange_with_all(test: &str, catalogue: &str, variable: &str, known: &str) {
    // One that has been chosen for this process.
    if let Ok(name) = std::env::var(variable) {
        return exchange_with(test, variable, &name);
    }
    let names = listed(catalogue);
    assert!(names.is_empty() || names.len() > 5 && names.iter().any(|name| name == known), "{names:?}");
    names.iter().for_each(|name| exchange_with(test, variable, name));
}

#[test]
fn endpoints_exchange_messages_with_every_congestion_control_that_is_listed() {
    let name = "endpoints_exchange_messages_with_every_congestion_control_that_is_listed";
    exchange_with_all(name, "cc", "FI_WEFT_CC", "swift+rccc");
}

#[test]
fn endpoints_exchange_messages_with_every_load_balancer_that_is_listed() {
    let name = "endpoints_exchange_messages_with_every_load_balancer_that_is_listed";
    exchange_with_all(name, "lb", "FI_WEFT_LB", "reps");
}

#[test]
fn unknown_names_are_refused_with_the_choices() {
    const NAME: &str = "unknown_names_are_refused_with_the_choices";
    if std::env::var_os(WRONG).is_some() {
        let info = getinfo(&Wish::default()).unwrap();
        assert_eq!(Opened::new(&info).endpoint(&info), -sys::FI_EINVAL);
        return;
    }
    let provider = Provider::new();
    for (variable, catalogue) in [("FI_WEFT_CC", "cc"), ("FI_WEFT_LB", "lb")] {
        let mut command = provider.command("timeout");
        command.arg("60").arg(std::env::current_exe().unwrap()).args([
            &full_name(NAME),
            "--exact",
            "--nocapture",
        ]);
        command.envs([(WRONG, "1"), ("FI_LOG_LEVEL", "warn"), (variable, "no-such-choice")]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let line = said.lines().find(|line| line.contains("no-such-choice"));
        let line = line.unwrap_or_else(|| panic!("no warning names it: {said}"));
        for name in listed(catalogue).iter().filter(|name| !name.contains(['+', '('])) {
            assert!(line.contains(name.as_str()), "{name} is no choice of: {line}");
        }
    }
}
