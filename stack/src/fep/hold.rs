//! Connections that are kept from sending by their owner.

use super::connection::Standing;
use super::{CallError, ConnectionId, Fep};
use crate::pdc::TxState;

impl Fep {
    /// Keeps back what is posted on a connection until [`Fep::release`]: for peers to whom there is no way yet.
    /// It can be closed and aborted meanwhile; one that is closed with messages in it ends after its release, or once
    /// they are all cancelled.
    ///
    /// # Errors
    /// [`CallError::NotOpen`] if it is not open, [`CallError::TooLate`] once something has been posted on it.
    pub fn hold(&mut self, id: ConnectionId) -> Result<(), CallError> {
        let open = self.connections.get_mut(id.0).filter(|c| c.pdc.state == TxState::Open);
        let connection = open.ok_or(CallError::NotOpen)?;
        if !connection.pdc.is_unused() || !connection.queue.is_empty() {
            return Err(CallError::TooLate);
        }
        connection.standing = Standing::Held;
        Ok(())
    }

    /// Lets what was kept back go. Nothing if the connection is not held.
    pub fn release(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id.0)
            && connection.standing == Standing::Held
        {
            connection.standing = Standing::Idle;
            self.make_ready(id.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weft_cc::{CcChoice, CcParams, Rate, Span, Time};

    use super::*;
    use crate::buffer::Buffer;
    use crate::fep::{Completion, ConnectOptions, FepConfig, Send, SendError};
    use crate::packet::Addr;
    use crate::rng::Rng;

    fn fep() -> Fep {
        let network = CcParams {
            mtu: 1024,
            overhead: 64,
            link_rate: Rate::from_gbps(10),
            network_rtt: Span::from_us(10),
            trimming: true,
        };
        let config = Arc::new(FepConfig::new(&CcChoice::default(), &network));
        Fep::new(Addr(0), config, Rng::new(1, 0), Time::ZERO).unwrap()
    }

    fn message() -> Send {
        Send { buffer: Buffer::Heap(vec![1; 3000]), tag: None, header_data: 0, context: 0 }
    }

    #[test]
    fn what_is_held_leaves_with_its_release_and_not_before() {
        let mut fep = fep();
        let [held, other] =
            [1, 2].map(|peer| fep.connect(Time::ZERO, Addr(peer), ConnectOptions::default()).unwrap());
        fep.hold(held).unwrap();
        let message_id = fep.post_send(held, message()).unwrap();
        fep.post_send(held, message()).unwrap();
        fep.post_send(other, message()).unwrap();
        let sent_to = |fep: &mut Fep| {
            let sent = std::iter::from_fn(|| fep.poll_transmit(Time::ZERO));
            sent.map(|transmit| transmit.packet.net.dst.0).collect::<Vec<_>>()
        };
        assert_eq!(sent_to(&mut fep), [2, 2, 2]);
        assert!(fep.explain(Time::ZERO)[0].contains("until there is a way to the peer"));
        // Neither is a reason to send.
        fep.cancel_send(message_id).unwrap();
        fep.close(Time::ZERO, held).unwrap();
        fep.on_timeout(Time::ZERO + Span::from_us(1));
        assert_eq!(sent_to(&mut fep), [0; 0]);
        fep.release(held);
        assert_eq!(sent_to(&mut fep), [1, 1, 1]);
    }

    #[test]
    fn what_is_held_and_closed_ends_with_its_last_message() {
        let mut fep = fep();
        let held = fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
        fep.hold(held).unwrap();
        let messages = [(); 2].map(|()| fep.post_send(held, message()).unwrap());
        fep.close(Time::ZERO, held).unwrap();
        let completions = |fep: &mut Fep| {
            assert!(fep.poll_transmit(Time::ZERO).is_none());
            std::iter::from_fn(|| fep.poll_completion()).collect::<Vec<_>>()
        };
        for message in messages {
            assert_eq!(completions(&mut fep).len(), 0, "it waits with its messages");
            fep.cancel_send(message).unwrap();
            let cancelled = fep.poll_completion();
            assert!(matches!(cancelled, Some(Completion::Sent { result: Err(SendError::Cancelled), .. })));
        }
        let closed = completions(&mut fep);
        assert!(
            matches!(closed[..], [Completion::Closed { id, result: Ok(()), .. }] if id == held),
            "{closed:?}"
        );
        assert_eq!(fep.leaks().collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn only_an_open_connection_that_is_new_can_be_held() {
        let mut fep = fep();
        let connect = |fep: &mut Fep| fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
        let (posted, closed) = (connect(&mut fep), connect(&mut fep));
        fep.post_send(posted, message()).unwrap();
        assert_eq!(fep.hold(posted), Err(CallError::TooLate));
        while fep.poll_transmit(Time::ZERO).is_some() {}
        assert_eq!(fep.hold(posted), Err(CallError::TooLate));
        fep.close(Time::ZERO, closed).unwrap();
        assert_eq!(fep.hold(closed), Err(CallError::NotOpen));
        // Nothing to release.
        fep.release(closed);
        fep.release(posted);
        assert!(!fep.wants_to_transmit());
    }
}
