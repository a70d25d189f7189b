use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

/// The sizes to try for a pipe. All pipes of an unprivileged user may have 64 MiB in total. When a
/// user's pipes have reached this total, a new pipe gets only one page.
const SIZES: [usize; 3] = [1 << 20, 256 << 10, 64 << 10];

/// A quarter of a full pipe must be free before the next write. A reader usually reads 4 KiB at a
/// time, and waking the writer for each 4 KiB would take longer than copying them.
const ROOM_PART: usize = 4;

/// The time between two checks of a pipe's free space: initial, minimum and maximum.
const NAP: Duration = Duration::from_micros(500);
const NAP_MIN: Duration = Duration::from_micros(100);
const NAP_MAX: Duration = Duration::from_millis(8);
/// After this number of checks, any amount of free space is sufficient for a write.
const NAPS_MAX: usize = 20;

/// The time between two checks of a pipe that must become empty: short at first, then long.
const LOOK_FAST: Duration = Duration::from_millis(1);
const LOOK_SLOW: Duration = Duration::from_millis(10);
const LOOKS_FAST: u32 = 100;

pub(super) fn is_pipe(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Makes a pipe with the largest size that this user may set, and returns its reading end and its
/// writing end.
pub(super) fn pair() -> io::Result<(File, File)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let writer = File::from(writer);
    enlarge(&writer)?;
    Ok((File::from(reader), writer))
}

/// Sets a pipe to the largest size that this user may set. Returns the size of the pipe.
pub(super) fn enlarge(pipe: &File) -> io::Result<usize> {
    for size in SIZES {
        if let Ok(size) = fcntl_setpipe_size(pipe, size) {
            return Ok(size);
        }
    }
    Ok(fcntl_getpipe_size(pipe)?)
}

pub(super) fn unread(pipe: &File) -> usize {
    rustix::io::ioctl_fionread(pipe).unwrap_or(0) as usize
}

/// Waits for free space in a pipe. The time between two checks adapts to the reader's speed.
#[derive(Debug)]
pub(super) struct Room {
    size: usize,
    nap: Duration,
}

impl Room {
    pub(super) fn new(size: usize) -> Self {
        Self { size, nap: NAP }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Waits until a full pipe has free space, but at most about the duration `look`. Errors are
    /// ignored, because the next write reports them.
    pub(super) fn wait(&mut self, pipe: &File, look: PollTimeout) {
        for naps in 0..NAPS_MAX {
            thread::sleep(self.nap);
            let room = self.size.saturating_sub(unread(pipe));
            if room >= self.size / ROOM_PART {
                self.nap = match naps {
                    // The reader had almost emptied the pipe, so the next check is made earlier.
                    0 if room > self.size / ROOM_PART * 3 => (self.nap / 2).max(NAP_MIN),
                    0 | 1 => self.nap,
                    _ => (self.nap * 2).min(NAP_MAX),
                };
                return;
            }
            if room == 0 {
                let _ = poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)], look);
                return;
            }
            if !has_reader(pipe) {
                return;
            }
        }
    }
}

/// Waits until all bytes were read, until no process has the reading end open, or until `is_over`
/// returns true. Returns the number of unread bytes.
pub(super) fn wait_until_read(pipe: &File, is_over: impl Fn() -> bool) -> usize {
    let mut looks = 0;
    loop {
        let unread = unread(pipe);
        if unread == 0 || !has_reader(pipe) || is_over() {
            return unread;
        }
        thread::sleep(if looks < LOOKS_FAST { LOOK_FAST } else { LOOK_SLOW });
        looks += 1;
    }
}

fn has_reader(pipe: &File) -> bool {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) => !fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR)),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn what_is_unread_is_known_also_when_nobody_reads_any_more() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (mut reader, mut writer) = (File::from(reader), File::from(writer));
        assert!(enlarge(&writer).unwrap() >= 4096);
        writer.write_all(&[0; 1000]).unwrap();
        reader.read_exact(&mut [0; 300]).unwrap();
        assert_eq!((unread(&writer), has_reader(&writer)), (700, true));
        assert_eq!(wait_until_read(&writer, || true), 700);
        drop(reader);
        assert!(!has_reader(&writer));
        assert_eq!(wait_until_read(&writer, || false), 700);
    }

    #[test]
    fn a_full_pipe_is_waited_for_until_a_quarter_of_it_is_free() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let (mut reader, mut writer) = (File::from(reader), File::from(writer));
        let size = enlarge(&writer).unwrap();
        while writer.write(&[0; 4096]).is_ok() {}
        let mut room = Room::new(size);
        room.wait(&writer, PollTimeout::ZERO);
        assert_eq!(size - unread(&writer), 0, "nobody has read");
        reader.read_exact(&mut vec![0; size / ROOM_PART]).unwrap();
        room.wait(&writer, PollTimeout::NONE);
        assert_eq!((size - unread(&writer), room.nap), (size / ROOM_PART, NAP));
        reader.read_exact(&mut vec![0; size / 2 + 4096]).unwrap();
        room.wait(&writer, PollTimeout::NONE);
        assert_eq!(room.nap, NAP / 2);
        drop(reader);
        room.wait(&writer, PollTimeout::NONE);
    }
}
