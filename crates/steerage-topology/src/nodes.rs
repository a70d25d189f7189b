use std::collections::BTreeMap;
use std::path::Path;

use crate::cpu::{CpuId, CpuMask};
use crate::files::{Files, NODES};

/// The NUMA node of each CPU.
///
/// ```
/// use steerage_topology::{CpuId, CpuMask, NodeMap};
///
/// let nodes = NodeMap::simulated([CpuMask::parse_list("0-3", 8)?, CpuMask::parse_list("4-7", 8)?]);
/// assert_eq!((nodes.node_of(CpuId(5)), nodes.node_of(CpuId(9))), (Some(1), None));
/// # Ok::<(), steerage_topology::MaskError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMap {
    nodes: BTreeMap<u32, CpuMask>,
    simulated: bool,
}

impl NodeMap {
    /// Reads `/sys/devices/system/node`. The map is empty if the kernel lists no NUMA nodes.
    pub fn of_machine() -> Self {
        Self::below(Path::new("/"))
    }

    /// Simulates NUMA nodes for tests: the items are the CPUs of node 0, of node 1 and so on. The
    /// memory is divided among the simulated nodes, but it is not placed on real nodes.
    pub fn simulated(nodes: impl IntoIterator<Item = CpuMask>) -> Self {
        Self { nodes: (0..).zip(nodes).collect(), simulated: true }
    }

    fn below(root: &Path) -> Self {
        let files = Files::below(root);
        let nodes = files.numbered(NODES, "node").into_iter();
        // A node without CPUs is ignored: no CPU of this process needs memory there.
        let nodes = nodes.filter_map(|(node, path)| Some((node, files.list(path.join("cpulist"))?)));
        Self { nodes: nodes.collect(), simulated: false }
    }

    /// Returns the NUMA node of `cpu`, or `None` if the node is unknown.
    pub fn node_of(&self, cpu: CpuId) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node)
    }
}

/// The NUMA nodes to which the CPUs of an instance belong. There is at least one node.
///
/// ```
/// use steerage_topology::{CpuId, CpuMask, NodeMap, Nodes};
///
/// let map = NodeMap::simulated([CpuMask::parse_list("0-1", 4)?, CpuMask::parse_list("2-3", 4)?]);
/// let nodes = Nodes::of(&map, &[CpuId(0), CpuId(1), CpuId(2)]);
/// // 10 pages for each CPU, by its index.
/// assert_eq!(nodes.divide([(0, 10), (1, 10), (2, 10)]), [(20, None), (10, None)]);
/// # Ok::<(), steerage_topology::MaskError>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The kernel's numbers of the nodes, or `None` for a single node or simulated nodes.
    numbers: Vec<Option<u32>>,
    /// For each CPU, the index of its node in `numbers`, or 0 if the node is unknown.
    of_cpu: Vec<usize>,
}

impl Nodes {
    /// Returns the NUMA nodes of `cpus`. Methods of `Nodes` identify a CPU by its index in `cpus`.
    pub fn of(map: &NodeMap, cpus: &[CpuId]) -> Self {
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

    /// Converts a list with one item per node to a list with one item per CPU.
    pub fn by_cpu<T: Clone>(&self, by_node: &[T]) -> Vec<T> {
        self.of_cpu.iter().map(|node| by_node[*node].clone()).collect()
    }

    /// Returns, for each NUMA node, the sum of the amounts in `wanted` for its CPUs, and the node's
    /// number, or `None` if the kernel may choose the node.
    pub fn divide(&self, wanted: impl IntoIterator<Item = (u16, usize)>) -> Vec<(usize, Option<u32>)> {
        let mut parts: Vec<(usize, Option<u32>)> = self.numbers.iter().map(|node| (0, *node)).collect();
        for (cpu, wants) in wanted {
            let part = &mut parts[self.of_cpu[usize::from(cpu)]].0;
            *part = part.saturating_add(wants);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machines::Made;

    #[test]
    fn nodes_are_read_as_the_kernel_lists_them() {
        let machine = Made::new(&[]);
        for (node, cpus) in [("node0", "0-1,4"), ("node3", "2-3"), ("node4", ""), ("power", "7")] {
            machine.write(&format!("{NODES}/{node}/cpulist"), cpus);
        }
        let map = NodeMap::below(machine.root());
        let nodes: Vec<Option<u32>> = [0, 1, 2, 3, 4, 5, 7].map(|cpu| map.node_of(CpuId(cpu))).into();
        assert_eq!(nodes, [Some(0), Some(0), Some(3), Some(3), Some(0), None, None]);
        assert_eq!(NodeMap::below(&machine.root().join("absent")), NodeMap::default());
    }

    fn mask(cpus: &[u16]) -> CpuMask {
        cpus.iter().copied().map(CpuId).collect()
    }

    #[test]
    fn pages_are_where_they_are_wanted() {
        let map = NodeMap::simulated([mask(&[0, 2]), mask(&[1])]);
        let nodes = Nodes::of(&map, &[CpuId(0), CpuId(1), CpuId(2)]);
        let part = |pages| (pages, None);
        assert_eq!(nodes.divide([(0, 10), (1, 20), (2, 30)]), [part(40), part(20)]);
        assert_eq!(nodes.by_cpu(&["a", "b"]), ["a", "b", "a"]);
        let unknown = Nodes::of(&NodeMap::default(), &[CpuId(0), CpuId(1)]);
        assert_eq!(unknown.divide([(0, 10), (1, 20)]), [part(30)]);
        assert_eq!(Nodes::of(&map, &[CpuId(1)]), Nodes { numbers: vec![None], of_cpu: vec![0] });
    }
}
