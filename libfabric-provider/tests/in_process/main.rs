//! The provider as libfabric loads it: tests that call libfabric, each in a process of its own, which finds the provider.
//! One program, because compiling what they share once for each file takes longer than the tests.

#[path = "../common/mod.rs"]
mod common;

mod atomic_values;
mod busy_peers;
mod calls;
mod cancels;
mod capabilities;
mod choices;
mod datagrams;
mod events;
mod every_capability;
mod every_function;
mod formats;
mod gone;
mod hints;
mod ipv6;
mod jobs;
mod killed;
mod longest;
mod lossy;
mod many_receives;
mod own_unexpected;
mod ports;
mod refused_connections;
mod remote;
mod remote_counters;
mod serve;
mod served_access;
mod served_gone;
mod served_long;
mod served_lossy;
mod served_memory;
mod served_random;
mod served_unexpected;
mod served_waits;
mod signals;
mod text_addresses;
mod threads;
mod wait_sets;
mod waiting;
