//! What attacks by peers and applications cost the others at a server: the program of `scripts/bench-attacks.sh`.
//!
//! An endpoint serves applications, one of which, alice, exchanges messages with a peer. Beside them an attack goes on. Only
//! what the server does takes time, so that one thread plays all the others. Everything is measured without and with the
//! attack in turn, because on a shared machine the same takes longer in one minute than in the next.
//!
//! `attacks NAME…` prints a line for each attack, with tabs between its words: the name, and of all that is measured
//! (`honest.rs`) the value without the attack and with it, `-` if alice did not get it, `*` if it is not measured. `attacks list`
//! prints the names, what an attack is compared with (a row of honest senders, `-` for what is without it, `=` for such a row), and
//! what it does.

#[path = "../../tests/attached/mod.rs"]
mod attached;
#[path = "../../tests/held/mod.rs"]
mod held;

mod cases;
mod honest;
mod interface;
mod joiner;
mod net;
mod strangers;

use std::time::Duration;

use cases::{CASES, Case};
use honest::{ALL, GoOn, What, median};
use net::Net;
use strangers::Crowd;

/// Parts in which everything is measured without and with an attack in turn.
const PARTS: usize = 8;

/// What alice gets without an attack, and with it.
fn measure(case: &Case) -> [Vec<Option<f64>>; 2] {
    let prepared = |is_attacked: bool| {
        let mut net = Net::new(case.limits);
        if is_attacked {
            (case.begin)(&mut net);
        }
        net.longest = Duration::ZERO;
        net
    };
    let mut nets = [false, true].map(prepared);
    let mut results = [const { Vec::new() }; 2];
    for what in ALL {
        let mut parts = [const { Vec::new() }; 2];
        // What an attack that comes to an end lasts for is no longer than a part.
        for part in 0..if case.ends { 1 } else { PARTS } {
            for (side, net) in nets.iter_mut().enumerate() {
                let go_on: GoOn = if side == 1 { case.go_on } else { |_| {} };
                if part == 0 || parts[side].last() != Some(&None) {
                    parts[side].push(what.measure(net, go_on, PARTS));
                }
            }
        }
        for (result, parts) in results.iter_mut().zip(parts) {
            let all: Option<Vec<f64>> = parts.into_iter().collect();
            result.push(all.map(median));
        }
        // The longest turn is one of those of the measurement before it.
        if case.ends && !matches!(what, What::RoundTrip) {
            nets[1] = prepared(true);
        }
    }
    results
}

/// The rows of `strangers.rs`.
const STRANGERS: [(&str, Crowd, &str, &str); 2] = [
    (
        "strangers",
        Crowd::Strangers,
        KNOWN,
        "6,000 hosts send a packet each, and then 100,000 a second, to one that learns its peers",
    ),
    (KNOWN, Crowd::Known, "=", "no attack: a client sends it a message every 10 µs"),
];
const KNOWN: &str = "packets-of-a-client";

fn print(name: &str, [without, with]: &[Vec<Option<f64>>; 2]) {
    let word = |value: &Option<f64>| match value {
        Some(value) if value.is_nan() => "*".to_owned(),
        Some(value) => format!("{value:.6}"),
        None => "-".to_owned(),
    };
    let words: Vec<String> = without.iter().zip(with).flat_map(|(a, b)| [word(a), word(b)]).collect();
    println!("{name}\t{}", words.join("\t"));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if arguments.first().is_some_and(|first| first == "list") {
        for Case { name, beside, what, .. } in &CASES {
            println!("{name}\t{}\t{what}", beside.word());
        }
        for (name, _, beside, what) in STRANGERS {
            println!("{name}\t{beside}\t{what}");
        }
        return;
    }
    for case in CASES.iter().filter(|case| arguments.iter().any(|name| name == case.name)) {
        print(case.name, &measure(case));
    }
    for (name, crowd, ..) in STRANGERS {
        if arguments.iter().any(|argument| argument == name) {
            print(name, &[Crowd::Nobody, crowd].map(strangers::measure));
        }
    }
}
