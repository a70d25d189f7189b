//! Filters: programs of classic BPF, as tcpdump compiles them from its expressions. For live interfaces they run in the kernel,
//! for frames of capture files here ([`FrameFilter`]).
//!
//! There is no compiler here. The language is libpcap's, and a second compiler that differs from it in details would
//! let wrong packets through without notice. So tcpdump itself compiles, now or earlier: the numbers that `tcpdump
//! -ddd` prints are a filter too. In both cases the program is checked by the kernel's rules before a socket or a frame meets
//! it.

mod check;
mod for_files;
mod numbers;
mod run;
mod tcpdump;

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};

use steerage::LinkType;

pub(crate) use for_files::{FileFilters, FrameKind};
pub use run::FrameFilter;

/// The longest text of a filter, in bytes: far more than the kernel's longest program takes as numbers (4096 lines of at
/// most 28 bytes are 112 KiB), and short enough for an argument of a program (128 KiB).
const TEXT_BYTES_MAX: usize = 120 << 10;

/// The longest program: the kernel's `BPF_MAXINSNS`, include/uapi/linux/bpf_common.h.
pub const INSTRUCTIONS_MAX: usize = 4096;

/// How much of a wrong text an error shows, in characters.
const SHOWN_CHARS_MAX: usize = 64;

/// One instruction of classic BPF, laid out as the kernel's `struct sock_filter`.
/// [`Filter`] has an example.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// How many instructions to skip if the comparison holds.
    pub jump_true: u8,
    /// How many if it doesn't.
    pub jump_false: u8,
    /// Its operand.
    pub operand: u32,
}

/// A compiled filter, which the kernel would take.
///
/// ```
/// use steerage::LinkType;
/// use steerage_device::filter::Filter;
///
/// // What tcpdump prints for `ip`. An expression such as `udp port 53` is compiled by tcpdump.
/// let filter = Filter::compile("4, 40 0 0 12, 21 0 1 2048, 6 0 0 262144, 6 0 0 0", None, LinkType::ETHERNET)?;
/// assert_eq!(filter.instructions()[1].operand, 0x0800);
/// # Ok::<(), steerage_device::filter::FilterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    instructions: Box<[Instruction]>,
}

impl Filter {
    /// The program, for `SO_ATTACH_FILTER`.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// A program that was compiled elsewhere.
    ///
    /// # Errors
    /// [`FilterError::Program`] for one that the kernel would refuse, by its rules: `bpf_check_classic` in
    /// net/core/filter.c.
    pub fn from_instructions(instructions: impl Into<Box<[Instruction]>>) -> Result<Self, FilterError> {
        let instructions = instructions.into();
        check::program(&instructions)?;
        Ok(Self { instructions })
    }

    /// Makes a filter of what a person writes, for frames that begin as `link` says:
    ///
    /// - `not port 22`: an expression of tcpdump's (pcap-filter(7)). The `tcpdump` of the `PATH` compiles it, for
    ///   `interface` if it is given and may be opened: only so does `vlan` find the tags that the kernel has taken out of
    ///   the frames by the time a filter sees them.
    /// - The numbers that `tcpdump -ddd` prints, on lines or with commas between them. Nothing is run.
    /// - `@FILE`: either of the two, in a file.
    ///
    /// # Errors
    /// [`FilterError`]; [`is_mistake`](FilterError::is_mistake) tells what is written wrong from what cannot be done.
    ///
    /// ```
    /// use steerage::LinkType;
    /// use steerage_device::filter::Filter;
    ///
    /// // IPv4: the bytes 12 and 13 of an Ethernet frame are 0x0800.
    /// let filter = Filter::compile("4, 40 0 0 12, 21 0 1 2048, 6 0 0 262144, 6 0 0 0", None, LinkType::ETHERNET)?;
    /// assert_eq!(filter.instructions().len(), 4);
    /// # Ok::<(), steerage_device::filter::FilterError>(())
    /// ```
    pub fn compile(text: &str, interface: Option<&str>, link: LinkType) -> Result<Self, FilterError> {
        let text = written(text)?;
        if numbers::looks_like(&text) { text.parse() } else { tcpdump::compile(&text, interface, link) }
    }

    /// [`compile`](Self::compile) for an interface of this machine, by the link type that the interface has.
    /// [`AfPacketOptions::filtered`](crate::af_packet::AfPacketOptions::filtered) calls it.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile). An interface that does not exist is not an error yet.
    pub fn for_interface(text: &str, interface: &str) -> Result<Self, FilterError> {
        Self::compile(text, Some(interface), link_type_of(interface))
    }
}

/// The types of interfaces whose frames begin with an Ethernet header: `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`,
/// linux/if_arp.h.
const ETHERNET: [u32; 2] = [1, 772];

/// The link type of an interface: Ethernet, or raw IP (tunnels). Interfaces with other headers cannot have a filter, so
/// a wrong answer for them lets no wrong frames through.
fn link_type_of(interface: &str) -> LinkType {
    let kind = fs::read_to_string(format!("/sys/class/net/{interface}/type")).ok();
    match kind.and_then(|kind| kind.trim().parse().ok()) {
        Some(kind) if !ETHERNET.contains(&kind) => LinkType::RAW,
        _ => LinkType::ETHERNET,
    }
}

/// The filter that `text` is or names: `@FILE` is what is in that file.
fn written(text: &str) -> Result<Cow<'_, str>, FilterError> {
    let text = match text.trim_start().strip_prefix('@') {
        Some(path) => read(path).map_err(|cause| FilterError::File { path: path.to_owned(), cause })?.into(),
        None => Cow::from(text),
    };
    if text.len() > TEXT_BYTES_MAX {
        let what = format!("it is longer than {} KiB: use a shorter one", TEXT_BYTES_MAX >> 10);
        return Err(FilterError::Numbers(what));
    }
    Ok(text)
}

/// Reads a file that may be anything: no more of it than a filter can be.
fn read(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(TEXT_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Why there is no filter: one line that says what to do.
///
/// ```
/// use steerage::LinkType;
/// use steerage_device::filter::Filter;
///
/// let error = Filter::compile("2, 6 0 0 0", None, LinkType::ETHERNET).unwrap_err();
/// assert!(error.is_mistake());
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum FilterError {
    /// The numbers are not those of a program: what is wrong.
    Numbers(String),
    /// The kernel would refuse the program.
    Program {
        /// The instruction, from 0.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// tcpdump refuses the expression.
    Expression {
        /// Its beginning.
        text: String,
        /// What tcpdump said.
        said: String,
    },
    /// Frames of this link type are not filtered.
    Link(LinkType),
    /// The program asks for what only the kernel knows of a packet.
    KernelOnly {
        /// The instruction, from 0.
        at: usize,
    },
    /// The file with the filter cannot be read.
    File {
        /// Its name.
        path: String,
        /// Why not.
        cause: io::Error,
    },
    /// There is no tcpdump.
    NoTcpdump,
    /// tcpdump could not be run to its end.
    Tcpdump {
        /// What was tried: completes "cannot ...".
        operation: &'static str,
        /// Why not.
        cause: io::Error,
    },
}

impl FilterError {
    /// Whether the filter is written wrong, rather than something missing.
    pub fn is_mistake(&self) -> bool {
        matches!(self, Self::Numbers(_) | Self::Program { .. } | Self::Expression { .. } | Self::KernelOnly { .. })
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbers(what) => write!(f, "the filter is not what `tcpdump -ddd` prints: {what}"),
            Self::Program { at, what } => {
                write!(
                    f,
                    "the kernel would refuse the filter: its instruction {at} {what}; have tcpdump -ddd print it anew"
                )
            }
            Self::Expression { text, said } => {
                write!(f, "tcpdump refuses the filter `{text}`: {said}; man pcap-filter has the language")
            }
            Self::Link(link) => write!(f, "frames of link type {} are not filtered: leave the filter out", link.0),
            Self::KernelOnly { at } => write!(
                f,
                "instruction {at} of the filter asks for what only the kernel knows of a packet: for capture files, compile it \
                 with tcpdump -r FILE -ddd"
            ),
            Self::File { path, cause } => write!(f, "cannot read the filter in {}: {cause}", path.escape_debug()),
            Self::NoTcpdump => f.write_str(
                "there is no tcpdump to compile the filter: install the package tcpdump, or give the numbers that \
                 `tcpdump -ddd` prints for it on another machine",
            ),
            Self::Tcpdump { operation, cause } => write!(
                f,
                "cannot {operation} to compile the filter: {cause}; give the numbers that `tcpdump -ddd` prints instead"
            ),
        }
    }
}

impl std::error::Error for FilterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { cause, .. } | Self::Tcpdump { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// The beginning of a text from elsewhere, on one line.
fn shown(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push_str("...");
    }
    shown
}
