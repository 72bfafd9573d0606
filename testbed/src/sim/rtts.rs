//! The round-trip times that senders measure in a run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;
use weft_cc::{Span, Time};
use weft_stack::event::{Event, Subscriber};

/// The RTTs of all packets whose acknowledgements were unambiguous, with the time that they and their acknowledgements
/// spent in hosts. Each is known to within a thousandth.
#[derive(Clone, Debug, PartialEq)]
pub struct Rtts {
    /// Nanoseconds.
    histogram: Histogram<u64>,
}

impl Default for Rtts {
    fn default() -> Rtts {
        // Three digits are among those that the library knows.
        let histogram = Histogram::new(3).unwrap_or_else(|error| unreachable!("{error}"));
        Rtts { histogram }
    }
}

impl Rtts {
    /// Takes in an RTT.
    pub fn add(&mut self, rtt: Span) {
        // The histogram grows as needed, so that no value is too large for it.
        let _ = self.histogram.record(rtt.as_ps().div_ceil(1000));
    }

    /// Takes in all RTTs of `others`.
    pub fn extend(&mut self, others: &Rtts) {
        // As above.
        let _ = self.histogram.add(&others.histogram);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Their mean; zero if there are none.
    pub fn mean(&self) -> Span {
        Span::from_ps((self.histogram.mean() * 1e3) as u64)
    }

    /// The RTT that a share `quantile` of all does not exceed; zero if there are none.
    pub fn quantile(&self, quantile: f64) -> Span {
        Span::from_ns(self.histogram.value_at_quantile(quantile))
    }
}

/// Takes in the RTTs of a host's endpoint, and passes its events on.
struct RttRecorder {
    rtts: SharedRtts,
    next: Option<Box<dyn Subscriber + Send>>,
}

impl Subscriber for RttRecorder {
    fn on_event(&mut self, now: Time, event: &Event) {
        if let Event::AckReceived { rtt: Some(rtt), .. } = event {
            self.rtts.lock().add(*rtt);
        }
        if let Some(next) = &mut self.next {
            next.on_event(now, event);
        }
    }
}

/// The RTTs of all hosts that one thread drives.
#[derive(Clone, Default)]
pub(super) struct SharedRtts(Arc<Mutex<Rtts>>);

impl SharedRtts {
    pub(super) fn lock(&self) -> MutexGuard<'_, Rtts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A subscriber that takes in the RTTs of an endpoint, and passes all events on to `next`.
    pub(super) fn subscriber(&self, next: Option<Box<dyn Subscriber + Send>>) -> Box<dyn Subscriber + Send> {
        Box::new(RttRecorder { rtts: self.clone(), next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_all_hosts_to_within_a_thousandth() {
        let (mut low, mut high) = (Rtts::default(), Rtts::default());
        (1..=900).for_each(|us| low.add(Span::from_us(us)));
        (901..=1000).for_each(|us| high.add(Span::from_us(us)));
        low.extend(&high);
        assert_eq!(low.count(), 1000);
        let near = |measured: Span, us: f64| (measured.as_us_f64() / us - 1.0).abs() < 1e-3;
        assert!(near(low.mean(), 500.5), "{:?}", low.mean());
        for (quantile, us) in [(0.0, 1.0), (0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            assert!(near(low.quantile(quantile), us), "{quantile}: {:?}", low.quantile(quantile));
        }
        assert_eq!(Rtts::default().mean(), Span::ZERO);
    }
}
