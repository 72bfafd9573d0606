//! A congestion control of one's own, plugged in without a fork and compared with NSCC in an incast.
use std::{error::Error, sync::Arc};
use weft::cc::{AckSample, CcChoice, CcParams, CcSnapshot, LossSample, NackSample, SenderCc, Window};
use weft::core::Rng;
use weft::{Span, Time};
use weft_testbed::sim::{self, RunConfig};
use weft_testbed::{topology::TopologySpec, workload::WorkloadSpec};

/// One packet more each round trip; half of what is marked or trimmed less.
struct Scalable {
    cwnd: u64,
    packet: u64,
    network_rtt: Span,
}

impl SenderCc for Scalable {
    fn on_ack(&mut self, _: Time, ack: &AckSample) {
        match ack.ecn {
            true => self.cwnd -= u64::from(ack.newly_received).min(self.cwnd - self.packet) / 2,
            false => self.cwnd += self.packet * u64::from(ack.newly_received) / self.cwnd,
        }
    }
    fn on_nack(&mut self, _: Time, nack: &NackSample) {
        self.cwnd -= nack.bytes.min(self.cwnd - self.packet) / 2;
    }
    fn on_timeout(&mut self, _: Time, _: &LossSample) {
        self.cwnd = self.packet;
    }
    fn window(&self) -> Window {
        Window(self.cwnd)
    }
    fn expected_rtt(&self) -> Span {
        self.network_rtt
    }
    fn snapshot(&self) -> CcSnapshot {
        CcSnapshot { cwnd: self.cwnd, ..CcSnapshot::default() }
    }
}

pub(crate) fn scalable(params: &CcParams) -> Box<dyn SenderCc + Send> {
    let (packet, network_rtt) = (params.wire_mtu(), params.network_rtt);
    Box::new(Scalable { cwnd: params.network_bdp().max(packet), packet, network_rtt })
}

/// Flow completion times of eight flows of 2 MB to one host at 100 Gbit/s, µs, ascending.
pub(crate) fn incast(cc: CcChoice) -> Result<Vec<f64>, Box<dyn Error>> {
    let workload = "incast:8".parse::<WorkloadSpec>()?.build(None, 2_000_000, &mut Rng::new(1, 0))?;
    let topology = "leaf-spine:hosts=16,leaves=4,spines=4".parse::<TopologySpec>()?.build()?;
    let config = RunConfig { cc, ..RunConfig::new(topology, workload) };
    let flows = sim::run(&config, &mut |_| ())?.flows;
    let fct = |end: Time, start: Time| end.since(start).as_us_f64();
    let mut fcts: Vec<f64> = flows.iter().filter_map(|flow| Some(fct(flow.end?, flow.start?))).collect();
    fcts.sort_by(f64::total_cmp);
    Ok(fcts)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    println!("scalable {:8.1?} µs", incast(CcChoice::custom("scalable", Arc::new(scalable)))?);
    println!("nscc     {:8.1?} µs", incast(CcChoice::parse("nscc")?)?);
    Ok(())
}
