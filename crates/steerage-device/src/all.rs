use std::sync::Arc;

use steerage::Input;
use steerage_capture::{Capture, CaptureInfo, CaptureOptions};

use crate::af_packet::{self, AfPacketOptions, Named};
#[cfg(feature = "af_xdp")]
use crate::af_xdp::{self, AfXdpOptions};
use crate::limit::Limit;
use crate::{OpenError, could_be_a_file, open, takes_filter};

#[cfg(feature = "af_xdp")]
type Taking = AfXdpOptions;
#[cfg(not(feature = "af_xdp"))]
type Taking = std::convert::Infallible;

/// The devices that a call of [`open_all`] has opened.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The inputs, in the order in which the user named their devices.
    pub inputs: Vec<Input>,
    /// Information about the capture files, if there are any.
    pub capture: Option<Arc<CaptureInfo>>,
    /// Hints for the user, one line each.
    pub notes: Vec<String>,
}

impl Opened {
    /// Ends the devices after all of them together have delivered `frames` frames.
    #[must_use]
    pub fn limited(self, frames: u64) -> Self {
        Self { inputs: Limit::over(self.inputs, frames), ..self }
    }
}

/// Opens the device of each text in `specs`, like [`open`]. The text `any` means all interfaces
/// that are up now, each as a separate device. All capture files become one device with one queue,
/// which delivers the files in the given order and with the options in `files`.
///
/// # Errors
/// The errors of [`open`], and the errors of the filter in `files`.
pub fn open_all(specs: &[impl AsRef<str>], files: &CaptureOptions) -> Result<Opened, OpenError> {
    open_all_with(specs, files, |interface| Ok(AfPacketOptions::new(interface)))
}

/// Like [`open_all`], but `live` returns the options for each interface to listen to. Options in
/// the text of a device override the options from `live`.
///
/// All calls of `live` come before any device is opened, so `live` may start child processes.
///
/// # Errors
/// The errors of [`open`], and those that the function `live` returns.
///
/// ```no_run
/// use steerage_capture::CaptureOptions;
/// use steerage_device::af_packet::AfPacketOptions;
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
    #[cfg(feature = "af_xdp")]
    let taking = taken_by(|interface| AfXdpOptions::new(interface));
    #[cfg(not(feature = "af_xdp"))]
    let taking = |_: &str| Ok(None);
    open_each(specs, files, live, taking)
}

/// Like [`open_all_with`], but also for AF_XDP: for each text `af_xdp:NAME,option=value,...`, the
/// function `taking` receives the interface's name and returns the options.
///
/// # Errors
/// The errors of [`open`], and those that the function `live` returns.
#[cfg(feature = "af_xdp")]
pub fn open_all_taking(
    specs: &[impl AsRef<str>],
    files: &CaptureOptions,
    live: impl FnMut(&str) -> Result<AfPacketOptions, OpenError>,
    taking: impl FnMut(&str) -> AfXdpOptions,
) -> Result<Opened, OpenError> {
    open_each(specs, files, live, taken_by(taking))
}

#[cfg(feature = "af_xdp")]
fn taken_by(mut taking: impl FnMut(&str) -> AfXdpOptions) -> impl FnMut(&str) -> Result<Option<Taking>, OpenError> {
    move |spec| {
        let Some(named) = af_xdp::Named::read(spec) else { return Ok(None) };
        named.apply(taking(named.interface)).map(Some).map_err(OpenError::Spec)
    }
}

fn open_each(
    specs: &[impl AsRef<str>],
    files: &CaptureOptions,
    mut live: impl FnMut(&str) -> Result<AfPacketOptions, OpenError>,
    mut taking: impl FnMut(&str) -> Result<Option<Taking>, OpenError>,
) -> Result<Opened, OpenError> {
    let (mut plans, mut paths) = (Vec::with_capacity(specs.len()), Vec::new());
    let mut of_any = Vec::new();
    for spec in specs.iter().map(AsRef::as_ref) {
        if let Some(options) = Named::read_any(spec) {
            let names = af_packet::all_interfaces().map_err(OpenError::Device)?;
            for name in &names {
                let named = Named { interface: name, options };
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
        plans.push(if let Some(options) = taking(spec)? {
            Plan::Take(options)
        } else if !takes_filter(spec) {
            Plan::Spec(spec)
        } else if let Some(named) = Named::read(spec) {
            Plan::Listen(named.apply(live(named.interface)?).map_err(OpenError::Spec)?)
        } else {
            could_be_a_file(spec)?;
            paths.push(spec);
            Plan::Files
        });
    }
    // The capture is opened first, because opening it may run the filter's compiler.
    let mut capture = if paths.is_empty() { None } else { Some(files.open(&paths)?) };
    let info = capture.as_ref().map(Capture::info);
    let mut opened = Opened { inputs: Vec::new(), capture: info, notes: of_any };
    for plan in plans {
        match plan {
            Plan::Spec(spec) => opened.inputs.push(open(spec)?),
            #[cfg(feature = "af_xdp")]
            Plan::Take(options) => {
                let taken = options.open().map_err(OpenError::Device)?;
                opened.inputs.push(taken.input);
                opened.notes.extend(taken.notes);
            }
            #[cfg(not(feature = "af_xdp"))]
            Plan::Take(never) => match never {},
            Plan::Listen(options) => {
                let listening = options.open().map_err(OpenError::Device)?;
                opened.inputs.push(listening.input);
                opened.notes.extend(listening.notes);
            }
            // All capture files are one device, at the position of the first file in the list.
            Plan::Files => opened.inputs.extend(capture.take().map(Capture::into_input)),
        }
    }
    Ok(opened)
}

enum Plan<'a> {
    Spec(&'a str),
    Take(Taking),
    Listen(AfPacketOptions),
    Files,
}
