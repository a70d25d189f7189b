//! Tests of the assignment of buckets, with up to 1,024 CPUs.

use steerage_core::limits::BUCKETS;

use super::model::Chance;
use crate::packing::Loads;

const CPUS: [usize; 5] = [2, 16, 100, 512, 1024];
const WITHIN: f64 = 1.05;

struct Case {
    map: Box<[u16; BUCKETS]>,
    buckets: Vec<f64>,
    base: Vec<f64>,
    active: Vec<u16>,
}

impl Case {
    fn loads(&self) -> Loads<'_> {
        Loads { map: &self.map, buckets: &self.buckets, base: &self.base, active: &self.active }
    }

    /// The buckets are either all on one CPU, or each on a random CPU.
    fn random(cpus: usize, chance: &mut Chance) -> Self {
        let mut map = Box::new([0; BUCKETS]);
        if chance.below(2) == 0 {
            map.iter_mut().for_each(|cpu| *cpu = chance.below(cpus) as u16);
        }
        let tail = 1.0 + chance.share();
        let buckets = (0..BUCKETS).map(|_| chance.share().max(1e-3).powf(-1.0 / tail)).collect();
        let base = (0..cpus).map(|_| chance.share() * BUCKETS as f64 / cpus as f64).collect();
        let mut active: Vec<u16> = (0..cpus as u16).filter(|_| chance.below(4) > 0).collect();
        if active.is_empty() {
            active.push(0);
        }
        Self { map, buckets, base, active }
    }

    fn moved(&self, map: &[u16; BUCKETS]) -> usize {
        self.map.iter().zip(map).filter(|(from, to)| from != to).count()
    }
}

fn is_improved_by_a_move(case: &Case, map: &[u16; BUCKETS]) -> bool {
    let packed = Loads { map, ..case.loads() };
    let cpus = packed.of_cpus();
    let busiest = packed.busiest();
    let least = case.active.iter().map(|cpu| cpus[usize::from(*cpu)]).fold(f64::INFINITY, f64::min);
    let on_the_busiest = |cpu: &u16| cpus[usize::from(*cpu)] >= busiest;
    // A move is an improvement only if it reduces the busiest CPU's load by more than a 32nd.
    map.iter().zip(&case.buckets).any(|(cpu, load)| on_the_busiest(cpu) && least + load < busiest * (1.0 - 1.0 / 32.0))
}

#[test]
fn all_buckets_go_to_active_cpus_as_evenly_as_moves_allow() {
    let mut chance = Chance::new(1);
    for cpus in CPUS {
        for _ in 0..20 {
            let case = Case::random(cpus, &mut chance);
            let map = case.loads().pack(WITHIN);
            assert!(
                map.iter().all(|cpu| case.active.contains(cpu)),
                "{cpus} CPUs: a bucket is on a CPU that should have none"
            );
            let packed = Loads { map: &map, ..case.loads() };
            let is_near = packed.busiest() <= packed.best() * WITHIN * 1.001;
            assert!(
                is_near || !is_improved_by_a_move(&case, &map),
                "{cpus} CPUs: {} of {}",
                packed.busiest(),
                packed.best()
            );
        }
    }
}

/// CPU 0 had all buckets, and keeps an equal share. Each bucket that leaves CPU 0 moves exactly
/// once.
#[test]
fn equal_buckets_are_dealt_out_with_one_move_each() {
    for cpus in CPUS {
        let case = Case {
            map: Box::new([0; BUCKETS]),
            buckets: vec![1.0; BUCKETS],
            base: vec![0.0; cpus],
            active: (0..cpus as u16).collect(),
        };
        let map = case.loads().pack(1.0);
        let mut held = vec![0; cpus];
        map.iter().for_each(|cpu| held[usize::from(*cpu)] += 1);
        // Buckets do not move if the move would reduce a CPU's load by less than a 64th.
        let (least, most) = (BUCKETS / cpus, BUCKETS.div_ceil(cpus));
        let near = most / 64 + 1;
        assert!(held.iter().all(|held| (least - near..=most + near).contains(held)), "{cpus} CPUs: {held:?}");
        assert_eq!(case.moved(&map), BUCKETS - held[0]);
        let again = Case { map, ..case };
        let within = (most + near) as f64 / least as f64;
        assert_eq!(again.moved(&again.loads().pack(within)), 0, "{cpus} CPUs: an even map changed");
    }
}
