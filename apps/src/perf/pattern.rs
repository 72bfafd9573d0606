//! The content of messages: a function of connection, message and offset, so that any byte in a wrong place is detected.

use weft::MemorySlice;

/// Odd, so that no two words of a message repeat one another (the golden ratio's fraction of 2⁶⁴).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The first word of message `seq` of connection `lane`. Messages and connections differ from each
/// other in all words.
fn first_word(lane: u32, seq: u64) -> u64 {
    let mut x = seq.wrapping_mul(STEP) ^ u64::from(lane).rotate_left(40);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The content of messages on its way to and from memory that others may be looking at.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<u8>);

impl Scratch {
    /// Writes the content of message `seq` of connection `lane`.
    pub(super) fn fill(&mut self, message: &MemorySlice, lane: u32, seq: u64) {
        self.0.resize(message.len() as usize, 0);
        fill(&mut self.0, lane, seq);
        message.write(0, &self.0);
    }

    /// How many bytes are not those that [`Scratch::fill`] writes.
    pub(super) fn wrong_bytes(&mut self, message: &MemorySlice, lane: u32, seq: u64) -> u64 {
        self.0.resize(message.len() as usize, 0);
        message.read(0, &mut self.0);
        wrong_bytes(&self.0, lane, seq)
    }
}

fn fill(bytes: &mut [u8], lane: u32, seq: u64) {
    let mut word = first_word(lane, seq);
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
}

fn wrong_bytes(bytes: &[u8], lane: u32, seq: u64) -> u64 {
    let mut word = first_word(lane, seq);
    let mut wrong = 0;
    for chunk in bytes.chunks(8) {
        let expected = word.to_le_bytes();
        if chunk != &expected[..chunk.len()] {
            wrong += chunk.iter().zip(expected).filter(|(found, expected)| **found != *expected).count();
        }
        word = word.wrapping_add(STEP);
    }
    wrong as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_told_from_all_other_content() {
        for len in [0, 1, 7, 8, 9, 4096, 10_001] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 3, 17);
            assert_eq!(wrong_bytes(&bytes, 3, 17), 0);
            if len >= 8 {
                assert!(wrong_bytes(&bytes, 3, 18) > 0 && wrong_bytes(&bytes, 4, 17) > 0, "{len}");
            }
        }
    }

    #[test]
    fn memory_is_written_and_read() {
        let mut memory = weft::Memory::private(4096).unwrap();
        let messages = [memory.allocate(1000).unwrap(), memory.allocate(1000).unwrap()];
        let mut scratch = Scratch::default();
        scratch.fill(&messages[0], 1, 5);
        scratch.fill(&messages[1], 1, 6);
        assert_eq!(scratch.wrong_bytes(&messages[0], 1, 5), 0);
        messages[0].write(7, &[0x55; 2]);
        assert!((1..=2).contains(&scratch.wrong_bytes(&messages[0], 1, 5)));
        assert_eq!(scratch.wrong_bytes(&messages[1], 1, 6), 0);
    }

    #[test]
    fn packets_in_each_others_place_show_and_single_bits_too() {
        let mut bytes = vec![0; 8192];
        fill(&mut bytes, 0, 0);
        bytes.rotate_left(4096);
        // Words that are a power of two apart agree in their lowest bits.
        assert!(wrong_bytes(&bytes, 0, 0) > 7000);
        fill(&mut bytes, 0, 0);
        bytes[5000] ^= 1;
        bytes[8191] ^= 0x80;
        assert_eq!(wrong_bytes(&bytes, 0, 0), 2);
    }
}
