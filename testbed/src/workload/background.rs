//! Background traffic: one flow at a constant rate, over one path if so described.

use weft_cc::{Rate, Span, Time};

use super::draft::{Draft, Setting};
use super::pairs::{Pairs, digits};
use super::spec::WorkloadSpecError;
use super::{Background, MAX_FLOW_BYTES, Start};

/// The description of a flow at a constant rate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConstantBitRate {
    from: u32,
    to: u32,
    rate: Rate,
    path: Option<u16>,
    start: Time,
    duration: Span,
}

impl ConstantBitRate {
    pub(super) fn parse(pairs: &mut Pairs<'_>) -> Result<ConstantBitRate, WorkloadSpecError> {
        let missing = |setting: &str| WorkloadSpecError::Missing(setting.to_owned());
        let host = |text: &str| digits(text)?.parse().ok();
        let (from, to) = (
            pairs.read("from", "the number of a host", host)?,
            pairs.read("to", "the number of a host", host)?,
        );
        let path = pairs.read("path", "a number from 0 to 16383", |text| {
            digits(text)?.parse().ok().filter(|path| *path < 1 << 14)
        })?;
        let described = ConstantBitRate {
            from: from.ok_or_else(|| missing("from=HOST"))?,
            to: to.ok_or_else(|| missing("to=HOST"))?,
            rate: pairs.rate("rate")?.ok_or_else(|| missing("rate=RATE"))?,
            path,
            start: Time::ZERO + pairs.span("start")?.unwrap_or(Span::ZERO),
            duration: pairs.duration("duration")?.ok_or_else(|| missing("duration=TIME"))?,
        };
        if described.from == described.to {
            return Err(WorkloadSpecError::value("to", "expected another host than `from`".to_owned()));
        }
        Ok(described)
    }

    /// Hosts that the two numbers imply.
    pub(super) fn hosts_needed(&self) -> u64 {
        u64::from(self.from.max(self.to)) + 1
    }

    pub(super) fn generate(&self, setting: &Setting<'_>, draft: &mut Draft) -> Result<(), WorkloadSpecError> {
        let rate = Rate::from_bps(self.rate.as_bps() / u64::from(setting.slow.max(1)));
        let bytes = rate.bytes_in(self.duration);
        if !(1..=MAX_FLOW_BYTES).contains(&bytes) {
            let reason = format!("{bytes} bytes at this rate; expected 1 to {MAX_FLOW_BYTES}");
            return Err(WorkloadSpecError::value("duration", reason));
        }
        let kind = Background { rate, path: self.path };
        draft.background_flow((self.from, self.to), kind, bytes, Start::At(self.start))
    }
}
