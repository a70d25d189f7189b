//! Mounts with `fusermount3`, which also unmounts after this process ends or closes its socket.
//!
//! `fusermount3` passes the opened `/dev/fuse` through a socket, and then watches that socket. When
//! the other end of the socket is closed, `fusermount3` opens the directory. If opening the
//! directory fails with "Transport endpoint is not connected", no process serves the mount, and
//! `fusermount3` unmounts the directory. Therefore a killed process leaves no mount, and this
//! process needs no privilege after the start.

use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use steerage_guard::program;

use crate::limits::UNMOUNT_MAX;

const PROGRAM: &str = "fusermount3";

/// The environment variable with the number of the socket. Here the socket is the program's
/// standard input.
const SOCKET_VARIABLE: (&str, &str) = ("_FUSE_COMMFD", "0");

#[derive(Debug)]
pub(super) enum Failure {
    NotInstalled,
    Io(io::Error),
    /// `fusermount3` refused. The string is its last line.
    Refused(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[derive(Debug)]
pub(super) struct Watched {
    socket: UnixStream,
    /// When a process ends, the kernel closes its descriptors in order. `fusermount3` must not
    /// check the directory before the process's `/dev/fuse` is closed. One copy of the socket has a
    /// smaller number than `/dev/fuse`, and the other copy a larger number. Therefore one of the
    /// copies is closed after `/dev/fuse`, whichever order the kernel uses.
    _copy: OwnedFd,
}

/// Mounts on a directory. Returns the opened `/dev/fuse`.
pub(super) fn mount(directory: &Path, options: &str) -> Result<(OwnedFd, Watched), Failure> {
    let (socket, of_program) = UnixStream::pair()?;
    let mut command = Command::new(PROGRAM);
    command.args(["-o", options, "--"]).arg(directory).env(SOCKET_VARIABLE.0, SOCKET_VARIABLE.1);
    command.stdin(OwnedFd::from(of_program)).stdout(Stdio::null()).stderr(Stdio::piped());
    // In a process group of its own, `fusermount3` does not get the signal of Ctrl-C.
    let child = program::start(command.process_group(0)).map_err(start_failed)?;
    // The command has a copy of the program's end of the socket, and with this copy open, this
    // process would not see that the program has closed its end.
    drop(command);
    let Some(fuse) = receive(&socket)? else {
        let output = child.wait_with_output()?;
        return Err(Failure::Refused(last_line(&output.stderr)));
    };
    // `fusermount3` runs until it has unmounted, and is then a zombie until this process ends. The
    // sandbox of a run does not allow waiting for a process.
    let (fuse, copy) = in_order(&socket, &fuse)?;
    socket.set_read_timeout(Some(UNMOUNT_MAX))?;
    Ok((fuse, Watched { socket, _copy: copy }))
}

/// Copies `/dev/fuse` and the socket, so that the numbers of `socket`, of the first copy and of the second copy rise.
/// A descriptor that another thread closed may have left `/dev/fuse` a number below the socket's.
fn in_order(socket: &UnixStream, fuse: &OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let fuse = fcntl_dupfd_cloexec(fuse, socket.as_raw_fd().saturating_add(1))?;
    let copy = fcntl_dupfd_cloexec(socket, fuse.as_raw_fd().saturating_add(1))?;
    Ok((fuse, copy))
}

/// Removes the mount of a process that no longer exists.
pub(super) fn unmount(directory: &Path) -> Result<(), Failure> {
    let mut command = Command::new(PROGRAM);
    command.args(["-u", "-z", "--"]).arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = program::start(&mut command).map_err(start_failed)?.wait_with_output()?;
    if output.status.success() { Ok(()) } else { Err(Failure::Refused(last_line(&output.stderr))) }
}

impl Watched {
    /// Makes `fusermount3` check the directory, and waits until it has ended.
    ///
    /// # Errors
    /// Returns an error if `fusermount3` does not end in time.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)?;
        loop {
            match self.socket.read(&mut [0]) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn start_failed(error: io::Error) -> Failure {
    if error.kind() == ErrorKind::NotFound { Failure::NotInstalled } else { Failure::Io(error) }
}

/// Receives a descriptor. Returns `None` if the peer closed the socket without sending one.
fn receive(socket: &UnixStream) -> Result<Option<OwnedFd>, Failure> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut passed, flags))
        .map_err(io::Error::from)?;
    let descriptors = passed.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
    line.strip_prefix(PROGRAM).and_then(|line| line.strip_prefix(": ")).unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn the_socket_is_closed_last_in_either_order() {
        let low: OwnedFd = File::open("/dev/null").unwrap().into();
        let (socket, _other) = UnixStream::pair().unwrap();
        let socket = UnixStream::from(fcntl_dupfd_cloexec(&socket, low.as_raw_fd() + 1).unwrap());
        let (fuse, copy) = in_order(&socket, &low).unwrap();
        assert!(socket.as_raw_fd() < fuse.as_raw_fd() && fuse.as_raw_fd() < copy.as_raw_fd());
    }
}
