use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use steerage::Output;
use steerage_capture::{Stream, StreamFailure, StreamOptions, stream};
use steerage_device::output;

use super::error::Error;
use super::inherited::{self, Inherited};
use super::template::Via;

#[derive(Debug)]
pub(super) struct Feed {
    pub(super) via: Via,
    pub(super) stdin: Stdio,
    pub(super) place: OsString,
    /// The pipe or file at the path `place`, whose descriptor the job inherits.
    pub(super) inherited: Option<Inherited>,
    /// The stream of the job's packets. `None` if the job gets its packets at an interface.
    pub(super) stream: Option<Stream>,
}

pub(super) fn feed(via: Via, number: usize, options: StreamOptions) -> Result<(Output, Feed), Error> {
    let name = format!("job {number}");
    let feed = |stdin, place| Feed { via, stdin, place, inherited: None, stream: None };
    let of = |inherited: Inherited| Feed { inherited: Some(inherited), ..feed(Stdio::null(), OsString::new()) };
    let (to, mut feed): (OwnedFd, Feed) = match via {
        Via::Stdin => {
            let (reader, writer) = inherited::pipe()?;
            (writer, feed(reader.into(), OsString::new()))
        }
        Via::Fifo => {
            let (reader, writer) = inherited::pipe()?;
            (writer, of(Inherited::new(reader).map_err(Error::Pipe)?))
        }
        Via::File => {
            let file = inherited::temporary_file()?;
            let reader = inherited::for_reading(&file).map_err(Error::Way)?;
            (file.into(), of(reader))
        }
        Via::Tap => {
            let interface = format!("st{}j{number}", std::process::id() % 100_000);
            let output = output::open_for(&format!("tap:{interface}"), 1).map_err(Error::Interface)?;
            return Ok((output, feed(Stdio::null(), interface.into())));
        }
    };
    if let Some(inherited) = &feed.inherited {
        feed.place = inherited.path();
    }
    let (output, stream) = stream(name, to, options).map_err(Error::Stream)?;
    feed.stream = Some(stream);
    Ok((output, feed))
}

impl Feed {
    pub(super) fn failure(&self) -> Option<StreamFailure> {
        self.stream.as_ref().and_then(Stream::failure)
    }

    /// Ends the job's input. Processes that the job leaves behind may have its pipe open, but do
    /// not count as readers.
    pub(super) fn end(&mut self) {
        if let (Via::Fifo, Some(stream)) = (self.via, &self.stream) {
            stream.abandon();
        }
    }
}
