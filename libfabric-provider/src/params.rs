//! `FI_WEFT_…`: the variables of the environment that configure the provider.

use std::ffi::{CStr, CString, c_char, c_int};

use weft::{BusyTimeout, JobId, Span};

use crate::error::FiError;
use crate::place::Place;
use crate::{provider, sys};

const IFACE: &CStr = c"iface";
const CC: &CStr = c"cc";
const LB: &CStr = c"lb";
const ENTROPIES: &CStr = c"entropies";
const MTU: &CStr = c"mtu";
const PORT: &CStr = c"port";
const MEMORY: &CStr = c"memory";
const JOB: &CStr = c"job";
const BUSY_TIMEOUT: &CStr = c"busy_timeout";

/// UDP ports of an endpoint, unless the environment says otherwise: few, so that most ports that programs ask for are a
/// multiple of it.
const DEFAULT_ENTROPIES: u16 = 4;
/// MiB of memory for messages that an endpoint asks a server for: as many as a `weft serve` permits unless it is told
/// otherwise.
const DEFAULT_MEMORY: c_int = 256;

/// What the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    /// The name of the only interface to use.
    pub(crate) iface: Option<String>,
    pub(crate) cc: Option<String>,
    pub(crate) lb: Option<String>,
    entropies: Option<u16>,
    pub(crate) mtu: Option<u16>,
    pub(crate) busy_timeout: Option<BusyTimeout>,
    /// The job of endpoints that are opened without an authorisation key.
    pub(crate) job: JobId,
    place: Place,
    /// Bytes of memory for messages of an endpoint of a server.
    pub(crate) memory: u32,
}

/// Tells libfabric of the variables, so that `fi_info -e` lists them.
pub(crate) fn define() {
    use sys::{FI_PARAM_INT, FI_PARAM_STRING};
    let all: [(&CStr, sys::fi_param_type, &CStr); 9] = [
        (
            IFACE,
            FI_PARAM_STRING,
            c"Name of the only network interface to use (default: all with an address of the kind that is asked for)",
        ),
        (CC, FI_PARAM_STRING, c"Congestion control, as `weft list cc` names it (default: nscc)"),
        (LB, FI_PARAM_STRING, c"Load balancer, as `weft list lb` names it (default: mixed)"),
        (ENTROPIES, FI_PARAM_INT, c"UDP ports of each endpoint, 1 to 64, the same for all (default: 4)"),
        (MTU, FI_PARAM_INT, c"Bytes of the longest IP packet (default: the interface's, at most 9000)"),
        (
            BUSY_TIMEOUT,
            FI_PARAM_INT,
            c"Seconds after which a peer that takes nothing is given up; 0: never (default: 0)",
        ),
        (
            JOB,
            FI_PARAM_INT,
            c"The job of endpoints that are opened without an authorisation key, 1 to 16777215, which refuse messages of \
              other jobs (default: none)",
        ),
        (
            PORT,
            FI_PARAM_STRING,
            c"Where endpoints are: udp, each at UDP ports of its own; serve:SOCKET, in a `weft serve`; or the name of a \
              port that one endpoint has for itself, such as memif:SOCKET,role=client,ip=ADDRESS (default: udp)",
        ),
        (
            MEMORY,
            FI_PARAM_INT,
            c"MiB of memory for messages of each endpoint of a `weft serve`, at most its --memory (default: 256)",
        ),
    ];
    for (name, kind, help) in all {
        // SAFETY: the provider lives for ever, the texts end with zeros, and the help has no place for arguments.
        unsafe { sys::fi_param_define(provider(), name.as_ptr(), kind, help.as_ptr()) };
    }
}

impl Params {
    /// # Errors
    /// A value that makes no sense; libfabric, or this, has logged which.
    pub(crate) fn read() -> Result<Params, FiError> {
        let mtu = number(MTU, 68, u16::MAX.into())?;
        let entropies = number(ENTROPIES, 1, 64)?;
        let busy = number(BUSY_TIMEOUT, 0, 1 << 22)?;
        let job = number(JOB, 0, (1 << 24) - 1)?.unwrap_or(0);
        let memory = number(MEMORY, 1, 3 << 10)?.unwrap_or(DEFAULT_MEMORY);
        Ok(Params {
            iface: text(IFACE),
            cc: text(CC),
            lb: text(LB),
            entropies: entropies.map(|n| n as u16),
            mtu: mtu.map(|n| n as u16),
            busy_timeout: busy.map(|seconds| match seconds {
                0 => BusyTimeout::Endless,
                seconds => Span::from_ms(seconds as u64 * 1000).into(),
            }),
            job: JobId::new(job as u32).unwrap_or_default(),
            place: text(PORT).map_or(Place::OwnPorts, |port| Place::parse(&port)),
            memory: (memory as u32) << 20,
        })
    }

    /// The values if none of the variables is set.
    #[cfg(test)]
    pub(crate) fn unset() -> Params {
        Params {
            iface: None,
            cc: None,
            lb: None,
            entropies: None,
            mtu: None,
            busy_timeout: None,
            job: JobId::default(),
            place: Place::OwnPorts,
            memory: 1 << 20,
        }
    }

    /// UDP ports of an endpoint that has some of its own.
    pub(crate) fn entropies(&self) -> u16 {
        self.entropies.unwrap_or(DEFAULT_ENTROPIES)
    }

    /// Where the endpoints of a domain with this name are.
    ///
    /// # Errors
    /// Other variables have no effect there.
    pub(crate) fn place(&self, domain: Option<&str>) -> Result<Place, FiError> {
        let place = domain.and_then(Place::of_domain).unwrap_or_else(|| self.place.clone());
        let without_effect = [("IFACE", self.iface.is_some()), ("ENTROPIES", self.entropies.is_some())];
        if let (Place::Named(name), Some((variable, _))) =
            (&place, without_effect.iter().find(|(_, is_set)| *is_set))
        {
            crate::log::warn(&format!("FI_WEFT_{variable} has no effect on endpoints at {name}: unset it"));
            return Err(FiError::INVALID);
        }
        Ok(place)
    }
}

fn text(name: &CStr) -> Option<String> {
    let mut value: *mut c_char = std::ptr::null_mut();
    // SAFETY: a variable of this kind writes a pointer.
    let found = unsafe { sys::fi_param_get(provider(), name.as_ptr(), (&raw mut value).cast()) };
    if found != 0 || value.is_null() {
        return None;
    }
    // SAFETY: libfabric says that it found a text, which belongs to it.
    let text: CString = unsafe { CStr::from_ptr(value) }.to_owned();
    Some(text.to_string_lossy().into_owned())
}

fn number(name: &CStr, least: c_int, most: c_int) -> Result<Option<c_int>, FiError> {
    let mut value: c_int = 0;
    // SAFETY: a variable of this kind writes a number.
    let found = unsafe { sys::fi_param_get(provider(), name.as_ptr(), (&raw mut value).cast()) };
    if found == -sys::FI_ENODATA {
        return Ok(None);
    }
    if found != 0 || !(least..=most).contains(&value) {
        let name = name.to_string_lossy().to_uppercase();
        crate::log::warn(&format!("FI_WEFT_{name}: expected a number from {least} to {most}"));
        return Err(FiError::INVALID);
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use weft::core::spray::registry::BALANCERS;
    use weft::core::worker::Worker;
    use weft::port::AnyPort;
    use weft_cc::CcChoice;
    use weft_cc::registry::all_names;

    use super::*;
    use crate::kind::Kind;

    /// Opens an endpoint with this congestion control and load balancer, and returns what `look` reads from its worker.
    fn of_endpoint<T>(cc: Option<&str>, lb: Option<&str>, look: impl Fn(&Worker<AnyPort>) -> T) -> T {
        let params = Params {
            iface: None,
            cc: cc.map(str::to_owned),
            lb: lb.map(str::to_owned),
            entropies: None,
            mtu: None,
            busy_timeout: None,
            job: JobId::NONE,
            place: Place::OwnPorts,
            memory: 0,
        };
        let at = ([127, 0, 0, 1], 0).into();
        let endpoint = Place::OwnPorts.open(Kind::Rdm, at, JobId::NONE, &params);
        look(endpoint.unwrap_or_else(|error| panic!("{cc:?} {lb:?}: {error:?}")).worker().unwrap())
    }

    #[test]
    fn the_congestion_control_of_an_endpoint_is_the_one_that_was_chosen() {
        let (sender, receiver) = (
            |cc: &weft_cc::PreparedCc| format!("{:?}", cc.sender()),
            |cc: &weft_cc::PreparedCc| format!("{:?}", cc.receiver()),
        );
        let mut seen = std::collections::BTreeSet::new();
        for name in all_names() {
            let (own, params) = of_endpoint(Some(&name), None, |worker| {
                let cc = &worker.fep().config().zones.default.cc;
                ((sender(cc), receiver(cc)), *cc.params())
            });
            let chosen = CcChoice::parse(&name).unwrap().prepare(&params);
            assert_eq!(own, (sender(&chosen), receiver(&chosen)), "{name}");
            seen.insert(own);
        }
        assert!(seen.len() > 10, "names make a difference");
        let default = of_endpoint(None, None, |worker| sender(&worker.fep().config().zones.default.cc));
        assert_eq!(
            default,
            of_endpoint(Some("nscc"), None, |worker| sender(&worker.fep().config().zones.default.cc))
        );
    }

    #[test]
    fn the_load_balancer_of_an_endpoint_is_the_one_that_was_chosen() {
        let own =
            |name| of_endpoint(None, name, |worker| worker.fep().config().zones.default.lb.name().to_owned());
        assert!(BALANCERS.iter().all(|row| own(Some(row.name)) == row.name));
        assert_eq!(own(None), "mixed");
    }
}
