//! Binds an AF_XDP socket to a queue of an interface.

use std::io;

use steerage::{DeviceError, device::Region};

use super::CHUNK_BYTES_MAX;
use super::sys::{How, InterfaceQueue};
use super::waits::Waits;

/// The maximum number of bytes of a page that the kernel uses for a frame.
pub(super) fn chunk_bytes(region: &Region) -> u32 {
    region.page_bytes().min(CHUNK_BYTES_MAX) as u32
}

pub(super) const PINNED: &str = "pages are pinned: it takes CAP_IPC_LOCK, or a higher ulimit -l";

pub(super) fn not_bound(name: &str, operation: &'static str, place: InterfaceQueue, error: io::Error) -> DeviceError {
    if error.raw_os_error() != Some(libc::EBUSY) {
        return DeviceError::new(name, "bind an AF_XDP socket", error);
    }
    let cause = io::Error::other(format!("queue {} has an AF_XDP socket already", place.queue));
    DeviceError::new(name, operation, cause).advise("stop the program that has it")
}

/// Returns the first way of binding that works. The previous owner of the queue may still hold the
/// queue for a moment.
pub(super) fn bind(ways: &[How], mut try_to: impl FnMut(How) -> io::Result<()>) -> io::Result<How> {
    let (mut ways, mut waits) = (ways.iter().copied(), Waits::new());
    let mut how = ways.next().unwrap_or_default();
    loop {
        match try_to(how) {
            Ok(()) => return Ok(how),
            Err(error) if error.raw_os_error() != Some(libc::EBUSY) => how = ways.next().ok_or(error)?,
            Err(error) if waits.are_over() => return Err(error),
            Err(_) => waits.sleep(),
        }
    }
}
