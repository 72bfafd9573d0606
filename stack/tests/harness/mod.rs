//! Helpers for tests of endpoints: the usual settings and addresses, an endpoint by itself ([`Alone`]), two endpoints
//! that exchange packets ([`Pair`]), and two workers that exchange frames over ports ([`WorkerPair`]).
//!
//! Everything here runs in virtual time and gives the same results every time, except [`worker_in_real_time`].
#![allow(dead_code, unused_imports, reason = "each test program uses a part of this module")]

mod alone;
pub(crate) mod forge;
mod pair;
mod workers;

use std::sync::Arc;

use weft_stack::buffer::Buffer;
use weft_stack::cc::{CcChoice, CcParams, Delays};
use weft_stack::fep::{Exposure, Fep, FepConfig, Receive, Rights, Send};
use weft_stack::packet::Addr;
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::wire::ethernet::MacAddr;
use weft_stack::worker::{AddressBook, HostAddr, Strangers};
use weft_stack::{Rate, Span, Time};

pub(crate) use alone::Alone;
pub(crate) use pair::{Pair, Transit};
pub(crate) use workers::{Results, WorkerPair, worker, worker_in_real_time};

/// Payload of a full packet with the usual settings, bytes.
pub(crate) const MTU: u32 = 4096;

/// 20 µs before [`Time`] wraps around: tests that start here also check that nothing depends on where time began.
pub(crate) const START: Time = Time::from_ps(u64::MAX - 20_000_000);

/// The usual network: 100 Gbit/s, a round-trip time of 10 µs, packets of [`MTU`] bytes, switches that trim.
pub(crate) fn params() -> CcParams {
    CcParams {
        mtu: MTU,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(10),
        trimming: true,
        delays: Delays::Known,
    }
}

/// The first retransmission timeout of [`config`].
pub(crate) const RTO: Span = Span::from_us(100);

/// The usual configuration for links that lose packets, over a network that trims or does not.
pub(crate) fn config(trimming: bool) -> FepConfig {
    config_with(&CcChoice::default(), MTU, trimming)
}

/// As [`config`], with this congestion control and MTU.
pub(crate) fn config_with(cc: &CcChoice, mtu: u32, trimming: bool) -> FepConfig {
    let base = FepConfig::new(cc, &CcParams { mtu, trimming, ..params() });
    // With one packet in ten lost each way, a few of many thousands need more than the default number of retries.
    base.with_zones(|zone| (zone.pdc.rto_init, zone.pdc.max_retries) = (RTO, 12))
}

/// The retransmission timeout of [`impatient_config`].
pub(crate) const SHORT_RTO: Span = Span::from_us(10);

/// A configuration that gives up soon: [`SHORT_RTO`], and 10 ms for a peer that is busy. Packets hold 1,000 bytes.
pub(crate) fn impatient_config() -> FepConfig {
    let params = CcParams { mtu: 1_000, network_rtt: Span::from_us(5), ..params() };
    let base = FepConfig::new(&CcChoice::default(), &params);
    let base = base.with_zones(|zone| zone.pdc.rto_init = SHORT_RTO);
    FepConfig { busy_timeout: Span::from_ms(10).into(), ..base }
}

/// The endpoint with address `own`, made at `now`. Its random numbers differ from those of other addresses.
pub(crate) fn fep(own: u32, config: impl Into<Arc<FepConfig>>, seed: u64, now: Time) -> Fep {
    Fep::new(Addr(own), config.into(), Rng::new(seed, u64::from(own)), now)
        .expect("the configuration is valid")
}

/// The network addresses of endpoint `n`.
pub(crate) fn host(n: u32, v6: bool) -> HostAddr {
    let n = n as u8 + 1;
    let ip = if v6 { format!("fd00::{n}").parse().unwrap() } else { [10, 0, 0, n].into() };
    HostAddr { mac: MacAddr([2, 0, 0, 0, 0, n]), ip }
}

/// The address book of endpoint `own`, which knows endpoints 0 to `hosts` - 1 and refuses all others.
pub(crate) fn book(own: u32, hosts: u32, v6: bool) -> AddressBook {
    let mut book = AddressBook::new(Addr(own), host(own, v6), hosts as usize, Strangers::Refuse).unwrap();
    for peer in (0..hosts).filter(|peer| *peer != own) {
        book.insert(Addr(peer), host(peer, v6)).unwrap();
    }
    book
}

/// `len` bytes that differ from seed to seed and from offset to offset.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed, 99);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// An untagged message of `bytes`.
pub(crate) fn untagged(bytes: Vec<u8>, context: u64) -> Send {
    Send { buffer: Buffer::Heap(bytes), tag: None, header_data: 0, context }
}

/// An untagged message of `len` equal bytes.
pub(crate) fn message(len: usize, context: u64) -> Send {
    untagged(vec![7; len], context)
}

/// The key of an [`exposure`].
pub(crate) const KEY: u64 = 0x5eed_0000_0000_0001;

/// Memory that holds these bytes and is exposed under [`KEY`] to all peers.
pub(crate) fn exposure(bytes: Vec<u8>, rights: Rights) -> Exposure {
    Exposure { key: KEY, buffer: Buffer::Heap(bytes), base: 0, rights, from: None }
}

/// What the `leaks` of an endpoint are when nothing is left over.
pub(crate) const NO_LEAKS: [String; 0] = [];

/// A receive of `room` bytes for the next untagged message of any peer.
pub(crate) fn receive_any(room: usize) -> Receive {
    Receive { buffer: Buffer::Heap(vec![0; room]), from: None, matching: Matching::Untagged, context: 0 }
}
