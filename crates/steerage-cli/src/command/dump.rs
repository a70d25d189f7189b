//! `steerage dump` shows or writes copies of the packets that a run handles.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use serde_json::json;
use steerage::flow::{Layers, dissect};
use steerage::{LinkType, WallTime};
use steerage_capture::PcapngEncoder;
use steerage_capture::tap::{PacketHead, Record, Wanted, first_record};
use steerage_control::instances;
use steerage_device::output::OutputError;
use steerage_guard::file::{self, Opened, Readers};
use steerage_text::counted;

use crate::args::DumpArgs;
use crate::error::{Error, SearchError};
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::signals::ended_by_signal;
use crate::stdout;
use crate::terminal::print_to_stderr;

const STDOUT: &str = "-";

/// The end of `dump`'s last line if the run ended before the run sent its last counts.
const UNREAD: &str = "; the run ended before its last packets were read";

/// The time after which a read from the run checks for signals.
const SIGNAL_LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &DumpArgs) -> Result<(), Error> {
    let wanted = wanted(args)?;
    let failed = |error| SearchError::Attribute { what: "dump", path: args.run.clone(), error };
    let client = instances::connect(Some(&args.run))?;
    let mut packets = client.packets(&json!(wanted)).map_err(failed)?;
    let system = |operation| move |error| Error::System { operation, error };
    let ended = ended_by_signal()?;
    packets.get_ref().set_read_timeout(Some(SIGNAL_LOOK)).map_err(system("set the timeout of the connection"))?;
    let mut shown = Shown::open(args)?;
    sandbox::enter(Needs::of(SandboxProfile::Dump), &args.sandbox)?;

    let (mut stream, mut left) = (Vec::new(), args.packets.unwrap_or(u64::MAX));
    let mut is_read = shown.begin()?;
    while is_read && left > 0 && !ended.load(Ordering::Relaxed) {
        match packets.fill_buf() {
            Ok([]) => {
                shown.is_cut = !shown.has_last;
                break;
            }
            Ok(bytes) => {
                stream.extend_from_slice(bytes);
                let length = bytes.len();
                packets.consume(length);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            // The error ECONNRESET means that the process of the run was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                shown.is_cut = true;
                break;
            }
            Err(error) => return Err(system("read from the run")(error)),
        }
        let mut rest = &stream[..];
        while let (1.., Some((record, length))) = (left, first_record(rest)) {
            left -= shown.add(record);
            rest = &rest[length..];
        }
        let used = stream.len() - rest.len();
        stream.drain(..used);
        is_read = shown.flush()?;
    }
    let (packets, unread) = (counted(shown.packets, "packet"), if shown.is_cut { UNREAD } else { "" });
    print_to_stderr(format_args!("{packets}, {} missed{unread}", shown.missed));
    Ok(())
}

fn wanted(args: &DumpArgs) -> Result<Wanted, Error> {
    let wanted = Wanted {
        cpus: args.cpu.iter().flat_map(|cpus| cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>()).collect(),
        queues: args.queue.clone(),
        sample: args.sample,
        snap: args.snap as u32,
        after: args.after,
        ..Wanted::default()
    };
    Ok(if args.filter.is_empty() { wanted } else { wanted.filtered(&args.filter.join(" "))? })
}

struct Shown<'a> {
    /// The capture file that is written. `None` if each packet is printed as a line.
    capture: Option<(PcapngEncoder, File, &'a str)>,
    /// Output bytes that are not written yet.
    bytes: Vec<u8>,
    packets: u64,
    missed: u64,
    /// `has_last` is true if the run has said that it sends no more packets. `is_cut` is true if
    /// the run ended without saying so.
    has_last: bool,
    is_cut: bool,
}

impl<'a> Shown<'a> {
    fn open(args: &'a DumpArgs) -> Result<Self, Error> {
        let create = |name| match open(name) {
            Ok(file) => Ok((PcapngEncoder::default(), file, name)),
            Err(error) => Err(cannot("create", name, error)),
        };
        let capture = args.write.as_deref().map(create).transpose()?;
        Ok(Self { capture, bytes: Vec::new(), packets: 0, missed: 0, has_last: false, is_cut: false })
    }

    /// Writes the header of a capture at once, so that a reader recognizes the format.
    fn begin(&mut self) -> Result<bool, Error> {
        if let Some((encoder, ..)) = &mut self.capture {
            encoder.begin(&mut self.bytes);
        }
        self.flush()
    }

    /// Adds a record to the bytes that the next `flush` writes. Returns the number of packets in
    /// the record.
    fn add(&mut self, record: Record<'_>) -> u64 {
        let (head, data) = match record {
            Record::Counts { missed, is_last, .. } => {
                (self.missed, self.has_last) = (missed, is_last);
                return 0;
            }
            Record::Packet(head, data) => (head, data),
        };
        self.packets += 1;
        match &mut self.capture {
            Some((encoder, ..)) => {
                let time = WallTime::from_nanos(head.nanos);
                encoder.packet(&mut self.bytes, LinkType(head.link), time, head.wire, data);
            }
            None => self.bytes.extend_from_slice(line(head, data).as_bytes()),
        }
        1
    }

    /// Writes the waiting bytes. Returns false if the reader has closed the output.
    fn flush(&mut self) -> Result<bool, Error> {
        let bytes = std::mem::take(&mut self.bytes);
        match &mut self.capture {
            None => stdout::print_while_read(&bytes),
            Some((_, file, name)) => match write_all(file, &bytes) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
                written => written.map(|()| true).map_err(|error| cannot("write to", name, error)),
            },
        }
    }
}

fn cannot(operation: &'static str, name: &str, cause: io::Error) -> Error {
    Error::Output(OutputError::Device(steerage::DeviceError::new(name, operation, cause)))
}

fn open(name: &str) -> io::Result<File> {
    if name == STDOUT {
        return Ok(io::stdout().as_fd().try_clone_to_owned()?.into());
    }
    let (Opened::File(file) | Opened::Special(file)) = file::open(Path::new(name), Readers::Group)?;
    Ok(file)
}

/// Writes all bytes, even to a FIFO that was opened without blocking.
fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut polled = [nix::poll::PollFd::new(file.as_fd(), nix::poll::PollFlags::POLLOUT)];
                nix::poll::poll(&mut polled, nix::poll::PollTimeout::NONE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns a line with the time of day in UTC, the origin, the flow and the length of a packet.
fn line(head: PacketHead, data: &[u8]) -> String {
    let PacketHead { nanos, wire, link, cpu, queue, .. } = head;
    let time = humantime::format_rfc3339_micros(SystemTime::from(WallTime::from_nanos(nanos))).to_string();
    let found = dissect(data, LinkType(link), Layers::default());
    let flow = if found.is_flow { found.key.to_string() } else { "no flow".to_owned() };
    format!("{} cpu {cpu} queue {queue} {flow}, {wire} bytes\n", time.get(11..26).unwrap_or_default())
}
