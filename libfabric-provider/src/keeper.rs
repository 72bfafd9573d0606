//! The thread of an endpoint that works while the application is away, computing for example: peers get their answers,
//! and messages arrive or are put off, so that no connection is given up for silence.
//!
//! While the application calls often enough the thread only looks now and then whether it still does, and asks the peers that
//! receives wait for whether they are there.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::abi;
use crate::error::FiError;
use crate::rdm::Rdm;
use crate::wake::{Event, sleep};

/// How often the thread looks whether the application has called: much more often than peers send again, which they do
/// after 100 ms.
const LOOK: Duration = Duration::from_millis(10);
/// How often it asks peers.
const ASK: Duration = Duration::from_secs(2);
/// How often the thread lets the endpoint look for messages of receives that wait for memory.
const LOOKING: Duration = Duration::from_millis(1);
/// The longest sleep on the endpoint's descriptor, which becomes readable at least as often.
const LONGEST: Duration = Duration::from_millis(100);

/// A thread that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    end: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// # Errors
    /// The system has no descriptor or thread left.
    pub(crate) fn start(endpoint: &Arc<Rdm>) -> Result<Keeper, FiError> {
        let end = Event::new()?;
        let mut descriptor = None;
        endpoint.with_descriptor(|fd| {
            descriptor = Some(fd.try_clone_to_owned().map_err(|error| FiError::from(&error))?);
            Ok(())
        })?;
        let (end, descriptor) = (Arc::new(end), descriptor.ok_or(FiError::BAD_STATE)?);
        let (weak, stop) = (Arc::downgrade(endpoint), end.clone());
        let body = move || {
            // An endpoint in which a call has panicked answers nobody any more.
            let _ = keep(&weak, &stop, &descriptor);
        };
        let builder = Builder::new().name("weft-keeper".to_owned());
        let thread = abi::with_signals_blocked(|| builder.spawn(body));
        Ok(Keeper { end, thread: Some(thread.map_err(|error| FiError::from(&error))?) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end.set();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Works until the endpoint is gone, or `end` is set.
fn keep(endpoint: &Weak<Rdm>, end: &Event, descriptor: &OwnedFd) -> Result<(), FiError> {
    let (mut seen, mut asked) = (None, Instant::now());
    loop {
        let Some(endpoint) = endpoint.upgrade() else { return Ok(()) };
        if asked.elapsed() >= ASK {
            asked = Instant::now();
            endpoint.ask_peers()?;
        }
        endpoint.ask_for_callers()?;
        let (visits, attended) = endpoint.attention();
        // An application that sleeps does not send the questions that the endpoint has posted meanwhile, and nothing wakes it if a call
        // has found so much to do that the endpoint is not armed any more.
        let is_away = seen == Some(visits) && (!attended || endpoint.is_asking()? || !endpoint.is_armed()?);
        seen = Some(visits);
        let looks = endpoint.looks()?;
        let armed = (is_away || looks) && endpoint.keep()?;
        drop(endpoint);
        if looks {
            // Nothing wakes anybody when the message of a receive comes that waits for memory.
            sleep(&[end.as_fd()], Some(LOOKING));
        } else if armed {
            sleep(&[end.as_fd(), descriptor.as_fd()], Some(LONGEST));
        } else if !is_away {
            sleep(&[end.as_fd()], Some(LOOK));
        }
        if end.clear() {
            return Ok(());
        }
    }
}
