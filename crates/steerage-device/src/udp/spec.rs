use std::net::SocketAddr;

use super::{BUFFER_MAX, BUFFER_MIN, MTU_MAX, MTU_MIN, QUEUES_MAX, UdpOptions};
use crate::options::{self, SpecError};

const DEVICE: &str = "udp";
const PREFIX: &str = "udp:";

const OPTIONS: [&str; 5] = ["queues", "receive_buffer", "mtu", "pmtu", "offload"];

/// Returns true if `spec` names UDP sockets: if it begins with `udp:`.
///
/// ```
/// use steerage_device::udp::is_spec;
///
/// assert!(is_spec("udp:0.0.0.0:4789") && !is_spec("udp0"));
/// ```
pub fn is_spec(spec: &str) -> bool {
    spec.starts_with(PREFIX)
}

impl UdpOptions {
    /// Parses `udp:ADDR:PORT,option=value,...`.
    ///
    /// # Errors
    /// [`SpecError`] for an invalid address, and for an unknown, repeated or out-of-range option.
    pub fn parse(spec: &str) -> Result<Self, SpecError> {
        let rest = spec.strip_prefix(PREFIX).unwrap_or(spec);
        let (address, list) = rest.split_once(',').unwrap_or((rest, ""));
        let address: SocketAddr = address.parse().map_err(|_| {
            let wrong = "is not an address and a port: write `udp:0.0.0.0:4789` or `udp:[::]:4789`";
            SpecError::of(DEVICE, "ADDR:PORT", address, wrong)
        })?;
        let mut read = Self::new(address);
        for item in options::read(DEVICE, list)? {
            match item.option {
                "queues" => read.queues = Some(item.within(1, QUEUES_MAX)?),
                "receive_buffer" => read.receive_buffer = item.within(BUFFER_MIN, BUFFER_MAX)?,
                "mtu" => read.mtu = item.within(MTU_MIN, MTU_MAX)?,
                "pmtu" => read.pmtu = item.is_on()?,
                "offload" => read.offloads = item.is_on()?,
                _ => return Err(item.unknown(&OPTIONS)),
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_behind_the_address() {
        let options = UdpOptions::parse("udp:[::1]:51820,queues=2,pmtu=off,mtu=9000,offload=off").unwrap();
        assert_eq!(options.address, "[::1]:51820".parse().unwrap());
        assert_eq!((options.queues, options.pmtu, options.mtu, options.offloads), (Some(2), false, 9000, false));
        let default = UdpOptions::parse("udp:0.0.0.0:4789").unwrap();
        assert_eq!((default.queues, default.offloads), (None, true));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for wrong in
            ["udp:", "udp:4789", "udp:::1:80", "udp:1.2.3.4:1,queues=0", "udp:1.2.3.4:1,mtu=9", "udp:1.2.3.4:1,a=b"]
        {
            let error = UdpOptions::parse(wrong).unwrap_err().to_string();
            assert!(error.starts_with("udp: option `"), "{error}");
        }
    }
}
