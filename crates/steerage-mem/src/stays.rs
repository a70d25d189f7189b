//! [`Stays`] keeps a batch on its thread.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// No type implements this trait. The compiler's error message for this trait says how to use a
/// packet on another thread.
///
/// # Safety
/// A type that implements this trait may be sent to another thread, and may be used by several
/// threads at once.
#[diagnostic::on_unimplemented(
    message = "a packet of a batch cannot be used on another thread: keep it",
    label = "the packet belongs to its batch, and the batch to one CPU",
    note = "`packet.keep()` returns a `Kept`, which owns the packet and which every thread can use",
    note = "if a copy of the bytes is enough, send `packet.data().to_vec()`"
)]
pub unsafe trait SentWithoutKeeping {}

/// A `T` that cannot leave its thread. If a `Stays` is sent to another thread, the compiler reports
/// the error of [`SentWithoutKeeping`].
pub struct Stays<T>(pub T);

// SAFETY: whoever implemented the trait for `T` has promised it. Nobody does.
unsafe impl<T: SentWithoutKeeping> Send for Stays<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: SentWithoutKeeping> Sync for Stays<T> {}

impl<T> fmt::Debug for Stays<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stays")
    }
}

impl<T> Deref for Stays<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Stays<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
