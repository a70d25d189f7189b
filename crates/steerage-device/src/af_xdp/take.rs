//! Parses the expression that selects the packets to take away from the kernel, such as `udp port
//! 53 or net 10.0.0.0/8`. docs/af_xdp.md has the grammar.

use std::net::IpAddr;
use std::str::FromStr;

/// The maximum number of tests in an expression. A test has at most 20 BPF instructions, and a BPF
/// jump reaches across only 32,767 instructions.
pub const TESTS_MAX: usize = 256;

const SHOWN_CHARS_MAX: usize = 40;

/// The expression that selects the frames to take away from the kernel. The expression matches a
/// frame if at least one clause matches the frame.
///
/// ```
/// use steerage_device::af_xdp::{Take, TakeError};
///
/// let take: Take = "udp dst port 53".parse()?;
/// let error: TakeError = "udp port many".parse::<Take>().unwrap_err();
/// println!("{error}");
/// # Ok::<(), TakeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// A clause matches a frame if each of its tests has the required result.
    clauses: Vec<Vec<(bool, Test)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    All,
    Kind(Kind),
    /// A protocol over IPv4, over IPv6, or over both (`None`).
    Protocol(Option<Kind>, u8),
    Port(Option<Way>, u16, u16),
    Net(Option<Way>, Prefix),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ipv4,
    Ipv6,
    Arp,
    NeighbourDiscovery,
}

/// Source or destination. The variants are indices into arrays of a source and a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    fn new(address: IpAddr, bits: u8) -> Result<Self, String> {
        let most = if address.is_ipv6() { 128 } else { 32 };
        if bits > most {
            return Err(format!("a prefix of {address} has at most {most} bits"));
        }
        let prefix = Self { address, bits };
        match prefix.words().zip(prefix.whole()).any(|((masked, _), whole)| masked != whole) {
            true => Err(format!("{address} has bits set behind the first {bits}: clear them")),
            false => Ok(prefix),
        }
    }

    pub(super) fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    /// Returns the address as 32-bit words, in the byte order in which this machine loads them.
    fn whole(self) -> impl Iterator<Item = u32> {
        let octets = match self.address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        (0..octets.len() / 4).map(move |word| {
            let at = 4 * word;
            u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
        })
    }

    /// Returns, for each 32-bit word of an address, the value and the mask to compare with.
    pub(super) fn words(self) -> impl Iterator<Item = (u32, u32)> {
        self.whole().enumerate().map(move |(word, whole)| {
            let bits = u32::from(self.bits).saturating_sub(32 * word as u32).min(32);
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            let mask = u32::from_ne_bytes(mask.to_be_bytes());
            (whole & mask, mask)
        })
    }
}

/// The reason why a text is not a valid expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TakeError(String);

impl Take {
    pub(super) fn clauses(&self) -> &[Vec<(bool, Test)>] {
        &self.clauses
    }

    pub(super) fn names(&self, kind: Kind) -> bool {
        self.clauses.iter().flatten().any(|test| *test == (true, Test::Kind(kind)))
    }
}

impl FromStr for Take {
    type Err = TakeError;

    fn from_str(text: &str) -> Result<Self, TakeError> {
        let spaced = text.replace(',', " or ");
        let mut words = spaced.split_whitespace().peekable();
        let mut clauses = vec![Vec::new()];
        let mut tests = 0;
        // The last word that was read, if another word must follow it.
        let mut open = "";
        while let Some(word) = words.next() {
            let clause: &mut Vec<_> = clauses.last_mut().expect("there is always one");
            match word {
                "and" | "or" if clause.is_empty() || !open.is_empty() => {
                    return Err(TakeError(format!("there is nothing before `{word}`")));
                }
                "and" => open = "and",
                "or" => {
                    clauses.push(Vec::new());
                    open = "or";
                }
                _ => {
                    let wanted = word != "not";
                    let first = if wanted { word } else { words.next().ok_or_else(|| nothing_behind("not"))? };
                    clause.push((wanted, read(first, &mut words)?));
                    tests += 1;
                    open = "";
                }
            }
            if tests > TESTS_MAX {
                return Err(TakeError(format!("more than {TESTS_MAX} tests: write it shorter")));
            }
        }
        match (open, tests) {
            ("", 0) => {
                Err(TakeError("nothing is named: write such as `udp port 53 or net 10.0.0.0/8`, or `all`".into()))
            }
            ("", _) => Ok(Self { clauses }),
            _ => Err(nothing_behind(open)),
        }
    }
}

fn read<'a>(first: &'a str, words: &mut impl Iterator<Item = &'a str>) -> Result<Test, TakeError> {
    let (way, name) = match first {
        "src" => (Some(Way::Source), words.next().ok_or_else(|| nothing_behind(first))?),
        "dst" => (Some(Way::Destination), words.next().ok_or_else(|| nothing_behind(first))?),
        _ => (None, first),
    };
    let mut value = |name| words.next().ok_or_else(|| nothing_behind(name));
    Ok(match name {
        "port" => {
            let (from, to) = ports(value(name)?)?;
            Test::Port(way, from, to)
        }
        "net" | "host" => Test::Net(way, address(value(name)?, name == "host")?),
        _ if way.is_some() => return Err(wrong(name, "wants `port`, `net` or `host` in its place")),
        "proto" => Test::Protocol(None, number(value(name)?, "a protocol is a number from 0 to 255")?),
        "all" => Test::All,
        "ip" => Test::Kind(Kind::Ipv4),
        "ip6" => Test::Kind(Kind::Ipv6),
        "arp" => Test::Kind(Kind::Arp),
        "nd" => Test::Kind(Kind::NeighbourDiscovery),
        "tcp" => Test::Protocol(None, 6),
        "udp" => Test::Protocol(None, 17),
        "sctp" => Test::Protocol(None, 132),
        "icmp" => Test::Protocol(Some(Kind::Ipv4), 1),
        "icmp6" => Test::Protocol(Some(Kind::Ipv6), 58),
        _ => return Err(wrong(name, KNOWN)),
    })
}

const KNOWN: &str = "is not known: there are all, ip, ip6, arp, nd, tcp, udp, sctp, icmp, icmp6, proto, port, net, host, \
                     src, dst, not, and, or";

fn ports(text: &str) -> Result<(u16, u16), TakeError> {
    const WRONG: &str = "a port is a number from 0 to 65535, or two with `-` between";
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (number(from, WRONG)?, number(to, WRONG)?);
    if from > to { Err(wrong(text, "ends before it begins")) } else { Ok((from, to)) }
}

fn address(text: &str, host: bool) -> Result<Prefix, TakeError> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) if !host => {
            (address, Some(number(bits, "a prefix is such as 10.0.0.0/8 or 2001:db8::/32")?))
        }
        _ => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong(text, "is no IP address"))?;
    let whole = if address.is_ipv6() { 128 } else { 32 };
    Prefix::new(address, bits.unwrap_or(whole)).map_err(TakeError)
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, TakeError> {
    text.parse().map_err(|_| wrong(text, &format!("is wrong: {what}")))
}

fn wrong(word: &str, what: &str) -> TakeError {
    let shown: String = word.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    TakeError(format!("`{shown}` {what}"))
}

fn nothing_behind(word: &str) -> TakeError {
    TakeError(format!("there is nothing after `{word}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clauses(text: &str) -> Vec<Vec<(bool, Test)>> {
        text.parse::<Take>().unwrap_or_else(|error| panic!("{text}: {error}")).clauses
    }

    #[test]
    fn clauses_are_joined_by_or_and_tests_by_and() {
        let dns = vec![(true, Test::Protocol(None, 17)), (true, Test::Port(None, 53, 53))];
        let https = vec![(true, Test::Protocol(None, 6)), (true, Test::Port(Some(Way::Destination), 443, 444))];
        let both = vec![dns.clone(), https];
        assert_eq!(clauses("udp port 53 or tcp dst port 443-444"), both);
        assert_eq!(clauses(" udp and port 53,tcp and dst port 443-444 "), both);
        assert_eq!(clauses("udp port 53"), [dns]);
        assert_eq!(clauses("all not port 22"), [[(true, Test::All), (false, Test::Port(None, 22, 22))]]);
    }

    #[test]
    fn prefixes_are_words_under_masks() {
        let words = |text: &str| match clauses(text)[0][0] {
            (true, Test::Net(None, address)) => address.words().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let word = |bytes| u32::from_ne_bytes(bytes);
        assert_eq!(words("net 10.0.0.0/8"), [(word([10, 0, 0, 0]), word([255, 0, 0, 0]))]);
        assert_eq!(words("net 0.0.0.0/0"), [(0, 0)]);
        assert_eq!(words("host 10.1.2.3"), [(word([10, 1, 2, 3]), u32::MAX)]);
        let some = (word([0x20, 1, 0x0d, 0xb8]), u32::MAX);
        assert_eq!(
            words("net 2001:db8:8000::/33"),
            [some, (word([0x80, 0, 0, 0]), word([0x80, 0, 0, 0])), (0, 0), (0, 0)]
        );
    }

    #[test]
    fn names_of_kinds_count_if_they_are_wanted() {
        let take: Take = "all or arp".parse().unwrap();
        assert!(take.names(Kind::Arp) && !take.names(Kind::NeighbourDiscovery));
        assert!(!"all not arp".parse::<Take>().unwrap().names(Kind::Arp));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (text, says) in [
            ("", "nothing is named"),
            ("or udp", "before `or`"),
            ("udp or", "after `or`"),
            ("udp and or tcp", "before `or`"),
            ("udp not", "after `not`"),
            ("port", "after `port`"),
            ("port x", "a port is"),
            ("port 70000", "a port is"),
            ("port 9-8", "ends before"),
            ("src udp", "`udp` wants"),
            ("net 10.0.0.1/8", "clear them"),
            ("net 10.0.0.0/33", "at most 32"),
            ("host 10.0.0.0/8", "no IP address"),
            ("smtp", "is not known"),
        ] {
            let error = text.parse::<Take>().unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{text}: {error}");
        }
        assert!("udp ".repeat(TESTS_MAX).parse::<Take>().is_ok());
        assert!("udp ".repeat(TESTS_MAX + 1).parse::<Take>().is_err());
    }
}
