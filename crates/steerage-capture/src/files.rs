//! The files of a capture. All files are checked before packets are read from the first file.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read as _, Seek as _};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags};
use rustix::fs::{FileType, fstat};

use steerage::{DeviceError, LinkType};

use super::encode::StreamFormat;
use super::info::CaptureInfo;
use super::opener::{Helper, STANDARD_INPUT, open};
use super::pcapng::Pcapng;
use super::source::{Input, Pipe, Shared, Source};
use super::unpack::Compression;
use super::walk::Wrong;
use super::{CUT, DAMAGED_PACKED, Format, GIVE, classic, recognise};
use crate::filter::FrameKind;

const STANDARD_INPUT_NAME: &str = "standard input";

/// The first bytes of a pcapng file usually describe all interfaces.
const HEAD_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Files {
    to_come: VecDeque<PathBuf>,
    shared: Arc<Shared>,
    /// The thread that opens all files after the first file.
    opener: Option<Helper>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) name: String,
    pub(super) source: Source,
}

pub(super) struct Known {
    pub(super) bytes: Option<u64>,
    /// The link type of the first file, unless the file is a pipe.
    pub(super) link: Option<LinkType>,
    /// The format that can represent the packets of all files. `None` if a file is a pipe.
    pub(super) format: Option<StreamFormat>,
    pub(super) kinds: Kinds,
}

#[derive(Debug)]
pub(super) struct Kinds {
    pub(super) known: Vec<FrameKind>,
    /// True if the files may contain other kinds of frames: a file is a pipe, or a pcapng file that
    /// may have further interfaces.
    pub(super) others: bool,
}

impl Kinds {
    pub(super) const UNKNOWN: Self = Self { known: Vec::new(), others: true };
}

impl Files {
    /// Checks that each file exists and is a capture. Pipes are not read for this check.
    pub(super) fn new(paths: &[PathBuf]) -> Result<(Self, Known), DeviceError> {
        let waker = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| DeviceError::new("the files", "wait for", e.into()))?;
        let shared = Arc::new(Shared { waker: Some(Arc::new(waker)), ..Shared::default() });
        let files = Self { to_come: paths.iter().cloned().collect(), shared, opener: None };
        let kinds = Kinds { known: Vec::new(), others: false };
        let mut known = Known { bytes: Some(0), link: None, format: Some(StreamFormat::Pcap), kinds };
        for (at, path) in paths.iter().enumerate() {
            let Some(bytes) = size(path)? else {
                (known.bytes, known.format, known.kinds.others) = (None, None, true);
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

    pub(super) fn none() -> Self {
        Self { to_come: VecDeque::new(), shared: Arc::default(), opener: None }
    }

    pub(super) fn waker(&self) -> Option<&Epoll> {
        self.shared.waker.as_deref()
    }

    pub(super) fn are_left(&self) -> bool {
        !self.to_come.is_empty()
    }

    pub(super) fn start_threads(&mut self) -> io::Result<()> {
        if !self.to_come.is_empty() {
            self.opener = Some(Helper::opener()?);
        }
        let _ = self.shared.unpacker.set(Helper::unpacker()?);
        Ok(())
    }

    pub(super) fn next(&mut self, info: &Arc<CaptureInfo>) -> Option<Result<Open, DeviceError>> {
        let path = self.to_come.pop_front()?;
        Some(self.open(&path).map(|input| Open { name: name(&path), source: self.source(name(&path), input, info) }))
    }

    pub(super) fn source(&self, name: String, input: Input, info: &Arc<CaptureInfo>) -> Source {
        Source::new(name, input, Arc::clone(&self.shared), Arc::clone(info))
    }

    fn open(&self, path: &Path) -> Result<Input, DeviceError> {
        let file = match &self.opener {
            Some(opener) => {
                let path = path.to_owned();
                opener.call(move || open(&path))
            }
            None => open(path),
        };
        let file = file.map_err(|e| failed(path, e))?;
        // `File::metadata` makes a system call that can also name a file by its path, which the
        // sandbox forbids for packet threads.
        let stat = fstat(&file).map_err(|e| failed(path, e.into()))?;
        let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
        if is_file && path.as_os_str() == STANDARD_INPUT {
            // Other processes share the read position of standard input.
            return Ok(Input::Reader(Box::new(file)));
        }
        Ok(if is_file { Input::File(Arc::new(file)) } else { self.pipe(file) })
    }

    pub(super) fn pipe(&self, file: File) -> Input {
        Input::Pipe(Pipe::new(file, self.shared.waker.clone()))
    }
}

pub(super) fn name(path: &Path) -> String {
    if path.as_os_str() == STANDARD_INPUT { STANDARD_INPUT_NAME.to_owned() } else { path.display().to_string() }
}

/// Returns `None` for an input without a size, such as a pipe.
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
    let mut file = open(path).map_err(|e| failed(path, e))?;
    let mut stored = Vec::new();
    let read = file.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut stored);
    read.map_err(|e| unreadable(&name(path), false, 0, e))?;
    let compression = Compression::of(&stored);
    let mut unpacked = vec![0; HEAD_BYTES];
    let head = match compression {
        Some(compression) => {
            let mut room = &mut unpacked[..];
            let ended = compression.unpack(stored.chain(&file), &mut room);
            let len = HEAD_BYTES - room.len();
            // Damage after the file's header is reported when the packets are read.
            if let (Err(error), 0..classic::HEADER_BYTES) = (ended, len) {
                let offset = file.stream_position().unwrap_or_default();
                return Err(unreadable(&name(path), true, offset, error));
            }
            &unpacked[..len]
        }
        None => &stored[..],
    };
    match recognise(head, true) {
        Ok(Some((Format::Pcapng(mut pcapng), _))) => {
            kinds.known.extend(Pcapng::kinds(head));
            kinds.others = true;
            let format = if pcapng.has_microseconds(head) { StreamFormat::PcapngMicros } else { StreamFormat::Pcapng };
            Ok((None, format))
        }
        Ok(Some((Format::Classic(classic), _))) => {
            kinds.known.push(FrameKind::new(classic.link(), classic.is_big_endian()));
            let format = if classic.has_nanos() { StreamFormat::PcapNanos } else { StreamFormat::Pcap };
            Ok((Some(classic.link()), format))
        }
        // The file is empty.
        Ok(None) => Ok((None, StreamFormat::Pcap)),
        Err(wrong) => Err(wrong.into_error(&name(path), 0, compression.is_some())),
    }
}

fn failed(path: &Path, cause: io::Error) -> DeviceError {
    DeviceError::new(name(path), "open the capture", cause)
}

/// Returns the error for a file that could be read or unpacked only up to this offset.
pub(super) fn unreadable(name: &str, is_packed: bool, offset: u64, error: io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof if is_packed => {
            Wrong::new("the file ends before what is packed in it".to_owned(), CUT).into_error(name, offset, false)
        }
        // The decompressors report damaged data as `InvalidData` or `InvalidInput`.
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput if is_packed => {
            DeviceError::new(name, "unpack the capture", error).at(offset).advise(DAMAGED_PACKED)
        }
        io::ErrorKind::Unsupported if is_packed => DeviceError::new(name, "unpack the capture", error).at(offset),
        _ => DeviceError::new(name, "read the capture", error).at(offset),
    }
}
