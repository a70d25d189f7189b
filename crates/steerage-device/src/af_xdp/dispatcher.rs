//! The dispatcher of libxdp: an XDP program that lets several XDP programs share an interface.
//!
//! The dispatcher calls up to ten functions. The kernel can replace each function by a component,
//! which is another XDP program (see libxdp's document "protocol"). To add or remove a component, a
//! process creates a new dispatcher with all components, and replaces the old dispatcher in one
//! step. The components are pinned in a directory of the BPF file system, and outlive their
//! processes.
//!
//! After the end of its process, steerage's XDP program has no sockets, and leaves all packets to
//! the next component. Each steerage process holds a lock on a directory for its XDP program. The
//! kernel releases the lock when the process ends, so the lock shows whether the process is alive.

mod code;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::fcntl::{Flock, FlockArg};
use nix::poll::PollTimeout;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use steerage_netlink::{Changes, Entry, Rtnetlink, XdpPlace, XdpProgram};

use super::assembler::Instruction;
use super::sys::extension::{Function, Typed, constant, pin, pinned, replace_function, value_of};
use super::sys::{NAME, ProgramInfo, program_of, with_log};
use super::waits::{Waits, has_ended};
use code::{COMPONENTS_MAX, CONFIGURATION_BYTES, DISPATCHER, FIRST_FUNCTION, Rule, configuration, function_of, rules};

/// The default priority of an XDP program in a dispatcher, as in libxdp.
pub const PRIORITY_DEFAULT: u32 = 50;

/// The mount point of the BPF file system, and the environment variable that names another mount
/// point, as in libxdp.
const FILE_SYSTEM: &str = "/sys/fs/bpf";
const FILE_SYSTEM_VARIABLE: &str = "LIBXDP_BPFFS";

/// The wait in milliseconds before another attempt to read a dispatcher that is locked.
const READ_AGAIN_MS: u16 = 100;

/// Identifies steerage's XDP program in the dispatcher of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Component {
    /// The interface index in the interface's network namespace.
    pub interface: u32,
    /// The number by which bpf(2) identifies the program.
    pub program: u32,
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.interface, self.program)
    }
}

impl FromStr for Component {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once(':').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
        let (interface, program) = numbers.ok_or("is not such as 3:71")?;
        Ok(Self { interface, program })
    }
}

#[derive(Debug)]
pub(super) enum Addition {
    Done(Added),
    /// The dispatcher has the XDP program with this number, which belongs to another steerage.
    OccupiedBy(u32),
}

/// A component that this process has added. The lock `alive` shows that this process still runs.
#[derive(Debug)]
pub(super) struct Added {
    pub(super) component: Component,
    alive: Option<Flock<File>>,
}

impl Added {
    /// Keeps the lock until the process ends, because packet threads may not make the system call
    /// that releases it.
    pub(super) fn stay(&mut self) {
        std::mem::forget(self.alive.take());
    }
}

pub(super) fn is_one(program: &str) -> bool {
    program == DISPATCHER
}

/// Adds steerage's XDP program to the dispatcher of the interface (or to a new dispatcher at
/// `place`), and removes the XDP programs of steerage processes that have ended.
pub(super) fn add(
    interface: u32,
    place: XdpPlace,
    priority: u32,
    instructions: &[Instruction],
) -> io::Result<Addition> {
    let directory = Directory::open(FlockArg::LockExclusive)?;
    let functions = [Function { at: 0, kind: FIRST_FUNCTION }];
    let types = code::types([NAME].into_iter());
    let ours = Typed { name: NAME, instructions, functions: &functions, types: &types };
    directory.repeat(|directory| {
        let mut old = Dispatcher::attached(directory, interface)?;
        let components = old.as_mut().map_or_else(Vec::new, |old| std::mem::take(&mut old.components));
        let (earlier, mut components): (Vec<_>, Vec<_>) = components.into_iter().partition(|one| one.name == NAME);
        if let Some(alive) = earlier.iter().find(|component| directory.is_alive(component.id)) {
            return Ok(Addition::OccupiedBy(alive.id));
        }
        let rule = Rule::of_ours(priority);
        let before = components.iter().take_while(|one| (one.rule.priority, one.name.as_str()) <= (priority, NAME));
        let at = before.count();
        components.insert(at, Loaded { program: None, id: 0, name: NAME.to_owned(), rule });
        let built = Built::new(components, Some(ours))?;
        let id = built.components[at].id;
        // Lock the directory before the dispatcher is attached. If the dispatcher were attached
        // first, another process could conclude that this process has ended, and remove the
        // program.
        let alive = directory.lock_for(id)?;
        let place = old.as_ref().map_or(place, |old| old.place);
        let replaced = built.replace(directory, interface, place, old.as_ref());
        replaced.inspect_err(|_| directory.forget(id))?;
        earlier.iter().for_each(|ended| directory.forget(ended.id));
        Ok(Addition::Done(Added { component: Component { interface, program: id }, alive: Some(alive) }))
    })
}

/// Removes the component from its dispatcher. If a dispatcher has no other component, the
/// dispatcher is also removed. If the dispatcher does not have the component, nothing happens.
///
/// # Errors
/// Fails if the process lacks permission: removing a component requires root's capabilities.
pub fn remove(component: Component) -> io::Result<()> {
    let Component { interface, program } = component;
    let directory = Directory::open(FlockArg::LockExclusive)?;
    let removed = directory.repeat(|directory| {
        let Some(mut old) = Dispatcher::attached(directory, interface)? else { return Ok(()) };
        let count = old.components.len();
        old.components.retain(|component| component.id != program);
        if old.components.len() == count {
            return Ok(());
        }
        if old.components.is_empty() {
            let mut kernel = Rtnetlink::open()?;
            kernel.exchange_xdp_program(interface, old.place, Some(old.program.as_fd()), None)?;
            return directory.unpin(&old.pins);
        }
        let components = std::mem::take(&mut old.components);
        Built::new(components, None)?.replace(directory, interface, old.place, Some(&old))
    });
    directory.forget(program);
    removed
}

/// Returns whether the dispatcher has the component, without waiting for locks.
///
/// # Errors
/// Fails if the process lacks permission, if another process is changing the dispatcher, and if the
/// interface is gone.
pub(super) fn has(component: Component) -> io::Result<bool> {
    let Component { interface, program } = component;
    let directory = Directory::open(FlockArg::LockExclusiveNonblock)?;
    let link = Rtnetlink::open()?.link_at(interface)?;
    let Some(there) = link.programs.first() else { return Ok(false) };
    if !is_one(&ProgramInfo::of_id(there.id)?.name) {
        return Ok(false);
    }
    let dispatcher = Dispatcher::attached(&directory, interface)?;
    Ok(dispatcher.is_some_and(|dispatcher| dispatcher.components.iter().any(|one| one.id == program)))
}

/// Waits until the file descriptor `end` is readable or closed. While waiting, calls the function
/// `removed` with each component that is no longer in its dispatcher.
///
/// # Errors
/// Fails if the kernel does not report changes of interfaces.
pub fn wait_for_removal(
    components: &[Component],
    end: BorrowedFd<'_>,
    mut removed: impl FnMut(Component),
) -> io::Result<()> {
    let mut changes = Changes::of_links()?;
    let mut there = components.to_vec();
    // True if the dispatchers may have changed since they were read.
    let mut is_due = true;
    loop {
        if std::mem::take(&mut is_due) {
            there.retain(|component| {
                let has = has(*component);
                is_due |= has.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
                let is_gone = has.is_ok_and(|has| !has);
                if is_gone {
                    removed(*component);
                }
                !is_gone
            });
        }
        let wait = if is_due { PollTimeout::from(READ_AGAIN_MS) } else { PollTimeout::NONE };
        if has_ended(end, &changes, wait)? {
            return Ok(());
        }
        let is_complete = changes.read(&mut |change| {
            is_due |= there
                .iter()
                .any(|component| matches!(&change.entry, Entry::Link(link) if link.index == component.interface));
        });
        is_due |= !is_complete;
    }
}

/// A component. `program` is `None` for steerage's program before it is loaded.
#[derive(Debug)]
struct Loaded {
    program: Option<OwnedFd>,
    id: u32,
    name: String,
    rule: Rule,
}

#[derive(Debug)]
struct Dispatcher {
    program: OwnedFd,
    place: XdpPlace,
    components: Vec<Loaded>,
    pins: PathBuf,
}

impl Dispatcher {
    fn attached(directory: &Directory, interface: u32) -> io::Result<Option<Self>> {
        let link = Rtnetlink::open()?.link_at(interface)?;
        let Some(&XdpProgram { id, place }) = link.programs.first() else { return Ok(None) };
        let program = program_of(id)?;
        let info = ProgramInfo::of(program.as_fd())?;
        let foreign = || io::Error::other(format!("program {id}, `{}`, is no dispatcher", info.name));
        if !is_one(&info.name) {
            return Err(foreign());
        }
        let mut bytes = [0; CONFIGURATION_BYTES];
        value_of(info.map.ok_or_else(foreign)?, &mut bytes).map_err(|_| foreign())?;
        let rules = rules(&bytes).map_err(|version| {
            io::Error::other(format!("its dispatcher has version {version} of the layout, and steerage knows 2"))
        })?;
        let pins = directory.pins(interface, id);
        let component = |(nth, rule): (usize, Rule)| {
            let path = pins.join(format!("prog{nth}-prog"));
            let program =
                pinned(&path).map_err(|error| io::Error::new(error.kind(), format!("{error}: {}", path.display())))?;
            let ProgramInfo { id, name, .. } = ProgramInfo::of(program.as_fd())?;
            Ok(Loaded { program: Some(program), id, name, rule })
        };
        let components = rules.into_iter().enumerate().map(component).collect::<io::Result<_>>()?;
        Ok(Some(Self { program, place, components, pins }))
    }
}

#[derive(Debug)]
struct Built {
    program: OwnedFd,
    id: u32,
    components: Vec<Loaded>,
    /// The BPF links by which the components replace the dispatcher's functions, in the order of
    /// the functions.
    links: Vec<OwnedFd>,
}

impl Built {
    fn new(mut components: Vec<Loaded>, ours: Option<Typed<'_>>) -> io::Result<Self> {
        if components.len() > COMPONENTS_MAX {
            return Err(io::Error::other(format!("its dispatcher has {COMPONENTS_MAX} programs, which is the most")));
        }
        let rules: Vec<Rule> = components.iter().map(|component| component.rule).collect();
        let map = constant("xdp_disp.rodata", &configuration(&rules))?;
        let too_long = || io::Error::from(io::ErrorKind::InvalidData);
        let (instructions, functions) = code::dispatcher(&rules, map.as_fd().as_raw_fd()).ok_or_else(too_long)?;
        let stubs: Vec<String> = (0..rules.len()).map(|nth| format!("prog{nth}")).collect();
        let types = code::types([DISPATCHER].into_iter().chain(stubs.iter().map(String::as_str)));
        let typed = Typed { name: DISPATCHER, instructions: &instructions, functions: &functions, types: &types };
        let program = with_log(|log| typed.load(code::several(&rules), log))?;
        let mut links = Vec::with_capacity(components.len());
        for (nth, component) in components.iter_mut().enumerate() {
            let (target, function) = (program.as_fd(), function_of(nth));
            if let (None, Some(ours)) = (&component.program, &ours) {
                let loaded = with_log(|log| ours.load_for(target, function, log))?;
                component.id = ProgramInfo::of(loaded.as_fd())?.id;
                component.program = Some(loaded);
            }
            let component = component.program.as_ref().ok_or_else(too_long)?;
            links.push(replace_function(component.as_fd(), target, function)?);
        }
        let id = ProgramInfo::of(program.as_fd())?.id;
        Ok(Self { program, id, components, links })
    }

    fn replace(
        &self,
        directory: &Directory,
        interface: u32,
        place: XdpPlace,
        old: Option<&Dispatcher>,
    ) -> io::Result<()> {
        let pins = directory.pins(interface, self.id);
        let attached = self.pin(&pins).and_then(|()| {
            let expected = old.map(|old| old.program.as_fd());
            Rtnetlink::open()?.exchange_xdp_program(interface, place, expected, Some(self.program.as_fd()))
        });
        match (&attached, old) {
            (Ok(()), Some(old)) => directory.unpin(&old.pins)?,
            (Ok(()), None) => {}
            (Err(_), _) => drop(directory.unpin(&pins)),
        }
        attached
    }

    fn pin(&self, pins: &Path) -> io::Result<()> {
        create_directory(pins)?;
        for (nth, (link, component)) in self.links.iter().zip(&self.components).enumerate() {
            pin(link.as_fd(), &pins.join(format!("prog{nth}-link")))?;
            if let Some(program) = &component.program {
                pin(program.as_fd(), &pins.join(format!("prog{nth}-prog")))?;
            }
        }
        Ok(())
    }
}

/// The pinned programs of all dispatchers, locked against changes by other processes.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Directory {
    fn open(lock: FlockArg) -> io::Result<Self> {
        let root = std::env::var_os(FILE_SYSTEM_VARIABLE).unwrap_or_else(|| OsString::from(FILE_SYSTEM));
        if !statfs(Path::new(&root)).is_ok_and(|there| there.filesystem_type() == BPF_FS_MAGIC) {
            let root = Path::new(&root).display();
            return Err(io::Error::other(format!("no BPF file system is mounted at {root} (mount -t bpf bpf {root})")));
        }
        let path = Path::new(&root).join("xdp");
        create_directory(&path)?;
        // Users who can change the directory can pin any program in it.
        let (found, ours) = (fs::symlink_metadata(&path)?, fs::metadata("/proc/self")?.uid());
        if !found.is_dir() || found.mode() & 0o022 != 0 || ![0, ours].contains(&found.uid()) {
            return Err(io::Error::other(format!("other users can change {}", path.display())));
        }
        let lock = Flock::lock(File::open(&path)?, lock).map_err(|(_, error)| error)?;
        Ok(Self { path, _lock: lock })
    }

    fn pins(&self, interface: u32, dispatcher: u32) -> PathBuf {
        self.path.join(format!("dispatch-{interface}-{dispatcher}"))
    }

    /// The directory whose lock shows that the process of a component is alive.
    fn of_component(&self, id: u32) -> PathBuf {
        self.path.join(format!("{NAME}-{id}"))
    }

    fn is_alive(&self, id: u32) -> bool {
        let Ok(file) = File::open(self.of_component(id)) else { return false };
        Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err()
    }

    fn lock_for(&self, id: u32) -> io::Result<Flock<File>> {
        let path = self.of_component(id);
        create_directory(&path)?;
        Ok(Flock::lock(File::open(path)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?)
    }

    fn forget(&self, id: u32) {
        // Ignore an error: the directory may already have been removed.
        let _ = fs::remove_dir(self.of_component(id));
    }

    fn unpin(&self, pins: &Path) -> io::Result<()> {
        for pin in fs::read_dir(pins)? {
            fs::remove_file(pin?.path())?;
        }
        fs::remove_dir(pins)
    }

    /// Calls `change`, and calls it again if another process changed the dispatcher meanwhile.
    fn repeat<T>(&self, mut change: impl FnMut(&Self) -> io::Result<T>) -> io::Result<T> {
        let mut waits = Waits::new();
        loop {
            match change(self) {
                Err(error) if is_race(&error) && !waits.are_over() => waits.sleep(),
                changed => return changed,
            }
        }
    }
}

/// Returns true if another process attached a program after the dispatcher was read.
fn is_race(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, NotFound, ResourceBusy};
    matches!(error.kind(), AlreadyExists | NotFound | ResourceBusy)
}

fn create_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

#[cfg(test)]
mod tests;
