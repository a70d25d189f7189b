//! Messages from other threads to the handlers of an instance.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use steerage_core::control::Handle;
use steerage_core::handler::{Cpu, Handler};
use steerage_core::ids::BucketId;
use steerage_core::packet::Batch;
use steerage_flow::{Affinity, Timestamp};
use steerage_topology::CpuId;

/// A handler that gets messages through the [`Post`] of `Builder::build_with_messages`.
///
/// ```
/// # mod steerage { pub use steerage_core::{handler::*, packet::*}; pub mod messages { pub use steerage_handler::messages::*; } }
/// use std::collections::HashSet;
/// use std::net::IpAddr;
/// use std::sync::Arc;
///
/// use steerage::messages::TakesMessages;
/// use steerage::{Batch, Cpu, Handler};
///
/// /// Drops packets of blocked addresses. The list can change while packets arrive.
/// #[derive(Default)]
/// struct Block(Arc<HashSet<IpAddr>>);
///
/// impl Handler for Block {
///     type Moved = ();
///     type Report = ();
///
///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
///         for packet in batch.iter_mut() {
///             let source = packet.flow_key().and_then(|flow| flow.source());
///             if source.is_some_and(|source| self.0.contains(&source.ip())) {
///                 packet.discard();
///             }
///         }
///     }
///
///     fn finish(self, _cpu: &mut Cpu) {}
/// }
///
/// impl TakesMessages for Block {
///     type Message = Arc<HashSet<IpAddr>>;
///
///     fn message(&mut self, blocked: Self::Message, _cpu: &mut Cpu) {
///         self.0 = blocked;
///     }
/// }
/// ```
pub trait TakesMessages: Handler {
    /// The type of the messages.
    type Message: Send + 'static;

    /// Called once for each message, between two rounds of the CPU, in the order of posting. A
    /// message to a bucket goes to the bucket's CPU, after the state of the bucket has arrived
    /// there.
    fn message(&mut self, message: Self::Message, cpu: &mut Cpu);
}

/// The reason why a message could not be posted, with the message.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unposted<M> {
    /// Too many messages wait for the CPU.
    Full(M),
    /// The instance does not have the CPU, or has no group of queues with the bucket.
    NoSuchCpu(M),
    /// The handler has ended.
    Ended(M),
}

impl<M> fmt::Display for Unposted<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "cannot post a message: too many wait for the CPU already; post again later",
            Self::NoSuchCpu(_) => "cannot post a message: the instance has no such CPU or bucket",
            Self::Ended(_) => "cannot post a message: the handler has ended",
        })
    }
}

impl<M: fmt::Debug> std::error::Error for Unposted<M> {}

struct Letter<M> {
    to: Option<BucketId>,
    message: M,
}

struct Letters<M> {
    waiting: VecDeque<Letter<M>>,
    has_ended: bool,
}

type OfCpu<M> = Arc<Mutex<Letters<M>>>;

struct Office<M> {
    /// A CPU adds its queue when its handler is created, or when the first message is posted to it.
    cpus: Mutex<Vec<(CpuId, OfCpu<M>)>>,
    places: usize,
    handle: OnceLock<Handle>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M> Office<M> {
    fn letters(&self, cpu: CpuId) -> OfCpu<M> {
        let mut cpus = lock(&self.cpus);
        if let Some((_, letters)) = cpus.iter().find(|(other, _)| *other == cpu) {
            return Arc::clone(letters);
        }
        let waiting = VecDeque::with_capacity(self.places);
        let letters = Arc::new(Mutex::new(Letters { waiting, has_ended: false }));
        cpus.push((cpu, Arc::clone(&letters)));
        letters
    }

    fn post(&self, cpu: CpuId, letter: Letter<M>) -> Result<(), Unposted<M>> {
        // `wake` fails if the CPU belongs to another instance. A wake-up without a message has no
        // effect.
        let Some(handle) = self.handle.get().filter(|handle| handle.wake(cpu).is_ok()) else {
            return Err(Unposted::NoSuchCpu(letter.message));
        };
        let letters = self.letters(cpu);
        let added = add(&mut lock(&letters), letter, self.places);
        // The CPU is woken even if there was no room, because it may have tried to take the lock
        // while this thread held it.
        let _ = handle.wake(cpu);
        added.map_err(
            |(letter, has_ended)| {
                if has_ended { Unposted::Ended(letter.message) } else { Unposted::Full(letter.message) }
            },
        )
    }

    /// Passes a message on to another CPU. Called by a CPU of the receive path, so `forward` does
    /// not wait for a lock.
    fn forward(&self, cpu: CpuId, letter: Letter<M>) -> Result<(), Letter<M>> {
        let Ok(cpus) = self.cpus.try_lock() else { return Err(letter) };
        let Some((_, letters)) = cpus.iter().find(|(other, _)| *other == cpu) else { return Err(letter) };
        let Ok(mut letters) = letters.try_lock() else { return Err(letter) };
        letters.add_forwarded(letter);
        drop(letters);
        let _ = self.handle.get().map(|handle| handle.wake(cpu));
        Ok(())
    }

    /// Like [`forward`](Self::forward), but for a thread that stops handling packets, and may
    /// therefore wait for locks.
    fn forward_last(&self, cpu: CpuId, letter: Letter<M>) {
        lock(&self.letters(cpu)).add_forwarded(letter);
        let _ = self.handle.get().map(|handle| handle.wake(cpu));
    }
}

impl<M> Letters<M> {
    /// Adds a message without checking the limit, because two CPUs that forward messages could
    /// otherwise wait for each other.
    fn add_forwarded(&mut self, letter: Letter<M>) {
        if !self.has_ended {
            self.waiting.push_back(letter);
        }
    }
}

/// Adds a message. The second value of the error is true if the handler has ended.
fn add<M>(letters: &mut Letters<M>, letter: Letter<M>, places: usize) -> Result<(), (Letter<M>, bool)> {
    if letters.has_ended || letters.waiting.len() >= places {
        return Err((letter, letters.has_ended));
    }
    letters.waiting.push_back(letter);
    Ok(())
}

/// Sends messages to the handlers of an instance, from any thread.
pub struct Post<M>(Arc<Office<M>>);

impl<M> Clone for Post<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for Post<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Post of at most {} messages for each CPU", self.0.places)
    }
}

impl<M: Send + 'static> Post<M> {
    /// Creates a `Post` with room for `places` messages per CPU, to be [connected](Self::connect).
    pub fn new(places: usize) -> Self {
        Self(Arc::new(Office { cpus: Mutex::default(), places, handle: OnceLock::new() }))
    }

    /// Connects this `Post` to an instance whose handlers are [`WithMessages`] handlers of this
    /// `Post`.
    pub fn connect(&self, handle: &Handle) {
        let _ = self.0.handle.set(handle.clone());
    }

    /// Posts a message to the handler of `cpu`. Wakes the CPU if it sleeps.
    ///
    /// # Errors
    /// If the message cannot be posted, the error [`Unposted`] contains the message.
    pub fn to_cpu(&self, cpu: CpuId, message: M) -> Result<(), Unposted<M>> {
        self.0.post(cpu, Letter { to: None, message })
    }

    /// Posts a message to the handler that has the state of `bucket`. If the bucket moves, the
    /// message may arrive after messages that were posted later. Handlers must not call
    /// `to_bucket`, because it may wait.
    ///
    /// # Errors
    /// If the message cannot be posted, the error [`Unposted`] contains the message.
    pub fn to_bucket(&self, bucket: BucketId, message: M) -> Result<(), Unposted<M>> {
        match self.0.handle.get().and_then(|handle| handle.cpu_of(bucket)) {
            Some(cpu) => self.0.post(cpu, Letter { to: Some(bucket), message }),
            None => Err(Unposted::NoSuchCpu(message)),
        }
    }

    /// Posts a copy of a message to each handler. Returns the CPUs that did not get the message.
    pub fn to_all(&self, message: &M) -> Vec<CpuId>
    where
        M: Clone,
    {
        let cpus = self.0.handle.get().map(Handle::cpus).unwrap_or_default();
        cpus.into_iter().filter(|cpu| self.to_cpu(*cpu, message.clone()).is_err()).collect()
    }
}

/// A handler with its waiting messages, as `Builder::build_with_messages` creates it.
pub struct WithMessages<H: TakesMessages> {
    handler: H,
    cpu: CpuId,
    letters: OfCpu<H::Message>,
    post: Post<H::Message>,
}

enum Taken<M> {
    Ours(M),
    PassedOn,
    /// The first message has to wait. All later messages to the CPU also wait, so that the messages
    /// stay in order.
    NotNow,
    Nothing,
}

impl<H: TakesMessages> fmt::Debug for WithMessages<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handler with messages on CPU {}", self.cpu)
    }
}

impl<H: TakesMessages> WithMessages<H> {
    /// Wraps the handler of the CPU `cpu`.
    pub fn new(cpu: CpuId, handler: H, post: &Post<H::Message>) -> Self {
        let letters = post.0.letters(cpu);
        // A handler that replaces another handler (after a panic, for example) gets the waiting
        // messages.
        if !lock(&letters).waiting.is_empty() {
            let _ = post.0.handle.get().map(|handle| handle.wake(cpu));
        }
        Self { handler, cpu, letters, post: post.clone() }
    }

    /// Delivers a limited number of messages in each round, so that the CPU also handles packets
    /// while messages keep coming.
    fn deliver(&mut self, cpu: &mut Cpu) {
        let Some(handle) = self.post.0.handle.get() else { return };
        for _ in 0..self.post.0.places {
            match self.take(handle) {
                Taken::Ours(message) => self.handler.message(message, cpu),
                Taken::PassedOn => {}
                Taken::NotNow => break,
                Taken::Nothing => return,
            }
        }
        let _ = handle.wake(self.cpu);
    }

    /// Takes one message. Messages stay in the shared list until they are delivered, so that they
    /// count against the limit.
    fn take(&self, handle: &Handle) -> Taken<H::Message> {
        let mut letters = match self.letters.try_lock() {
            Ok(letters) => letters,
            Err(TryLockError::Poisoned(letters)) => letters.into_inner(),
            // The thread that holds the lock wakes this CPU when it has released the lock.
            Err(TryLockError::WouldBlock) => return Taken::Nothing,
        };
        let Some(letter) = letters.waiting.pop_front() else { return Taken::Nothing };
        let waits = match letter.to.map(|bucket| handle.try_cpu_of(bucket)) {
            Some(None) => letter,
            Some(Some(owner)) if owner != self.cpu => match self.post.0.forward(owner, letter) {
                Ok(()) => return Taken::PassedOn,
                Err(letter) => letter,
            },
            None | Some(Some(_)) => return Taken::Ours(letter.message),
        };
        letters.waiting.push_front(waits);
        Taken::NotNow
    }
}

impl<H: TakesMessages> Handler for WithMessages<H> {
    const AFFINITY: Affinity = H::AFFINITY;
    type Moved = H::Moved;
    type Report = H::Report;

    #[inline]
    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        self.handler.handle(batch, cpu);
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        self.handler.tick(cpu)
    }

    fn woken(&mut self, cpu: &mut Cpu) {
        self.deliver(cpu);
        self.handler.woken(cpu);
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<H::Moved> {
        self.handler.bucket_leaves(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: H::Moved) {
        self.handler.bucket_arrives(bucket, state);
    }

    /// Delivers or forwards the waiting messages. A message that is forwarded to a handler that has
    /// ended is lost.
    fn finish(mut self, cpu: &mut Cpu) -> H::Report {
        let waiting = {
            let mut letters = lock(&self.letters);
            letters.has_ended = true;
            std::mem::take(&mut letters.waiting)
        };
        for letter in waiting {
            let owner = letter.to.and_then(|bucket| self.post.0.handle.get()?.cpu_of(bucket));
            match owner.filter(|owner| *owner != self.cpu) {
                Some(owner) => self.post.0.forward_last(owner, letter),
                None => self.handler.message(letter.message, cpu),
            }
        }
        self.handler.finish(cpu)
    }
}
