//! Congestion control by name: the table of all that there is, and how a name becomes algorithms.
//!
//! A [`CcChoice`] is a name with settings, [`prepare`](CcChoice::prepare)d once per endpoint and
//! then asked for one [`SenderAlgorithm`] per congestion context. A choice has a sender's part and may
//! have a receiver's part; where both are in force the smaller permission wins.
//!
//! A new algorithm needs a file of its own, an arm in `dispatch`, and here a part and the rows that use it.

use std::sync::Arc;

use thiserror::Error;

use crate::constant::{Constant, ConstantConfig};
use crate::credit::SenderCredit;
use crate::nscc::{Nscc, NsccConfig, NsccShared};
use crate::rccc::{Rccc, RcccConfig};
use crate::settings::SettingInfo;
use crate::smartt::{Smartt, SmarttConfig, SmarttShared};
use crate::table::{
    Builder, ListSettings, Part, Refused, Row, UnknownName, configured, find, without_settings,
};
use crate::unlimited::Unlimited;
use crate::{CcParams, ReceiverAlgorithm, ReceiverCc, SenderAlgorithm, SenderCc};

/// The input from which a sender's part is built.
#[derive(Clone, Copy, Debug)]
pub struct SenderInput {
    /// The network and the endpoint.
    pub params: CcParams,
    /// Whether a receiver's credits are in force as well.
    pub receiver_credit: bool,
}

/// Makes the sender's algorithm of a new congestion context, from what all contexts of an endpoint share.
pub type MakeSender = Arc<dyn Fn() -> SenderAlgorithm + Send + Sync>;
/// Makes the receiver's scheduler of an endpoint.
pub type MakeReceiver = Arc<dyn Fn() -> ReceiverAlgorithm + Send + Sync>;

/// A receiver's part, ready for one endpoint.
#[derive(Clone)]
pub struct PreparedReceiver {
    make: MakeReceiver,
    /// Credit that a sender may store, bytes.
    credit_cap: u64,
}

/// The two parts of a congestion control.
#[derive(Clone, Copy)]
pub struct CcParts {
    /// The algorithm at the sender.
    pub sender: Part<SenderInput, MakeSender>,
    /// The scheduler that grants credit at the receiver; none if senders need no credit.
    pub receiver: Option<Part<CcParams, PreparedReceiver>>,
}

impl ListSettings for CcParts {
    fn settings(&self) -> Vec<SettingInfo> {
        let mut all = self.sender.settings();
        all.extend(self.receiver.iter().flat_map(Part::settings));
        all
    }
}

const NSCC: Part<SenderInput, MakeSender> = || {
    configured(|config: &NsccConfig, on: SenderInput| -> MakeSender {
        let shared = Arc::new(NsccShared::new(config, &on.params, on.receiver_credit));
        Arc::new(move || SenderAlgorithm::Nscc(Nscc::new(shared.clone())))
    })
};

const SMARTT: Part<SenderInput, MakeSender> = || {
    configured(|config: &SmarttConfig, on: SenderInput| -> MakeSender {
        let shared = Arc::new(SmarttShared::new(config, &on.params));
        Arc::new(move || SenderAlgorithm::Smartt(Smartt::new(shared.clone())))
    })
};

const CONSTANT: Part<SenderInput, MakeSender> = || {
    configured(|config: &ConstantConfig, on: SenderInput| -> MakeSender {
        let constant = Constant::new(config, &on.params);
        Arc::new(move || SenderAlgorithm::Constant(constant))
    })
};

const UNLIMITED: Part<SenderInput, MakeSender> = || {
    without_settings(|on: SenderInput| -> MakeSender {
        let unlimited = Unlimited::new(&on.params);
        Arc::new(move || SenderAlgorithm::Unlimited(unlimited))
    })
};

const RCCC: Part<CcParams, PreparedReceiver> = || {
    configured(|config: &RcccConfig, params: CcParams| {
        let (config, credit_cap) = (config.clone(), config.credit_cap(&params));
        let make = move || ReceiverAlgorithm::Rccc(Rccc::new(&config, &params));
        PreparedReceiver { make: Arc::new(make), credit_cap }
    })
};

/// All congestion controls.
pub static ALGORITHMS: &[Row<CcParts>] = &[
    Row {
        name: "nscc",
        about: "sender window from ECN, delay and trims",
        source: "Ultra Ethernet NSCC, as coded in uet-htsim",
        part: CcParts { sender: NSCC, receiver: None },
    },
    Row {
        name: "smartt",
        about: "sender window from ECN, RTT and trims, as published",
        source: "SMaRTT paper, Algorithms 1-4, equations 1-3",
        part: CcParts { sender: SMARTT, receiver: None },
    },
    Row {
        name: "constant",
        about: "a window that never changes, one BDP by default",
        source: "a baseline",
        part: CcParts { sender: CONSTANT, receiver: None },
    },
    Row {
        name: "rccc",
        about: "receiver credit, no sender window",
        source: "Ultra Ethernet RCCC, as coded in uet-htsim; EQDS, NSDI 2022",
        part: CcParts { sender: UNLIMITED, receiver: Some(RCCC) },
    },
    Row {
        name: "nscc+rccc",
        about: "receiver credit under an nscc window",
        source: "Ultra Ethernet NSCC and RCCC, as coded in uet-htsim; EQDS, NSDI 2022",
        part: CcParts { sender: NSCC, receiver: Some(RCCC) },
    },
    Row {
        name: "smartt+rccc",
        about: "receiver credit under a smartt window",
        source: "SMaRTT paper, section VI; Ultra Ethernet RCCC, as coded in uet-htsim; EQDS, NSDI 2022",
        part: CcParts { sender: SMARTT, receiver: Some(RCCC) },
    },
];

/// A setting could not be changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CcSetError {
    /// The algorithm has no parameter of this name.
    #[error("{algorithm} has no parameter '{key}' (to set to '{value}'); it has: {known}")]
    UnknownKey {
        /// The algorithm's name.
        algorithm: String,
        /// The name that was given.
        key: String,
        /// The value that it was set to.
        value: String,
        /// The names of the parameters that exist, comma-separated.
        known: String,
    },
    /// The parameter does not take this value.
    #[error("{algorithm}: {key} is '{value}', expected {expected}; parameters are: {known}")]
    BadValue {
        /// The algorithm's name.
        algorithm: String,
        /// The name of the parameter.
        key: String,
        /// The value that it was set to.
        value: String,
        /// The values that it takes, to complete the sentence "expected …".
        expected: String,
        /// The names of the parameters that exist, comma-separated.
        known: String,
    },
}

/// Makes a user's own sender algorithm, one for each congestion context.
pub type SenderFactory = Arc<dyn Fn(&CcParams) -> Box<dyn SenderCc + Send> + Send + Sync>;
/// Makes a user's own receiver scheduler, one for each endpoint.
pub type ReceiverFactory = Arc<dyn Fn(&CcParams) -> Box<dyn ReceiverCc + Send> + Send + Sync>;

/// A congestion control by name, with its settings.
#[derive(Clone, Debug)]
pub struct CcChoice {
    name: String,
    sender: Arc<dyn Builder<SenderInput, MakeSender>>,
    receiver: Option<Arc<dyn Builder<CcParams, PreparedReceiver>>>,
}

impl Default for CcChoice {
    /// `nscc`.
    fn default() -> Self {
        CcChoice { name: "nscc".into(), sender: NSCC(), receiver: None }
    }
}

impl std::str::FromStr for CcChoice {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        CcChoice::parse(name)
    }
}

impl CcChoice {
    /// The algorithm called `name`, with its default settings.
    ///
    /// # Errors
    /// [`UnknownName`] when there is none; its text lists the names.
    pub fn parse(name: &str) -> Result<CcChoice, UnknownName> {
        let row = find(ALGORITHMS, "congestion control", name)?;
        let CcParts { sender, receiver } = row.part;
        Ok(CcChoice { name: row.name.into(), sender: sender(), receiver: receiver.map(|part| part()) })
    }

    /// A user's own sender algorithm.
    pub fn custom(name: &str, factory: SenderFactory) -> CcChoice {
        let build = move |on: SenderInput| -> MakeSender {
            let factory = factory.clone();
            Arc::new(move || SenderAlgorithm::Custom(factory(&on.params)))
        };
        CcChoice { name: name.into(), sender: without_settings(build), receiver: None }
    }

    /// This choice with a user's own receiver scheduler. Its senders store credit and speculate as
    /// with `rccc`'s default settings.
    pub fn with_custom_receiver(mut self, factory: ReceiverFactory) -> CcChoice {
        let build = move |params: CcParams| {
            let factory = factory.clone();
            let make = move || ReceiverAlgorithm::Custom(factory(&params));
            PreparedReceiver { make: Arc::new(make), credit_cap: RcccConfig::default().credit_cap(&params) }
        };
        self.receiver = Some(without_settings(build));
        self
    }

    /// The name by which users choose this algorithm.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Changes one setting from text: the sender's part's if it has one of this name, else the receiver's.
    ///
    /// # Errors
    /// [`CcSetError`] when neither part has the setting, or when it does not take this value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), CcSetError> {
        let mut changed = self.sender.with(key, value).map(|sender| self.sender = sender);
        if let (Err(Refused::NoSuchKey), Some(receiver)) = (&changed, &mut self.receiver) {
            changed = receiver.with(key, value).map(|changed| *receiver = changed);
        }
        changed.map_err(|refused| {
            let (algorithm, key, value) = (self.name.clone(), key.to_owned(), value.to_owned());
            let known = self.known_keys();
            match refused {
                Refused::NoSuchKey => CcSetError::UnknownKey { algorithm, key, value, known },
                Refused::BadValue { expected } => {
                    CcSetError::BadValue { algorithm, key, value, expected, known }
                }
            }
        })
    }

    fn known_keys(&self) -> String {
        let mut settings = self.sender.settings();
        settings.extend(self.receiver.iter().flat_map(|receiver| receiver.settings()));
        let keys: Vec<&str> = settings.iter().map(|setting| setting.key).collect();
        if keys.is_empty() { "none".into() } else { keys.join(", ") }
    }

    /// Whether senders need the receiver's credit.
    pub fn uses_credit(&self) -> bool {
        self.receiver.is_some()
    }

    /// Derives once what all contexts of one endpoint share.
    pub fn prepare(&self, params: &CcParams) -> PreparedCc {
        let input = SenderInput { params: *params, receiver_credit: self.uses_credit() };
        PreparedCc {
            sender: self.sender.build(input),
            receiver: self.receiver.as_ref().map(|receiver| receiver.build(*params)),
            params: *params,
        }
    }

    /// The algorithm of one sender, which shares nothing with other senders. Endpoints with many contexts use
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
    sender: MakeSender,
    receiver: Option<PreparedReceiver>,
}

impl PreparedCc {
    /// The algorithm of a new congestion context.
    pub fn sender(&self) -> SenderAlgorithm {
        (self.sender)()
    }

    /// The scheduler of this endpoint; none if it works without credit.
    pub fn receiver(&self) -> Option<ReceiverAlgorithm> {
        self.receiver.as_ref().map(|receiver| (receiver.make)())
    }

    /// The credit account of a new connection; none if it works without credit.
    pub fn sender_credit(&self) -> Option<SenderCredit> {
        let receiver = self.receiver.as_ref()?;
        Some(SenderCredit::new(receiver.credit_cap, self.params.wire_mtu()))
    }

    /// The network and the endpoint for which everything is made.
    pub fn params(&self) -> &CcParams {
        &self.params
    }
}
