//! Finds the current flows with the most bytes by scanning the table, a few slots at a time.

use super::counts::Published;
use super::flow::FlowEnd;
use super::record::FlowRecord;
use super::table::Table;
use super::totals::Top;

#[derive(Debug)]
pub(super) struct Largest {
    most: usize,
    found: Top,
    next: u32,
}

impl Largest {
    pub(super) fn new(most: usize) -> Self {
        Self { most, found: Top::new(most), next: 0 }
    }

    pub(super) fn go_on(&mut self, table: &Table, looks: usize, published: &Published) {
        for _ in 0..looks {
            let Some(flow) = table.at(self.next) else {
                let found = std::mem::replace(&mut self.found, Top::new(self.most));
                self.next = 0;
                return published.publish_largest(found.into_records());
            };
            self.next += 1;
            if !flow.is_vacant() && self.found.has_place_for(flow.bytes()) {
                self.found.offer(&FlowRecord::new(*flow, FlowEnd::Active));
            }
        }
    }
}
