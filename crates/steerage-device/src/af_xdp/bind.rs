//! Binds an AF_XDP socket to a queue of an interface.

use std::io;
use std::thread;
use std::time::Duration;

use steerage::{DeviceError, device::Region};

use super::CHUNK_BYTES_MAX;
use super::sys::{How, InterfaceQueue};

/// The first and the last wait for the kernel to release the queue of a process that has just
/// ended.
const WAIT_FIRST: Duration = Duration::from_millis(1);
const WAIT_LAST: Duration = Duration::from_millis(512);

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

/// Returns the first way of binding that works. The previous owner may still hold the queue for a
/// moment.
pub(super) fn bind(ways: &[How], mut try_to: impl FnMut(How) -> io::Result<()>) -> io::Result<How> {
    let (mut ways, mut wait) = (ways.iter().copied(), WAIT_FIRST);
    let mut how = ways.next().unwrap_or_default();
    loop {
        let error = match try_to(how) {
            Ok(()) => return Ok(how),
            Err(error) => error,
        };
        if error.raw_os_error() != Some(libc::EBUSY) {
            how = ways.next().ok_or(error)?;
            continue;
        }
        if wait > WAIT_LAST {
            return Err(error);
        }
        thread::sleep(wait);
        wait *= 2;
    }
}
