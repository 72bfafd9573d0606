//! Messages by libfabric's logger: `FI_LOG_LEVEL=warn`, `info` and so on show them.

use std::ffi::CString;
use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::{provider, sys};

/// Logs a warning, for people who look for the reason of an error number.
pub(crate) fn warn(text: &str) {
    log(sys::FI_LOG_WARN, text);
}

/// As [`warn`], for what need not be an error.
pub(crate) fn info(text: &str) {
    log(sys::FI_LOG_INFO, text);
}

fn is_on(level: sys::fi_log_level) -> bool {
    // SAFETY: the provider lives for ever.
    unsafe { sys::fi_log_enabled(provider(), level, sys::FI_LOG_EP_CTRL) != 0 }
}

fn log(level: sys::fi_log_level, text: &str) {
    if !is_on(level) {
        return;
    }
    let Ok(text) = CString::new(text) else { return };
    let (function, line) = (c"weft".as_ptr(), line!() as i32);
    // SAFETY: the provider lives for ever, all texts end with zeros, and the format takes one text.
    unsafe {
        sys::fi_log(provider(), level, sys::FI_LOG_EP_CTRL, function, line, c"%s\n".as_ptr(), text.as_ptr())
    };
}

/// Forwards what weft says of itself, such as notices about ports. If the process has another subscriber already, that
/// one gets it.
pub(crate) fn forward() {
    let _ = tracing::subscriber::set_global_default(Forward);
}

struct Forward;

fn level_of(metadata: &Metadata<'_>) -> Option<sys::fi_log_level> {
    match *metadata.level() {
        Level::ERROR | Level::WARN => Some(sys::FI_LOG_WARN),
        Level::INFO => Some(sys::FI_LOG_INFO),
        // Events of single packets, which would have to be formatted one by one.
        _ => None,
    }
}

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && level_of(metadata).is_some_and(is_on)
    }

    fn event(&self, event: &Event<'_>) {
        let Some(level) = level_of(event.metadata()) else { return };
        let mut text = Text(String::new());
        event.record(&mut text);
        log(level, &text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        let _ = match field.name() {
            "message" => write!(self.0, "{space}{value:?}"),
            name => write!(self.0, "{space}{name}={value:?}"),
        };
    }
}
