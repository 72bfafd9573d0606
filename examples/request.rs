//! Requests and responses by tags: several requests are under way, and each response finds the one it is for.
//! `request 127.0.0.2` serves, `request 127.0.0.1 127.0.0.2 WORD…` asks for each word in capitals.
use std::{error::Error, time::Duration};
use weft::{Completion, ConnectOptions, Endpoint, ReceiveOptions, SendOptions};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Tags of requests; those of responses have the number of the request instead.
const REQUEST: u64 = 1 << 63;
const LONGEST: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks for all `words` at once; returns the answers in their order.
pub(crate) fn ask(own: &str, peer: &str, words: &[&str]) -> Outcome<Vec<String>> {
    let mut endpoint = Endpoint::builder(format!("udp:{own}")).build()?;
    let server = endpoint.peer(peer)?;
    let connection = endpoint.connect_with(server, ConnectOptions::default())?;
    for (n, word) in (0..).zip(words) {
        // Room for the response comes first, and takes none but this one.
        let response = ReceiveOptions::default().tag(n).from(server).context(n);
        endpoint.receive_with(vec![0; LONGEST], response)?;
        let request = SendOptions::default().tag(REQUEST).header_data(n);
        endpoint.send_copy(connection, word.as_bytes(), request)?;
    }
    let mut answers = vec![String::new(); words.len()];
    let mut missing = words.len();
    while missing > 0 {
        let completion = endpoint.wait(PATIENCE)?.ok_or("no response")?;
        let message = completion.message();
        match completion {
            Completion::Received { context, result, .. } => {
                result?;
                answers[context as usize] = String::from_utf8(message.unwrap_or_default().into())?;
                missing -= 1;
            }
            Completion::Sent { result, .. } | Completion::Closed { result, .. } => result?,
            _ => {}
        }
    }
    endpoint.shutdown(PATIENCE)?;
    Ok(answers)
}

/// Answers `count` requests.
pub(crate) fn serve(own: &str, mut count: u64) -> Outcome<()> {
    let mut endpoint = Endpoint::builder(format!("udp:{own}")).build()?;
    let requests = ReceiveOptions::default().tag(REQUEST);
    endpoint.receive_with(vec![0; LONGEST], requests)?;
    let mut client = None;
    while count > 0 {
        let completion = endpoint.wait(PATIENCE)?.ok_or("no request")?;
        let message = completion.message();
        if let Completion::Received { source: Some(source), header_data, buffer, result, .. } = completion {
            result?;
            endpoint.receive_with(buffer, requests)?;
            let connection = match client {
                Some((known, open)) if known == source => open,
                _ => {
                    // The client may be one of several applications at its address.
                    let there = ConnectOptions::default().process(source.process);
                    client.insert((source, endpoint.connect_with(source.peer, there)?)).1
                }
            };
            let answer = message.unwrap_or_default().to_ascii_uppercase();
            endpoint.send_with(connection, answer, SendOptions::default().tag(header_data))?;
            count -= 1;
        }
    }
    Ok(endpoint.shutdown(PATIENCE)?)
}

#[allow(dead_code, reason = "a test calls the ends themselves")]
fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &words[..] {
        [own] => serve(own, u64::MAX),
        [own, peer, words @ ..] => ask(own, peer, words).map(|answers| println!("{}", answers.join("\n"))),
        _ => Err("ADDRESS, or ADDRESS PEER WORD…".into()),
    }
}
