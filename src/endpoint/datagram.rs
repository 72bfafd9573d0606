//! Datagrams: messages of one packet, without a connection, that may be lost.

use weft_stack::fep::{CallError, Datagram, DatagramReceive};
use weft_stack::ses::Source;

use super::buffer::{ReceiveBuffer, SendBuffer};
use super::completion::{OperationId, OperationName};
use super::direct::Direct;
use super::error::PostError;
use super::{Backend, Endpoint};

impl Endpoint {
    /// The most bytes of a datagram that this endpoint sends, which are those that a packet carries. Peers take as many,
    /// whatever they send themselves.
    pub fn longest_datagram(&self) -> u32 {
        match &self.backend {
            Backend::Direct(direct) => direct.worker.fep().config().mtu,
            Backend::Remote(remote) => remote.longest_datagram(),
        }
    }

    /// Sends a datagram to a process of a peer: one packet, without a connection, that is never sent again. It arrives or is
    /// lost; it may overtake others, and arrive twice where the network duplicates packets. No congestion control limits
    /// datagrams. [`Completion::Sent`](super::Completion::Sent) says that it has left, and nothing about its arrival.
    ///
    /// While the peer's Ethernet address is being asked for, a worker elsewhere lets the datagram wait for the answer.
    ///
    /// # Errors
    /// It is longer than a packet carries ([`CallError::DatagramTooLong`]), the peer's address is not known yet
    /// ([`CallError::Unreachable`]: later calls may succeed), there is no room for it now
    /// ([`Error::is_back_pressure`](super::Error::is_back_pressure)), or the worker is gone; with the buffer.
    pub fn send_datagram(
        &mut self,
        to: impl Into<Source>,
        buffer: impl Into<SendBuffer>,
        header_data: u64,
        context: u64,
    ) -> Result<OperationId, PostError<SendBuffer>> {
        each!(self, inner => inner.send_datagram(to.into(), buffer.into(), header_data, context))
    }

    /// Makes room for one datagram of any sender; [`Completion::Received`](super::Completion::Received) brings it. Datagrams
    /// for which there is no room when they arrive are lost. They meet no receives of messages, and messages none of these.
    /// Where the worker runs elsewhere, on a thread or in a server, there is room from its turn on that sees the call.
    ///
    /// # Errors
    /// There is no room for another receive now ([`Error::is_back_pressure`](super::Error::is_back_pressure)), or the worker is
    /// gone; with the buffer.
    pub fn receive_datagram(
        &mut self,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        each!(self, inner => inner.receive_datagram(buffer.into(), context))
    }
}

impl Direct {
    fn send_datagram(
        &mut self,
        to: Source,
        buffer: SendBuffer,
        header_data: u64,
        context: u64,
    ) -> Result<OperationId, PostError<SendBuffer>> {
        let Source { peer, process } = to;
        let now = self.worker.clock().now();
        if let Err(why) = self.worker.resolve_peer(now, peer) {
            return Err(PostError { error: CallError::Unreachable { peer, why }.into(), buffer });
        }
        let buffer = self.boxes.lend_to_send(buffer);
        let datagram = Datagram { buffer, peer, process, header_data, context };
        let own = self.process();
        match self.worker.fep_mut().post_datagram_of(own, datagram) {
            Ok(id) => Ok(OperationId(OperationName::Send(id))),
            Err(refused) => Err(self.refused_send(refused)),
        }
    }

    fn receive_datagram(
        &mut self,
        buffer: ReceiveBuffer,
        context: u64,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        let buffer = self.boxes.lend_to_receive(buffer);
        let own = self.process();
        match self.worker.fep_mut().post_datagram_receive_of(own, DatagramReceive { buffer, context }) {
            Ok(id) => Ok(OperationId(OperationName::Receive(id))),
            Err(refused) => Err(self.refused_receive(refused)),
        }
    }
}
