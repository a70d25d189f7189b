//! Tests capture files and filters against tshark, tcpdump, gzip, zstd and the kernel.

mod captures;
mod captures_headers;
mod captures_packed;
mod captures_saved;
mod captures_stuck;
mod captures_waiting;
mod common;
mod filters;
mod filters_files;
mod flows;
mod in_place;
mod lent;
