use std::io;

use steerage::CpuMask;
use steerage::topology::Topology;
use steerage_device::af_xdp::flow_dissector::{self, FlowDissector};
use steerage_device::rules::{self, Rule};
use steerage_netlink::ethtool::Ethtool;

use crate::error::TuneError;
use crate::knob::{CARDS, DISSECTOR, FEATURES, Knob, NO_DISSECTOR, NO_RULE, OUR_DISSECTOR, RULES};
use crate::root::Root;

const CPUS_UNKNOWN: usize = 1024;

/// Reads and writes the knobs of a machine.
#[derive(Debug)]
pub struct Machine {
    root: Root,
    cards: Cards,
    topology: Topology,
}

#[derive(Debug)]
enum Cards {
    /// `ethtool` is `None` if the kernel has no ethtool over netlink. `dissector` is `None` if this
    /// process may not load or find the BPF program.
    Kernel { ethtool: Option<Ethtool>, dissector: Option<FlowDissector> },
    /// Tests keep the values of ethtool in files.
    Files,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// Returns this machine, with the interfaces of this thread's network namespace.
    pub fn new() -> Self {
        let dissector = FlowDissector::find().ok().flatten();
        let cards = Cards::Kernel { ethtool: Ethtool::open().ok(), dissector };
        Self { root: Root::default(), cards, topology: Topology::read() }
    }

    /// Returns a fake machine for tests. `root` also has files for the values of ethtool.
    pub fn below(root: Root) -> Self {
        let topology = Topology::below(root.directory(), None);
        Self { root, cards: Cards::Files, topology }
    }

    /// Loads the BPF program of the flow dissector, for which the process needs capabilities that
    /// it drops later. If the BPF program cannot be loaded, plans omit the stage of the flow
    /// dissector.
    pub fn load_dissector(&mut self) {
        if let Cards::Kernel { dissector: dissector @ None, .. } = &mut self.cards {
            *dissector = FlowDissector::load().ok();
        }
    }

    pub(crate) fn has_dissector(&self) -> bool {
        match &self.cards {
            Cards::Kernel { dissector, .. } => dissector.is_some(),
            Cards::Files => self.root.exists(DISSECTOR),
        }
    }

    /// Returns the root directory of the machine's files.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the CPUs as of the creation or the last [`refresh_cpus`](Self::refresh_cpus).
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Reads again which CPUs are online.
    pub fn refresh_cpus(&mut self) {
        self.topology = match self.cards {
            Cards::Kernel { .. } => Topology::read(),
            Cards::Files => Topology::below(self.root.directory(), None),
        };
    }

    /// Returns the number of bits in a CPU mask of this machine.
    pub fn nr_cpu_ids(&self) -> usize {
        self.topology.nr_cpu_ids().unwrap_or(CPUS_UNKNOWN)
    }

    /// Returns true if the interface exists.
    pub fn has(&self, interface: &str) -> bool {
        !interface.is_empty()
            && !interface.contains('/')
            && self.root.exists(&format!("/sys/class/net/{interface}/ifindex"))
    }

    /// Returns `count` free locations in a card's rule table, the highest first: the card applies
    /// the matching rule at the lowest location, so the rules of other programs keep their effect.
    pub(crate) fn free_rules(&self, interface: &str, count: usize) -> io::Result<Vec<u32>> {
        let free: Vec<u32> = match self.cards {
            Cards::Kernel { .. } => {
                let table = rules::table(interface)?;
                (0..table.size).rev().filter(|location| !table.used.contains(location)).take(count).collect()
            }
            Cards::Files => {
                let directory = format!("{CARDS}{interface}/{RULES}");
                let is_free =
                    |name: &String| self.root.read(&format!("{directory}{name}")).is_ok_and(|it| it == NO_RULE);
                let free = self.root.names(&directory).into_iter().rev().filter(is_free);
                free.take(count).filter_map(|name| name.parse().ok()).collect()
            }
        };
        match free.len() {
            found if found == count && count > 0 => Ok(free),
            _ => Err(io::Error::new(io::ErrorKind::StorageFull, "the card has no room for more rules")),
        }
    }

    /// Reads the present value of a knob.
    ///
    /// # Errors
    /// Returns the kernel's error, for example if the knob does not exist.
    pub fn read(&mut self, knob: &Knob) -> io::Result<String> {
        match (&mut self.cards, knob.of_card()) {
            (Cards::Kernel { dissector, .. }, None) if knob.0 == DISSECTOR => {
                let ours = dissector.as_ref().map(FlowDissector::id);
                Ok(match flow_dissector::attached()? {
                    None => NO_DISSECTOR.to_owned(),
                    Some(id) if Some(id) == ours => OUR_DISSECTOR.to_owned(),
                    Some(id) => format!("program {id}"),
                })
            }
            (Cards::Kernel { ethtool, .. }, Some((interface, value))) => {
                value_of(ethtool.as_mut().ok_or(io::ErrorKind::Unsupported)?, interface, value)
            }
            _ => self.root.read(&knob.0),
        }
    }

    /// Sets a knob to a value.
    ///
    /// # Errors
    /// Fails if the kernel refuses the value, or if this process may not write it.
    pub fn write(&mut self, knob: &Knob, value: &str) -> Result<(), TuneError> {
        let written = match (&mut self.cards, knob.of_card()) {
            (Cards::Kernel { dissector, .. }, None) if knob.0 == DISSECTOR => {
                let dissector = dissector.as_ref().ok_or_else(|| io::ErrorKind::Unsupported.into());
                dissector.and_then(|ours| if value == OUR_DISSECTOR { ours.attach() } else { ours.detach() })
            }
            (Cards::Kernel { ethtool, .. }, Some((interface, name))) => {
                let ethtool = ethtool.as_mut().ok_or_else(|| io::ErrorKind::Unsupported.into());
                ethtool.and_then(|ethtool| set_value(ethtool, interface, name, value))
            }
            _ => self.root.write(&knob.0, value),
        };
        written.map_err(|error| TuneError::Write { knob: knob.clone(), value: value.to_owned(), error })
    }

    /// Returns true if both values of the knob are the same. Offline CPUs in masks do not count,
    /// because the kernel removes them.
    pub fn is_same(&self, knob: &Knob, now: &str, wanted: &str) -> bool {
        if same(now, wanted) {
            return true;
        }
        let mask = |text| CpuMask::parse_bitmap(text, self.nr_cpu_ids()).ok();
        let masks = mask(now).zip(mask(wanted)).filter(|_| knob.is_mask());
        let online = self.topology.online();
        masks.is_some_and(|(now, wanted)| !now.is_empty() && now.and(online) == wanted.and(online))
    }
}

/// Returns true if two texts are the same value: CPU masks may differ in leading zeros and commas.
fn same(one: &str, other: &str) -> bool {
    fn digits(text: &str) -> impl Iterator<Item = char> + '_ {
        text.trim().chars().filter(|c| *c != ',').skip_while(|c| *c == '0')
    }
    digits(one).eq(digits(other))
}

fn value_of(ethtool: &mut Ethtool, interface: &str, name: &str) -> io::Result<String> {
    let number = match name {
        "channels/combined" => ethtool.channels(interface)?.combined,
        "channels/rx" => ethtool.channels(interface)?.rx,
        "channels/rx_max" => ethtool.channels(interface)?.rx_max,
        "channels/combined_max" => ethtool.channels(interface)?.combined_max,
        "rings/rx" => ethtool.rings(interface)?.rx,
        "rings/rx_max" => ethtool.rings(interface)?.rx_max,
        "rings/tx" => ethtool.rings(interface)?.tx,
        "rings/tx_max" => ethtool.rings(interface)?.tx_max,
        "rss/table" => return Ok(joined(ethtool.rss(interface)?.table.iter().map(u32::to_string), " ")),
        _ if name.starts_with(FEATURES) => {
            let is_on = ethtool.features(interface)?.is_on(&name[FEATURES.len()..]);
            return Ok(if is_on { "on" } else { "off" }.to_owned());
        }
        _ if name.starts_with(RULES) => {
            let rule = rules::read(interface, location(name)?)?;
            return Ok(rule.map_or_else(|| NO_RULE.to_owned(), |rule| rule.to_string()));
        }
        "rss/key" => return Ok(joined(ethtool.rss(interface)?.key.iter().map(|byte| format!("{byte:02x}")), ":")),
        _ => return Err(io::ErrorKind::NotFound.into()),
    };
    // ethtool reports 0 if the card does not have this setting.
    if number == 0 { Err(io::ErrorKind::Unsupported.into()) } else { Ok(number.to_string()) }
}

fn set_value(ethtool: &mut Ethtool, interface: &str, name: &str, value: &str) -> io::Result<()> {
    let number = || value.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    match name {
        "channels/combined" => ethtool.set_channels(interface, None, None, Some(number()?)),
        _ if name.starts_with(FEATURES) => ethtool.set_feature(interface, &name[FEATURES.len()..], value == "on"),
        "channels/rx" => ethtool.set_channels(interface, Some(number()?), None, None),
        _ if name.starts_with(RULES) => match value {
            NO_RULE => rules::delete(interface, location(name)?),
            rule => {
                let rule = rule.parse::<Rule>().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                rules::insert(interface, location(name)?, &rule)
            }
        },
        "rings/rx" => ethtool.set_rings(interface, Some(number()?), None),
        "rings/tx" => ethtool.set_rings(interface, None, Some(number()?)),
        "rss/table" => {
            let table: Result<Vec<u32>, _> = value.split(' ').map(str::parse).collect();
            ethtool.set_rss_table(interface, &table.map_err(|_| io::ErrorKind::InvalidInput)?)
        }
        "rss/key" => {
            let key: Result<Vec<u8>, _> = value.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
            ethtool.set_rss_key(interface, &key.map_err(|_| io::ErrorKind::InvalidInput)?)
        }
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn location(name: &str) -> io::Result<u32> {
    name[RULES.len()..].parse().map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn joined(parts: impl Iterator<Item = String>, between: &str) -> String {
    parts.collect::<Vec<_>>().join(between)
}
