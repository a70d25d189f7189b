//! The devices of steerage: the sources and the destinations of packets.
//!
//! | module | device |
//! |---|---|
//! | [`af_packet`] | interfaces of this machine, to listen and to send |
//! | [`af_xdp`] | interfaces of this machine whose packets are taken away from the kernel, to receive and to send |
//! | [`synthetic`] | generated frames, with a number for each flow and frame |
//! | [`tap`] | TUN and TAP: interfaces of the kernel whose other end is here, to receive and to send |
//! | [`udp`] | UDP sockets, to receive and to send |
//! | [`output`] | where packets go: capture files, TUN and TAP, interfaces |
//! | [`rate`] | a wrapper that limits the rate in frames per second |
//! | [`fault`] | a wrapper that loses, duplicates, reorders, corrupts and delays frames |
//! | [`drain`] | a wrapper that ends the input once its packets have been dealt with elsewhere |
//! | [`wait`] | a wrapper that makes a live input wait for room, as a file does |
//! | [`rules`] | no device: the rules by which a card leads chosen traffic to chosen queues |
//! | [`limit`] | a wrapper that ends the input after a number of frames |
//!
//! [`open`] opens a device from the text of a user. A device has a [`steerage::device::RxQueue`]
//! for each of its queues. [`steerage::testing::QueueTester`] tests such queues.
//!
//! Architecture invariant: no device knows about CPUs, hashes or handlers, and no device has its
//! own clock or thread, with two exceptions. Each capture file or stream that is written has a
//! thread, because writing may block. Another thread opens the files of a capture, so that packet
//! threads never open files.
// The exceptions are the `sys` modules: one for the system calls of each device, and one for shared
// system calls.
#![deny(unsafe_code)]

pub mod af_packet;
pub mod af_xdp;
mod device_hash;
pub mod drain;
pub mod fault;
mod interface_name;
pub mod limit;
mod namespace;
mod offloads;
mod options;
pub mod output;
pub mod rate;
pub mod rules;
pub mod synthetic;
#[allow(unsafe_code)]
mod sys;
pub mod tap;
pub mod udp;
mod vlan_tag;
pub mod wait;
mod wrapper;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use steerage::{DeviceError, Input};
use steerage_capture::filter::FilterError;
use steerage_capture::{Capture, CaptureError, CaptureInfo, CaptureOptions};

pub use device_hash::DeviceHash;
/// The crate of capture files, whose options [`open_all`] takes.
pub use steerage_capture as capture;

use af_packet::{AfPacketOptions, Named};
use af_xdp::AfXdpOptions;
use limit::Limit;
use options::SpecError;
use synthetic::SyntheticOptions;
use tap::TapOptions;
use udp::UdpOptions;

/// Opens the device that `spec` names:
///
/// - `synthetic` or `synthetic:option=value,...`: generated packets ([`synthetic`]).
/// - The name of an interface, or `af_packet:NAME,option=value,...`: listens to the interface
///   ([`af_packet`]).
/// - `af_xdp:NAME,option=value,...`: takes packets from an interface ([`af_xdp`]).
/// - `tap:NAME` or `tun:NAME`: the other end of an interface ([`tap`]).
/// - `udp:ADDR:PORT` or `udp:ADDR:PORT,option=value,...`: UDP sockets ([`udp`]).
/// - Any other text: the path of a capture file ([`steerage_capture`]). `-` is a capture on
///   standard input.
///
/// If a file has the name of a device or an interface, write `./synthetic` or `./eth0`. `any`
/// stands for several devices, so only [`open_all`] accepts it.
///
/// # Errors
/// [`OpenError::Spec`] for a mistake in the text, and [`OpenError::Device`] for a device that
/// cannot be opened.
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
    if udp::is_spec(spec) {
        let udp = UdpOptions::parse(spec).map_err(OpenError::Spec)?.open();
        return udp.and_then(|udp| udp.input()).map_err(OpenError::Device);
    }
    if let Some(named) = af_xdp::Named::read(spec) {
        return take(named, AfXdpOptions::new(named.interface)).map(|taking| taking.input);
    }
    if let Some(named) = Named::read(spec) {
        return listen(named, AfPacketOptions::new(named.interface)).map(|listening| listening.input);
    }
    could_be_a_file(spec)?;
    steerage_capture::open(spec).map_err(OpenError::Device)
}

fn listen(named: Named<'_>, options: AfPacketOptions) -> Result<af_packet::AfPacket, OpenError> {
    named.apply(options).map_err(OpenError::Spec)?.open().map_err(OpenError::Device)
}

fn take(named: af_xdp::Named<'_>, options: AfXdpOptions) -> Result<af_xdp::AfXdp, OpenError> {
    named.apply(options).map_err(OpenError::Spec)?.open().map_err(OpenError::Device)
}

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

/// Whether the device that `spec` names supports a filter, because it listens to an interface or
/// reads a capture file. The function opens nothing.
///
/// ```
/// assert!(steerage_device::takes_filter("evening.pcap"));
/// assert!(!steerage_device::takes_filter("synthetic:packets=10"));
/// ```
pub fn takes_filter(spec: &str) -> bool {
    !is_synthetic(spec) && !tap::is_spec(spec) && !udp::is_spec(spec) && af_xdp::Named::read(spec).is_none()
}

/// Checks `spec` without opening the device.
///
/// # Errors
/// [`OpenError::Spec`] for a mistake in the text. A device with a correct text may still fail to
/// open.
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
        _ if udp::is_spec(spec) => UdpOptions::parse(spec).map(drop),
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

/// The devices that [`open_all`] opened.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The inputs, in the order in which they were named.
    pub inputs: Vec<Input>,
    /// Information about the capture files, if there are any.
    pub capture: Option<Arc<CaptureInfo>>,
    /// Hints for the user, one line each.
    pub notes: Vec<String>,
}

impl Opened {
    /// Makes the devices end after this many frames in total.
    #[must_use]
    pub fn limited(self, frames: u64) -> Self {
        Self { inputs: Limit::over(self.inputs, frames), ..self }
    }
}

/// Opens each of `specs` like [`open`]. `any` stands for all interfaces that are up now, and each
/// of these interfaces becomes a separate device with its own link type. All capture files become
/// one device with one queue, which delivers them in the given order and with the options in
/// `files`.
///
/// # Errors
/// As for [`open`], and the errors of the filter in `files`.
pub fn open_all(specs: &[impl AsRef<str>], files: &CaptureOptions) -> Result<Opened, OpenError> {
    open_all_with(specs, files, |interface| Ok(AfPacketOptions::new(interface)))
}

/// Like [`open_all`], but `live` returns the options for each interface to listen to, given the
/// interface's name. Options in the text override these options.
///
/// `live` is called for all interfaces before any device is opened, so that it may compile filters,
/// which runs child processes.
///
/// # Errors
/// As for [`open`], and the errors of `live`.
///
/// ```no_run
/// use steerage_device::af_packet::AfPacketOptions;
/// use steerage_capture::CaptureOptions;
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

/// Like [`open_all_with`], but `taking` returns the options for each
/// `af_xdp:NAME,option=value,...`, given the interface's name.
///
/// # Errors
/// As for [`open`], and the errors of `live`.
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
        plans.push(if is_synthetic(spec) || tap::is_spec(spec) || udp::is_spec(spec) {
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
    // Open the capture first, because opening it may run the filter's compiler.
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
            // All files are one device, at the position of the first file.
            Plan::Files => opened.inputs.extend(capture.take().map(Capture::into_input)),
        }
    }
    Ok(opened)
}

enum Plan<'a> {
    Spec(&'a str),
    Take(AfXdpOptions),
    Listen(AfPacketOptions),
    /// A capture file. All capture files are one device.
    Files,
}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/functions.md")]
#[doc = include_str!("../../../docs/devices.md")]
#[doc = include_str!("../../../docs/tunnels.md")]
#[doc = include_str!("../../../docs/filters.md")]
#[doc = include_str!("../../../docs/privileges.md")]
struct Guides;

/// The reason for which a device could not be opened.
///
/// ```
/// use steerage_device::{OpenError, open};
///
/// let error = open("synthetic:packets=many").unwrap_err();
/// assert!(matches!(error, OpenError::Spec(_)), "a mistake in a command line");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text has a mistake, such as a typing error in a command line.
    #[error(transparent)]
    Spec(SpecError),
    /// The device could not be opened.
    #[error(transparent)]
    Device(DeviceError),
    /// The device does not support this filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl From<CaptureError> for OpenError {
    fn from(error: CaptureError) -> Self {
        match error {
            CaptureError::Device(error) => Self::Device(error),
            CaptureError::Filter(error) => Self::Filter(error),
        }
    }
}

/// Shows the text of the error, because `main` prints returned errors with `Debug`.
impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
