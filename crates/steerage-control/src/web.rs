//! The live page of a run over HTTP (`--web`).
//!
//! The page consists of three files that are built into the program. The page requests the run's
//! report from `/report` once per second, and contacts no other server.
//!
//! Every user of this machine can connect to a loopback address, so a client gets private data only
//! with the [key](new_key). The address that the program prints has the key after a `#`. Browsers
//! send the part after the `#` to no server. The page's script sends the key in an HTTP header.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::audience::Audience;
use crate::http::{Body, Resource, Site};

pub use crate::http::{BindError, Listener, Server};

/// The default address, one port after the [metrics](crate::metrics::ADDRESS_DEFAULT).
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_778);

/// A random key of this many bytes cannot be guessed.
const KEY_BYTES: usize = 16;

/// A live page that requested a report within this time counts as open. An open page requests a
/// report every second.
const WATCHED: Duration = Duration::from_millis(2500);

/// How long the end of a run waits for the last request of an open live page.
const LAST_REPORT_MAX: Duration = Duration::from_millis(1500);

/// A browser must not cache the files or the report, which belong to one run.
macro_rules! headers {
    ($more:literal) => {
        concat!(
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n",
            $more
        )
    };
}

/// The page may run only its own script, and connect only to this server.
const PAGE_HEADERS: &str = headers!(
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
);
const HEADERS: &str = headers!("");

const PAGE: &str = include_str!("web/page.html");
const STYLE: &str = include_str!("web/page.css");
const SCRIPT: &str = include_str!("web/page.js");

/// The maximum number of bytes in the live page's files, which the program contains and a browser
/// loads.
const PARTS_BYTES_MAX: usize = 40 << 10;
const _: () = assert!(PAGE.len() + STYLE.len() + SCRIPT.len() <= PARTS_BYTES_MAX);

/// Creates a random key for the live page, which no other user can guess.
///
/// # Errors
/// Returns an error if the kernel's random numbers cannot be read.
pub fn new_key() -> io::Result<String> {
    let mut bytes = [0; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The server of a live page. Dropping this value stops the server.
#[derive(Debug)]
pub struct PageServer {
    _server: Server,
    reports: Arc<Reports>,
}

#[derive(Debug, Default)]
struct Reports {
    state: Mutex<ReportState>,
    requested: Condvar,
}

#[derive(Debug, Default)]
struct ReportState {
    /// The last report, in its public and its private form. `None` until the run ends.
    last: Option<[String; 2]>,
    requested_at: Option<Instant>,
    is_seen: bool,
}

impl Reports {
    fn locked(&self) -> MutexGuard<'_, ReportState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, audience: Audience, now: impl Fn(Audience) -> String) -> String {
        let mut state = self.locked();
        state.requested_at = Some(Instant::now());
        let Some([public, private]) = &state.last else {
            drop(state);
            return now(audience);
        };
        let last = if audience == Audience::Private { private.clone() } else { public.clone() };
        state.is_seen = true;
        self.requested.notify_all();
        last
    }
}

impl Listener {
    /// Starts a thread that serves the live page. `report` creates the JSON report for an audience.
    /// A client with the key `key` gets the private report.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn serve_page(
        self,
        key: String,
        report: impl Fn(Audience) -> String + Send + 'static,
    ) -> io::Result<PageServer> {
        let reports = Arc::<Reports>::default();
        let of_run = Arc::clone(&reports);
        let report = move |audience| of_run.report(audience, &report);
        let resources = vec![
            Resource::new("/", "text/html; charset=utf-8", PAGE_HEADERS, Body::Fixed(PAGE)),
            Resource::new("/page.css", "text/css; charset=utf-8", HEADERS, Body::Fixed(STYLE)),
            Resource::new("/page.js", "text/javascript; charset=utf-8", HEADERS, Body::Fixed(SCRIPT)),
            Resource::new("/report", "application/json", HEADERS, Body::Made(Box::new(report))),
        ];
        let server = self.serve_site("web", Site::new("/ and /report", resources).with_key(key))?;
        Ok(PageServer { _server: server, reports })
    }
}

impl PageServer {
    /// Stops the server. Before the server stops, an open live page has a limited time to request
    /// the last report.
    pub fn end(self, last: impl Fn(Audience) -> String) {
        let last = [Audience::Public, Audience::Private].map(last);
        let mut state = self.reports.locked();
        state.last = Some(last);
        if state.requested_at.is_some_and(|at| at.elapsed() < WATCHED) {
            drop(self.reports.requested.wait_timeout_while(state, LAST_REPORT_MAX, |state| !state.is_seen));
        }
    }
}

#[cfg(test)]
mod tests {
    use steerage::stats::{DropReason, MoveCause};

    use super::*;

    #[test]
    fn keys_differ() {
        let keys = [new_key().unwrap(), new_key().unwrap()];
        assert!(keys.iter().all(|key| key.len() == 2 * KEY_BYTES && key.bytes().all(|byte| byte.is_ascii_hexdigit())));
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn the_page_explains_what_a_report_names() {
        let names = DropReason::ALL.map(DropReason::name).into_iter().chain(MoveCause::ALL.map(MoveCause::name));
        for name in names {
            assert!(SCRIPT.contains(&format!("\n  {name}: \"")), "{name}");
        }
    }

    /// The live page loads nothing from other servers, and never inserts text of a report as HTML.
    #[test]
    fn the_page_stands_alone() {
        for part in [PAGE, STYLE, SCRIPT] {
            for word in ["//cdn", "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!part.contains(word), "{word}");
            }
        }
        // The only address with `http:` is the XML namespace of SVG, which a browser does not load.
        let addresses = [PAGE, STYLE, SCRIPT].iter().map(|part| part.matches("http:").count()).sum::<usize>();
        assert_eq!((addresses, SCRIPT.contains("http://www.w3.org/2000/svg")), (1, true));
    }
}
