//! The devices of steerage: where packets come from, and where they go.
//!
//! | module | device |
//! |---|---|
//! | [`af_packet`] | interfaces of this machine, to listen and to send |
//! | [`af_xdp`] | interfaces of this machine whose packets are taken away from the kernel, to receive and to send |
//! | [`capture`] | capture files: pcap or pcapng, compressed or not, and pipes |
//! | [`synthetic`] | generated frames, with a number for each flow and frame |
//! | [`tap`] | TUN and TAP: interfaces of the kernel whose other end is here, to receive and to send |
//! | [`filter`] | filters for interfaces and capture files, in tcpdump's language |
//! | [`privileges`] | dropping capabilities once the devices are open |
//! | [`output`] | where packets go: capture files, TUN and TAP, interfaces |
//! | [`rate`] | a wrapper that limits the rate in frames per second |
//! | [`fault`] | a wrapper that loses, duplicates, reorders, corrupts and delays frames |
//! | [`drain`] | a wrapper that ends the input once its packets have been dealt with elsewhere |
//! | [`limit`] | a wrapper that ends the input after a number of frames |
//!
//! [`open`] opens a device from the text that a user writes. A device is a [`steerage::device::RxQueue`] for each of its queues.
//! [`steerage::testing::QueueTester`] tests it.
//!
//! Architecture invariant: no device knows about CPUs, hashes or handlers, and none has a clock or a thread of its own. The
//! exceptions are a thread for each capture file and stream that is written, since writing may block, and one that opens the files of
//! a capture, so that no thread that handles packets has to open any.
// The exceptions are the `sys` modules: one for the system calls of each device, and one for those that they share.
#![deny(unsafe_code)]

pub mod af_packet;
pub mod af_xdp;
pub mod capture;
mod device_hash;
pub mod drain;
pub mod fault;
pub mod filter;
mod interface_name;
pub mod limit;
mod memory;
mod namespace;
mod options;
pub mod output;
pub mod privileges;
pub mod rate;
pub mod synthetic;
#[allow(unsafe_code)]
mod sys;
pub mod tap;
mod wrapper;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use steerage::{DeviceError, Input};

pub use device_hash::DeviceHash;

use af_packet::{AfPacketOptions, Named};
use af_xdp::AfXdpOptions;
use capture::{Capture, CaptureInfo, CaptureOptions};
use filter::FilterError;
use limit::Limit;
use options::SpecError;
use synthetic::SyntheticOptions;
use tap::TapOptions;

/// Opens what `spec` names: `synthetic`, `synthetic:option=value,...` ([`synthetic`]), an interface by its name or as
/// `af_packet:NAME,option=value,...` ([`af_packet`]), one whose packets are taken as `af_xdp:NAME,option=value,...`
/// ([`af_xdp`]), the other end of one as `tap:NAME` or `tun:NAME` ([`tap`]), or else the path of a capture file ([`capture`]),
/// or `-` for one that comes by standard input. A file that has the name of a device or an interface is `./synthetic`,
/// `./eth0`. `any` stands for several devices, so only [`open_all`] takes it.
///
/// # Errors
/// [`OpenError::Spec`] for what is written wrong, [`OpenError::Device`] for what cannot be opened.
///
/// ```
/// let input = steerage_device::open("synthetic:flows=1000,queues=2,packets=100")?;
/// assert_eq!(input.queues.len(), 2);
/// # Ok::<(), steerage_device::OpenError>(())
/// ```
pub fn open(spec: &str) -> Result<Input, OpenError> {
    if is_synthetic(spec) {
        return SyntheticOptions::parse(spec).and_then(|options| options.open()).map_err(OpenError::Spec);
    }
    if tap::is_spec(spec) {
        let tap = TapOptions::parse(spec).map_err(OpenError::Spec)?.open();
        return tap.and_then(|tap| tap.input()).map_err(OpenError::Device);
    }
    if let Some(named) = af_xdp::Named::read(spec) {
        return take(named, AfXdpOptions::new(named.interface)).map(|taking| taking.input);
    }
    if let Some(named) = Named::read(spec) {
        return listen(named, AfPacketOptions::new(named.interface)).map(|listening| listening.input);
    }
    could_be_a_file(spec)?;
    capture::open(spec).map_err(OpenError::Device)
}

fn listen(named: Named<'_>, options: AfPacketOptions) -> Result<af_packet::AfPacket, OpenError> {
    named.apply(options).map_err(OpenError::Spec)?.open().map_err(OpenError::Device)
}

fn take(named: af_xdp::Named<'_>, options: AfXdpOptions) -> Result<af_xdp::AfXdp, OpenError> {
    named.apply(options).map_err(OpenError::Spec)?.open().map_err(OpenError::Device)
}

/// Of a name that is no device: whether it may be a file's.
fn could_be_a_file(name: &str) -> Result<(), OpenError> {
    if Named::read_any(name).is_some() {
        let cause = io::Error::new(io::ErrorKind::InvalidInput, "it stands for several devices");
        return Err(OpenError::Device(
            DeviceError::new(name, "open it as one device", cause).advise("name an interface"),
        ));
    }
    if name == "-" || name.contains('/') || Path::new(name).exists() {
        return Ok(());
    }
    let cause = io::Error::new(io::ErrorKind::NotFound, "there is neither a file nor an interface of that name");
    let error = DeviceError::new(name, "open it", cause);
    Err(OpenError::Device(error.advise("`ls` shows the files here, `ip link` the interfaces")))
}

/// Whether what `spec` names can have a filter: an interface that is listened to, or a capture file. Nothing is opened.
///
/// ```
/// assert!(steerage_device::takes_filter("evening.pcap"));
/// assert!(!steerage_device::takes_filter("synthetic:packets=10"));
/// ```
pub fn takes_filter(spec: &str) -> bool {
    !is_synthetic(spec) && !tap::is_spec(spec) && af_xdp::Named::read(spec).is_none()
}

/// Looks at what `spec` says without opening it.
///
/// # Errors
/// [`OpenError::Spec`] for what is written wrong. That it is right does not mean that it can be opened.
///
/// ```
/// use steerage_device::check;
///
/// assert!(check("synthetic:flows=1000").is_ok());
/// assert!(check("synthetic:flows=many").is_err());
/// ```
pub fn check(spec: &str) -> Result<(), OpenError> {
    if let Some(named) = af_xdp::Named::read(spec) {
        return named.apply(AfXdpOptions::new(named.interface)).map(drop).map_err(OpenError::Spec);
    }
    let read = match Named::read(spec) {
        _ if is_synthetic(spec) => SyntheticOptions::parse(spec).map(drop),
        _ if tap::is_spec(spec) => TapOptions::parse(spec).map(drop),
        Some(named) => named.apply(AfPacketOptions::new(named.interface)).map(drop),
        None => Ok(()),
    };
    read.map_err(OpenError::Spec)
}

/// Whether `spec` names [`synthetic`] traffic.
///
/// ```
/// assert!(steerage_device::is_synthetic("synthetic:packets=10"));
/// assert!(!steerage_device::is_synthetic("./synthetic"));
/// ```
pub fn is_synthetic(spec: &str) -> bool {
    spec == "synthetic" || spec.starts_with("synthetic:")
}

/// The devices that [`open_all`] made.
/// [`open_all_with`] has an example.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// In the order in which they were named.
    pub inputs: Vec<Input>,
    /// What is known of the capture files, if there are any.
    pub capture: Option<Arc<CaptureInfo>>,
    /// What their user should know: a line each.
    pub notes: Vec<String>,
}

impl Opened {
    /// The same devices, which end after this many frames in all.
    #[must_use]
    pub fn limited(self, frames: u64) -> Self {
        Self { inputs: Limit::over(self.inputs, frames), ..self }
    }
}

/// Opens what each of `specs` names, as [`open`] does. `any` stands for all interfaces that are up now: each is a device of its own,
/// with its own link type. All capture files are one device with one queue, which hands them
/// over one after the other, in the order given and as `files` says.
///
/// # Errors
/// As [`open`], and those of the filter of `files`.
pub fn open_all(specs: &[impl AsRef<str>], files: &CaptureOptions) -> Result<Opened, OpenError> {
    open_all_with(specs, files, |interface| Ok(AfPacketOptions::new(interface)))
}

/// Like [`open_all`], but `live` gives the options of each interface that is listened to, by the interface's name. The options in
/// the text override them.
///
/// `live` is called for all interfaces before any device is opened, so it may compile filters, which runs child processes.
///
/// # Errors
/// Those of [`open`] and of `live`.
///
/// ```no_run
/// use steerage_device::af_packet::AfPacketOptions;
/// use steerage_device::capture::CaptureOptions;
///
/// let files = CaptureOptions::new().filter("not port 22");
/// let opened = steerage_device::open_all_with(&["eth0", "eth1", "evening.pcap"], &files, |interface| {
///     Ok(AfPacketOptions::new(interface).filtered("not port 22")?)
/// })?;
/// opened.notes.iter().for_each(|note| eprintln!("{note}"));
/// # Ok::<(), steerage_device::OpenError>(())
/// ```
pub fn open_all_with(
    specs: &[impl AsRef<str>],
    files: &CaptureOptions,
    live: impl FnMut(&str) -> Result<AfPacketOptions, OpenError>,
) -> Result<Opened, OpenError> {
    open_all_taking(specs, files, live, |interface| AfXdpOptions::new(interface))
}

/// The same, with packets taken from each `af_xdp:NAME,option=value,...` as `taking`, given its name, says.
///
/// # Errors
/// As [`open`], and those of `live`.
pub fn open_all_taking(
    specs: &[impl AsRef<str>],
    files: &CaptureOptions,
    mut live: impl FnMut(&str) -> Result<AfPacketOptions, OpenError>,
    mut taking: impl FnMut(&str) -> AfXdpOptions,
) -> Result<Opened, OpenError> {
    let (mut plans, mut paths) = (Vec::with_capacity(specs.len()), Vec::new());
    let mut of_any = Vec::new();
    for spec in specs.iter().map(AsRef::as_ref) {
        if let Some(options) = Named::read_any(spec) {
            let names = af_packet::all_interfaces().map_err(OpenError::Device)?;
            for name in &names {
                let named = Named::one_of_any(name, options);
                let options = named.apply(live(name)?).map_err(OpenError::Spec)?;
                let buffer = af_packet::divided_buffer(options.buffer, names.len());
                plans.push(Plan::Listen(options.buffer(buffer)));
            }
            of_any.push(format!(
                "{spec}: listening to {}; a packet that passes two of them is seen twice",
                names.join(", ")
            ));
            continue;
        }
        plans.push(if is_synthetic(spec) || tap::is_spec(spec) {
            Plan::Spec(spec)
        } else if let Some(named) = af_xdp::Named::read(spec) {
            Plan::Take(named.apply(taking(named.interface)).map_err(OpenError::Spec)?)
        } else if let Some(named) = Named::read(spec) {
            Plan::Listen(named.apply(live(named.interface)?).map_err(OpenError::Spec)?)
        } else {
            could_be_a_file(spec)?;
            paths.push(spec);
            Plan::Files
        });
    }
    // First, because that may run the filter's compiler.
    let mut capture = if paths.is_empty() { None } else { Some(files.open(&paths)?) };
    let info = capture.as_ref().map(Capture::info);
    let mut opened = Opened { inputs: Vec::new(), capture: info, notes: of_any };
    for plan in plans {
        match plan {
            Plan::Spec(spec) => opened.inputs.push(open(spec)?),
            Plan::Take(options) => {
                let taken = options.open().map_err(OpenError::Device)?;
                opened.inputs.push(taken.input);
                opened.notes.extend(taken.notes);
            }
            Plan::Listen(options) => {
                let listening = options.open().map_err(OpenError::Device)?;
                opened.inputs.push(listening.input);
                opened.notes.extend(listening.notes);
            }
            // All files are one device, in the place of the first.
            Plan::Files => opened.inputs.extend(capture.take().map(Capture::into_input)),
        }
    }
    Ok(opened)
}

/// What one spec names.
enum Plan<'a> {
    /// A device that its text describes completely.
    Spec(&'a str),
    Take(AfXdpOptions),
    Listen(AfPacketOptions),
    /// One of the capture files, which are one device.
    Files,
}

/// The guides' code is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/functions.md")]
#[doc = include_str!("../../../docs/devices.md")]
#[doc = include_str!("../../../docs/tunnels.md")]
#[doc = include_str!("../../../docs/filters.md")]
#[doc = include_str!("../../../docs/privileges.md")]
struct Guides;

/// Why there is no device.
///
/// ```
/// use steerage_device::{OpenError, open};
///
/// let error = open("synthetic:packets=many").unwrap_err();
/// assert!(matches!(error, OpenError::Spec(_)), "a mistake in a command line");
/// ```
#[non_exhaustive]
pub enum OpenError {
    /// It is written wrong: a mistake in a command line.
    Spec(SpecError),
    /// It could not be opened.
    Device(DeviceError),
    /// It cannot have this filter.
    Filter(FilterError),
}

impl From<FilterError> for OpenError {
    fn from(error: FilterError) -> Self {
        Self::Filter(error)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
            Self::Filter(error) => error.fmt(f),
        }
    }
}

/// As its text: it is what `main` shows of an error that it returns.
impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Spec(_) => None,
            Self::Device(error) => error.source(),
            Self::Filter(error) => error.source(),
        }
    }
}

/// The examples of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
