//! Copies of the packets of a running instance, for readers that may be slow.
//!
//! [`Tap::around`] wraps the packet function. A client is attached with [`Tap::attach`]. While a
//! client is attached, each packet CPU copies the packets that the client requested. The copies go
//! to a ring, which belongs to that CPU and client. The client's thread moves these packets from
//! the rings to a socket. Packet CPUs never wait: if the ring is full, a packet CPU counts the
//! packet as missed. While no client is attached, a tap costs one comparison per batch.
//!
//! `steerage dump` uses a tap to get packets from a running instance, through the control socket.
//!
//! ```
//! use std::io::Read;
//! use std::os::unix::net::UnixStream;
//! use std::sync::Arc;
//! use std::thread;
//!
//! use steerage::{Builder, CpuId, packet::each};
//! use steerage_capture::tap::{Record, Tap, Wanted, first_record};
//!
//! let tap = Arc::new(Tap::default());
//! let input = steerage_device::open("synthetic:packets=100")?;
//! let instance = Builder::new().virtual_cpus(1).input(input).build(tap.around(each(|_packet| ())))?;
//!
//! let wanted = Wanted { sample: 10, ..Wanted::default() };
//! let client = tap.attach(wanted, &[CpuId(0)])?;
//! let (to, mut from) = UnixStream::pair()?;
//! let passing = thread::spawn(move || client.pass_on(&to));
//! instance.start()?.join();
//! tap.end();
//!
//! let mut stream = Vec::new();
//! from.read_to_end(&mut stream)?;
//! let (mut rest, mut packets) = (&stream[..], 0);
//! while let Some((record, length)) = first_record(rest) {
//!     packets += usize::from(matches!(record, Record::Packet(..)));
//!     rest = &rest[length..];
//! }
//! assert_eq!(packets, 10);
//! passing.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ring;
mod session;

use std::array;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use steerage::{Batch, BucketId, Cpu, CpuId, Handler, Timestamp};

use crate::filter::FilterError;
use session::Session;

pub use ring::{PacketHead, Record, first_record};
pub use session::{Attached, Wanted};

/// The maximum number of clients that can be attached at a time. The number of clients is limited
/// because packet CPUs copy packets for each client.
const CLIENTS_MAX: usize = 4;

/// At the end of a run, the longest wait for clients that have not read the last packets. A client
/// that keeps reading needs only milliseconds to read the last packets.
const END_MAX: Duration = Duration::from_secs(1);

/// The reason why a client cannot be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// The client's filter is not a valid filter program for frames.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The maximum number of clients is attached already.
    #[error("{CLIENTS_MAX} clients get packets already: end one of them")]
    TooMany,
}

/// The clients of an instance, which its packet CPUs and the threads of the clients share.
#[derive(Debug, Default)]
pub struct Tap {
    /// The version of the list of clients, which increases after each change.
    version: AtomicUsize,
    clients: Mutex<Clients>,
    /// A condition variable that is notified after a client has left.
    left: Condvar,
}

#[derive(Debug, Default)]
struct Clients {
    attached: [Option<Arc<Session>>; CLIENTS_MAX],
    /// Clients that have left. The clients that have left are kept until no packet CPU refers to
    /// them any more. Because clients that have left are kept, no packet CPU frees the memory of a
    /// client.
    gone: Vec<Arc<Session>>,
    has_ended: bool,
}

impl Tap {
    /// Wraps the function that makes each CPU's handler.
    pub fn around<H: Handler>(
        self: &Arc<Self>,
        make: impl Fn(CpuId) -> H + Send + Sync + 'static,
    ) -> impl Fn(CpuId) -> Tapped<H> + Send + Sync + 'static {
        let tap = Arc::clone(self);
        move |cpu| Tapped {
            inner: make(cpu),
            tap: Arc::clone(&tap),
            version: 0,
            clients: array::from_fn(|_| None),
            is_watched: false,
        }
    }

    /// Attaches a client. The argument `cpus` lists the CPUs of the instance. The client gets
    /// copies of the packets in all batches that begin after the call of `attach`.
    ///
    /// # Errors
    /// [`TapError`] if a filter is wrong, or if there are too many clients.
    pub fn attach(self: &Arc<Self>, wanted: Wanted, cpus: &[CpuId]) -> Result<Attached, TapError> {
        let session = Arc::new(Session::new(wanted, cpus)?);
        let mut clients = self.lock();
        clients.gone.retain(|gone| Arc::strong_count(gone) > 1);
        let free = clients.attached.iter_mut().find(|client| client.is_none());
        *free.ok_or(TapError::TooMany)? = Some(Arc::clone(&session));
        self.raise_version();
        Ok(Attached { tap: Arc::clone(self), session })
    }

    fn detach(&self, session: &Arc<Session>) {
        let mut clients = self.lock();
        let of_session =
            |client: &&mut Option<Arc<Session>>| client.as_ref().is_some_and(|it| Arc::ptr_eq(it, session));
        let left = clients.attached.iter_mut().find(of_session).and_then(Option::take);
        clients.gone.extend(left);
        self.raise_version();
        drop(clients);
        self.left.notify_all();
    }

    /// The release store of the version pairs with the load in `Tapped::handle`. Packet CPUs read
    /// the list of clients under the lock.
    fn raise_version(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Ends all clients. For a limited time, each client's thread still sends the packets that were
    /// copied before this call. Call this function after the last packet was handled.
    pub fn end(&self) {
        let mut clients = self.lock();
        clients.has_ended = true;
        let is_waiting = |clients: &mut Clients| clients.attached.iter().any(Option::is_some);
        // The result of this wait for the clients is ignored: a client that has not read its
        // packets in time is not an error of the run.
        let _ = self.left.wait_timeout_while(clients, END_MAX, is_waiting);
    }

    fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handler that copies its packets for the clients of a tap.
#[derive(Debug)]
pub struct Tapped<H> {
    inner: H,
    tap: Arc<Tap>,
    /// The version of this CPU's copy of the list of clients (`clients`).
    version: usize,
    clients: [Option<Arc<Session>>; CLIENTS_MAX],
    is_watched: bool,
}

/// Whether a packet is copied before or after the handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    BeforeHandler,
    AfterHandler,
}

impl<H> Tapped<H> {
    /// Updates the packet CPU's copy of the list of attached clients.
    #[cold]
    fn follow(&mut self) {
        // A packet CPU never waits for a lock. If another thread has the lock, a client is being
        // added or removed. The CPU then copies the packets of this batch only for the clients that
        // it knows already, and tries to take the lock again with the next batch.
        if let Ok(clients) = self.tap.clients.try_lock() {
            self.version = self.tap.version.load(Ordering::Relaxed);
            self.clients.clone_from(&clients.attached);
            self.is_watched = self.clients.iter().any(Option::is_some);
        }
    }

    #[cold]
    fn copy(&self, batch: &mut Batch<'_>, cpu: CpuId, stage: Stage) {
        let now = SystemTime::now();
        self.clients.iter().flatten().for_each(|client| client.copy(batch, cpu, stage, now));
    }
}

impl<H: Handler> Handler for Tapped<H> {
    const AFFINITY: steerage::Affinity = H::AFFINITY;
    type Moved = H::Moved;
    type Report = H::Report;

    #[inline]
    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        // The load of the version pairs with the store in `raise_version`.
        if self.tap.version.load(Ordering::Acquire) != self.version {
            self.follow();
        }
        if !self.is_watched {
            return self.inner.handle(batch, cpu);
        }
        self.copy(batch, cpu.id(), Stage::BeforeHandler);
        self.inner.handle(batch, cpu);
        self.copy(batch, cpu.id(), Stage::AfterHandler);
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        self.inner.tick(cpu)
    }

    fn woken(&mut self, cpu: &mut Cpu) {
        self.inner.woken(cpu);
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
        self.inner.bucket_leaves(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: Self::Moved) {
        self.inner.bucket_arrives(bucket, state);
    }

    fn finish(self, cpu: &mut Cpu) -> Self::Report {
        self.inner.finish(cpu)
    }
}
