//! The files of a capture, read in order. All files are checked before the first is read, and each
//! file is opened when its turn comes.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags};
use rustix::fs::{FileType, fstat};

use steerage::{DeviceError, LinkType};

use super::encode::StreamFormat;
use super::info::CaptureInfo;
use super::opener::{Opener, STANDARD_INPUT, open};
use super::pcapng::Pcapng;
use super::source::{Input, Pipe, Source};
use super::walk::Wrong;
use super::{CUT, DAMAGED, Format, GIVE, classic, recognise};
use crate::filter::FrameKind;

const STANDARD_INPUT_NAME: &str = "standard input";

/// The usual number of bytes in which the interfaces of a pcapng file are described.
const INTERFACES_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Files {
    to_come: VecDeque<PathBuf>,
    /// Becomes readable when a silent pipe has data. All pipes share this waker, because the
    /// waiting CPU requests it only once.
    waker: Option<Arc<Epoll>>,
    opener: Option<Opener>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) name: String,
    pub(super) source: Source,
}

pub(super) struct Known {
    pub(super) bytes: Option<u64>,
    pub(super) link: Option<LinkType>,
    /// The format that can hold all files, if no file is a pipe.
    pub(super) format: Option<StreamFormat>,
    pub(super) kinds: Kinds,
}

#[derive(Debug)]
pub(super) struct Kinds {
    pub(super) known: Vec<FrameKind>,
    /// Whether other kinds are possible, as for a pipe, and for interfaces that a pcapng file
    /// describes later.
    pub(super) others: bool,
}

impl Kinds {
    pub(super) const UNKNOWN: Self = Self { known: Vec::new(), others: true };
}

impl Files {
    /// Checks that each file exists and is a capture. Pipes are not read.
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

    /// Creates an empty list, because the input is a reader.
    pub(super) fn none() -> Self {
        Self { to_come: VecDeque::new(), waker: None, opener: None }
    }

    pub(super) fn waker(&self) -> Option<&Epoll> {
        self.waker.as_deref()
    }

    pub(super) fn open_aside(&mut self) -> io::Result<()> {
        if !self.to_come.is_empty() && self.opener.is_none() {
            self.opener = Some(Opener::start()?);
        }
        Ok(())
    }

    pub(super) fn next(&mut self, info: &Arc<CaptureInfo>) -> Option<Result<Open, DeviceError>> {
        let path = self.to_come.pop_front()?;
        Some(self.open(&path).map(|input| Open { name: name(&path), source: Source::new(input, Arc::clone(info)) }))
    }

    fn open(&self, path: &Path) -> Result<Input, DeviceError> {
        let file = match &self.opener {
            Some(opener) => opener.open(path),
            None => open(path),
        };
        let file = file.map_err(|e| failed(path, e))?;
        // `File::metadata` makes a system call that could also take a path, which packet threads
        // may not make.
        let stat = fstat(&file).map_err(|e| failed(path, e.into()))?;
        let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
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

pub(super) fn name(path: &Path) -> String {
    if path.as_os_str() == STANDARD_INPUT { STANDARD_INPUT_NAME.to_owned() } else { path.display().to_string() }
}

/// The size of a file. `None` for pipes and similar inputs, which have no size.
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
        Ok(None) => Ok((None, StreamFormat::Pcap)),
        Err(wrong) => Err(wrong.into_error(&name(path), 0, source.is_packed())),
    }
}

fn failed(path: &Path, cause: io::Error) -> DeviceError {
    DeviceError::new(name(path), "open the capture", cause)
}

pub(super) fn unreadable(name: &str, source: &Source, error: io::Error) -> DeviceError {
    let offset = source.offset();
    if !source.is_packed() {
        return DeviceError::new(name, "read the capture", error).at(offset);
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Wrong::new("the file ends before what is packed in it".to_owned(), CUT).into_error(name, offset, false)
        }
        // The unpackers report damage with these error kinds.
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            DeviceError::new(name, "unpack the capture", error).at(offset).advise(DAMAGED)
        }
        io::ErrorKind::Unsupported => DeviceError::new(name, "unpack the capture", error).at(offset),
        _ => DeviceError::new(name, "read the capture", error).at(offset),
    }
}
