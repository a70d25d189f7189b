use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use steerage_netlink::{Entry, Rtnetlink};

use crate::root::Root;

/// The maximum number of parent processes in which `SSH_CONNECTION` is searched for. sudo removes
/// this variable from its child.
const PARENTS_MAX: usize = 16;

/// Returns why the interface must not be taken down, or `None` if there is no reason. Reasons are
/// that the default route or the user's SSH connection leads through the interface.
///
/// # Errors
/// Fails if the kernel does not answer the netlink requests.
pub fn reached_through(root: &Root, interface: &str) -> io::Result<Option<String>> {
    // A bond, a bridge or a VLAN on top of an interface loses its link with the interface.
    let above = |name: &str| -> Vec<String> {
        let names = root.names(&format!("/sys/class/net/{name}"));
        names.iter().filter_map(|name| name.strip_prefix("upper_").map(str::to_owned)).collect()
    };
    let (mut names, mut left) = (BTreeSet::new(), vec![interface.to_owned()]);
    while let Some(name) = left.pop() {
        if names.insert(name.clone()) {
            left.extend(above(&name));
        }
    }
    let index = |name: &String| root.number(&format!("/sys/class/net/{name}/ifindex"));
    let links: BTreeSet<u32> = names.iter().filter_map(index).collect();
    let server = ssh_address(root);
    let mut why = None;
    Rtnetlink::open()?.list(&mut |change| match change.entry {
        Entry::Route(route) if route.prefix.1 == 0 && route.hops.iter().any(|hop| links.contains(&hop.link)) => {
            why = Some(format!("{interface} has the default route"));
        }
        Entry::Address(address) if links.contains(&address.link) && Some(address.address) == server => {
            why = Some(format!("the SSH connection to {} is through {interface}", address.address));
        }
        _ => {}
    })?;
    Ok(why)
}

/// Returns this machine's address in the environment variable `SSH_CONNECTION`. Parent processes
/// are searched too, because sudo removes `SSH_CONNECTION` from the environment.
fn ssh_address(root: &Root) -> Option<IpAddr> {
    let mut process = "self".to_owned();
    for _ in 0..PARENTS_MAX {
        let variables = std::fs::read(root.path(&format!("/proc/{process}/environ"))).unwrap_or_default();
        let mut variables = variables.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        if let Some(found) = variables.find_map(|one| one.strip_prefix("SSH_CONNECTION=").map(str::to_owned)) {
            // `SSH_CONNECTION` has the client's address and port, then the server's address and
            // port.
            return found.split(' ').nth(2)?.parse().ok();
        }
        let status = root.read(&format!("/proc/{process}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
        if parent == "0" {
            return None;
        }
        process = parent.to_owned();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_of_a_parent_is_found() {
        let place = steerage_fixtures::scratch::Scratch::new();
        for (process, environ, status) in [
            ("self", "A=1\0B=2\0", "Name:\tsteerage\nPPid:\t41\n"),
            ("41", "SHELL=/bin/sh\0", "PPid:\t40\n"),
            ("40", "X=\0SSH_CONNECTION=192.0.2.9 5000 192.0.2.1 22\0", "PPid:\t1\n"),
        ] {
            let directory = place.join("proc").join(process);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("environ"), environ).unwrap();
            std::fs::write(directory.join("status"), status).unwrap();
        }
        let root = Root::below(&*place);
        assert_eq!(ssh_address(&root), Some([192, 0, 2, 1].into()));
        std::fs::remove_file(place.join("proc/40/environ")).unwrap();
        assert_eq!(ssh_address(&root), None);
    }
}
