//! Sends and receives probes through a port.

use super::probe::{self, Probe, ReceivedProbe};
use crate::Failure;
use crate::port_spec::{AnyPort, OpenPort, PeerAddress, PeerSpec};
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};
use weft_stack::port::{Port, RxBurst, TxBurst};
use weft_stack::wire::ethernet::VlanTag;
use weft_stack::worker::HostAddr;

/// How long to sleep while nothing arrives.
const MAX_SLEEP: Duration = Duration::from_micros(200);
/// How long a port may refuse frames.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The port that the path checks use, with time limits for sending and receiving.
pub(super) struct Wire {
    port: AnyPort,
    own: HostAddr,
    vlan: Option<VlanTag>,
    rx: RxBurst,
    tx: TxBurst,
    received: VecDeque<ReceivedProbe>,
}

impl Wire {
    pub(super) fn new(open: OpenPort) -> Wire {
        let (rx, tx) = (RxBurst::new(), TxBurst::new(&open.port));
        let vlan = open.info.link_config().vlan;
        Wire { own: open.info.host, vlan, port: open.port, rx, tx, received: VecDeque::new() }
    }

    /// Bytes of the longest IP packet that can be sent.
    pub(super) fn mtu(&self) -> usize {
        self.tx.max_frame().saturating_sub(probe::frame_len(0, self.vlan))
    }

    /// Bytes of the shortest IP packet that holds a probe.
    pub(super) fn shortest(&self) -> usize {
        probe::shortest(self.own.ip.is_ipv6())
    }

    /// Frames that the port has dropped instead of sending them.
    pub(super) fn unsent(&self) -> u64 {
        let counters = self.port.counters();
        counters.tx_errors + counters.tx_no_link
    }

    /// Frames that the port has dropped on arrival.
    pub(super) fn missed(&self) -> u64 {
        let counters = self.port.counters();
        counters.rx_missed + counters.rx_errors
    }

    /// Waits until `deadline`, and transmits queued frames meanwhile.
    pub(super) fn wait_until(&mut self, deadline: Instant) {
        loop {
            self.port.transmit(&mut self.tx);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // The kernel's sleeps are not more exact than this.
            if left > MAX_SLEEP {
                thread::sleep(left - MAX_SLEEP);
            } else {
                thread::yield_now();
            }
        }
    }

    /// The addresses of this host.
    #[cfg(test)]
    pub(super) fn own(&self) -> HostAddr {
        self.own
    }

    /// Sends `probe` in an IP packet of `length` bytes with the DSCP and ECN in `tos`, and waits until the port accepts
    /// it.
    pub(super) fn send(
        &mut self,
        to: HostAddr,
        tos: u8,
        length: usize,
        probe: &Probe,
    ) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Run(format!("a probe cannot be sent: {error}"));
        let deadline = Instant::now() + SEND_TIMEOUT;
        loop {
            let len = probe::frame_len(length.max(self.shortest()), self.vlan);
            let full = match self.tx.reserve(len) {
                Ok(mut frame) => {
                    probe::write(&mut frame, self.own, to, self.vlan, tos, probe)
                        .map_err(|error| failed(&error))?;
                    frame.commit();
                    None
                }
                Err(error) => Some(error),
            };
            self.port.transmit(&mut self.tx);
            match full {
                None => return Ok(()),
                Some(error) if Instant::now() >= deadline => return Err(failed(&error)),
                Some(_) => self.receive(),
            };
        }
    }

    /// The next probe that arrives before `deadline`.
    pub(super) fn next(&mut self, deadline: Instant) -> Option<ReceivedProbe> {
        loop {
            if let Some(received) = self.received.pop_front() {
                return Some(received);
            }
            self.port.transmit(&mut self.tx);
            if self.receive() == 0 {
                if Instant::now() >= deadline {
                    return None;
                }
                thread::sleep(MAX_SLEEP);
            }
        }
    }

    fn receive(&mut self) -> usize {
        let count = self.port.receive(&mut self.rx);
        // Frames that are not probes are ignored.
        self.received.extend(self.rx.drain().filter_map(|frame| probe::read(&frame).ok()));
        count
    }
}

/// The addresses of `peer`; its Ethernet address must be known.
pub(super) fn addresses_of(open: &mut OpenPort, peer: &PeerSpec) -> Result<HostAddr, Failure> {
    match open.meet(peer) {
        Ok(PeerAddress::Known(host)) => Ok(host),
        Ok(PeerAddress::ToBeAsked(ip)) => Err(Failure::Usage(format!(
            "--path {ip}: the doctor does not ask for Ethernet addresses: say {ip}/MAC"
        ))),
        Err(error) => Err(Failure::Run(error.to_string())),
    }
}
