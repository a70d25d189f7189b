//! `steerage tune --for` prepares a card for a capture, or for a program with AF_XDP. The purpose
//! determines the settings, so nothing is measured.

use std::path::Path;

use steerage_tune::facts::Card;
use steerage_tune::purpose::{self, Lead, Nic, Purpose};
use steerage_tune::{Change, Lock, Machine, Plan, Setting, Undo, link_file};

use super::apply::write_link;
use super::stop::Stop;
use super::text;
use super::{confine, link_file_shown, needs, refuse_to_disconnect, stages};
use crate::args::{TuneArgs, WriteArg};
use crate::error::Error;
use crate::{sandbox, stdout};

pub(super) fn run(
    args: &TuneArgs,
    purpose: Purpose,
    machine: &mut Machine,
    directory: &Path,
    interface: &str,
) -> Result<(), Error> {
    let lead = Lead { flows: args.flows.clone(), queues: args.queues.clone().map_or(Vec::new(), |queues| queues.0) };
    let _lock = if args.apply { Some(Lock::of_interface(directory, machine, interface)?) } else { None };
    let undo = Undo::load(directory, machine, interface)?;
    let ours = undo.as_ref().and_then(Undo::kept).cloned().unwrap_or_default();
    let planned = |machine: &mut Machine, ours: &Setting| {
        let nic = Nic::read(machine.root(), interface, Card::read(interface), machine.topology().online().len());
        purpose::plan(machine, &nic, purpose, &lead, &stages(args), ours)
    };
    let mut plan = planned(machine, &ours)?;
    let stop = if args.apply { Some(Stop::hold()?) } else { None };
    if !args.apply {
        sandbox::enter(needs(args), &args.sandbox)?;
        let link_file = link_file_shown(args, machine, interface, &plan.new_setting());
        let end = format!("{link_file}Nothing was changed: --apply runs these commands.\n");
        return stdout::print(shown(&plan, &end));
    }
    if let Some(undo) = undo {
        // Values that systemd sets from the .link file are not in the plan.
        let is_linked = |change: &Change| undo.linked().0.get(&change.knob) == Some(&change.new);
        plan.changes.retain(|change| !is_linked(change));
        let is_done = undo.kept().is_some() && undo.link_file_differs().is_none();
        if is_done && plan.changes.is_empty() {
            return stdout::print(shown(&plan, "Nothing was changed.\n"));
        }
        // The old values in the undo file of an earlier run are restored first.
        undo.restore(machine)?;
        plan = planned(machine, &Setting::default())?;
    }
    // systemd will set the values that a .link file can contain.
    let file = args.write.map(|WriteArg::Link| link_file::make(machine, interface, &plan.new_setting()));
    if let Some(file) = &file {
        plan.changes.retain(|change| !file.setting.0.contains_key(&change.knob));
    }
    refuse_to_disconnect(args, machine, interface, &[&plan])?;
    let all_linked = file.is_some() && plan.changes.is_empty();
    let text = if all_linked { text::notes(&plan.notes) } else { shown(&plan, "") };
    stdout::print(text)?;
    let mut undo = Undo::begin(directory, machine, interface, &[&plan])?;
    confine(args, machine, directory, std::slice::from_ref(&undo))?;
    let applied = plan.new_setting().apply(machine);
    if let Err(error) = applied.map_err(Error::from).and_then(|()| Ok(undo.keep(machine, plan.new_setting())?)) {
        // The first error is the cause, so an error of the undo is ignored.
        let _ = undo.restore(machine);
        return Err(error);
    }
    drop(stop);
    stdout::print(format!("Done: steerage tune --undo {interface} restores what was before.\n"))?;
    file.map_or(Ok(()), |file| write_link(machine, &mut undo, &file))
}

fn shown(plan: &Plan, end: &str) -> String {
    let mut text: String = plan.changes.iter().map(|change| format!("{}\n", change.command())).collect();
    if plan.changes.is_empty() {
        text += "nothing has to change\n";
    }
    text + &text::notes(&plan.notes) + end
}
