//! More receives than a server has of an application, and as many as an endpoint takes.

use std::ptr::null_mut;

use crate::common::fabric::{Failed, How, Side, Wish, getinfo, table};
use crate::common::inside;
use crate::common::server::servers;
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// As many receives as `fi_getinfo` says.
const MOST: usize = 1 << 16;
/// Messages each way: more than the 4,096 receives that a server has.
const COUNT: usize = 5_000;
/// More room than any message needs.
const ROOM: usize = 300;

fn content(from: usize, n: usize) -> Vec<u8> {
    (0..n * 37 % ROOM).map(|at| (at * 3 + n * 11 + (n >> 8) + from * 101) as u8).collect()
}

/// What each side does: it posts all receives, and then sends all messages, in this order. Their tags differ, unless `tag` says that
/// all are the same. A receive for many messages without tags, which cannot wait, has its place beside them.
fn exchange(side: &Side, own: usize, peer: u64, order: impl Iterator<Item = usize>, tag: fn(usize) -> u64) {
    /// Context of the receive for many.
    const MANY: usize = 0;
    let mut rooms = vec![[0u8; ROOM]; COUNT];
    let messages: Vec<_> = (0..COUNT).map(|n| content(own, n)).collect();
    for (n, room) in rooms.iter_mut().enumerate() {
        let from = if n.is_multiple_of(3) { peer } else { FI_ADDR_UNSPEC };
        side.receive(room, from, Some((tag(n), 0)), 1 + n);
    }
    let mut room_for_many = [0u8; ROOM];
    side.receive_many(room_for_many.as_mut_ptr().cast(), ROOM);
    for n in order {
        side.send(peer, &messages[n], Some(tag(n)), 1 + COUNT + n);
    }
    // It leaves less room than a receive for many goes on with.
    let without_tag = vec![7 + own as u8; ROOM - 10];
    side.send(peer, &without_tag, None, 1 + 2 * COUNT);
    let mut left = vec![true; 2 + 2 * COUNT];
    for _ in 0..left.len() {
        let entry = side.cq.next().unwrap();
        assert!(std::mem::take(&mut left[entry.context]), "{} has ended twice", entry.context);
        match entry.context {
            MANY => assert_eq!((entry.len, entry.flags & sys::FI_MULTI_RECV != 0), (ROOM - 10, true)),
            context if context <= COUNT => {
                assert_eq!((entry.len, entry.tag), ((context - 1) * 37 % ROOM, tag(context - 1)));
            }
            _ => {}
        }
    }
    assert!(room_for_many[..ROOM - 10].iter().all(|byte| *byte == 8 - own as u8));
    for (n, room) in rooms.iter().enumerate() {
        let expected = content(1 - own, n);
        assert!(room[..expected.len()] == expected[..], "message {n} to {own}");
        assert!(room[expected.len()..].iter().all(|byte| *byte == 0), "behind message {n} to {own}");
    }
}

/// A queue that has room for all entries, as programs that do not read while they post need.
fn open(domain: Option<String>) -> Side {
    open_with(domain, 4 * COUNT)
}

fn open_with(domain: Option<String>, queue: usize) -> Side {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_MULTI_RECV | sys::FI_DIRECTED_RECV;
    let wish = Wish { caps, domain, ..Wish::default() };
    Side::open(&wish, How { queue, ..How::default() })
}

/// Two ranks that post all receives before they send. One sends in the order of the receives, the other one in the opposite order.
fn exchange_both_ways(sides: [Side; 2]) {
    let [a, b] = &sides;
    let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let tags: [fn(usize) -> u64; 2] = [|n| n as u64, |_| 1 << 40];
    for tag in tags {
        std::thread::scope(|scope| {
            scope.spawn(move || exchange(a, 0, to_b, 0..COUNT, tag));
            if tag(1) == tag(2) {
                exchange(b, 1, to_a, 0..COUNT, tag);
            } else {
                exchange(b, 1, to_a, (0..COUNT).rev(), tag);
            }
        });
    }
}

#[test]
fn two_ranks_post_5000_receives_each_before_they_send() {
    if !inside("two_ranks_post_5000_receives_each_before_they_send") {
        return;
    }
    exchange_both_ways([open(None), open(None)]);
}

/// Those that the server has not wait in the provider, and are handed over as others end.
#[test]
fn two_ranks_at_servers_post_5000_receives_each_before_they_send() {
    if !inside("two_ranks_at_servers_post_5000_receives_each_before_they_send") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 31);
    exchange_both_ways(servers.each_ref().map(|server| open(Some(server.name()))));
}

/// `fi_getinfo` says how many receives may be posted, and so many are.
#[test]
fn an_endpoint_takes_as_many_receives_as_it_says_and_no_more() {
    if !inside("an_endpoint_takes_as_many_receives_as_it_says_and_no_more") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 33);
    for domain in [None, Some(servers[0].name())] {
        let size_of = |change: fn(&mut sys::fi_info)| {
            let wish = Wish { kind: sys::FI_EP_RDM, domain: domain.clone(), change, ..Wish::default() };
            // SAFETY: an info of libfabric's has all its parts.
            getinfo(&wish).map(|info| unsafe { (*info.get().rx_attr).size })
        };
        assert_eq!(size_of(|_| ()), Ok(MOST));
        // SAFETY: new hints have all their parts.
        assert_eq!(size_of(|hints| unsafe { (*hints.rx_attr).size = 5_000 }), Ok(5_000));
        let side = open_with(domain.clone(), MOST);
        let (mut value, mut len) = (0usize, size_of_val(&MOST));
        // SAFETY: the endpoint is open, and there is room for a number.
        let answer = unsafe {
            let getopt = (*(*side.ep).ops).getopt.unwrap();
            let (level, name) = (sys::FI_OPT_ENDPOINT as i32, sys::FI_OPT_RX_SIZE as i32);
            getopt(side.ep.cast(), level, name, (&raw mut value).cast(), &mut len)
        };
        assert_eq!((answer, value), (0, MOST));
        let left = || table!(side.ep, ops.rx_size_left());
        assert_eq!(left(), MOST as isize);
        let receive = |n: usize| {
            let context = std::ptr::without_provenance_mut(n);
            table!(side.ep, tagged.recv(null_mut(), 0, null_mut(), FI_ADDR_UNSPEC, n as u64, 0, context))
        };
        for n in 1..=MOST {
            side.post(|| receive(n));
        }
        assert_eq!((left(), receive(0)), (0, -(sys::FI_EAGAIN as isize)));
        // The first and the last one are taken back, which makes room for two.
        for n in [1, MOST] {
            let context = std::ptr::without_provenance_mut(n);
            // SAFETY: the endpoint is open.
            assert_eq!(unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context) }, 0);
            assert_eq!(side.cq.next(), Err(Failed { context: n, error: sys::FI_ECANCELED, beyond: 0 }));
        }
        assert_eq!(left(), 2);
    }
}
