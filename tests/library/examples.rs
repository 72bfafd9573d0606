//! The examples of applications and of a balancer of one's own do what they say.

use crate::bulk;
use crate::custom_lb;
use crate::ping_pong;
use crate::request;
use std::thread;
use weft::Endpoint;
use weft::core::spray::LbChoice;

/// Two addresses that no other run of these tests uses at the same time.
fn addresses(net: u8) -> [String; 2] {
    [1, 2].map(|n| format!("127.{net}.{}.{n}", std::process::id() % 256))
}

#[test]
fn messages_go_to_and_fro() {
    let [here, there] = addresses(43);
    let at = there.clone();
    let other = thread::spawn(move || ping_pong::pong(&at, 100).map_err(|error| error.to_string()));
    let round_trip = ping_pong::ping(&here, &there, 100).unwrap();
    assert!(!round_trip.is_zero());
    other.join().unwrap().unwrap();
}

#[test]
fn a_bulk_transfer_shows_its_progress() {
    let name = format!("memif:@weft-bulk-{}", std::process::id());
    let open = |n: u8, role: &str| {
        Endpoint::builder(format!("{name},role={role}")).ip([10, 0, 0, n].into()).build().unwrap()
    };
    let (here, there) = (open(1, "client"), open(2, "server"));
    let other = thread::spawn(|| bulk::receive(there, 20).map_err(|error| error.to_string()));
    let mut seen = Vec::new();
    bulk::send(here, "10.0.0.2", 20, |n| seen.push(n)).unwrap();
    other.join().unwrap().unwrap();
    assert_eq!(seen, (1..=20).collect::<Vec<_>>());
}

#[test]
fn responses_find_their_requests() {
    let [here, there] = addresses(47);
    let at = there.clone();
    let other = thread::spawn(move || request::serve(&at, 3).map_err(|error| error.to_string()));
    let answers = request::ask(&here, &there, &["one", "two", "three"]).unwrap();
    assert_eq!(answers, ["ONE", "TWO", "THREE"]);
    other.join().unwrap().unwrap();
}

#[test]
fn a_custom_balancer_beats_ecmp() {
    custom_lb::main().expect("the example ends well");
    let (own, ecmp) =
        (custom_lb::permutation(custom_lb::sticky()), LbChoice::parse("ecmp").map(custom_lb::permutation));
    assert!(own.unwrap() < ecmp.unwrap().unwrap());
}
