//! The measurements of one run.

use std::collections::BTreeMap;

use serde::Serialize;

/// The values that one run has measured, by the name of the metric.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Measurement {
    /// The measured values.
    pub values: BTreeMap<String, f64>,
}

impl Measurement {
    /// Makes a measurement of one metric.
    pub fn of(metric: &str, value: f64) -> Self {
        Self::default().and(metric, value)
    }

    /// Adds another metric with its value. A value that is not finite is left out.
    pub fn and(mut self, metric: &str, value: f64) -> Self {
        if value.is_finite() {
            self.values.insert(metric.to_owned(), value);
        }
        self
    }
}
