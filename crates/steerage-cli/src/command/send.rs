use steerage_apps::Fanout;
use steerage_device::output;

use super::fanout::{not_an_input, open_output};
use crate::args::{RunArgs, SendArgs};
use crate::error::{CommandLineError, Error};
use crate::instance::{self, OpenedInputs, SendOptions};
use crate::run::{self, RunOptions};
use crate::sandbox::{Needs, SandboxProfile};

/// The default rate for packets to an interface, in packets per second.
const RATE_DEFAULT: u64 = 1000;

pub(crate) fn run(args: &SendArgs, verbose: bool) -> Result<(), Error> {
    let to = match output::expand(&args.to).map_err(Error::Output)?.as_slice() {
        [to] => to.clone(),
        _ => return Err(CommandLineError::SeveralOutputs { spec: args.to.clone() }.into()),
    };
    not_an_input(&to, &args.run.devices)?;
    let is_file = to.starts_with("pcap:");
    let rate = match args.rate {
        Some(rate) => rate,
        None if is_file || args.run.pace.is_some() => u64::MAX,
        None => RATE_DEFAULT,
    };
    let mut run = RunArgs { devices: repeated(args), ..args.run.clone() };
    // Without steering, a single CPU sends all packets, in order.
    run.cpus.unsteered_by_default();
    let cpus = instance::count_cpus(&run.cpus)?;
    let sending = SendOptions {
        listens: false,
        coalesce: false,
        rate: Some(rate).filter(|rate| *rate != u64::MAX),
        outputs: |_: &OpenedInputs| Ok(vec![open_output(&to, cpus)?]),
        input_end: None,
    };
    let (instance, services) =
        instance::sending(&run, Needs::of(SandboxProfile::Send), sending, |_| Ok(|_cpu| Fanout::over(1)))?;
    let options = RunOptions::new(&run, verbose, services);
    let ended = run::to_end(instance, &options)?;
    ended.report.finish(options.printer, run.report.strict)?;
    ended.report.all_sent(options.services.can_wait)
}

fn repeated(args: &SendArgs) -> Vec<String> {
    let devices = &args.run.devices;
    let (made, files): (Vec<_>, Vec<_>) = devices.iter().partition(|device| steerage_device::is_synthetic(device));
    let files = (0..args.times).flat_map(|_| files.iter().copied());
    made.into_iter().chain(files).cloned().collect()
}
