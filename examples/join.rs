//! Several applications of one `weft serve`: `join SOCKET` waits for messages, and `join SOCKET PEER PROCESS TEXT` sends one
//! to such an application of another server, whose port is at the IP address PEER.
use std::{error::Error, path::Path, time::Duration};
use weft::{Completion, ConnectOptions, Endpoint, OperationId};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of the longest message.
const LONGEST: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// An endpoint of its own for this process, at the port of the server.
pub(crate) fn join(socket: &Path) -> Outcome<Endpoint> {
    Ok(Endpoint::builder(format!("serve:{}", socket.display())).any_process().build()?)
}

/// Sends `text` to an application of the server at `peer`, and returns when it has arrived.
pub(crate) fn send(endpoint: &mut Endpoint, peer: &str, process: u16, text: &str) -> Outcome<()> {
    let peer = endpoint.peer(peer)?;
    let there = ConnectOptions::default().process(process);
    let connection = endpoint.connect_with(peer, there)?;
    let message = endpoint.send(connection, text.as_bytes().to_vec())?;
    loop {
        match endpoint.wait(PATIENCE)?.ok_or("there is no answer")? {
            Completion::Sent { operation, result, .. } if operation == message => {
                endpoint.close(connection)?;
                return Ok(result?);
            }
            Completion::Closed { result, .. } => result?,
            _ => {}
        }
    }
}

/// Makes room for one more message.
pub(crate) fn expect(endpoint: &mut Endpoint) -> Outcome<OperationId> {
    Ok(endpoint.receive(vec![0; LONGEST])?)
}

/// The next message.
pub(crate) fn receive(endpoint: &mut Endpoint, limit: Duration) -> Outcome<String> {
    loop {
        let completion = endpoint.wait(limit)?.ok_or("no message has come")?;
        if let Some(message) = completion.message() {
            return Ok(String::from_utf8(message.into())?);
        }
        if let Completion::Received { result, .. } = completion {
            result?;
        }
    }
}

#[allow(dead_code, reason = "a test has its own")]
fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut endpoint = join(words.first().ok_or("SOCKET, or SOCKET PEER PROCESS TEXT")?.as_ref())?;
    if let [_, peer, process, text] = &words[..] {
        return send(&mut endpoint, peer, process.parse()?, text);
    }
    println!("this is process {}", endpoint.process());
    loop {
        expect(&mut endpoint)?;
        println!("{}", receive(&mut endpoint, Duration::MAX)?);
    }
}
