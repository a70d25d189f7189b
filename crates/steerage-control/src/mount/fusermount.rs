//! Mounts with the program `fusermount3`.
//!
//! `fusermount3` opens `/dev/fuse`, sends the descriptor through a socket, and watches the socket.
//! When this process closes its end of the socket, `fusermount3` opens the directory. If the error
//! is "Transport endpoint is not connected", no process serves the mount, and `fusermount3`
//! unmounts the directory. Because `fusermount3` unmounts, a killed process leaves no mount, and
//! this process needs no capability after its start.

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

/// The number of the descriptor of `fusermount3`'s socket, which is its standard input.
const SOCKET_VARIABLE: (&str, &str) = ("_FUSE_COMMFD", "0");

#[derive(Debug)]
pub(super) enum Failure {
    NotInstalled,
    Io(io::Error),
    /// The last line that `fusermount3` printed.
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
    /// If this process is killed, the socket or this copy of it stays open until `/dev/fuse` is
    /// closed. The kernel closes the descriptors of an ending process in the order of their
    /// numbers. `fusermount3` must not check the directory before `/dev/fuse` is closed. Of two
    /// socket descriptors below and above that of `/dev/fuse`, one is closed after `/dev/fuse`, in
    /// ascending and in descending order.
    _copy: OwnedFd,
}

/// Mounts the directory. Returns the descriptor of `/dev/fuse`.
pub(super) fn mount(directory: &Path, options: &str) -> Result<(OwnedFd, Watched), Failure> {
    let (socket, of_program) = UnixStream::pair()?;
    let mut command = Command::new(PROGRAM);
    command.args(["-o", options, "--"]).arg(directory).env(SOCKET_VARIABLE.0, SOCKET_VARIABLE.1);
    command.stdin(OwnedFd::from(of_program)).stdout(Stdio::null()).stderr(Stdio::piped());
    // `fusermount3` gets a separate process group, so that Ctrl-C sends it no signal.
    let child = program::start(command.process_group(0)).map_err(start_failed)?;
    // While the `Command` has a copy of `fusermount3`'s end of the socket, this process cannot
    // notice that `fusermount3` has closed its end.
    drop(command);
    let Some(fuse) = receive(&socket)? else {
        let output = child.wait_with_output()?;
        return Err(Failure::Refused(last_line(&output.stderr)));
    };
    // The sandbox does not allow the system call that waits for a child process, so the function
    // `end` reads from the socket with a timeout.
    let (fuse, copy) = in_order(&socket, &fuse)?;
    socket.set_read_timeout(Some(UNMOUNT_MAX))?;
    Ok((fuse, Watched { socket, _copy: copy }))
}

/// Duplicates descriptors, so that `socket`, `/dev/fuse` and the copy of the socket have increasing
/// numbers. `/dev/fuse` may have arrived with a lower number than the socket, because another
/// thread may have closed a descriptor.
fn in_order(socket: &UnixStream, fuse: &OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    let fuse = fcntl_dupfd_cloexec(fuse, socket.as_raw_fd().saturating_add(1))?;
    let copy = fcntl_dupfd_cloexec(socket, fuse.as_raw_fd().saturating_add(1))?;
    Ok((fuse, copy))
}

/// Unmounts a directory whose process no longer exists.
pub(super) fn unmount(directory: &Path) -> Result<(), Failure> {
    let mut command = Command::new(PROGRAM);
    command.args(["-u", "-z", "--"]).arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = program::start(&mut command).map_err(start_failed)?.wait_with_output()?;
    if output.status.success() { Ok(()) } else { Err(Failure::Refused(last_line(&output.stderr))) }
}

impl Watched {
    /// Closes the socket, and waits until `fusermount3` has unmounted the directory and ended.
    ///
    /// # Errors
    /// Fails if `fusermount3` does not end within [`UNMOUNT_MAX`].
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

/// Receives the descriptor of `/dev/fuse`. Returns `None` if `fusermount3` closed the socket
/// without sending a descriptor.
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
