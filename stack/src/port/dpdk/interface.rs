//! Device arguments, and the kernel's interface below a device.

/// The value of `key` in device arguments, `key=value,key=value`.
pub(super) fn argument<'a>(arguments: &'a str, key: &str) -> Option<&'a str> {
    arguments
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value)
}

/// The MTU of an interface of the calling thread's network namespace, bytes; `None` if there is no such interface.
pub(super) fn interface_mtu(name: &str) -> Option<u32> {
    use std::os::fd::AsRawFd;

    use rustix::net::{AddressFamily, SocketType, socket};

    // Not /sys/class/net: that shows the namespace in which it was mounted.
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    // SAFETY: all-zero is a valid request: no name, no value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let (last, places) = request.ifr_name.split_last_mut()?;
    if name.len() > places.len() {
        return None;
    }
    *last = 0;
    for (place, byte) in places.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    // SAFETY: the socket is open, and the request a valid one for this call, with a name that ends in 0.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut request) };
    if result < 0 {
        return None;
    }
    // SAFETY: the call has filled in this field.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_arguments_are_found_by_name() {
        let arguments = "iface=veth0,qpairs=2,socket=/run/a=b.sock";
        assert_eq!(argument(arguments, "iface"), Some("veth0"));
        assert_eq!(argument(arguments, "socket"), Some("/run/a=b.sock"));
        assert_eq!(argument(arguments, "qpair"), None);
        assert_eq!(argument("", ""), None);
    }

    #[test]
    fn the_loopback_has_an_mtu() {
        assert!(interface_mtu("lo").is_some_and(|mtu| mtu >= 1500));
        assert_eq!(interface_mtu("no such interface"), None);
        assert_eq!(interface_mtu("nosuchinterface"), None);
    }
}
