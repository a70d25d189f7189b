//! Copies of the packets of a run for `steerage dump`.
//!
//! A client attaches by the control socket. From then on, each packet CPU copies the packets that
//! the client wants to a [ring] of its own, and the client's thread moves them to the socket.
//! Packet CPUs never wait: a packet that finds its ring full is counted as missed. While no client
//! is attached, a batch costs one comparison.

pub(crate) mod ring;
mod session;

use std::array;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use steerage::{Batch, BucketId, Cpu, CpuId, Handler, Timestamp};

use session::Session;
pub(crate) use session::Wanted;

/// The most clients at a time. Each client makes the packet CPUs copy its packets.
const CLIENTS_MAX: usize = 4;

/// How long the end of a run waits until the clients have read the last packets. A client that
/// reads needs milliseconds.
const END_MAX: Duration = Duration::from_secs(1);

/// The clients of a run, which its packet CPUs and the threads of the clients share.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    /// Raised after each change of the clients.
    version: AtomicUsize,
    clients: Mutex<Clients>,
    /// Notified after a client has left.
    left: Condvar,
}

#[derive(Debug, Default)]
struct Clients {
    attached: [Option<Arc<Session>>; CLIENTS_MAX],
    /// Clients that left, until no packet CPU refers to them. So no packet CPU frees their memory.
    gone: Vec<Arc<Session>>,
    has_ended: bool,
}

impl Tap {
    /// Wraps the function that makes each CPU's handler.
    pub(crate) fn around<H: Handler>(
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

    /// Attaches a client. Packets of batches that begin after this call are copied.
    fn attach(&self, session: Session) -> Result<Arc<Session>, String> {
        let session = Arc::new(session);
        let mut clients = self.lock();
        clients.gone.retain(|gone| Arc::strong_count(gone) > 1);
        let free = clients.attached.iter_mut().find(|client| client.is_none());
        let free = free.ok_or_else(|| format!("{CLIENTS_MAX} clients get packets already: end one of them"))?;
        *free = Some(Arc::clone(&session));
        self.raise_version();
        Ok(session)
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

    /// Pairs with the load in `Tapped::handle`. The clients themselves are read under the lock.
    fn raise_version(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Ends all clients: their threads pass on the packets that were copied, for a limited time. Call
    /// this function after the last packet was handled.
    pub(crate) fn end(&self) {
        let mut clients = self.lock();
        clients.has_ended = true;
        let is_waiting = |clients: &mut Clients| clients.attached.iter().any(Option::is_some);
        // The result says whether a client has not read its packets, which is not an error of the run.
        let _ = self.left.wait_timeout_while(clients, END_MAX, is_waiting);
    }

    fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handler whose packets clients may watch.
#[derive(Debug)]
pub(crate) struct Tapped<H> {
    inner: H,
    tap: Arc<Tap>,
    /// The version of `clients`.
    version: usize,
    clients: [Option<Arc<Session>>; CLIENTS_MAX],
    is_watched: bool,
}

/// When a packet is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    BeforeHandler,
    AfterHandler,
}

impl<H> Tapped<H> {
    /// Learns which clients are attached.
    #[cold]
    fn follow(&mut self) {
        // A packet CPU waits for no lock. If a client comes or goes at this moment, the CPU tries again with the next
        // batch, and the packets of this batch are copied for the clients that the CPU knows.
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
        // Pairs with `raise_version`.
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
