//! `steerage tune --for`: prepares a card for a capture or a program with AF_XDP. Nothing is
//! measured, because the purpose decides.

use std::path::Path;

use steerage_netlink::ethtool::Ethtool;
use steerage_tune::purpose::{self, Nic, Purpose};
use steerage_tune::{Machine, Plan, Undo, create_directory, reached_through};

use super::stop::Stop;
use super::{confine, needs, stages};
use crate::args::{PurposeArg, TuneArgs};
use crate::error::Error;
use crate::{sandbox, stdout};

pub(super) fn run(
    args: &TuneArgs,
    purpose: PurposeArg,
    machine: &mut Machine,
    directory: &Path,
    interface: &str,
) -> Result<(), Error> {
    let purpose = match purpose {
        PurposeArg::AfXdp => Purpose::AfXdp,
        PurposeArg::Listen => Purpose::Listen,
    };
    let stop = if args.apply { Some(Stop::hold()?) } else { None };
    if args.apply {
        create_directory(directory)?;
    }
    let mut plan = purpose::plan(machine, &nic(machine, interface), purpose, &stages(args));
    if !args.apply {
        sandbox::enter(needs(), &args.sandbox)?;
        return stdout::print(shown(&plan, "Nothing was changed: --apply runs these commands.\n").as_bytes());
    }
    if let Some(undo) = Undo::load(directory, machine, interface)? {
        if plan.changes.is_empty() && undo.kept().is_some() {
            return stdout::print(shown(&plan, "Nothing was changed.\n").as_bytes());
        }
        // What an earlier run changed belongs to its undo file.
        undo.restore(machine)?;
        plan = purpose::plan(machine, &nic(machine, interface), purpose, &stages(args));
    }
    if plan.may_take_the_link_down() && !args.yes {
        let why = reached_through(machine.root(), interface)
            .map_err(|error| Error::System { operation: "list routes and addresses", error })?;
        if let Some(why) = why {
            return Err(Error::TuneRefused(format!(
                "--allow-reset may take {interface} down for a moment, and {why}: add --yes if that is fine"
            )));
        }
    }
    let mut undo = Undo::begin(directory, machine, interface, &[&plan])?;
    confine(args, machine, directory, &[interface], std::slice::from_ref(&undo))?;
    let applied = plan.new_setting().apply(machine);
    if let Err(error) = applied.map_err(Error::from).and_then(|()| Ok(undo.keep(machine, plan.new_setting())?)) {
        // The first error is the cause of a second one.
        let _ = undo.restore(machine);
        return Err(error);
    }
    drop(stop);
    let text = shown(&plan, &format!("Done: steerage tune --undo {interface} restores what was before.\n"));
    stdout::print(text.as_bytes())
}

/// Reads what the kernel reports about the interface.
fn nic(machine: &Machine, interface: &str) -> Nic {
    let at = |file: &str| format!("/sys/class/net/{interface}/{file}");
    let number = |file: &str| machine.root().read(&at(file)).ok().and_then(|text| text.parse::<u32>().ok());
    let driver = std::fs::read_link(machine.root().path(&at("device/driver"))).ok();
    let mut ethtool = Ethtool::open().ok();
    Nic {
        name: interface.to_owned(),
        driver: driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
        mtu: number("mtu"),
        features: ethtool.as_mut().and_then(|ethtool| ethtool.features(interface).ok()),
        channels: ethtool.as_mut().and_then(|ethtool| ethtool.channels(interface).ok()),
        cpus: machine.topology().online().len() as u32,
        is_loopback: number("type") == Some(purpose::ARPHRD_LOOPBACK),
    }
}

fn shown(plan: &Plan, end: &str) -> String {
    let mut text: String = plan.changes.iter().map(|change| format!("{}\n", change.command())).collect();
    if plan.changes.is_empty() {
        text += "nothing has to change\n";
    }
    plan.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
    text + end
}
