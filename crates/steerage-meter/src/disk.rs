//! The operations on a file or on standard output that can fail. Tests make each of them fail.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steerage_guard::file::{NewFile, Readers, parent_of};

use super::writer_state::WriterState;

/// The maximum size of one write to a pipe. Small writes show the progress when a slow reader takes
/// some bytes. A pipe takes this size completely or not at all (PIPE_BUF).
const PIECE_BYTES: usize = 4096;

/// A file that gets its name when it is complete, or standard output.
pub(super) struct Disk {
    file: File,
    /// The new file, until it has its name. `None` for standard output.
    new: Option<NewFile>,
    /// The temporary name.
    part: PathBuf,
    /// For standard output, the state that records the progress.
    watched: Option<Arc<WriterState>>,
}

impl Disk {
    /// Creates a file under a temporary name. With `dated`, missing directories are created,
    /// because their names are times.
    pub(super) fn create(path: &Path, dated: bool) -> io::Result<Self> {
        fault::before()?;
        let new = if dated {
            NewFile::create_with_directories(path, Readers::Group)?
        } else {
            NewFile::create(path, Readers::Group)?
        };
        let (file, part) = (new.file().try_clone()?, parent_of(path).join(new.part()));
        Ok(Self { file, new: Some(new), part, watched: None })
    }

    /// Standard output. It is written to directly: the standard library would keep the last bytes
    /// in a buffer and report that they are written.
    pub(super) fn stdout(state: &Arc<WriterState>) -> io::Result<Self> {
        Ok(Self::special(io::stdout().as_fd().try_clone_to_owned()?.into(), state))
    }

    /// A file, a pipe or a device that gets no name.
    pub(super) fn special(file: File, state: &Arc<WriterState>) -> Self {
        Self { file, new: None, part: PathBuf::new(), watched: Some(Arc::clone(state)) }
    }

    /// Writes some of the bytes, and returns how many the kernel has accepted.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = if self.watched.is_some() { PIECE_BYTES } else { usize::MAX };
        let length = fault::before_write(bytes.len().min(most))?;
        let written = self.file.write(&bytes[..length]);
        if let Some(state) = &self.watched {
            state.note_taken();
        }
        written
    }

    /// Removes the last `excess` bytes that were written. A pipe or a device keeps them.
    pub(super) fn cut(&mut self, excess: usize) -> io::Result<()> {
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

    /// From now on the file stays, even if it never gets its name.
    pub(super) fn keep(&mut self) {
        self.new = self.new.take().map(NewFile::kept);
    }

    /// The temporary name. The file has it until it is finished.
    pub(super) fn part(&self) -> &Path {
        &self.part
    }

    /// Gives the file its name. If that fails, the file stays under its temporary name.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let Some(new) = self.new.take().map(NewFile::kept) else { return Ok(()) };
        fault::before()?;
        new.finish().map(drop)
    }
}

#[cfg(not(test))]
mod fault {
    //! In the program, no operation is made to fail.

    use std::io;

    #[inline(always)]
    pub(super) fn before() -> io::Result<()> {
        Ok(())
    }

    #[inline(always)]
    pub(super) fn before_write(bytes: usize) -> io::Result<usize> {
        Ok(bytes)
    }

    #[inline(always)]
    pub(super) fn before_cut(_: usize) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod fault {
    //! Makes operations of the test's thread fail.

    use std::cell::Cell;
    use std::io;

    use nix::errno::Errno;

    /// What happens to the operations of a thread.
    #[derive(Clone, Copy, Debug)]
    pub(in super::super) enum Fault {
        /// None fails.
        None,
        /// The operation with this number, counted from 1, fails.
        Once(u64, Errno),
        /// This operation and all later ones fail.
        From(u64, Errno),
        /// If this operation is a write, it takes a part of its bytes, and the operation after it
        /// fails.
        Short(u64, Errno),
        /// The same, and all operations after it fail.
        ShortFrom(u64, Errno),
        /// The disk has room for this many bytes.
        Room(usize),
    }

    thread_local! {
        static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
        static DONE: Cell<u64> = const { Cell::new(0) };
    }

    /// Plans a fault, and counts operations from 1 again.
    pub(in super::super) fn plan(fault: Fault) {
        FAULT.set(fault);
        DONE.set(0);
    }

    /// The number of operations since the plan.
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
