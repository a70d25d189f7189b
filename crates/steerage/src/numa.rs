//! Which NUMA node each CPU is of, and how many pages lie on which.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use steerage_mem::Part;

use crate::cpu::{CpuId, CpuMask};
use crate::rps_map::CpuIndex;

/// Where the kernel lists nodes, below the root (Documentation/ABI/stable/sysfs-devices-node).
const NODES: &str = "sys/devices/system/node";

/// More than any kernel can be built for: the bound of a list that the kernel itself wrote.
const CPU_IDS_MAX: usize = 1 << 16;

/// Which NUMA node each CPU is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMap {
    /// By the nodes' numbers.
    nodes: BTreeMap<u32, CpuMask>,
    simulated: bool,
}

impl NodeMap {
    /// As the kernel tells in `/sys/devices/system/node`. Of no nodes, where it does not.
    pub fn of_machine() -> Self {
        Self::below(Path::new("/"))
    }

    /// Nodes 0, 1 and so on, with these CPUs. The machine need not have them: memory is divided as on such a machine, and the
    /// kernel is not asked to place it. For tests.
    pub fn simulated(nodes: impl IntoIterator<Item = CpuMask>) -> Self {
        Self { nodes: (0..).zip(nodes).collect(), simulated: true }
    }

    fn below(root: &Path) -> Self {
        let entries = fs::read_dir(root.join(NODES)).into_iter().flatten().flatten();
        let nodes = entries.filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            // A node of memory alone has no CPUs, and nobody who would want pages of it.
            let cpus = CpuMask::parse_list(list.trim(), CPU_IDS_MAX).ok().filter(|cpus| !cpus.is_empty())?;
            Some((node, cpus))
        });
        Self { nodes: nodes.collect(), simulated: false }
    }

    /// The node that `cpu` is of, if that is known.
    pub fn node_of(&self, cpu: CpuId) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node)
    }
}

/// The nodes that an instance's CPUs are of: one at least.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// To ask the kernel for; `None` where there is one node, or it is simulated.
    numbers: Vec<Option<u32>>,
    /// By CPU, its place in that list. A CPU of no known node is counted with the first.
    of_cpu: Vec<usize>,
}

impl Nodes {
    pub(crate) fn of(map: &NodeMap, cpus: &[CpuId]) -> Self {
        let mut numbers: Vec<u32> = cpus.iter().filter_map(|cpu| map.node_of(*cpu)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let place = |cpu: &CpuId| map.node_of(*cpu).and_then(|node| numbers.binary_search(&node).ok()).unwrap_or(0);
        let of_cpu = cpus.iter().map(place).collect();
        let ask = numbers.len() > 1 && !map.simulated;
        let mut numbers: Vec<Option<u32>> = numbers.into_iter().map(|node| ask.then_some(node)).collect();
        if numbers.is_empty() {
            numbers.push(None);
        }
        Self { numbers, of_cpu }
    }

    /// By CPU, whatever there is one of for each node.
    pub(crate) fn by_cpu<T: Clone>(&self, by_node: &[T]) -> Vec<T> {
        self.of_cpu.iter().map(|node| by_node[*node].clone()).collect()
    }

    /// A part of memory for each node, with as many pages as the CPUs of it want.
    pub(crate) fn parts(&self, wanted: impl IntoIterator<Item = (CpuIndex, usize)>) -> Vec<Part> {
        let mut parts: Vec<Part> = self.numbers.iter().map(|node| Part { pages: 0, node: *node }).collect();
        for (cpu, pages) in wanted {
            let part = &mut parts[self.of_cpu[usize::from(cpu)]];
            part.pages = part.pages.saturating_add(pages);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(cpus: &[u16]) -> CpuMask {
        cpus.iter().copied().map(CpuId).collect()
    }

    #[test]
    fn nodes_are_read_as_the_kernel_lists_them() {
        let root = std::env::temp_dir().join(format!("steerage-numa-{}", std::process::id()));
        for (node, cpus) in [("node0", "0-1,4\n"), ("node3", "2-3\n"), ("node4", "\n"), ("power", "7\n")] {
            let directory = root.join(NODES).join(node);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cpulist"), cpus).unwrap();
        }
        let map = NodeMap::below(&root);
        fs::remove_dir_all(&root).unwrap();
        let nodes: Vec<Option<u32>> = [0, 1, 2, 3, 4, 5, 7].map(|cpu| map.node_of(CpuId(cpu))).into();
        assert_eq!(nodes, [Some(0), Some(0), Some(3), Some(3), Some(0), None, None]);
        assert_eq!(NodeMap::below(&root.join("absent")), NodeMap::default());

        let nodes = Nodes::of(&map, &[CpuId(1), CpuId(2), CpuId(5)]);
        assert_eq!(nodes, Nodes { numbers: vec![Some(0), Some(3)], of_cpu: vec![0, 1, 0] });
        // With one node there is nothing to ask for.
        assert_eq!(Nodes::of(&map, &[CpuId(3)]), Nodes { numbers: vec![None], of_cpu: vec![0] });
    }

    #[test]
    fn pages_are_where_they_are_wanted() {
        let map = NodeMap::simulated([mask(&[0, 2]), mask(&[1])]);
        let nodes = Nodes::of(&map, &[CpuId(0), CpuId(1), CpuId(2)]);
        let part = |pages| Part { pages, node: None };
        assert_eq!(nodes.parts([(0, 10), (1, 20), (2, 30)]), [part(40), part(20)]);
        assert_eq!(nodes.by_cpu(&["a", "b"]), ["a", "b", "a"]);
        let unknown = Nodes::of(&NodeMap::default(), &[CpuId(0), CpuId(1)]);
        assert_eq!(unknown.parts([(0, 10), (1, 20)]), [part(30)]);
    }
}
