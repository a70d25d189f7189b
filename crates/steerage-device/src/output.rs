//! Opens outputs. Each output is described by a text such as `pcap:FILE`.

use std::num::NonZero;
use std::thread;

use steerage::{DeviceError, Output};

use crate::absent;
use crate::af_packet::{AfPacketOutput, Named};
#[cfg(feature = "af_xdp")]
use crate::af_xdp::{self, AfXdpOutput};
use crate::options::SpecError;
#[cfg(feature = "tap")]
use crate::tap::{self, TapOptions};
use crate::udp::{self, UdpOptions};
#[cfg(feature = "capture")]
use steerage_capture::Waiting;

const PCAP: &str = "pcap:";

const FIFO: &str = "fifo:";
const TCP_LISTEN: &str = "tcp-listen:";

macro_rules! kinds {
    ($begin:literal) => {
        concat!(
            $begin,
            "write pcap:FILE, fifo:PATH, tcp-listen:ADDR, tap:NAME, tun:NAME, udp:ADDR:PORT, af_xdp:IFACE, or the name of an interface"
        )
    };
}

const EXPANDED_MAX: usize = steerage::limits::OUTPUTS_MAX;

/// The reason why an output could not be opened.
///
/// ```
/// use steerage_device::output::{OutputError, expand};
///
/// assert!(matches!(expand("printer:0"), Err(OutputError::Spec { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The text that names the output has a mistake, such as a typing error in a command line.
    #[error("output {spec}: {wrong}")]
    Spec {
        /// The text as the user wrote it.
        spec: String,
        /// A description of the mistake, and the correct syntax.
        wrong: &'static str,
    },
    /// An option of the output has a mistake.
    #[error(transparent)]
    Option(SpecError),
    /// The output could not be created.
    #[error(transparent)]
    Device(DeviceError),
}

/// Returns one text for each output that `spec` names: `pcap:FILE`, `fifo:PATH`, `tcp-listen:ADDR`,
/// `tap:NAME`, `tun:NAME`, `udp:ADDR:PORT`, `af_xdp:IFACE`, `af_packet:IFACE` or an interface's
/// bare name. A range of numbers in braces, as in `pcap:part{0..3}.pcapng`, means one output for
/// each number.
///
/// # Errors
/// [`OutputError::Spec`] if `spec` is not an output, or has braces without numbers.
///
/// ```
/// let names = steerage_device::output::expand("pcap:part{0..2}.pcapng")?;
/// assert_eq!(names, ["pcap:part0.pcapng", "pcap:part1.pcapng", "pcap:part2.pcapng"]);
/// # Ok::<(), steerage_device::output::OutputError>(())
/// ```
pub fn expand(spec: &str) -> Result<Vec<String>, OutputError> {
    let wrong = |wrong| OutputError::Spec { spec: spec.to_owned(), wrong };
    let Some((before, rest)) = spec.split_once('{') else {
        return if is_output(spec) { Ok(vec![spec.to_owned()]) } else { Err(wrong(what_is_wrong(spec))) };
    };
    let braces = "in braces write two numbers, such as {0..3}";
    let (range, behind) = rest.split_once('}').ok_or_else(|| wrong(braces))?;
    let (first, last) = range.split_once("..").ok_or_else(|| wrong(braces))?;
    let number = |text: &str| text.parse::<usize>().map_err(|_| wrong(braces));
    let (first, last) = (number(first)?, number(last)?);
    if first > last || last - first >= EXPANDED_MAX {
        return Err(wrong("the numbers in braces rise, and stand for 256 outputs at most"));
    }
    let names: Vec<String> = (first..=last).map(|number| format!("{before}{number}{behind}")).collect();
    if names.iter().all(|name| is_output(name)) { Ok(names) } else { Err(wrong(what_is_wrong(spec))) }
}

fn what_is_wrong(spec: &str) -> &'static str {
    let is_file = [".pcap", ".pcapng"].iter().any(|end| spec.ends_with(end));
    match spec.contains(':') {
        false if is_file => "for a capture file, write pcap: before its name",
        false => kinds!("there is no interface of that name (`ip link` lists those there are): "),
        true => kinds!(""),
    }
}

fn is_output(spec: &str) -> bool {
    capture_of(spec).is_some() || absent::has_feature(spec) || udp::is_spec(spec) || Named::read(spec).is_some()
}

/// Creates the output that `spec` names, for as many CPUs as this process may use. If an input and
/// an output share an interface (see [`tap`] and [`af_xdp`]), open the input first.
///
/// # Errors
/// [`OutputError`] if `spec` is no output, if its cargo feature is off, or if it cannot be created.
///
/// ```no_run
/// use steerage::{Builder, TxId};
/// use steerage_device::output;
///
/// let mut builder = Builder::new();
/// let saved: TxId = builder.add_output(output::open("pcap:kept.pcapng")?);
/// # Ok::<(), output::OutputError>(())
/// ```
pub fn open(spec: &str) -> Result<Output, OutputError> {
    open_for(spec, thread::available_parallelism().map_or(1, NonZero::get))
}

/// Like [`open`], but for up to `cpus` CPUs. Some kinds of outputs must know the number of CPUs.
///
/// # Errors
/// The errors of [`open`].
pub fn open_for(spec: &str, cpus: usize) -> Result<Output, OutputError> {
    #[cfg(feature = "capture")]
    let output = open_when_read(spec, cpus, |_, _| true);
    #[cfg(not(feature = "capture"))]
    let output = match capture_of(spec) {
        Some(_) => Err(OutputError::Device(absent::no_captures(spec))),
        None => open_device(spec, cpus),
    };
    output
}

/// Like [`open_for`], but while a FIFO has no reader or no TCP client has connected, calls `waits`
/// with the path or address and the state of the wait. `waits` returns true to continue waiting.
///
/// # Errors
/// The errors of [`open`], and an error if `waits` returns false.
#[cfg(feature = "capture")]
pub fn open_when_read(
    spec: &str,
    cpus: usize,
    mut waits: impl FnMut(&str, Waiting) -> bool,
) -> Result<Output, OutputError> {
    let created = match capture_of(spec) {
        None => return open_device(spec, cpus),
        Some((FIFO, path)) => steerage_capture::fifo(path, |before| waits(path, Waiting::Looked { before })),
        Some((TCP_LISTEN, address)) => steerage_capture::listen(address, |waiting| waits(address, waiting)),
        Some((_, path)) => steerage_capture::create_when_read(path, |before| waits(path, Waiting::Looked { before })),
    };
    created.map_err(OutputError::Device)
}

fn capture_of(spec: &str) -> Option<(&'static str, &str)> {
    let mut kinds = [PCAP, FIFO, TCP_LISTEN].into_iter();
    kinds.find_map(|kind| Some((kind, spec.strip_prefix(kind).filter(|place| !place.is_empty())?)))
}

/// Only an AF_XDP output needs the number of CPUs.
#[cfg_attr(not(feature = "af_xdp"), allow(unused_variables))]
fn open_device(spec: &str, cpus: usize) -> Result<Output, OutputError> {
    absent::check(spec).map_err(OutputError::Device)?;
    #[cfg(feature = "af_xdp")]
    if af_xdp::Named::read(spec).is_some() {
        let output: AfXdpOutput = spec.parse().map_err(OutputError::Option)?;
        return output.cpus(cpus).open().map_err(OutputError::Device);
    }
    #[cfg(feature = "tap")]
    if tap::is_spec(spec) {
        let tap = TapOptions::parse(spec).map_err(OutputError::Option)?.open();
        return tap.map(|tap| tap.output()).map_err(OutputError::Device);
    }
    if udp::is_spec(spec) {
        let udp = UdpOptions::parse(spec).map_err(OutputError::Option)?.open();
        return udp.map(|udp| udp.output()).map_err(OutputError::Device);
    }
    if Named::read(spec).is_some() {
        let output: AfPacketOutput = spec.parse().map_err(OutputError::Option)?;
        return output.open().map_err(OutputError::Device);
    }
    Err(OutputError::Spec { spec: spec.to_owned(), wrong: what_is_wrong(spec) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_numbers() {
        assert_eq!(expand("pcap:a").unwrap(), ["pcap:a"]);
        assert_eq!(expand("pcap:a{9..11}").unwrap(), ["pcap:a9", "pcap:a10", "pcap:a11"]);
        assert_eq!(expand("tap:ids{0..1},mtu=9000").unwrap(), ["tap:ids0,mtu=9000", "tap:ids1,mtu=9000"]);
        assert_eq!(expand("lo").unwrap(), ["lo"]);
        assert!(expand("no-such-{0..3}").is_err() && open("pcap:").is_err() && open("af_packet:lo,queues=2").is_err());
        assert_eq!(expand("pcap:{0..255}").unwrap().len(), 256);
        for wrong in [
            "",
            "a",
            "pcap:",
            "pcap:{",
            "pcap:{}",
            "pcap:{1}",
            "pcap:{1..}",
            "pcap:{2..1}",
            "pcap:{0..256}",
            "fifo:",
            "tcp-listen:",
        ] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }
}
