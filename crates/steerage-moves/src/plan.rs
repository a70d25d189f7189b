use crate::CpuIndex;

/// Determines which CPUs of a group have buckets when the mask or the usable CPUs change.
///
/// ```
/// use steerage_moves::Plan;
///
/// // Two CPUs have buckets: CPU 3 first, and then the others in the core's order.
/// let plan = Plan { order: vec![3], active: 2 };
/// assert_eq!(plan.choose(&[0, 1, 2, 3]), [3, 0]);
/// // If CPU 3 is not usable, the next one takes its place.
/// assert_eq!(plan.choose(&[0, 1, 2]), [0, 1]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The CPUs in the order in which they get buckets. The other CPUs of the mask follow: first
    /// CPUs that poll a queue of the group, then CPUs near to these.
    pub order: Vec<CpuIndex>,
    /// How many CPUs have buckets (at least one): the first usable CPUs, in the order of `order`.
    pub active: usize,
}

impl Plan {
    /// Creates a plan in which all CPUs of the mask have buckets.
    pub const fn all() -> Self {
        Self { order: Vec::new(), active: usize::MAX }
    }

    /// Returns the CPUs that have buckets. `usable` are the usable CPUs of the mask, in the order
    /// in which they should get buckets.
    pub fn choose(&self, usable: &[CpuIndex]) -> Vec<CpuIndex> {
        let mut chosen = usable.to_vec();
        self.choose_in_place(&mut chosen);
        chosen
    }

    pub(crate) fn choose_in_place(&self, usable: &mut Vec<CpuIndex>) {
        if self.active >= usable.len() {
            return;
        }
        let mut front = 0;
        for cpu in &self.order {
            if let Some(at) = usable[front..].iter().position(|usable| usable == cpu) {
                usable[front..=front + at].rotate_right(1);
                front += 1;
            }
        }
        usable.truncate(self.active.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_cpus_come_first_and_the_others_keep_their_order() {
        let plan = |order: &[CpuIndex], active| Plan { order: order.to_vec(), active };
        assert_eq!(Plan::all().choose(&[3, 1, 2]), [3, 1, 2]);
        assert_eq!(plan(&[2], 3).choose(&[3, 1, 2]), [3, 1, 2], "all CPUs of the mask");
        assert_eq!(plan(&[], 1).choose(&[3, 1, 2]), [3]);
        assert_eq!(plan(&[2], 2).choose(&[3, 1, 2]), [2, 3]);
        assert_eq!(plan(&[2, 1], 2).choose(&[3, 1, 2]), [2, 1]);
        assert_eq!(plan(&[0, 9, 5], 2).choose(&[0, 1, 5]), [0, 5]);
        assert_eq!(plan(&[9], 1).choose(&[0, 1, 5]), [0]);
        assert_eq!(plan(&[5, 5], 2).choose(&[0, 1, 5]), [5, 0]);
        assert_eq!(plan(&[1], 0).choose(&[0, 1]), [1], "one CPU always has buckets");
    }
}
