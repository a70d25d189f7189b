//! How packets get to a job: as a capture stream to standard input, a named pipe or a file, or as
//! frames to an interface.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use nix::fcntl::OFlag;
use steerage::Output;
use steerage_device::capture::{Stream, StreamOptions, stream};
use steerage_device::output;

use super::scratch::Scratch;
use super::template::Via;
use crate::error::{Error, JobsError};

/// Makes the opening of a named pipe not wait for the other end.
const O_NONBLOCK: i32 = OFlag::O_NONBLOCK.bits();

/// The channel through which a job gets its packets.
#[derive(Debug)]
pub(super) struct Feed {
    /// The job's standard input.
    pub(super) stdin: Stdio,
    /// The file or interface that the job's command names.
    pub(super) place: OsString,
    /// The stream of packets, or `None` for an interface.
    pub(super) stream: Option<Stream>,
    /// Our own reading end of a named pipe. With it, packets can be written before the job opens
    /// the pipe. It is closed when the job ends, so that the writer notices.
    pub(super) kept_open: Option<File>,
    /// A file to remove once the job has ended.
    pub(super) temporary: Option<PathBuf>,
}

/// Creates the feed of job `number`, and the output that sends to it.
pub(super) fn feed(
    via: Via,
    number: usize,
    options: StreamOptions,
    scratch: &Scratch,
) -> Result<(Output, Feed), Error> {
    let failed = |error| Error::System { operation: "make the way to a job", error };
    let name = format!("job {number}");
    let feed = |stdin, place: OsString| Feed { stdin, place, stream: None, kept_open: None, temporary: None };
    let (to, mut feed): (OwnedFd, Feed) = match via {
        Via::Stdin => {
            let (reader, writer) = io::pipe().map_err(JobsError::Pipe)?;
            (writer.into(), feed(reader.into(), OsString::new()))
        }
        Via::Fifo => {
            let path = scratch.fifo(&format!("job{number}.fifo")).map_err(failed)?;
            let open = |how: &mut OpenOptions| how.custom_flags(O_NONBLOCK).open(&path).map_err(failed);
            let reader = open(OpenOptions::new().read(true))?;
            let writer = open(OpenOptions::new().write(true))?;
            (writer.into(), Feed { kept_open: Some(reader), ..feed(Stdio::null(), path.into()) })
        }
        Via::File => {
            let path = scratch.path(&format!("job{number}.pcap")).map_err(failed)?;
            let file = File::create_new(&path).map_err(failed)?;
            (file.into(), Feed { temporary: Some(path.clone()), ..feed(Stdio::null(), path.into()) })
        }
        Via::Tap => {
            let interface = format!("st{}j{number}", std::process::id() % 100_000);
            let output = output::open_for(&format!("tap:{interface}"), 1).map_err(Error::Output)?;
            return Ok((output, feed(Stdio::null(), interface.into())));
        }
    };
    let (output, stream) = stream(name, to, options).map_err(|error| Error::Device(error.to_string()))?;
    feed.stream = Some(stream);
    Ok((output, feed))
}

impl Feed {
    /// Releases the feed after the job has ended.
    pub(super) fn end(&mut self) {
        self.kept_open = None;
        if let Some(path) = self.temporary.take() {
            // On failure, the file is removed with its directory.
            let _ = fs::remove_file(path);
        }
    }
}
