//! `memif:SOCKET,role=server|client[,id=N][,secret=TEXT][,bsize=BYTES][,rsize=N]`.

use core::fmt;

use weft_stack::port::memif::{MAX_LOG2_RING, MemifConfig, MemifPort, Role, SocketName};
use weft_stack::port::udp::mac_of;
use weft_stack::worker::HostAddr;

use super::spec::{number, switch_of};
use super::{
    ALL_PATHS, AnyPort, DEFAULT_MTU, OpenPort, PortError, PortInfo, PortOptions, PortSpec, SpecError,
};

/// A port over memif. The options are called as those of DPDK's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemifSpec {
    /// The socket at which the two ends meet.
    pub socket: SocketName,
    /// The role of this end: server or client.
    pub role: Role,
    /// The number of the interface at the socket.
    pub id: u32,
    /// Both ends must have the same; empty for none.
    pub secret: String,
    /// Bytes of each buffer of a client; as many as the longest frame needs if nothing is given.
    pub buffer_size: Option<u32>,
    /// Slots of each ring of a client, as a power of two.
    pub log2_ring: Option<u8>,
}

impl MemifSpec {
    pub(super) fn parse(text: &str) -> Result<MemifSpec, SpecError> {
        let mut parts = text.split(',');
        let socket = parts.next().unwrap_or_default();
        if matches!(socket, "" | "@") || socket.contains('=') {
            return Err(SpecError::expected(format!(
                "memif:SOCKET,role=server|client with a path or @NAME instead of {socket:?}"
            )));
        }
        let mut role = None;
        let mut spec = MemifSpec {
            socket: SocketName::parse(socket),
            role: Role::Server,
            id: 0,
            secret: String::new(),
            buffer_size: None,
            log2_ring: None,
        };
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            match key {
                "role" => {
                    role = Some(switch_of(part, value, [("server", Role::Server), ("client", Role::Client)])?)
                }
                "id" => spec.id = number(part, value, 0..=u32::MAX)?,
                "secret" if !value.is_empty() => value.clone_into(&mut spec.secret),
                "bsize" => spec.buffer_size = Some(number(part, value, 64..=u32::MAX)?),
                "rsize" => spec.log2_ring = Some(number(part, value, 1..=MAX_LOG2_RING)?),
                _ => {
                    return Err(SpecError::expected(format!(
                        "role=server|client, id=N, secret=TEXT, bsize=BYTES or rsize=N instead of {part:?}"
                    )));
                }
            }
        }
        spec.role = role
            .ok_or_else(|| SpecError::expected(format!("role=server or role=client with memif:{socket}")))?;
        Ok(spec)
    }

    fn config(&self, mtu: usize, mac: [u8; 6]) -> MemifConfig {
        let default = match self.role {
            Role::Server => MemifConfig::server(self.socket.clone()),
            Role::Client => MemifConfig::client(self.socket.clone()),
        };
        MemifConfig {
            id: self.id,
            secret: self.secret.clone(),
            mac,
            mtu,
            buffer_size: self.buffer_size,
            log2_ring: self.log2_ring.unwrap_or(default.log2_ring),
            ..default
        }
    }

    /// Opens the port; `spec` is the same as `self`.
    pub(super) fn open(&self, spec: &PortSpec, options: &PortOptions) -> Result<OpenPort, PortError> {
        let ip = options.ip.ok_or_else(|| PortError::NoAddress(spec.clone()))?;
        let mac = options.mac.unwrap_or(mac_of(ip));
        let payload = usize::from(options.mtu.unwrap_or(DEFAULT_MTU)) + options.tag_len();
        // Frames of memif can be no longer.
        let config = self.config(payload.min(usize::from(u16::MAX)), mac.0);
        let port = MemifPort::open(&config)
            .map_err(|error| PortError::Memif { spec: spec.clone(), error: Box::new(error) })?;
        let info = PortInfo {
            spec: Some(spec.clone()),
            host: HostAddr { mac, ip },
            paths: ALL_PATHS,
            link: None,
            called: None,
            checksum: options.checksum,
            crc: options.crc,
            vlan: options.vlan,
            point_to_point: true,
        };
        Ok(OpenPort { port: AnyPort::Memif(Box::new(port)), info })
    }
}

impl fmt::Display for MemifSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Server => "server",
            Role::Client => "client",
        };
        write!(f, "memif:{},role={role}", self.socket)?;
        if self.id != 0 {
            write!(f, ",id={}", self.id)?;
        }
        if !self.secret.is_empty() {
            f.write_str(",secret=…")?;
        }
        self.buffer_size.map_or(Ok(()), |size| write!(f, ",bsize={size}"))?;
        self.log2_ring.map_or(Ok(()), |size| write!(f, ",rsize={size}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_read_and_printed() {
        for text in
            ["/run/a.sock,role=server", "@weft,role=client,id=3,bsize=4224,rsize=8", "a,role=client,rsize=14"]
        {
            assert_eq!(MemifSpec::parse(text).unwrap().to_string(), format!("memif:{text}"));
        }
        let secret = MemifSpec::parse("/a,secret=x=y,role=server").unwrap();
        assert_eq!(
            (secret.secret.as_str(), secret.to_string()),
            ("x=y", "memif:/a,role=server,secret=…".into())
        );
    }

    #[test]
    fn refusals_name_the_part_and_the_expected_value() {
        let refusal = |text: &str| MemifSpec::parse(text).unwrap_err().to_string();
        assert_eq!(refusal("/a"), "expected role=server or role=client with memif:/a");
        assert_eq!(refusal("/a,role=master"), "expected server or client instead of \"role=master\"");
        assert_eq!(refusal("/a,role=client,rsize=15"), "expected 1 to 14 instead of \"rsize=15\"");
        let socket = "expected memif:SOCKET,role=server|client with a path or @NAME instead of ";
        assert_eq!(refusal("role=client"), format!("{socket}\"role=client\""));
        assert_eq!(refusal("@,role=client"), format!("{socket}\"@\""));
        assert!(refusal("/a,role=client,secret=").ends_with("instead of \"secret=\""));
        assert!(refusal("/a,role=client,zero-copy=yes").ends_with("instead of \"zero-copy=yes\""));
    }
}
