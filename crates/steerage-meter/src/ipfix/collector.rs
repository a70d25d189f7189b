use std::fmt;
use std::time::Duration;

use super::pace::ExportRate;

/// IANA's port for IPFIX.
const PORT: u16 = 4739;
/// The assumed MTU of the path to the collector, which most networks support.
const MTU_DEFAULT: usize = 1500;
/// The minimum MTU of IPv6 networks (RFC 8200).
pub(super) const MTU_MIN: usize = 1280;
const MTU_MAX: usize = 65_535;
/// The interval of templates over UDP: a restarted collector receives them after this time at the
/// latest.
const REFRESH_DEFAULT: Duration = Duration::from_secs(10);
const DOMAIN_DEFAULT: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// The address of an IPFIX collector, with options for sending records to it.
///
/// ```
/// use steerage_meter::Collector;
///
/// let collector = Collector::parse("ipfix+tcp://collector.example?domain=7")?;
/// assert_eq!(collector.to_string(), "ipfix+tcp://collector.example:4739");
/// assert!(Collector::parse("ipfix://[2001:db8::1]:2055?mtu=9000&refresh=1m&rate=100000&biflow=no").is_ok());
/// assert!(Collector::parse("netflow://collector.example").is_err());
/// # Ok::<(), steerage_meter::ParseCollectorError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    pub(super) transport: Transport,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) mtu: usize,
    /// The interval between statistics, and over UDP also between templates.
    pub(super) refresh: Duration,
    pub(super) domain: u32,
    pub(super) rate: Option<ExportRate>,
    pub(super) biflows: bool,
}

/// The error for an invalid collector address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseCollectorError(String);

impl Collector {
    /// Returns true if `text` is a collector's address and not a file name.
    pub fn is_address(text: &str) -> bool {
        text.contains("://")
    }

    /// Parses `ipfix://HOST[:PORT]` (UDP) or `ipfix+tcp://HOST[:PORT]`, and options after a
    /// question mark: `mtu=BYTES`, `refresh=DURATION`, `domain=N`, `rate=N`, `biflow=no`, separated
    /// by `&`.
    ///
    /// # Errors
    /// Returns an error if `text` is not a valid collector address.
    pub fn parse(text: &str) -> Result<Self, ParseCollectorError> {
        let (transport, rest) = match text.split_once("://") {
            Some(("ipfix", rest)) => (Transport::Udp, rest),
            Some(("ipfix+tcp", rest)) => (Transport::Tcp, rest),
            _ => return Err(wrong("write ipfix://HOST:PORT for UDP, or ipfix+tcp://HOST:PORT for TCP")),
        };
        let (address, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, port) = host_and_port(address.strip_suffix('/').unwrap_or(address))?;
        let (mtu, refresh, domain) = (MTU_DEFAULT, REFRESH_DEFAULT, DOMAIN_DEFAULT);
        let mut collector = Self { transport, host, port, mtu, refresh, domain, rate: None, biflows: true };
        options.split('&').filter(|option| !option.is_empty()).try_for_each(|option| collector.set(option))?;
        Ok(collector)
    }

    /// Sets the rate of records, unless the address has the option `rate`. Without a rate, records
    /// over TCP are sent at once. Over UDP, the rate suits receive buffers of default size, but
    /// records are sent at once if more than half of a live run's record queue is in use.
    #[must_use]
    pub fn or_rate(mut self, rate: Option<ExportRate>) -> Self {
        self.rate = self.rate.or(rate);
        self
    }

    /// Returns the collector's address with TCP instead of UDP, because over UDP, a sender cannot
    /// find out which records have arrived. Returns `None` for a TCP address.
    pub fn over_tcp(&self) -> Option<String> {
        if self.transport == Transport::Tcp {
            return None;
        }
        let mut options = Vec::new();
        if self.refresh != REFRESH_DEFAULT {
            options.push(format!("refresh={}", humantime::format_duration(self.refresh)).replace(' ', ""));
        }
        if self.domain != DOMAIN_DEFAULT {
            options.push(format!("domain={}", self.domain));
        }
        if !self.biflows {
            options.push("biflow=no".to_owned());
        }
        let tcp = Self { transport: Transport::Tcp, ..self.clone() };
        let mark = if options.is_empty() { "" } else { "?" };
        Some(format!("{tcp}{mark}{}", options.join("&")))
    }

    fn set(&mut self, option: &str) -> Result<(), ParseCollectorError> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "mtu" => {
                let mtu = value.parse().ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu));
                self.mtu = mtu.ok_or_else(|| wrong(&format!("mtu={value}: write {MTU_MIN} to {MTU_MAX} bytes")))?;
            }
            "refresh" => {
                let seconds = value.parse().ok().map(Duration::from_secs);
                let refresh = seconds.or_else(|| humantime::parse_duration(value).ok());
                let refresh = refresh.filter(|refresh| !refresh.is_zero());
                self.refresh = refresh.ok_or_else(|| wrong(&format!("refresh={value}: write a time such as 10s")))?;
            }
            "domain" => {
                self.domain =
                    value.parse().map_err(|_| wrong(&format!("domain={value}: write a number of 32 bits")))?;
            }
            "rate" => {
                self.rate = Some(value.parse().map_err(|what| wrong(&format!("rate={value}: {what}")))?);
            }
            "biflow" => {
                self.biflows = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(wrong(&format!("biflow={value}: write yes or no"))),
                };
            }
            other => return Err(wrong(&format!("{other}: use mtu, refresh, domain, rate or biflow"))),
        }
        Ok(())
    }
}

/// Prints the collector's address without its options.
impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.transport {
            Transport::Udp => "ipfix",
            Transport::Tcp => "ipfix+tcp",
        };
        let Self { host, port, .. } = self;
        if host.contains(':') { write!(f, "{scheme}://[{host}]:{port}") } else { write!(f, "{scheme}://{host}:{port}") }
    }
}

fn wrong(what: &str) -> ParseCollectorError {
    ParseCollectorError(what.to_owned())
}

fn host_and_port(address: &str) -> Result<(String, u16), ParseCollectorError> {
    let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(port))),
        None => match address.split_once(':') {
            Some((_, rest)) if rest.contains(':') => return Err(wrong("put brackets around an address of IPv6")),
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    if host.is_empty() {
        return Err(wrong("name a host, such as ipfix://127.0.0.1:4739"));
    }
    let port = match port {
        None => PORT,
        Some(port) => {
            let number = port.parse().ok().filter(|port| *port > 0);
            number.ok_or_else(|| wrong(&format!("{port}: write a port from 1 to 65535")))?
        }
    };
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let collector = Collector::parse("ipfix://127.0.0.1").unwrap();
        assert_eq!((collector.transport, collector.port, collector.mtu), (Transport::Udp, 4739, 1500));
        let collector = Collector::parse("ipfix+tcp://[::1]:99/?mtu=1280&biflow=no&refresh=500ms&rate=7").unwrap();
        let Collector { host, port, mtu, biflows, refresh, rate, .. } = collector.clone();
        assert_eq!((host.as_str(), port, mtu, biflows), ("::1", 99, 1280, false));
        assert_eq!((refresh, rate), (Duration::from_millis(500), "7".parse().ok()));
        assert_eq!(collector.to_string(), "ipfix+tcp://[::1]:99");
    }

    #[test]
    fn the_address_for_tcp_has_the_same_options() {
        let over_tcp = |text: &str| Collector::parse(text).unwrap().over_tcp();
        assert_eq!(over_tcp("ipfix+tcp://a?domain=7"), None);
        for (udp, tcp) in [
            ("ipfix://a", "ipfix+tcp://a:4739"),
            ("ipfix://[::1]:99?mtu=1280&rate=max", "ipfix+tcp://[::1]:99"),
            (
                "ipfix://a?biflow=no&domain=7&refresh=90s&rate=7&mtu=9000",
                "ipfix+tcp://a:4739?refresh=1m30s&domain=7&biflow=no",
            ),
        ] {
            let found = over_tcp(udp).unwrap();
            assert_eq!(found, tcp);
            let (udp, tcp) = (Collector::parse(udp).unwrap(), Collector::parse(&found).unwrap());
            assert_eq!((tcp.refresh, tcp.domain, tcp.biflows), (udp.refresh, udp.domain, udp.biflows));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            ("127.0.0.1:4739", "ipfix://HOST:PORT"),
            ("udp://a", "ipfix://HOST:PORT"),
            ("ipfix://", "name a host"),
            ("ipfix://:1", "name a host"),
            ("ipfix://::1", "brackets"),
            ("ipfix://a:0", "a port"),
            ("ipfix://a:x", "a port"),
            ("ipfix://a?mtu=100", "mtu=100"),
            ("ipfix://a?refresh=0", "refresh=0"),
            ("ipfix://a?rate=0", "rate=0"),
            ("ipfix://a?domain=-1", "domain=-1"),
            ("ipfix://a?biflow", "biflow"),
            ("ipfix://a?colour=red", "colour"),
        ] {
            let error = Collector::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
