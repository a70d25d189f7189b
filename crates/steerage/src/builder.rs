use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use steerage_core::build::{Built, InputSpec, Spec, build};
use steerage_core::error::{BuildError, SetError};
use steerage_core::handler::{Handler, MakeHandler};
use steerage_core::limits::{
    CPUS_MAX, HANDLE_BUDGET, IDLE_POLL, KEPT_DEFAULT, Limits, MEMORY_MAX_DEFAULT, ORIGINATED_MAX, QueueLimits,
};
use steerage_core::{QueueHasher, ids::InputId, ids::TxId, rx::Input, sender::Sender, tx::Output};
use steerage_flow::dissect::Layers;
use steerage_flow::{Affinity, FlowHasher, FlowKey, LinkType};
use steerage_handler::messages::{Post, TakesMessages, WithMessages};
use steerage_ledger::Counters;
use steerage_mem::FRAME_BYTES_MAX;
use steerage_policy::{Balance, Guarded, Policy, Setting, SharedControl, first_plan, policy_info};
use steerage_topology::{CpuId, CpuMask, NodeMap, Topology, present, usable_memory};

use crate::handle::Handle;
use crate::hashing::Hashing;
use crate::instance::{Instance, STACK_BYTES, Threads};

type WithPost<H> = (Instance<WithMessages<H>>, Post<<H as TakesMessages>::Message>);

/// Builds an instance. Every setting has a default, except the inputs.
///
/// ```
/// use steerage::{Batch, Builder, Cpu, Handler, Hash, testing};
///
/// struct Count(usize);
///
/// impl Handler for Count {
///     type Moved = ();
///     type Report = usize;
///
///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
///         self.0 += batch.len();
///     }
///
///     fn finish(self, _cpu: &mut Cpu) -> usize {
///         self.0
///     }
/// }
///
/// let input = testing::input(vec![[0; 60]; 100]);
/// let builder = Builder::new().virtual_cpus(2).policy(Hash).input(input);
/// let outcome = builder.build(|_cpu| Count(0))?.start()?.join();
/// assert_eq!(outcome.reports.iter().map(|(_cpu, count)| count).sum::<usize>(), 100);
/// assert_eq!(outcome.snapshot.received(), 100);
/// # Ok::<(), steerage::BuildError>(())
/// ```
#[must_use = "nothing is built until `build` is called"]
pub struct Builder {
    cpus: Option<CpuMask>,
    there: Option<CpuMask>,
    rps_cpus: Option<CpuMask>,
    queue_masks: Vec<(usize, CpuMask)>,
    inputs: Vec<InputSpec>,
    outputs: Vec<Output>,
    senders: Vec<Sender>,
    hashing: Hashing,
    limits: Limits,
    queue_limits: QueueLimits,
    lpc_pages: Option<usize>,
    nodes: Option<NodeMap>,
    kept_max: usize,
    linear_bytes: usize,
    originated_max: usize,
    memory_max: usize,
    check_order: bool,
    coalesce: bool,
    always_hash: bool,
    threads: Threads,
    policy: Box<dyn Policy>,
    counters: Counters,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("cpus", &self.cpus).field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// Creates a builder with all defaults.
    pub fn new() -> Self {
        Self {
            cpus: None,
            there: None,
            rps_cpus: None,
            queue_masks: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            senders: Vec::new(),
            hashing: Hashing::DEFAULT,
            limits: Limits::DEFAULT,
            queue_limits: QueueLimits::DEFAULT,
            lpc_pages: None,
            nodes: None,
            kept_max: KEPT_DEFAULT,
            linear_bytes: 0,
            originated_max: 0,
            memory_max: MEMORY_MAX_DEFAULT,
            check_order: false,
            coalesce: false,
            always_hash: false,
            threads: Threads { pin: true, idle_poll: IDLE_POLL, stack_size: STACK_BYTES },
            policy: Box::new(Balance::new()),
            counters: Counters::new(),
        }
    }

    /// Sets the CPUs on which the instance runs, with one thread each. Default: the CPUs that this
    /// process may use. [`build`](Self::build) returns [`BuildError::NoSuchCpu`] for a CPU that the
    /// machine does not have.
    pub fn cpus(mut self, cpus: CpuMask) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Runs the instance on CPUs 0 to `count - 1`, even if the machine does not have these CPUs.
    /// Use virtual CPUs in tests. The threads of virtual CPUs are not pinned, and sleep as soon as
    /// they are idle. An instance cannot have both virtual CPUs and CPUs of the machine.
    pub fn virtual_cpus(mut self, count: usize) -> Self {
        self.cpus = Some((0..count.min(CPUS_MAX + 1)).map(|cpu| CpuId(cpu as u16)).collect());
        self.there = self.cpus.clone();
        (self.threads.pin, self.threads.idle_poll) = (false, Duration::ZERO);
        self
    }

    /// Sets whether each thread is pinned to its CPU, if the system allows it. Default: yes.
    pub fn pin(mut self, yes: bool) -> Self {
        self.threads.pin = yes;
        self
    }

    /// Sets the CPUs that handle packets. Default: all CPUs of the instance. A CPU that polls a
    /// queue but is not in the mask only receives packets. An empty mask turns steering off: the
    /// CPU that receives a packet also handles it.
    pub fn rps_cpus(mut self, mask: CpuMask) -> Self {
        self.rps_cpus = Some(mask);
        self
    }

    /// Sets the CPUs that handle the packets of one queue, in place of the masks of the queue's
    /// device and of the instance. Queues are numbered across all inputs, in the order in which the
    /// inputs are added, as in
    /// [`Handle::set_queue_rps_cpus`](steerage_core::control::Handle::set_queue_rps_cpus).
    pub fn queue_rps_cpus(mut self, queue: usize, mask: CpuMask) -> Self {
        self.queue_masks.push((queue, mask));
        self
    }

    /// Adds a device that receives packets. The instance's CPUs poll the device's queues in turn.
    pub fn input(self, input: Input) -> Self {
        self.input_on(input, &[], None)
    }

    /// Adds a device that receives packets, and returns the number that handlers get from
    /// [`Batch::input`](crate::Batch::input).
    pub fn add_input(&mut self, input: Input) -> InputId {
        self.inputs.push(InputSpec { input, rx_cpus: Vec::new(), mask: None });
        InputId((self.inputs.len() - 1) as u16)
    }

    /// Adds a device that receives packets. The CPUs in `rx_cpus` (all CPUs if `rx_cpus` is empty)
    /// poll the device's queues in turn. A CPU in `rx_cpus` that is not one of [`cpus`](Self::cpus)
    /// handles no packets. `mask` replaces the instance's mask for this device.
    pub fn input_on(mut self, input: Input, rx_cpus: &[CpuId], mask: Option<CpuMask>) -> Self {
        self.inputs.push(InputSpec { input, rx_cpus: rx_cpus.to_vec(), mask });
        self
    }

    /// Adds a device that sends packets. The first output is [`TxId(0)`](crate::TxId), the second
    /// `TxId(1)`, and so on.
    pub fn output(mut self, output: Output) -> Self {
        self.add_output(output);
        self
    }

    /// Adds a device that sends packets, and returns the number for
    /// [`Packet::transmit`](crate::Packet::transmit).
    ///
    /// This handler sends all packets except broadcasts. At the end of the run, the handler sends a
    /// packet that contains the number of broadcasts:
    ///
    /// ```
    /// use steerage::{Batch, Builder, Cpu, Handler, LinkType, TxId, testing};
    ///
    /// struct Unicast {
    ///     to: TxId,
    ///     broadcasts: u8,
    /// }
    ///
    /// impl Handler for Unicast {
    ///     type Moved = ();
    ///     type Report = ();
    ///
    ///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
    ///         for packet in batch.iter_mut() {
    ///             if packet.data().starts_with(&[0xff; 6]) {
    ///                 self.broadcasts += 1;
    ///                 packet.discard();
    ///             } else {
    ///                 packet.transmit(self.to);
    ///             }
    ///         }
    ///     }
    ///
    ///     fn finish(self, cpu: &mut Cpu) {
    ///         // If there is no room, the packet is not sent.
    ///         let _ = cpu.send(self.to, LinkType::ETHERNET, &[self.broadcasts; 60]);
    ///     }
    /// }
    ///
    /// let (output, recorded) = testing::output();
    /// let input = testing::input([[0xff; 60], [2; 60]]);
    /// let mut builder = Builder::new().virtual_cpus(1).originated_max(1).input(input);
    /// let to = builder.add_output(output);
    /// let running = builder.build(move |_cpu| Unicast { to, broadcasts: 0 })?.start()?;
    /// let ledger = running.join().snapshot;
    /// assert_eq!(recorded.packets(), [[2; 60].into(), [1; 60].into()]);
    /// assert_eq!((ledger.verdicts().transmitted, ledger.cpus[0].originated), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_output(&mut self, output: Output) -> TxId {
        self.outputs.push(output);
        // `build` returns an error if there are more than `OUTPUTS_MAX` outputs.
        TxId((self.outputs.len() - 1) as u8)
    }

    /// Adds a sender, through which any thread can send packets to the output `to`: packets that a
    /// handler has [kept](crate::Packet::keep), or copies of other frames. At most `places` packets
    /// may wait in the sender. [`Sender`] explains when the run of an instance with a sender ends.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::thread;
    ///
    /// use steerage::packet::Kept;
    /// use steerage::{Batch, Builder, Cpu, Handler, testing};
    ///
    /// /// Passes each packet to another thread.
    /// struct Ask(mpsc::Sender<Kept>);
    ///
    /// impl Handler for Ask {
    ///     type Moved = ();
    ///     type Report = ();
    ///
    ///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
    ///         for kept in batch.iter_mut().filter_map(|packet| packet.keep().ok()) {
    ///             let _ = self.0.send(kept);
    ///         }
    ///     }
    ///
    ///     fn finish(self, _cpu: &mut Cpu) {}
    /// }
    ///
    /// let (output, recorded) = testing::output();
    /// let mut builder = Builder::new().virtual_cpus(2).input(testing::input([[1; 60], [2; 60]]));
    /// let to = builder.add_output(output);
    /// let sender = builder.add_sender(to, 64)?;
    /// let (ask, questions) = mpsc::channel::<Kept>();
    /// let running = builder.build(move |_cpu| Ask(ask.clone()))?.start()?;
    /// let answers = thread::spawn(move || {
    ///     for mut packet in questions {
    ///         packet[0] = 9;
    ///         // `Err` returns the packet if 64 packets wait already.
    ///         let _ = sender.try_send(packet);
    ///     }
    /// });
    /// running.join();
    /// answers.join().expect("no panic");
    /// assert!(recorded.packets().iter().all(|packet| packet.bytes[0] == 9) && recorded.packets().len() == 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails with [`BuildError::System`] if the process has no free file descriptor.
    pub fn add_sender(&mut self, to: TxId, places: usize) -> Result<Sender, BuildError> {
        let failed = |error| BuildError::System { operation: "make an eventfd for a sender", error };
        let sender = Sender::new(to, places).map_err(failed)?;
        self.senders.push(sender.clone());
        Ok(sender)
    }

    /// Returns the packet function's counters, to which the program can add its own. Any thread can
    /// read the counters during the run and after it, with
    /// [`Handle::counters`](crate::Handle::counters). Snapshots, metrics and `steerage top` show
    /// the packet function's counters.
    ///
    /// ```
    /// use steerage::stats::CpuCounter;
    /// use steerage::{Batch, Builder, Cpu, Handler, testing};
    ///
    /// /// Drops packets that are shorter than 100 bytes.
    /// struct Long {
    ///     short: CpuCounter,
    /// }
    ///
    /// impl Handler for Long {
    ///     type Moved = ();
    ///     type Report = ();
    ///
    ///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
    ///         for packet in batch.iter_mut().filter(|packet| packet.total_len() < 100) {
    ///             packet.discard();
    ///             self.short.add(1);
    ///         }
    ///     }
    ///
    ///     fn finish(self, _cpu: &mut Cpu) {}
    /// }
    ///
    /// let builder = Builder::new().virtual_cpus(2).input(testing::input([[0; 60]; 100]));
    /// let short = builder.counters().add("short", "Packets of less than 100 bytes.", "packets")?;
    /// let running = builder.build(move |cpu| Long { short: short.on(cpu) })?.start()?;
    /// let handle = running.handle();
    /// running.join();
    /// assert_eq!((&*handle.counters()[0].name, handle.counters()[0].total), ("short", 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sets the hash function, with its key, that determines the bucket of a flow. Default: AES, or
    /// SipHash-1-3 on a CPU without AES instructions, with a random key.
    pub fn hash(mut self, hasher: FlowHasher) -> Self {
        self.hashing.hasher = Some(hasher);
        self
    }

    /// Sets a function that determines the flow of an Ethernet frame. The frame's headers determine
    /// the flow if the function returns `None`, or if the link is not Ethernet. To send both
    /// directions of a flow to one CPU, return [`FlowKey::both_directions`].
    ///
    /// ```
    /// use steerage::flow::{self, HeaderKind, Layers};
    /// use steerage::{Builder, FlowKey, LinkType};
    ///
    /// /// A GTP-U tunnel as a whole, by its endpoint identifier (3GPP TS 29.281).
    /// fn gtp_tunnel(frame: &[u8]) -> Option<FlowKey> {
    ///     let found = flow::dissect(frame, LinkType::ETHERNET, Layers::Inner);
    ///     let tunnel = found.tunnel.filter(|tunnel| tunnel.kind == HeaderKind::GtpU)?;
    ///     Some(FlowKey::from_bytes(&tunnel.id?.to_be_bytes()))
    /// }
    ///
    /// let _builder = Builder::new().flow_key(gtp_tunnel);
    /// ```
    pub fn flow_key(self, key: impl Fn(&[u8]) -> Option<FlowKey> + Clone + Send + Sync + 'static) -> Self {
        self.flow_key_with_link(move |frame, link| if link == LinkType::ETHERNET { key(frame) } else { None })
    }

    /// Like [`flow_key`](Self::flow_key), but for the frames of all links. The function gets the
    /// type of the frame's first header: [`LinkType::RAW`] for TUN interfaces, whose frames begin
    /// with an IP header.
    pub fn flow_key_with_link(
        mut self,
        key: impl Fn(&[u8], LinkType) -> Option<FlowKey> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.hashing.by_key =
            Some(Arc::new(move |hasher, affinity, layers| QueueHasher::by_key(hasher, affinity, layers, key.clone())));
        self
    }

    /// Selects which headers of a packet in a tunnel determine its flow. Default: the innermost
    /// headers. `layers` does not change a hash that the device computes.
    pub fn layers(mut self, layers: Layers) -> Self {
        self.hashing.layers = layers;
        self
    }

    /// Sets whether steerage may use a hash that the device computes. A device's hash is used only
    /// if all packets that must go to the same handler have the same hash. Default: yes.
    pub fn device_hash(mut self, yes: bool) -> Self {
        self.hashing.device_hash = yes.then_some(None);
        self
    }

    /// Allows a device's hash if all packets that belong together according to `affinity` have the
    /// same hash. Default: the [`AFFINITY`](crate::Handler::AFFINITY) of the handler. Call
    /// `device_affinity` if the handler also works correctly with `affinity`.
    pub fn device_affinity(mut self, affinity: Affinity) -> Self {
        self.hashing.device_hash = Some(Some(affinity));
        self
    }

    /// Sets how many frames may wait for one CPU, like Linux's `netdev_max_backlog`. All live
    /// queues (queues that cannot wait) share this limit. Each queue whose device can wait, such as
    /// a file, has a separate limit of `frames`. Default: 1000.
    pub fn backlog(mut self, frames: usize) -> Self {
        self.limits.backlog = frames;
        self
    }

    /// Sets the maximum number of frames that one poll takes from a queue, and that a CPU hands to
    /// another CPU in one list: `dev_weight`. Default and maximum:
    /// [`POLL_BUDGET`](crate::limits::POLL_BUDGET).
    pub fn dev_weight(mut self, frames: usize) -> Self {
        self.limits.dev_weight = frames;
        self
    }

    /// Sets the size of each queue's local page cache (a stock of free packet pages), in pages.
    /// With 0, there is no cache. Default:
    /// [`LpcMemory::default_pages`](crate::memory::LpcMemory::default_pages), or no cache if the
    /// queue's device has its own blocks of memory. If the device has its own blocks, only copied
    /// frames use the local page cache.
    pub fn lpc_pages(mut self, pages: usize) -> Self {
        self.lpc_pages = Some(pages);
        self
    }

    /// Sets the NUMA node of each CPU. Default: the nodes of the machine, or a single node if
    /// threads are not pinned.
    pub fn nodes(mut self, nodes: NodeMap) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Sets the maximum length, in bytes, of frames that are copied out of the page in which the
    /// device stored them: `rx-copybreak`. Only devices that have a ring of pages copy frames.
    /// Default: 0, which copies no frame.
    pub fn copybreak(mut self, bytes: usize) -> Self {
        self.queue_limits.copybreak = bytes;
        self
    }

    /// Sets the maximum length, in bytes, of frames that
    /// [`Packet::linearise`](crate::Packet::linearise) can copy from several buffers into one page.
    /// The pages of the pool have at least this length. The default, 0, is enough unless an input
    /// receives a frame in several buffers. Maximum: [`FRAME_BYTES_MAX`].
    pub fn linear_bytes(mut self, bytes: usize) -> Self {
        self.linear_bytes = bytes.min(FRAME_BYTES_MAX);
        self
    }

    /// Sets how many packets of each queue the handlers may keep at the same time. Default: 1024.
    pub fn kept_max(mut self, packets: usize) -> Self {
        self.kept_max = packets;
        self
    }

    /// Sets the maximum number of packets from [`Cpu::send`](crate::Cpu::send) that may wait on
    /// each CPU. The page pool reserves one page for each packet that may wait to be sent. Default:
    /// 0, or 64 with a [sender](Self::add_sender). Maximum:
    /// [`ORIGINATED_MAX`](crate::limits::ORIGINATED_MAX).
    pub fn originated_max(mut self, packets: usize) -> Self {
        self.originated_max = packets.min(ORIGINATED_MAX);
        self
    }

    /// Sets the limit on the memory of packets and rings together, in bytes. Default: 1 GiB.
    pub fn memory_max(mut self, bytes: usize) -> Self {
        self.memory_max = bytes;
        self
    }

    /// Sets whether the instance checks that the packets of each bucket are finished in order of
    /// arrival. Default: no.
    pub fn check_order(mut self, yes: bool) -> Self {
        self.check_order = yes;
        self
    }

    /// Sets whether consecutive segments of a TCP or UDP flow in a batch are merged before the
    /// handler is called: see [`Batch`](crate::Batch). Use merging for bulk transfers if the
    /// handler does the same work for each packet of a flow. Default: no.
    pub fn coalesce(mut self, yes: bool) -> Self {
        self.coalesce = yes;
        self
    }

    /// Sets whether frames are hashed even if one CPU has all buckets. Handlers need this setting
    /// if they call [`flow_hash`](crate::Packet::flow_hash) and need the same hash for all
    /// fragments of a datagram. Default: no.
    pub fn always_hash(mut self, yes: bool) -> Self {
        self.always_hash = yes;
        self
    }

    /// Sets the time for which an idle CPU polls before it sleeps. Default: 50 us.
    pub fn idle_poll(mut self, time: Duration) -> Self {
        self.threads.idle_poll = time;
        self
    }

    /// Sets the stack size, in bytes, of each thread that [`Instance::start`] starts. A handler may
    /// take at most an eighth of the stack, because several copies of the handler are on the stack
    /// while it is created. Data of the handler in a `Box` or a `Vec` is not on the stack. Default:
    /// [`STACK_BYTES`](crate::limits::STACK_BYTES), for handlers of up to 256 KiB.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.threads.stack_size = bytes;
        self
    }

    /// Sets the policy that assigns buckets to the CPUs of a mask.
    ///
    /// With [`Balance`](crate::Balance), the default, the receiving CPU does all the work as long
    /// as it is fast enough, and other CPUs are added when the load grows. With
    /// [`Hash`](crate::Hash), all CPUs have equal shares of the buckets, as in Linux. Each group of
    /// queues (the queues with the same mask) has its own policy, which [`Policy::fresh`] creates.
    /// A policy that panics, or chooses a CPU outside of its group of queues, is reported once and
    /// replaced by [`Hash`](crate::Hash).
    pub fn policy(mut self, policy: impl Policy + 'static) -> Self {
        self.policy = Box::new(Guarded::new(policy));
        self
    }

    /// Builds the instance, which does not run yet. Each CPU creates its handler with `make`, on
    /// its own thread.
    ///
    /// # Errors
    /// A [`BuildError`] says what does not fit, and what to do.
    pub fn build<H, F>(self, make: F) -> Result<Instance<H>, BuildError>
    where
        H: Handler,
        F: Fn(CpuId) -> H + Send + Sync + 'static,
    {
        let (built, handle, threads) = self.build_without_handlers(H::AFFINITY)?;
        let make: MakeHandler<H> = Arc::new(make);
        Ok(Instance { parts: built.into_parts(&make), handle, threads })
    }

    fn build_without_handlers(self, affinity: Affinity) -> Result<(Built, Handle, Threads), BuildError> {
        let (threads, policy, counters) = (self.threads, self.policy.fresh(), self.counters.clone());
        let setting = Setting::new(&self.inputs, threads.pin);
        let spec = self.spec(affinity, setting.clone())?;
        let built = build(spec, &|cpus, owners| setting.joining_orders(cpus, owners))?;
        built.handle.ledgers().show(counters);
        let control = SharedControl::new(built.handle.clone(), policy, setting);
        let handle = Handle { core: built.handle.clone(), control };
        Ok((built, handle, threads))
    }

    /// Like [`build`](Self::build), for handlers that get messages from other threads. At most
    /// `places` messages may wait for each CPU.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub fn build_with_messages<H, F>(self, places: usize, make: F) -> Result<WithPost<H>, BuildError>
    where
        H: TakesMessages,
        F: Fn(CpuId) -> H + Send + Sync + 'static,
    {
        let post = Post::new(places);
        let of_handlers = post.clone();
        let instance = self.build(move |cpu| WithMessages::new(cpu, make(cpu), &of_handlers))?;
        post.connect(&instance.handle());
        Ok((instance, post))
    }

    fn spec(self, affinity: Affinity, setting: Setting) -> Result<Spec, BuildError> {
        let pin = self.threads.pin;
        let (hasher, device_hash) = self.hashing.for_queues(affinity)?;
        let queues = self.inputs.iter().map(|asked| asked.input.queues.len()).sum();
        if let Some((queue, _)) = self.queue_masks.iter().find(|(queue, _)| *queue >= queues) {
            return Err(SetError::NoSuchQueue { queue: *queue, queues }.into());
        }
        let workers = self.cpus.unwrap_or_else(|| Topology::read().default_mask());
        let named = self.inputs.iter().flat_map(|asked| &asked.rx_cpus).copied().chain(workers.iter());
        // An unpinned thread may run on any CPU, so the CPU numbers of its instance need not exist.
        let there = self.there.or_else(|| present().filter(|_| self.threads.pin));
        there.map_or(Ok(()), |there| there.check(named))?;
        Ok(Spec {
            mask: self.rps_cpus.unwrap_or_else(|| workers.clone()),
            workers,
            queue_masks: self.queue_masks,
            inputs: self.inputs,
            outputs: self.outputs,
            hasher,
            device_hash,
            affinity,
            limits: self.limits,
            queue_limits: self.queue_limits,
            lpc_pages: self.lpc_pages,
            nodes: self.nodes.unwrap_or_else(|| if pin { NodeMap::of_machine() } else { NodeMap::default() }),
            kept_max: self.kept_max,
            linear_bytes: self.linear_bytes,
            originated_max: self.originated_max.max(if self.senders.is_empty() { 0 } else { HANDLE_BUDGET }),
            senders: self.senders,
            memory_max: self.memory_max,
            usable_memory: usable_memory().unwrap_or(u64::MAX),
            check_order: self.check_order,
            coalesce: self.coalesce,
            always_hash: self.always_hash,
            policy: policy_info(&*self.policy),
            bucket_plan: first_plan(&*self.policy, setting),
        })
    }
}
