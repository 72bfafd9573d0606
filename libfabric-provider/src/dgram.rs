//! The tables of endpoints for datagrams (FI_EP_DGRAM) that differ from those of reliable ones: messages without tags are all
//! that they send and receive.

use crate::refused::Refused;
use crate::sys;

pub(crate) static TAGGED: sys::fi_ops_tagged = sys::fi_ops_tagged {
    size: size_of::<sys::fi_ops_tagged>(),
    recv: Refused::NO,
    recvv: Refused::NO,
    recvmsg: Refused::NO,
    send: Refused::NO,
    sendv: Refused::NO,
    sendmsg: Refused::NO,
    inject: Refused::NO,
    senddata: Refused::NO,
    injectdata: Refused::NO,
};

pub(crate) static REMOTE: sys::fi_ops_rma = sys::fi_ops_rma {
    size: size_of::<sys::fi_ops_rma>(),
    read: Refused::NO,
    readv: Refused::NO,
    readmsg: Refused::NO,
    write: Refused::NO,
    writev: Refused::NO,
    writemsg: Refused::NO,
    inject: Refused::NO,
    writedata: Refused::NO,
    injectdata: Refused::NO,
};

pub(crate) static ATOMIC: sys::fi_ops_atomic = sys::fi_ops_atomic {
    size: size_of::<sys::fi_ops_atomic>(),
    write: Refused::NO,
    writev: Refused::NO,
    writemsg: Refused::NO,
    inject: Refused::NO,
    readwrite: Refused::NO,
    readwritev: Refused::NO,
    readwritemsg: Refused::NO,
    compwrite: Refused::NO,
    compwritev: Refused::NO,
    compwritemsg: Refused::NO,
    writevalid: Refused::NO,
    readwritevalid: Refused::NO,
    compwritevalid: Refused::NO,
};
