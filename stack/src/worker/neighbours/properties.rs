//! Properties that hold for any frame. Property tests and a fuzz target share these functions.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::wire::{Answer, Heard, Speaker, hear, is_unicast, reply, room_for};
use crate::wire::checksum::{checksum, pseudo_header};
use crate::wire::ethernet::{EthernetView, MacAddr, VlanTag};
use crate::wire::ip::IpAddrs;
use crate::worker::HostAddr;

/// Receivers with and without a VLAN, over IPv4 and IPv6.
const SPEAKERS: [Speaker; 4] = {
    let mac = MacAddr([2, 0, 0, 0, 0, 2]);
    let v4 = HostAddr { mac, ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)) };
    let v6 = HostAddr { mac, ip: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0xab, 2)) };
    let vlan = Some(VlanTag { priority: 3, drop_eligible: false, id: 7 });
    [
        Speaker { host: v4, vlan: None },
        Speaker { host: v6, vlan: None },
        Speaker { host: v4, vlan },
        Speaker { host: v6, vlan },
    ]
};

/// Any bytes do no harm, as they are and with their checksums made right: a learnt address is one that a neighbour can
/// have, and an answer fits its room, goes to the host that asked, and calls for no answer itself.
pub fn frame(bytes: &[u8]) {
    let mut repaired = bytes.to_vec();
    repair(&mut repaired);
    for own in &SPEAKERS {
        for bytes in [bytes, &repaired] {
            if let Some(Heard { told, answer }) = hear(bytes, own) {
                told.inspect(|told| is_plausible(told, own));
                answer.inspect(|answer| is_answered(bytes, answer, own));
            }
        }
    }
}

fn is_plausible(told: &HostAddr, own: &Speaker) {
    assert!(is_unicast(told.mac), "{told:?}");
    assert_eq!(told.ip.is_ipv4(), own.host.ip.is_ipv4(), "{told:?}");
    let nobody = told.ip.is_multicast() || told.ip.is_unspecified() || told.ip == own.host.ip;
    assert!(!nobody, "{told:?}");
}

fn is_answered(question: &[u8], answer: &Answer<'_>, own: &Speaker) {
    let mut out = vec![0xa5; room_for(answer)];
    let len = reply(own, answer, &mut out).expect("room for the answer");
    for room in [0, 13, len / 2, len - 1] {
        assert_eq!(reply(own, answer, &mut vec![0; room]), None, "{room} of {len} bytes");
    }
    let (asked, said) = (EthernetView::new_checked(question), EthernetView::new_checked(&out[..len]));
    let (asked, said) = (asked.expect("a frame"), said.expect("a frame"));
    assert_eq!((said.src(), said.vlan()), (own.host.mac, own.vlan));
    let to = match *answer {
        Answer::Arp { to } | Answer::Advert { to, .. } => to,
        Answer::Echo { to, data, .. } => {
            assert_eq!(to.mac, asked.src());
            assert_eq!(&out[len - data.len()..len], data);
            to
        }
    };
    assert_eq!(said.dst(), to.mac);
    let listener = Speaker { host: to, vlan: own.vlan };
    let echoed = hear(&out[..len], &listener).and_then(|heard| heard.answer);
    assert_eq!(echoed, None, "an answer to an answer to {asked:?}");
}

/// Makes the checksums of IPv4 and ICMP right, where there are any: few bytes get past them by chance.
fn repair(bytes: &mut [u8]) {
    let Ok(at) = EthernetView::new_checked(bytes).map(|eth| eth.header_len()) else { return };
    let packet = &mut bytes[at..];
    match packet.first().map(|first| first >> 4) {
        Some(4) => repair_ipv4(packet),
        Some(6) => repair_ipv6(packet),
        _ => {}
    }
}

fn repair_ipv4(packet: &mut [u8]) {
    let header_len = usize::from(packet[0] & 15) * 4;
    let Some(total) = packet.get(2..4).map(|len| usize::from(u16::from_be_bytes([len[0], len[1]]))) else {
        return;
    };
    if header_len < 20 || packet.len() < header_len {
        return;
    }
    let sum = checksum_without(&mut packet[..header_len], 10);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    if let Some(icmp) = packet.get_mut(header_len..total).filter(|icmp| icmp.len() >= 4) {
        let sum = checksum_without(icmp, 2);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The checksum of `data` as if its own field, which is at `field`, were zero.
fn checksum_without(data: &mut [u8], field: usize) -> u16 {
    data[field..field + 2].fill(0);
    checksum(data)
}

fn repair_ipv6(packet: &mut [u8]) {
    let Some((header, rest)) = packet.split_first_chunk_mut::<40>() else { return };
    let len = u16::from_be_bytes([header[4], header[5]]);
    let Some(icmp) = rest.get_mut(..usize::from(len)).filter(|icmp| icmp.len() >= 4) else { return };
    let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).expect("16 bytes"));
    let ip = IpAddrs::V6 { src: address(8), dst: address(24) };
    icmp[2..4].fill(0);
    let sum = pseudo_header(&ip, ICMPV6, len).with(icmp).finish();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
}

const ICMPV6: u8 = 58;
