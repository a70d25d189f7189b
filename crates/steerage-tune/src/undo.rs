//! The undo file contains the value that `tune` set for each knob, and the knob's old value. `tune`
//! writes the file before the first change, so that a crash does not lose the old values.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use steerage_guard::file::{Readers, write_durably};
use steerage_guard::path::{Directory, PathError};

use crate::error::TuneError;
use crate::irq;
use crate::knob::{DISSECTOR, Knob};
use crate::link_file::{self, LinkFile};
use crate::machine::Machine;
use crate::plan::Plan;
use crate::root::Root;
use crate::setting::Setting;

const VERSION: u32 = 1;
/// The maximum number of bytes that are read from an undo file: more than a machine with 1,024
/// queues needs.
const FILE_MAX: u64 = 16 << 20;
const DIRECTORY_MODE: u32 = 0o755;

/// The interface and the boot to which the values in an undo file belong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    boot: String,
    /// The inode of the network namespace.
    namespace: String,
    /// A new interface of the same name has another index. The MAC address is not compared, because
    /// an interface that gets another address keeps its settings.
    index: String,
}

impl Identity {
    fn of(root: &Root, interface: &str) -> Self {
        let read = |name: &str| root.read(name).unwrap_or_default();
        let namespace = std::fs::read_link(root.path("/proc/thread-self/ns/net")).unwrap_or_default();
        Self {
            boot: read("/proc/sys/kernel/random/boot_id"),
            namespace: namespace.to_string_lossy().into_owned(),
            index: read(&format!("/sys/class/net/{interface}/ifindex")),
        }
    }

    fn file_stem(&self, interface: &str) -> String {
        let number: String = self.namespace.chars().filter(char::is_ascii_digit).collect();
        format!("{interface}@{number}")
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// The time at which the old values were read, in nanoseconds since 1970.
    #[serde(default)]
    began: u64,
    interface: String,
    identity: Identity,
    before: Setting,
    /// The values that `tune` may have set. If a knob in `ours` has another value, and not that in
    /// `before`, a user or another program has set it.
    ours: BTreeMap<Knob, BTreeSet<String>>,
    /// The setting that `tune` kept. `None` until the measurement has ended.
    kept: Option<Setting>,
    /// The interrupts that irqbalance must not move, at the request of `tune`.
    banned: Vec<u32>,
    /// The .link file that `tune` wrote.
    link_file: Option<(PathBuf, String)>,
    /// The settings that systemd makes because of the .link file, so that `tune` does not repeat
    /// them.
    #[serde(default)]
    linked: Setting,
}

/// An undo file of one interface.
#[derive(Clone, Debug)]
pub struct Undo {
    path: PathBuf,
    record: Record,
}

/// The result of an undo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The restored knobs with their old values.
    pub restored: Setting,
    /// One line for each knob that was not restored, with the reason.
    pub left: Vec<String>,
}

impl Undo {
    /// Reads the undo file of an interface in this network namespace, if it exists.
    ///
    /// # Errors
    /// Fails if the undo file is damaged, or if another user could have written it.
    pub fn load(directory: &Path, machine: &Machine, interface: &str) -> Result<Option<Self>, TuneError> {
        let here = Identity::of(machine.root(), interface);
        for path in paths(directory, interface, &here) {
            if let Some(undo) = Self::read(&path)?.filter(|undo| undo.is_about(interface, &here)) {
                return Ok(Some(undo));
            }
        }
        Ok(None)
    }

    /// Reads all undo files of this network namespace, in the order in which they must be
    /// [restored](Self::sort).
    ///
    /// # Errors
    /// Fails if the directory cannot be read. Each file that cannot be used has an error in the
    /// second list.
    pub fn load_all(directory: &Path, machine: &Machine) -> Result<(Vec<Self>, Vec<TuneError>), TuneError> {
        let entries = match Directory::open(directory).and_then(|directory| directory.entries()) {
            Ok(entries) => entries,
            Err(PathError::System(error)) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(TuneError::Load { path: directory.to_owned(), error: error.into() }),
        };
        let (mut all, mut unusable) = (Vec::new(), Vec::new());
        let paths = entries.into_iter().map(|(name, _)| directory.join(name));
        for path in paths.filter(|path| path.extension().is_some_and(|end| end == "json")) {
            match Self::read(&path) {
                Ok(undo) => all.extend(undo.filter(|undo| {
                    undo.is_about(&undo.record.interface, &Identity::of(machine.root(), &undo.record.interface))
                })),
                Err(error) => unusable.push(error),
            }
        }
        Self::sort(&mut all);
        Ok((all, unusable))
    }

    /// Puts the newest undo file first. Several undo files may contain one setting of the machine:
    /// the old value in a newer file is the value that `tune` set for an older file.
    pub fn sort(all: &mut [Self]) {
        all.sort_by(|one, other| (other.record.began, &other.path).cmp(&(one.record.began, &one.path)));
    }

    fn read(path: &Path) -> Result<Option<Self>, TuneError> {
        let failed = |error: io::Error| TuneError::Load { path: path.to_owned(), error };
        let (parent, name) = (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default());
        let text = (|| -> io::Result<String> {
            let directory = Directory::open(parent)?;
            // Another user could have created the undo file in a directory such as /tmp.
            let owner = directory.stat(name)?.st_uid;
            if ![0, geteuid().as_raw()].contains(&owner) {
                return Err(io::Error::other(format!("it belongs to user {owner}")));
            }
            let no_link = OFlags::NOFOLLOW.bits() as i32;
            let file = OpenOptions::new().read(true).custom_flags(no_link).open(directory.through().join(name))?;
            let mut text = String::new();
            file.take(FILE_MAX).read_to_string(&mut text)?;
            Ok(text)
        })();
        let text = match text {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(failed)?,
        };
        let record: Record = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
        if record.version != VERSION {
            return Err(failed(io::Error::other(format!("its format {} is another version's", record.version))));
        }
        Ok(Some(Self { path: path.to_owned(), record }))
    }

    /// After a restart of the machine, the recorded number of a network namespace is meaningless.
    fn is_about(&self, interface: &str, here: &Identity) -> bool {
        let then = &self.record.identity;
        self.record.interface == interface && (then.boot != here.boot || then.namespace == here.namespace)
    }

    /// Writes an undo file for all `plans` that the caller will try. Call `begin` before the first
    /// change. Old values in an existing undo file of the interface are kept.
    ///
    /// # Errors
    /// Fails if the undo file cannot be written. After an error, the caller must not change any
    /// knob.
    pub fn begin(directory: &Path, machine: &mut Machine, interface: &str, plans: &[&Plan]) -> Result<Self, TuneError> {
        let here = Identity::of(machine.root(), interface);
        let old = Self::load(directory, machine, interface)?.filter(|old| old.record.identity == here);
        let path = match &old {
            Some(old) => old.path.clone(),
            None => free_path(directory, interface, &here)?,
        };
        let mut record = old.map_or_else(|| Record::new(interface, here), |old| old.record);
        for plan in plans {
            for (knob, value) in plan.old().0 {
                record.before.0.entry(knob).or_insert(value);
            }
            for change in &plan.changes {
                let ours = record.ours.entry(change.knob.clone()).or_default();
                ours.extend([change.old.clone(), change.new.clone()]);
            }
        }
        record.kept = None;
        let undo = Self { path, record };
        undo.save()?;
        Ok(undo)
    }

    /// Records the kept setting. All knobs that are not in `kept` must have their old values again.
    ///
    /// # Errors
    /// Fails if the undo file cannot be written.
    pub fn keep(&mut self, machine: &mut Machine, mut kept: Setting) -> Result<(), TuneError> {
        let record = &mut self.record;
        // A knob is not kept if a later candidate setting has restored the knob's old value.
        kept.0.retain(|knob, value| !record.before.0.get(knob).is_some_and(|old| machine.is_same(knob, old, value)));
        // A new number of queues makes the kernel reset knobs that `tune` does not set.
        let resets = kept.0.keys().any(|knob| knob.of_card().is_some_and(|(_, name)| name.starts_with("channels/")));
        record.before.0.retain(|knob, _| kept.0.contains_key(knob) || (resets && !record.ours.contains_key(knob)));
        record.ours = kept.0.iter().map(|(knob, value)| (knob.clone(), [value.clone()].into())).collect();
        // Values that the kernel has set in the meantime count as set by `tune`, so that an undo
        // may replace them.
        for knob in record.before.0.keys().filter(|knob| !kept.0.contains_key(knob)) {
            record.ours.insert(knob.clone(), machine.read(knob).into_iter().collect());
        }
        record.kept = Some(kept);
        self.save()
    }

    /// Adds knobs, such as those of new queues, to the kept setting, before the caller sets them.
    ///
    /// # Errors
    /// Fails if the undo file cannot be written.
    pub fn extend(&mut self, machine: &mut Machine, more: &Setting) -> Result<(), TuneError> {
        for (knob, value) in &more.0 {
            let Ok(now) = machine.read(knob) else { continue };
            self.record.before.0.entry(knob.clone()).or_insert(now);
            self.record.ours.entry(knob.clone()).or_default().insert(value.clone());
            self.record.kept.get_or_insert_default().0.insert(knob.clone(), value.clone());
        }
        self.save()
    }

    /// Updates an undo file of an earlier boot or interface: the present values become the old
    /// values. Values of the machine that `tune` set since the boot keep their old values. Returns
    /// false if the undo file already belongs to this boot and interface.
    ///
    /// # Errors
    /// Fails if the undo file cannot be written.
    pub fn renew(&mut self, machine: &mut Machine) -> Result<bool, TuneError> {
        let here = Identity::of(machine.root(), &self.record.interface);
        if here == self.record.identity {
            return Ok(false);
        }
        let record = &mut self.record;
        if here.boot == record.identity.boot {
            record.before.0.retain(|knob, _| !knob.is_of(&record.interface));
            record.ours.retain(|knob, _| !knob.is_of(&record.interface));
        } else {
            record.began = now();
            record.before = Setting::default();
            record.ours.clear();
        }
        record.identity = here;
        let kept = record.kept.take().unwrap_or_default();
        self.extend(machine, &kept)?;
        Ok(true)
    }

    /// Records the interrupts that irqbalance must not move.
    ///
    /// # Errors
    /// Fails if the undo file cannot be written.
    pub fn record_bans(&mut self, interrupts: &[u32]) -> Result<(), TuneError> {
        self.record.banned = interrupts.to_vec();
        self.save()
    }

    /// Lets irqbalance move the interrupts that the kept setting does not change.
    ///
    /// # Errors
    /// Fails if the undo file cannot be written.
    pub fn release_interrupts(&mut self, root: &Root) -> Result<(), TuneError> {
        let kept = irq::interrupts(self.kept().into_iter().flat_map(|kept| kept.0.keys()));
        let free: Vec<u32> = self.record.banned.iter().copied().filter(|irq| !kept.contains(irq)).collect();
        if free.is_empty() {
            return Ok(());
        }
        if let Some(Err(error)) = irq::irqbalance(root).map(|socket| irq::unban(&socket, &free)) {
            tracing::warn!("irqbalance still leaves interrupts alone until it restarts: {error}");
        }
        self.record_bans(&kept)
    }

    /// Asks irqbalance again not to move the recorded interrupts, because irqbalance forgets such
    /// requests when it restarts.
    pub fn ban_again(&self, root: &Root) {
        let socket = irq::irqbalance(root).filter(|_| !self.record.banned.is_empty());
        if let Some(Err(error)) = socket.map(|socket| irq::ban(&socket, &self.record.banned)) {
            tracing::warn!("irqbalance may move interrupts again: {error}");
        }
    }

    /// Writes a .link file. The knobs in the .link file, which systemd sets, get their old values
    /// back, and `tune` no longer sets them.
    ///
    /// # Errors
    /// Fails if the undo file or the .link file cannot be written, or if a value cannot be set.
    pub fn write_link_file(&mut self, machine: &mut Machine, file: &LinkFile) -> Result<(), TuneError> {
        let record = &mut self.record;
        let mut old = Setting::default();
        for (knob, value) in &file.setting.0 {
            let Ok(now) = machine.read(knob) else { continue };
            let before = record.before.0.entry(knob.clone()).or_insert(now);
            record.ours.entry(knob.clone()).or_default().insert(value.clone());
            let was_kept = record.kept.as_mut().and_then(|kept| kept.0.remove(knob)).is_some();
            if was_kept {
                old.0.insert(knob.clone(), before.clone());
            }
        }
        record.linked = file.setting.clone();
        record.link_file = Some((file.path.clone(), file.text.clone()));
        self.save()?;
        link_file::write(file)?;
        old.apply(machine)?;
        // Restoring the old number of queues made the kernel remove queues, and reset the values of
        // the remaining queues.
        if let Some(kept) = &mut self.record.kept {
            kept.0.retain(|knob, _| machine.read(knob).is_ok());
            kept.apply(machine)?;
        }
        self.save()
    }

    /// Returns the interface.
    pub fn interface(&self) -> &str {
        &self.record.interface
    }

    /// Returns the path of the undo file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kept setting, or `None` if the measurement did not end.
    pub fn kept(&self) -> Option<&Setting> {
        self.record.kept.as_ref()
    }

    /// Returns true if the undo file belongs to the present boot and interface.
    pub fn is_current(&self, machine: &Machine) -> bool {
        Identity::of(machine.root(), &self.record.interface) == self.record.identity
    }

    /// Returns true if `tune` wrote a .link file for this interface.
    pub fn has_link_file(&self) -> bool {
        self.record.link_file.is_some()
    }

    /// Returns the settings that systemd makes because of the .link file.
    pub fn linked(&self) -> &Setting {
        &self.record.linked
    }

    /// Returns one line that says how the .link file differs from what `tune` wrote, or `None` if
    /// it does not differ.
    pub fn link_file_differs(&self) -> Option<String> {
        let (path, text) = self.record.link_file.as_ref()?;
        match std::fs::read_to_string(path) {
            Ok(now) if now == *text => None,
            Ok(_) => Some(format!("{} was changed since tune wrote it", path.display())),
            Err(error) => Some(format!("{}: {error}", path.display())),
        }
    }

    /// Returns the knobs that an undo may write.
    pub fn knobs(&self) -> impl Iterator<Item = &Knob> {
        self.record.before.0.keys()
    }

    /// Returns the files that an undo may write. If the number of queues may change, the result
    /// includes the interface's directory of queues, because new queues have new files.
    pub fn files(&self, queues_change: bool) -> BTreeSet<String> {
        let queues_change = queues_change || self.knobs().any(|knob| knob.0.contains("/channels/"));
        let file = |knob: &Knob| match knob.0.split_once("/queues/") {
            Some((interface, _)) if queues_change => format!("{interface}/queues"),
            _ => knob.0.clone(),
        };
        let is_file = |knob: &&Knob| knob.of_card().is_none() && knob.0 != DISSECTOR;
        self.knobs().filter(is_file).map(file).collect()
    }

    /// Loads the flow dissector for an undo. The process must still have its capabilities.
    pub fn load_dissector(&self, machine: &mut Machine) {
        if self.knobs().any(|knob| knob.0 == DISSECTOR) {
            machine.load_dissector();
        }
    }

    fn save(&self) -> Result<(), TuneError> {
        let failed = |error| TuneError::Save { path: self.path.clone(), error };
        let text = serde_json::to_string_pretty(&self.record).map_err(|error| failed(error.into()))? + "\n";
        write_durably(&self.path, text.as_bytes(), Readers::All).map_err(failed)
    }

    /// Restores the old values and removes the undo file. Knobs that a user or another program has
    /// changed after `tune` are left alone.
    ///
    /// # Errors
    /// Fails if a value cannot be restored. After an error, the undo file stays for another
    /// attempt.
    pub fn restore(self, machine: &mut Machine) -> Result<Restored, TuneError> {
        let mut result = Restored::default();
        let mut outcome = Ok(());
        let here = Identity::of(machine.root(), &self.record.interface);
        let then = &self.record.identity;
        if then.boot != here.boot {
            result.left.push("the machine has restarted since, so the kernel has its own values again".to_owned());
        } else {
            let is_same = then.index == here.index;
            if !is_same {
                let interface = &self.record.interface;
                let what = if here.index.is_empty() { "is gone" } else { "is another interface now" };
                result.left.push(format!("{interface} {what}: its values were left alone"));
            }
            // Steering rules are restored first, because a card may delete its rules when the
            // feature for rules is turned off.
            let (rules, others): (Vec<_>, Vec<_>) = self.record.before.0.iter().partition(|(knob, _)| knob.is_rule());
            for (knob, old) in rules.into_iter().chain(others) {
                if is_same || !knob.is_of(&self.record.interface) {
                    outcome = outcome.and(self.restore_one(machine, knob, old, &mut result));
                }
            }
            self.unban(machine.root(), &mut result);
        }
        if let Some((path, text)) = &self.record.link_file {
            result.left.extend(link_file::remove(path, text).err());
        }
        outcome?;
        self.remove()?;
        Ok(result)
    }

    fn restore_one(
        &self,
        machine: &mut Machine,
        knob: &Knob,
        old: &str,
        result: &mut Restored,
    ) -> Result<(), TuneError> {
        let Ok(now) = machine.read(knob) else {
            result.left.push(format!("{knob} is gone"));
            return Ok(());
        };
        if now == old {
            return Ok(());
        }
        let ours = self.record.ours.get(knob);
        if ours.is_some_and(|ours| !ours.iter().any(|value| machine.is_same(knob, &now, value))) {
            result.left.push(format!("{knob} is {now}, which tune did not set: left alone (before tune: {old})"));
            return Ok(());
        }
        machine.write(knob, old)?;
        result.restored.0.insert(knob.clone(), old.to_owned());
        Ok(())
    }

    fn unban(&self, root: &Root, result: &mut Restored) {
        let Some(socket) = irq::irqbalance(root).filter(|_| !self.record.banned.is_empty()) else { return };
        if let Err(error) = irq::unban(&socket, &self.record.banned) {
            result.left.push(format!("irqbalance still leaves interrupts alone until it restarts: {error}"));
        }
    }

    fn remove(&self) -> Result<(), TuneError> {
        let removed = Directory::holding(&self.path).and_then(|(directory, name)| directory.remove_file(&name));
        match removed.map_err(io::Error::from) {
            // A user has removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| TuneError::Remove { path: self.path.clone(), error }),
        }
    }
}

impl Record {
    fn new(interface: &str, identity: Identity) -> Self {
        Self { version: VERSION, began: now(), interface: interface.to_owned(), identity, ..Self::default() }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Returns a file name, without its end, that only one interface of one network namespace has.
pub(crate) fn file_stem(machine: &Machine, interface: &str) -> String {
    Identity::of(machine.root(), interface).file_stem(interface)
}

/// Returns the possible paths of the undo file, with and without the number of the network
/// namespace. The longer path is used if the undo file of another namespace has the shorter path.
fn paths(directory: &Path, interface: &str, here: &Identity) -> [PathBuf; 2] {
    [directory.join(here.file_stem(interface) + ".json"), directory.join(format!("{interface}.json"))]
}

fn free_path(directory: &Path, interface: &str, here: &Identity) -> Result<PathBuf, TuneError> {
    let [long, short] = paths(directory, interface, here);
    let is_taken = Undo::read(&short)?.is_some_and(|undo| !undo.is_about(interface, here));
    Ok(if is_taken { long } else { short })
}

/// Creates the directory for undo files, so that a sandbox can permit writes to it.
///
/// # Errors
/// Fails if the directory cannot be created, or if another user may write to it.
pub fn create_directory(directory: &Path) -> Result<Directory, TuneError> {
    let created = Directory::create_all(directory, DIRECTORY_MODE);
    created.map_err(|error| TuneError::Save { path: directory.to_owned(), error: error.into() })
}
