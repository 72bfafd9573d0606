//! Names of ports, and what is said of those that cannot be opened.

use super::dpdk::joins_two;
use super::*;
use weft_stack::port::memory::{MemoryConfig, pair};
use weft_stack::wire::ethernet::MacAddr;

fn spec(text: &str) -> PortSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    text.parse::<PortSpec>().expect_err(text).to_string()
}

#[test]
fn specs_are_read_and_printed() {
    let plain = UdpSpec {
        address: [192, 0, 2, 1].into(),
        port: None,
        entropies: None,
        shared: false,
        called: None,
        gso: true,
        gro: true,
    };
    assert_eq!(spec("udp:192.0.2.1"), PortSpec::Udp(plain.clone()));
    let all = UdpSpec { port: Some(5000), entropies: Some(16), gso: false, gro: false, ..plain };
    let all = UdpSpec { shared: true, called: Some([198, 51, 100, 7].into()), ..all };
    let text = "udp:192.0.2.1,port=5000,entropies=16,shared=on,called=198.51.100.7,gso=off,gro=off";
    assert_eq!(spec(text), PortSpec::Udp(all));
    assert_eq!(spec(text).to_string(), text);
    assert_eq!(spec("udp:[fd00::1],entropies=4").to_string(), "udp:fd00::1,entropies=4");
    assert_eq!(spec("udp:fd00::1"), spec("udp:[fd00::1]"));
    for device in ["net_memif0,role=server,socket=/run/a.sock,bsize=8192", "0000:3b:00.0"] {
        assert_eq!(spec(&format!("dpdk:{device}")), PortSpec::Dpdk(device.to_owned()));
    }
}

#[test]
fn refusals_name_the_part_and_the_expected_value() {
    assert_eq!(
        refusal("tcp:1.2.3.4"),
        "expected udp:ADDRESS[,entropies=N], memif:SOCKET,role=server|client or dpdk:DEVICE[,ARGUMENTS] \
         instead of \"tcp:1.2.3.4\""
    );
    assert_eq!(
        refusal("udp:host"),
        "expected udp:ADDRESS with an IP address of this host instead of \"host\""
    );
    assert_eq!(refusal("udp:1.2.3.4,entropies=65"), "expected 1 to 64 instead of \"entropies=65\"");
    assert_eq!(refusal("udp:1.2.3.4,entropies"), "expected 1 to 64 instead of \"entropies\"");
    assert_eq!(refusal("udp:1.2.3.4,gso=1"), "expected on or off instead of \"gso=1\"");
    assert_eq!(refusal("udp:1.2.3.4,port=0"), "expected 1 to 65535 instead of \"port=0\"");
    assert_eq!(
        refusal("udp:1.2.3.4,paths=4"),
        "expected port=N, entropies=N, shared=on|off, called=ADDRESS, gso=on|off or gro=on|off instead of \"paths=4\""
    );
    for wrong in ["dpdk:", "dpdk:,role=server", "dpdk:net ring"] {
        assert!(refusal(wrong).contains("is no device"), "{wrong}");
    }
    assert!(refusal("udp").contains("instead of \"udp\""));
}

#[test]
fn addresses() {
    assert_eq!(mac("02:00:00:00:00:0a"), Ok(MacAddr([2, 0, 0, 0, 0, 10])));
    for wrong in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "01:00:00:00:00:01",
        "00:00:00:00:00:00",
        "+2:00:00:00:00:01",
        "2:0:0:0:0:1",
    ] {
        assert!(mac(wrong).is_err(), "{wrong}");
    }
    let ip: IpAddr = [10, 0, 0, 1].into();
    assert_eq!("10.0.0.1".parse(), Ok(PeerSpec { ip, mac: None, port: None }));
    let socket: std::net::SocketAddr = "10.0.0.1:5000".parse().unwrap();
    assert_eq!("10.0.0.1:5000".parse(), Ok(PeerSpec { ip, mac: None, port: Some(5000) }));
    assert_eq!("10.0.0.1:5000".parse(), Ok(PeerSpec::from(socket)));
    let with = PeerSpec { ip, mac: Some(MacAddr([2, 0, 0, 0, 0, 1])), port: None };
    assert_eq!("10.0.0.1/02:00:00:00:00:01".parse(), Ok(with));
    let owned = String::from("10.0.0.1/02:00:00:00:00:01");
    assert_eq!((PeerSpec::try_from(&owned), PeerSpec::try_from(owned.clone())), (Ok(with), Ok(with)));
    assert_eq!(PeerSpec::from(std::net::Ipv4Addr::new(10, 0, 0, 1)), ip.into());
    assert_eq!(PeerSpec::from(std::net::Ipv6Addr::LOCALHOST), "::1".parse().unwrap());
    assert_eq!(
        "10.0.0".parse::<PeerSpec>().unwrap_err().to_string(),
        "expected IP, IP/MAC or IP:PORT, such as 192.0.2.1, instead of \"10.0.0\""
    );
    for wrong in ["10.0.0", "10.0.0.1/", "10.0.0.1/24", "host"] {
        assert!(wrong.parse::<PeerSpec>().is_err(), "{wrong}");
    }
}

#[test]
fn vlans() {
    let tag = |id, priority| Ok(VlanTag { priority, drop_eligible: false, id });
    assert_eq!((vlan("1"), vlan("4094:7"), vlan("7:0")), (tag(1, 0), tag(4094, 7), tag(7, 0)));
    for wrong in ["", "0", "4095", "4096", "65536", "-1", "7:", "7:8", "7:-1", ":3", "7:3:1", "0x7"] {
        let refused = vlan(wrong).expect_err(wrong).to_string();
        assert_eq!(refused, "expected ID[:PRIORITY] with an id of 1 to 4094 and a priority of 0 to 7");
    }
}

/// The longest payload of a packet that carries this tag.
#[test]
fn default_timers_outlast_the_kernel_where_processors_are_shared() {
    let rto = |text: &str| timers(Some(&text.parse().unwrap())).0;
    for shared in ["udp:127.0.0.1", "memif:s,role=server", "dpdk:net_memif0", "dpdk:net_tap0", "dpdk:ring:a"]
    {
        assert_eq!(rto(shared), Span::from_ms(100), "{shared}");
    }
    assert_eq!(rto("dpdk:0000:3b:00.0"), Span::from_ms(10));
    assert_eq!(timers(None), timers(Some(&"udp:127.0.0.1".parse().unwrap())), "rings in memory");
    // A library user's own configuration, whatever the port.
    assert_eq!(weft_stack::pdc::PdcConfig::default().rto_init, Span::from_ms(100));
}

fn longest_payload(text: &str, mtu: u16, vlan: Option<VlanTag>) -> u32 {
    let ip = Some([10, 0, 0, 1].into());
    let open = spec(text).open(&PortOptions { ip, mtu: Some(mtu), vlan, ..PortOptions::default() }).unwrap();
    assert_eq!(open.info.link_config().vlan, vlan);
    assert_eq!(open.mtu() as u32, open.longest_payload() + 20 + 8 + 60);
    open.longest_payload()
}

#[test]
fn a_tag_takes_nothing_from_the_payload_but_where_frames_end() {
    let directory = tempfile::tempdir().unwrap();
    let memif = format!("memif:{}/socket,role=server", directory.path().display());
    let tag = Some(VlanTag { id: 7, ..VlanTag::default() });
    for vlan in [None, tag] {
        assert_eq!(longest_payload(&memif, 1500, vlan), 1500 - 20 - 8 - 60);
    }
    assert_eq!(longest_payload(&memif, u16::MAX, None), 65_535 - 20 - 8 - 60);
    assert_eq!(longest_payload(&memif, u16::MAX, tag), 65_531 - 20 - 8 - 60);
    if cfg!(feature = "dpdk") {
        assert_eq!(longest_payload("dpdk:net_null8", 1500, tag), 1500 - 20 - 8 - 60);
    }
}

#[test]
fn options_that_contradict_the_port_are_refused() {
    let udp = spec("udp:127.77.0.1");
    let other = PortOptions { ip: Some([127, 0, 0, 9].into()), ..PortOptions::default() };
    assert!(matches!(udp.open(&other), Err(PortError::Address { .. })));
    let mac = PortOptions { mac: Some(MacAddr([2; 6])), ..PortOptions::default() };
    assert!(matches!(udp.open(&mac), Err(PortError::MacOfKernel(_))));
    let vlan = PortOptions { vlan: Some(VlanTag::default()), ..PortOptions::default() };
    let refused = udp.open(&vlan).unwrap_err();
    assert!(matches!(refused, PortError::VlanOfKernel(_)) && refused.to_string().contains("type vlan id 7"));
    let memif = spec("memif:@weft-contradiction,role=client").open(&PortOptions::default());
    assert!(matches!(memif, Err(PortError::NoAddress(_))));
    let dpdk = spec("dpdk:net_null7").open(&PortOptions::default());
    assert!(dpdk.unwrap_err().to_string().starts_with("dpdk:net_null7: "));
}

#[test]
fn a_udp_port_knows_its_address_and_its_peers() {
    let options = PortOptions { mtu: Some(4000), ..PortOptions::default() };
    let mut open = spec("udp:127.77.0.2,entropies=4").open(&options).unwrap();
    assert_eq!((open.info.host.ip, open.info.paths), ([127, 77, 0, 2].into(), 4));
    assert_eq!(open.longest_payload(), 4000 - 20 - 8 - 60);
    let peer: PeerSpec = "127.77.0.3".parse().unwrap();
    assert_eq!(open.meet(&peer).unwrap(), PeerAddress::Known(HostAddr { mac: mac_of(peer.ip), ip: peer.ip }));
    let v6 = open.meet(&"fd00::1".parse().unwrap()).unwrap_err();
    assert!(matches!(v6, PortError::Version { .. }), "{v6}");
}

#[test]
fn ports_between_two_need_no_ethernet_address_of_the_peer() {
    assert!(joins_two("net_memif0,role=client") && !joins_two("net_af_packet0,iface=veth0"));
    let (a, _b) = pair(&MemoryConfig::default()).unwrap();
    let port = AnyPort::Memory(Box::new(a));
    let mut open = OpenPort::in_process(port, 1);
    open.info.spec = Some(spec("dpdk:x"));
    let bare: PeerSpec = "127.0.0.2".parse().unwrap();
    assert_eq!(open.meet(&bare).unwrap(), PeerAddress::Known(HostAddr { mac: mac_of(bare.ip), ip: bare.ip }));
    open.info.point_to_point = false;
    assert_eq!(open.meet(&bare).unwrap(), PeerAddress::ToBeAsked(bare.ip));
    let named = PeerSpec { mac: Some(MacAddr([2; 6])), ..bare };
    assert_eq!(
        open.meet(&named).unwrap(),
        PeerAddress::Known(HostAddr { mac: MacAddr([2; 6]), ip: bare.ip })
    );
}
