//! Operations on a file or on standard output that can fail, and that tests cause to fail.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steerage_guard::file::{NewFile, Readers, parent_of};

use super::writer_state::WriterState;

/// The size of a write to a pipe, which the pipe accepts completely or not at all (PIPE_BUF). Small
/// writes show progress even if the reader is slow.
const PIECE_BYTES: usize = 4096;

pub(super) struct Disk {
    file: File,
    new: Option<NewFile>,
    part: PathBuf,
    watched: Option<Arc<WriterState>>,
}

impl Disk {
    pub(super) fn create(path: &Path, dated: bool) -> io::Result<Self> {
        #[cfg(test)]
        fault::before()?;
        let new = if dated {
            NewFile::create_with_directories(path, Readers::Group)?
        } else {
            NewFile::create(path, Readers::Group)?
        };
        let (file, part) = (new.file().try_clone()?, parent_of(path).join(new.part()));
        Ok(Self { file, new: Some(new), part, watched: None })
    }

    /// Opens standard output without a buffer: the standard library would keep the last bytes in
    /// its buffer and report them as written.
    pub(super) fn stdout(state: &Arc<WriterState>) -> io::Result<Self> {
        Ok(Self::special(io::stdout().as_fd().try_clone_to_owned()?.into(), state))
    }

    pub(super) fn special(file: File, state: &Arc<WriterState>) -> Self {
        Self { file, new: None, part: PathBuf::new(), watched: Some(Arc::clone(state)) }
    }

    /// Writes bytes, and returns how many bytes the kernel has accepted.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = if self.watched.is_some() { PIECE_BYTES } else { usize::MAX };
        let length = bytes.len().min(most);
        #[cfg(test)]
        let length = fault::before_write(length)?;
        let written = self.file.write(&bytes[..length]);
        if let Some(state) = &self.watched {
            state.note_taken();
        }
        written
    }

    /// Removes the last `excess` bytes of a file. Bytes in a pipe or device cannot be removed.
    pub(super) fn cut(&mut self, excess: usize) -> io::Result<()> {
        #[cfg(test)]
        fault::before_cut(excess)?;
        let metadata = self.file.metadata()?;
        if !metadata.is_file() {
            return Ok(());
        }
        let end = self.file.stream_position()?;
        if end != metadata.len() {
            return Err(io::Error::other("another program has written behind it"));
        }
        self.file.set_len(end - excess as u64)?;
        self.file.seek(SeekFrom::Start(end - excess as u64)).map(drop)
    }

    /// After `keep`, the file is not deleted even if it never gets its final name.
    pub(super) fn keep(&mut self) {
        self.new = self.new.take().map(NewFile::kept);
    }

    pub(super) fn part(&self) -> &Path {
        &self.part
    }

    /// If renaming fails, the file keeps its temporary name.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let Some(new) = self.new.take().map(NewFile::kept) else { return Ok(()) };
        #[cfg(test)]
        fault::before()?;
        new.finish().map(drop)
    }
}

#[cfg(test)]
pub(super) mod fault {
    //! Makes file operations fail on the thread of a test.

    use std::cell::Cell;
    use std::io;

    use nix::errno::Errno;

    #[derive(Clone, Copy, Debug)]
    pub(in super::super) enum Fault {
        None,
        /// The number of the operation that fails, counted from 1.
        Once(u64, Errno),
        From(u64, Errno),
        /// If the operation with this number is a write, it writes a part of its bytes, and the
        /// next operation fails.
        Short(u64, Errno),
        ShortFrom(u64, Errno),
        Room(usize),
    }

    thread_local! {
        static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
        static DONE: Cell<u64> = const { Cell::new(0) };
    }

    pub(in super::super) fn plan(fault: Fault) {
        FAULT.set(fault);
        DONE.set(0);
    }

    pub(in super::super) fn operations() -> u64 {
        DONE.get()
    }

    fn failure() -> Option<Errno> {
        let now = DONE.get() + 1;
        DONE.set(now);
        match FAULT.get() {
            Fault::Once(nth, errno) if now == nth => Some(errno),
            Fault::From(nth, errno) if now >= nth => Some(errno),
            Fault::Short(nth, errno) if now == nth + 1 => Some(errno),
            Fault::ShortFrom(nth, errno) if now > nth => Some(errno),
            _ => None,
        }
    }

    pub(super) fn before() -> io::Result<()> {
        failure().map_or(Ok(()), |errno| Err(errno.into()))
    }

    pub(super) fn before_write(bytes: usize) -> io::Result<usize> {
        before()?;
        match FAULT.get() {
            Fault::Short(nth, _) | Fault::ShortFrom(nth, _) if DONE.get() == nth => Ok(bytes.div_ceil(2)),
            Fault::Room(0) => Err(Errno::ENOSPC.into()),
            Fault::Room(room) => {
                FAULT.set(Fault::Room(room - bytes.min(room)));
                Ok(bytes.min(room))
            }
            _ => Ok(bytes),
        }
    }

    pub(super) fn before_cut(bytes: usize) -> io::Result<()> {
        before()?;
        if let Fault::Room(room) = FAULT.get() {
            FAULT.set(Fault::Room(room + bytes));
        }
        Ok(())
    }
}
