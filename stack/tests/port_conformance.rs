//! The conformance suite over the ports that need neither privileges nor other libraries.

mod port_suite;

use port_suite::{Dress, Link, conforms, conforms_across_threads};
use weft_stack::port::faulty::{Faults, FaultyPort};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::rng::Rng;

fn memory(mtu: usize, ring: usize) -> Link<MemoryPort, MemoryPort> {
    let (a, b) = pair(&MemoryConfig { mtu, ring, ..MemoryConfig::default() }).unwrap();
    Link { a, b, frames: Some(ring), dress: Dress::NONE }
}

/// The wrapper without faults is transparent.
fn unfaulty(ring: usize) -> Link<FaultyPort<MemoryPort>, FaultyPort<MemoryPort>> {
    let Link { a, b, frames, dress } = memory(9000, ring);
    let wrap = |port, stream| FaultyPort::new(port, Faults::default(), Rng::new(1, stream)).unwrap();
    Link { a: wrap(a, 0), b: wrap(b, 1), frames, dress }
}

#[test]
fn memory_conforms() {
    conforms(|| memory(9000, 256));
}

#[test]
fn memory_with_an_odd_ring_conforms() {
    conforms(|| memory(1500, 45));
}

#[test]
fn faulty_without_faults_conforms() {
    conforms(|| unfaulty(256));
}

#[test]
fn memory_conforms_across_threads() {
    conforms_across_threads(memory(1500, 64), 200_000);
}

#[test]
fn faulty_conforms_across_threads() {
    conforms_across_threads(unfaulty(64), 50_000);
}

/// Also faulty at sending, if the device has room: frames without room stay until the next call.
#[test]
fn faulty_at_sending_conforms_across_threads() {
    let Link { a, b, dress, .. } = memory(9000, 256);
    let wrap = |port, stream| FaultyPort::sending(port, Faults::default(), Rng::new(1, stream)).unwrap();
    conforms_across_threads(Link { a: wrap(a, 0), b: wrap(b, 1), frames: None, dress }, 10_000);
}

mod udp {
    use super::*;
    use std::net::IpAddr;
    use weft_stack::port::udp::{UdpConfig, UdpPort, mac_of};
    use weft_stack::spray::Entropy;
    use weft_stack::wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader};
    use weft_stack::wire::ip::Ecn;
    use weft_stack::wire::ipv4::Ipv4Header;
    use weft_stack::wire::ipv6::Ipv6Header;
    use weft_stack::wire::udp::{UET_UDP_PORT, UdpHeader, entropy_to_port};

    const V4: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
    const V6: [[u16; 8]; 2] = [[0xfd00, 0, 0, 0, 0, 0, 0, 1], [0xfd00, 0, 0, 0, 0, 0, 0, 2]];

    const DRESS_V4: Dress = Dress { headers: 42, write: |frame, back| write(frame, back, false) };
    const DRESS_V6: Dress = Dress { headers: 62, write: |frame, back| write(frame, back, true) };

    fn addresses(v6: bool) -> [IpAddr; 2] {
        if v6 { V6.map(IpAddr::from) } else { V4.map(IpAddr::from) }
    }

    /// Writes the headers that a UDP port gives a received datagram, so that frames arrive unchanged.
    fn write(frame: &mut [u8], back: bool, v6: bool) {
        let [src, dst] = if back { [1, 0] } else { [0, 1] }.map(|n: usize| addresses(v6)[n]);
        let payload_len = (frame.len() - if v6 { 62 } else { 42 }) as u16;
        let (dscp, ecn, ttl, ip_payload) = (46, Ecn::Ect0, 64, payload_len + 8);
        let ethertype = if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
        let mut at =
            EthernetHeader { dst: mac_of(dst), src: mac_of(src), vlan: None, ethertype }.emit(frame).unwrap();
        let rest = &mut frame[at..];
        at += match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (identification, dont_fragment, protocol) = (0, true, 17);
                Ipv4Header {
                    dscp,
                    ecn,
                    identification,
                    dont_fragment,
                    ttl,
                    protocol,
                    src,
                    dst,
                    payload_len: ip_payload,
                }
                .emit(rest)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (flow_label, next_header, hop_limit) = (0, 17, ttl);
                Ipv6Header {
                    dscp,
                    ecn,
                    flow_label,
                    payload_len: ip_payload,
                    next_header,
                    hop_limit,
                    src,
                    dst,
                }
                .emit(rest)
            }
            _ => unreachable!(),
        }
        .unwrap();
        let (src_port, dst_port) = (entropy_to_port(Entropy(3)), UET_UDP_PORT);
        UdpHeader { src_port, dst_port, payload_len, checksum: 0 }.emit(&mut frame[at..]).unwrap();
    }

    fn link(v6: bool, change: fn(UdpConfig) -> UdpConfig) -> Link<UdpPort, UdpPort> {
        let address: IpAddr = if v6 { "::1" } else { "127.0.0.1" }.parse().unwrap();
        let open = |n: usize| {
            let config = UdpConfig { alias: Some(addresses(v6)[n]), ..UdpConfig::at(address) };
            UdpPort::open(&change(config.with_free_ports())).unwrap()
        };
        let (mut a, mut b) = (open(0), open(1));
        a.meet(&b.as_peer()).unwrap();
        b.meet(&a.as_peer()).unwrap();
        Link { a, b, frames: None, dress: if v6 { DRESS_V6 } else { DRESS_V4 } }
    }

    #[test]
    fn udp_over_ipv4_conforms() {
        conforms(|| link(false, |config| config));
    }

    #[test]
    fn udp_over_ipv6_conforms() {
        conforms(|| link(true, |config| UdpConfig { mtu: 1500, ..config }));
    }

    #[test]
    fn udp_without_joined_datagrams_conforms() {
        conforms(|| link(false, |config| UdpConfig { gso: false, gro: false, ..config }));
    }

    #[test]
    fn udp_conforms_if_only_one_end_joins_datagrams() {
        conforms(|| link(false, |config| UdpConfig { gso: false, ..config }));
        conforms(|| link(true, |config| UdpConfig { gro: false, ..config }));
    }

    #[test]
    fn udp_conforms_inside_a_faulty_port() {
        conforms(|| {
            let Link { a, b, frames, dress } = link(false, |config| config);
            let wrap = |port, stream| FaultyPort::new(port, Faults::default(), Rng::new(1, stream)).unwrap();
            Link { a: wrap(a, 0), b: wrap(b, 1), frames, dress }
        });
    }

    #[test]
    fn udp_conforms_across_threads() {
        conforms_across_threads(link(false, |config| config), 50_000);
        conforms_across_threads(link(true, |config| config), 50_000);
    }
}
