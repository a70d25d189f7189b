//! Attaches steerage's XDP program to its interface, in native or generic mode, with or without the
//! network card's metadata. A program of other software is replaced only on the user's request. In
//! a dispatcher of libxdp, steerage's program becomes a component.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use steerage::DeviceError;
use steerage_netlink::{self as netlink, Rtnetlink, XdpPlace, XdpProgram, netdev};

use super::assembler::Instruction;
use super::attachment::{Attachment, ByLink, InDispatcher};
use super::dispatcher::{self, Added, Addition, PRIORITY_DEFAULT};
use super::interface;
use super::metadata::Functions;
use super::program::{Maps, Ports, program};
use super::sys::{self, Link, Map, Program, ProgramInfo, program_of, with_log};
use super::take::Take;
use super::waits::Waits;
use super::{AfXdpOptions, Mode, PERMISSION};
use crate::device_hash::DeviceHash;

#[cfg(test)]
mod tests;

const HASH_FUNCTION: &str = "bpf_xdp_metadata_rx_hash";
const TIME_FUNCTION: &str = "bpf_xdp_metadata_rx_timestamp";
const TAG_FUNCTION: &str = "bpf_xdp_metadata_rx_vlan_tag";
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

#[derive(Debug)]
pub(super) struct Attached {
    pub(super) sockets: Map,
    pub(super) counters: Map,
    pub(super) functions: Functions,
    pub(super) mode: sys::Mode,
    /// Maps the interface of each later port of the bond to the key of the port's first queue.
    /// `None` if the program does not run in the ports of a bond.
    pub(super) new_ports: Option<Map>,
    /// Dropping this value detaches the program.
    pub(super) attachment: Attachment,
}

/// Returns the attached program, and notes for the user.
pub(super) fn attach(
    options: &AfXdpOptions,
    take: &Take,
    interface: &netlink::Link,
    queues: u32,
    ports: &Ports,
    (wants_hash, is_held): (bool, bool),
) -> Result<(Attached, Vec<String>), DeviceError> {
    let cannot = |operation| move |cause| options.error(operation, cause).advise(PERMISSION);
    let queues = queues.max(ports.places * ports.queues);
    let sockets = Map::of_sockets(queues).map_err(cannot("make a map of sockets"))?;
    let counters = Map::of_counters(2 * queues).map_err(cannot("make a map of counters"))?;
    let new_ports = (ports.places > 0).then(|| Map::of_numbers(ports.places));
    let new_ports = new_ports.transpose().map_err(cannot("make a map of ports"))?;
    let maps = (&sockets, &counters, new_ports.as_ref());
    let attempt = Attempt { options, take, interface, ports, wants_hash, is_held, maps };
    let mut notes = Vec::new();
    let (attachment, mode, functions) = match attempt.share(&mut notes)? {
        Some((added, mode)) => (Attachment::Component(InDispatcher::new(added)), mode, Functions::default()),
        None => attempt.by_link(&mut notes)?,
    };
    let new_ports = new_ports.filter(|_| mode == sys::Mode::Native);
    Ok((Attached { sockets, counters, functions, mode, new_ports, attachment }, notes))
}

fn modes(wanted: Mode) -> &'static [sys::Mode] {
    match wanted {
        Mode::Auto => &[sys::Mode::Native, sys::Mode::Skb],
        Mode::Native | Mode::Copy => &[sys::Mode::Native],
        Mode::Skb => &[sys::Mode::Skb],
    }
}

enum Refused {
    /// An error that would also occur in the other XDP modes.
    For(DeviceError),
    Mode(io::Error),
}

struct Attempt<'a> {
    options: &'a AfXdpOptions,
    take: &'a Take,
    interface: &'a netlink::Link,
    ports: &'a Ports,
    wants_hash: bool,
    /// True if this process already takes packets from the interface.
    is_held: bool,
    maps: (&'a Map, &'a Map, Option<&'a Map>),
}

impl Attempt<'_> {
    /// Attaches the program by a BPF link, in the first XDP mode that works.
    fn by_link(&self, notes: &mut Vec<String>) -> Result<(Attachment, sys::Mode, Functions), DeviceError> {
        let mut refused = None;
        for mode in modes(self.options.mode) {
            notes.clear();
            match self.in_mode(*mode, notes) {
                Ok((by_link, functions)) => {
                    if let Some(error) = refused {
                        let name = &self.options.interface;
                        notes.push(format!("{name}: no native XDP ({error}); it goes on in skb mode"));
                    }
                    return Ok((Attachment::Link(by_link), *mode, functions));
                }
                Err(Refused::For(error)) => return Err(error),
                Err(Refused::Mode(error)) => refused = Some(error),
            }
        }
        let cause = refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
        let error = self.options.error("attach an XDP program", cause);
        Err(error.advise("try mode=skb, or listen instead: af_packet:NAME"))
    }

    /// Attaches the program in one mode. The program uses the card's hash if the hash is wanted and
    /// available, and the card's time and VLAN tag if the driver reports them.
    fn in_mode(&self, mode: sys::Mode, notes: &mut Vec<String>) -> Result<(ByLink, Functions), Refused> {
        // Kernels before 6.8 do not report which metadata a driver supports.
        let support = netdev::xdp_support(self.interface.index).unwrap_or_default();
        let is_wanted = Functions {
            hash: self.wants_hash && support.hash != Some(false),
            time: support.time == Some(true),
            tag: support.vlan_tag == Some(true),
        };
        let mut note = |why: &dyn fmt::Display| {
            if self.wants_hash && self.options.device_hash == DeviceHash::Always {
                let name = &self.options.interface;
                notes.push(format!("{name}: no hash by the device ({why}); flows are told apart by ours"));
            }
        };
        match self.with_metadata(mode, is_wanted) {
            Ok((by_link, functions)) => {
                if functions.hash.is_none() {
                    note(&NOT_BY_DRIVER);
                }
                return Ok((by_link, functions));
            }
            Err(Refused::For(error)) => return Err(Refused::For(error)),
            Err(Refused::Mode(why)) => note(&why),
        }
        let functions = Functions::default();
        let program = self.load(mode, functions).map_err(|error| Refused::For(self.load_error(error)))?;
        self.attach_loaded(program, mode, functions).map(|by_link| (by_link, functions))
    }

    fn with_metadata(&self, mode: sys::Mode, is_wanted: Functions<bool>) -> Result<(ByLink, Functions), Refused> {
        if mode == sys::Mode::Skb {
            return Err(Refused::Mode(io::Error::other("in skb mode there is none")));
        }
        if !is_wanted.any() {
            return Err(Refused::Mode(io::Error::other(NOT_BY_DRIVER)));
        }
        let types = std::fs::read(KERNEL_TYPES).map_err(Refused::Mode)?;
        let function = |is_wanted: bool, name| is_wanted.then(|| function_number(&types, name)).flatten();
        let functions = Functions {
            hash: function(is_wanted.hash, HASH_FUNCTION),
            time: function(is_wanted.time, TIME_FUNCTION),
            tag: function(is_wanted.tag, TAG_FUNCTION),
        };
        if !functions.any() {
            return Err(Refused::Mode(io::Error::other("this kernel does not report it")));
        }
        // If the driver does not report metadata, the kernel rejects the program as invalid.
        let program = self.load(mode, functions).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Refused::For(self.load_error(error)),
            _ => Refused::Mode(io::Error::other(NOT_BY_DRIVER)),
        })?;
        self.attach_loaded(program, mode, functions).map(|by_link| (by_link, functions))
    }

    /// Adds the program to the interface's dispatcher. If no program is attached, a priority in the
    /// options creates a new dispatcher. Returns `None` if the program should be attached without a
    /// dispatcher.
    fn share(&self, notes: &mut Vec<String>) -> Result<Option<(Added, sys::Mode)>, DeviceError> {
        let there = self.interface.programs.first();
        let found = there.and_then(|there| Some((there.place, ProgramInfo::of_id(there.id).ok()?)));
        let its_place = match found {
            Some((place, program)) if dispatcher::is_one(&program.name) && !self.options.replace => Some(place),
            None if there.is_none() && self.options.priority.is_some() => None,
            _ => return Ok(None),
        };
        let mut refused = io::Error::other("its dispatcher of libxdp is attached in another mode");
        let is_possible = |mode: &&sys::Mode| its_place.is_none_or(|place| place == place_of(**mode));
        for mode in modes(self.options.mode).iter().filter(is_possible) {
            match self.add(*mode) {
                Ok(added) => {
                    if self.wants_hash {
                        let name = &self.options.interface;
                        notes.push(format!(
                            "{name}: the hash of the card is not available in a dispatcher of libxdp; steerage computes its own hash"
                        ));
                    }
                    return Ok(Some((added, *mode)));
                }
                Err(Refused::For(error)) => return Err(error),
                Err(Refused::Mode(error)) => refused = error,
            }
        }
        const ADVICE: &str = "`xdp-loader status` lists its programs; without the option mode=, it takes any mode";
        Err(self.options.error("add a program to the dispatcher of libxdp", refused).advise(ADVICE))
    }

    fn add(&self, mode: sys::Mode) -> Result<Added, Refused> {
        let instructions =
            self.instructions(mode, Functions::default()).map_err(|error| Refused::For(self.load_error(error)))?;
        let priority = self.options.priority.unwrap_or(PRIORITY_DEFAULT);
        let mut waits = Waits::new();
        loop {
            let addition = dispatcher::add(self.interface.index, place_of(mode), priority, &instructions);
            match addition.map_err(Refused::Mode)? {
                Addition::Done(added) => return Ok(added),
                // The attached program may belong to a process that has just ended. The kernel
                // removes the program of an ended process a little later.
                Addition::OccupiedBy(_) if !waits.are_over() && !self.is_held => waits.sleep(),
                Addition::OccupiedBy(id) => {
                    let there = ProgramInfo { id, name: sys::NAME.to_owned(), map: None };
                    return Err(Refused::For(self.occupied_by(&there)));
                }
            }
        }
    }

    fn instructions(&self, mode: sys::Mode, functions: Functions) -> io::Result<Vec<Instruction>> {
        let number = |map: &Map| map.as_fd().as_raw_fd();
        let (sockets, counters, new_ports) = self.maps;
        let (sockets, counters, new_ports) = (number(sockets), number(counters), new_ports.map(number));
        // In skb mode, a program sees the frames of all ports as frames of the bond.
        let no_ports = Ports::default();
        let ports = if mode == sys::Mode::Native { self.ports } else { &no_ports };
        program(self.take, Maps { sockets, ports, new_ports, counters, functions })
            .ok_or_else(|| io::Error::other("what to take is too long for a program"))
    }

    fn load(&self, mode: sys::Mode, functions: Functions) -> io::Result<Program> {
        let instructions = self.instructions(mode, functions)?;
        let bound_to = functions.any().then_some(self.interface.index);
        with_log(|log| match Program::load(sys::NAME, &instructions, bound_to, true, log) {
            // Kernels before 5.18 cannot load a program with support for frames longer than a chunk.
            Err(error) if bound_to.is_none() && error.raw_os_error() == Some(libc::EINVAL) => {
                Program::load(sys::NAME, &instructions, bound_to, false, &mut []).map_err(|_| error)
            }
            loaded => loaded,
        })
    }

    fn load_error(&self, cause: io::Error) -> DeviceError {
        self.options.error("load an XDP program", cause).advise(PERMISSION)
    }

    /// Attaches a loaded program. Also loads a copy of the program while the process has its
    /// privileges, because a driver may lose its program.
    fn attach_loaded(&self, program: Program, mode: sys::Mode, functions: Functions) -> Result<ByLink, Refused> {
        let link = self.attach(&program, mode)?;
        let copy = (mode == sys::Mode::Native).then(|| self.load(mode, functions).ok()).flatten();
        Ok(ByLink::new(link, copy.map(|copy| [program, copy])))
    }

    fn attach(&self, program: &Program, mode: sys::Mode) -> Result<Link, Refused> {
        let mut waits = Waits::new();
        loop {
            let error = match program.attach(self.interface.index, mode) {
                Ok(link) => return Ok(link),
                Err(error) => error,
            };
            if !matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) {
                return Err(Refused::Mode(error));
            }
            let there = interface::look(&self.options.interface).ok().and_then(|link| link.programs.first().copied());
            let there = there.and_then(|there| Some((there, ProgramInfo::of_id(there.id).ok()?)));
            let ours = there.as_ref().is_none_or(|(_, program)| program.is_ours());
            match there {
                _ if waits.are_over() || ours && self.is_held => {
                    return Err(Refused::For(self.occupied(there, error)));
                }
                // The kernel removes steerage's old program when the process of that program ends.
                // An old program that stays attached belongs to a living process, which owns the
                // queues.
                _ if ours => {}
                Some((there, _)) if self.options.replace => self.take_away(there).map_err(Refused::For)?,
                _ => return Err(Refused::For(self.occupied(there, error))),
            }
            waits.sleep();
        }
    }

    fn take_away(&self, there: XdpProgram) -> Result<(), DeviceError> {
        let interface = self.interface.index;
        let taken = match sys::link_of(there.id, interface) {
            Ok(Some(link)) => link.detach(),
            Ok(None) => program_of(there.id).and_then(|program| {
                Rtnetlink::open()?.exchange_xdp_program(interface, there.place, Some(program.as_fd()), None)
            }),
            Err(error) => Err(error),
        };
        taken.map_err(|error| self.options.error("take the XDP program away that is there", error).advise(PERMISSION))
    }

    fn occupied(&self, there: Option<(XdpProgram, ProgramInfo)>, error: io::Error) -> DeviceError {
        match there {
            Some((_, there)) => self.occupied_by(&there),
            None => self.options.error("attach an XDP program", error),
        }
    }

    fn occupied_by(&self, there: &ProgramInfo) -> DeviceError {
        let name = &self.options.interface;
        let replace = if self.options.replace { AGAIN } else { REPLACE };
        let (whose, advice) = match there.is_ours() {
            true if self.is_held => ("this program".to_owned(), ONCE),
            true => ("another steerage".to_owned(), "stop that first"),
            false if there.name.is_empty() => ("a program without a name".to_owned(), replace),
            false => (format!("`{}`", there.name), replace),
        };
        let kind = if there.is_ours() { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
        let cause = io::Error::new(kind, format!("{whose} has {name} already (XDP program {})", there.id));
        self.options.error("attach an XDP program", cause).advise(advice)
    }
}

fn place_of(mode: sys::Mode) -> XdpPlace {
    match mode {
        sys::Mode::Native => XdpPlace::Driver,
        sys::Mode::Skb => XdpPlace::Generic,
    }
}

const NOT_BY_DRIVER: &str = "its driver does not report it";
const REPLACE: &str = "load it with xdp-loader to share the interface, or stop it, or say --replace to take its place";
const ONCE: &str = "open the interface once, with all queues that you need, or drop the first input first";
const AGAIN: &str = "it was taken away, and something attaches it again: stop that first";

/// Reads the number of a function in BTF (Documentation/bpf/btf.rst of the kernel).
fn function_number(types: &[u8], name: &str) -> Option<u32> {
    const FUNCTION: u32 = 12;
    let word = |at: usize| types.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes);
    let header = word(4)? as usize;
    let mut at = header + word(8)? as usize;
    let end = at + word(12)? as usize;
    let names = header + word(16)? as usize;
    let mut number = 0;
    while at < end {
        number += 1;
        let (name_at, info) = (word(at)? as usize, word(at + 4)?);
        let (kind, members) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        if kind == FUNCTION {
            let its = types.get(names + name_at..)?;
            if its.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0)) {
                return Some(number);
            }
        }
        at += 12
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => members * 12,
                6 | 13 => members * 8,
                _ => 0,
            };
    }
    None
}
