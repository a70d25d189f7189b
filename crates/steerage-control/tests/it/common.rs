//! An instance for tests, and the ways to access its control tree.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use steerage::{Builder, Handle, Hash, Outcome, Running};
use steerage_apps::Count;
use steerage_control::{
    Audience, Client, ClientError, CpuView, Listening, Mounted, Options, SETTLE_MAX, ServedFiles, Serving, Tree,
};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::skip;

pub(crate) fn owner() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) struct Instance {
    pub(crate) tree: Arc<Tree>,
    running: Option<Running<steerage_apps::Counted>>,
}

impl Instance {
    pub(crate) fn new(input: &str, cpus: usize, machine: CpuView) -> Self {
        Self::of_user(owner(), input, cpus, machine)
    }

    pub(crate) fn of_user(uid: u32, input: &str, cpus: usize, machine: CpuView) -> Self {
        let input = steerage_device::open(input).unwrap();
        let builder = Builder::new().virtual_cpus(cpus).input(input).check_order(true).policy(Hash).backlog(256);
        let running = builder.build(|_cpu| Count::default()).unwrap().start().unwrap();
        let options = Options { machine, uid, queues_off: Vec::new(), settle_max: SETTLE_MAX };
        Self { tree: Arc::new(Tree::new(running.handle(), options)), running: Some(running) }
    }

    /// Starts an instance with little traffic, whose masks may contain only its own CPUs.
    pub(crate) fn quiet(cpus: usize) -> Self {
        Self::new("synthetic:rate=1000", cpus, CpuView::new(cpus))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.tree.handle()
    }

    pub(crate) fn end(mut self) -> Outcome<steerage_apps::Counted> {
        let running = self.running.take().unwrap();
        running.handle().stop();
        running.join()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.handle().stop();
            running.join();
        }
    }
}

/// A way to read and write attributes. An error is the name of an error number, such as `EINVAL`.
pub(crate) trait Way {
    fn read(&mut self, path: &str) -> Result<String, String>;
    fn write(&mut self, path: &str, value: &[u8]) -> Result<(), String>;
    fn writes_nothing(&self) -> bool {
        true
    }
}

#[derive(Clone)]
pub(crate) struct Direct(pub(crate) Arc<Tree>);

impl Way for Direct {
    fn read(&mut self, path: &str) -> Result<String, String> {
        let text = self.0.find(path).and_then(|id| self.0.read(id));
        text.map_err(|error| error.code().name().to_owned())
    }

    fn write(&mut self, path: &str, value: &[u8]) -> Result<(), String> {
        let done = self.0.find(path).and_then(|id| self.0.write(id, value, owner()));
        done.map_err(|error| error.code().name().to_owned())
    }
}

pub(crate) struct BySocket {
    pub(crate) client: Client,
    pub(crate) path: PathBuf,
    _serving: Serving,
    _scratch: Scratch,
}

fn report(audience: Audience) -> String {
    match audience {
        Audience::Private => r#"{"a":1,"flows":["10.0.0.1"]}"#,
        Audience::Public => r#"{"a":1}"#,
    }
    .to_owned()
}

impl BySocket {
    pub(crate) fn new(tree: &Arc<Tree>) -> Self {
        let scratch = Scratch::new();
        let path = scratch.join("x.sock");
        let serving = Listening::bind(&path).unwrap().serve(Arc::clone(tree), report).unwrap();
        Self { client: Client::connect(&path).unwrap(), path, _serving: serving, _scratch: scratch }
    }
}

fn code(error: ClientError) -> String {
    match error {
        ClientError::Refused { code, .. } => code,
        other => panic!("{other}"),
    }
}

impl Way for BySocket {
    fn read(&mut self, path: &str) -> Result<String, String> {
        self.client.get(path).map_err(code)
    }

    fn write(&mut self, path: &str, value: &[u8]) -> Result<(), String> {
        self.client.set(path, std::str::from_utf8(value).unwrap()).map(drop).map_err(code)
    }
}

pub(crate) struct ByFiles {
    pub(crate) directory: PathBuf,
    // `_served` is dropped before `_scratch`, because the tree must be unmounted first.
    _served: ServedFiles,
    _scratch: Scratch,
}

impl ByFiles {
    /// Mounts the tree. If this machine cannot mount it, prints why and returns `None`, or fails in
    /// CI.
    pub(crate) fn new(tree: &Arc<Tree>) -> Option<Self> {
        let scratch = Scratch::new();
        let directory = scratch.to_path_buf();
        match Mounted::on(&directory) {
            Ok(mounted) => {
                let served = mounted.serve(Arc::clone(tree)).unwrap();
                Some(Self { directory, _served: served, _scratch: scratch })
            }
            Err(error) => {
                skip(&error.to_string());
                None
            }
        }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }
}

/// Returns the name of an error number. The numbers (errno(3)) are the same on every architecture
/// that steerage supports.
pub(crate) fn errno(error: &io::Error) -> String {
    let name = match error.raw_os_error() {
        Some(1) => "EPERM",
        Some(2) => "ENOENT",
        Some(13) => "EACCES",
        Some(21) => "EISDIR",
        Some(22) => "EINVAL",
        Some(34) => "ERANGE",
        Some(75) => "EOVERFLOW",
        _ => return error.to_string(),
    };
    name.to_owned()
}

/// Writes the value with a single write(2), like `echo` in a shell.
pub(crate) fn write_once(path: &Path, value: &[u8]) -> io::Result<()> {
    let written = fs::OpenOptions::new().write(true).truncate(true).open(path)?.write(value)?;
    assert_eq!(written, value.len());
    Ok(())
}

impl Way for ByFiles {
    fn read(&mut self, path: &str) -> Result<String, String> {
        fs::read_to_string(self.at(path)).map_err(|error| errno(&error))
    }

    fn write(&mut self, path: &str, value: &[u8]) -> Result<(), String> {
        write_once(&self.at(path), value).map_err(|error| errno(&error))
    }

    fn writes_nothing(&self) -> bool {
        false
    }
}
