//! Tests of the receive path through its public interface. Most devices, packet functions and
//! outputs are written for one test.

mod backlogs;
mod buckets;
mod coalesced;
mod control;
mod counters;
mod deferred;
mod distance;
mod embedding;
mod flow_etherparse;
mod flow_limit;
mod flow_path;
mod late_move;
mod lent;
mod lent_shares;
mod lies;
mod limits;
mod messages;
mod notes;
mod originate;
mod page_contract;
mod pages;
mod patience;
mod resize;
mod running;
mod senders;
mod super_frames;
mod transmit;
mod wakes;
