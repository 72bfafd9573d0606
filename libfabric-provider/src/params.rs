//! `FI_WEFT_…`: the variables of the environment that configure the provider.

use std::ffi::{CStr, CString, c_char, c_int};

use weft::{BusyTimeout, Span};

use crate::error::FiError;
use crate::{provider, sys};

const IFACE: &CStr = c"iface";
const CC: &CStr = c"cc";
const LB: &CStr = c"lb";
const ENTROPIES: &CStr = c"entropies";
const MTU: &CStr = c"mtu";
const BUSY_TIMEOUT: &CStr = c"busy_timeout";

/// UDP ports of an endpoint, unless the environment says otherwise: few, so that most ports that programs ask for are a
/// multiple of it.
const DEFAULT_ENTROPIES: u16 = 4;

/// What the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    /// The name of the only interface to use.
    pub(crate) iface: Option<String>,
    pub(crate) cc: Option<String>,
    pub(crate) lb: Option<String>,
    pub(crate) entropies: u16,
    pub(crate) mtu: Option<u16>,
    pub(crate) busy_timeout: BusyTimeout,
}

/// Tells libfabric of the variables, so that `fi_info -e` lists them.
pub(crate) fn define() {
    use sys::{FI_PARAM_INT, FI_PARAM_STRING};
    let all: [(&CStr, sys::fi_param_type, &CStr); 6] = [
        (
            IFACE,
            FI_PARAM_STRING,
            c"Name of the only network interface to use (default: all with an IPv4 address)",
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
        let busy = number(BUSY_TIMEOUT, 0, 1 << 22)?.unwrap_or(0);
        Ok(Params {
            iface: text(IFACE),
            cc: text(CC),
            lb: text(LB),
            entropies: entropies.map_or(DEFAULT_ENTROPIES, |n| n as u16),
            mtu: mtu.map(|n| n as u16),
            busy_timeout: match busy {
                0 => BusyTimeout::Endless,
                seconds => Span::from_ms(seconds as u64 * 1000).into(),
            },
        })
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
