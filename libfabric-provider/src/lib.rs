//! The libfabric provider of weft, **not there yet**: this crate is empty. It will build
//! `libweft-fi.so`, a thin shim between libfabric's tables and weft's software rings.
