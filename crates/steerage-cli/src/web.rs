//! `--web` serves the live page of a run to browsers.

use std::cell::RefCell;

use steerage_control::Audience;
use steerage_control::web::{Listener, PageServer, new_key};

use crate::args::WebArgs;
use crate::error::Error;
use crate::terminal::print_to_stderr;

#[derive(Debug, Default)]
pub(crate) struct Web(RefCell<Option<Prepared>>);

#[derive(Debug)]
struct Prepared {
    listener: Listener,
    key: String,
}

impl Web {
    /// Prints the address of the live page even with `-q`, because only this line shows the key of
    /// the page.
    pub(crate) fn prepare(args: &WebArgs) -> Result<Self, Error> {
        let Some(address) = args.web else { return Ok(Self::default()) };
        let listener = Listener::bind("a live page", address).map_err(Error::Web)?;
        let key = new_key().map_err(|error| Error::System { operation: "read a key from /dev/urandom", error })?;
        print_to_stderr(format_args!("live page at http://{}/#{key}", listener.address()));
        Ok(Self(RefCell::new(Some(Prepared { listener, key }))))
    }

    /// Starts to serve the live page. `report` creates the report as JSON for an audience.
    pub(crate) fn serve(
        &self,
        report: impl Fn(Audience) -> String + Send + 'static,
    ) -> Result<Option<PageServer>, Error> {
        let Some(Prepared { listener, key }) = self.0.take() else { return Ok(None) };
        let served = listener.serve_page(key, report);
        served.map(Some).map_err(|error| Error::System { operation: "start a thread for the live page", error })
    }
}
