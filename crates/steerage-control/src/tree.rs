//! The tree of attributes.
//!
//! The structure never changes, because an instance's devices and queues never change. Values, and
//! the names of devices' directories, are computed at each read: an interface may be renamed.

mod buckets;
mod devices;
mod interface;
mod masks;
mod numbers;
mod paths;
mod policy;
mod softnet_stat;
mod statistics;

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use steerage::{Handle, Snapshot};

use crate::cpu_view::CpuView;
use crate::error::{AttributeError, ErrorCode};
use crate::history::{Event, History};
use crate::limits::{SETTLE_MAX, WRITE_BYTES_MAX};
use devices::Device;
use masks::{Form, Masks};
use numbers::Number;
use statistics::{QueueCount, Statistic};

pub use devices::directory_names;

/// Settings of the control tree that the instance's handle does not contain.
#[derive(Debug)]
pub struct Options {
    /// The CPUs that masks may contain.
    pub machine: CpuView,
    /// The user who may change attributes, besides root.
    pub uid: u32,
    /// The receive queues that start with an empty RPS mask: packets stay on the CPU that receives
    /// them. The queues of all inputs are numbered consecutively.
    pub queues_off: Vec<usize>,
    /// How long a write waits until its value takes effect.
    pub settle_max: Duration,
}

/// By default, the user of this process may change attributes, and no queue has an empty mask.
impl Default for Options {
    fn default() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { machine: CpuView::of_machine(), uid, queues_off: Vec::new(), settle_max: SETTLE_MAX }
    }
}

/// A directory or an attribute of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub(crate) usize);

impl NodeId {
    /// The top directory.
    pub const ROOT: Self = Self(0);
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The node of the entry.
    pub id: NodeId,
    /// The name of the entry.
    pub name: String,
    /// The lower nine bits (permissions) of the entry's file mode.
    pub mode: u16,
    /// True if the entry is a directory.
    pub is_directory: bool,
}

#[derive(Debug)]
enum What {
    Directory(Vec<usize>),
    Attribute(Attribute),
}

#[derive(Debug)]
enum Name {
    Fixed(String),
    /// A device's directory gets its name at each read, because a network interface may be renamed.
    Device(usize),
}

#[derive(Debug)]
struct Node {
    name: Name,
    parent: usize,
    what: What,
}

#[derive(Clone, Debug)]
enum Attribute {
    Mask(usize, Form),
    Buckets(usize),
    BucketLoad(usize),
    PolledBy(usize),
    HashSource(usize),
    Statistic(usize, Statistic),
    /// A file below /sys/class/net of a device's network interface. The number is the device's
    /// index, and the text is the file's name.
    Interface(usize, &'static str),
    Fixed(Cow<'static, str>),
    SoftnetStat,
    Number(Number),
    FlowLimitCpus,
    Policy,
    Steering,
    Count(fn(&Snapshot) -> u64),
    QueueCount(usize, QueueCount),
    /// A count that only the queue's device has, by the indices of the queue and of the count.
    DeviceCount(usize, usize),
    /// The bytes that the local page caches of these queues may use.
    LpcBytes(Vec<usize>),
    History,
}

impl Attribute {
    fn is_writable(&self) -> bool {
        matches!(self, Self::Mask(..) | Self::Number(_) | Self::FlowLimitCpus | Self::Policy | Self::PolledBy(_))
    }
}

/// The control tree of one instance: its attributes and their paths.
#[derive(Debug)]
pub struct Tree {
    handle: Handle,
    machine: CpuView,
    uid: u32,
    settle_max: Duration,
    nodes: Vec<Node>,
    devices: Vec<Device>,
    masks: Mutex<Masks>,
    history: Mutex<History>,
    /// Each write to an attribute holds this lock, so that changes never overlap.
    writer: Mutex<()>,
}

impl Tree {
    /// Creates the tree of an instance.
    pub fn new(handle: Handle, options: Options) -> Self {
        let snapshot = handle.snapshot();
        let devices = devices::devices(&snapshot);
        let mut tree = Self {
            masks: Mutex::new(Masks::new(&snapshot, &options.queues_off)),
            machine: options.machine,
            uid: options.uid,
            settle_max: options.settle_max,
            nodes: vec![Node { name: Name::Fixed(String::new()), parent: 0, what: What::Directory(Vec::new()) }],
            devices,
            history: Mutex::default(),
            writer: Mutex::default(),
            handle,
        };
        for (path, attribute) in paths::attributes(&tree.devices, &snapshot) {
            tree.insert(&path, attribute);
        }
        for (nth, directory) in devices::directories(&tree.devices, &snapshot).iter().enumerate() {
            let directory = tree.find(&format!("{}/{directory}", paths::NET)).expect("each device has a directory");
            tree.nodes[directory.0].name = Name::Device(nth);
        }
        tree
    }

    /// Returns the user who owns the files. Only this user and root may change attributes.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the instance's handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the node at `path`. A `/` at the start or the end is ignored.
    ///
    /// # Errors
    /// Returns `ENOENT` if the path does not exist.
    pub fn find(&self, path: &str) -> Result<NodeId, AttributeError> {
        let found = path
            .split('/')
            .filter(|name| !name.is_empty())
            .try_fold(NodeId::ROOT, |at, name| self.child(at, name).filter(|_| name != "."));
        found.ok_or_else(|| AttributeError::new(ErrorCode::NoEntry, format!("there is no `{}`", path.escape_debug())))
    }

    /// Returns the node called `name` in a directory.
    pub fn child(&self, of: NodeId, name: &str) -> Option<NodeId> {
        let mut directories = None;
        let is_called = |at: &&usize| match &self.nodes[**at].name {
            Name::Fixed(its) => its == name,
            Name::Device(nth) => directories.get_or_insert_with(|| self.directories())[*nth] == name,
        };
        self.children(of).iter().find(is_called).map(|at| NodeId(*at))
    }

    /// Returns the directory of a node. The top directory is its own parent.
    pub fn parent(&self, of: NodeId) -> NodeId {
        self.nodes.get(of.0).map_or(NodeId::ROOT, |node| NodeId(node.parent))
    }

    /// Returns the entries of a directory, or none for an attribute.
    pub fn list(&self, of: NodeId) -> Vec<Entry> {
        self.children(of).iter().filter_map(|at| self.entry(NodeId(*at))).collect()
    }

    /// Returns the entry of a node, or `None` if the node does not exist.
    pub fn entry(&self, id: NodeId) -> Option<Entry> {
        let node = self.nodes.get(id.0)?;
        let (mode, is_directory) = match &node.what {
            What::Directory(_) => (0o755, true),
            What::Attribute(attribute) if attribute.is_writable() => (0o644, false),
            What::Attribute(_) => (0o444, false),
        };
        Some(Entry { id, name: self.name(node), mode, is_directory })
    }

    /// Returns the path of a node, without a `/` at the start.
    pub fn path(&self, id: NodeId) -> String {
        let mut names = Vec::new();
        let mut at = id.0;
        while let Some(node) = self.nodes.get(at).filter(|_| at != 0) {
            names.push(self.name(node));
            at = node.parent;
        }
        names.reverse();
        names.join("/")
    }

    /// Returns the current value of an attribute, with its newline.
    ///
    /// # Errors
    /// `EISDIR` for a directory, `ENOENT` if the node does not exist, or the kernel's error for an
    /// attribute that the kernel provides.
    pub fn read(&self, id: NodeId) -> Result<String, AttributeError> {
        Ok(match self.attribute(id)? {
            Attribute::Mask(queue, form) => self.shown_mask(*queue, *form) + "\n",
            Attribute::Buckets(queue) => {
                let buckets = self.handle.buckets(*queue).unwrap_or_default();
                buckets::stretches(&buckets.iter().map(|bucket| bucket.cpu).collect::<Vec<_>>())
            }
            Attribute::BucketLoad(queue) => buckets::load(&self.handle.buckets(*queue).unwrap_or_default()),
            Attribute::PolledBy(queue) => format!("{}\n", self.handle.snapshot().queues[*queue].cpu),
            Attribute::HashSource(queue) => format!("{}\n", self.handle.snapshot().queues[*queue].hash),
            Attribute::Statistic(device, statistic) => {
                format!("{}\n", statistic(&self.devices[*device], &self.handle.snapshot()))
            }
            Attribute::Interface(device, name) => {
                interface::read(self.devices[*device].name(&self.handle.snapshot()), name)?
            }
            Attribute::Fixed(text) => format!("{text}\n"),
            Attribute::SoftnetStat => softnet_stat::text(&self.handle.snapshot()),
            Attribute::Number(number) => format!("{}\n", self.number(*number)),
            Attribute::FlowLimitCpus => self.handle.flow_limit_cpus().to_bitmap(self.machine.nr_cpu_ids()) + "\n",
            Attribute::Policy => policy::shown(self.handle.policy()),
            Attribute::Steering => policy::steering(&self.handle.snapshot()),
            Attribute::Count(count) => format!("{}\n", count(&self.handle.snapshot())),
            Attribute::QueueCount(queue, count) => format!("{}\n", count(&self.handle.snapshot().queues[*queue])),
            Attribute::DeviceCount(queue, nth) => {
                let counts = &self.handle.snapshot().queues[*queue].device_counts;
                format!("{}\n", counts.get(*nth).map_or(0, |(_, count)| *count))
            }
            Attribute::LpcBytes(queues) => format!("{}\n", self.lpc_bytes(queues)),
            Attribute::History => locked(&self.history).text(),
        })
    }

    /// Writes the first [`WRITE_BYTES_MAX`] bytes of `value` on behalf of user `uid`. When `write`
    /// returns, the change applies to all new packets. After an error, the old value still applies.
    ///
    /// # Errors
    /// In the kernel's order: `EACCES` if the attribute is read-only, `EPERM` for any user but root
    /// and the instance's user, then errors in the value. `ETIMEDOUT` if the new value does not
    /// take effect in time, because the data path is stuck.
    pub fn write(&self, id: NodeId, value: &[u8], uid: u32) -> Result<(), AttributeError> {
        let attribute = self.attribute(id)?.clone();
        let path = self.path(id);
        if !attribute.is_writable() {
            return Err(AttributeError::new(ErrorCode::Access, format!("{path} is for reading only")));
        }
        if uid != 0 && uid != self.uid {
            let message = format!("{path} is changed by root and by user {} only", self.uid);
            return Err(AttributeError::new(ErrorCode::NotPermitted, message));
        }
        // Invalid UTF-8 becomes U+FFFD, which is not a digit.
        let text = String::from_utf8_lossy(&value[..value.len().min(WRITE_BYTES_MAX)]).into_owned();
        // The lock `writer` ensures that the history records a change before the next change
        // begins.
        let _turn = locked(&self.writer);
        let change = match attribute {
            Attribute::Mask(queue, form) => self.store_mask(queue, form, &text)?,
            Attribute::Number(number) => self.store_number(number, &text)?,
            Attribute::FlowLimitCpus => self.store_flow_limit_cpus(&text)?,
            Attribute::Policy => self.store_policy(&text)?,
            Attribute::PolledBy(queue) => self.store_receiver(queue, &text)?,
            _ => None,
        };
        if let Some(Change { from, to, buckets, seconds }) = change {
            tracing::info!(path, from, to, uid, buckets, seconds, "changed");
            locked(&self.history).note(Event { number: 0, time: 0.0, path, from, to, uid, buckets, seconds });
        }
        Ok(())
    }

    /// Returns true if the attribute can be written.
    pub fn is_writable(&self, id: NodeId) -> bool {
        self.attribute(id).is_ok_and(Attribute::is_writable)
    }

    /// Returns the changes of attributes with a number greater than `number`, the oldest first.
    /// Only the newest [`EVENTS_MAX`](crate::EVENTS_MAX) changes are kept.
    pub fn events_since(&self, number: u64) -> Vec<Event> {
        locked(&self.history).since(number)
    }

    /// Only the names of devices' directories can change.
    pub(crate) fn may_be_renamed(&self, id: NodeId) -> bool {
        self.nodes.get(id.0).is_some_and(|node| matches!(node.name, Name::Device(_)))
    }

    fn name(&self, node: &Node) -> String {
        match &node.name {
            Name::Fixed(name) => name.clone(),
            Name::Device(nth) => self.directories().swap_remove(*nth),
        }
    }

    fn directories(&self) -> Vec<String> {
        devices::directories(&self.devices, &self.handle.snapshot())
    }

    fn attribute(&self, id: NodeId) -> Result<&Attribute, AttributeError> {
        match self.nodes.get(id.0).map(|node| &node.what) {
            Some(What::Attribute(attribute)) => Ok(attribute),
            Some(What::Directory(_)) => {
                Err(AttributeError::new(ErrorCode::IsDirectory, format!("/{} is a directory", self.path(id))))
            }
            None => Err(AttributeError::new(ErrorCode::NoEntry, "there is no such attribute")),
        }
    }

    fn children(&self, of: NodeId) -> &[usize] {
        match self.nodes.get(of.0).map(|node| &node.what) {
            Some(What::Directory(children)) => children,
            _ => &[],
        }
    }

    fn insert(&mut self, path: &str, attribute: Attribute) {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = 0;
        for name in directory.split('/').filter(|name| !name.is_empty()) {
            at = match self.child(NodeId(at), name) {
                Some(found) => found.0,
                None => self.add(at, name, What::Directory(Vec::new())),
            };
        }
        self.add(at, name, What::Attribute(attribute));
    }

    fn add(&mut self, parent: usize, name: &str, what: What) -> usize {
        let at = self.nodes.len();
        self.nodes.push(Node { name: Name::Fixed(name.to_owned()), parent, what });
        if let What::Directory(children) = &mut self.nodes[parent].what {
            children.push(at);
        }
        at
    }
}

struct Change {
    from: String,
    to: String,
    buckets: u64,
    seconds: f64,
}

/// The values behind the tree's locks are valid even after a panic of the thread that held the
/// lock.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
