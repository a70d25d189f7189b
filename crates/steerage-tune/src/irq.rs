//! The interrupts of a card's receive queues, and requests to the daemon irqbalance, which moves
//! interrupts between CPUs.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use steerage::topology::queue_interrupts;

use crate::knob::Knob;
use crate::machine::Machine;
use crate::root::Root;

/// irqbalance creates its socket `irqbalancePID.sock` in this directory.
const IRQBALANCE: &str = "/run/irqbalance";
/// The maximum length of a message to irqbalance, whose function `sock_handle` has a buffer of this
/// size.
const MESSAGE_MAX: usize = 499;
/// The maximum length of a reply from irqbalance, which has about 60 bytes for each interrupt.
const REPLY_MAX: u64 = 1 << 20;
/// The time to wait for a reply. While irqbalance is balancing interrupts, it does not reply.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the affinity files of the interrupts of an interface's receive queues, in the order of
/// the queues, and notes for the user about interrupts that cannot be changed.
pub(crate) fn knobs(machine: &Machine, interface: &str) -> (Vec<Knob>, Vec<String>) {
    let interrupts = queue_interrupts(machine.root().directory(), interface);
    if interrupts.is_empty() {
        return (Vec::new(), vec![format!("smp_affinity: {interface} has no interrupts for its queues")]);
    }
    let name = |irq: &u32| format!("/proc/irq/{irq}/smp_affinity");
    let (open, managed): (Vec<u32>, Vec<u32>) =
        interrupts.into_values().partition(|irq| owner_may_write(machine.root(), &name(irq)));
    let note = (!managed.is_empty()).then(|| {
        let list: Vec<String> = managed.iter().map(u32::to_string).collect();
        format!("smp_affinity: the kernel manages interrupt {} itself and refuses changes", list.join(", "))
    });
    (open.iter().map(|irq| Knob(name(irq))).collect(), note.into_iter().collect())
}

/// Returns false if the kernel manages an interrupt itself. The mode of a managed interrupt's file
/// does not allow even root to write.
fn owner_may_write(root: &Root, name: &str) -> bool {
    std::fs::metadata(root.path(name)).is_ok_and(|file| file.permissions().mode() & 0o200 != 0)
}

/// Returns the numbers of the interrupts whose affinity files are in `knobs`.
pub fn interrupts<'a>(knobs: impl IntoIterator<Item = &'a Knob>) -> Vec<u32> {
    let irq = |knob: &Knob| knob.0.strip_prefix("/proc/irq/")?.split('/').next()?.parse().ok();
    knobs.into_iter().filter_map(irq).collect()
}

/// Returns the path of irqbalance's socket, or `None` if irqbalance does not run.
pub fn irqbalance(root: &Root) -> Option<PathBuf> {
    let names = root.names(IRQBALANCE);
    let name = names.iter().find(|name| name.starts_with("irqbalance") && name.ends_with(".sock"))?;
    Some(root.path(&format!("{IRQBALANCE}/{name}")))
}

/// Tells irqbalance not to move these interrupts, in addition to those that it already leaves
/// alone. irqbalance forgets such requests when it restarts.
///
/// # Errors
/// Fails if irqbalance does not reply or refuses this user, or if the list of interrupts is too
/// long for a message.
pub fn ban(socket: &Path, interrupts: &[u32]) -> io::Result<()> {
    change_bans(socket, |banned| banned.extend(interrupts))
}

/// Allows irqbalance to move these interrupts again, which [`ban`] has excluded.
///
/// # Errors
/// Fails like [`ban`].
pub fn unban(socket: &Path, interrupts: &[u32]) -> io::Result<()> {
    change_bans(socket, |banned| banned.retain(|irq| !interrupts.contains(irq)))
}

fn change_bans(socket: &Path, change: impl FnOnce(&mut BTreeSet<u32>)) -> io::Result<()> {
    let mut banned = banned(&request(socket, "setup")?);
    change(&mut banned);
    let list: Vec<String> = banned.iter().map(u32::to_string).collect();
    let list = if list.is_empty() { "NONE".to_owned() } else { list.join(" ") };
    let message = format!("settings ban irqs {list}");
    if message.len() > MESSAGE_MAX {
        return Err(io::Error::other(
            "irqbalance takes no list this long: add IRQBALANCE_BANNED_INTERRUPTS to its configuration",
        ));
    }
    request(socket, &message).map(drop)
}

fn banned(reply: &str) -> BTreeSet<u32> {
    let words: Vec<&str> = reply.split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == "IRQ").filter_map(|pair| pair[1].parse().ok()).collect()
}

fn request(socket: &Path, message: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(message.as_bytes())?;
    let mut reply = String::new();
    stream.take(REPLY_MAX).read_to_string(&mut reply)?;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Runs `body` with a fake irqbalance, and returns the messages that it received.
    fn answered(replies: &[&str], body: impl FnOnce(&Path)) -> Vec<String> {
        let place = steerage_fixtures::scratch::Scratch::new();
        let path = place.join("irqbalance7.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let answer = |reply: &&str| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut message = [0; 500];
                    let bytes = stream.read(&mut message).unwrap();
                    stream.write_all(reply.as_bytes()).unwrap();
                    String::from_utf8_lossy(&message[..bytes]).into_owned()
                };
                replies.iter().map(answer).collect()
            });
            body(&path);
            server.join().unwrap()
        })
    }

    /// A reply in the format of irqbalance's function `get_irq_data`.
    const SETUP: &str = "SLEEP 10 IRQ 9 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000,00000000";

    #[test]
    fn bans_are_added_to_those_of_others_and_removed_again() {
        let said = answered(&[SETUP, ""], |socket| ban(socket, &[41, 40]).unwrap());
        assert_eq!(said, ["setup", "settings ban irqs 9 40 41"]);
        let said = answered(&["SLEEP 10 IRQ 40 LOAD 0 BANNED 0", ""], |socket| unban(socket, &[40]).unwrap());
        assert_eq!(said, ["setup", "settings ban irqs NONE"]);
    }

    #[test]
    fn a_list_that_irqbalance_would_cut_off_is_not_sent() {
        let many: Vec<u32> = (1000..1200).collect();
        let said = answered(&[SETUP], |socket| assert!(ban(socket, &many).is_err()));
        assert_eq!(said, ["setup"]);
    }
}
