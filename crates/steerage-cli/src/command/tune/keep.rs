//! Runs `steerage tune --undo`, `--check` and `--watch`.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use steerage_control::metrics::{More, Server};
use steerage_guard::capabilities;
use steerage_text::{plural, shell_word};
use steerage_tune::{Difference, Machine, SetAgain, Undo, Watch, Watched, create_directory};

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
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    if args.interfaces.is_empty() {
        found = Undo::load_all(directory, machine)?;
        missing.extend(found.is_empty().then_some("anything"));
    }
    // Each interface once.
    for interface in BTreeSet::from_iter(&args.interfaces) {
        match Undo::load(directory, machine, interface)? {
            Some(undo) => found.push(undo),
            None => missing.push(interface),
        }
    }
    for what in missing {
        let text = format!("nothing to undo: {} has no undo file for {what}\n", directory.display());
        stdout::print(text)?;
    }
    if found.is_empty() {
        return Ok(());
    }
    confine(args, machine, directory, &found)?;
    Undo::sort(&mut found);
    // After an error, the other settings are still restored.
    let mut outcome = Ok(());
    for undo in found {
        let name = undo.interface().to_owned();
        let restored = undo.restore(machine).map_err(Error::from);
        let said = restored.and_then(|restored| stdout::print(format!("{name}: {}", list(&restored))));
        outcome = outcome.and(said);
    }
    outcome
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
    create_directory(directory)?;
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
    let mut log = |change: &SetAgain| drop(stdout::print(format!("{change}\n")));
    undo.renew(machine)?;
    watch.set_again(machine, &mut undo, &mut log)?;
    manager.ready();
    stdout::print(format!("watching {interface}\n"))?;
    loop {
        match watch.wait(stop.as_fd())? {
            Watched::Changed => watch.set_again(machine, &mut undo, &mut log)?,
            Watched::Stopped if args.keep => return Ok(()),
            Watched::Stopped => return stdout::print(list(&undo.restore(machine)?)),
        }
    }
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
