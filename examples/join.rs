//! An application that joins `weft serve`, to wait for messages or to send one to another such application:
//! `join SOCKET` or `join SOCKET PEER PROCESS TEXT`, where the server calls its first `--peer` 1.
use std::{error::Error, path::Path, time::Duration};
use weft::core::worker::session::{Client, Event, Extent, Report, SessionConfig};
use weft::{Addr, ConnectOptions, Matching};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of the longest message. It leaves from the beginning of the memory that is shared with the server.
const LONGEST: u32 = 4096;
/// Where messages arrive in it.
const INBOX: Extent = Extent { region: 0, offset: LONGEST as u64, len: LONGEST };
/// What tells the reports on messages from each other, and from those on connections.
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

pub(crate) fn join(socket: &Path) -> Outcome<Client> {
    Ok(Client::join(socket, &SessionConfig::default(), None, Duration::from_secs(5))?)
}

/// What the server says next about this; it may have to say that connections came and went before.
fn report(client: &mut Client, context: u64) -> Outcome<Report> {
    loop {
        match client.poll()? {
            Some(Event { report: Report::Refused { error, .. }, .. }) => {
                return Err(error.to_string().into());
            }
            Some(event) if event.context == context => return Ok(event.report),
            Some(_) => {}
            None => client.wait(Duration::from_secs(1))?,
        }
    }
}

/// Sends `text` to an application of `peer`'s, and returns when it has arrived.
pub(crate) fn send(client: &mut Client, peer: u32, process: u16, text: &str) -> Outcome<()> {
    let len = u32::try_from(text.len()).ok().filter(|len| *len <= LONGEST).ok_or("the text is too long")?;
    client.write(0, text.as_bytes())?;
    let there = ConnectOptions { process, ..ConnectOptions::default() };
    let connection = client.connect(Addr(peer), there, 0)?;
    client.send(connection, Extent { region: 0, offset: 0, len }, None, 0, SENT)?;
    let report = report(client, SENT)?;
    client.close(connection)?;
    match report {
        Report::Sent { result: Ok(()), .. } => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// Has room for one more message.
pub(crate) fn expect(client: &mut Client) -> Outcome<()> {
    Ok(client.receive(INBOX, None, Matching::Untagged, RECEIVED).map(drop)?)
}

/// The next message.
pub(crate) fn receive(client: &mut Client) -> Outcome<String> {
    let report = report(client, RECEIVED)?;
    let Report::Received { len, result: Ok(()), .. } = report else {
        return Err(format!("{report:?}").into());
    };
    let mut text = vec![0; len as usize];
    client.read(INBOX.offset, &mut text)?;
    Ok(String::from_utf8(text)?)
}

#[allow(dead_code, reason = "a test has its own")]
fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut client = join(words.first().ok_or("SOCKET, or SOCKET PEER PROCESS TEXT")?.as_ref())?;
    if let [_, peer, process, text] = &words[..] {
        return send(&mut client, peer.parse()?, process.parse()?, text);
    }
    println!("this is process {}", client.process());
    loop {
        expect(&mut client)?;
        println!("{}", receive(&mut client)?);
    }
}
