use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The maximum number of neighbours that a CPU requests in one batch, and of neighbours in the list
/// of requests. This maximum limits the router's work if a host scans a whole network through the
/// router.
pub const WANTED_MAX: usize = 64;

/// A neighbour, identified by the index of its interface and its IP address.
pub type Wish = (u16, IpAddr);

/// The neighbours whose link addresses the packet CPUs have requested.
#[derive(Debug)]
pub struct Wanted {
    wishes: Mutex<Vec<Wish>>,
    /// True if a CPU has written a byte to the socket `bell` since the last call of `take`.
    rung: AtomicBool,
    bell: UnixStream,
    hears: UnixStream,
}

impl Wanted {
    /// Creates an empty list of requested neighbours.
    ///
    /// # Errors
    /// Fails if the kernel cannot create a pair of sockets.
    pub fn new() -> io::Result<Self> {
        let (bell, hears) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        hears.set_nonblocking(true)?;
        Ok(Self { wishes: Mutex::default(), rung: AtomicBool::new(false), bell, hears })
    }

    /// Returns a file descriptor that becomes readable when a CPU requests a neighbour.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.hears.as_fd()
    }

    /// Removes all requested neighbours from the list, and returns them.
    pub fn take(&self) -> Vec<Wish> {
        let mut bytes = [0; 64];
        // Removes the bytes that wake-ups have written to the socket.
        let _ = (&self.hears).read(&mut bytes);
        // This `Release` pairs with the swap in `ask`. A CPU adds its request to the list before it
        // swaps `rung`. If `rung` was set, the next statement of `take` takes the request from the
        // list. If `rung` was cleared, the CPU writes another byte to the socket.
        self.rung.store(false, Ordering::Release);
        std::mem::take(&mut *self.wishes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves `wishes` to the list, at most once per batch. If another thread holds the lock of the
    /// list, discards `wishes`: the next packets to these neighbours cause new requests.
    pub(super) fn ask(&self, wishes: &mut Vec<Wish>) {
        if let Ok(mut wanted) = self.wishes.try_lock() {
            for wish in wishes.iter() {
                if wanted.len() < WANTED_MAX && !wanted.contains(wish) {
                    wanted.push(*wish);
                }
            }
            drop(wanted);
            // This `AcqRel` pairs with the store in `take`: CPUs write at most one byte between two
            // calls of `take`.
            if !self.rung.swap(true, Ordering::AcqRel) {
                let _ = (&self.bell).write(&[1]);
            }
        }
        wishes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_told_once() {
        let wanted = Wanted::new().unwrap();
        let wish = |host: u8| (0, IpAddr::from([10, 0, 0, host]));
        assert_eq!(wanted.take(), []);
        let mut wishes = vec![wish(1), wish(2), wish(1)];
        wanted.ask(&mut wishes);
        assert!(wishes.is_empty());
        wanted.ask(&mut vec![wish(2), wish(3)]);
        assert_eq!(wanted.take(), [wish(1), wish(2), wish(3)]);
        assert_eq!(wanted.take(), []);
        wanted.ask(&mut (0..=255).map(wish).collect());
        assert_eq!(wanted.take().len(), WANTED_MAX);
    }
}
