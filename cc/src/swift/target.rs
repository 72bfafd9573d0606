//! The target of the fabric's delay: longer for longer paths and for smaller windows (Swift, §3.5).

use crate::Span;

/// t = base_target + hops · ħ + max(0, min(α / √cwnd + β, fs_range)).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    per_hop: Span,
    scaling: Option<Scaling>,
}

/// The last term. Times are in ps.
#[derive(Clone, Debug, PartialEq)]
struct Scaling {
    alpha: f64,
    beta: f64,
    range: f64,
}

impl Target {
    /// A target that grows by `per_hop` for each switch. `scaling` is the range of the scaling with the window, and the
    /// windows, in packets, of the whole range and of nothing of it; if the first is not the smaller one, there is no curve
    /// between them, and the target is not scaled.
    pub(super) fn new(per_hop: Span, scaling: Option<(Span, f64, f64)>) -> Target {
        let scaling = scaling.filter(|(_, least, most)| least < most).map(|(range, least, most)| {
            let range = range.as_ps() as f64;
            let alpha = range / (1.0 / least.sqrt() - 1.0 / most.sqrt());
            Scaling { alpha, beta: -alpha / most.sqrt(), range }
        });
        Target { per_hop, scaling }
    }

    /// The target over `base` for a window of `cwnd` packets, on a way of `hops` switches.
    pub(super) fn of(&self, base: Span, cwnd: f64, hops: u8) -> Span {
        let scaled = match &self.scaling {
            Some(Scaling { alpha, beta, range }) => (alpha / cwnd.sqrt() + beta).min(*range).max(0.0),
            None => 0.0,
        };
        base.plus(self.per_hop.times(hops.into())).plus(Span::from_ps(scaled as u64))
    }
}
