//! Capture files, read and written by code that shares nothing with DPDK's.
#![allow(dead_code)] // Each test program uses its part.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};

/// The frames of a capture file of Ethernet, in order.
pub(crate) fn read_capture(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!(packet.orig_len as usize, packet.data.len(), "captured whole");
        frames.push(packet.data.into_owned());
    }
    frames
}

/// Writes a capture file with these frames, a microsecond apart.
pub(crate) fn write_capture(path: &Path, frames: &[Vec<u8>]) {
    let header = PcapHeader { snaplen: 65535, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(path).unwrap(), header).unwrap();
    for (n, frame) in frames.iter().enumerate() {
        let time = Duration::from_micros(n as u64);
        writer.write_packet(&PcapPacket::new(time, frame.len() as u32, frame)).unwrap();
    }
}
