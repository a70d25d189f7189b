use std::collections::BTreeSet;
use std::path::Path;

use steerage_tune::candidates::Candidate;
use steerage_tune::facts::Sample;
use steerage_tune::link_file::{self, LinkFile};
use steerage_tune::measure::{Comparison, Live, Options, search};
use steerage_tune::{Lock, Machine, Setting, Undo, irq};

use super::stop::Stop;
use super::text::{self, commands_of, list};
use super::{Search, confine, listen, refuse_to_disconnect};
use crate::args::{TuneArgs, WriteArg};
use crate::error::Error;
use crate::stdout;

pub(super) fn run(args: &TuneArgs, machine: &mut Machine, directory: &Path, interface: &str) -> Result<(), Error> {
    // Signals are not blocked yet, so that a signal ends the command if the file system does not
    // answer.
    let _lock = Lock::of_interface(directory, machine, interface)?;
    let undo = Undo::load(directory, machine, interface)?;
    let stop = Stop::hold()?;
    match undo {
        Some(undo) if undo.kept().is_some() => again(args, machine, directory, undo),
        unfinished => measured(args, machine, directory, interface, &stop, unfinished).map(drop),
    }
}

/// Returns the undo file of the settings that were kept. The changes of an unfinished measurement
/// are undone first.
pub(super) fn measured(
    args: &TuneArgs,
    machine: &mut Machine,
    directory: &Path,
    interface: &str,
    stop: &Stop,
    unfinished: Option<Undo>,
) -> Result<Undo, Error> {
    // Candidates of another interface must not become the old values of the machine.
    let _lock = if args.global { Some(Lock::of_machine(directory)?) } else { None };
    if let Some(unfinished) = unfinished {
        let restored = list(&unfinished.restore(machine)?);
        stdout::print(format!("the last --apply did not end, and is taken back: {restored}"))?;
    }
    let before = Sample::read(machine.root(), interface);
    let Some(flows) = listen::flows(args, interface, Some(stop)) else { return Err(interrupted()) };
    let found = Search::new(args, machine, interface, flows, &before);
    let notes: BTreeSet<&String> = found.plans().into_iter().flat_map(|plan| &plan.notes).collect();
    stdout::print(format!("{}{}", found.facts, text::notes(notes)))?;
    refuse_to_disconnect(args, machine, interface, &found.plans())?;
    let mut undo = Undo::begin(directory, machine, interface, &found.plans())?;
    confine(args, machine, directory, std::slice::from_ref(&undo))?;
    match measure(args, machine, stop, found, &mut undo) {
        Ok(true) => Ok(undo),
        Ok(false) => {
            stdout::print(list(&undo.restore(machine)?))?;
            Err(interrupted())
        }
        Err(error) => {
            // The first error is the cause, so an error of the undo is ignored.
            let _ = undo.restore(machine);
            Err(error)
        }
    }
}

/// Measures the candidate settings. Returns false if a signal interrupted the measurement.
fn measure(args: &TuneArgs, machine: &mut Machine, stop: &Stop, found: Search, undo: &mut Undo) -> Result<bool, Error> {
    let interface = undo.interface().to_owned();
    leave_to_us(machine, &found, undo)?;
    let mut options = Options::default();
    if let Some(window) = args.window.or(args.test_window) {
        (options.window, options.settle) = (window, window / 5);
    }
    let candidates: Vec<Candidate> = found.candidates.iter().map(|(candidate, _)| candidate.clone()).collect();
    let mut wait = |time| stop.wait(time);
    let mut site = Live::new(machine, &found.stages, &interface, &mut wait);
    let mut report = |one: &Comparison| drop(stdout::print(format!("{one}\n")));
    let result = search(&mut site, &found.facts, candidates, &options, &mut report)?;
    if result.interrupted {
        return Ok(false);
    }
    if result.has_too_few_packets() && result.kept().next().is_none() {
        return Err(Error::Refused(format!(
            "{interface} has too little traffic to compare settings: run --apply while its packets take a few percent of a CPU; \
             nothing was changed"
        )));
    }
    if !result.left_out.is_empty() {
        stdout::print(format!("not measured: {}\n", result.left_out.join("; ")))?;
    }
    let mut kept = Setting::default();
    for plan in result.kept() {
        kept.0.extend(plan.new_setting().0);
    }
    undo.keep(machine, kept)?;
    undo.release_interrupts(machine.root())?;
    let count = undo.kept().map_or(0, |kept| kept.0.len());
    let text = match count {
        0 => format!("Nothing helped: {interface} is as it was.\n"),
        _ => {
            let kept = undo.kept().map(commands_of).unwrap_or_default();
            format!("Kept: steerage tune --undo {interface} restores what was before.\n{kept}")
        }
    };
    stdout::print(text)?;
    write_link_file(args, machine, undo)?;
    Ok(true)
}

fn interrupted() -> Error {
    Error::Refused("--apply was interrupted before it had measured: everything is as it was".to_owned())
}

/// Sets the values that differ from a setting that was kept earlier, without measuring.
fn again(args: &TuneArgs, machine: &mut Machine, directory: &Path, mut undo: Undo) -> Result<(), Error> {
    let interface = undo.interface().to_owned();
    undo.load_dissector(machine);
    confine(args, machine, directory, std::slice::from_ref(&undo))?;
    let is_new = undo.renew(machine)?;
    let kept = undo.kept().cloned().unwrap_or_default();
    let differences = kept.differences(machine);
    undo.ban_again(machine.root());
    kept.apply(machine)?;
    let mut text = match (is_new, differences.is_empty()) {
        (true, _) => format!("set again what was kept for {interface} before the restart\n"),
        (false, true) => format!("{interface} is as tune left it: nothing was changed\n"),
        (false, false) => String::new(),
    };
    differences.iter().filter(|_| !is_new).for_each(|difference| text += &format!("set again: {difference}\n"));
    text += &format!("to measure anew: steerage tune --undo {interface}, and then --apply\n");
    stdout::print(text)?;
    write_link_file(args, machine, &mut undo)
}

/// Writes a .link file with the values that systemd can set.
fn write_link_file(args: &TuneArgs, machine: &mut Machine, undo: &mut Undo) -> Result<(), Error> {
    let Some(WriteArg::Link) = args.write else { return Ok(()) };
    let mut values = undo.linked().clone();
    values.0.extend(undo.kept().cloned().unwrap_or_default().0);
    let file = link_file::make(machine, undo.interface(), &values);
    write_link(machine, undo, &file)
}

pub(super) fn write_link(machine: &mut Machine, undo: &mut Undo, file: &LinkFile) -> Result<(), Error> {
    let notes = text::notes(&file.notes);
    if file.setting.0.is_empty() {
        return stdout::print(format!("wrote no .link file: it could set none of these values\n{notes}"));
    }
    undo.write_link_file(machine, file)?;
    undo.release_interrupts(machine.root())?;
    let (path, interface) = (file.path.display(), undo.interface());
    let text = format!(
        "wrote {path}: systemd sets these values when {interface} next appears, and they were not set now\n{}{notes}to have \
         systemd set them now: {}\n",
        commands_of(&file.setting),
        link_file::apply_now(interface)
    );
    stdout::print(text)
}

/// Asks irqbalance not to move the interrupts whose CPUs `tune` will change.
fn leave_to_us(machine: &Machine, found: &Search, undo: &mut Undo) -> Result<(), Error> {
    let changes = found.plans().into_iter().flat_map(|plan| &plan.changes);
    let interrupts = irq::interrupts(changes.map(|change| &change.knob));
    let Some(socket) = irq::irqbalance(machine.root()).filter(|_| !interrupts.is_empty()) else { return Ok(()) };
    undo.record_bans(&interrupts)?;
    let text = match irq::ban(&socket, &interrupts) {
        Ok(()) => "irqbalance leaves these interrupts alone until it restarts\n".to_owned(),
        Err(error) => format!("note: irqbalance may move the interrupts again: {error}\n"),
    };
    stdout::print(text)
}
