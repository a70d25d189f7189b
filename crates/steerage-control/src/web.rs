//! Serves the live page of a run over HTTP (`--web`).
//!
//! The page has three fixed parts, which are built into the program. Once per second, the page
//! reads the run's report as JSON from `/report`. The page requests nothing from any other server.
//!
//! Every user of this machine can connect to a loopback address. Therefore the server gives a
//! client only the data that all users may see. The address that the run prints also contains a
//! [key](new_key) after a `#`. A browser does not send the part after `#` to any server. The page
//! sends the key in a header. If a report is requested with the key, it also contains the traffic
//! itself.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::audience::Audience;
use crate::http::{Body, Resource, Site};

pub use crate::http::{BindError, Listener, Server};

/// The default address of the live page. Only this machine can connect to it. The port number
/// follows the port number of the [metrics](crate::metrics::ADDRESS_DEFAULT).
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_778);

/// The length of a key in bytes. A key of this length cannot be found by trying.
const KEY_BYTES: usize = 16;

/// A page counts as open if it requested a report within this time. An open page requests a report
/// every second.
const WATCHED: Duration = Duration::from_millis(2500);

/// The maximum time that a run waits at its end for an open page to request the last report.
const LAST_REPORT_MAX: Duration = Duration::from_millis(1500);

/// The headers that all parts of the page have. The parts and the report belong to one run, so a
/// browser must never cache them.
macro_rules! headers {
    ($more:literal) => {
        concat!(
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n",
            $more
        )
    };
}

/// The page may run only its own script, and may connect only to this server.
const PAGE_HEADERS: &str = headers!(
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
);
const HEADERS: &str = headers!("");

const PAGE: &str = include_str!("web/page.html");
const STYLE: &str = include_str!("web/page.css");
const SCRIPT: &str = include_str!("web/page.js");

/// The maximum total size of the fixed parts, in bytes. The parts are built into every program, and
/// a browser loads them at once.
const PARTS_BYTES_MAX: usize = 40 << 10;
const _: () = assert!(PAGE.len() + STYLE.len() + SCRIPT.len() <= PARTS_BYTES_MAX);

/// Makes a random key that no other user can guess.
///
/// # Errors
/// Returns an error if the kernel's random numbers cannot be read.
pub fn new_key() -> io::Result<String> {
    let mut bytes = [0; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The server of a live page. When this value is dropped, the server stops.
#[derive(Debug)]
pub struct PageServer {
    /// The server whose thread uses `reports`.
    _server: Server,
    reports: Arc<Reports>,
}

/// The last report of the run, and the state of the requests for reports.
#[derive(Debug, Default)]
struct Reports {
    state: Mutex<ReportState>,
    requested: Condvar,
}

#[derive(Debug, Default)]
struct ReportState {
    /// The last report in two forms: one for the public, and one for the owner of the run. The
    /// value is `None` while the run continues.
    last: Option<[String; 2]>,
    /// The time at which a page last requested a report.
    requested_at: Option<Instant>,
    /// True if a page has requested the last report.
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
    /// Starts a thread that serves the live page. `report` creates the current report as JSON. The
    /// form of the report depends on the audience. A client that sends `key` sees the data that the
    /// owner of the run may see.
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
    /// Ends the server of the live page. If a page is open, the server first waits until the page
    /// has requested the last report, but only for a limited time.
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

    /// The script explains each drop reason and each cause that a report can contain.
    #[test]
    fn the_page_explains_what_a_report_names() {
        let names = DropReason::ALL.map(DropReason::name).into_iter().chain(MoveCause::ALL.map(MoveCause::name));
        for name in names {
            assert!(SCRIPT.contains(&format!("\n  {name}: \"")), "{name}");
        }
    }

    /// The page loads nothing from another server, and never inserts a text of a report as HTML.
    #[test]
    fn the_page_stands_alone() {
        for part in [PAGE, STYLE, SCRIPT] {
            for word in ["//cdn", "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!part.contains(word), "{word}");
            }
        }
        // The only address with `http:` is the name of SVG's namespace, which no browser loads.
        let addresses = [PAGE, STYLE, SCRIPT].iter().map(|part| part.matches("http:").count()).sum::<usize>();
        assert_eq!((addresses, SCRIPT.contains("http://www.w3.org/2000/svg")), (1, true));
    }
}
