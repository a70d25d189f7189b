use steerage::testing::SplitMix64;

use super::SyntheticOptions;

/// Draws (chooses at random) the flows of one queue, with probabilities by their weights.
#[derive(Debug)]
pub(super) struct Sampler {
    random: SplitMix64,
    pub(super) flows: u32,
    pub(super) weight: f64,
    /// The alias table of the weights. Empty if all flows have the same weight.
    aliases: Box<[Alias]>,
}

/// One column of an alias table. If the random position in the column is below `threshold` (in
/// units of 2^-32), the column draws its own flow, and otherwise the flow `other`.
#[derive(Clone, Copy, Debug)]
struct Alias {
    threshold: u32,
    other: u32,
}

impl Sampler {
    pub(super) fn new(options: &SyntheticOptions, queue: usize) -> Self {
        // Without `mix`, consecutive queues or seeds would draw the same numbers, shifted by one.
        let random = SplitMix64::new(SplitMix64::mix(options.seed ^ SplitMix64::mix(queue as u64 + 1)));
        let flows = options.flows_of(queue);
        if options.zipf == 0.0 {
            return Self { random, flows, weight: f64::from(flows), aliases: Box::default() };
        }
        let number = |flow: u32| flow as usize * options.queues + queue;
        let weights = (0..flows).map(|flow| ((number(flow) + 1) as f64).powf(-options.zipf)).collect::<Vec<_>>();
        Self { random, flows, weight: weights.iter().sum(), aliases: alias_table(weights) }
    }

    #[inline(always)]
    pub(super) fn draw(&mut self, to: &mut [u32]) {
        // Lemire, "Fast random integer generation in an interval" (2019). The high half of the
        // random number times `flows` selects the column, and the low half is the position in the
        // column.
        let flows = u128::from(self.flows);
        if self.aliases.is_empty() {
            to.iter_mut().for_each(|to| *to = ((u128::from(self.random.draw()) * flows) >> 64) as u32);
            return;
        }
        for to in to {
            let product = u128::from(self.random.draw()) * flows;
            let column = (product >> 64) as u32;
            let alias = self.aliases[column as usize];
            let within = (product as u64 >> 32) as u32;
            *to = if within < alias.threshold { column } else { alias.other };
        }
    }
}

/// Vose, "A linear algorithm for generating random numbers with a given distribution" (1991).
fn alias_table(mut weights: Vec<f64>) -> Box<[Alias]> {
    let scale = weights.len() as f64 / weights.iter().sum::<f64>();
    weights.iter_mut().for_each(|weight| *weight *= scale);
    // At first, each column draws only its own flow.
    let mut table: Box<[Alias]> = (0..weights.len() as u32).map(|i| Alias { threshold: u32::MAX, other: i }).collect();
    // `order` begins with the flows whose weight is below 1, and ends with the other flows.
    let mut order: Vec<u32> = vec![0; weights.len()];
    let (mut small, mut large) = (0, weights.len());
    for (i, weight) in weights.iter().enumerate() {
        let at = if *weight < 1.0 {
            small += 1;
            small - 1
        } else {
            large -= 1;
            large
        };
        order[at] = i as u32;
    }
    while small > 0 && large < order.len() {
        small -= 1;
        let (less, more) = (order[small] as usize, order[large] as usize);
        table[less] = Alias { threshold: (weights[less] * 4_294_967_296.0) as u32, other: more as u32 };
        weights[more] -= 1.0 - weights[less];
        if weights[more] < 1.0 {
            large += 1;
            order[small] = more as u32;
            small += 1;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(zipf: f64, flows: u32, draws: usize) -> Vec<f64> {
        let options = SyntheticOptions::new().zipf(zipf).flows(flows);
        let mut sampler = Sampler::new(&options, 0);
        let mut drawn = vec![0; draws];
        sampler.draw(&mut drawn);
        let mut counts = vec![0.0; flows as usize];
        drawn.iter().for_each(|flow| counts[*flow as usize] += 1.0 / draws as f64);
        counts
    }

    #[test]
    fn flows_come_with_the_probability_of_their_weight() {
        let draws = 1_000_000;
        for zipf in [0.0, 0.5, 1.0, 1.3, 4.0] {
            let weights: Vec<f64> = (1..=100).map(|rank| f64::from(rank).powf(-zipf)).collect();
            let total: f64 = weights.iter().sum();
            for (flow, (seen, weight)) in shares(zipf, 100, draws).iter().zip(&weights).enumerate() {
                let p = weight / total;
                // `slack` is six standard deviations: one check in 500 million fails by chance.
                let slack = 6.0 * (p * (1.0 - p) / draws as f64).sqrt() + 1e-6;
                assert!((seen - p).abs() < slack, "zipf {zipf}, flow {flow}: {seen} instead of {p}");
            }
        }
    }

    #[test]
    fn one_flow_and_extreme_weights() {
        assert_eq!(shares(1.0, 1, 100).len(), 1);
        assert!(shares(10.0, 1000, 100_000)[0] > 0.99);
    }

    #[test]
    fn a_table_holds_the_weights_exactly() {
        let weights: Vec<f64> = (1..=1000).map(|rank| f64::from(rank).powf(-1.1)).collect();
        let total: f64 = weights.iter().sum();
        let table = alias_table(weights.clone());
        let mut mass = vec![0.0; weights.len()];
        for (i, alias) in table.iter().enumerate() {
            let own = f64::from(alias.threshold) / 4_294_967_296.0;
            mass[i] += own;
            mass[alias.other as usize] += 1.0 - own;
        }
        for (mass, weight) in mass.iter().zip(&weights) {
            assert!((mass / 1000.0 - weight / total).abs() < 1e-8);
        }
    }
}
