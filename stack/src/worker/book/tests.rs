use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::fep::{Zone, ZoneId, ZoneMap, ZoneTable, Zones};
use weft_cc::{CcChoice, CcParams, Delays, Rate, Span};

fn host(n: u8) -> HostAddr {
    HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: IpAddr::from([10, 0, 0, n]) }
}

fn book(capacity: usize, strangers: Strangers) -> AddressBook {
    AddressBook::new(Addr(1), host(1), capacity, strangers).unwrap()
}

/// Two zones beside the default one, and a table.
fn zones() -> ([ZoneId; 2], Arc<ZoneTable>) {
    let params = CcParams {
        mtu: 4096,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(10),
        trimming: true,
        delays: Delays::Known,
    };
    let zone = || Zone::new(&CcChoice::default(), &params);
    let mut zones = Zones::one(zone());
    ([(); 2].map(|()| zones.add(zone()).unwrap()), Arc::new(ZoneTable::new(16)))
}

#[test]
fn entries_are_found_both_ways() {
    let mut book = book(8, Strangers::Refuse);
    book.insert(Addr(5), host(9)).unwrap();
    book.insert(Addr(5), host(9)).unwrap();
    assert_eq!((book.get(Addr(5)), book.get(Addr(4))), (Some(&host(9)), None));
    assert_eq!(book.sender(host(9)), Ok(Addr(5)));
    let behind_a_router = HostAddr { mac: MacAddr([4; 6]), ..host(9) };
    assert_eq!(book.sender(behind_a_router), Ok(Addr(5)));
    let ip = IpAddrs::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 9].into() };
    let route = *book.route(Addr(5)).unwrap();
    assert_eq!((route.src_mac, route.dst_mac, route.ip), (host(1).mac, host(9).mac, ip));
    assert_eq!(Some(route), Route::between(&host(1), Addr(5), &host(9)));
    assert_eq!(book.route(Addr(4)), None);
}

#[test]
fn strangers_are_refused_or_learned_until_the_book_is_full() {
    let mut closed = book(8, Strangers::Refuse);
    assert_eq!(closed.sender(host(3)), Err(BookError::Stranger(host(3).ip)));
    let mut open = book(4, Strangers::Learn);
    open.insert(Addr(2), host(2)).unwrap();
    assert_eq!(open.sender(host(7)), Ok(Addr(0)));
    assert_eq!(open.sender(host(8)), Ok(Addr(3)));
    assert_eq!(open.sender(host(9)), Err(BookError::Full { capacity: 4 }));
    assert_eq!(open.sender(host(7)), Ok(Addr(0)), "those who are in stay in");
}

#[test]
fn an_expected_peer_can_be_entered_permanently() {
    let mut book = book(8, Strangers::Learn);
    book.expect(Addr(0), host(5).ip).unwrap();
    book.expect(Addr(0), host(5).ip).unwrap();
    assert_eq!((book.get(Addr(0)), book.ip(Addr(0)), book.route(Addr(0))), (None, Some(host(5).ip), None));
    assert_eq!(book.sender(host(5)), Ok(Addr(0)), "its packets are its, whatever their Ethernet address");
    assert_eq!(book.sender(host(6)), Ok(Addr(2)), "its place is taken");
    assert_eq!(book.expect(Addr(0), host(7).ip), Err(BookError::AddrTaken(Addr(0))));
    let taken = BookError::IpTaken { ip: host(5).ip, addr: Addr(0) };
    assert_eq!(book.expect(Addr(3), host(5).ip), Err(taken));

    book.resolve(Addr(0), MacAddr([2; 6]));
    assert_eq!(book.get(Addr(0)), Some(&HostAddr { mac: MacAddr([2; 6]), ..host(5) }));
    book.resolve(Addr(0), MacAddr([4; 6]));
    assert_eq!(book.get(Addr(0)).unwrap().mac, MacAddr([4; 6]), "it may move");
    let moved = HostAddr { mac: MacAddr([4; 6]), ..host(5) };
    assert_eq!(book.route(Addr(0)).copied(), Route::between(&host(1), Addr(0), &moved));
    book.insert(Addr(0), host(5)).unwrap();
    book.resolve(Addr(0), MacAddr([6; 6]));
    assert_eq!(book.get(Addr(0)), Some(&host(5)), "but not any more");
    assert_eq!(book.insert(Addr(0), host(7)), Err(BookError::AddrTaken(Addr(0))));
}

#[test]
fn peers_are_in_the_zone_of_the_longest_prefix_of_their_address() {
    let ([wide, narrow], table) = zones();
    let prefixes = [("10.0.0.0/29", wide), ("10.0.0.4/30", narrow)];
    let prefixes = prefixes.map(|(prefix, zone)| (prefix.parse().unwrap(), zone));
    let map = ZoneMap::Table(table.clone());
    let mut book = book(16, Strangers::Learn);
    book.insert(Addr(2), host(2)).unwrap();
    let mut book = book.with_zones(PrefixZones::new(prefixes.into(), table));
    book.insert(Addr(5), host(5)).unwrap();
    book.expect(Addr(6), host(6).ip).unwrap();
    let stranger = book.sender(host(7)).unwrap();
    let beyond = book.sender(host(9)).unwrap();
    let zone = |peer| map.zone_of(Addr(1), peer);
    assert_eq!([zone(Addr(2)), zone(Addr(5)), zone(Addr(6)), zone(stranger)], [wide, narrow, narrow, narrow]);
    assert_eq!(zone(beyond), ZoneId::DEFAULT);
}

#[test]
fn contradictions_are_refused() {
    let mut book = book(8, Strangers::Learn);
    assert_eq!(book.insert(Addr(1), host(2)), Err(BookError::AddrTaken(Addr(1))));
    let taken = BookError::IpTaken { ip: host(1).ip, addr: Addr(1) };
    assert_eq!(book.insert(Addr(2), host(1)), Err(taken));
    assert_eq!(book.insert(Addr(8), host(2)), Err(BookError::Beyond { addr: Addr(8), capacity: 8 }));
    let v6 = HostAddr { ip: "fd00::1".parse().unwrap(), ..host(2) };
    assert_eq!(book.insert(Addr(2), v6), Err(BookError::Version(v6.ip)));
    for (mac, ip) in [([1, 0, 0, 0, 0, 0], [10, 0, 0, 2]), ([2; 6], [224, 0, 0, 1]), ([2; 6], [0; 4])] {
        let bad = HostAddr { mac: MacAddr(mac), ip: IpAddr::from(ip) };
        assert!(matches!(book.sender(bad), Err(BookError::NotUnicast { .. })), "{bad:?}");
    }
    assert_eq!(book.get(Addr(0)), None);
}

#[test]
fn the_stranger_that_came_first_makes_room_and_its_address_is_never_another_peers() {
    let mut book = book(4, Strangers::Learn);
    let strangers = [3, 4, 5].map(|n| book.sender(host(n)).unwrap());
    assert_eq!(book.sender(host(6)), Err(BookError::Full { capacity: 4 }));
    let standing = |known: Addr| if known == strangers[0] { Standing::Proven } else { Standing::Unproven };
    assert_eq!(book.forget_one(standing), Some((strangers[1], host(4).ip)));
    let new = book.sender(host(6)).unwrap();
    assert!(!strangers.contains(&new));
    assert_eq!((book.get(new), book.route(new).is_some()), (Some(&host(6)), true));
    let gone = strangers[1];
    assert_eq!((book.get(gone), book.ip(gone), book.route(gone)), (None, None, None));
    assert!(book.is_forgotten(gone) && !book.is_forgotten(new) && !book.is_forgotten(strangers[0]));
    assert_eq!(book.insert(gone, host(4)), Err(BookError::Forgotten(gone)));
    assert_eq!(book.find(host(4).ip), None);
    // It comes again: the one that came after it makes room.
    assert_eq!(book.forget_one(standing), Some((strangers[2], host(5).ip)));
    let again = book.sender(host(4)).unwrap();
    assert!(again != gone && again != strangers[2]);
    assert_eq!(book.forget_one(|_| Standing::InUse), None, "all are in use");
    assert_eq!(book.forget_one(|_| Standing::Unasked), None, "all may be");
    assert_eq!(book.forget_one(|_| Standing::Proven).map(|(_, ip)| ip), Some(host(3).ip));
}

#[test]
fn a_peer_that_is_kept_or_held_makes_no_room() {
    let mut book = book(4, Strangers::Learn);
    let [met, heard, added] = [2, 3, 4].map(|n| book.sender(host(n)).unwrap());
    book.keep(met);
    assert!(
        book.hold(heard) && book.hold(heard) && book.hold(added) && !book.hold(met) && !book.hold(Addr(1))
    );
    let forget = |book: &mut AddressBook| book.forget_one(|_| Standing::Unproven).map(|(addr, _)| addr);
    assert_eq!(forget(&mut book), None);
    book.release(heard);
    assert_eq!(forget(&mut book), None, "one application still needs it");
    book.release(added);
    book.release(heard);
    assert_eq!([(); 3].map(|()| forget(&mut book)), [Some(added), Some(heard), None]);
    book.release(heard);
    assert_eq!((book.hold(heard), book.find(host(2).ip)), (false, Some(met)));
}

/// A step of [`the_book_agrees_with_a_model`].
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A packet of a host arrives, which has this standing from then on if it is not known.
    Hear(u8, Standing),
    /// An application asks for a host, or needs it no more.
    Hold(u8),
    Release(u8),
    /// A host is to be kept for good.
    Keep(u8),
    /// The standing of a host changes.
    Change(u8, Standing),
}

fn standings() -> impl Strategy<Value = Standing> {
    prop::sample::select(vec![Standing::Unproven, Standing::Proven, Standing::Unasked, Standing::InUse])
}

fn steps() -> impl Strategy<Value = Step> {
    let host = 2u8..40;
    prop_oneof![
        6 => (host.clone(), standings()).prop_map(|(host, standing)| Step::Hear(host, standing)),
        1 => host.clone().prop_map(Step::Hold),
        1 => host.clone().prop_map(Step::Release),
        1 => (2u8..4).prop_map(Step::Keep),
        2 => (host, standings()).prop_map(|(host, standing)| Step::Change(host, standing)),
    ]
}

/// What the model knows of a host in the book.
#[derive(Clone, Copy, Debug)]
struct Known {
    addr: Addr,
    standing: Standing,
    kept: bool,
    users: u32,
}

proptest! {
    #[test]
    fn the_book_agrees_with_a_model(capacity in 3usize..20, steps in prop::collection::vec(steps(), 0..400)) {
        let mut book = book(capacity, Strangers::Learn);
        let mut known: BTreeMap<u8, Known> = BTreeMap::new();
        let mut names: BTreeMap<Addr, u8> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Hear(n, standing) => {
                    let before = known.clone();
                    let by_addr = |addr| before.values().find(|known| known.addr == addr).unwrap().standing;
                    let mut heard = book.sender(host(n));
                    if heard == Err(BookError::Full { capacity }) {
                        prop_assert_eq!(known.len() + 1, capacity, "there is no room");
                        if let Some((addr, ip)) = book.forget_one(by_addr) {
                            let gone = *names.get(&addr).unwrap();
                            prop_assert_eq!(ip, host(gone).ip);
                            let Known { kept, users, standing, .. } = known.remove(&gone).unwrap();
                            prop_assert!(!kept && users == 0, "nobody needs it");
                            prop_assert!(standing < Standing::Unasked, "{standing:?} stays");
                        } else {
                            let all_stay = |known: &Known| {
                                known.kept || known.users > 0 || known.standing >= Standing::Unasked
                            };
                            prop_assert!(known.values().all(all_stay), "{known:?}");
                        }
                        heard = book.sender(host(n));
                    }
                    if let Ok(addr) = heard {
                        let holder = names.insert(addr, n);
                        prop_assert!(holder.is_none_or(|holder| holder == n), "{addr:?} was {holder:?}'s");
                        let new = Known { addr, standing, kept: false, users: 0 };
                        let entry = known.entry(n).or_insert(new);
                        prop_assert_eq!(entry.addr, addr);
                    }
                }
                Step::Hold(n) => {
                    if let Some(known) = known.get_mut(&n) {
                        prop_assert_eq!(book.hold(known.addr), !known.kept);
                        known.users += u32::from(!known.kept);
                    }
                }
                Step::Release(n) => {
                    if let Some(known) = known.get_mut(&n).filter(|known| known.users > 0) {
                        book.release(known.addr);
                        known.users -= 1;
                    }
                }
                Step::Keep(n) => {
                    if let Some(known) = known.get_mut(&n) {
                        book.keep(known.addr);
                        (known.kept, known.users) = (true, 0);
                    }
                }
                Step::Change(n, standing) => {
                    if let Some(known) = known.get_mut(&n) {
                        known.standing = standing;
                    }
                }
            }
            prop_assert!(known.len() < capacity);
            for (&addr, &n) in &names {
                let present = known.get(&n).filter(|known| known.addr == addr);
                prop_assert_eq!(book.get(addr).copied(), present.map(|_| host(n)));
                prop_assert_eq!(book.route(addr).is_some(), present.is_some());
                prop_assert_eq!(book.is_forgotten(addr), present.is_none());
            }
            for n in 2..40 {
                prop_assert_eq!(book.find(host(n).ip), known.get(&n).map(|known| known.addr));
            }
        }
    }
}
