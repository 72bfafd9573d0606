//! Bindings to libdpdk.
