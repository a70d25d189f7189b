//! Neighbours that packets wait for: told to whoever can find them.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The most neighbours that a CPU asks for in one batch, and that may be asked for and not yet looked for. Who scans a whole
/// network through us gets no more of our time than that.
pub const WANTED_MAX: usize = 64;

/// A neighbour by the interface's number and its address.
pub type Wish = (u16, IpAddr);

/// What all CPUs ask for.
/// [`Forwarding`](super::Forwarding) has an example.
#[derive(Debug)]
pub struct Wanted {
    wishes: Mutex<Vec<Wish>>,
    /// The bell was rung, and nobody has looked yet.
    rung: AtomicBool,
    bell: UnixStream,
    hears: UnixStream,
}

impl Wanted {
    /// Nothing wanted.
    ///
    /// # Errors
    /// If the kernel gives no pair of sockets.
    pub fn new() -> io::Result<Self> {
        let (bell, hears) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        hears.set_nonblocking(true)?;
        Ok(Self { wishes: Mutex::default(), rung: AtomicBool::new(false), bell, hears })
    }

    /// Readable once something is wanted.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.hears.as_fd()
    }

    /// Takes what is wanted.
    pub fn take(&self) -> Vec<Wish> {
        let mut bytes = [0; 64];
        // What is heard is said only once until here: the first bytes are all.
        let _ = (&self.hears).read(&mut bytes);
        // Release: pairs with the swap in `ask`; who rings again does so after this, and its wish is taken or heard of.
        self.rung.store(false, Ordering::Release);
        std::mem::take(&mut *self.wishes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks for all of `wishes`, which are then none; if somebody else is asking at this moment, for none of them: their next
    /// packet asks again. Once a batch at most.
    pub(super) fn ask(&self, wishes: &mut Vec<Wish>) {
        if let Ok(mut wanted) = self.wishes.try_lock() {
            for wish in wishes.iter() {
                if wanted.len() < WANTED_MAX && !wanted.contains(wish) {
                    wanted.push(*wish);
                }
            }
            drop(wanted);
            // AcqRel: pairs with the store in `take`. One ring until somebody looks.
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
