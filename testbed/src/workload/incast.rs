//! Incasts: many senders, one receiver.

use core::ops::Range;

use weft_stack::rng::Rng;

use super::draft::{Draft, Pool, Setting, Sharing};
use super::generate::{Once, shuffled};
use super::pairs::{Pairs, digits, range};
use super::spec::WorkloadSpecError;

/// Some hosts, each with some flows to one other host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Incast {
    senders: u32,
    /// The hosts of which the senders are drawn; `None`: all.
    from: Option<Range<u32>>,
    /// The receiver; `None`: drawn.
    to: Option<u32>,
    /// Flows of each sender.
    flows: u32,
    sharing: Sharing,
    once: Once,
}

impl Incast {
    pub(super) fn parse(senders: u32, pairs: &mut Pairs<'_>) -> Result<Incast, WorkloadSpecError> {
        let host = |text: &str| digits(text)?.parse().ok().filter(|host| *host < u32::MAX);
        let hosts = |text: &str| range(text).or_else(|| host(text).map(|host| host..host + 1));
        Ok(Incast {
            senders,
            from: pairs.read("from", "the number of a host, or a range such as 8-23", hosts)?,
            to: pairs.read("to", "the number of a host", host)?,
            flows: pairs.count("flows")?.unwrap_or(1),
            sharing: Sharing::parse(pairs)?,
            once: Once::parse(pairs)?,
        })
    }

    /// The number of hosts that the description implies; `None` if it is too large.
    pub(super) fn default_hosts(&self) -> Option<u32> {
        u32::try_from(self.hosts_needed()).ok()
    }

    pub(super) fn hosts_needed(&self) -> u64 {
        let senders = u64::from(self.senders) + 1;
        let named = self.from.as_ref().map_or(0, |from| from.end).max(self.to.map_or(0, |to| to + 1));
        senders.max(named.into())
    }

    pub(super) fn generate(
        &self,
        setting: &Setting<'_>,
        draft: &mut Draft,
        rng: &mut Rng,
    ) -> Result<(), WorkloadSpecError> {
        draft.reserve(u64::from(self.senders) * u64::from(self.flows))?;
        let order = shuffled(setting.hosts, rng);
        let may_send = |host: u32| self.from.as_ref().is_none_or(|from| from.contains(&host));
        let drawn = || order.iter().copied().find(|host| self.from.is_none() || !may_send(*host));
        let receiver = self.to.or_else(drawn).unwrap_or(order[0]);
        let all: Vec<u32> =
            order.iter().copied().filter(|host| *host != receiver && may_send(*host)).collect();
        let senders = all.get(..self.senders as usize).ok_or_else(|| {
            let reason =
                format!("{} hosts beside the receiver; expected at least {}", all.len(), self.senders);
            WorkloadSpecError::value("from", reason)
        })?;
        let mut pool = Pool::new(self.sharing);
        for &src in senders {
            for _ in 0..self.flows {
                let start = self.once.start(rng);
                pool.flow(draft, (src, receiver), self.once.bytes(setting), start)?;
            }
        }
        Ok(())
    }
}
