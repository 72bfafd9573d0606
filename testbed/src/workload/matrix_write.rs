//! Writes a workload as a `.cm` file.

use core::fmt;

use super::{MessageNumber, Start, TriggerIdx, TriggerKind, Workload};

impl Workload {
    /// Writes the workload as a `.cm` file with start times in microseconds. Reading the file gives the same
    /// workload, including flow numbers.
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
                TriggerKind::Oneshot => writeln!(out, "trigger id {} oneshot", trigger.id)?,
                TriggerKind::Multishot => writeln!(out, "trigger id {} multishot", trigger.id)?,
                TriggerKind::Barrier(n) => writeln!(out, "trigger id {} barrier count {n}", trigger.id)?,
            }
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
        for flow in self.flows() {
            write!(out, "{}->{} id {}", flow.src.0, flow.dst.0, flow.id)?;
            match flow.message.map(MessageNumber::get) {
                None => {}
                Some(0) => write!(out, " msg")?,
                Some(n) => write!(out, " msg {n}")?,
            }
            match flow.start {
                Start::At(time) => write_micros(out, time.as_ps())?,
                Start::Trigger(t) => write!(out, " trigger {}", id(t))?,
            }
            write!(out, " size {}", flow.bytes)?;
            if let Some(t) = flow.on_sent {
                write!(out, " send_done_trigger {}", id(t))?;
            }
            if let Some(t) = flow.on_received {
                write!(out, " recv_done_trigger {}", id(t))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

fn write_micros(out: &mut impl fmt::Write, ps: u64) -> fmt::Result {
    match (ps / 1_000_000, ps % 1_000_000) {
        (whole, 0) => write!(out, " start {whole}"),
        (whole, rest) => write!(out, " start {whole}.{rest:06}"),
    }
}
