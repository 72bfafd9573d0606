//! A bulk transfer with progress: `bulk udp:127.0.0.2 1000` receives 1000 MiB, `bulk udp:127.0.0.1 127.0.0.2 1000` sends
//! them. The names of other ports will do as well: `memif:SOCKET,role=server,ip=10.0.0.2`, or `serve:SOCKET`.
use bytes::Bytes;
use std::{error::Error, time::Duration};
use weft::{Completion, ConnectionId, Endpoint, SendOptions};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a message.
pub(crate) const CHUNK: usize = 1 << 20;
/// Messages under way.
const DEPTH: u64 = 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends `chunks` messages, calling `progress` with the number that have arrived.
pub(crate) fn send(
    mut endpoint: Endpoint,
    peer: &str,
    chunks: u64,
    mut progress: impl FnMut(u64),
) -> Outcome<()> {
    let peer = endpoint.peer(peer)?;
    let connection = endpoint.connect(peer)?;
    let bytes = Bytes::from(vec![7; CHUNK]);
    let post = |endpoint: &mut Endpoint, connection: ConnectionId, n: u64| {
        endpoint.send_with(connection, bytes.clone(), SendOptions::default().header_data(n))
    };
    let (mut posted, mut arrived) = (DEPTH.min(chunks), 0);
    for n in 0..posted {
        post(&mut endpoint, connection, n)?;
    }
    while arrived < chunks {
        match endpoint.wait(PATIENCE)?.ok_or("nothing arrives")? {
            Completion::Sent { result, .. } => {
                result?;
                arrived += 1;
                progress(arrived);
                if posted < chunks {
                    post(&mut endpoint, connection, posted)?;
                    posted += 1;
                }
            }
            Completion::Closed { result, .. } => result?,
            _ => {}
        }
    }
    Ok(endpoint.shutdown(PATIENCE)?)
}

/// Receives `chunks` messages.
pub(crate) fn receive(mut endpoint: Endpoint, chunks: u64) -> Outcome<()> {
    for _ in 0..DEPTH {
        endpoint.receive(vec![0; CHUNK])?;
    }
    let mut arrived = 0;
    while arrived < chunks {
        if let Completion::Received { buffer, len, result, .. } =
            endpoint.wait(PATIENCE)?.ok_or("nothing arrives")?
        {
            result?;
            assert_eq!(len as usize, CHUNK);
            arrived += 1;
            // The memory of a message that has been read takes another one.
            endpoint.receive(buffer)?;
        }
    }
    Ok(endpoint.shutdown(PATIENCE)?)
}

#[allow(dead_code, reason = "a test calls the ends themselves")]
fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Process 0 is the one that `Endpoint::connect` reaches; a server would choose another number.
    let open = |port: &str| Endpoint::builder(port).process(0).build();
    match &words[..] {
        [port, count] => receive(open(port)?, count.parse()?),
        [port, peer, count] => send(open(port)?, peer, count.parse()?, |n| eprint!("\r{n} MiB of {count}")),
        _ => Err("PORT [PEER] MEBIBYTES".into()),
    }
}
