//! Receive packet steering in user space: spreads the packets of one busy receive queue over many
//! CPUs, flow by flow, in order, in batches, and without locks.
//!
//! Linux steers packets inside the kernel (RPS, receive packet steering). This crate steers packets
//! to functions in your program. A packet function is a [`Handler`], and each CPU has its own. All
//! packets of a flow go to the same handler, in order. If a flow moves to another CPU, its state
//! moves too.
//!
//! # Example
//!
//! This program counts the packets of some addresses on a live interface. The file `watched`
//! contains one address per line. SIGHUP makes the program read `watched` again, and Ctrl-C ends
//! the program. The interface needs the capability CAP_NET_RAW, which the program drops before it
//! handles packets.
//!
//! ```no_run
//! use std::collections::HashSet;
//! use std::error::Error;
//! use std::net::IpAddr;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use std::{fs, thread};
//!
//! use signal_hook::consts::{SIGHUP, SIGINT};
//! use signal_hook::iterator::Signals;
//! use steerage::messages::TakesMessages;
//! use steerage::prelude::*;
//! use steerage_device::af_packet::AfPacketOptions;
//! use steerage_guard::capabilities;
//!
//! type Watched = Arc<HashSet<IpAddr>>;
//!
//! fn read() -> Result<Watched, Box<dyn Error>> {
//!     Ok(fs::read_to_string("watched")?.lines().map(str::parse).collect::<Result<HashSet<_>, _>>()?.into())
//! }
//!
//! /// One CPU's packet function.
//! struct Watch {
//!     watched: Watched,
//!     packets: u64,
//! }
//!
//! impl Handler for Watch {
//!     type Moved = ();
//!     type Report = u64;
//!
//!     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
//!         for packet in batch.iter_mut() {
//!             let Some(flow) = packet.flow_key() else { continue };
//!             let mut ends = [flow.source(), flow.destination()].into_iter().flatten();
//!             self.packets += u64::from(ends.any(|end| self.watched.contains(&end.ip())));
//!         }
//!     }
//!
//!     fn finish(self, _cpu: &mut Cpu) -> u64 {
//!         self.packets
//!     }
//! }
//!
//! impl TakesMessages for Watch {
//!     type Message = Watched;
//!
//!     /// The configuration has changed.
//!     fn message(&mut self, watched: Watched, _cpu: &mut Cpu) {
//!         self.watched = watched;
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let watched = read()?;
//!     let mut signals = Signals::new([SIGINT, SIGHUP])?;
//!     let input = AfPacketOptions::new("eth1").filtered("ip or ip6")?.open()?.input;
//!     capabilities::drop_all()?;
//!
//!     let make = move |_cpu| Watch { watched: Arc::clone(&watched), packets: 0 };
//!     let (instance, post) = Builder::new().input(input).build_with_messages(8, make)?;
//!     let running = instance.start()?;
//!     let handle = running.handle();
//!     let to_stop = running.handle();
//!     thread::spawn(move || {
//!         for signal in signals.forever() {
//!             if signal == SIGINT {
//!                 to_stop.stop();
//!                 continue;
//!             }
//!             match read() {
//!                 Ok(watched) => drop(post.to_all(&watched)),
//!                 Err(error) => eprintln!("the list stays as it is: {error}"),
//!             }
//!         }
//!     });
//!
//!     while !handle.wait_finished(Duration::from_secs(1)) {
//!         for cpu in handle.snapshot().cpus {
//!             println!("CPU {}: {} packets in {:?}", cpu.cpu, cpu.processed, cpu.busy);
//!         }
//!     }
//!     let outcome = running.join();
//!     let packets: u64 = outcome.reports.iter().map(|(_cpu, packets)| packets).sum();
//!     println!("{packets} packets of watched addresses, dropped: {}", outcome.snapshot.dropped());
//!     outcome.notes().iter().for_each(|note| println!("{note}"));
//!     Ok(())
//! }
//! ```
//!
//! The crate [steerage-device](https://docs.rs/steerage-device) contains devices for network
//! interfaces, capture files, TUN and TAP, and generated traffic.
//!
//! # Modules
//!
//! **The root module** contains what a program needs to run packet functions. A [`Builder`] has all
//! settings, and builds an [`Instance`]. [`start`](Instance::start) returns a [`Running`]. A
//! [`Handle`] changes, reads and stops the instance from any thread. A [`Handler`] gets a [`Batch`]
//! of [`Packet`]s and its [`Cpu`]. At the end, [`Outcome`] contains the reports of the handlers.
//! [`prelude`] contains the names that nearly every program imports.
//!
//! [`packet`] contains the parts of packets and the verdicts on them. [`Kept`](packet::Kept)
//! packets outlive their batch, and any thread can send them through a [`Sender`](packet::Sender).
//! With [`messages`], other threads send values to packet functions.
//!
//! [`flow`] computes a frame's [`FlowKey`], a full [`Dissection`](flow::Dissection), or a hash.
//! [`PacketClock`](flow::PacketClock) is for timeouts that follow the packets' own times.
//! [`flow::Table`] keeps a state for each flow, which expires, and moves to another CPU with the
//! flow's bucket. [`flow::wire`] contains protocol numbers, header layouts, the Internet checksum
//! and a frame builder.
//!
//! [`stats`] is the ledger, which counts packets. A [`Snapshot`] contains all counts by queue, CPU
//! and output, and the [counters](Builder::counters) of the packet function. Each lost packet is
//! counted for exactly one [`DropReason`](stats::DropReason).
//!
//! A [`policy`] decides which CPUs of a mask handle packets. [`Balance`], the default, adds CPUs as
//! the load grows. With [`Hash`](struct@Hash), all CPUs get equal shares of the buckets, as in
//! Linux. To write your own policy, implement [`Policy`](policy::Policy).
//!
//! [`testing`] runs packet functions and devices in unit tests, without threads:
//! [`run`](testing::run), [`HandlerTester`](testing::HandlerTester),
//! [`QueueTester`](testing::QueueTester).
//!
//! [`device`] is for people who write devices: a device implements [`RxQueue`](device::RxQueue) to
//! receive packets and [`TxQueue`](device::TxQueue) to send packets. [`threads`] is for programs
//! that run the instance's CPUs on their own threads, or in an async runtime: see
//! [`Instance::split`].
//!
//! [`topology`] reads the CPUs of the machine, their caches, NUMA nodes and control groups, and has
//! types for CPU lists and masks. [`limits`] contains the defaults and ranges of settings.
//! [`memory`] contains tables in huge pages for your own data, and the size of page caches.
//!
//! # Guides
//!
//! The repository explains how to [write a packet
//! function](https://github.com/steerage/steerage/blob/main/docs/functions.md) and how to [write a
//! device](https://github.com/steerage/steerage/blob/main/docs/devices.md).
#![forbid(unsafe_code)]

mod builder;
mod handle;
mod hashing;
mod instance;

pub use steerage_core::device::DeviceError;
pub use steerage_core::error::{BuildError, SetError};
pub use steerage_core::handler::{Cpu, Handler};
pub use steerage_core::ids::{BucketId, InputId, TxId};
pub use steerage_core::packet::{Batch, NoRoom, Packet};
pub use steerage_core::{rx::Input, tx::Output};
pub use steerage_flow::{Affinity, FlowKey, LinkType, Timestamp, WallTime};
pub use steerage_ledger::Snapshot;
pub use steerage_policy::{Balance, Hash};
pub use steerage_topology::{CpuId, CpuMask};

pub use builder::Builder;
pub use {handle::Handle, instance::Instance, instance::Outcome, instance::Running};
pub use {steerage_testing as testing, steerage_topology as topology};

/// The ledger: how many packets were received, delivered and dropped, by CPU, queue and output.
///
/// With the cargo feature `serde`, a [`Snapshot`] can be written and read, for example as JSON. A
/// snapshot in JSON has the same keys as `snapshot` in the JSON report of the command `steerage`. A
/// serialized snapshot does not contain the addresses of flows
/// ([`Elephant::flow`](stats::Elephant::flow)).
pub mod stats {
    pub use steerage_ledger::{
        Backing, BucketSnapshot, CostEstimate, CounterError, CounterSnapshot, Counters, CpuCounter, CpuSnapshot,
        DropReason, Drops, Elephant, Findings, GroupSnapshot, MemoryUse, MoveCause, MoveCounts, NamedCounter,
        OutputSnapshot, PoolSnapshot, QueueError, QueueSnapshot, RegimeEstimate, Snapshot, Totals, Verdicts,
    };
}

/// Policies decide which CPUs of a mask handle packets. Programs can implement their own policies.
pub mod policy {
    #[doc(hidden)]
    pub use steerage_policy::is_same_distance;
    pub use steerage_policy::{
        Balance, Costs, CpuLoad, GroupLoad, GroupStart, Hash, MapRequest, POLICIES, PathCosts, Plan, Policy,
        PolicyTester, Prediction, REFINE_EVERY, REFINE_EVERY_MAX, RegimeKind, UnknownPolicy, Window, Workers, predict,
    };
}

/// Packets, their parts, and kept packets, which outlive their batch.
pub mod packet {
    pub use steerage_core::ids::Verdict;
    pub use steerage_core::packet::{
        Batch, Behind, Kept, NoRoom, Packet, Packets, Parts, Positions, Received, Segments, SegmentsMut,
    };
    pub use steerage_core::sender::Sender;
    pub use steerage_handler::each::{Each, each};
}

/// Messages from other threads to packet functions: see [`Builder::build_with_messages`].
pub mod messages {
    pub use steerage_handler::messages::{Post, TakesMessages, Unposted, WithMessages};
}

/// The interface of devices, for people who write devices.
///
/// # A ring of pages
///
/// If a card or another process fills the pages, the device *posts* empty pages: it puts the pages
/// into a ring before packets arrive.
///
/// - `Capabilities::posted` is the maximum number of pages that the device posts.
/// - `Completions::refill` posts pages. A `Fit` contains the maximum length of a frame in a page,
///   and the offset at which the frame begins. `Completions::alloc` allocates one page.
/// - When a page is filled, `Completions::rx_finish` hands the frame over, and returns a page to
///   post in place of the filled page. If no page is free, the frame is dropped (drop reason
///   `no_page`) and `rx_finish` returns the filled page, to be posted again. An entry of the ring
///   is never without a page.
/// - `Completions::give_page` or `RxQueue::close` returns a page without a frame to the pool. If
///   the device merely drops the `Page`, the pool loses the page. In debug and fuzz builds, a
///   device that writes to a page after returning the page causes a panic.
/// - `RxQueue::open` creates a `Posted` from the memory region. A `Posted` converts pages to
///   addresses for the ring, and addresses to pages.
///
/// A page has at least 128 bytes (`HEADROOM`) before a frame, for `prepend`. A page has 64 bytes
/// (`TAILROOM`) after the longest frame, for `append`. To hand over a page from
/// `Completions::alloc`, write the frame at `HEADROOM` and call `Completions::push` with
/// `Completion::new(page, HEADROOM, len)`.
///
/// # Memory of its own
///
/// A device with its own memory, such as a mapped ring or file, can *lend* frames from this memory.
/// A frame in the device's memory is copied to a page only if a packet function writes to the frame
/// or keeps it.
///
/// - `Blocks::map` returns the blocks and a `Claim`, which the device keeps. Only the holder of the
///   `Claim` can read or write a block, or lend frames from it. `RxQueue::open` hands the blocks
///   over with `Opened::lending(blocks)`.
/// - `Completions::lending` returns the free part of a block, after the last lent frame. Hand over
///   the frames of a block from front to back, with `Lending::push` for one frame or
///   `Lending::push_each` for many.
/// - A `FrameHeader` of 16 bytes before the frame contains the frame's receive time and its length
///   on the wire. In a page, the `FrameHeader` is at the end of the headroom
///   (`Completion::with_header`).
///
/// A frame that is not completely inside its page or block is counted as lost (drop reason
/// `device`).
///
/// # Frames in several buffers
///
/// A `Gather` collects the buffers of a frame, whose first buffer must contain all headers.
/// `Completions::gather` adds a buffer to the frame. `Completions::rx_finish_part` adds a buffer,
/// and returns another page to post. `Completions::push_gathered` hands the frame over, and
/// `Completions::spoil` reports that one of its buffers was lost. `RxQueue::close` calls
/// `Gather::close`, which returns the pages of an incomplete frame.
///
/// ```rust
/// use steerage::device::{Completions, Gather, Page};
///
/// /// A buffer of the ring was filled: hands it over, and posts another page in its place.
/// fn filled(
///     out: &mut Completions<'_>,
///     begun: &mut Gather,
///     posted: &mut Page,
///     page: Page,
///     len: usize,
///     last: bool,
/// ) {
///     *posted = out.rx_finish_part(begun, page, steerage::limits::HEADROOM, len);
///     if last {
///         out.push_gathered(begun, None);
///     }
/// }
/// ```
///
/// # Super-frames
///
/// A *super-frame* is one frame that represents several packets. An `Offload` (module
/// `flow::offload`) describes how to cut a super-frame into packets.
///
/// - `Offload::from_virtio` reads and checks a `virtio_net_hdr`. `Offload::super_frame` is for a
///   device that created the headers of the super-frame itself. If `from_virtio` or `super_frame`
///   returns an error, report the frame with `Completions::lost`. `Lending::push_offload` hands the
///   super-frame over, and needs 32 bytes (`OFFLOAD_BYTES`) before the frame. The device counts
///   packets on the wire in `DeviceCounts` (`wire_packets`, `wire_bytes`).
/// - `Offload::to_virtio` creates the `virtio_net_hdr` for the kernel, and `Segments` cuts the
///   super-frame into packets. An output that does not support super-frames must refuse them. If
///   `TxCapabilities::merged` is set, `TxQueue::send` accepts merged packets, and counts all
///   `packet.frames()` frames of a merged packet in `Sent`. If `merged` is not set, merged packets
///   are split before the output gets them.
/// - Limit the number of blocks that packets for each CPU can occupy (`Blocks::shared`). Without
///   this limit on blocks, packets for a stalled CPU may occupy all blocks. If all blocks of the
///   device's memory are occupied, the device must continue to receive: it copies short packets
///   into pages, and reports super-frames as lost.
pub mod device {
    pub use steerage_core::completions::{Completions, Filled, Gather, Lending, OFFLOAD_BYTES};
    pub use steerage_core::device::{
        Capabilities, DeviceCounts, DeviceError, DeviceName, FileWindows, LeaseRequest, LeasedFile, Opened, RecordForm,
        Shown, TxCapabilities, TxResources, move_over,
    };
    pub use steerage_core::rx::{Input, Polled, RxQueue};
    pub use steerage_core::tx::{OpenTx, Outgoing, OutgoingPacket, Output, Sent, TxQueue};
    pub use steerage_ledger::{TxAccount, TxSource};
    pub use steerage_mem::{Backing, Blocks, Claim, Completion, Fit, FrameHeader, Page, Posted, Region, RegionError};
    #[doc(hidden)]
    pub use steerage_mem::{InFlight, Reaper, Spot};
}

/// The [`FlowKey`] and the hash of a frame's headers, and [`Table`](flow::Table), which keeps state
/// by flow.
pub mod flow {
    pub use steerage_core::rps_map::{bucket_of, even_share, hash_of_bucket};
    pub use steerage_flow::dissect::{
        Dissection, End, Fragment, Header, HeaderKind, IpLayer, KernelFlow, Layers, Tunnel, dissect, flow_key,
        is_tunnel, set_vxlan_ports,
    };
    pub use steerage_flow::{
        Affinity, Datagram, Datagrams, FlowHash, FlowHasher, FlowKey, FlowParts, HashKey, HashKind, HashUnavailable,
        LinkType, PacketClock, ParseFlowKeyError, ParseHashKeyError, SteeringKey, SteeringKeys, Timestamp, UnknownHash,
        WallTime,
    };
    pub use steerage_flow::{hash, limits, offload, wire, wire::protocol};
    pub use steerage_handler::table::{Moment, Part, Table};
}

/// Types for programs that run an instance's CPUs on their own threads: see [`Instance::split`].
pub mod threads {
    pub use steerage_core::softnet::{CpuPart, Softnet, Stepped};
    pub use steerage_core::{Armed, platform::Machine};
    #[doc(hidden)]
    pub use {steerage_core::platform::Platform, steerage_core::softnet::Phase, steerage_mem::park::Bell};
}

/// The limits that programs need: sizes, and the defaults and ranges of settings.
pub mod limits {
    pub use crate::instance::STACK_BYTES;
    pub use steerage_core::limits::{
        BACKLOG_DEFAULT, BACKLOG_MAX, BUCKETS, CPUS_MAX, DEAD_AFTER, DRAIN_MAX, FLOW_LIMIT_TABLE_LEN,
        FLOW_LIMIT_TABLE_LEN_MAX, HANDLE_BUDGET, HEADROOM, KEPT_DEFAULT, Limits, MEMORY_MAX_DEFAULT, ORIGINATED_MAX,
        OUTPUT_STUCK_AFTER, OUTPUTS_MAX, PAGE_BYTES_MIN, POLL_BUDGET, QUEUES_MAX, QueueLimits, ROUND_BUDGET,
        ROUND_TIME_MAX, TAILROOM,
    };
    pub use steerage_mem::supply::{LPC_MEMORY_PART, LPC_PAGES_LEAST, LPC_PAGES_MAX, LPC_PAGES_PER_CPU};
    pub use steerage_mem::{FRAME_BYTES_MAX, SEGMENTS_MAX};
}

/// Memory for a program's own tables, the size of page caches, and the error of an instance that
/// needs too much packet memory.
pub mod memory {
    #[doc(hidden)]
    pub use steerage_mem::supply::{LOT_SLOTS, Needs, QueueNeeds};
    pub use steerage_mem::{HugeVec, supply::Excess, supply::ExcessCause, supply::LpcMemory};
    pub use steerage_topology::usable_memory;
}

/// The names that nearly every program imports.
pub mod prelude {
    pub use crate::{Batch, Builder, Cpu, CpuId, CpuMask, Handle, Handler, Input, Packet, Running, Snapshot};
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
