//! `-f`: what of an interface is wanted.

use std::path::Path;

use steerage::LinkType;
use steerage_device::filter::Filter;

use crate::args::RunArgs;
use crate::error::Error;

/// The filter for a device of the command line, if there is to be one. Whoever opens an interface asks for it first: it
/// takes a child process, and after the devices are open there are none.
pub(crate) fn of(args: &RunArgs, device: &str) -> Result<Option<Filter>, Error> {
    let Some(text) = &args.filter else { return Ok(None) };
    if !is_interface(device) {
        return Err(Error::NothingToFilter { device: device.to_owned(), filter: text.clone() });
    }
    Filter::compile(text, Some(device), LinkType::ETHERNET).map(Some).map_err(Error::Filter)
}

fn is_interface(device: &str) -> bool {
    !device.contains('/') && Path::new("/sys/class/net").join(device).exists()
}
