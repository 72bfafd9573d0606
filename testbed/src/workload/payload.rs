//! The payload of flows with real bytes.

/// Makes the `len` payload bytes of the flow with index `flow`. They differ from flow to flow and from offset
/// to offset, so that a misplaced byte is detected.
pub fn payload(flow: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    for (chunk, word) in bytes.chunks_mut(8).zip(words(flow)) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

/// The place of the first of `bytes` that is not what [`payload`] makes for flow number `flow`; `None` if all are.
pub fn first_wrong_byte(flow: u64, bytes: &[u8]) -> Option<usize> {
    let mut chunks = bytes.chunks(8).zip(words(flow));
    let wrong = chunks.position(|(chunk, word)| chunk != &word[..chunk.len()])?;
    let word = words(flow).nth(wrong)?;
    let byte = bytes[8 * wrong..].iter().zip(word).position(|(byte, right)| *byte != right)?;
    Some(8 * wrong + byte)
}

/// The payload of a flow, eight bytes at a time.
fn words(flow: u64) -> impl Iterator<Item = [u8; 8]> {
    let mut word = flow.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    core::iter::repeat_with(move || {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (word ^ (word >> 29)).to_le_bytes()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_differs_by_flow_and_offset_and_is_repeatable() {
        let words = |flow| -> Vec<Vec<u8>> { payload(flow, 8000).chunks(8).map(<[u8]>::to_vec).collect() };
        let mut all: Vec<_> = (0..10).flat_map(words).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10_000);
        assert_eq!(payload(3, 13)[..], payload(3, 8000)[..13]);
        assert!(payload(3, 0).is_empty());
    }

    #[test]
    fn the_first_wrong_byte_is_found() {
        for len in [0, 1, 8, 13] {
            assert_eq!(first_wrong_byte(3, &payload(3, len)), None, "{len} bytes");
        }
        for wrong in [0, 7, 8, 12] {
            let mut bytes = payload(3, 13);
            bytes[wrong] ^= 1;
            bytes[12] ^= 2;
            assert_eq!(first_wrong_byte(3, &bytes), Some(wrong));
        }
    }
}
