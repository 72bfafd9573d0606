//! Properties of the control socket: any bytes from clients, and any line from the switches.

use super::control::{Control, Reply, Request};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Bytes that come in parts of any length: a client that sends any gets one line, which is refused or done as its request
/// was understood, and one that sends none gets none.
pub fn any_bytes_are_answered_with_one_line(bytes: &[u8]) {
    let Some((&part, bytes)) = bytes.split_first() else { return };
    let name = format!("weft-control-{}-{:?}", std::process::id(), std::thread::current().id());
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    let listener = UnixListener::bind_addr(&address).expect("a name of this thread's own");
    let mut control = Control::on(listener).expect("a socket");
    let mut client = UnixStream::connect_addr(&address).expect("it listens");
    let mut asked = None;
    for part in bytes.chunks(1 + usize::from(part)) {
        // The switches may have closed the connection.
        if client.write_all(part).is_err() {
            break;
        }
        asked = asked.or_else(|| answer(&mut control));
    }
    let _ = client.shutdown(Shutdown::Write);
    for _ in 0..3 {
        asked = asked.or_else(|| answer(&mut control));
    }
    let mut said = Vec::new();
    // If it has not read all that was sent, the system cuts off what it has said.
    if client.read_to_end(&mut said).is_err() || bytes.is_empty() {
        return assert!(said.is_empty() || !bytes.is_empty());
    }
    assert_eq!(said.iter().filter(|byte| **byte == b'\n').count(), 1, "{said:?}");
    match (serde_json::from_slice(&said).expect("a reply"), asked) {
        (Reply::Done, Some(Request::Status | Request::Down)) => {}
        (Reply::Refused(why), Some(Request::SetLink(words))) => assert_eq!(why, words),
        (Reply::Refused(why), None) => assert!(why.starts_with("not understood: ")),
        (reply, asked) => panic!("{reply:?} to {asked:?}"),
    }
}

/// Answers a request that has arrived.
fn answer(control: &mut Control) -> Option<Request> {
    let request = control.poll()?;
    let reply = match &request {
        Request::SetLink(words) => Reply::Refused(words.clone()),
        Request::Status | Request::Down => Reply::Done,
    };
    control.answer(&reply);
    Some(request)
}

/// A line from the switches is a reply, whose status can be shown, or none.
pub fn any_text_is_a_reply_or_an_error(text: &str) {
    if let Ok(Reply::Status(status)) = serde_json::from_str(text) {
        assert!(status.text().starts_with("testbed "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_and_nonsense_in_parts(
            part in any::<u8>(),
            words in prop::collection::vec(prop::sample::select(vec![
                "\"status\"", "\"down\"", "{\"setlink\":\"host=1 fail\"}", "\n", "\"", "{", "\\u12", "é", " ", "setlink",
            ]), 0..5),
        ) {
            let mut bytes = vec![part];
            bytes.extend(words.concat().bytes());
            any_bytes_are_answered_with_one_line(&bytes);
            any_text_is_a_reply_or_an_error(&words.concat());
        }
    }
}
