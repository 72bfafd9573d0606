//! Peers that take nothing for longer than their server's `--busy-timeout`.

use std::time::Duration;

use crate::common::fabric::Side;
use crate::common::inside;
use crate::common::server::{Server, address, open};
use weft::{Endpoint, Limits, Span};
use weft_fi::sys::FI_ADDR_UNSPEC;

/// Longer than an RTO, so that a question about the peer can be sent again.
const BUSY_TIMEOUT: Duration = Duration::from_millis(300);

/// Server `host` that keeps nothing of messages that nobody receives, and waits briefly for such as do so.
fn hasty_server(directory: &tempfile::TempDir, host: u8) -> Server {
    let limits = Limits { unexpected_bytes_per_peer: 0, ..Limits::default() };
    let builder = Endpoint::builder(format!("udp:{}", address(host)));
    let builder = builder.busy_timeout(Span::from_ms(BUSY_TIMEOUT.as_millis() as u64));
    Server::start_within(limits, builder, &directory.path().join(host.to_string()))
}

#[test]
fn a_receiver_that_takes_nothing_for_longer_than_the_busy_timeout_costs_no_message() {
    if !inside("a_receiver_that_takes_nothing_for_longer_than_the_busy_timeout_costs_no_message") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = [71, 72].map(|host| hasty_server(&directory, host));
    let [a, b]: [Side; 2] = servers.each_ref().map(open);
    let (to_b, _) = (a.insert(&b.name()), b.insert(&a.name()));
    // So long that the sender asks first how long messages may be.
    let message: Vec<u8> = (0..300_000).map(|n: usize| (n * 3 + (n >> 8)) as u8).collect();
    a.send(to_b, &message, None, 1);
    // Four times as long as the server waits for others.
    assert_eq!(a.cq.read_within(1_200), None, "the message ends before there is a receive");
    let mut room = vec![0u8; message.len()];
    b.receive(&mut room, FI_ADDR_UNSPEC, None, 2);
    assert_eq!(b.cq.next().map(|entry| (entry.context, entry.len)), Ok((2, message.len())));
    assert_eq!(a.cq.next().map(|entry| entry.context), Ok(1));
    assert!(room == message);
}
