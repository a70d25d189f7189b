//! The CPUs, the CPU time and the memory that the cgroups (version 1 or 2) of this process allow.

use crate::cpu::CpuMask;
use crate::files::Files;

const ROOT: &str = "sys/fs/cgroup";

pub(crate) fn cpuset(files: &Files) -> Option<CpuMask> {
    let read = |hierarchy: &Hierarchy, group: &str| {
        // Old kernels with cgroups version 1 list the configured CPUs (`cpuset.cpus`), but not the
        // effective CPUs.
        let names: &[&str] = match hierarchy.version {
            Version::One => &["cpuset.effective_cpus", "cpuset.cpus"],
            Version::Two => &["cpuset.cpus.effective"],
        };
        names.iter().find_map(|name| files.list(format!("{group}/{name}")))
    };
    // The nearest cgroup suffices: the kernel limits its effective CPUs to those of its parents.
    let nearest = hierarchies(files, "cpuset")
        .into_iter()
        .filter_map(|hierarchy| hierarchy.upwards().find_map(|group| read(&hierarchy, &group)));
    nearest.reduce(|one, other| one.and(&other))
}

/// Returns the smallest quota of the process's cgroup and all its parents, as a number of CPUs.
pub(crate) fn quota(files: &Files) -> Option<f64> {
    let read = |version, group: &str| match version {
        Version::One => {
            let quota = files.text(format!("{group}/cpu.cfs_quota_us"))?;
            share(&format!("{quota} {}", files.text(format!("{group}/cpu.cfs_period_us"))?))
        }
        Version::Two => share(&files.text(format!("{group}/cpu.max"))?),
    };
    of_all_groups(files, "cpu", read).into_iter().min_by(f64::total_cmp)
}

/// Returns the smallest limit of the process's cgroup and all its parents, in bytes.
pub(crate) fn memory(files: &Files) -> Option<u64> {
    // If there is no limit, version 1 of cgroups reports a large number, and version 2 reports
    // `max`.
    let read = |version, group: &str| match version {
        Version::One => files.number(format!("{group}/memory.limit_in_bytes")),
        Version::Two => files.number(format!("{group}/memory.max")),
    };
    of_all_groups(files, "memory", read).into_iter().min()
}

/// Returns the limits of the process's cgroup and all its parents.
fn of_all_groups<T>(files: &Files, controller: &str, read: impl Fn(Version, &str) -> Option<T>) -> Vec<T> {
    let hierarchies = hierarchies(files, controller);
    let groups = hierarchies.iter().flat_map(|of| of.upwards().map(|group| (of.version, group)));
    groups.filter_map(|(version, group)| read(version, &group)).collect()
}

/// Converts a quota to CPUs: `150000 100000` is 1.5. `max 100000` and `-1 100000` mean no limit.
fn share(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[derive(Clone, Copy, Debug)]
enum Version {
    One,
    Two,
}

#[derive(Debug)]
struct Hierarchy {
    version: Version,
    mount: String,
    group: String,
}

/// Finds the hierarchies of a controller (such as `cpuset`) at their usual mount points only.
fn hierarchies(files: &Files, controller: &str) -> Vec<Hierarchy> {
    let text = files.text("proc/self/cgroup").unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next().unwrap_or_default(), fields.next().unwrap_or("/"));
        let mut add = |version, mount: String| {
            found.push(Hierarchy { version, mount, group: group.trim_matches('/').to_owned() });
        };
        if controllers.is_empty() {
            add(Version::Two, ROOT.to_owned());
            add(Version::Two, format!("{ROOT}/unified"));
        } else if controllers.split(',').any(|one| one == controller) {
            add(Version::One, format!("{ROOT}/{controllers}"));
            if controllers != controller {
                add(Version::One, format!("{ROOT}/{controller}"));
            }
        }
    }
    found
}

impl Hierarchy {
    /// Returns the process's own cgroup and then its parents, up to the root of the cgroup mount.
    /// In a container, the mounted root may be the process's own cgroup, although /proc shows the
    /// cgroup's path on the host.
    fn upwards(&self) -> impl Iterator<Item = String> + '_ {
        // A cgroup outside of the process's cgroup namespace (`..`) cannot be read.
        let group = if self.group.split('/').any(|part| part == "..") { "" } else { self.group.as_str() };
        let groups = std::iter::successors(Some(group), |group| {
            (!group.is_empty()).then(|| group.rsplit_once('/').map_or("", |(above, _)| above))
        });
        groups.map(|group| format!("{}/{group}", self.mount).trim_end_matches('/').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machines::Made;

    fn quota_of(made: &Made) -> Option<f64> {
        quota(&Files::below(made.root()))
    }

    fn cpuset_of(made: &Made) -> Option<String> {
        cpuset(&Files::below(made.root())).map(|cpus| cpus.to_list())
    }

    #[test]
    fn a_quota_of_any_group_above_counts() {
        let made = Made::new(&[
            ("proc/self/cgroup", "0::/a/b"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000"),
            ("sys/fs/cgroup/cpu.max", "400000 100000"),
        ]);
        assert_eq!(quota_of(&made), Some(1.5));
        let namespaced = Made::new(&[("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/cpu.max", "50000 100000")]);
        assert_eq!(quota_of(&namespaced), Some(0.5));
        let first = Made::new(&[
            ("proc/self/cgroup", "3:cpuset:/x\n2:cpu,cpuacct:/x\n0::/"),
            ("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "200000"),
            ("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000"),
        ]);
        assert_eq!(quota_of(&first), Some(2.0));
    }

    #[test]
    fn the_nearest_cpuset_that_says_counts() {
        let second = Made::new(&[
            ("proc/self/cgroup", "0::/a/b"),
            ("sys/fs/cgroup/a/cpuset.cpus.effective", "2-5"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-7"),
        ]);
        assert_eq!(cpuset_of(&second).as_deref(), Some("2-5"));
        let first = Made::new(&[
            ("proc/self/cgroup", "4:cpuset:/x\n0::/"),
            ("sys/fs/cgroup/cpuset/x/cpuset.cpus", "0-7"),
            ("sys/fs/cgroup/cpuset/x/cpuset.effective_cpus", "0-3"),
        ]);
        assert_eq!(cpuset_of(&first).as_deref(), Some("0-3"));
        first.remove("sys/fs/cgroup/cpuset/x/cpuset.effective_cpus");
        assert_eq!(cpuset_of(&first).as_deref(), Some("0-7"));
        let container =
            Made::new(&[("proc/self/cgroup", "4:cpuset:/docker/1"), ("sys/fs/cgroup/cpuset/cpuset.cpus", "6,7")]);
        assert_eq!(cpuset_of(&container).as_deref(), Some("6-7"));
    }

    #[test]
    fn what_the_files_should_not_say_is_nothing() {
        let made = Made::new(&[
            ("proc/self/cgroup", "nonsense\n::\n0::/../../etc"),
            ("sys/fs/cgroup/cpu.max", "0 0"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-"),
        ]);
        assert_eq!((quota_of(&made), cpuset_of(&made)), (None, None));
        assert_eq!((share(""), share("1"), share("x 1"), share("-1 5")), (None, None, None, None));
        let nothing = Made::new(&[]);
        assert_eq!((quota_of(&nothing), cpuset_of(&nothing)), (None, None));
    }
}
