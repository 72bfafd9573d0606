//! The footprint that an endpoint reports is the memory that the allocator has given it.

mod harness;
mod held;

use std::sync::Arc;

use harness::{fep, params};
use held::held;
use weft_stack::Time;
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{ConnectOptions, Exposure, Fep, FepConfig, Footprint, Read, Receive, Rights, Send};
use weft_stack::packet::{Addr, Payload};
use weft_stack::ses::Matching;

/// An endpoint, and the bytes that it holds according to the allocator.
struct Measured {
    fep: Fep,
    held: i64,
}

impl Measured {
    fn new(addr: u32, config: &Arc<FepConfig>) -> Measured {
        let before = held();
        let fep = fep(addr, config.clone(), 1, Time::ZERO);
        Measured { fep, held: held() - before }
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Fep) -> R) -> R {
        let before = held();
        let result = act(&mut self.fep);
        self.held += held() - before;
        result
    }

    /// Compares the footprint that the endpoint reports with what it has allocated, and returns it.
    fn check(&self, what: &str) -> Footprint {
        let reported = self.fep.footprint();
        // The tags of receives are in a tree. What its nodes have besides entries, and how many entries each has, is not known.
        let of_tree = if reported.receives > 0 { 512 + reported.receives as i64 / 10 } else { 0 };
        let total = reported.total() as i64 - size_of::<Fep>() as i64;
        assert!(
            self.held.abs_diff(total) <= of_tree as u64,
            "{what}: {total}, not {} in {reported:?}",
            self.held
        );
        reported
    }
}

/// Carries at most `limit` packets from `from` to `to`. Returns how many.
fn carry(from: &mut Measured, to: &mut Measured, limit: usize) -> usize {
    let mut carried = 0;
    while carried < limit
        && let Some(transmit) = from.with(|fep| fep.poll_transmit(Time::ZERO))
    {
        let payload = Payload::Virtual(transmit.packet.payload_len);
        to.with(|fep| fep.on_packet(Time::ZERO, &transmit.packet, payload));
        carried += 1;
    }
    carried
}

fn post_all(sender: &mut Measured, target: &mut Measured, messages: u64) {
    for tag in 0..messages {
        let id = sender.with(|fep| fep.connect(Time::ZERO, Addr(1), ConnectOptions::default())).unwrap();
        let send = Send { buffer: Buffer::Virtual(100_000), tag: Some(tag), header_data: 0, context: 0 };
        sender.with(|fep| fep.post_send(id, send)).unwrap();
        let matching = Matching::Tagged { tag, ignore: 0 };
        let receive =
            Receive { buffer: Buffer::Virtual(100_000), from: Some(Addr(0).into()), matching, context: 0 };
        target.with(|fep| fep.post_receive(receive)).unwrap();
    }
}

fn config(cc: &str) -> Arc<FepConfig> {
    Arc::new(FepConfig::new(&CcChoice::parse(cc).unwrap(), &params()))
}

#[test]
fn an_endpoints_footprint_equals_its_allocations() {
    let config = config("nscc");
    let (mut sender, mut target) = (Measured::new(0, &config), Measured::new(1, &config));
    let idle = sender.check("idle");
    assert_eq!(idle, Footprint { endpoint: size_of::<Fep>() as u64, ..Footprint::default() });
    post_all(&mut sender, &mut target, 100);
    let posted = target.check("receives posted");
    assert!(posted.receives > 0 && posted.targets == 0);
    let mut steps = 0;
    // Different limits leave packets waiting at both endpoints.
    for limit in [1, 50, 7, 3].into_iter().cycle() {
        let carried = carry(&mut sender, &mut target, limit) + carry(&mut target, &mut sender, limit / 2 + 1);
        if steps % 50 == 0 {
            sender.check("sender");
            target.check("target");
        }
        steps += 1;
        if carried == 0 {
            break;
        }
    }
    assert!(steps > 100, "{steps}");
    let (sender, target) =
        (sender.check("sender, after the last packet"), target.check("target, after the last packet"));
    assert!(sender.connections > 0 && sender.contexts > 0 && sender.messages > 0 && sender.timers > 0);
    assert!(target.targets > 0 && target.messages > 0);
    assert_eq!((sender.payload, target.payload), (0, 0));
    let both: Footprint = [sender, target].into_iter().sum();
    assert_eq!(both.total(), sender.total() + target.total());
}

#[test]
fn a_footprint_counts_the_memory_of_messages_separately() {
    let config = config("nscc");
    let (mut sender, mut target) = (Measured::new(0, &config), Measured::new(1, &config));
    let id = sender.with(|fep| fep.connect(Time::ZERO, Addr(1), ConnectOptions::default())).unwrap();
    let bytes = || Buffer::Heap(vec![7; 9_000]);
    sender.with(|fep| {
        fep.post_send(id, Send { buffer: bytes(), tag: None, header_data: 0, context: 0 }).unwrap();
    });
    assert_eq!(sender.check("sender").payload, 9_000);
    target.with(|fep| {
        for tag in 0..30 {
            let matching = Matching::Tagged { tag, ignore: 0 };
            fep.post_receive(Receive { buffer: bytes(), from: None, matching, context: 0 }).unwrap();
        }
    });
    assert_eq!(target.check("target").payload, 30 * 9_000);
}

#[test]
fn a_footprint_counts_exposed_memory_and_the_responses_that_are_stored() {
    let config = config("nscc");
    let (mut reader, mut target) = (Measured::new(0, &config), Measured::new(1, &config));
    let id = reader.with(|fep| fep.connect(Time::ZERO, Addr(1), ConnectOptions::default())).unwrap();
    target.with(|fep| {
        for key in 0..20 {
            fep.expose(
                0,
                Exposure {
                    key,
                    buffer: Buffer::Heap(vec![7; 9_000]),
                    base: 0,
                    rights: Rights::READ,
                    from: None,
                },
            )
            .unwrap();
        }
    });
    assert_eq!(target.check("exposed").payload, 20 * 9_000);
    let before = target.check("exposed").targets;
    reader.with(|fep| {
        for key in 0..20 {
            let read = Read { buffer: Buffer::Virtual(9_000), key, offset: 0, context: 0 };
            fep.post_read(id, read).unwrap();
        }
    });
    while carry(&mut reader, &mut target, 1) > 0 {}
    assert!(target.check("responses are stored").targets > before);
    while carry(&mut target, &mut reader, 3) + carry(&mut reader, &mut target, 2) > 0 {
        target.check("target");
        reader.check("reader");
    }
    target.with(|fep| assert!(fep.withdraw(0, 3).is_some() && fep.withdraw(0, 3).is_none()));
    assert_eq!(target.check("withdrawn").payload, 19 * 9_000);
}
