//! Ethernet frames in bytes: the peer's datagrams in IPv4, and what a switch does to a frame that it trims.

use super::peer::wire::{Class, Datagram, PORT};

const ETHERNET: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
const CRC: usize = 4;
/// Where the source IP address is.
const SOURCE: usize = ETHERNET + 12;
/// Bytes of a frame that a switch leaves when it trims.
const TRIMMED_FRAME: usize = 128;

fn dscp(class: Class) -> u8 {
    match class {
        Class::Data => 8,
        Class::Trimmed => 16,
        Class::TrimmedLastHop => 18,
        Class::Control => 46,
    }
}

/// Cuts the payload off as a switch does that rewrites the length of IP.
pub(crate) fn trim(frame: &mut Vec<u8>) {
    if frame.len() <= TRIMMED_FRAME {
        return;
    }
    frame.truncate(TRIMMED_FRAME);
    frame[ETHERNET + 1] = dscp(Class::Trimmed) << 2 | frame[ETHERNET + 1] & 3;
    write_ip_length(frame);
}

/// Marks a frame as congested.
pub(crate) fn mark(frame: &mut [u8]) {
    frame[ETHERNET + 1] |= 3;
    write_ip_length(frame);
}

/// Writes IPv4's total length and header checksum.
fn write_ip_length(frame: &mut [u8]) {
    let len = (frame.len() - ETHERNET) as u16;
    let header = &mut frame[ETHERNET..ETHERNET + IP];
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header[10..12].fill(0);
    let sum = !ones_complement(header, 0);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn ones_complement(bytes: &[u8], seed: u32) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).fold(seed, |sum, word| sum + word);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether the frame's class is that of data that may be trimmed.
pub(crate) fn is_data(frame: &[u8]) -> bool {
    frame[ETHERNET + 1] >> 2 == dscp(Class::Data)
}

/// The Ethernet address of host `n`.
pub(crate) fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// The IP address of host `n`.
pub(crate) fn ip(n: u8) -> [u8; 4] {
    [10, 0, 0, n]
}

/// The frame of a datagram from host `src` to host `dst`, which ends with a CRC if the network has it.
pub(crate) fn wrap(datagram: &Datagram, src: u8, dst: u8, crc: bool) -> Vec<u8> {
    let ecn = if datagram.class == Class::Data { 2 } else { 0 };
    let mut frame = [&mac(dst)[..], &mac(src), &[0x08, 0x00]].concat();
    frame.extend_from_slice(&[0x45, dscp(datagram.class) << 2 | ecn, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend_from_slice(&[ip(src), ip(dst)].concat());
    let udp_len = datagram.udp_len + if crc { CRC as u16 } else { 0 };
    for field in [datagram.port, PORT, udp_len, 0] {
        frame.extend_from_slice(&field.to_be_bytes());
    }
    frame.extend_from_slice(&datagram.bytes);
    if crc {
        let crc = crc32c(&frame[SOURCE..]);
        frame.extend_from_slice(&crc.to_be_bytes());
    }
    write_ip_length(&mut frame);
    frame
}

/// CRC-32C of `bytes`, from the source IP address on, with a UDP checksum of zero (RFC 3720 §12.1).
fn crc32c(bytes: &[u8]) -> u32 {
    let checksum = ETHERNET + IP + 6 - SOURCE;
    !bytes.iter().enumerate().fold(u32::MAX, |crc, (at, byte)| {
        let byte = if at == checksum || at == checksum + 1 { 0 } else { u32::from(*byte) };
        (0..8).fold(crc ^ byte, |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

/// The datagram in a frame, if lengths and checksums are right. It ends with a CRC if the network has it, unless a switch
/// has trimmed it.
pub(crate) fn unwrap(frame: &[u8], crc: bool) -> Result<Datagram, String> {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (ip, udp) = (&frame[ETHERNET..], &frame[ETHERNET + IP..]);
    if word(12) != 0x0800 || ip[0] != 0x45 || ip[9] != 17 || usize::from(word(ETHERNET + 2)) != ip.len() {
        return Err(format!("no IPv4 and UDP: {:x?}", &frame[..ETHERNET + IP + UDP]));
    }
    if ones_complement(&ip[..IP], 0) != 0xffff {
        return Err("a wrong IPv4 checksum".into());
    }
    let class = [Class::Data, Class::Trimmed, Class::TrimmedLastHop, Class::Control]
        .into_iter()
        .find(|class| dscp(*class) == ip[1] >> 2)
        .ok_or_else(|| format!("DSCP {}", ip[1] >> 2))?;
    let (port, to, udp_len, checksum) =
        (word(ETHERNET + IP), word(ETHERNET + IP + 2), word(ETHERNET + IP + 4), word(ETHERNET + IP + 6));
    if to != PORT || (class != Class::Trimmed && usize::from(udp_len) != udp.len()) {
        return Err(format!("port {to} and length {udp_len} of {}", udp.len()));
    }
    let pseudo = ones_complement(&ip[12..20], 17 + u32::from(udp_len)).into();
    if checksum != 0 && class != Class::Trimmed && ones_complement(udp, pseudo) != 0xffff {
        return Err("a wrong UDP checksum".into());
    }
    let ecn = ip[1] & 3;
    if class == Class::Data && ecn == 0 {
        return Err("data that switches cannot mark".into());
    }
    let end = if crc && class != Class::Trimmed { frame.len() - CRC } else { frame.len() };
    if frame[end..] != crc32c(&frame[SOURCE..end]).to_be_bytes()[..frame.len() - end] {
        return Err("a wrong CRC".into());
    }
    Ok(Datagram { bytes: frame[ETHERNET + IP + UDP..end].to_vec(), udp_len, port, class, marked: ecn == 3 })
}
