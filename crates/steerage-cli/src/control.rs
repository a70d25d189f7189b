//! The control tree of a run: prepared while there are privileges, served once it runs, gone at its end. And how a run's
//! socket is found.

use std::cell::RefCell;
use std::env;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::geteuid;
use steerage::{CpuMask, Handle};
use steerage_control::{Client, CpuView, Listening, Mounted, Options, SETTLE_MAX, Serving, Tree, find, unmount};

use crate::args::{ControlArgs, RunArgs};
use crate::error::{Error, NoInstance};
use crate::machine;
use crate::report::units::printable;

/// Where root's instances listen.
const ROOTS: &str = "/run/steerage";

/// Where each user has a directory for such things, by systemd's custom.
const USERS: &str = "XDG_RUNTIME_DIR";

/// Says that instances listen elsewhere.
const ELSEWHERE: &str = "STEERAGE_RUNTIME_DIR";

/// What stands for no socket.
const NONE: &str = "none";

/// What a run shows of itself, before it runs.
#[derive(Debug, Default)]
pub(crate) struct Control(RefCell<Option<Prepared>>);

#[derive(Debug)]
struct Prepared {
    socket: Option<Listening>,
    mounted: Option<(Mounted, Unmounts)>,
    nr_cpu_ids: usize,
    isolated: CpuMask,
    is_virtual: bool,
    starts_without_steering: bool,
}

/// What a run shows of itself, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    _socket: Option<Serving>,
    _mount: Option<Unmounts>,
}

/// A child that keeps the privilege to unmount, and does so when we end, in whatever way. It sees no packet.
#[derive(Debug)]
struct Unmounts(Child);

impl Unmounts {
    fn start(directory: &Path) -> Result<Self, Error> {
        let child = Command::new("/proc/self/exe")
            .arg0("steerage-unmount")
            .arg("unmount-at-end")
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C is for the run.
            .process_group(0)
            .spawn();
        child.map(Self).map_err(|error| Error::System { operation: "start what unmounts the control tree", error })
    }
}

impl Drop for Unmounts {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            tracing::warn!("cannot wait until the control tree is unmounted: {error}");
        }
    }
}

impl Control {
    /// Listens and mounts: both may take privileges.
    pub(crate) fn prepare(args: &RunArgs) -> Result<Self, Error> {
        let socket = listen(&args.control, args.report.quiet)?;
        let mounted = match &args.control.control {
            Some(directory) => Some(mount(directory)?),
            None => None,
        };
        let is_virtual = args.cpus.virtual_cpus.is_some();
        let nr_cpu_ids = args.cpus.virtual_cpus.unwrap_or_else(machine::nr_cpu_ids);
        // Whoever names isolated CPUs wants them.
        let isolated = if is_virtual || args.cpus.cpus.is_some() { CpuMask::new() } else { machine::isolated_cpus() };
        let off = |text: &Option<String>, read: fn(&str, usize) -> Result<CpuMask, steerage::MaskError>| {
            text.as_ref().is_some_and(|text| read(text, nr_cpu_ids).is_ok_and(|mask| mask.is_empty()))
        };
        let starts_without_steering =
            off(&args.cpus.rps_cpus, CpuMask::parse_bitmap) || off(&args.cpus.rps_cpus_list, CpuMask::parse_list);
        let prepared = Prepared { socket, mounted, nr_cpu_ids, isolated, is_virtual, starts_without_steering };
        Ok(Self(RefCell::new(Some(prepared))))
    }

    /// Serves what was prepared. `report` makes the report as JSON.
    pub(crate) fn show(
        &self,
        handle: Handle,
        report: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Shown, Error> {
        let Some(prepared) = self.0.borrow_mut().take() else { return Ok(Shown::default()) };
        let mut machine = CpuView::new(prepared.nr_cpu_ids).isolated(prepared.isolated);
        if !prepared.is_virtual {
            machine = machine.online(machine::online_cpus);
        }
        let uid = geteuid().as_raw();
        let starts_without_steering = prepared.starts_without_steering;
        let tree =
            Arc::new(Tree::new(handle, Options { machine, uid, starts_without_steering, settle_max: SETTLE_MAX }));
        let failed = |error| Error::System { operation: "serve the control tree", error };
        let mut shown = Shown::default();
        if let Some((mounted, unmounts)) = prepared.mounted {
            shown._mount = Some(unmounts);
            mounted.serve(Arc::clone(&tree)).map_err(failed)?;
        }
        if let Some(socket) = prepared.socket {
            shown._socket = Some(socket.serve(tree, report).map_err(failed)?);
        }
        Ok(shown)
    }
}

/// A run goes on without a socket that nobody asked for, but says so.
fn listen(args: &ControlArgs, quiet: bool) -> Result<Option<Listening>, Error> {
    match args.socket.as_deref() {
        Some(NONE) => Ok(None),
        Some(name) => {
            let path = path_of(name).ok_or_else(|| Error::NoRuntimeDirectory { name: name.to_owned() })?;
            Listening::bind(&path).map(Some).map_err(Error::Socket)
        }
        None => {
            let Some(path) = path_of(&std::process::id().to_string()) else {
                say_there_is_none(&format!("{USERS} is not set"), quiet);
                return Ok(None);
            };
            // The dead leave their sockets behind; a search removes them. What is wrong with the directory is told below.
            path.parent().into_iter().for_each(|directory| drop(find(directory)));
            let listening = Listening::bind(&path);
            Ok(listening.inspect_err(|error| say_there_is_none(&error.to_string(), quiet)).ok())
        }
    }
}

/// Else `steerage get` would find no instance, and nobody would know why.
fn say_there_is_none(why: &str, quiet: bool) {
    if quiet {
        tracing::info!("no control socket: {why}");
        return;
    }
    let line = format!("no control socket: {why}; name one by --socket PATH, or none by --socket none");
    // With standard error closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "{}", printable(&line));
}

fn mount(directory: &Path) -> Result<(Mounted, Unmounts), Error> {
    let mounted = Mounted::on(directory).map_err(Error::Mount)?;
    match Unmounts::start(directory) {
        Ok(unmounts) => Ok((mounted, unmounts)),
        Err(error) => {
            let _ = unmount(directory);
            Err(error)
        }
    }
}

/// Where an instance of that name listens: a path has a `/` in it.
fn path_of(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    Some(runtime_directory()?.join(format!("{name}.sock")))
}

/// Where this user's instances listen.
fn runtime_directory() -> Option<PathBuf> {
    if let Some(elsewhere) = env::var_os(ELSEWHERE).filter(|directory| !directory.is_empty()) {
        return Some(elsewhere.into());
    }
    if geteuid().is_root() {
        return Some(ROOTS.into());
    }
    let users = env::var_os(USERS).filter(|directory| !directory.is_empty())?;
    Some(PathBuf::from(users).join("steerage"))
}

/// The socket of a run that is to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    /// It was found, and not named by its path: then it has to be root's or this user's.
    was_found: bool,
}

impl Socket {
    /// Connects to the run. A process of another user is asked only if its socket was named: others could make their
    /// sockets look like ours, to be told what we would tell a run of ours, or to answer in its place.
    pub(crate) fn connect(&self) -> io::Result<Client> {
        let client = Client::connect(&self.path)?;
        let (uid, us) = (client.peer()?, geteuid().as_raw());
        if self.was_found && ![0, us].contains(&uid) {
            return Err(io::Error::other(format!("a process of user {uid} listens there, --to PATH would ask it")));
        }
        Ok(client)
    }
}

/// Connects to the instance that is meant.
pub(crate) fn connect(to: Option<&str>) -> Result<Client, Error> {
    let socket = socket_of(to)?;
    socket.connect().map_err(|error| Error::Connect { path: socket.path, error })
}

/// Where the instance that is meant listens: the one that was named, else the only one.
pub(crate) fn socket_of(to: Option<&str>) -> Result<Socket, Error> {
    let found = |path| Socket { path, was_found: true };
    match to {
        Some(name) if name.contains('/') => Ok(Socket { path: PathBuf::from(name), was_found: false }),
        Some(name) => {
            let file = format!("{name}.sock");
            let named = instances()?.into_iter().find(|path| path.ends_with(&file));
            named.map(found).ok_or_else(|| Error::NoSuchInstance { name: name.to_owned(), why: why_none() })
        }
        None => match instances()?.as_slice() {
            [] => Err(Error::NoInstance(why_none())),
            [only] => Ok(found(only.clone())),
            several => {
                let names = several.iter().filter_map(|path| path.file_stem());
                let names = names.map(|name| name.to_string_lossy().into_owned()).collect();
                Err(Error::SeveralInstances { names })
            }
        },
    }
}

/// The sockets of this user's instances and of root's, which everybody may ask.
fn instances() -> Result<Vec<PathBuf>, Error> {
    let own = runtime_directory();
    let mut all = own.as_deref().map_or(Ok(Vec::new()), find).map_err(Error::Instances)?;
    if env::var_os(ELSEWHERE).is_none() && own.as_deref() != Some(Path::new(ROOTS)) {
        // Where that cannot be looked at, there is nothing to be asked either.
        all.extend(find(Path::new(ROOTS)).unwrap_or_default());
    }
    Ok(all)
}

/// Why there may be runs that were not found.
fn why_none() -> NoInstance {
    match runtime_directory() {
        None => NoInstance::NoDirectory,
        Some(_) if geteuid().is_root() => NoInstance::OfRoot,
        Some(_) => NoInstance::OfUser,
    }
}
