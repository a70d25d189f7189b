//! The receive path from outside: devices, packet functions and outputs made for one test each.

mod backlogs;
mod buckets;
mod control;
mod deferred;
mod distance;
mod embedding;
mod flow_etherparse;
mod flow_limit;
mod flow_path;
mod late_move;
mod lent;
mod lies;
mod limits;
mod originate;
mod page_contract;
mod pages;
mod patience;
mod resize;
mod running;
mod transmit;
mod wakes;
