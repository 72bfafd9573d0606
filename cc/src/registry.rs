//! Which congestion control there is: the one table of names, and how a name becomes algorithms.
//!
//! A [`CcChoice`] is a name with parameters, [`prepare`](CcChoice::prepare)d once per endpoint and
//! then asked for one [`SenderAlgorithm`] per congestion context. A choice has a sender's part, a
//! receiver's part, or both; where both are in force the smaller permission wins.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::constant::{self, Constant, ConstantConfig};
use crate::credit::SenderCredit;
use crate::nscc::{self, Nscc, NsccConfig, NsccShared};
use crate::rccc::{self, Rccc, RcccConfig};
use crate::settings::{Applied, Setting, SettingInfo, apply};
use crate::smartt::{self, Smartt, SmarttConfig, SmarttShared};
use crate::unlimited::Unlimited;
use crate::{
    AckSample, CcParams, CcSnapshot, Credit, DataSample, LossSample, NackSample, ReceiverCc, SenderCc,
    SenderId, SentPacket, Time, Window,
};

/// One row of the table.
pub struct Algorithm {
    /// The name to choose it by.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Where it is specified.
    pub source: &'static str,
    sender: fn() -> SenderSpec,
    receiver: Option<fn() -> ReceiverSpec>,
}

const UE_TEXT: &str = "Ultra Ethernet NSCC, as coded in uet-htsim";
const PAPER: &str = "SMaRTT paper, Algorithms 1-4, equations 1-3";
const EQDS: &str = "Ultra Ethernet RCCC, as coded in uet-htsim; EQDS, NSDI 2022";

const NSCC_AND_EQDS: &str = "Ultra Ethernet NSCC and RCCC, as coded in uet-htsim; EQDS, NSDI 2022";
const PAPER_AND_EQDS: &str =
    "SMaRTT paper, section VI; Ultra Ethernet RCCC, as coded in uet-htsim; EQDS, NSDI 2022";

/// Everything that can be chosen by name.
pub static ALGORITHMS: &[Algorithm] = &[
    Algorithm {
        name: "nscc",
        about: "sender window from ECN, delay and trims",
        source: UE_TEXT,
        sender: || SenderSpec::Nscc(NsccConfig::default()),
        receiver: None,
    },
    Algorithm {
        name: "smartt",
        about: "sender window from ECN, RTT and trims, as published",
        source: PAPER,
        sender: || SenderSpec::Smartt(SmarttConfig::default()),
        receiver: None,
    },
    Algorithm {
        name: "constant",
        about: "a window that never changes, one BDP by default",
        source: "a baseline",
        sender: || SenderSpec::Constant(ConstantConfig::default()),
        receiver: None,
    },
    Algorithm {
        name: "rccc",
        about: "receiver credit, no sender window",
        source: EQDS,
        sender: || SenderSpec::Unlimited,
        receiver: Some(rccc_default),
    },
    Algorithm {
        name: "nscc+rccc",
        about: "receiver credit under an nscc window",
        source: NSCC_AND_EQDS,
        sender: || SenderSpec::Nscc(NsccConfig::default()),
        receiver: Some(rccc_default),
    },
    Algorithm {
        name: "smartt+rccc",
        about: "receiver credit under a smartt window",
        source: PAPER_AND_EQDS,
        sender: || SenderSpec::Smartt(SmarttConfig::default()),
        receiver: Some(rccc_default),
    },
];

fn rccc_default() -> ReceiverSpec {
    ReceiverSpec::Rccc(RcccConfig::default())
}

/// The names of [`ALGORITHMS`], comma-separated, for messages.
fn known_names() -> String {
    let names: Vec<&str> = ALGORITHMS.iter().map(|a| a.name).collect();
    names.join(", ")
}

/// No algorithm has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown congestion control '{name}'; there are: {known}")]
pub struct UnknownAlgorithm {
    /// The name asked for.
    pub name: String,
    /// The names there are, comma-separated.
    pub known: String,
}

/// A parameter could not be set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CcSetError {
    /// The algorithm has no parameter of this name.
    #[error("{algorithm} has no parameter '{key}' (to set to '{value}'); it has: {known}")]
    UnknownKey {
        /// The algorithm's name.
        algorithm: String,
        /// The parameter asked for.
        key: String,
        /// The value it was to have.
        value: String,
        /// The parameters there are, comma-separated.
        known: String,
    },
    /// The value is not one that the parameter takes.
    #[error("{algorithm}: {key} is '{value}', expected {expected}; parameters are: {known}")]
    BadValue {
        /// The algorithm's name.
        algorithm: String,
        /// The parameter.
        key: String,
        /// The value it was to have.
        value: String,
        /// What values look like.
        expected: &'static str,
        /// The parameters there are, comma-separated.
        known: String,
    },
}

/// Makes a user's own sender algorithm, one for each congestion context.
pub type SenderFactory = Arc<dyn Fn(&CcParams) -> Box<dyn SenderCc + Send> + Send + Sync>;
/// Makes a user's own receiver scheduler, one for each endpoint.
pub type ReceiverFactory = Arc<dyn Fn(&CcParams) -> Box<dyn ReceiverCc + Send> + Send + Sync>;

/// The sender's part of a choice.
#[derive(Clone)]
enum SenderSpec {
    Nscc(NsccConfig),
    Smartt(SmarttConfig),
    Constant(ConstantConfig),
    Unlimited,
    Custom(SenderFactory),
}

/// The receiver's part of a choice. `credit` is what its senders need to know.
#[derive(Clone)]
enum ReceiverSpec {
    Rccc(RcccConfig),
    Custom { factory: ReceiverFactory, credit: RcccConfig },
}

impl SenderSpec {
    fn set(&mut self, key: &str, value: &str) -> Applied {
        match self {
            SenderSpec::Nscc(config) => apply(nscc::SETTINGS, config, key, value),
            SenderSpec::Smartt(config) => apply(smartt::SETTINGS, config, key, value),
            SenderSpec::Constant(config) => apply(constant::SETTINGS, config, key, value),
            SenderSpec::Unlimited | SenderSpec::Custom(_) => Applied::NoSuchKey,
        }
    }

    fn settings(&self) -> Vec<SettingInfo> {
        match self {
            SenderSpec::Nscc(_) => infos(nscc::SETTINGS),
            SenderSpec::Smartt(_) => infos(smartt::SETTINGS),
            SenderSpec::Constant(_) => infos(constant::SETTINGS),
            SenderSpec::Unlimited | SenderSpec::Custom(_) => Vec::new(),
        }
    }

    fn prepare(&self, params: &CcParams, receiver_credit: bool) -> PreparedSender {
        match self {
            SenderSpec::Nscc(config) => {
                PreparedSender::Nscc(Arc::new(NsccShared::new(config, params, receiver_credit)))
            }
            SenderSpec::Smartt(config) => PreparedSender::Smartt(Arc::new(SmarttShared::new(config, params))),
            SenderSpec::Constant(config) => PreparedSender::Constant(Constant::new(config, params)),
            SenderSpec::Unlimited => PreparedSender::Unlimited(Unlimited::new(params)),
            SenderSpec::Custom(factory) => PreparedSender::Custom(factory.clone()),
        }
    }
}

impl ReceiverSpec {
    fn set(&mut self, key: &str, value: &str) -> Applied {
        match self {
            ReceiverSpec::Rccc(config) => apply(rccc::SETTINGS, config, key, value),
            ReceiverSpec::Custom { .. } => Applied::NoSuchKey,
        }
    }

    fn settings(&self) -> Vec<SettingInfo> {
        match self {
            ReceiverSpec::Rccc(_) => infos(rccc::SETTINGS),
            ReceiverSpec::Custom { .. } => Vec::new(),
        }
    }

    fn credit(&self) -> &RcccConfig {
        match self {
            ReceiverSpec::Rccc(config) | ReceiverSpec::Custom { credit: config, .. } => config,
        }
    }
}

fn infos<C>(table: &[Setting<C>]) -> Vec<SettingInfo> {
    table.iter().map(Setting::info).collect()
}

/// A congestion control by name, with its parameters.
#[derive(Clone)]
pub struct CcChoice {
    name: String,
    sender: SenderSpec,
    receiver: Option<ReceiverSpec>,
}

impl fmt::Debug for CcChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("CcChoice");
        out.field("name", &self.name);
        match &self.sender {
            SenderSpec::Nscc(config) => out.field("sender", config),
            SenderSpec::Smartt(config) => out.field("sender", config),
            SenderSpec::Constant(config) => out.field("sender", config),
            SenderSpec::Unlimited => out.field("sender", &"unlimited"),
            SenderSpec::Custom(_) => out.field("sender", &"custom"),
        };
        if let Some(receiver) = &self.receiver {
            out.field("receiver", receiver.credit());
        }
        out.finish()
    }
}

impl Default for CcChoice {
    /// `nscc`.
    fn default() -> Self {
        CcChoice { name: "nscc".into(), sender: SenderSpec::Nscc(NsccConfig::default()), receiver: None }
    }
}

impl std::str::FromStr for CcChoice {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        CcChoice::parse(name)
    }
}

impl CcChoice {
    /// The algorithm called `name`, with its default parameters.
    pub fn parse(name: &str) -> Result<CcChoice, UnknownAlgorithm> {
        let row = ALGORITHMS.iter().find(|a| a.name == name);
        let row = row.ok_or_else(|| UnknownAlgorithm { name: name.into(), known: known_names() })?;
        Ok(CcChoice {
            name: row.name.into(),
            sender: (row.sender)(),
            receiver: row.receiver.map(|receiver| receiver()),
        })
    }

    /// A user's own sender algorithm.
    pub fn custom(name: &str, factory: SenderFactory) -> CcChoice {
        CcChoice { name: name.into(), sender: SenderSpec::Custom(factory), receiver: None }
    }

    /// This choice with a user's own receiver scheduler. Its senders store credit and speculate as
    /// with `rccc`'s default parameters.
    pub fn with_custom_receiver(mut self, factory: ReceiverFactory) -> CcChoice {
        self.receiver = Some(ReceiverSpec::Custom { factory, credit: RcccConfig::default() });
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets one parameter from text, of the sender's part if it has one of this name, else of the receiver's.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), CcSetError> {
        let mut applied = self.sender.set(key, value);
        if let (Applied::NoSuchKey, Some(receiver)) = (applied, &mut self.receiver) {
            applied = receiver.set(key, value);
        }
        let (algorithm, key, value) = (self.name.clone(), key.to_owned(), value.to_owned());
        match applied {
            Applied::Done => Ok(()),
            Applied::NoSuchKey => {
                Err(CcSetError::UnknownKey { algorithm, key, value, known: self.known_keys() })
            }
            Applied::BadValue { expected } => {
                Err(CcSetError::BadValue { algorithm, key, value, expected, known: self.known_keys() })
            }
        }
    }

    /// The parameters that [`set`](Self::set) takes.
    pub fn settings(&self) -> Vec<SettingInfo> {
        let mut all = self.sender.settings();
        all.extend(self.receiver.iter().flat_map(ReceiverSpec::settings));
        all
    }

    fn known_keys(&self) -> String {
        let keys: Vec<&str> = self.settings().iter().map(|s| s.key).collect();
        if keys.is_empty() { "none".into() } else { keys.join(", ") }
    }

    /// Whether senders need the receiver's credit.
    pub fn uses_credit(&self) -> bool {
        self.receiver.is_some()
    }

    /// Derives once what all contexts of one endpoint share.
    pub fn prepare(&self, params: &CcParams) -> PreparedCc {
        let sender = self.sender.prepare(params, self.uses_credit());
        PreparedCc { sender, receiver: self.receiver.clone(), params: *params }
    }

    /// One sender's algorithm, sharing nothing. Endpoints with many contexts
    /// [`prepare`](Self::prepare) instead.
    pub fn sender(&self, params: &CcParams) -> SenderAlgorithm {
        self.prepare(params).sender()
    }

    /// The receiver's scheduler of one endpoint; none if this choice works without credit.
    pub fn receiver(&self, params: &CcParams) -> Option<ReceiverAlgorithm> {
        self.prepare(params).receiver()
    }

    /// A sender's credit account towards one receiver; none if this choice works without credit.
    pub fn sender_credit(&self, params: &CcParams) -> Option<SenderCredit> {
        self.prepare(params).sender_credit()
    }
}

/// A [`CcChoice`] made ready for one endpoint.
#[derive(Clone)]
pub struct PreparedCc {
    params: CcParams,
    sender: PreparedSender,
    receiver: Option<ReceiverSpec>,
}

#[derive(Clone)]
enum PreparedSender {
    Nscc(Arc<NsccShared>),
    Smartt(Arc<SmarttShared>),
    Constant(Constant),
    Unlimited(Unlimited),
    Custom(SenderFactory),
}

impl PreparedCc {
    /// The algorithm of a new congestion context.
    pub fn sender(&self) -> SenderAlgorithm {
        match &self.sender {
            PreparedSender::Nscc(shared) => SenderAlgorithm::Nscc(Nscc::new(shared.clone())),
            PreparedSender::Smartt(shared) => SenderAlgorithm::Smartt(Smartt::new(shared.clone())),
            PreparedSender::Constant(constant) => SenderAlgorithm::Constant(*constant),
            PreparedSender::Unlimited(unlimited) => SenderAlgorithm::Unlimited(*unlimited),
            PreparedSender::Custom(factory) => SenderAlgorithm::Custom(factory(&self.params)),
        }
    }

    /// The scheduler of this endpoint; none if it works without credit.
    pub fn receiver(&self) -> Option<ReceiverAlgorithm> {
        self.receiver.as_ref().map(|spec| match spec {
            ReceiverSpec::Rccc(config) => ReceiverAlgorithm::Rccc(Rccc::new(config, &self.params)),
            ReceiverSpec::Custom { factory, .. } => ReceiverAlgorithm::Custom(factory(&self.params)),
        })
    }

    /// The credit account of a new connection; none if it works without credit.
    pub fn sender_credit(&self) -> Option<SenderCredit> {
        let receiver = self.receiver.as_ref()?;
        Some(SenderCredit::new(receiver.credit().credit_cap(&self.params), self.params.wire_mtu()))
    }

    /// The parameters that everything is made with.
    pub fn params(&self) -> &CcParams {
        &self.params
    }
}

/// Any sender's algorithm, dispatched without indirection where it is built in.
#[non_exhaustive]
pub enum SenderAlgorithm {
    /// NSCC after the UE text.
    Nscc(Nscc),
    /// SMaRTT after the paper.
    Smartt(Smartt),
    /// A fixed window.
    Constant(Constant),
    /// No window: the receiver's credits decide alone.
    Unlimited(Unlimited),
    /// A user's own.
    Custom(Box<dyn SenderCc + Send>),
}

macro_rules! each_sender {
    ($self:expr, $cc:ident => $call:expr) => {
        match $self {
            SenderAlgorithm::Nscc($cc) => $call,
            SenderAlgorithm::Smartt($cc) => $call,
            SenderAlgorithm::Constant($cc) => $call,
            SenderAlgorithm::Unlimited($cc) => $call,
            SenderAlgorithm::Custom($cc) => $call,
        }
    };
}

impl SenderCc for SenderAlgorithm {
    #[inline]
    fn on_send(&mut self, now: Time, pkt: &SentPacket) {
        each_sender!(self, cc => cc.on_send(now, pkt))
    }

    #[inline]
    fn on_ack(&mut self, now: Time, ack: &AckSample) {
        each_sender!(self, cc => cc.on_ack(now, ack))
    }

    #[inline]
    fn on_nack(&mut self, now: Time, nack: &NackSample) {
        each_sender!(self, cc => cc.on_nack(now, nack))
    }

    #[inline]
    fn on_timeout(&mut self, now: Time, lost: &LossSample) {
        each_sender!(self, cc => cc.on_timeout(now, lost))
    }

    #[inline]
    fn window(&self) -> Window {
        each_sender!(self, cc => cc.window())
    }

    #[inline]
    fn next_departure(&self) -> Option<Time> {
        each_sender!(self, cc => cc.next_departure())
    }

    fn snapshot(&self) -> CcSnapshot {
        each_sender!(self, cc => cc.snapshot())
    }
}

impl fmt::Debug for SenderAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SenderAlgorithm::Nscc(cc) => cc.fmt(f),
            SenderAlgorithm::Smartt(cc) => cc.fmt(f),
            SenderAlgorithm::Constant(cc) => cc.fmt(f),
            SenderAlgorithm::Unlimited(cc) => cc.fmt(f),
            SenderAlgorithm::Custom(cc) => f.debug_tuple("Custom").field(&cc.snapshot()).finish(),
        }
    }
}

/// Any receiver's scheduler.
#[non_exhaustive]
pub enum ReceiverAlgorithm {
    /// Paced round-robin credit.
    Rccc(Rccc),
    /// A user's own.
    Custom(Box<dyn ReceiverCc + Send>),
}

macro_rules! each_receiver {
    ($self:expr, $cc:ident => $call:expr) => {
        match $self {
            ReceiverAlgorithm::Rccc($cc) => $call,
            ReceiverAlgorithm::Custom($cc) => $call,
        }
    };
}

impl ReceiverCc for ReceiverAlgorithm {
    #[inline]
    fn on_demand(&mut self, now: Time, sender: SenderId, bytes: u64) {
        each_receiver!(self, cc => cc.on_demand(now, sender, bytes))
    }

    #[inline]
    fn on_data(&mut self, now: Time, sender: SenderId, data: &DataSample) {
        each_receiver!(self, cc => cc.on_data(now, sender, data))
    }

    fn on_leave(&mut self, now: Time, sender: SenderId) {
        each_receiver!(self, cc => cc.on_leave(now, sender))
    }

    #[inline]
    fn poll_credit(&mut self, now: Time) -> Option<Credit> {
        each_receiver!(self, cc => cc.poll_credit(now))
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        each_receiver!(self, cc => cc.poll_timeout())
    }

    fn outstanding(&self, sender: SenderId) -> u64 {
        each_receiver!(self, cc => cc.outstanding(sender))
    }
}

impl fmt::Debug for ReceiverAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiverAlgorithm::Rccc(cc) => cc.fmt(f),
            ReceiverAlgorithm::Custom(_) => f.write_str("Custom"),
        }
    }
}
