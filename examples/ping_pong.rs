//! Ping-pong over kernel UDP: `ping_pong 127.0.0.2` answers, `ping_pong 127.0.0.1 127.0.0.2` asks a thousand times.
use std::error::Error;
use std::time::{Duration, Instant};
use weft::{Addr, Completion, Endpoint, ReceiveBuffer};

type Outcome<T> = Result<T, Box<dyn Error>>;

const TIMES: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

/// The next message and its sender.
fn next(endpoint: &mut Endpoint) -> Outcome<(Vec<u8>, Addr)> {
    loop {
        match endpoint.wait(PATIENCE)?.ok_or("nothing was heard")? {
            Completion::Received { source, len, buffer: ReceiveBuffer::Vec(mut bytes), result, .. } => {
                result?;
                bytes.truncate(len as usize);
                return Ok((bytes, source.ok_or("a message without a sender")?.peer));
            }
            Completion::Sent { result, .. } | Completion::Closed { result, .. } => result?,
            _ => {}
        }
    }
}

/// Sends messages to `peer` and waits for each to come back. Returns the time of a round trip, on average.
pub(crate) fn ping(own: &str, peer: &str, times: u32) -> Outcome<Duration> {
    let mut endpoint = Endpoint::builder(format!("udp:{own}")).build()?;
    let peer = endpoint.peer(peer)?;
    let connection = endpoint.connect(peer)?;
    let begin = Instant::now();
    for n in 0..times {
        endpoint.receive(vec![0; 64])?;
        endpoint.send(connection, n.to_be_bytes().to_vec())?;
        let (answer, _) = next(&mut endpoint)?;
        if answer != n.to_be_bytes() {
            return Err(format!("ping {n} came back as {answer:?}").into());
        }
    }
    let mean = begin.elapsed() / times;
    endpoint.shutdown(PATIENCE)?;
    Ok(mean)
}

/// Sends messages back to where they come from, `times` times.
pub(crate) fn pong(own: &str, times: u32) -> Outcome<()> {
    let mut endpoint = Endpoint::builder(format!("udp:{own}")).build()?;
    let mut connection = None;
    for _ in 0..times {
        endpoint.receive(vec![0; 64])?;
        let (message, sender) = next(&mut endpoint)?;
        let back = match connection {
            Some(open) => open,
            None => *connection.insert(endpoint.connect(sender)?),
        };
        endpoint.send(back, message)?;
    }
    Ok(endpoint.shutdown(PATIENCE)?)
}

#[allow(dead_code, reason = "a test calls the ends themselves")]
fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [own] => pong(own, TIMES),
        [own, peer] => ping(own, peer, TIMES).map(|time| println!("a round trip takes {time:?}")),
        _ => Err("ADDRESS, or ADDRESS PEER".into()),
    }
}
