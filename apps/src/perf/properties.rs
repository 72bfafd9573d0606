//! The property that any bytes are a control message or an error.

use super::control::{ControlError, Message, decode, encode};
use super::report::{Expected, Report};
use weft_cc::Rate;

/// Any bytes are a control message, which is the same when it is written again; or an error that says what was not
/// understood. A test that is accepted can be described, and a report be shown, whatever stands in them.
pub fn any_bytes_are_a_control_message_or_an_error(bytes: &[u8]) {
    let message = match decode(bytes) {
        Ok(message) => message,
        Err(error @ (ControlError::Version(_) | ControlError::Malformed(_))) => {
            return assert!(!error.to_string().is_empty());
        }
    };
    assert_eq!(decode(&encode(message.clone())).ok(), Some(message.clone()));
    match message {
        Message::Request { test, .. } => {
            if test.check().is_ok() {
                assert!(test.receive_memory() >= test.receives() && !test.describe().is_empty());
                let expected = Expected::on(Some(Rate::from_gbps(100)), &test, 64);
                let mut report = Report::new(&test, "a port", "a peer", expected);
                assert_eq!(report.fault(), None);
                report.server = Some(Default::default());
                assert!(report.text().contains("0 messages"));
            }
        }
        Message::Report(end) => {
            let test = test();
            let mut report = Report::new(&test, "a port", "a peer", Expected::default());
            report.server = Some(end);
            let _ = report.fault();
            assert!(report.text().contains("  server: "));
            assert!(serde_json::to_string(&report).is_ok());
        }
        Message::Ready { .. } | Message::Refused { .. } | Message::Finished { .. } => {}
    }
}

/// A test as clients ask for it.
fn test() -> super::plan::Test {
    use super::mode::Mode;
    use super::plan::{Limit, Test};
    Test {
        mode: Mode::Throughput,
        size: 1000,
        limit: Limit::Messages(1),
        warmup_us: 0,
        connections: 1,
        depth: 1,
        verify: false,
        payload: 4096,
        room: 4096,
        cc: "nscc".to_owned(),
        credit: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A message of each kind with some of its bytes changed.
        #[test]
        fn messages_with_other_bytes_are_messages_or_errors(
            kind in 0usize..5,
            changes in prop::collection::vec((any::<prop::sample::Index>(), b' '..b'~'), 0..4),
        ) {
            let messages = [
                Message::Request { test: test(), cookie: None, number: 1 },
                Message::Request { test: test(), cookie: Some(5), number: 2 },
                Message::Ready { session: 3 },
                Message::Finished { messages: 7 },
                Message::Report(Default::default()),
            ];
            let mut bytes = encode(messages[kind].clone());
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            any_bytes_are_a_control_message_or_an_error(&bytes);
        }
    }
}
