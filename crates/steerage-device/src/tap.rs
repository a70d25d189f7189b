//! TUN and TAP interfaces of the kernel, whose other end is in this process. User's guide:
//! docs/outputs.md.
//!
//! The device receives the packets that the kernel sends through the interface, and sends packets
//! to the kernel. Packets of a TAP begin with an Ethernet header, packets of a TUN with an IP
//! header. The device creates the interface if it does not exist, and the kernel removes it when no
//! process has it open any more. Each queue is a file descriptor, from which one CPU reads packets
//! into pages. Any CPU may write to the file descriptor, because the kernel accepts each packet as
//! a whole.
//!
//! A process cannot attach to an interface twice, so input and output share a [`Tap`]. Within a
//! process and network namespace, [`open`](crate::open) and [`output::open`](crate::output::open)
//! share the interfaces that they open by name.
//!
//! By default, the kernel completes checksums and segments packets, as on a wire. With
//! [`TapOptions::offloads`], the kernel delivers and accepts super-frames (`offloads/lent.rs`
//! receives super-frames, and `offloads/merged.rs` sends them).

mod drops;
mod queue;
mod send;
mod spec;
mod super_frames;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::net::if_::if_nametoindex;
use steerage::flow::wire::ethernet;
use steerage::{
    DeviceError, Input, LinkType, Output,
    device::{RxQueue, TxQueue},
};
use steerage_netlink::Rtnetlink;

use drops::Drops;
use sys::{IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_TUN, IFF_VNET_HDR, TunFd};

use crate::interface_name;
use crate::namespace::Namespace;
use crate::offloads::vnet;
use crate::offloads::whole::Whole;
use crate::options::setters;

pub use spec::is_spec;

/// The maximum number of queues of an interface: the kernel's `MAX_TAP_QUEUES`.
pub const QUEUES_MAX: usize = 256;

/// The smallest MTU, as in the kernel: every IPv4 host must accept 68 bytes (RFC 791).
pub const MTU_MIN: usize = 68;

/// The largest MTU of a TAP in the kernel: 65535 bytes minus an Ethernet header.
pub const MTU_MAX: usize = 65521;

/// The MTU of Ethernet, which is assumed for interfaces whose MTU is unknown.
const MTU_DEFAULT: usize = 1500;

const MODULE: &str = "load the module: sudo modprobe tun; in a container: --device /dev/net/tun";
const PERMISSION: &str =
    "it takes CAP_NET_ADMIN, or an interface made for you: sudo ip tuntap add NAME mode tap user $USER (or mode tun)";
const BUSY: &str = "end the program that has it; only one that all of them open with several queues can be shared";
const OTHER: &str =
    "there is one of that name and of another kind (ip -d link show NAME): choose another name, or make it multi_queue";

/// The type of the first header of an interface's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// An Ethernet header.
    Tap,
    /// An IPv4 or IPv6 header.
    Tun,
}

impl Layer {
    /// The layer's name: `tap` or `tun`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Tun => "tun",
        }
    }

    fn link(self) -> LinkType {
        match self {
            Self::Tap => LinkType::ETHERNET,
            Self::Tun => LinkType::RAW,
        }
    }

    fn flag(self) -> u16 {
        match self {
            Self::Tap => IFF_TAP,
            Self::Tun => IFF_TUN,
        }
    }
}

/// The interface to open, and the options.
///
/// ```no_run
/// use steerage_device::tap::{Layer, TapOptions};
///
/// let tap = TapOptions::new(Layer::Tap, "ids0").queues(4).mtu(9000).open()?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TapOptions {
    /// TUN or TAP.
    pub layer: Layer,
    /// The interface's name.
    pub name: String,
    /// The number of queues. `None`: as many queues as this process already has open for the
    /// interface, or 1 if it has none.
    pub queues: Option<usize>,
    /// The longest packet in bytes, without an Ethernet header. `None` keeps the interface's MTU.
    pub mtu: Option<usize>,
    /// Whether super-frames are received and sent whole, with incomplete checksums.
    pub offloads: bool,
}

/// A TUN or TAP interface.
#[derive(Clone, Debug)]
pub struct Tap(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: String,
    layer: Layer,
    namespace: Namespace,
    queues: Vec<TunFd>,
    /// The length of the header before each packet, or 0 if there is no header.
    header_bytes: usize,
    mtu: usize,
    whole: Option<Whole>,
    is_input: AtomicBool,
    /// The counter of drops, which the first receive queue takes over. `None` if the kernel does
    /// not report drops.
    drops: Mutex<Option<Drops>>,
    /// True if the interface was deleted and a sender has reported the deletion.
    gone: AtomicBool,
}

/// The interfaces that this process has opened by name. The list is locked while an interface is
/// opened.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl TapOptions {
    /// Creates options for the interface `name`, with default values.
    pub fn new(layer: Layer, name: impl Into<String>) -> Self {
        Self { layer, name: name.into(), queues: None, mtu: None, offloads: false }
    }

    setters! {
        /// The number of queues, 1 to [`QUEUES_MAX`]. Default: 1, or as many queues as are already
        /// open.
        queues: usize => Some;
        /// The length of the longest packet in bytes, without an Ethernet header: [`MTU_MIN`] to
        /// [`MTU_MAX`]. Default: the interface's MTU, which is 1500 for a new interface.
        mtu: usize => Some;
        /// Whether packets are received and sent merged and unsegmented (TSO, USO, GRO), as
        /// [super-frames](steerage::Packet::offload) without complete checksums. Default: no.
        offloads: bool;
    }

    /// Opens the interface: shares it if this process has it open, attaches to an existing
    /// interface, or creates an interface and sets it up.
    ///
    /// # Errors
    /// [`DeviceError`] if the interface may not be created, has another layer or another owner, or
    /// is open in this process with a different number of queues or a different MTU.
    pub fn open(&self) -> Result<Tap, DeviceError> {
        if let Some(wrong) = spec::wrong_name(&self.name) {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, format!("its name {wrong}"));
            return Err(self.error("open the interface", cause));
        }
        let namespace = Namespace::here();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|shared| shared.strong_count() > 0);
        let of_name = |shared: &Arc<Shared>| shared.name == self.name && shared.namespace == namespace;
        if let Some(shared) = open.iter().filter_map(Weak::upgrade).find(of_name) {
            return self.share(shared);
        }
        let shared = Arc::new(self.attach(namespace)?);
        open.push(Arc::downgrade(&shared));
        Ok(Tap(shared))
    }

    fn share(&self, shared: Arc<Shared>) -> Result<Tap, DeviceError> {
        let differs = if shared.layer != self.layer {
            format!("it is open as {}", shared.layer.name())
        } else if self.queues.is_some_and(|queues| queues != shared.queues.len()) {
            format!("it is open with {} queue(s)", shared.queues.len())
        } else if self.mtu.is_some_and(|mtu| mtu != shared.mtu) {
            format!("it is open with an MTU of {}", shared.mtu)
        } else if self.offloads && shared.whole.is_none() {
            String::from("it is open without offloads")
        } else {
            return Ok(Tap(shared));
        };
        let cause = io::Error::new(io::ErrorKind::AlreadyExists, differs);
        Err(self.error("open the interface again", cause).advise("name its options once, and the same"))
    }

    fn attach(&self, namespace: Namespace) -> Result<Shared, DeviceError> {
        let asked = self.queues.unwrap_or(1);
        if !(1..=QUEUES_MAX).contains(&asked) || self.mtu.is_some_and(|mtu| !(MTU_MIN..=MTU_MAX).contains(&mtu)) {
            let wrong = format!("queues are 1 to {QUEUES_MAX}, an MTU {MTU_MIN} to {MTU_MAX}");
            return Err(self.error("open the interface", io::Error::new(io::ErrorKind::InvalidInput, wrong)));
        }
        let mut kernel = Rtnetlink::open().map_err(|e| self.error("open a netlink socket", e))?;
        let is_new = kernel.link(&self.name).is_err();
        let queues = self.attach_queues(asked, is_new)?;
        let (name, flags) = queues[0].attached().map_err(|e| self.error("look at the interface", e))?;
        if flags & IFF_VNET_HDR != 0 && !self.offloads {
            // Another process has opened a queue of the interface with a header before each packet.
            let cause = io::Error::other("another program has queues of it that want a header before each packet");
            return Err(self.error("attach to the interface", cause).advise(BUSY));
        }
        let (mut whole, mut header_bytes) = (None, 0);
        if self.offloads {
            header_bytes = vnet::HEADER_BYTES_MIN;
            whole = Some(self.set_offloads(&queues[0]).map_err(|e| self.error("turn on the interface's offloads", e))?);
        } else {
            // A process that used the interface earlier may have left the offloads switched on.
            queues[0].set_offloads(0).map_err(|e| self.error("turn off the interface's offloads", e))?;
        }
        let link = kernel.link(&name).map_err(|e| self.error("look at the interface", e))?;
        if let Some(mtu) = self.mtu {
            kernel.set_mtu(link.index, mtu as u32).map_err(|e| self.error("set the interface's MTU", e))?;
        }
        if is_new {
            kernel.set_up(link.index).map_err(|e| self.error("set the interface up", e))?;
        }
        let mtu = self.mtu.or(link.mtu).unwrap_or(MTU_DEFAULT);
        Ok(Shared { whole, ..Shared::new(name, self.layer, namespace, queues, header_bytes, mtu) })
    }

    fn set_offloads(&self, queue: &TunFd) -> io::Result<Whole> {
        queue.set_header_bytes(vnet::HEADER_BYTES_MIN)?;
        queue.header_little_endian()?;
        let udp = queue.set_offloads(sys::OFFLOADS | sys::OFFLOADS_UDP).is_ok();
        if !udp {
            tracing::info!(device = %self.name, "the kernel has no super-frames of UDP: it cuts them (Linux 6.2 does not)");
            queue.set_offloads(sys::OFFLOADS)?;
        }
        Ok(Whole::new(udp))
    }

    fn attach_queues(&self, asked: usize, is_new: bool) -> Result<Vec<TunFd>, DeviceError> {
        let flags = self.layer.flag() | IFF_NO_PI | if self.offloads { IFF_VNET_HDR } else { 0 };
        let mut queues = Vec::with_capacity(asked);
        let mut multi = if asked > 1 { IFF_MULTI_QUEUE } else { 0 };
        while queues.len() < asked {
            let queue = TunFd::open().map_err(|e| {
                let advice = if e.kind() == io::ErrorKind::PermissionDenied { PERMISSION } else { MODULE };
                DeviceError::new(sys::CLONE_DEVICE, "open it", e).advise(advice)
            })?;
            match queue.attach(&self.name, flags | multi) {
                Ok(()) => queues.push(queue),
                // An interface that was created for several queues requires `IFF_MULTI_QUEUE`.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) && !is_new && multi == 0 => multi = IFF_MULTI_QUEUE,
                Err(e) => {
                    let advice = match e.raw_os_error() {
                        Some(libc::EPERM) => PERMISSION,
                        Some(libc::EBUSY) => BUSY,
                        Some(libc::EINVAL) if !is_new => OTHER,
                        _ => "",
                    };
                    let operation = if is_new { "make the interface" } else { "attach to the interface" };
                    return Err(self.error(operation, e).advise(advice));
                }
            }
        }
        Ok(queues)
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name.clone(), operation, cause)
    }
}

impl Tap {
    /// Creates a `Tap` from file descriptors of the caller: queues of one interface, with
    /// `IFF_NO_PI` (which the kernel does not report). The descriptors become non-blocking, and the
    /// kernel completes checksums and segmentation. `IFF_VNET_HDR` may be set.
    ///
    /// Packets of up to `mtu` bytes are received. `None` means the MTU of the interface with the
    /// queues' name in this network namespace, or 1500 if there is no such interface.
    ///
    /// # Errors
    /// [`DeviceError`] if the descriptors are not queues of one interface.
    pub fn from_fds(fds: Vec<OwnedFd>, mtu: Option<usize>) -> Result<Self, DeviceError> {
        let error = |operation, cause| DeviceError::new("tun file descriptor", operation, cause);
        let refused = |wrong| Err(error("take it", io::Error::new(io::ErrorKind::InvalidInput, wrong)));
        let queues: Vec<TunFd> = fds.into_iter().map(TunFd).collect();
        let Some(first) = queues.first() else { return refused("there is none") };
        let (name, flags) = first.attached().map_err(|e| error("ask for its interface", e))?;
        let layer = if flags & IFF_TAP != 0 { Layer::Tap } else { Layer::Tun };
        let mut header_bytes = 0;
        if flags & IFF_VNET_HDR != 0 {
            header_bytes = first.header_bytes().map_err(|e| error("ask for its header", e))?;
            first.header_little_endian().map_err(|e| error("set its header's byte order", e))?;
            if !(vnet::HEADER_BYTES_MIN..=vnet::HEADER_BYTES_MAX).contains(&header_bytes) {
                return refused("its header before each packet (TUNSETVNETHDRSZ) is not 10 to 64 bytes long");
            }
        }
        for queue in &queues {
            if queue.attached().map_err(|e| error("ask for its interface", e))?.0 != name {
                return refused("they are of several interfaces");
            }
            let flags = fcntl(queue, FcntlArg::F_GETFL).map(|flags| OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK);
            let set = flags.and_then(|flags| fcntl(queue, FcntlArg::F_SETFL(flags)));
            set.map_err(|e| error("make it non-blocking", e.into()))?;
        }
        first.set_offloads(0).map_err(|e| error("turn off its offloads", e))?;
        let here = || Rtnetlink::open().and_then(|mut kernel| kernel.link(&name)).ok().and_then(|link| link.mtu);
        let mtu = mtu.or_else(here).unwrap_or(MTU_DEFAULT);
        Ok(Self(Arc::new(Shared::new(name, layer, Namespace::here(), queues, header_bytes, mtu))))
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The type of the interface: TUN or TAP.
    pub fn layer(&self) -> Layer {
        self.0.layer
    }

    /// Returns an input that receives the packets that the kernel sends through the interface.
    ///
    /// # Errors
    /// [`DeviceError`] if this interface has an input already.
    pub fn input(&self) -> Result<Input, DeviceError> {
        // `Relaxed` suffices, because no other memory is published by this flag.
        if self.0.is_input.swap(true, Ordering::Relaxed) {
            let cause = io::Error::new(io::ErrorKind::AlreadyExists, "this process receives from it already");
            return Err(DeviceError::new(self.name(), "receive from the interface", cause).advise("name it once"));
        }
        let queue = |nth| Box::new(queue::Queue::new(Arc::clone(&self.0), nth)) as Box<dyn RxQueue>;
        Ok(Input::new(
            interface_name::following(self.name()),
            self.layer().name(),
            (0..self.0.queues.len()).map(queue).collect(),
        ))
    }

    /// Returns an output that sends packets to the kernel. The interface's queues are assigned to
    /// CPUs in turn.
    pub fn output(&self) -> Output {
        let shared = Arc::clone(&self.0);
        let mut next = 0;
        let open = Box::new(move |_cpu| {
            let send = send::Send { shared: Arc::clone(&shared), nth: next };
            next = (next + 1) % shared.queues.len();
            Ok(Box::new(send) as Box<dyn TxQueue>)
        });
        Output::new(interface_name::following(self.name()), self.layer().name(), open)
    }
}

impl Shared {
    fn new(
        name: String,
        layer: Layer,
        namespace: Namespace,
        queues: Vec<TunFd>,
        header_bytes: usize,
        mtu: usize,
    ) -> Self {
        let (is_input, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        let drops = Mutex::new(if_nametoindex(&*name).ok().and_then(|index| Drops::of(index).ok()));
        Self { name, layer, namespace, queues, header_bytes, mtu, whole: None, is_input, drops, gone }
    }

    fn frame_bytes_max(&self) -> usize {
        self.mtu + if self.layer == Layer::Tap { ethernet::TAGGED_BYTES } else { 0 }
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        let cause = if is_gone(&cause) { io::Error::new(cause.kind(), "the interface was deleted") } else { cause };
        DeviceError::new(self.name.clone(), operation, cause)
    }
}

/// `EBADFD` means that the interface was deleted.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADFD)
}
