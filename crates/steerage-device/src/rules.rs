//! Reads and changes the steering rules of a network card (`ethtool -n`, `ethtool -N`), which
//! direct traffic to queues. Any user may read rules. Changes require `CAP_NET_ADMIN`.
//!
//! A rule is written in the syntax of `ethtool -N`:
//!
//! ```
//! use steerage_device::rules::{Flow, Rule};
//!
//! let flow: Flow = "tcp4 dst-port 443".parse()?;
//! let rule = Rule { flow, queue: 2 };
//! assert_eq!(rule.to_string(), "flow-type tcp4 dst-port 443 action 2");
//! # Ok::<(), steerage_device::rules::RuleError>(())
//! ```

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use crate::sys;

/// The name of each type of flow in ethtool, the kernel's number for it (`TCP_V4_FLOW` and others),
/// and the fields that a rule compares.
const KINDS: [(&str, u32, &[Field]); 7] = [
    ("ether", 0x12, &ETHER),
    ("tcp4", 1, &IPV4),
    ("udp4", 2, &IPV4),
    ("sctp4", 3, &IPV4),
    ("tcp6", 5, &IPV6),
    ("udp6", 6, &IPV6),
    ("sctp6", 7, &IPV6),
];

/// A field's name in ethtool, and its offset and length in the kernel's structure.
type Field = (&'static str, usize, usize);

/// `struct ethhdr`.
const ETHER: [Field; 3] = [("dst", 0, 6), ("src", 6, 6), ("proto", 12, PORT_BYTES)];
/// `struct ethtool_tcpip4_spec`.
const IPV4: [Field; 4] =
    [("src-ip", 0, 4), ("dst-ip", 4, 4), (SOURCE_PORT, 8, PORT_BYTES), ("dst-port", 10, PORT_BYTES)];
/// `struct ethtool_tcpip6_spec`.
const IPV6: [Field; 4] =
    [("src-ip", 0, 16), ("dst-ip", 16, 16), (SOURCE_PORT, 32, PORT_BYTES), ("dst-port", 34, PORT_BYTES)];
const SOURCE_PORT: &str = "src-port";
/// The length in bytes of a port and of an EtherType. Both are written as numbers.
const PORT_BYTES: usize = 2;
const MAC_BYTES: usize = 6;
const FIELDS_MAX: usize = 4;
const FIELD_BYTES_MAX: usize = 16;

/// Offsets in `struct ethtool_rxnfc` of linux/ethtool.h: the flow's type, the values to compare,
/// their masks, the end of all masks, the queue, and the location.
const KIND: usize = 16;
const VALUES: usize = 20;
const MASKS: usize = 92;
const MASKS_END: usize = 164;
const QUEUE: usize = 168;
const LOCATION: usize = 176;
/// The index of the 32-bit word that contains the size of the rule table.
const SIZE: usize = 2;

/// The maximum number of rules that are read. The largest tables of network cards have 64 Ki rules.
const RULES_MAX: usize = 1 << 16;

const OF_ANOTHER_KIND: &str = "a rule of another kind";

/// The maximum number of queues that share a flow. 256 queues need 1,024 rules, about as many as
/// the smallest rule tables of network cards can hold.
const SHARING_MAX: usize = 256;

/// The number of low bits of the source port that are not compared. Linux connects from even ports
/// as long as an even port is free (`__inet_hash_connect`).
const PARITY_BITS: u32 = 1;

/// Returns how many values the compared bits of the source port have: the smallest power of two
/// with which no queue gets more than 1.25 times an equal share.
fn values(queues: usize) -> Option<u16> {
    if !(1..=SHARING_MAX).contains(&queues) {
        return None;
    }
    let is_even = |values: &usize| 4 * queues * values.div_ceil(queues) <= 5 * values;
    let powers = (0..u16::BITS - PARITY_BITS).map(|bits| 1_usize << bits);
    powers.skip_while(|values| *values < queues).find(is_even)?.try_into().ok()
}

/// The traffic that a rule directs to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    kind: usize,
    /// The compared fields, in the order of the fields in [`KINDS`].
    fields: [Compared; FIELDS_MAX],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Compared {
    value: [u8; FIELD_BYTES_MAX],
    mask: [u8; FIELD_BYTES_MAX],
}

impl Compared {
    /// `value` and `mask` are as long as the field.
    fn new(value: &[u8], mask: &[u8]) -> Self {
        let mut compared = Self::default();
        compared.value[..value.len()].copy_from_slice(value);
        compared.mask[..mask.len()].copy_from_slice(mask);
        compared
    }

    fn number(value: u16, mask: u16) -> Self {
        Self::new(&value.to_be_bytes(), &mask.to_be_bytes())
    }

    fn address(text: &str, length: usize) -> Option<Self> {
        let octets = match length {
            MAC_BYTES => text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<Vec<u8>>>()?,
            _ => match text.parse().ok()? {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            },
        };
        (octets.len() == length).then(|| Self::new(&octets, &vec![u8::MAX; length]))
    }

    fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

/// A rule of a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The traffic to which the rule applies.
    pub flow: Flow,
    /// The receive queue to which the card directs the traffic.
    pub queue: u32,
}

/// The table of rules of a network card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The number of locations (slots for a rule), or 0 if the card chooses the locations itself.
    pub size: u32,
    /// The locations that contain a rule.
    pub used: Vec<u32>,
}

/// The reason why a text is not a valid rule, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuleError(String);

impl Flow {
    /// Returns rules that direct packets of this flow to `queues`. Several queues divide the
    /// packets by a few bits of the source port. If the number of queues is not a power of two,
    /// some queues get more values of the source port's bits than others, but at most 1.25 times an
    /// equal share.
    ///
    /// # Errors
    /// Fails if the flow cannot be divided among this number of queues.
    pub fn to_queues(self, queues: &[u32]) -> Result<Vec<Rule>, RuleError> {
        let Some(values) = values(queues.len()) else {
            return Err(RuleError(format!(
                "{} queues cannot share '{self}': name 1 to {SHARING_MAX} queues",
                queues.len()
            )));
        };
        let by = self.known().iter().position(|(name, ..)| *name == SOURCE_PORT);
        if values > 1 && !by.is_some_and(|by| self.fields[by].is_any()) {
            let why = if by.is_some() { "has a src-port" } else { "has no src-port" };
            return Err(RuleError(format!("'{self}' {why}, by which several queues would share it: name one queue")));
        }
        let rule = |(bits, queue): (u16, &u32)| {
            let mut flow = self;
            if let Some(by) = by.filter(|_| values > 1) {
                flow.fields[by] = Compared::number(bits << PARITY_BITS, (values - 1) << PARITY_BITS);
            }
            Rule { flow, queue: *queue }
        };
        Ok((0..values).zip(queues.iter().cycle()).map(rule).collect())
    }

    fn known(&self) -> &'static [Field] {
        KINDS[self.kind].2
    }
}

impl FromStr for Flow {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let wrong =
            |what: String| RuleError(format!("{what}: write a flow as for ethtool -N, such as 'tcp4 dst-port 443'"));
        let mut words = text.split_whitespace().skip_while(|word| *word == "flow-type");
        let name = words.next().unwrap_or_default();
        let kind = KINDS.iter().position(|(kind, ..)| *kind == name);
        let kind = kind.ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().map(|(kind, ..)| *kind).collect();
            wrong(format!("'{name}' is none of {}", names.join(", ")))
        })?;
        let mut flow = Self { kind, fields: Default::default() };
        let mut words = words.peekable();
        while let Some(field) = words.next() {
            let value = words.next().ok_or_else(|| wrong(format!("{field} has no value")))?;
            let no_value = || wrong(format!("'{value}' is no {field} of {name}"));
            let Some(at) = flow.known().iter().position(|(known, ..)| *known == field) else {
                let names: Vec<&str> = flow.known().iter().map(|(known, ..)| *known).collect();
                return Err(wrong(format!("'{field}' is none of {}", names.join(", "))));
            };
            flow.fields[at] = match flow.known()[at].2 {
                PORT_BYTES => {
                    let port = number(value).ok_or_else(no_value)?;
                    let mask =
                        words.next_if_eq(&"m").map_or(Ok(0), |_| words.next().and_then(number).ok_or_else(no_value));
                    Compared::number(port, !mask?)
                }
                length => Compared::address(value, length).ok_or_else(no_value)?,
            };
        }
        Ok(flow)
    }
}

fn number(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KINDS[self.kind].0)?;
        for ((name, _, length), compared) in self.known().iter().zip(&self.fields) {
            let [value, mask] = [&compared.value, &compared.mask].map(|bytes| &bytes[..*length]);
            let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u16::from(*byte));
            match *length {
                _ if compared.is_any() => {}
                PORT_BYTES if *name == "proto" => write!(f, " {name} {:#06x}", number(value))?,
                PORT_BYTES => write!(f, " {name} {}", number(value))?,
                MAC_BYTES => {
                    let bytes: Vec<String> = value.iter().map(|byte| format!("{byte:02x}")).collect();
                    write!(f, " {name} {}", bytes.join(":"))?;
                }
                _ => {
                    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
                    let address = v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from));
                    write!(f, " {name} {}", address.map_err(|_| fmt::Error)?)?;
                }
            }
            // In a mask of ethtool(8), a 1 means that the bit is not compared.
            if *length == PORT_BYTES && !compared.is_any() && number(mask) != u16::MAX {
                write!(f, " m {:#06x}", !number(mask))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow-type {} action {}", self.flow, self.queue)
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let parts = text.rsplit_once(" action ").and_then(|(flow, queue)| Some((flow, queue.parse().ok()?)));
        let wrong = || RuleError(format!("'{text}' does not end with an action and a queue"));
        let (flow, queue) = parts.ok_or_else(wrong)?;
        Ok(Self { flow: flow.parse()?, queue })
    }
}

/// Returns the rule table of the interface's network card.
///
/// # Errors
/// Fails if the interface does not exist, or if its driver does not support rules.
pub fn table(interface: &str) -> io::Result<Table> {
    let mut words = request(sys::ETHTOOL_GRXCLSRLCNT, 0);
    sys::rules(interface, &mut words)?;
    let room = (words[sys::RULE_COUNT] as usize).min(RULES_MAX);
    let mut words = vec![0; (sys::RULE_LOCATIONS + room).max(sys::RULE_WORDS)];
    (words[0], words[sys::RULE_COUNT]) = (sys::ETHTOOL_GRXCLSRLALL, room as u32);
    sys::rules(interface, &mut words)?;
    let count = (words[sys::RULE_COUNT] as usize).min(room);
    let size = u64::from_ne_bytes(bytes(&words[SIZE..SIZE + 2]).try_into().unwrap_or_default());
    Ok(Table { size: u32::try_from(size).unwrap_or(0), used: words[sys::RULE_LOCATIONS..][..count].to_vec() })
}

/// Returns the rule at `location` in the syntax of `ethtool -N`, or `None` without a rule.
///
/// # Errors
/// The errors of [`table`].
pub fn read(interface: &str, location: u32) -> io::Result<Option<String>> {
    if !table(interface)?.used.contains(&location) {
        return Ok(None);
    }
    let mut words = request(sys::ETHTOOL_GRXCLSRULE, location);
    sys::rules(interface, &mut words)?;
    let rule = decoded(&bytes(&words));
    Ok(Some(rule.map_or_else(|| OF_ANOTHER_KIND.to_owned(), |rule| rule.to_string())))
}

/// Adds a rule at a location, or replaces the rule at that location.
///
/// # Errors
/// Fails if the process lacks `CAP_NET_ADMIN`, or if the driver refuses the rule.
pub fn insert(interface: &str, location: u32, rule: &Rule) -> io::Result<()> {
    let mut bytes = bytes(&request(sys::ETHTOOL_SRXCLSRLINS, location));
    encode(rule, &mut bytes);
    let word = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    let mut words: Vec<u32> = bytes.chunks_exact(4).map(word).collect();
    sys::rules(interface, &mut words)
}

/// Removes the rule at a location.
///
/// # Errors
/// Fails if the process lacks `CAP_NET_ADMIN`, or if the location has no rule.
pub fn delete(interface: &str, location: u32) -> io::Result<()> {
    sys::rules(interface, &mut request(sys::ETHTOOL_SRXCLSRLDEL, location))
}

fn request(command: u32, location: u32) -> [u32; sys::RULE_WORDS] {
    let mut words = [0; sys::RULE_WORDS];
    (words[0], words[LOCATION / 4]) = (command, location);
    words
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn encode(rule: &Rule, bytes: &mut [u8]) {
    bytes[KIND..KIND + 4].copy_from_slice(&KINDS[rule.flow.kind].1.to_ne_bytes());
    bytes[QUEUE..QUEUE + 8].copy_from_slice(&u64::from(rule.queue).to_ne_bytes());
    for ((_, at, length), compared) in rule.flow.known().iter().zip(&rule.flow.fields) {
        bytes[VALUES + at..][..*length].copy_from_slice(&compared.value[..*length]);
        bytes[MASKS + at..][..*length].copy_from_slice(&compared.mask[..*length]);
    }
}

/// Returns `None` if the rule compares a field that [`Rule`] cannot express.
fn decoded(bytes: &[u8]) -> Option<Rule> {
    let number = u32::from_ne_bytes(bytes.get(KIND..KIND + 4)?.try_into().ok()?);
    let kind = KINDS.iter().position(|(_, known, _)| *known == number)?;
    let mut flow = Flow { kind, fields: Default::default() };
    let mut masks = bytes.get(MASKS..MASKS_END)?.to_vec();
    for ((_, at, length), compared) in flow.known().iter().zip(&mut flow.fields) {
        let mask = &mut masks[*at..at + length];
        let is_whole = mask.iter().all(|byte| *byte == u8::MAX);
        let is_any = mask.iter().all(|byte| *byte == 0);
        if is_whole || *length == PORT_BYTES && !is_any {
            *compared = Compared::new(bytes.get(VALUES + at..VALUES + at + length)?, mask);
            mask.fill(0);
        }
    }
    let queue = u64::from_ne_bytes(bytes.get(QUEUE..QUEUE + 8)?.try_into().ok()?);
    let compares_more = masks.iter().any(|byte| *byte != 0);
    Some(Rule { flow, queue: u32::try_from(queue).ok()? }).filter(|_| !compares_more)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(text: &str) -> Result<String, String> {
        text.parse::<Flow>().map(|flow| flow.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn flows_are_written_as_for_ethtool() {
        for text in [
            "tcp4 dst-port 443",
            "udp4 src-ip 192.0.2.1 dst-ip 192.0.2.2 src-port 53 dst-port 5353",
            "sctp6 dst-ip 2001:db8::1",
            "tcp6 src-port 1 m 0xfffc",
            "ether dst 02:00:00:00:00:0a src 02:00:00:00:00:01 proto 0x0800",
        ] {
            assert_eq!(flow(text).unwrap(), text);
            assert_eq!(flow(&format!("flow-type  {text} ")).unwrap(), text);
        }
        assert_eq!(flow("udp4 dst-port 0x35").unwrap(), "udp4 dst-port 53");
        for (wrong, why) in [
            ("", "'' is none of ether, tcp4, udp4"),
            ("ether dst 02:00:00:00:00", "'02:00:00:00:00' is no dst of ether"),
            ("ether dst-port 1", "'dst-port' is none of dst, src, proto"),
            ("tcp dst-port 443", "'tcp' is none of"),
            ("tcp4 dst-port", "dst-port has no value"),
            ("tcp4 dst-port 65536", "'65536' is no dst-port of tcp4"),
            ("tcp4 dst-ip ::1", "'::1' is no dst-ip of tcp4"),
            ("tcp4 port 443", "'port' is none of src-ip"),
            ("tcp4 dst-port 4 m", "'4' is no dst-port"),
        ] {
            assert!(flow(wrong).unwrap_err().starts_with(why), "{wrong}: {:?}", flow(wrong));
        }
    }

    #[test]
    fn several_queues_share_a_flow_by_the_source_port() {
        let flow: Flow = "tcp4 dst-port 443".parse().unwrap();
        let texts =
            |queues: &[u32]| flow.to_queues(queues).map(|rules| rules.iter().map(Rule::to_string).collect::<Vec<_>>());
        assert_eq!(texts(&[3]).unwrap(), ["flow-type tcp4 dst-port 443 action 3"]);
        assert_eq!(
            texts(&[2, 3]).unwrap(),
            [
                "flow-type tcp4 src-port 0 m 0xfffd dst-port 443 action 2",
                "flow-type tcp4 src-port 2 m 0xfffd dst-port 443 action 3"
            ]
        );
        let three = texts(&[1, 4, 5]).unwrap();
        assert_eq!((three.len(), three[7].as_str()), (8, "flow-type tcp4 src-port 14 m 0xfff1 dst-port 443 action 4"));
        assert!(texts(&[]).unwrap_err().to_string().contains("0 queues cannot share"));
        assert!(texts(&(0..257).collect::<Vec<_>>()).is_err());
        let ether: Flow = "ether proto 0x88f7".parse().unwrap();
        assert!(ether.to_queues(&[0, 1]).is_err() && ether.to_queues(&[0]).is_ok());
        let with_port: Flow = "udp4 src-port 53".parse().unwrap();
        assert!(with_port.to_queues(&[0, 1]).is_err() && with_port.to_queues(&[0]).is_ok());
    }

    /// Linux prefers even source ports, so flows with even ports must be spread over all queues.
    #[test]
    fn any_number_of_queues_has_equal_shares() {
        let flow: Flow = "udp4".parse().unwrap();
        for count in 1..=SHARING_MAX as u32 {
            let queues: Vec<u32> = (0..count).collect();
            let rules = flow.to_queues(&queues).unwrap();
            assert!(rules.len() <= 1024, "{count}");
            let mut ports = vec![0; queues.len()];
            let at = flow.known().iter().position(|(name, ..)| *name == SOURCE_PORT).unwrap();
            let number = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
            let mask = number(&rules[0].flow.fields[at].mask);
            // A port matches a rule if its masked bits equal the value.
            let by_bits: std::collections::HashMap<u16, u32> =
                rules.iter().map(|rule| (number(&rule.flow.fields[at].value), rule.queue)).collect();
            assert_eq!(by_bits.len(), rules.len());
            for port in (0..=u16::MAX).step_by(2) {
                ports[by_bits[&(port & mask)] as usize] += 1;
            }
            let most = 1.25 * f64::from(1 << 15) / f64::from(count);
            assert!(ports.iter().all(|ports| *ports > 0 && f64::from(*ports) <= most + 0.5), "{count}: {ports:?}");
        }
    }

    /// The layout in this test is that of the kernel's structures on x86-64 and aarch64.
    #[test]
    fn the_kernels_structure_is_read_back() {
        for text in [
            "flow-type tcp4 src-ip 192.0.2.1 dst-port 443 action 5",
            "flow-type udp6 dst-ip 2001:db8::1 src-port 1 m 0xfffe action 0",
            "flow-type ether src 02:00:00:00:00:01 proto 0x88f7 action 1",
        ] {
            let rule: Rule = text.parse().unwrap();
            let mut bytes = bytes(&request(sys::ETHTOOL_SRXCLSRLINS, 7));
            encode(&rule, &mut bytes);
            assert_eq!((bytes.len(), bytes[LOCATION]), (192, 7));
            assert_eq!(decoded(&bytes).unwrap().to_string(), text);
            for other in [154, MASKS + 36] {
                let mut bytes = bytes.clone();
                bytes[other] = 1;
                assert_eq!(decoded(&bytes), None);
            }
        }
        let rule: Rule = "flow-type tcp4 src-ip 192.0.2.1 dst-port 443 action 5".parse().unwrap();
        let mut bytes = bytes(&request(sys::ETHTOOL_SRXCLSRLINS, 7));
        encode(&rule, &mut bytes);
        assert_eq!(bytes[20..32], [192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1, 187]);
        assert_eq!(bytes[92..104], [255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 255, 255]);
        assert!("flow-type tcp4 dst-port 443".parse::<Rule>().is_err());
    }

    #[test]
    fn an_interface_without_rules_says_so() {
        assert_eq!(table("lo").unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert!(read("no-such-if", 0).is_err());
        assert!(
            sys::rules("lo", &mut [sys::ETHTOOL_GRXCLSRLALL; sys::RULE_WORDS]).is_err(),
            "its field promises more room"
        );
    }
}
