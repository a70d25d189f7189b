//! Serves the live page of a run over HTTP (`--web`).
//!
//! The live page consists of three files, which are built into the program. Once per second, the
//! page requests the run's report as JSON from `/report`. The page contacts no other server.
//!
//! Every user of this machine can connect to a loopback address. Therefore a client that does not
//! send the key gets only the data that all users may see. The address of the live page, as the run
//! prints it, also contains a [key](new_key) after a `#`. A browser sends the part of an address
//! after `#` to no server. The script of the page sends the key in an HTTP header. If a client
//! sends the key, the report for this client also contains addresses and flows.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::audience::Audience;
use crate::http::{Body, Resource, Site};

pub use crate::http::{BindError, Listener, Server};

/// The default address of the live page. Only programs on this machine can connect to this address.
/// The port of the live page is one higher than the port of the
/// [metrics](crate::metrics::ADDRESS_DEFAULT).
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_778);

/// The length of a key in bytes. A random key with this number of bytes cannot be guessed.
const KEY_BYTES: usize = 16;

/// The server assumes that a browser has the live page open if the page requested a report within
/// this time. An open page requests a report every second.
const WATCHED: Duration = Duration::from_millis(2500);

/// When a run ends and a browser has the live page open, the server waits at most this long until
/// the page has requested the last report.
const LAST_REPORT_MAX: Duration = Duration::from_millis(1500);

/// The HTTP headers of all files of the live page. The files and the report belong to one run, so a
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

/// These headers allow the page to run only its own script and to connect only to this server.
const PAGE_HEADERS: &str = headers!(
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
);
const HEADERS: &str = headers!("");

const PAGE: &str = include_str!("web/page.html");
const STYLE: &str = include_str!("web/page.css");
const SCRIPT: &str = include_str!("web/page.js");

/// The maximum total size of the live page's files (HTML, style and script), in bytes. The files
/// are built into every program, and a browser loads all of them at the start.
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

/// The server of a live page. When this value is dropped, the server stops.
#[derive(Debug)]
pub struct PageServer {
    /// The HTTP server. Its thread reads `reports`.
    _server: Server,
    reports: Arc<Reports>,
}

/// The last report of the run, and what the server knows about requests for reports.
#[derive(Debug, Default)]
struct Reports {
    state: Mutex<ReportState>,
    requested: Condvar,
}

#[derive(Debug, Default)]
struct ReportState {
    /// The last report of the run in two versions: one for the public, and one for the owner of the
    /// run. The last report is `None` until the run ends.
    last: Option<[String; 2]>,
    /// The time at which a page in a browser last requested a report.
    requested_at: Option<Instant>,
    /// True if a page in a browser has requested the last report of the run.
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
    /// content of the report depends on the audience, that is, on who may read the report. A client
    /// that sends the key `key` gets the report for the owner of the run.
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
    /// Stops the server of the live page. If the page is open in a browser, the server first waits
    /// a limited time until the page has requested the last report.
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

    /// The page's script explains each drop reason, and each cause of a bucket's move, that a
    /// report can contain.
    #[test]
    fn the_page_explains_what_a_report_names() {
        let names = DropReason::ALL.map(DropReason::name).into_iter().chain(MoveCause::ALL.map(MoveCause::name));
        for name in names {
            assert!(SCRIPT.contains(&format!("\n  {name}: \"")), "{name}");
        }
    }

    /// The page loads nothing from other servers. The page never inserts text from a report as
    /// HTML.
    #[test]
    fn the_page_stands_alone() {
        for part in [PAGE, STYLE, SCRIPT] {
            for word in ["//cdn", "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!part.contains(word), "{word}");
            }
        }
        // The only address in the page that begins with `http:` is the XML namespace of SVG. A
        // browser does not load it.
        let addresses = [PAGE, STYLE, SCRIPT].iter().map(|part| part.matches("http:").count()).sum::<usize>();
        assert_eq!((addresses, SCRIPT.contains("http://www.w3.org/2000/svg")), (1, true));
    }
}
