//! Removes the programs of a run from libxdp's dispatchers at the end of the run.

use steerage_device::af_xdp::{self, dispatcher};

use crate::args::LeaveDispatchersArgs;
use crate::error::Error;
use crate::helper::{self, Helper, say};
use crate::terminal::warn;

/// The last line of the helper process.
const REMOVED: &str = "removed";

/// A running process that removes the programs when this value is dropped.
#[derive(Debug)]
pub(crate) struct Dispatchers {
    helper: Helper,
}

impl Dispatchers {
    /// Starts the process if this process has programs in dispatchers.
    pub(super) fn begin() -> Result<Option<Self>, Error> {
        let components = af_xdp::components();
        if components.is_empty() {
            return Ok(None);
        }
        let args = components.iter().map(ToString::to_string);
        let helper = Helper::start("steerage-dispatch", "leave-dispatchers", args)?;
        af_xdp::stay_in_dispatchers();
        Ok(Some(Self { helper }))
    }
}

impl Drop for Dispatchers {
    fn drop(&mut self) {
        match self.helper.last_line().as_str() {
            REMOVED => {}
            "" => warn(
                "the process that removes XDP programs ended early, so they are left in libxdp's dispatcher: the next start removes them",
            ),
            error => warn(error),
        }
    }
}

/// The process itself: waits for the end of standard input, and removes the programs.
pub(crate) fn run(args: &LeaveDispatchersArgs) -> Result<(), Error> {
    helper::outlive_signals()?;
    helper::wait_for_end();
    for component in &args.components {
        if let Err(error) = dispatcher::remove(*component) {
            let program = component.program;
            say(&format!(
                "cannot remove XDP program {program} from libxdp's dispatcher: {error}; the next start removes it"
            ));
            return Ok(());
        }
    }
    say(REMOVED);
    Ok(())
}
