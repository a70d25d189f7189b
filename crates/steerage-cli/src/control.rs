//! The control tree of a run: prepared while there are privileges, served once it runs, gone at its end. And how a run's
//! socket is found.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::geteuid;
use steerage::{CpuMask, Handle};
use steerage_control::{Client, CpuView, Listening, Mounted, Options, SETTLE_MAX, Serving, Tree, find, unmount};

use crate::args::{ControlArgs, RunArgs};
use crate::error::Error;
use crate::machine;

/// Where root's instances listen.
const ROOTS: &str = "/run/steerage";

/// Where each user has a directory for such things, by systemd's custom.
const USERS: &str = "/run/user";

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
        let socket = listen(&args.control)?;
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

/// A socket nobody asked for is no reason to fail.
fn listen(args: &ControlArgs) -> Result<Option<Listening>, Error> {
    match args.socket.as_deref() {
        Some(NONE) => Ok(None),
        Some(name) => {
            let path = path_of(name).ok_or_else(|| Error::NoRuntimeDirectory { name: name.to_owned() })?;
            Listening::bind(&path).map(Some).map_err(Error::Socket)
        }
        None => {
            let Some(path) = path_of(&std::process::id().to_string()) else { return Ok(None) };
            // The dead leave theirs behind; looking for the living takes them away.
            path.parent().into_iter().for_each(|directory| drop(find(&[directory.to_owned()])));
            let listening = Listening::bind(&path);
            Ok(listening.inspect_err(|error| tracing::info!("without a control socket: {error}")).ok())
        }
    }
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
    let users = env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty())?;
    Some(PathBuf::from(users).join("steerage"))
}

/// Where any instances listen that this user may get to.
fn directories() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = runtime_directory().into_iter().collect();
    if env::var_os(ELSEWHERE).is_none() {
        let users = fs::read_dir(USERS).into_iter().flatten().flatten().map(|user| user.path().join("steerage"));
        all.extend(users.chain([PathBuf::from(ROOTS)]));
        all.sort();
        all.dedup();
    }
    all
}

/// Connects to the instance that is meant.
pub(crate) fn connect(to: Option<&str>) -> Result<Client, Error> {
    let path = socket_of(to)?;
    Client::connect(&path).map_err(|error| Error::Connect { path, error })
}

/// Where the instance that is meant listens: the one that was named, else the only one.
pub(crate) fn socket_of(to: Option<&str>) -> Result<PathBuf, Error> {
    Ok(match to {
        Some(name) if name.contains('/') => PathBuf::from(name),
        Some(name) => {
            let file = format!("{name}.sock");
            let named = find(&directories()).into_iter().find(|path| path.ends_with(&file));
            named.ok_or_else(|| Error::NoSuchInstance { name: name.to_owned() })?
        }
        None => match find(&directories()).as_slice() {
            [] => return Err(Error::NoInstance),
            [only] => only.clone(),
            several => {
                let names = several.iter().filter_map(|path| path.file_stem());
                let names = names.map(|name| name.to_string_lossy().into_owned()).collect();
                return Err(Error::SeveralInstances { names });
            }
        },
    })
}
