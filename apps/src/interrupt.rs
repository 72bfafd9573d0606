//! Signals that ask a command to end early, with what it has got so far.

use crate::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Says whether SIGINT or SIGTERM has arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    arrived: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Catches the signals from now on. A second one ends the process at once.
    ///
    /// # Errors
    /// The system refuses to install the handlers.
    pub(crate) fn on_signals() -> Result<Interrupt, Failure> {
        let interrupt = Interrupt::default();
        let Interrupt { arrived, signal: number } = &interrupt;
        let register = |signal| {
            // The handlers run in this order, so the first one sees whether a signal came before.
            flag::register_conditional_default(signal, Arc::clone(arrived))?;
            flag::register_usize(signal, Arc::clone(number), signal as usize)?;
            flag::register(signal, Arc::clone(arrived))
        };
        for signal in [SIGINT, SIGTERM] {
            register(signal).map_err(|error| Failure::Run(format!("signals: {error}")))?;
        }
        Ok(interrupt)
    }

    /// Set as soon as a signal has arrived.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.arrived
    }

    /// Whether a signal has arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Acquire)
    }

    /// The failure of a command that a signal has ended, if one has; `text` says what is missing.
    pub(crate) fn failure(&self, text: &str) -> Option<Failure> {
        self.has_arrived().then(|| {
            let signal = self.signal.load(Ordering::Acquire);
            let name = if signal == SIGTERM as usize { "SIGTERM" } else { "SIGINT" };
            // A shell reports the same of a command that the signal itself has ended.
            let status = 128 + if signal == SIGTERM as usize { SIGTERM } else { SIGINT } as u8;
            Failure::Interrupted { text: format!("interrupted by {name}{text}"), status }
        })
    }
}
