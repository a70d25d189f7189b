use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::FlowKey;
use crate::wire::protocol;

/// The reason why a text cannot be parsed as a [`FlowKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseFlowKeyError {
    /// The text does not have the form `PROTOCOL SOURCE > DESTINATION`.
    Form,
    /// The protocol name is unknown.
    Protocol,
    /// An endpoint is neither an address nor an address with a port.
    Endpoint,
    /// The endpoints have different IP versions, or only one of them has a port.
    Unequal,
}

impl fmt::Display for ParseFlowKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "not a flow: write such as 'tcp 10.0.0.1:5 > 10.0.0.2:80' or 'icmp6 fd00::1 > fd00::2'",
            Self::Protocol => "no such protocol: write tcp, udp, sctp, icmp, icmp6, gre, esp or protocol-N",
            Self::Endpoint => "not an address: write such as 10.0.0.1:80, 10.0.0.1, [fd00::1]:80 or fd00::1",
            Self::Unequal => "the two ends differ: both are IPv4 or both IPv6, both have a port or neither has",
        })
    }
}

impl std::error::Error for ParseFlowKeyError {}

/// Parses the key of an IP flow in the form in which `Display` prints it. Link and custom keys
/// cannot be parsed.
impl FromStr for FlowKey {
    type Err = ParseFlowKeyError;

    fn from_str(text: &str) -> Result<Self, ParseFlowKeyError> {
        let (protocol, ends) = text.trim().split_once(char::is_whitespace).ok_or(ParseFlowKeyError::Form)?;
        let (source, destination) = ends.split_once('>').ok_or(ParseFlowKeyError::Form)?;
        let protocol = parse_protocol(protocol).ok_or(ParseFlowKeyError::Protocol)?;
        let (source, destination) = (parse_end(source.trim())?, parse_end(destination.trim())?);
        let (source, destination) = match (source, destination) {
            ((source, Some(from)), (destination, Some(to))) => ((source, from), (destination, to)),
            ((source, None), (destination, None)) => ((source, 0), (destination, 0)),
            _ => return Err(ParseFlowKeyError::Unequal),
        };
        FlowKey::between(source.into(), destination.into(), protocol).ok_or(ParseFlowKeyError::Unequal)
    }
}

fn parse_protocol(name: &str) -> Option<u8> {
    let name = name.to_ascii_lowercase();
    protocol::named(&name).or_else(|| name.strip_prefix("protocol-")?.parse().ok())
}

fn parse_end(text: &str) -> Result<(IpAddr, Option<u16>), ParseFlowKeyError> {
    if let Ok(address) = text.parse() {
        return Ok((address, None));
    }
    let end: SocketAddr = text.parse().map_err(|_| ParseFlowKeyError::Endpoint)?;
    Ok((end.ip(), Some(end.port())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |text: &str| text.parse::<FlowKey>().unwrap_err();
        for text in ["", "tcp", "tcp 10.0.0.1:5", "10.0.0.1:5 10.0.0.2:80"] {
            assert_eq!(wrong(text), ParseFlowKeyError::Form, "{text}");
        }
        assert_eq!(wrong("http 10.0.0.1:5 > 10.0.0.2:80"), ParseFlowKeyError::Protocol);
        assert_eq!(wrong("protocol-256 10.0.0.1 > 10.0.0.2"), ParseFlowKeyError::Protocol);
        assert_eq!(wrong("tcp 10.0.0.1:5 > 10.0.0.2:65536"), ParseFlowKeyError::Endpoint);
        assert_eq!(wrong("tcp fd00::1:5 > name"), ParseFlowKeyError::Endpoint);
        assert_eq!(wrong("tcp 10.0.0.1:5 > 10.0.0.2"), ParseFlowKeyError::Unequal);
        assert_eq!(wrong("tcp 10.0.0.1:5 > [fd00::1]:5"), ParseFlowKeyError::Unequal);
    }

    #[test]
    fn people_write_it_in_more_ways_than_one() {
        let key = FlowKey::v4_bits((0x0a00_0001, 5), (0x0a00_0002, 80), 6);
        for text in
            ["tcp 10.0.0.1:5 > 10.0.0.2:80", " TCP  10.0.0.1:5>10.0.0.2:80 ", "protocol-6 10.0.0.1:5 > 10.0.0.2:80"]
        {
            assert_eq!(text.parse(), Ok(key), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read(v6: bool, a: u128, b: u128, ports: Option<(u16, u16)>, protocol: u8) {
            let (p, q) = ports.unwrap_or((0, 0));
            let key = if v6 {
                FlowKey::v6_bits((a, p), (b, q), protocol)
            } else {
                FlowKey::v4_bits((a as u32, p), (b as u32, q), protocol)
            };
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }
    }
}
