//! Runs `steerage tune --undo`, `--check` and `--watch`.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use steerage_control::metrics::{More, Server};
use steerage_guard::capabilities;
use steerage_text::{plural, shell_word};
use steerage_tune::{Difference, Lock, Machine, SetAgain, Undo, Watch, Watched};

use super::stop::Stop;
use super::text::list;
use super::{LINK_FILES, apply, confine, needs};
use crate::args::TuneArgs;
use crate::error::Error;
use crate::metrics::{self, Metrics};
use crate::sandbox::{self, Confinement};
use crate::service::ServiceManager;
use crate::stdout;

pub(super) fn undo(args: &TuneArgs, machine: &mut Machine, directory: &Path) -> Result<(), Error> {
    // After an error, the other settings are still restored.
    let mut outcome = Ok(());
    // Each interface once.
    let mut interfaces: BTreeSet<String> = args.interfaces.iter().cloned().collect();
    let (mut found, mut locks, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    if interfaces.is_empty() {
        let (all, unusable) = Undo::load_all(directory, machine)?;
        interfaces.extend(all.iter().map(|undo| undo.interface().to_owned()));
        missing.extend((all.is_empty() && unusable.is_empty()).then_some("anything"));
        outcome = unusable.into_iter().map(|error| Err(error.into())).fold(outcome, Result::and);
    }
    for interface in &interfaces {
        match load_to_undo(machine, directory, interface) {
            Ok(Some((undo, lock))) => {
                found.push(undo);
                locks.push(lock);
            }
            Ok(None) => missing.push(interface),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    for what in missing {
        let text = format!("nothing to undo: {} has no undo file for {what}\n", directory.display());
        stdout::print(text)?;
    }
    if found.is_empty() {
        return outcome;
    }
    confine(args, machine, directory, &found)?;
    Undo::sort(&mut found);
    for undo in found {
        let name = undo.interface().to_owned();
        let restored = undo.restore(machine).map_err(Error::from);
        let said = restored.and_then(|restored| stdout::print(format!("{name}: {}", list(&restored))));
        outcome = outcome.and(said);
    }
    outcome
}

fn load_to_undo(machine: &Machine, directory: &Path, interface: &str) -> Result<Option<(Undo, Lock)>, Error> {
    // The lock needs write access, which a user without an undo file does not need.
    if Undo::load(directory, machine, interface)?.is_none() {
        return Ok(None);
    }
    let lock = Lock::of_interface(directory, machine, interface)?;
    // The previous holder of the lock may have changed or removed the file.
    Ok(Undo::load(directory, machine, interface)?.map(|undo| (undo, lock)))
}

pub(super) fn check(args: &TuneArgs, machine: &mut Machine, directory: &Path, interface: &str) -> Result<(), Error> {
    let undo = Undo::load(directory, machine, interface)?;
    let has_file = undo.as_ref().is_some_and(Undo::has_link_file);
    let needs = needs(args);
    sandbox::enter(if has_file { needs.reads(LINK_FILES) } else { needs }, &args.sandbox)?;
    let kept = undo.as_ref().and_then(|undo| Some((undo, undo.kept()?)));
    let Some((undo, kept)) = kept else {
        return Err(Error::TuneDiffers(format!(
            "tune has kept no setting for {interface}: sudo steerage tune {} --apply measures one",
            shell_word(interface)
        )));
    };
    let mut differences: Vec<String> = kept.differences(machine).iter().map(Difference::to_string).collect();
    differences.extend(undo.link_file_differs());
    let lines: String = differences.iter().map(|difference| format!("{difference}\n")).collect();
    stdout::print(lines)?;
    match differences.len() as u64 {
        0 => Ok(()),
        count => {
            let since = if undo.is_current(machine) { "" } else { " since the machine or the interface started" };
            Err(Error::TuneDiffers(format!(
                "{count} {} of {interface} differ{since}: sudo steerage tune {} --apply sets them again",
                plural(count, "value"),
                shell_word(interface)
            )))
        }
    }
}

pub(super) fn watch(args: &TuneArgs, machine: &mut Machine, directory: &Path, interface: &str) -> Result<(), Error> {
    // Signals are not blocked yet, so that a signal ends the command if the file system does not
    // answer.
    let _lock = Lock::of_interface(directory, machine, interface)?;
    let found = Undo::load(directory, machine, interface)?;
    let manager = ServiceManager::connect();
    let stop = Stop::hold()?;
    let mut watch = Watch::open(machine, interface)?;
    let _server = serve_metrics(args, metrics::of_watch(watch.counts()))?;
    let mut undo = match found {
        Some(undo) if undo.kept().is_some() => {
            undo.load_dissector(machine);
            confine(args, machine, directory, std::slice::from_ref(&undo))?;
            undo
        }
        // If the undo file has no setting to keep, `tune` first measures the candidate settings.
        unfinished => apply::measured(args, machine, directory, interface, &stop, unfinished)?,
    };
    let watched = set_until_stopped(machine, &mut watch, &mut undo, &stop, || {
        manager.ready();
        stdout::print(format!("watching {interface}\n"))
    });
    if args.keep {
        return watched;
    }
    let restored = undo.restore(machine).map_err(Error::from);
    // The first error is the cause.
    watched.and(restored.and_then(|restored| stdout::print(list(&restored))))
}

/// Keeps the setting until a signal arrives.
fn set_until_stopped(
    machine: &mut Machine,
    watch: &mut Watch,
    undo: &mut Undo,
    stop: &Stop,
    started: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let mut log = |change: &SetAgain| drop(stdout::print(format!("{change}\n")));
    undo.renew(machine)?;
    watch.set_again(machine, undo, &mut log)?;
    started()?;
    while watch.wait(stop.as_fd())? == Watched::Changed {
        watch.set_again(machine, undo, &mut log)?;
    }
    Ok(())
}

/// Unlike the thread that sets values, the thread of the metrics server has neither capabilities
/// nor write access.
fn serve_metrics(args: &TuneArgs, more: More) -> Result<Option<Server>, Error> {
    let metrics = Metrics::prepare(&args.metrics, false)?;
    if args.metrics.metrics.is_none() {
        return Ok(None);
    }
    let serve = move || {
        capabilities::drop_all()?;
        Confinement::of_files(needs(args), &args.sandbox)?;
        metrics.serve(None, Some(more))
    };
    // The thread of the metrics server inherits the restrictions of the thread that starts it.
    thread::scope(|scope| scope.spawn(serve).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
