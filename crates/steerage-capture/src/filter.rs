//! Filters: programs of classic BPF, as tcpdump compiles them. The kernel runs the filters of live
//! interfaces, and this process runs the filters of capture files ([`FrameFilter`]).
//!
//! This crate has no compiler for libpcap's filter language: a second compiler might differ
//! slightly, and its filters would pass wrong packets unnoticed. Therefore tcpdump compiles each
//! filter expression. The user may also compile an expression in advance, and give the numbers that
//! `tcpdump -ddd` prints. Before this crate runs a filter program, it checks the program by the
//! kernel's rules.

mod check;
mod for_files;
mod kinds;
mod numbers;
mod operation;
mod run;
mod tcpdump;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};

use steerage::LinkType;

pub(crate) use for_files::FileFilters;
pub(crate) use kinds::FrameKind;
pub use run::FrameFilter;

/// The maximum number of bytes in a filter's text. The kernel's longest filter program, written as
/// numbers (4096 lines of at most 28 bytes), is shorter than this limit. The longest possible
/// argument of a command (128 KiB) is longer than this limit.
const TEXT_BYTES_MAX: usize = 120 << 10;

/// The maximum number of instructions in a filter program: `BPF_MAXINSNS` of linux/bpf_common.h.
pub const INSTRUCTIONS_MAX: usize = 4096;

const SHOWN_CHARS_MAX: usize = 64;

/// One instruction of classic BPF, with the layout of the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The instruction's operation code.
    pub code: u16,
    /// The number of instructions to skip if the comparison is true.
    pub jump_true: u8,
    /// The number of instructions to skip if the comparison is false.
    pub jump_false: u8,
    /// The instruction's operand.
    pub operand: u32,
}

/// A compiled filter that the kernel accepts.
///
/// ```
/// use steerage::LinkType;
/// use steerage_capture::filter::Filter;
///
/// // What tcpdump prints for `ip`. An expression such as `udp port 53` is compiled by tcpdump.
/// let filter = Filter::compile("4, 40 0 0 12, 21 0 1 2048, 6 0 0 262144, 6 0 0 0", None, LinkType::ETHERNET)?;
/// assert_eq!(filter.instructions()[1].operand, 0x0800);
/// # Ok::<(), steerage_capture::filter::FilterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    instructions: Box<[Instruction]>,
}

impl Filter {
    /// Returns the filter program, for the socket option `SO_ATTACH_FILTER`.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Makes a filter from a compiled program.
    ///
    /// # Errors
    /// [`FilterError::Program`] if the program violates the rules of `bpf_check_classic` in
    /// net/core/filter.c.
    pub fn from_instructions(instructions: impl Into<Box<[Instruction]>>) -> Result<Self, FilterError> {
        let instructions = instructions.into();
        check::program(&instructions)?;
        Ok(Self { instructions })
    }

    /// Makes a filter from the text of a user, for frames whose first header has the type `link`.
    /// The text of a filter has one of three forms:
    ///
    /// - `not port 22`: an expression (pcap-filter(7)), which the `tcpdump` in the `PATH` compiles,
    ///   for `interface` if it is given and may be opened. The keyword `vlan` matches live frames
    ///   only if `interface` is given, because the kernel removes VLAN tags before the filter runs.
    /// - The numbers that `tcpdump -ddd` prints, on separate lines or with commas between them. For
    ///   a filter in numbers, no tcpdump is started.
    /// - `@FILE`: a file that contains an expression or such numbers.
    ///
    /// # Errors
    /// [`FilterError`], whose function [`is_mistake`](FilterError::is_mistake) returns true if the
    /// filter itself is wrong.
    ///
    /// ```
    /// use steerage::LinkType;
    /// use steerage_capture::filter::Filter;
    ///
    /// // IPv4: the bytes 12 and 13 of an Ethernet frame are 0x0800.
    /// let filter = Filter::compile("4, 40 0 0 12, 21 0 1 2048, 6 0 0 262144, 6 0 0 0", None, LinkType::ETHERNET)?;
    /// assert_eq!(filter.instructions().len(), 4);
    /// # Ok::<(), steerage_capture::filter::FilterError>(())
    /// ```
    pub fn compile(text: &str, interface: Option<&str>, link: LinkType) -> Result<Self, FilterError> {
        let text = written(text)?;
        if numbers::looks_like(&text) { text.parse() } else { tcpdump::compile(&text, interface, link) }
    }
}

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

/// Reads a filter file, which may also be a pipe or a device without an end.
fn read(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(TEXT_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// The reason why a filter cannot be made. The error message is one line that also says what to do.
///
/// ```
/// use steerage::LinkType;
/// use steerage_capture::filter::Filter;
///
/// let error = Filter::compile("2, 6 0 0 0", None, LinkType::ETHERNET).unwrap_err();
/// assert!(error.is_mistake());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The numbers are not a BPF program. The text contains the reason.
    #[error("the filter is not what `tcpdump -ddd` prints: {0}")]
    Numbers(String),
    /// The kernel would reject the filter program.
    #[error("the kernel would refuse the filter: its instruction {at} {what}; have tcpdump -ddd print it anew")]
    Program {
        /// The number of the invalid instruction, starting at 0.
        at: usize,
        /// The mistake in the instruction.
        what: &'static str,
    },
    /// tcpdump rejects the expression.
    #[error("tcpdump refuses the filter `{text}`: {said}; man pcap-filter has the language")]
    Expression {
        /// The beginning of the expression that tcpdump rejects.
        text: String,
        /// The message of tcpdump.
        said: String,
    },
    /// Frames of this link type cannot be filtered.
    #[error("frames of link type {} are not filtered: leave the filter out", .0.0)]
    Link(LinkType),
    /// The filter program uses information that only the kernel has.
    #[error(
        "instruction {at} of the filter asks for what only the kernel knows of a packet: for capture files, compile it \
         with tcpdump -r FILE -ddd"
    )]
    KernelOnly {
        /// The number of the instruction that uses information of the kernel, starting at 0.
        at: usize,
    },
    /// The file with the filter cannot be read.
    #[error("cannot read the filter in {}: {cause}", .path.escape_debug())]
    File {
        /// The name of the file with the filter.
        path: String,
        /// The error of the kernel.
        #[source]
        cause: io::Error,
    },
    /// tcpdump is not installed.
    #[error(
        "there is no tcpdump to compile the filter: install the package tcpdump, or give the numbers that \
         `tcpdump -ddd` prints for it on another machine"
    )]
    NoTcpdump,
    /// tcpdump did not run successfully.
    #[error("cannot {operation} to compile the filter: {cause}; give the numbers that `tcpdump -ddd` prints instead")]
    Tcpdump {
        /// The operation that failed, for a message that begins with "cannot".
        operation: &'static str,
        /// The error of the kernel.
        #[source]
        cause: io::Error,
    },
}

impl FilterError {
    /// Returns true for a mistake in the filter, false for a missing or failing file or program.
    pub fn is_mistake(&self) -> bool {
        matches!(self, Self::Numbers(_) | Self::Program { .. } | Self::Expression { .. } | Self::KernelOnly { .. })
    }
}

/// Returns the beginning of an untrusted text, on one line.
fn shown(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push_str("...");
    }
    shown
}
