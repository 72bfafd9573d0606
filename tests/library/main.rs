//! The library as applications use it, its examples included.

#[path = "../../examples/bulk.rs"]
mod bulk;
#[path = "../../examples/custom_lb.rs"]
mod custom_lb;
#[path = "../../examples/custom_cc.rs"]
mod example;
#[path = "../../examples/ping_pong.rs"]
mod ping_pong;
#[path = "../../examples/request.rs"]
mod request;

mod custom_cc;
mod datagrams;
mod examples;
mod lent_memory;
mod loopback;
mod remote_memory;
mod shared_address;
