//! Tests of one endpoint by itself.

mod bursts;
mod closing;
mod early;
mod hold;
mod layout;
mod paused;
mod posting;
mod samples;

use std::sync::Arc;

use weft_cc::{CcChoice, CcParams, Delays, Rate, Span, Time};

use super::{Fep, FepConfig, Limits, Send};
use crate::buffer::Buffer;
use crate::packet::Addr;
use crate::rng::Rng;

/// Endpoint 0 on a link of 10 Gbit/s.
fn fep(limits: Limits) -> Fep {
    fep_with(|config| config.limits = limits)
}

/// The same with other settings.
fn fep_with(set: impl FnOnce(&mut FepConfig)) -> Fep {
    let network = CcParams {
        mtu: 1024,
        overhead: 64,
        link_rate: Rate::from_gbps(10),
        network_rtt: Span::from_us(10),
        trimming: true,
        delays: Delays::Known,
    };
    let mut config = FepConfig::new(&CcChoice::default(), &network);
    set(&mut config);
    Fep::new(Addr(0), Arc::new(config), Rng::new(1, 0), Time::ZERO).unwrap()
}

/// A message of `len` bytes.
fn message(len: usize) -> Send {
    Send { buffer: Buffer::Heap(vec![1; len]), tag: None, header_data: 0, context: 0 }
}
