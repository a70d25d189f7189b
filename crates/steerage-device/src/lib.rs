//! The devices of steerage: the sources and the destinations of packets.
//!
//! | module | device |
//! |---|---|
//! | [`af_packet`] | interfaces of this machine, to listen and to send |
//! | [`af_xdp`] | interfaces of this machine whose packets are taken away from the kernel, to receive and to send (feature `af_xdp`) |
//! | [`capture`] | capture files, read and written, and filters in tcpdump's language (feature `capture`) |
//! | [`synthetic`] | generated frames, with a number for each flow and frame |
//! | [`tap`] | TUN and TAP: interfaces of the kernel whose other end is here, to receive and to send (feature `tap`) |
//! | [`udp`] | UDP sockets, to receive and to send |
//! | [`output`] | where packets go: capture files, TUN and TAP, interfaces |
//! | [`rate`] | a wrapper that limits the rate in frames per second |
//! | [`fault`] | a wrapper that loses, duplicates, reorders, corrupts and delays frames |
//! | [`drain`] | a wrapper that ends the input once its packets have been dealt with elsewhere |
//! | [`wait`] | a wrapper that makes a live input wait for room, as a file does |
//! | [`rules`] | no device: the rules by which a card leads chosen traffic to chosen queues |
//! | [`limit`] | a wrapper that ends the input after a number of frames |
//!
//! All cargo features are on by default. The feature `capture` adds most of the dependencies.
//! [`steerage::testing::QueueTester`] tests the queues of devices.
//!
//! Architecture invariant: devices do not depend on CPUs, hashes or handlers, and have no clock of
//! their own. Threads exist only for each capture file or stream that is written (writing may
//! block), for each capture that is read (to open its files), and for each bond (to follow its
//! ports).
// Only the `sys` modules contain unsafe code: one for each device, and one that devices share.
#![deny(unsafe_code)]

mod absent;
pub mod af_packet;
#[cfg(feature = "af_xdp")]
pub mod af_xdp;
#[cfg(feature = "capture")]
mod all;
#[cfg_attr(not(feature = "af_xdp"), allow(dead_code, reason = "each device uses its part"))]
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
mod schedule;
mod send_room;
pub mod synthetic;
#[allow(unsafe_code)]
mod sys;
#[cfg(feature = "tap")]
pub mod tap;
pub mod udp;
mod vlan_tag;
pub mod wait;
mod wrapper;

use std::fmt;
use std::io;
use std::path::Path;

use steerage::{DeviceError, Input};

#[cfg(feature = "af_xdp")]
pub use all::open_all_taking;
#[cfg(feature = "capture")]
pub use all::{Opened, open_all, open_all_with};
pub use device_hash::DeviceHash;
/// The crate `steerage_capture`, which defines the capture options that [`open_all`] takes.
#[cfg(feature = "capture")]
pub use steerage_capture as capture;

use af_packet::{AfPacketOptions, Named};
use options::SpecError;
use synthetic::SyntheticOptions;
use udp::UdpOptions;

/// Opens the device that `spec` names:
///
/// - `synthetic` or `synthetic:option=value,...`: generated packets ([`synthetic`]).
/// - The name of an interface, or `af_packet:NAME,option=value,...`: listens to the interface
///   ([`af_packet`]).
/// - `af_xdp:NAME,option=value,...`: takes packets from an interface ([`af_xdp`]).
/// - `tap:NAME` or `tun:NAME`: the end of a TAP or TUN interface that a process reads and writes
///   ([`tap`]).
/// - `udp:ADDR:PORT` or `udp:ADDR:PORT,option=value,...`: UDP sockets ([`udp`]).
/// - Any other text: the path of a capture file ([`steerage_capture`]). The path `-` means a
///   capture that is read from standard input.
///
/// If a file has the name of a device or an interface, write `./synthetic` or `./eth0`. The text
/// `any` means several devices, so only [`open_all`] accepts it.
///
/// # Errors
/// [`OpenError::Spec`] for a mistake in the text, and [`OpenError::Device`] for a device that
/// cannot be opened. A device whose cargo feature is off cannot be opened.
///
/// ```
/// let input = steerage_device::open("synthetic:flows=1000,queues=2,packets=100")?;
/// assert_eq!(input.queues.len(), 2);
/// # Ok::<(), steerage_device::OpenError>(())
/// ```
pub fn open(spec: &str) -> Result<Input, OpenError> {
    absent::check(spec).map_err(OpenError::Device)?;
    if is_synthetic(spec) {
        return SyntheticOptions::parse(spec).and_then(|options| options.open()).map_err(OpenError::Spec);
    }
    #[cfg(feature = "tap")]
    if tap::is_spec(spec) {
        let tap = tap::TapOptions::parse(spec).map_err(OpenError::Spec)?.open();
        return tap.and_then(|tap| tap.input()).map_err(OpenError::Device);
    }
    if udp::is_spec(spec) {
        let udp = UdpOptions::parse(spec).map_err(OpenError::Spec)?.open();
        return udp.and_then(|udp| udp.input()).map_err(OpenError::Device);
    }
    #[cfg(feature = "af_xdp")]
    if let Some(named) = af_xdp::Named::read(spec) {
        let taking = named.apply(af_xdp::AfXdpOptions::new(named.interface)).map_err(OpenError::Spec)?.open();
        return taking.map(|taking| taking.input).map_err(OpenError::Device);
    }
    if let Some(named) = Named::read(spec) {
        let listening = named.apply(AfPacketOptions::new(named.interface)).map_err(OpenError::Spec)?.open();
        return listening.map(|listening| listening.input).map_err(OpenError::Device);
    }
    could_be_a_file(spec)?;
    #[cfg(feature = "capture")]
    let input = steerage_capture::open(spec);
    #[cfg(not(feature = "capture"))]
    let input = Err(absent::no_captures(spec));
    input.map_err(OpenError::Device)
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

/// Returns true if the device that `spec` names supports a filter. Only devices that listen to an
/// interface or read a capture file support filters. The function opens no device.
///
/// ```
/// assert!(steerage_device::takes_filter("evening.pcap"));
/// assert!(!steerage_device::takes_filter("synthetic:packets=10"));
/// ```
pub fn takes_filter(spec: &str) -> bool {
    !is_synthetic(spec) && !udp::is_spec(spec) && !absent::has_feature(spec)
}

/// Checks the text `spec` without opening the device.
///
/// # Errors
/// [`OpenError::Spec`] for a mistake in the text. Even with a correct text, the device may fail to
/// open.
///
/// ```
/// use steerage_device::check;
///
/// assert!(check("synthetic:flows=1000").is_ok());
/// assert!(check("synthetic:flows=many").is_err());
/// ```
pub fn check(spec: &str) -> Result<(), OpenError> {
    absent::check(spec).map_err(OpenError::Device)?;
    #[cfg(feature = "af_xdp")]
    if let Some(named) = af_xdp::Named::read(spec) {
        return named.apply(af_xdp::AfXdpOptions::new(named.interface)).map(drop).map_err(OpenError::Spec);
    }
    let read = match Named::read(spec) {
        _ if is_synthetic(spec) => SyntheticOptions::parse(spec).map(drop),
        #[cfg(feature = "tap")]
        _ if tap::is_spec(spec) => tap::TapOptions::parse(spec).map(drop),
        _ if udp::is_spec(spec) => UdpOptions::parse(spec).map(drop),
        Some(named) => named.apply(AfPacketOptions::new(named.interface)).map(drop),
        None => Ok(()),
    };
    read.map_err(OpenError::Spec)
}

/// Returns true if the text `spec` names [`synthetic`] traffic.
///
/// ```
/// assert!(steerage_device::is_synthetic("synthetic:packets=10"));
/// assert!(!steerage_device::is_synthetic("./synthetic"));
/// ```
pub fn is_synthetic(spec: &str) -> bool {
    spec == "synthetic" || spec.starts_with("synthetic:")
}

#[cfg(all(doctest, feature = "af_xdp", feature = "capture", feature = "tap"))]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/functions.md")]
#[doc = include_str!("../../../docs/devices.md")]
#[doc = include_str!("../../../docs/tunnels.md")]
#[doc = include_str!("../../../docs/filters.md")]
struct Guides;

/// The reason why a device could not be opened.
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
    /// The text that names the device has a mistake, such as a typing error in a command line.
    #[error(transparent)]
    Spec(SpecError),
    /// The device could not be opened.
    #[error(transparent)]
    Device(DeviceError),
    /// The device does not support the filter.
    #[cfg(feature = "capture")]
    #[error(transparent)]
    Filter(#[from] steerage_capture::filter::FilterError),
}

#[cfg(feature = "capture")]
impl From<steerage_capture::CaptureError> for OpenError {
    fn from(error: steerage_capture::CaptureError) -> Self {
        match error {
            steerage_capture::CaptureError::Device(error) => Self::Device(error),
            steerage_capture::CaptureError::Filter(error) => Self::Filter(error),
        }
    }
}

/// `Debug` shows the same message as `Display`, because an error that `main` returns is printed
/// with `Debug`.
impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
