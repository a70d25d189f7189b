//! `steerage doctor`: checks the machine's support for steering packets, and says how to fix what is
//! missing.

use steerage_doctor::Diagnosis;

use crate::args::DoctorArgs;
use crate::error::{EndingError, Error};
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::stdout;
use crate::terminal::{width, wrapped};

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Error> {
    let diagnosis = Diagnosis::of_this_machine(args.interface.as_deref())?;
    // All checks are done. The sandbox that is entered here is the sandbox of a run.
    let in_force = sandbox::enter(Needs::of(SandboxProfile::Doctor), &args.sandbox)?;
    let diagnosis = diagnosis.with_sandbox(in_force);
    let text = if args.json {
        serde_json::to_string(&diagnosis).map_err(|error| EndingError::Report(error.into()))? + "\n"
    } else {
        wrapped(&diagnosis.to_string(), width())
    };
    stdout::print(text.as_bytes())
}
