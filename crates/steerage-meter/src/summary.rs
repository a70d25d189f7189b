//! [`Summary`] adds up flows of records or flow files, by host, port, network or name.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::str::FromStr;
use std::time::SystemTime;

use serde::Deserialize;
use steerage::WallTime;

use super::output::FlowFormat;
use super::record::FlowRecord;

/// Flows beyond this number of groups are added up as one group.
const GROUPS_MAX: usize = 1 << 20;

/// The maximum length of a line in bytes. A name in a record is shorter than 300 bytes.
const LINE_BYTES_MAX: u64 = 1 << 16;

/// The prefix lengths for IPv4 and IPv6: networks of this size usually belong to one site.
const NET_BITS: (u32, u32) = (24, 48);

const NONE: &str = "-";
const OTHERS: &str = "others";

/// The property by which flows are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The flow: records with the same endpoints.
    Flow,
    /// A host, by its address. Each flow counts for both of its hosts.
    Host,
    /// The port of the destination, together with the protocol.
    Port,
    /// A network: 24 bits of an IPv4 address, or 48 bits of an IPv6 address. Each flow counts for
    /// both of its networks.
    Net,
    /// The server's name in TLS or HTTP, or the name in a DNS query.
    Name,
}

impl By {
    /// Returns the name of the grouping, as it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Host => "host",
            Self::Port => "port",
            Self::Net => "net",
            Self::Name => "name",
        }
    }
}

/// The error for a name that is not the name of a grouping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write flow, host, port, net or name")]
pub struct UnknownGrouping;

impl FromStr for By {
    type Err = UnknownGrouping;

    fn from_str(name: &str) -> Result<Self, UnknownGrouping> {
        let all = [Self::Flow, Self::Host, Self::Port, Self::Net, Self::Name];
        all.into_iter().find(|by| by.name() == name).ok_or(UnknownGrouping)
    }
}

/// A group of flows, and the sums of their packets and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What the flows have in common, as text. For [`By::Flow`], the kind of the flow.
    pub name: String,
    /// The endpoints, only for [`By::Flow`].
    pub ends: Option<[String; 2]>,
    /// The number of records.
    pub records: u64,
    /// Packets and bytes that the flows' sources sent.
    pub forth: (u64, u64),
    /// Packets and bytes that the flows' destinations sent.
    pub back: (u64, u64),
    /// The times of the first and the last packet of the group.
    pub times: (WallTime, WallTime),
}

/// The sums of packets and bytes for each group of flows.
#[derive(Debug)]
pub struct Summary {
    by: By,
    groups: HashMap<String, Group>,
    all: Option<Group>,
}

/// The reason why a flow file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadFlowsError {
    /// Reading the file failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line of the file is not a record that this program has written.
    #[error("line {line} is no flow of steerage meter: {why}")]
    Line {
        /// The number of the line, counted from 1.
        line: u64,
        /// The mistake in the line.
        why: String,
    },
    /// Flow files of this format cannot be read.
    #[error("only .csv and .jsonl can be read again")]
    Format,
}

#[derive(Deserialize)]
struct Columns {
    first: String,
    last: String,
    kind: String,
    source: Option<String>,
    source_port: Option<u16>,
    destination: Option<String>,
    destination_port: Option<u16>,
    packets: u64,
    bytes: u64,
    packets_back: u64,
    bytes_back: u64,
    dns_query: Option<String>,
    tls_sni: Option<String>,
    http_host: Option<String>,
}

struct Flow<'a> {
    kind: &'a str,
    ends: [(&'a str, Option<u16>); 2],
    forth: (u64, u64),
    back: (u64, u64),
    times: (WallTime, WallTime),
    name: Option<&'a str>,
}

impl Group {
    /// Returns the bytes of both directions.
    pub fn bytes(&self) -> u64 {
        self.forth.1.saturating_add(self.back.1)
    }

    /// Returns the packets of both directions.
    pub fn packets(&self) -> u64 {
        self.forth.0.saturating_add(self.back.0)
    }

    /// Returns the time from the first to the last packet, in seconds.
    pub fn seconds(&self) -> f64 {
        self.times.1.since(self.times.0).as_secs_f64()
    }

    fn add(&mut self, flow: &Flow<'_>, turned: bool) {
        let (forth, back) = if turned { (flow.back, flow.forth) } else { (flow.forth, flow.back) };
        self.records += 1;
        for (sum, more) in [(&mut self.forth, forth), (&mut self.back, back)] {
            *sum = (sum.0.saturating_add(more.0), sum.1.saturating_add(more.1));
        }
        self.times = (self.times.0.min(flow.times.0), self.times.1.max(flow.times.1));
    }
}

impl Summary {
    /// Makes a summary without flows.
    pub fn new(by: By) -> Self {
        Self { by, groups: HashMap::new(), all: None }
    }

    /// Adds a record.
    pub fn add(&mut self, record: &FlowRecord) {
        let ends = record.endpoints().map(|(address, port)| (address.to_string(), port));
        let [forth, back] = [record.forth(), record.back()].map(|traffic| (traffic.packets, traffic.bytes));
        self.add_flow(&Flow {
            kind: &record.kind(),
            ends: ends.each_ref().map(|(address, port)| (address.as_str(), *port)),
            forth,
            back,
            times: (record.first(), record.last()),
            name: record.names().and_then(|names| {
                names.tls_sni.as_deref().or(names.http_host.as_deref()).or(names.dns_query.as_deref())
            }),
        });
    }

    /// Adds the flows of a file that this program has written, in CSV or JSON lines.
    ///
    /// # Errors
    /// Returns a [`ReadFlowsError`] with the number of the line that is not a flow.
    pub fn read(&mut self, format: FlowFormat, file: impl Read) -> Result<(), ReadFlowsError> {
        match format {
            FlowFormat::Csv => {
                let mut reader = csv::Reader::from_reader(file);
                let lines = reader.deserialize::<Columns>().enumerate();
                for (nth, columns) in lines {
                    let line = nth as u64 + 2;
                    let columns = columns.map_err(|error| wrong(line, &error))?;
                    self.add_columns(line, &columns)?;
                }
                Ok(())
            }
            FlowFormat::JsonLines => {
                let (mut reader, mut text) = (BufReader::new(file), String::new());
                for line in 1.. {
                    text.clear();
                    if (&mut reader).take(LINE_BYTES_MAX).read_line(&mut text)? == 0 {
                        break;
                    }
                    let columns: Columns = serde_json::from_str(&text).map_err(|error| wrong(line, &error))?;
                    self.add_columns(line, &columns)?;
                }
                Ok(())
            }
            _ => Err(ReadFlowsError::Format),
        }
    }

    fn add_columns(&mut self, line: u64, columns: &Columns) -> Result<(), ReadFlowsError> {
        let time = |text: &str| {
            let since =
                humantime::parse_rfc3339(text).ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
            let nanos = since.and_then(|since| u64::try_from(since.as_nanos()).ok());
            nanos.map(WallTime::from_nanos).ok_or_else(|| wrong(line, &format!("{text:?} is no time")))
        };
        self.add_flow(&Flow {
            kind: &columns.kind,
            ends: [
                (columns.source.as_deref().unwrap_or(NONE), columns.source_port),
                (columns.destination.as_deref().unwrap_or(NONE), columns.destination_port),
            ],
            forth: (columns.packets, columns.bytes),
            back: (columns.packets_back, columns.bytes_back),
            times: (time(&columns.first)?, time(&columns.last)?),
            name: columns.tls_sni.as_deref().or(columns.http_host.as_deref()).or(columns.dns_query.as_deref()),
        });
        Ok(())
    }

    fn add_flow(&mut self, flow: &Flow<'_>) {
        self.all.get_or_insert_with(|| Group::new(String::new(), None, flow)).add(flow, false);
        let [source, destination] = flow.ends;
        match self.by {
            By::Flow => {
                let ends = flow.ends.map(|end| end_of(flow.kind, end));
                let (low, high) = if ends[0] <= ends[1] { (&ends[0], &ends[1]) } else { (&ends[1], &ends[0]) };
                let key = format!("{} {low} {high}", flow.kind);
                self.add_to(key, flow.kind.to_owned(), Some(ends), flow, false);
            }
            By::Port => {
                let name = match destination.1.filter(|_| has_ports(flow.kind)) {
                    Some(port) => format!("{} {port}", flow.kind),
                    None => flow.kind.to_owned(),
                };
                self.add_to(name.clone(), name, None, flow, false);
            }
            By::Name => {
                let name = flow.name.unwrap_or(NONE).to_owned();
                self.add_to(name.clone(), name, None, flow, false);
            }
            By::Host | By::Net => {
                let name = |address: &str| if self.by == By::Net { net(address) } else { address.to_owned() };
                let (from, to) = (name(source.0), name(destination.0));
                if from != to {
                    self.add_to(to.clone(), to, None, flow, true);
                }
                self.add_to(from.clone(), from, None, flow, false);
            }
        }
    }

    fn add_to(&mut self, key: String, name: String, ends: Option<[String; 2]>, flow: &Flow<'_>, turned: bool) {
        let is_full = self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key);
        let (key, name, ends) = if is_full { (OTHERS.to_owned(), OTHERS.to_owned(), None) } else { (key, name, ends) };
        let group = self.groups.entry(key).or_insert_with(|| Group::new(name, ends.clone(), flow));
        let turned = turned || group.ends.is_some() && group.ends != ends;
        group.add(flow, turned);
    }

    /// Returns how flows are grouped.
    pub fn by(&self) -> By {
        self.by
    }

    /// Returns the sum of all flows, or `None` if there were no flows.
    pub fn all(&self) -> Option<&Group> {
        self.all.as_ref()
    }

    /// Returns the number of groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the groups with the most bytes.
    pub fn largest(self, most: usize) -> Vec<Group> {
        let mut groups: Vec<Group> = self.groups.into_values().collect();
        groups.sort_by(|one, other| {
            other
                .bytes()
                .cmp(&one.bytes())
                .then_with(|| (one.times, &one.name, &one.ends).cmp(&(other.times, &other.name, &other.ends)))
        });
        groups.truncate(most);
        groups
    }
}

impl Group {
    fn new(name: String, ends: Option<[String; 2]>, flow: &Flow<'_>) -> Self {
        Self { name, ends, records: 0, forth: (0, 0), back: (0, 0), times: flow.times }
    }
}

fn has_ports(kind: &str) -> bool {
    matches!(kind, "tcp" | "udp" | "sctp")
}

fn end_of(kind: &str, (address, port): (&str, Option<u16>)) -> String {
    match port.filter(|_| has_ports(kind)) {
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
        None => address.to_owned(),
    }
}

fn net(address: &str) -> String {
    match address.parse() {
        Ok(IpAddr::V4(address)) => {
            let bits = NET_BITS.0;
            format!("{}/{bits}", std::net::Ipv4Addr::from(u32::from(address) >> (32 - bits) << (32 - bits)))
        }
        Ok(IpAddr::V6(address)) => {
            let bits = NET_BITS.1;
            format!("{}/{bits}", std::net::Ipv6Addr::from(u128::from(address) >> (128 - bits) << (128 - bits)))
        }
        Err(_) => address.to_owned(),
    }
}

fn wrong(line: u64, why: &impl ToString) -> ReadFlowsError {
    ReadFlowsError::Line { line, why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "first,last,kind,protocol,source,source_port,destination,destination_port,packets,bytes,packets_back,bytes_back,dns_query,tls_sni,http_host\n";

    fn csv(rows: &[&str]) -> String {
        let time = |second: usize| format!("2026-01-01T09:00:0{second}.5Z");
        let lines = rows.iter().enumerate().map(|(nth, row)| format!("{},{},{row}\n", time(nth), time(nth + 1)));
        HEAD.to_owned() + &lines.collect::<String>()
    }

    fn summary(by: By, rows: &[&str]) -> Summary {
        let mut summary = Summary::new(by);
        summary.read(FlowFormat::Csv, csv(rows).as_bytes()).unwrap();
        summary
    }

    const ROWS: [&str; 4] = [
        "tcp,6,10.0.0.1,5,10.0.1.2,80,10,1000,5,500,,,a.example",
        "tcp,6,10.0.0.1,5,10.0.1.2,80,1,100,0,0,,b.example,",
        "tcp,6,10.0.1.2,80,10.0.0.1,5,2,20,1,7,,,",
        "udp,17,2001:db8:1:2::3,9,2001:db8:1:3::4,53,1,60,1,90,c.example,,",
    ];

    #[test]
    fn records_of_one_flow_are_joined() {
        let summary = summary(By::Flow, &ROWS);
        let all = summary.all().unwrap();
        assert_eq!((all.records, all.packets(), all.bytes(), all.seconds()), (4, 21, 1777, 4.0));
        let [tcp, udp] = &summary.largest(9)[..] else { panic!() };
        assert_eq!((tcp.records, tcp.forth, tcp.back, tcp.seconds()), (3, (12, 1107), (7, 520), 3.0));
        assert_eq!(tcp.ends.as_ref().unwrap(), &["10.0.0.1:5", "10.0.1.2:80"]);
        assert_eq!(udp.ends.as_ref().unwrap(), &["[2001:db8:1:2::3]:9", "[2001:db8:1:3::4]:53"]);
    }

    #[test]
    fn flows_are_added_up_by_what_they_have_in_common() {
        let of = |by| {
            let groups = summary(by, &ROWS).largest(9);
            groups.into_iter().map(|group| (group.name, group.records, group.forth.1, group.back.1)).collect::<Vec<_>>()
        };
        let row = |name: &str, records, forth, back| (name.to_owned(), records, forth, back);
        assert_eq!(of(By::Host)[..2], [row("10.0.0.1", 3, 1107, 520), row("10.0.1.2", 3, 520, 1107)]);
        assert_eq!(of(By::Net)[2..], [row("2001:db8:1::/48", 1, 60, 90)]);
        assert_eq!(of(By::Port), [row("tcp 80", 2, 1100, 500), row("udp 53", 1, 60, 90), row("tcp 5", 1, 20, 7)]);
        let names: Vec<_> = of(By::Name).into_iter().map(|group| group.0).collect();
        assert_eq!(names, ["a.example", "c.example", "b.example", "-"]);
    }

    #[test]
    fn the_largest_numbers_do_not_wrap() {
        let most = u64::MAX;
        let summary = summary(By::Flow, &[&format!("tcp,6,10.0.0.1,5,10.0.1.2,80,{most},{most},{most},{most},,,")]);
        let all = summary.all().unwrap();
        assert_eq!((all.packets(), all.bytes()), (most, most));
        assert_eq!(summary.largest(1)[0].bytes(), most);
    }

    #[test]
    fn other_files_are_refused_with_their_line() {
        let error = |format, text: &str| Summary::new(By::Flow).read(format, text.as_bytes()).unwrap_err().to_string();
        assert!(error(FlowFormat::Csv, "a,b\n1,2\n").starts_with("line 2 is no flow of steerage meter: "));
        assert!(error(FlowFormat::JsonLines, "{}\n").starts_with("line 1 is no flow"));
        let bad_time = csv(&ROWS[..1]).replace("2026-", "x");
        assert!(error(FlowFormat::Csv, &bad_time).ends_with("is no time"), "{}", error(FlowFormat::Csv, &bad_time));
        assert_eq!(error(FlowFormat::Ipfix, ""), "only .csv and .jsonl can be read again");
    }
}
