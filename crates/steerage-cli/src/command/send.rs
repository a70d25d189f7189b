//! `steerage send`: a traffic generator.

use steerage_apps::Fanout;
use steerage_device::output;

use super::fanout::{not_an_input, open_output};
use crate::args::{RunArgs, SendArgs};
use crate::error::Error;
use crate::run::{self, Plan};
use crate::setup::{self, Sending};

/// What an interface gets a second unless something else is asked for.
const RATE_DEFAULT: u64 = 1000;

/// What stands for one CPU, which sends what it reads.
const NO_STEERING: &str = "0";

/// Sends until the end and reports.
pub(crate) fn run(args: &SendArgs, verbose: bool) -> Result<(), Error> {
    let to = match output::expand(&args.to).map_err(Error::Output)?.as_slice() {
        [to] => to.clone(),
        _ => return Err(Error::SeveralOutputs { spec: args.to.clone() }),
    };
    not_an_input(&to, &args.run.devices)?;
    let is_file = to.starts_with("pcap:");
    let rate = match args.rate {
        Some(rate) => rate,
        None if is_file || args.run.pace.is_some() => u64::MAX,
        None => RATE_DEFAULT,
    };
    let run = RunArgs { devices: repeated(args), ..in_order(&args.run) };
    let cpus = setup::count_cpus(&run.cpus)?;
    let sending = Sending {
        originated: 0,
        rate: Some(rate).filter(|rate| *rate != u64::MAX),
        outputs: |_: &[usize]| Ok(vec![open_output(&to, cpus)?]),
    };
    let (instance, capture) = setup::sending(&run, None, sending, |_| Ok(|_cpu| Fanout::over(1)))?;
    let plan = Plan::new(&run, verbose, capture);
    let ended = run::to_end(instance, &plan)?;
    let (left_behind, failed) = (ended.outcome.left_behind.len(), ended.outcome.failed);
    ended.report.finish(plan.printer, run.report.strict, left_behind, &failed)
}

/// Files as often as they are to be sent; the rest goes on as it is.
fn repeated(args: &SendArgs) -> Vec<String> {
    let devices = &args.run.devices;
    let (made, files): (Vec<_>, Vec<_>) = devices.iter().partition(|device| steerage_device::is_synthetic(device));
    let files = (0..args.times).flat_map(|_| files.iter().copied());
    made.into_iter().chain(files).cloned().collect()
}

/// One CPU sends, unless it was said which do.
fn in_order(run: &RunArgs) -> RunArgs {
    let mut run = run.clone();
    if run.cpus.rps_cpus.is_none() && run.cpus.rps_cpus_list.is_none() {
        run.cpus.rps_cpus = Some(NO_STEERING.to_owned());
    }
    run
}
