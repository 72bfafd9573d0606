//! The codec of the conforming peer, which is written from the published layout alone and shares no code with the stack.

#[path = "../../../tests/conforming/peer/wire.rs"]
pub(crate) mod wire;
