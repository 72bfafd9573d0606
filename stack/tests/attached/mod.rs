//! A host whose worker has a memory port, with the other end of its link, and frames of hosts that nobody knows.

use weft_stack::fep::Fep;
use weft_stack::packet::Addr;
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::port::{Port, RxBurst, TxBurst};
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::{AddressBook, Clock, HostAddr, LinkConfig, Strangers, Worker};

/// Where addresses and checksums stand in a frame with the headers of Ethernet, IPv4 and UDP.
const SOURCE: core::ops::Range<usize> = 26..30;
const HEADER: core::ops::Range<usize> = 14..34;
const HEADER_CHECKSUM: core::ops::Range<usize> = 24..26;
const UDP_CHECKSUM: core::ops::Range<usize> = 40..42;
pub(crate) const DESTINATION: core::ops::Range<usize> = 30..34;

/// The network addresses of the host with this IP address.
pub(crate) fn host_at(ip: [u8; 4]) -> HostAddr {
    HostAddr { mac: MacAddr([2, 0, 0, 0, ip[2], ip[3]]), ip: ip.into() }
}

/// A host with a worker, and the other end of its link.
pub(crate) struct Host {
    pub(crate) worker: Worker<MemoryPort>,
    card: MemoryPort,
    tx: TxBurst,
}

impl Host {
    /// A host with this endpoint, whose address book has so many entries.
    pub(crate) fn new(own: Addr, fep: Fep, ip: [u8; 4], capacity: usize, strangers: Strangers) -> Host {
        let (port, card) = pair(&MemoryConfig::default()).expect("it is valid");
        let book = AddressBook::new(own, host_at(ip), capacity, strangers).expect("it is valid");
        let worker = Worker::new(fep, port, book, LinkConfig::default(), Clock::new()).expect("it is valid");
        Host { worker, tx: TxBurst::new(&card), card }
    }

    /// A frame arrives at the host.
    pub(crate) fn send_to(&mut self, frame: &[u8]) {
        let mut buffer = self.tx.reserve(frame.len()).expect("the card has buffers");
        buffer.copy_from_slice(frame);
        buffer.commit();
        self.card.transmit(&mut self.tx);
    }

    /// The frames that have left the host.
    pub(crate) fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut rx = RxBurst::new();
        self.card.receive(&mut rx);
        rx.drain().map(|frame| frame.to_vec()).collect()
    }
}

/// The IP address of a stranger.
pub(crate) fn stranger(number: u32) -> [u8; 4] {
    (0x0b00_0000 + number).to_be_bytes()
}

/// The frame as it would be if a stranger had sent it.
pub(crate) fn from_stranger(frame: &[u8], number: u32) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[SOURCE].copy_from_slice(&stranger(number));
    frame[HEADER_CHECKSUM].fill(0);
    let words = frame[HEADER].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    frame[HEADER_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    // No UDP checksum.
    frame[UDP_CHECKSUM].fill(0);
    frame
}
