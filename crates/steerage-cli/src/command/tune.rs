//! `steerage tune` measures whether the kernel's own receive steering helps, and keeps a setting
//! only if it does. The crate steerage-tune measures and sets the values. This module prints the
//! results, drops privileges, enters the sandbox and handles signals.

mod apply;
mod keep;
mod listen;
mod prepare;
mod stop;
mod text;

use std::env;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use steerage_doctor::NoInterface;
use steerage_guard::capabilities::Needed;
use steerage_text::grouped;
use steerage_tune::candidates::{Candidate, masks, refinements};
use steerage_tune::facts::{Card, Facts, Flows, Sample};
use steerage_tune::{
    Distances, Machine, Plan, Scope, Setting, Stages, Undo, create_directory, link_file, reached_through, scoped,
};

use crate::args::{TuneArgs, WriteArg};
use crate::error::{CommandLineError, Error};
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::stdout;
use crate::terminal::warn;

const STATE_DIRECTORY: &str = "/var/lib/steerage/tune";

/// The environment variable that sets another directory for undo files.
const DIRECTORY_VARIABLE: &str = "STEERAGE_STATE_DIR";

/// The directory in which systemd finds an administrator's .link files.
const LINK_FILES: &str = "/etc/systemd/network";

pub(crate) fn run(args: &TuneArgs) -> Result<(), Error> {
    let mut machine = Machine::new();
    let directory = state_directory();
    if let Some(window) = args.test_window {
        warn(&format!("--test-window {window:?} is for tests of the program: so short windows reorder live traffic"));
    }
    if args.undo {
        return keep::undo(args, &mut machine, &directory);
    }
    let [interface] = args.interfaces.as_slice() else {
        return Err(CommandLineError::SeveralInterfaces { interfaces: args.interfaces.clone() }.into());
    };
    if !machine.has(interface) {
        return Err(NoInterface(interface.clone()).into());
    }
    if args.check {
        return keep::check(args, &mut machine, &directory, interface);
    }
    if args.watch {
        return keep::watch(args, &mut machine, &directory, interface);
    }
    if let Some(purpose) = args.purpose {
        return prepare::run(args, purpose, &mut machine, &directory, interface);
    }
    if args.apply {
        return apply::run(args, &mut machine, &directory, interface);
    }
    show(args, &mut machine, &directory, interface)
}

fn state_directory() -> PathBuf {
    let named = env::var_os(DIRECTORY_VARIABLE).filter(|directory| !directory.is_empty());
    named.map_or_else(|| STATE_DIRECTORY.into(), PathBuf::from)
}

fn stages(args: &TuneArgs) -> Stages {
    let scopes = [(args.global, Scope::Global), (args.irq, Scope::Irq), (args.allow_reset, Scope::Reset)];
    scopes
        .iter()
        .filter(|(is_permitted, _)| *is_permitted)
        .fold(Stages::default(), |stages, (_, scope)| stages.with(*scope))
}

struct Search {
    facts: Facts,
    stages: Stages,
    candidates: Vec<(Candidate, Plan)>,
}

impl Search {
    /// `before` contains the kernel's counters from before `tune` listened on the interface.
    fn new(args: &TuneArgs, machine: &mut Machine, interface: &str, flows: Flows, before: &Sample) -> Self {
        if args.global {
            machine.load_dissector();
        }
        let ever = Sample::read(machine.root(), interface);
        let lately = ever.since(before);
        let facts = Facts::read(machine.root(), interface, Card::read(interface), &ever, Some(&lately));
        let mut facts = Facts { flows, ..facts };
        // The cost model of `tune` needs the distances between CPUs, as in `explain`.
        if let Some(receiver) = facts.receivers.first().copied().or(facts.cpus.first()) {
            Distances::measure(&mut facts.topology, receiver, &facts.cpus);
        }
        let stages = stages(args);
        let mut candidates = masks(&facts);
        // Candidates for interrupts, XPS, the card and the machine are measured before the
        // refinements.
        candidates.extend(scoped::candidates(machine, interface, &stages, &facts.cpus));
        candidates.extend(refinements(&facts, args.global));
        let planned = candidates.into_iter().map(|candidate| {
            let plan = stages.plan(machine, interface, &candidate.wish);
            (candidate, plan)
        });
        let candidates = planned.collect();
        Self { facts, stages, candidates }
    }

    fn plans(&self) -> Vec<&Plan> {
        self.candidates.iter().map(|(_, plan)| plan).collect()
    }
}

/// Prints the settings that `--apply` would measure, and changes nothing.
fn show(args: &TuneArgs, machine: &mut Machine, directory: &Path, interface: &str) -> Result<(), Error> {
    let undo = Undo::load(directory, machine, interface)?;
    let before = Sample::read(machine.root(), interface);
    let flows = listen::flows(args, interface, None).unwrap_or_else(|| Flows::NotSeen("interrupted".to_owned()));
    let search = Search::new(args, machine, interface, flows, &before);
    sandbox::enter(needs(args), &args.sandbox)?;
    let mut page = format!("{}\n", search.facts);
    if let Some(kept) = undo.as_ref().and_then(Undo::kept).filter(|kept| !kept.0.is_empty()) {
        page += "tune set, after measuring:\n";
        page += &(text::commands_of(kept) + "\n");
    }
    page += "--apply would measure these settings against the present one, and keep what helps:\n";
    for (number, (candidate, plan)) in search.candidates.iter().enumerate() {
        page += &described(number + 1, candidate, plan);
    }
    let best = search.candidates.first().map(|(_, plan)| plan.new_setting()).unwrap_or_default();
    let values = undo.as_ref().and_then(|undo| {
        let mut values = undo.linked().clone();
        values.0.extend(undo.kept()?.0.clone());
        Some(values)
    });
    page += &link_file_shown(args, machine, interface, &values.unwrap_or(best));
    page += "\nNothing was changed. Each change may reorder live traffic for a moment.\n";
    stdout::print(page)
}

/// Describes the .link file that `--apply` would write.
fn link_file_shown(args: &TuneArgs, machine: &Machine, interface: &str, kept: &Setting) -> String {
    let Some(WriteArg::Link) = args.write else { return String::new() };
    let file = link_file::make(machine, interface, kept);
    let notes = text::notes(&file.notes);
    if file.setting.0.is_empty() {
        return format!("\n--apply would write no .link file: it could set none of these values\n{notes}");
    }
    format!("\n--apply would write {}, and not set these values:\n{}{notes}", file.path.display(), indented(&file.text))
}

fn described(number: usize, candidate: &Candidate, plan: &Plan) -> String {
    let rate = candidate.predicted.map(|rate| format!(" (predicted: {} packets/s)", grouped(rate as u64)));
    let mut text = format!("\n{number}. {}{}\n", candidate.name, rate.unwrap_or_default());
    if plan.changes.is_empty() {
        text += "   as it is now\n";
    }
    let mut why = "";
    for change in &plan.changes {
        // A reason that is the same for all queues is shown once.
        if change.why != why {
            text += &format!("   # {}: {}\n", change.stage, change.why);
            why = change.why;
        }
        text += &format!("   {}\n", change.command());
    }
    plan.notes.iter().for_each(|note| text += &format!("   note: {note}\n"));
    text
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn needs(args: &TuneArgs) -> Needs<'static> {
    let needs = Needs::of(SandboxProfile::Tune).reads_machine().serves_clients(args.metrics.metrics.is_some());
    let needs = MACHINE.iter().fold(needs, Needs::reads);
    if args.write.is_some() { link_file::READ.iter().fold(needs, Needs::reads) } else { needs }
}

/// The files that `tune` reads in addition to the files of every command.
const MACHINE: [&str; 4] = ["/proc/sys/net/core", "/proc/sys/kernel/random/boot_id", "/proc/uptime", "/run/irqbalance"];

/// `tune` keeps `CAP_NET_ADMIN`, and write access to the undo files and to the kernel's files that
/// the undo files name.
fn confine(args: &TuneArgs, machine: &Machine, directory: &Path, undo: &[Undo]) -> Result<(), Error> {
    let mut paths = vec![directory.to_owned()];
    let files = undo.iter().flat_map(|undo| undo.files(args.watch));
    paths.extend(files.map(|file| machine.root().path(&file)));
    let links = machine.root().path(LINK_FILES);
    if args.write.is_some() {
        create_directory(&links)?;
    }
    if args.write.is_some() || undo.iter().any(Undo::has_link_file) {
        paths.push(links);
    }
    // A sandbox rule needs an existing file.
    let opened = paths.iter().filter_map(|path| File::open(path).ok());
    let needs = opened.fold(needs(args), |needs, file| needs.writes(OwnedFd::from(file)));
    let needed = Needed::default().network_administration();
    let _kept = sandbox::enter_keeping(needs, &needed, &args.sandbox)?;
    Ok(())
}

/// Refuses a setting that could cut the user's own SSH connection, unless the user gave `--yes`.
fn refuse_to_disconnect(args: &TuneArgs, machine: &Machine, interface: &str, plans: &[&Plan]) -> Result<(), Error> {
    if args.yes || !plans.iter().any(|plan| plan.may_take_the_link_down()) {
        return Ok(());
    }
    let why = reached_through(machine.root(), interface)
        .map_err(|error| Error::System { operation: "list routes and addresses", error })?;
    match why {
        Some(why) => Err(Error::Refused(format!(
            "--allow-reset may take {interface} down for a moment, and {why}: add --yes if that is fine"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
