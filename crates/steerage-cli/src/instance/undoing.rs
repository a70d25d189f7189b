//! At the end of a run, removes the run's XDP programs from libxdp's dispatchers, and undoes the
//! deferral of interrupts for busy polling.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;

use steerage_device::af_xdp::{self, Component, dispatcher};
use steerage_netlink::Rtnetlink;
use steerage_tune::{Knob, Machine, Setting, purpose};

use crate::args::UndoArgs;
use crate::error::Error;
use crate::helper::{self, Helper, say};
use crate::terminal::{print_to_stderr, warn};

/// The last line that the helper process writes, if it has undone all changes.
const UNDONE: &str = "undone";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// The run added an XDP program to a dispatcher of libxdp.
    Component(Component),
    /// The run changed a file from `before` to `ours`. The file belongs to the interface with the
    /// index `interface`, which may be renamed during the run.
    Knob { interface: u32, file: String, before: String, ours: String },
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Component(component) => write!(f, "{component}"),
            Self::Knob { interface, file, before, ours } => write!(f, "{interface}/{file}={before}={ours}"),
        }
    }
}

impl FromStr for Done {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((interface, change)) = text.split_once('/') else {
            return text.parse().map(Self::Component).map_err(|_| format!("'{text}' is no program"));
        };
        let wrong = || format!("'{text}' is no change of a file");
        let [file, before, ours] = change.split('=').collect::<Vec<_>>().try_into().map_err(|_| wrong())?;
        let [file, before, ours] = [file, before, ours].map(str::to_owned);
        Ok(Self::Knob { interface: interface.parse().map_err(|_| wrong())?, file, before, ours })
    }
}

/// When this value is dropped, the helper process undoes the changes.
#[derive(Debug)]
pub(crate) struct Undoing {
    helper: Helper,
}

impl Undoing {
    /// Defers the interrupts of busily polled interfaces. The helper process runs only if there are
    /// changes to undo.
    pub(super) fn begin(is_quiet: bool) -> Result<Option<Self>, Error> {
        let mut done: Vec<Done> = af_xdp::components().into_iter().map(Done::Component).collect();
        let deferrals: Vec<Deferral> = af_xdp::busily_polled().into_iter().filter_map(Deferral::plan).collect();
        done.extend(deferrals.iter().flat_map(Deferral::done));
        if done.is_empty() {
            return Ok(None);
        }
        // The helper starts before the first change, so it undoes changes even if the run is killed
        // meanwhile.
        let mut helper = Helper::start("steerage-undo", "undo", done.iter().map(ToString::to_string))?;
        if let Some(reports) = helper.reports() {
            let stay = af_xdp::stay_in_dispatchers(reports.into());
            stay.map_err(|error| Error::System { operation: "read the reports of a helper process", error })?;
        }
        if let Some(input) = helper.input() {
            af_xdp::report_vain_busy_polling(input);
        }
        for note in deferrals.iter().filter_map(Deferral::apply).filter(|_| !is_quiet) {
            print_to_stderr(&note);
        }
        Ok(Some(Self { helper }))
    }
}

impl Drop for Undoing {
    fn drop(&mut self) {
        match self.helper.last_line().as_str() {
            UNDONE => {}
            "" => warn(
                "the process that undoes changes ended early: XDP programs in libxdp's dispatcher stay until the next start, \
                 and napi_defer_hard_irqs stays as it is",
            ),
            error => warn(error),
        }
    }
}

/// The deferral of an interface's interrupts, which busy polling needs.
struct Deferral {
    index: u32,
    name: String,
    before: Setting,
    ours: Setting,
}

impl Deferral {
    /// Plans the deferral. Returns `None` if the interface already defers interrupts, or if its
    /// files are not visible in /sys.
    fn plan(index: u32) -> Option<Self> {
        let (mut machine, name) = found(index)?;
        let ours = purpose::napi_deferral(&name);
        let before = Setting::read(&mut machine, ours.0.keys().cloned());
        let is_default = before.0.len() == ours.0.len() && before.0.values().all(|value| value == "0");
        is_default.then_some(Self { index, name, before, ours })
    }

    fn done(&self) -> impl Iterator<Item = Done> {
        self.ours.0.iter().map(|(knob, ours)| Done::Knob {
            interface: self.index,
            file: knob.0.rsplit('/').next().unwrap_or_default().to_owned(),
            before: self.before.0.get(knob).cloned().unwrap_or_default(),
            ours: ours.clone(),
        })
    }

    /// Defers the interrupts. Returns a note for the user if the kernel does not defer them.
    fn apply(&self) -> Option<String> {
        let error = self.ours.apply(&mut Machine::new()).err()?;
        Some(format!("{}: busy polling gains little, because the kernel also runs the driver: {error}", self.name))
    }
}

/// Returns a [`Machine`] for the kernel's settings, and the name of the interface with this index.
/// Returns `None` if /sys shows the interfaces of another network namespace.
fn found(index: u32) -> Option<(Machine, String)> {
    let link = Rtnetlink::open().and_then(|mut kernel| kernel.link_at(index)).ok()?;
    let (machine, name) = (Machine::new(), link.name?);
    let read = |file: &str| machine.root().read(&format!("/sys/class/net/{name}/{file}")).unwrap_or_default();
    let address = link.address?.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    (read("ifindex") == index.to_string() && read("address") == address).then_some((machine, name))
}

/// Runs in the helper process: watches the XDP dispatchers until standard input ends, and then
/// undoes the changes. Each line of standard input is the index of an interface whose interrupts
/// must not be deferred any more, because its driver cannot be polled busily.
pub(crate) fn run(args: &UndoArgs) -> Result<(), Error> {
    helper::outlive_signals()?;
    loop {
        watch_components(&args.done);
        let Some(lines) = helper::next_lines() else { break };
        lines.lines().filter_map(|line| line.parse().ok()).for_each(|interface| undo_deferral(&args.done, interface));
    }
    say(&undo_all(&args.done));
    Ok(())
}

/// Ignores errors, because the end of the run undoes the deferral once more and reports its errors.
fn undo_deferral(done: &[String], index: u32) {
    let of_interface = |done: &Done| matches!(done, Done::Knob { interface, .. } if *interface == index);
    let knobs = done.iter().filter_map(|done| done.parse().ok()).filter(of_interface);
    knobs.for_each(|knob| drop(undo(&knob)));
}

/// Undoes each change, even if another change cannot be undone. Returns the last line that the
/// helper process must write.
fn undo_all(done: &[String]) -> String {
    let failed = done.iter().filter_map(|done| done.parse::<Done>().and_then(|done| undo(&done)).err());
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { UNDONE.to_owned() } else { failed.join("; ") }
}

/// Waits until there is a line on standard input, or until the run ends. While it waits, reports
/// each XDP program of the run that another process removes.
fn watch_components(done: &[String]) {
    let component = |done: &String| match done.parse() {
        Ok(Done::Component(component)) => Some(component),
        _ => None,
    };
    let components: Vec<Component> = done.iter().filter_map(component).collect();
    if components.is_empty() {
        return;
    }
    let report = |removed: Component| helper::report(&removed.to_string());
    if let Err(error) = dispatcher::wait_for_removal(&components, io::stdin().as_fd(), report) {
        helper::report(&format!("the dispatchers are not watched: {error}"));
    }
}

fn undo(done: &Done) -> Result<(), String> {
    match done {
        Done::Component(component) => dispatcher::remove(*component).map_err(|error| {
            let program = component.program;
            format!("cannot remove XDP program {program} from libxdp's dispatcher: {error}; the next start removes it")
        }),
        Done::Knob { interface, file, before, ours } => {
            // The interface no longer exists.
            let Some((mut machine, name)) = found(*interface) else { return Ok(()) };
            let knob = Knob(format!("/sys/class/net/{name}/{file}"));
            // The old value is restored only if no other program has changed the value since.
            let is_ours = Setting::read(&mut machine, [knob.clone()]).0.get(&knob) == Some(ours);
            let old = Setting([(knob, before.clone())].into());
            if is_ours { old.apply(&mut machine).map_err(|error| error.to_string()) } else { Ok(()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_fails_does_not_keep_the_others() {
        let both = ["x", "7/y"].map(str::to_owned);
        assert_eq!(undo_all(&both), "'x' is no program; '7/y' is no change of a file");
        assert_eq!(undo_all(&[]), UNDONE);
    }

    #[test]
    fn a_change_is_read_back() {
        let knob =
            Done::Knob { interface: 7, file: "gro_flush_timeout".into(), before: "0".into(), ours: "200000".into() };
        assert_eq!(knob.to_string(), "7/gro_flush_timeout=0=200000");
        assert_eq!(knob.to_string().parse(), Ok(knob));
        for wrong in ["", "7/x", "7/x=1", "x/y=1=2", "7/x=1=2=3"] {
            assert!(wrong.parse::<Done>().is_err(), "{wrong}");
        }
    }
}
