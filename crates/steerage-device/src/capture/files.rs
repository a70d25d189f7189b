//! The files of a capture, read one after the other. All are checked before the first is read, and each is opened when
//! its turn comes.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::sys::epoll::{Epoll, EpollCreateFlags};

use steerage::{DeviceError, LinkType};

use super::encode::StreamFormat;
use super::info::CaptureInfo;
use super::opener::Opener;
use super::pcapng::Pcapng;
use super::source::{Input, Pipe, Source};
use super::walk::Wrong;
use super::{CUT, DAMAGED, Format, GIVE, classic, recognise};
use crate::filter::FrameKind;

/// What standard input is called on a command line, and in messages.
const STANDARD_INPUT: &str = "-";
const STANDARD_INPUT_NAME: &str = "standard input";

/// In so many bytes a file of pcapng describes its interfaces, as a rule.
const INTERFACES_BYTES: usize = 16 << 10;

/// The files yet to be read.
#[derive(Debug)]
pub(super) struct Files {
    to_come: VecDeque<PathBuf>,
    /// Readable when a pipe has something again: there is one for all of them, since whoever waits asks for it once.
    waker: Option<Arc<Epoll>>,
    /// Opens those after the first.
    opener: Option<Opener>,
}

/// A file that is open.
#[derive(Debug)]
pub(super) struct Open {
    /// What messages call it.
    pub(super) name: String,
    pub(super) source: Source,
}

/// What can be known of files before they are read.
pub(super) struct Known {
    pub(super) bytes: Option<u64>,
    /// Of the first, unless it is a pipe.
    pub(super) link: Option<LinkType>,
    /// What can hold all of them, if none is a pipe.
    pub(super) format: Option<StreamFormat>,
    pub(super) kinds: Kinds,
}

/// The kinds of frames that files hold.
#[derive(Debug)]
pub(super) struct Kinds {
    pub(super) known: Vec<FrameKind>,
    /// Whether there may be others too: those of a pipe, or of interfaces that a pcapng file describes later on.
    pub(super) others: bool,
}

impl Kinds {
    pub(super) const UNKNOWN: Self = Self { known: Vec::new(), others: true };
}

impl Files {
    /// Looks at each of them: that it is there, and a capture. Pipes are not touched.
    pub(super) fn new(paths: &[PathBuf]) -> Result<(Self, Known), DeviceError> {
        let mut files = Self { to_come: paths.iter().cloned().collect(), waker: None, opener: None };
        let kinds = Kinds { known: Vec::new(), others: false };
        let mut known = Known { bytes: Some(0), link: None, format: Some(StreamFormat::Pcap), kinds };
        for (at, path) in paths.iter().enumerate() {
            let Some(bytes) = size(path)? else {
                (known.bytes, known.format, known.kinds.others) = (None, None, true);
                files.make_waker(path)?;
                continue;
            };
            known.bytes = known.bytes.map(|all| all.saturating_add(bytes));
            if path.as_os_str() == STANDARD_INPUT {
                (known.format, known.kinds.others) = (None, true);
                continue;
            }
            let (link, format) = look_at(path, &mut known.kinds)?;
            let format = if at > 0 && link != known.link { format.in_pcapng() } else { format };
            known.format = known.format.map(|others| others.or(format));
            known.link = if at == 0 { link } else { known.link };
        }
        Ok((files, known))
    }

    /// No files: the input comes from elsewhere.
    pub(super) fn none() -> Self {
        Self { to_come: VecDeque::new(), waker: None, opener: None }
    }

    pub(super) fn waker(&self) -> Option<&Epoll> {
        self.waker.as_deref()
    }

    /// From now on files are opened on another thread, if there are more.
    pub(super) fn open_aside(&mut self) -> io::Result<()> {
        if !self.to_come.is_empty() && self.opener.is_none() {
            self.opener = Some(Opener::start()?);
        }
        Ok(())
    }

    /// Opens the next.
    pub(super) fn next(&mut self, info: &Arc<CaptureInfo>) -> Option<Result<Open, DeviceError>> {
        let path = self.to_come.pop_front()?;
        Some(self.open(&path).map(|input| Open { name: name(&path), source: Source::new(input, Arc::clone(info)) }))
    }

    fn open(&self, path: &Path) -> Result<Input, DeviceError> {
        let file = match &self.opener {
            // Standard input is open already.
            Some(opener) if path.as_os_str() != STANDARD_INPUT => opener.open(path),
            _ => open(path),
        };
        let file = file.map_err(|e| failed(path, e))?;
        let is_file = file.metadata().map_err(|e| failed(path, e))?.is_file();
        match &self.waker {
            Some(waker) if !is_file => Ok(Input::Pipe(Pipe::new(file, Arc::clone(waker)))),
            _ => Ok(Input::File(file)),
        }
    }

    fn make_waker(&mut self, path: &Path) -> Result<(), DeviceError> {
        if self.waker.is_none() {
            let waker = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| failed(path, e.into()))?;
            self.waker = Some(Arc::new(waker));
        }
        Ok(())
    }
}

/// What files are called in messages.
pub(super) fn name(path: &Path) -> String {
    if path.as_os_str() == STANDARD_INPUT { STANDARD_INPUT_NAME.to_owned() } else { path.display().to_string() }
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    if path.as_os_str() == STANDARD_INPUT {
        return io::stdin().as_fd().try_clone_to_owned().map(File::from);
    }
    // Opening a FIFO waits for who writes to it, unless told not to. Files don't care.
    OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}

/// A file's size; `None` for a pipe and the like, which has none.
fn size(path: &Path) -> Result<Option<u64>, DeviceError> {
    if path.as_os_str() == STANDARD_INPUT {
        if io::stdin().is_terminal() {
            let cause = io::Error::other("it is a terminal");
            return Err(failed(path, cause).advise("pipe a capture into it: tcpdump -w - | steerage count -"));
        }
        let kind = open(path).and_then(|file| file.metadata()).map_err(|e| failed(path, e))?;
        return Ok(kind.is_file().then_some(kind.len()));
    }
    let kind = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => failed(path, e).advise("give the path of a capture file, or `synthetic`"),
        _ => failed(path, e),
    })?;
    if kind.file_type().is_fifo() {
        return Ok(None);
    }
    if !kind.is_file() {
        let what = if kind.is_dir() { "it is a directory" } else { "it is neither a file nor a pipe" };
        return Err(failed(path, io::Error::other(what)).advise(GIVE));
    }
    Ok(Some(kind.len()))
}

/// Reads as much of a file as tells its format, and what kinds of frames it holds.
fn look_at(path: &Path, kinds: &mut Kinds) -> Result<(Option<LinkType>, StreamFormat), DeviceError> {
    let file = open(path).map_err(|e| failed(path, e))?;
    let mut source = Source::new(Input::File(file), Arc::new(CaptureInfo::new(None, None)));
    let head = source.peek(classic::HEADER_BYTES).map(<[u8]>::to_vec);
    let head = head.map_err(|e| unreadable(&name(path), &source, e))?;
    match recognise(&head, true) {
        Ok(Some((Format::Pcapng(mut pcapng), _))) => {
            let head = source.peek(INTERFACES_BYTES).map_err(|e| failed(path, e))?;
            kinds.known.extend(Pcapng::kinds(head));
            kinds.others = true;
            let format = if pcapng.has_microseconds(head) { StreamFormat::PcapngMicros } else { StreamFormat::Pcapng };
            Ok((None, format))
        }
        Ok(Some((Format::Classic(classic), _))) => {
            kinds.known.push(FrameKind::new(classic.link(), classic.is_big_endian()));
            let format = Format::Classic(classic);
            Ok((format.link(), format.written()))
        }
        // An empty file.
        Ok(None) => Ok((None, StreamFormat::Pcap)),
        Err(wrong) => Err(wrong.into_error(&name(path), 0, source.is_packed())),
    }
}

fn failed(path: &Path, cause: io::Error) -> DeviceError {
    DeviceError::new(name(path), "open the capture", cause)
}

/// The source could not be read, or unpacked.
pub(super) fn unreadable(name: &str, source: &Source, error: io::Error) -> DeviceError {
    let offset = source.offset();
    if !source.is_packed() {
        return DeviceError::new(name, "read the capture", error).at(offset);
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Wrong::new("the file ends before what is packed in it".to_owned(), CUT).into_error(name, offset, false)
        }
        // What the unpackers say of damage.
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            DeviceError::new(name, "unpack the capture", error).at(offset).advise(DAMAGED)
        }
        io::ErrorKind::Unsupported => DeviceError::new(name, "unpack the capture", error).at(offset),
        _ => DeviceError::new(name, "read the capture", error).at(offset),
    }
}
