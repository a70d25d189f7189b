//! Copies of the packets of a running instance, for readers that may be slow.
//!
//! [`Tap::around`] wraps the packet function, and [`Tap::attach`] attaches a client. Each packet
//! CPU then copies the packets that the client requested to a ring, which belongs to that CPU and
//! client. The client's thread moves packets from the rings to a socket. Packet CPUs never wait: a
//! packet that does not fit into the ring counts as missed. While no client is attached, a tap
//! costs one comparison per batch.
//!
//! `steerage dump` uses a tap through the control socket of a running instance.
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

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use steerage::{Batch, BucketId, Cpu, CpuId, Handler, Timestamp};

use crate::filter::FilterError;
use session::Session;

pub use ring::{PacketHead, Record, first_record};
pub use session::{Attached, Wanted};

/// The number of clients is limited, because packet CPUs copy packets for each client.
const CLIENTS_MAX: usize = 4;

/// The longest wait for clients at the end of a run. A client that reads gets the remaining packets
/// within milliseconds.
const END_MAX: Duration = Duration::from_secs(1);

/// The reason why a client cannot be attached to a tap.
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

/// The clients of an instance. The packet CPUs of the instance and the threads of the clients share
/// this value.
#[derive(Debug, Default)]
pub struct Tap {
    /// The attached clients. A packet CPU reads the list of clients without a lock, so that it need
    /// not skip a batch, uncounted, while another thread has the lock.
    clients: ArcSwap<Clients>,
    /// Increases after each change of `clients`.
    version: AtomicUsize,
    /// Only a thread that holds this lock changes the list `clients`. Earlier lists of clients stay
    /// in `former` until no packet CPU refers to them, so that no packet CPU frees the memory of a
    /// client.
    former: Mutex<Vec<Arc<Clients>>>,
    has_ended: AtomicBool,
    /// Notified after a client has left.
    left: Condvar,
}

type Clients = [Option<Arc<Session>>; CLIENTS_MAX];

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
            clients: Arc::default(),
            is_watched: false,
        }
    }

    /// Attaches a client, which gets copies of the packets in all batches that begin after the
    /// call. `cpus` lists the CPUs of the instance.
    ///
    /// # Errors
    /// [`TapError`] if a filter is wrong, or if there are too many clients.
    pub fn attach(self: &Arc<Self>, wanted: Wanted, cpus: &[CpuId]) -> Result<Attached, TapError> {
        let session = Arc::new(Session::new(wanted, cpus)?);
        self.change(|clients| {
            let free = clients.iter_mut().find(|client| client.is_none());
            *free.ok_or(TapError::TooMany)? = Some(Arc::clone(&session));
            Ok(Attached { tap: Arc::clone(self), session })
        })
    }

    fn detach(&self, session: &Arc<Session>) {
        self.change(|clients| {
            let is_left = |client: &Option<_>| client.as_ref().is_some_and(|it| Arc::ptr_eq(it, session));
            clients.iter_mut().filter(|client| is_left(client)).for_each(|client| *client = None);
        });
        self.left.notify_all();
    }

    /// Replaces the list of clients by a copy that `change` has changed.
    fn change<R>(&self, change: impl FnOnce(&mut Clients) -> R) -> R {
        let mut former = self.lock();
        former.retain(|list| Arc::strong_count(list) > 1);
        let mut clients = Clients::clone(&self.clients.load());
        let result = change(&mut clients);
        former.push(self.clients.swap(Arc::new(clients)));
        // `Release` pairs with the load in `Tapped::handle`, which then gets the new list of
        // clients.
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// Ends all clients. For a limited time, each client's thread still sends the packets that were
    /// copied before this call. Call this function after the last packet was handled.
    pub fn end(&self) {
        // `Release` pairs with the load in `has_ended`.
        self.has_ended.store(true, Ordering::Release);
        let is_waiting = |_: &mut Vec<_>| self.clients.load().iter().any(Option::is_some);
        // A client that has not read its packets in time is not an error of the run.
        let _ = self.left.wait_timeout_while(self.lock(), END_MAX, is_waiting);
    }

    /// This `Acquire` pairs with the store in `end`: the rings then contain all packets of the run.
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Clients>>> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handler that copies its packets for the clients of a tap.
#[derive(Debug)]
pub struct Tapped<H> {
    inner: H,
    tap: Arc<Tap>,
    /// The version of the list `clients` of this handler, which may be older than the tap's
    /// version.
    version: usize,
    clients: Arc<Clients>,
    is_watched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    BeforeHandler,
    AfterHandler,
}

impl<H> Tapped<H> {
    #[cold]
    fn follow(&mut self, version: usize) {
        self.version = version;
        self.clients = self.tap.clients.load_full();
        self.is_watched = self.clients.iter().any(Option::is_some);
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
        // `Acquire` pairs with the change in `Tap::change`.
        let version = self.tap.version.load(Ordering::Acquire);
        if version != self.version {
            self.follow(version);
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

#[cfg(test)]
mod tests {
    use steerage::packet::each;
    use steerage::testing::HandlerTester;

    use super::*;

    #[test]
    fn packets_are_copied_while_another_thread_has_the_lock() {
        let tap = Arc::new(Tap::default());
        let mut tester = HandlerTester::new(tap.around(each(|_packet| ())));
        tester.handle([[2; 60]]);
        let client = tap.attach(Wanted::default(), &[CpuId(0)]).unwrap();
        let locked = tap.lock();
        tester.handle([[2; 60]; 3]);
        drop(locked);
        assert_eq!(client.session.counts(), (3, 0));
        drop(client);
        assert!(!tap.lock().is_empty(), "the packet CPU does not free the client's memory");
        tester.handle([[2; 60]]);
        tap.change(|_| ());
        assert!(tap.lock().len() <= 1);
    }
}
