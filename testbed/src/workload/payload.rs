//! The payload of flows with real bytes.

/// Makes the `len` payload bytes of the flow with index `flow`. They differ from flow to flow and from offset
/// to offset, so that a misplaced byte is detected.
pub fn payload(flow: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    let mut word = flow.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    for chunk in bytes.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        chunk.copy_from_slice(&(word ^ (word >> 29)).to_le_bytes()[..chunk.len()]);
    }
    bytes
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
}
