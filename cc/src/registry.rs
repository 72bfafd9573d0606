//! Congestion control by name: the table of all that there is, and how a name becomes algorithms.
//!
//! A [`CcChoice`] is a name with settings, [`prepare`](CcChoice::prepare)d once per endpoint and
//! then asked for one [`SenderAlgorithm`] per congestion context. A choice has a sender's part and may
//! have a receiver's part; where both are in force the smaller permission wins.
//!
//! A new algorithm needs a file of its own, an arm in `dispatch`, and here a part and its row. [`grammar`]
//! says how parts are put together.

use std::sync::Arc;

use crate::constant::{Constant, ConstantConfig};
use crate::credit::SenderCredit;
use crate::dctcp::{Dctcp, DctcpConfig, DctcpShared};
use crate::grammar::{self, CcNameError};
use crate::median::MedianOf;
use crate::nscc::{Nscc, NsccConfig, NsccShared};
use crate::rccc::{Rccc, RcccConfig};
use crate::settings::SettingInfo;
use crate::smartt::{Smartt, SmarttConfig, SmarttShared};
use crate::swift::{LswiftConfig, Swift, SwiftConfig, Variant};
use crate::table::{
    Builder, ListSettings, Part, Refused, Row, SetError, configured, names, without_settings,
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

/// What a sender's algorithm needs of the endpoint that runs it, and what holds for its window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// An acknowledgement of each packet. Without, one may sum up several packets, and reports mark and RTT of the last. It
    /// may with [`Needs::hops`], too, but only packets that were read together.
    pub ack_each: bool,
    /// Single RTTs, which `median` can filter.
    pub delay: bool,
    /// The number of switches that each packet has passed. Peers that cannot report it are no hindrance.
    pub hops: bool,
    /// The bounds of the window with default settings; none if the window does not adapt.
    pub window: Option<WindowBounds>,
}

impl Needs {
    /// Nothing.
    pub const NONE: Needs = Needs { ack_each: false, delay: false, hops: false, window: None };
    /// RTTs.
    pub const DELAY: Needs = Needs { delay: true, ..Needs::NONE };
}

/// The bounds of a window that adapts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowBounds {
    /// The smallest window in full packets.
    pub least_packets: f64,
    /// The largest window in BDPs of the network.
    pub most_bdp: f64,
}

/// A sender's part.
#[derive(Clone, Copy)]
pub struct SenderPart {
    /// Hands out its builder.
    pub build: Part<SenderInput, MakeSender>,
    /// What it needs.
    pub needs: Needs,
}

impl ListSettings for SenderPart {
    fn settings(&self) -> Vec<SettingInfo> {
        self.build.settings()
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

const DCTCP: Part<SenderInput, MakeSender> = || {
    configured(|config: &DctcpConfig, on: SenderInput| -> MakeSender {
        let shared = Arc::new(DctcpShared::new(config, &on.params));
        Arc::new(move || SenderAlgorithm::Dctcp(Dctcp::new(shared.clone())))
    })
};

const SWIFT: Part<SenderInput, MakeSender> = || {
    configured(|config: &SwiftConfig, on: SenderInput| -> MakeSender {
        let shared = Arc::new(config.shared(&on.params, Variant::Swift));
        Arc::new(move || SenderAlgorithm::Swift(Box::new(Swift::new(shared.clone()))))
    })
};

const LSWIFT: Part<SenderInput, MakeSender> = || {
    configured(|config: &LswiftConfig, on: SenderInput| -> MakeSender {
        let shared = Arc::new(config.shared(&on.params, Variant::Lswift));
        Arc::new(move || SenderAlgorithm::Swift(Box::new(Swift::new(shared.clone()))))
    })
};

/// The median in front of LSwift.
const MSWIFT: Part<SenderInput, MakeSender> = || Arc::new(MedianOf::new(LSWIFT()));

const CONSTANT: Part<SenderInput, MakeSender> = || {
    configured(|config: &ConstantConfig, on: SenderInput| -> MakeSender {
        let constant = Constant::new(config, &on.params);
        Arc::new(move || SenderAlgorithm::Constant(constant))
    })
};

/// The sender of a receiver's scheduler that stands alone.
pub(crate) const UNLIMITED: Part<SenderInput, MakeSender> = || {
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

/// The window of SMaRTT and NSCC: from one packet to 1.5 BDP.
const UP_TO_ONE_AND_A_HALF_BDP: Option<WindowBounds> =
    Some(WindowBounds { least_packets: 1.0, most_bdp: 1.5 });

/// Its window may be a thousandth of a packet.
const SWIFT_NEEDS: Needs = Needs {
    ack_each: true,
    delay: true,
    hops: true,
    window: Some(WindowBounds { least_packets: 0.001, most_bdp: f64::INFINITY }),
};

/// All senders' algorithms.
pub static SENDERS: &[Row<SenderPart>] = &[
    Row {
        name: "nscc",
        about: "sender window from ECN, delay and trims",
        source: "Ultra Ethernet NSCC, as coded in uet-htsim",
        part: SenderPart { build: NSCC, needs: Needs { window: UP_TO_ONE_AND_A_HALF_BDP, ..Needs::DELAY } },
    },
    Row {
        name: "smartt",
        about: "sender window from ECN, RTT and trims, as published",
        source: "SMaRTT paper, Algorithms 1-4, equations 1-3",
        part: SenderPart { build: SMARTT, needs: Needs { window: UP_TO_ONE_AND_A_HALF_BDP, ..Needs::DELAY } },
    },
    Row {
        name: "dctcp",
        about: "sender window from the share of marked packets",
        source: "DCTCP, SIGCOMM 2010; RFC 8257",
        part: SenderPart {
            build: DCTCP,
            needs: Needs {
                ack_each: true,
                window: Some(WindowBounds { least_packets: 1.0, most_bdp: f64::INFINITY }),
                ..Needs::NONE
            },
        },
    },
    Row {
        name: "swift",
        about: "sender windows from the delay of fabric and hosts",
        source: "Swift, SIGCOMM 2020",
        part: SenderPart { build: SWIFT, needs: SWIFT_NEEDS },
    },
    Row {
        name: "lswift",
        about: "swift that tolerates reordering",
        source: "the baseline of MSwift",
        part: SenderPart { build: LSWIFT, needs: SWIFT_NEEDS },
    },
    Row {
        name: "mswift",
        about: "lswift driven by the median of recent delays",
        source: "MSwift",
        part: SenderPart {
            build: MSWIFT,
            // It has its median already.
            needs: Needs { delay: false, ..SWIFT_NEEDS },
        },
    },
    Row {
        name: "constant",
        about: "a window that never changes, one BDP by default",
        source: "a baseline",
        part: SenderPart { build: CONSTANT, needs: Needs::NONE },
    },
];

/// All receivers' schedulers. Alone, they run with senders that have no window.
pub static RECEIVERS: &[Row<Part<CcParams, PreparedReceiver>>] = &[Row {
    name: "rccc",
    about: "receiver credit, no sender window",
    source: "Ultra Ethernet RCCC, as coded in uet-htsim; EQDS, NSDI 2022",
    part: RCCC,
}];

/// The names of all congestion controls that the tables make: senders, receivers, each sender with each receiver, and the
/// senders that react to delay behind a median.
pub fn all_names() -> Vec<String> {
    let (senders, receivers) = (names(SENDERS), names(RECEIVERS));
    let pairs = senders.iter().flat_map(|s| receivers.iter().map(move |r| format!("{s}+{r}")));
    let filtered = SENDERS.iter().filter(|row| row.part.needs.delay);
    let medians = filtered.map(|row| format!("median({})", row.name));
    let alone = senders.iter().chain(&receivers).map(|name| (*name).to_owned());
    alone.chain(pairs).chain(medians).collect()
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
    needs: Needs,
    receiver: Option<Arc<dyn Builder<CcParams, PreparedReceiver>>>,
}

impl Default for CcChoice {
    /// `nscc`.
    fn default() -> Self {
        CcChoice::parse("nscc").expect("nscc is in the table")
    }
}

impl std::str::FromStr for CcChoice {
    type Err = CcNameError;

    fn from_str(name: &str) -> Result<Self, CcNameError> {
        CcChoice::parse(name)
    }
}

impl CcChoice {
    /// The congestion control called `name`, with its default settings: a sender, a receiver, `SENDER+RECEIVER`, and
    /// `median(SENDER)` wherever a sender may stand.
    ///
    /// # Errors
    /// [`CcNameError`] when there is none; its text says where, and what could stand there.
    pub fn parse(name: &str) -> Result<CcChoice, CcNameError> {
        let (sender, receiver) = grammar::parse(name)?;
        Ok(CcChoice { name: name.into(), sender: sender.builder, needs: sender.needs, receiver })
    }

    /// A user's own sender algorithm.
    pub fn custom(name: &str, factory: SenderFactory) -> CcChoice {
        let build = move |on: SenderInput| -> MakeSender {
            let factory = factory.clone();
            Arc::new(move || SenderAlgorithm::Custom(factory(&on.params)))
        };
        let needs = Needs::DELAY;
        CcChoice { name: name.into(), sender: without_settings(build), needs, receiver: None }
    }

    /// This choice with other needs of its sender's algorithm. A user's own needs no acknowledgement of each packet
    /// unless this says so.
    pub fn with_needs(mut self, needs: Needs) -> CcChoice {
        self.needs = needs;
        self
    }

    /// What the sender's algorithm needs.
    pub fn needs(&self) -> &Needs {
        &self.needs
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
    /// [`SetError`] when neither part has the setting, or when it does not take this value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SetError> {
        let mut changed = self.sender.with(key, value).map(|sender| self.sender = sender);
        if let (Err(Refused::NoSuchKey), Some(receiver)) = (&changed, &mut self.receiver) {
            changed = receiver.with(key, value).map(|changed| *receiver = changed);
        }
        changed.map_err(|refused| SetError::new(refused, &self.name, key, value, &self.settings()))
    }

    /// The settings of both parts with their defaults.
    pub fn settings(&self) -> Vec<SettingInfo> {
        let mut settings = self.sender.settings();
        settings.extend(self.receiver.iter().flat_map(|receiver| receiver.settings()));
        settings
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
            needs: self.needs,
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
    needs: Needs,
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

    /// What the sender's algorithm needs.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The network and the endpoint for which everything is made.
    pub fn params(&self) -> &CcParams {
        &self.params
    }
}
