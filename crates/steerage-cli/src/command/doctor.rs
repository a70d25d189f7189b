use steerage_doctor::Diagnosis;
use steerage_text::wrapped;

use crate::args::DoctorArgs;
use crate::error::{EndingError, Error};
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::stdout;
use crate::terminal::{has_colours, width};

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Error> {
    let diagnosis = Diagnosis::of_this_machine(args.interface.as_deref())?;
    // `doctor` enters the sandbox of a run, to report how much of the sandbox the kernel supports.
    let in_force = sandbox::enter(Needs::of(SandboxProfile::Doctor), &args.sandbox)?;
    let diagnosis = diagnosis.with_sandbox(in_force);
    let text = if args.json {
        serde_json::to_string(&diagnosis).map_err(|error| EndingError::Report(error.into()))? + "\n"
    } else {
        coloured(wrapped(&diagnosis.to_string(), width()))
    };
    stdout::print(text)
}

/// On a terminal, colours the first word of each line about something missing.
fn coloured(text: String) -> String {
    const MISSING: &str = "missing";
    if !has_colours() {
        return text;
    }
    let line = |line: &str| match line.strip_prefix(MISSING) {
        Some(rest) => format!("\x1b[31m{MISSING}\x1b[0m{rest}"),
        None => line.to_owned(),
    };
    text.split_inclusive('\n').map(line).collect()
}
