//! Two endpoints, their sessions, and applications that behave or do not.

mod door;
mod hostile;
mod killed;
mod leaving;
mod sleeping;
mod threads;
mod transfer;

use std::sync::Arc;

use weft_cc::Span;

use super::link::Link;
use super::world::{SMALL, World, config, content, extent, to};
use super::*;
use crate::fep::{ConnectOptions, Fep, FepConfig};
use crate::packet::Addr;
use crate::rng::Rng;
use crate::ses::Matching;
use crate::worker::ring::Region;
