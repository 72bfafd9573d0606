//! Writes a workload as a `.cm` file.

use core::fmt;

use weft_cc::Span;
use weft_stack::wire::class::Priority;

use super::{Background, MessageNumber, Start, TriggerIdx, TriggerKind, Workload};

impl Workload {
    /// Writes the workload as a `.cm` file with start times in microseconds. Reading the file gives the same
    /// workload, including flow numbers, without its tasks.
    pub fn write_cm(&self, out: &mut impl fmt::Write) -> fmt::Result {
        writeln!(out, "Nodes {}", self.hosts())?;
        writeln!(out, "Connections {}", self.flows().len())?;
        if !self.triggers().is_empty() {
            writeln!(out, "Triggers {}", self.triggers().len())?;
        }
        if !self.failures().is_empty() {
            writeln!(out, "Failures {}", self.failures().len())?;
        }
        self.write_flows(out)?;
        for trigger in self.triggers() {
            match trigger.kind {
                TriggerKind::Oneshot => write!(out, "trigger id {} oneshot", trigger.id)?,
                TriggerKind::Multishot => write!(out, "trigger id {} multishot", trigger.id)?,
                TriggerKind::Barrier(n) => write!(out, "trigger id {} barrier count {n}", trigger.id)?,
            }
            if let Some(at) = trigger.at {
                write_micros(out, "at", at.as_ps())?;
            }
            if trigger.delay > Span::ZERO {
                write_micros(out, "delay", trigger.delay.as_ps())?;
            }
            if let Some(then) = trigger.then {
                write!(out, " then {}", self.triggers()[then.index()].id)?;
            }
            writeln!(out)?;
        }
        for failure in self.failures() {
            let kind = ["TOR", "AGG", "CORE"].get(usize::from(failure.tier)).ok_or(fmt::Error)?;
            writeln!(
                out,
                "failure switch_type {kind} switch_id {} link_id {}",
                failure.switch, failure.link
            )?;
        }
        Ok(())
    }

    fn write_flows(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let id = |t: TriggerIdx| self.triggers()[t.index()].id;
        for (index, flow) in self.flows().iter().enumerate() {
            write!(out, "{}->{} id {}", flow.src.0, flow.dst.0, flow.id)?;
            match flow.message.map(MessageNumber::get) {
                None => {}
                Some(0) => write!(out, " msg")?,
                Some(n) => write!(out, " msg {n}")?,
            }
            match flow.start {
                Start::At(time) => write_micros(out, "start", time.as_ps())?,
                Start::Trigger(t) => write!(out, " trigger {}", id(t))?,
            }
            write!(out, " size {}", flow.bytes)?;
            if let Some(t) = flow.on_sent {
                write!(out, " send_done_trigger {}", id(t))?;
            }
            if let Some(t) = flow.on_received {
                write!(out, " recv_done_trigger {}", id(t))?;
            }
            match self.connections()[flow.connection as usize].priority {
                Priority::LOWEST => {}
                priority => write!(out, " prio {}", priority.number())?,
            }
            if let Some(Background { rate, path }) = self.background_of(index) {
                write!(out, " rate {}", rate.as_bps())?;
                path.map_or(Ok(()), |path| write!(out, " path {path}"))?;
            }
            match self.connections()[flow.connection as usize].pool.get() {
                1 => writeln!(out)?,
                connections => writeln!(out, " pool {connections}")?,
            }
        }
        Ok(())
    }
}

/// Writes `word` and a time in microseconds.
fn write_micros(out: &mut impl fmt::Write, word: &str, ps: u64) -> fmt::Result {
    match (ps / 1_000_000, ps % 1_000_000) {
        (whole, 0) => write!(out, " {word} {whole}"),
        (whole, rest) => write!(out, " {word} {whole}.{rest:06}"),
    }
}
