use std::fs;

/// The maximum number of child processes in a seccomp filter, which has a few instructions for each
/// child, and at most 4096 in total (`BPF_MAXINSNS`).
pub(super) const CHILDREN_MAX: usize = 400;

/// The maximum number of times that `running` lists the child processes, until two successive lists
/// are equal.
const TRIES: usize = 8;

/// Returns the process IDs of this process's children. Returns `None` if there are more than
/// [`CHILDREN_MAX`], or if the kernel does not list children (`CONFIG_PROC_CHILDREN`).
pub(super) fn running() -> Option<Vec<i32>> {
    // When a thread ends, the kernel moves its child processes to another thread of the process,
    // and the list of that thread may have been read already. To miss no child process, the lists
    // are read until two results are equal.
    let mut before = list()?;
    for _ in 0..TRIES {
        let now = list()?;
        if now == before {
            return (now.len() <= CHILDREN_MAX).then_some(now);
        }
        before = now;
    }
    None
}

fn list() -> Option<Vec<i32>> {
    let mut found = Vec::new();
    for thread in fs::read_dir("/proc/self/task").ok()? {
        let thread = thread.ok()?.path();
        match fs::read_to_string(thread.join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok())),
            // This kernel does not list children.
            Err(_) if thread.exists() => return None,
            Err(_) => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::program;

    #[test]
    fn a_child_is_found_whichever_thread_started_it() {
        let Some(before) = running() else { return };
        let mut child = program::start(Command::new("cat").stdin(Stdio::piped())).unwrap();
        let id = child.id() as i32;
        assert!(!before.contains(&id) && running().unwrap().contains(&id));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success() && !running().unwrap().contains(&id));
    }
}
