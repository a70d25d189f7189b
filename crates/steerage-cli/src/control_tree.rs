//! The control tree of a run (attributes as directories and files). A run binds its control socket
//! and mounts its tree while it has privileges, and removes both at its end.

use std::cell::RefCell;
use std::sync::Arc;

use rustix::process::geteuid;
use serde::Deserialize;
use serde_json::Value;
use steerage::{CpuId, CpuMask, Handle};
use steerage_capture::tap::{Tap, Wanted};
use steerage_control::instances::{self, USER_VARIABLE};
use steerage_control::{
    Audience, CpuView, Listening, Mounted, Options, PacketSender, SETTLE_MAX, ServedFiles, Serving, Tree, find,
};
use steerage_text::{counted, printable};

use crate::args::{ControlArgs, RunArgs};
use crate::error::Error;
use crate::host_cpus;
use crate::sandbox::Needs;
use crate::terminal::print_to_stderr;

const NONE: &str = "none";

#[derive(Debug, Default)]
pub(crate) struct ControlTree(RefCell<Option<Prepared>>);

#[derive(Debug)]
struct Prepared {
    socket: Option<Listening>,
    mounted: Option<Mounted>,
    nr_cpu_ids: usize,
    isolated: CpuMask,
    is_virtual: bool,
    queues_off: Vec<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct ServedTree {
    tap: Option<Arc<Tap>>,
    _socket: Option<Serving>,
    _files: Option<ServedFiles>,
}

impl Drop for ServedTree {
    fn drop(&mut self) {
        // The tap copies packets for clients. Clients get the last packets before the control
        // socket is closed.
        self.tap.iter().for_each(|tap| tap.end());
    }
}

impl ControlTree {
    /// Binds the control socket and mounts the control tree, which may need privileges.
    /// `queues_off` lists the queues with an empty mask.
    pub(crate) fn prepare(args: &RunArgs, queues_off: Vec<usize>) -> Result<Self, Error> {
        let socket = listen(&args.control, args.report.quiet)?;
        let mounted = args.control.control.as_deref().map(Mounted::on).transpose().map_err(Error::Mount)?;
        let is_virtual = args.cpus.virtual_cpus.is_some();
        let nr_cpu_ids = args.cpus.virtual_cpus.unwrap_or_else(host_cpus::nr_cpu_ids);
        // Masks may contain isolated CPUs only if the user has chosen CPUs with --cpus.
        let has_all = is_virtual || args.cpus.cpus.is_some();
        let isolated = if has_all { CpuMask::new() } else { host_cpus::topology().isolated().clone() };
        let prepared = Prepared { socket, mounted, nr_cpu_ids, isolated, is_virtual, queues_off };
        Ok(Self(RefCell::new(Some(prepared))))
    }

    pub(crate) fn needs<'a>(&self, needs: Needs<'a>) -> Needs<'a> {
        let prepared = self.0.borrow();
        let Some(prepared) = prepared.as_ref() else { return needs };
        let directory = prepared.socket.iter().filter_map(|socket| socket.directory().try_clone().ok());
        directory.fold(needs, |needs, directory| needs.removes_in(directory.into()))
    }

    /// `report` creates the report as JSON for an audience: the public, or root and the user of the
    /// run. `tap` copies packets for clients.
    pub(crate) fn serve(
        &self,
        handle: Handle,
        report: impl Fn(Audience) -> String + Send + Sync + 'static,
        tap: &Arc<Tap>,
    ) -> Result<ServedTree, Error> {
        let Some(prepared) = self.0.borrow_mut().take() else { return Ok(ServedTree::default()) };
        let mut machine = CpuView::new(prepared.nr_cpu_ids).isolated(prepared.isolated);
        if !prepared.is_virtual {
            machine = machine.online(host_cpus::online_cpus);
        }
        let uid = geteuid().as_raw();
        let queues_off = prepared.queues_off;
        let snapshot = handle.snapshot();
        let cpus: Vec<CpuId> = snapshot.cpus.iter().map(|cpu| cpu.cpu).collect();
        let queues = snapshot.queues.len();
        let tree = Arc::new(Tree::new(handle, Options { machine, uid, queues_off, settle_max: SETTLE_MAX }));
        let failed = |error| Error::System { operation: "serve the control tree", error };
        let mut served = ServedTree::default();
        if let Some(mounted) = prepared.mounted {
            served._files = Some(mounted.serve(Arc::clone(&tree)).map_err(failed)?);
        }
        if let Some(socket) = prepared.socket {
            served.tap = Some(Arc::clone(tap));
            let tap = Arc::clone(tap);
            let packets = move |request: &Value| attach(&tap, request, &cpus, queues);
            served._socket = Some(socket.serve_with_packets(tree, report, packets).map_err(failed)?);
        }
        Ok(served)
    }
}

/// Returns a function that sends copies of the requested packets until the client disconnects or
/// the run ends.
fn attach(tap: &Arc<Tap>, request: &Value, cpus: &[CpuId], queues: usize) -> Result<PacketSender, String> {
    let wanted = Wanted::deserialize(request).map_err(|error| error.to_string())?;
    if let Some(cpu) = wanted.cpus.iter().find(|cpu| !cpus.contains(&CpuId(**cpu))) {
        return Err(format!("the run does not use CPU {cpu}: it uses the CPUs {}", CpuMask::from_iter(cpus.to_vec())));
    }
    if let Some(queue) = wanted.queues.iter().find(|queue| **queue >= queues) {
        return Err(format!("the run has no queue {queue}: it has {}, from 0 on", counted(queues as u64, "queue")));
    }
    let client = tap.attach(wanted, cpus).map_err(|error| error.to_string())?;
    Ok(Box::new(move |stream| {
        if let Err(error) = client.pass_on(stream) {
            tracing::debug!("a client that got packets is gone: {error}");
        }
    }))
}

/// Binds the control socket. If the control socket cannot be bound and `--socket` was not given,
/// the run continues.
fn listen(args: &ControlArgs, quiet: bool) -> Result<Option<Listening>, Error> {
    match args.socket.as_deref() {
        Some(NONE) => Ok(None),
        Some(name) => {
            let path = instances::path_of(name).ok_or_else(|| Error::NoRuntimeDirectory { name: name.to_owned() })?;
            Listening::bind(&path).map(Some).map_err(Error::Socket)
        }
        None => {
            let Some(path) = instances::path_of(&std::process::id().to_string()) else {
                note_no_socket(&format!("{USER_VARIABLE} is not set"), quiet);
                return Ok(None);
            };
            // `find` removes the control sockets of processes that have ended. The errors of `find`
            // are ignored, because `bind` reports them again.
            path.parent().into_iter().for_each(|directory| drop(find(directory)));
            let listening = Listening::bind(&path);
            Ok(listening.inspect_err(|error| note_no_socket(&error.to_string(), quiet)).ok())
        }
    }
}

/// Tells the user that `steerage get` cannot find the run, because it has no control socket.
fn note_no_socket(why: &str, quiet: bool) {
    if quiet {
        tracing::info!("no control socket: {why}");
        return;
    }
    let line = format!("no control socket: {why}; name one by --socket PATH, or none by --socket none");
    print_to_stderr(printable(&line));
}
