//! While `forward` runs, a helper process keeps the kernel from replying to the IPv6 packets that
//! `forward` forwards. The helper process adds routing rules, and later removes them. The only
//! capability of the helper process is `CAP_NET_ADMIN`.

use std::fs;
use std::io;

use steerage_guard::capabilities::{Needed, drop_except};
use steerage_netlink::Rule;
use steerage_router::kernel::SilentKernel;

use crate::args::SilenceKernelArgs;
use crate::error::Error;
use crate::helper::{self, Helper, say};
use crate::terminal::warn;

const READY: &str = "ready";
const REMOVED: &str = "removed";

/// When this value is dropped, the helper process removes the routing rules.
#[derive(Debug)]
pub(super) struct Silence {
    rules: Vec<Rule>,
    helper: Helper,
}

impl Silence {
    /// Starts the helper process if the kernel would reply to IPv6 packets from these interfaces,
    /// and waits until the process has added its routing rules.
    pub(super) fn begin<'a>(interfaces: impl Iterator<Item = &'a str>) -> Result<Option<Self>, Error> {
        let interfaces: Vec<String> = interfaces.filter(|name| has_ipv6(name)).map(str::to_owned).collect();
        if interfaces.is_empty() {
            return Ok(None);
        }
        let missing = SilentKernel::missing(&interfaces).map_err(|error| no_rules(&interfaces, &error))?;
        if missing.is_empty() {
            return Ok(None);
        }
        let interfaces = missing.iter().filter_map(|rule| rule.interface.clone());
        let mut helper = Helper::start("steerage-silence", "silence-kernel", interfaces)?;
        match helper.next_line().as_str() {
            READY => Ok(Some(Self { rules: missing, helper })),
            "" => Err(refused(&missing, "the process that adds rules ended early")),
            reason => Err(refused(&missing, reason)),
        }
    }
}

impl Drop for Silence {
    /// Waits until the helper process has removed the routing rules.
    fn drop(&mut self) {
        let warning = match self.helper.last_line().as_str() {
            REMOVED => return,
            "" => {
                let commands = commands("del", &self.rules);
                format!("the process that removes rules ended early, so rules may be left behind: as root, {commands}")
            }
            error => format!("{error}; `ip -6 rule` lists the rules"),
        };
        warn(&warning);
    }
}

fn has_ipv6(interface: &str) -> bool {
    fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")).is_ok_and(|text| text.trim() == "0")
}

fn no_rules(interfaces: &[String], error: &io::Error) -> Error {
    let names = interfaces.join(", ");
    Error::Refused(format!(
        "cannot keep the kernel from answering the IPv6 packets of {names}: {error}: see `ip -6 rule`, or switch IPv6 \
         off: sysctl -w net/ipv6/conf/{}/disable_ipv6=1",
        interfaces[0]
    ))
}

fn refused(missing: &[Rule], reason: &str) -> Error {
    Error::Refused(format!(
        "the kernel answers IPv6 packets for which it has no route, and the rule against it was refused ({reason}): \
         as root, {}",
        commands("add", missing)
    ))
}

fn commands(verb: &str, rules: &[Rule]) -> String {
    rules.iter().map(|rule| format!("ip -6 rule {verb} {rule}")).collect::<Vec<_>>().join("; ")
}

/// The code of the helper process, which runs until its standard input ends.
pub(crate) fn run(args: &SilenceKernelArgs) -> Result<(), Error> {
    helper::outlive_signals()?;
    let _kept = drop_except(&Needed::default().network_administration())?;
    match SilentKernel::begin(&args.interfaces) {
        Ok(silent) => {
            say(READY);
            helper::wait_for_end();
            say(&silent.end().map_or_else(|error| error.to_string(), |()| REMOVED.to_owned()));
        }
        Err(error) => say(&error.to_string()),
    }
    Ok(())
}
