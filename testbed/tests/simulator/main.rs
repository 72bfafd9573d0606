//! The simulator: one program, because linking one for each file takes longer than most of the tests.

mod background;
mod engine;
mod goal;
mod graphs;
mod host_model;
mod measures;
mod misbehaving_links;
mod overload;
mod pools;
mod priorities;
mod routing;
mod shared_context;
mod slow_links;
mod withheld_acks;
mod without_trimming;
mod workloads;
mod zones;
