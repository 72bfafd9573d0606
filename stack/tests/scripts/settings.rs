//! The settings of a script's endpoint.

use weft_stack::cc::units::parse_span;
use weft_stack::cc::{CcChoice, CcParams, Delays};
use weft_stack::fep::{BusyTimeout, FepConfig, Limits};
use weft_stack::pdc::{PdcConfig, RodReceive};
use weft_stack::worker::Strangers;
use weft_stack::{Rate, Span};

pub(crate) struct Settings {
    cc: CcChoice,
    params: CcParams,
    pdc: PdcConfig,
    limits: Limits,
    rod_receive: RodReceive,
    idle_timeout: Span,
    time_wait: Span,
    busy_timeout: BusyTimeout,
    /// Entries of the address book, the endpoint's own among them.
    pub(crate) book: usize,
    pub(crate) strangers: Strangers,
}

/// An endpoint that gives up soon, on a network of 100 Gbit/s and 10 µs that trims. Packets hold 1,000 bytes.
impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cc: CcChoice::default(),
            params: CcParams {
                mtu: 1_000,
                overhead: 64,
                link_rate: Rate::from_gbps(100),
                network_rtt: Span::from_us(10),
                trimming: true,
                delays: Delays::Known,
            },
            pdc: PdcConfig { rto_init: Span::from_us(100), mp_range: 128, ..PdcConfig::default() },
            limits: Limits::default(),
            rod_receive: RodReceive::GoBackN,
            idle_timeout: Span::from_ms(10),
            time_wait: Span::from_ms(1),
            busy_timeout: Span::from_ms(20).into(),
            book: 16,
            strangers: Strangers::Refuse,
        }
    }
}

impl Settings {
    /// Takes in one `name=value`.
    pub(crate) fn set(&mut self, word: &str) -> Result<(), String> {
        let (name, value) =
            word.split_once('=').ok_or_else(|| format!("{word:?} is no setting: name=value"))?;
        let span = || parse_span(value).map_err(|_| format!("{word:?}: {value:?} is no time"));
        let number = || value.parse::<u32>().map_err(|_| format!("{word:?}: {value:?} is no number"));
        let one_of = |names: [&str; 2]| match names.iter().position(|name| *name == value) {
            Some(at) => Ok(at == 1),
            None => Err(format!("{word:?}: {value:?} is neither {} nor {}", names[0], names[1])),
        };
        let (pdc, limits) = (&mut self.pdc, &mut self.limits);
        match name {
            "cc" => self.cc = CcChoice::parse(value).map_err(|error| format!("{word:?}: {error}"))?,
            "mtu" => self.params.mtu = number()?,
            "trimming" => self.params.trimming = one_of(["off", "on"])?,
            "rto" => pdc.rto_init = span()?,
            "max_retries" => {
                pdc.max_retries =
                    value.parse().map_err(|_| format!("{word:?}: {value:?} is not 0 to 255"))?;
            }
            "mp_range" => pdc.mp_range = number()?,
            "first_range" => pdc.first_range = number()?,
            "ack_bytes" => pdc.ack_bytes = number()?,
            "idle_timeout" => self.idle_timeout = span()?,
            "time_wait" => self.time_wait = span()?,
            "busy_timeout" if value == "endless" => self.busy_timeout = BusyTimeout::Endless,
            "busy_timeout" => self.busy_timeout = span()?.into(),
            "rod_receive" => {
                let reorders = one_of(["go_back_n", "reorder"])?;
                self.rod_receive = if reorders { RodReceive::Reorder } else { RodReceive::GoBackN };
            }
            "book" => self.book = number()? as usize,
            "strangers" => {
                let learns = one_of(["refuse", "learn"])?;
                self.strangers = if learns { Strangers::Learn } else { Strangers::Refuse };
            }
            "connections" => limits.connections = number()? as usize,
            "pdcs_per_peer" => limits.pdcs_per_peer = number()?,
            "pdcs" => limits.pdcs = number()? as usize,
            "half_open_pdcs" => limits.half_open_pdcs = number()? as usize,
            "half_open_pdcs_per_peer" => limits.half_open_pdcs_per_peer = number()?,
            "closed_pdcs_per_peer" => limits.closed_pdcs_per_peer = number()?,
            "sends" => limits.sends = number()? as usize,
            "receives" => limits.receives = number()? as usize,
            "processes" => limits.processes = number()? as usize,
            "unexpected_messages" => limits.unexpected_messages = number()? as usize,
            "unexpected_bytes" => limits.unexpected_bytes = number()?.into(),
            "unexpected_messages_per_peer" => limits.unexpected_messages_per_peer = number()?,
            "unexpected_bytes_per_peer" => limits.unexpected_bytes_per_peer = number()?.into(),
            "response_bytes_per_peer" => limits.response_bytes_per_peer = number()?.into(),
            "response_bytes" => limits.response_bytes = number()?.into(),
            "reorder_bytes" => limits.reorder_bytes = number()?.into(),
            "control_queue" => limits.control_queue = number()? as usize,
            "reorder_packets" => limits.reorder_packets = number()? as usize,
            _ => match name.strip_prefix("cc.") {
                Some(key) => self.cc.set(key, value).map_err(|error| format!("{word:?}: {error}"))?,
                None => return Err(format!("{word:?}: there is no setting {name:?}")),
            },
        }
        let range = "mp_range is a multiple of 128 from 128 to 32640, first_range 1 to 4096, mtu 1 to 8000";
        let valid = self.config().validate().is_ok() && self.params.mtu <= 8_000;
        valid.then_some(()).ok_or_else(|| format!("{word:?}: {range}"))
    }

    pub(crate) fn config(&self) -> FepConfig {
        let base = FepConfig::new(&self.cc, &self.params);
        let infer_loss = !self.params.trimming;
        let base = base.with_zones(|zone| zone.pdc = PdcConfig { infer_loss, ..self.pdc });
        FepConfig {
            rod_receive: self.rod_receive,
            limits: self.limits,
            idle_timeout: self.idle_timeout,
            time_wait: self.time_wait,
            busy_timeout: self.busy_timeout,
            ..base
        }
    }
}
