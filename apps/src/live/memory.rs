//! The bytes of flows wherever they are not with an endpoint.
//!
//! They are made before the clock starts and compared after the run, so that neither costs the flows time;
//! unless there are so many that memory would not hold them all. Then each flow's are made when it starts and
//! compared when it has arrived.

use weft_stack::buffer::Buffer;
use weft_testbed::workload::payload;

/// Bytes of payload up to which all of it is made beforehand. Receivers need as many again.
const MADE_BEFOREHAND: u64 = 2 << 30;
/// What receivers' memory holds: what is never written shows.
const UNTOUCHED: u8 = 0xa5;

/// One flow's bytes.
#[derive(Default)]
struct Content {
    to_send: Option<Buffer>,
    room: Option<Buffer>,
    sent: Option<Buffer>,
    received: Option<Buffer>,
}

/// All flows' bytes, by the flow's place in the run.
pub(super) struct Memory {
    flows: Vec<Content>,
    /// Whether payload is kept until the end of the run.
    keeps: bool,
}

impl Memory {
    /// Memory for flows that have these indices in the workload, and so many bytes.
    pub(super) fn new(flows: impl Iterator<Item = (u64, u32)> + Clone) -> Memory {
        let total = flows.clone().map(|(_, bytes)| u64::from(bytes)).sum::<u64>();
        Memory::with_limit(flows, total <= MADE_BEFOREHAND)
    }

    fn with_limit(flows: impl Iterator<Item = (u64, u32)>, keeps: bool) -> Memory {
        let content = |(index, bytes)| match keeps {
            true => Content {
                to_send: Some(Buffer::Heap(payload(index, bytes))),
                room: Some(room(bytes)),
                ..Content::default()
            },
            false => Content::default(),
        };
        Memory { flows: flows.map(content).collect(), keeps }
    }

    /// What is kept of flows besides their bytes takes in memory.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&self.flows[..]) as u64
    }

    /// What the flow at `place`, number `index` of the workload, sends.
    pub(super) fn take_payload(&mut self, place: usize, index: u64, bytes: u32) -> Buffer {
        let made = self.flows[place].to_send.take();
        made.unwrap_or_else(|| Buffer::Heap(payload(index, bytes)))
    }

    /// Where it is received.
    pub(super) fn take_room(&mut self, place: usize, bytes: u32) -> Buffer {
        self.flows[place].room.take().unwrap_or_else(|| room(bytes))
    }

    /// Takes back what was sent.
    pub(super) fn sent(&mut self, place: usize, buffer: Buffer) {
        if self.keeps {
            self.flows[place].sent = Some(buffer);
        }
    }

    /// Takes in what has arrived. Returns whether it is wrong, as far as that is known now.
    pub(super) fn received(&mut self, place: usize, index: u64, bytes: u32, buffer: Buffer) -> bool {
        if self.keeps {
            self.flows[place].received = Some(buffer);
            return false;
        }
        buffer != Buffer::Heap(payload(index, bytes))
    }

    /// The places of the flows that arrived otherwise than they were sent, of those not compared yet.
    pub(super) fn wrong(&self) -> impl Iterator<Item = usize> {
        let differ = |flow: &Content| matches!((&flow.sent, &flow.received), (Some(s), Some(r)) if s != r);
        self.flows.iter().enumerate().filter(move |(_, flow)| differ(flow)).map(|(place, _)| place)
    }
}

fn room(bytes: u32) -> Buffer {
    Buffer::Heap(vec![UNTOUCHED; bytes as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(buffer: &mut Buffer) -> &mut Vec<u8> {
        let Buffer::Heap(bytes) = buffer else { panic!("real memory") };
        bytes
    }

    #[test]
    fn a_wrong_byte_shows_at_once_or_in_the_end() {
        for keeps in [true, false] {
            let mut memory = Memory::with_limit([(7, 100), (9, 100)].into_iter(), keeps);
            let (right, mut wrong) = (memory.take_payload(0, 7, 100), memory.take_payload(1, 9, 100));
            memory.sent(0, Buffer::Heap(payload(7, 100)));
            memory.sent(1, Buffer::Heap(payload(9, 100)));
            bytes(&mut wrong)[99] ^= 1;
            let now = [memory.received(0, 7, 100, right), memory.received(1, 9, 100, wrong)];
            assert_eq!(now, [false, !keeps]);
            assert_eq!(memory.wrong().collect::<Vec<_>>(), if keeps { vec![1] } else { vec![] });
        }
    }

    #[test]
    fn room_is_not_what_arrives() {
        let mut memory = Memory::new([(0, 10)].into_iter());
        assert_eq!(bytes(&mut memory.take_room(0, 10)), &[UNTOUCHED; 10]);
        assert_ne!(memory.take_payload(0, 0, 10), room(10));
    }
}
