//! The request-response benchmark of `steerage bench`: the load, the servers and the experiment; and the output of all
//! experiments.

pub(crate) mod cpu_time;
pub(crate) mod html_page;
mod namespaces;
pub(crate) mod progress;
pub(crate) mod rr;
pub(crate) mod rr_experiment;
mod server;
