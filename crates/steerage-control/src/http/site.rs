//! The resources that an HTTP server offers, and the key to private data.

use std::cell::OnceCell;
use std::fmt;

use crate::audience::Audience;

/// A resource: a path that clients can request.
pub(crate) struct Resource {
    pub(super) path: &'static str,
    pub(super) content_type: &'static str,
    /// Additional HTTP headers of the reply. Each header ends with a line break.
    pub(super) headers: &'static str,
    body: Body,
}

pub(crate) enum Body {
    Fixed(&'static str),
    Made(Box<dyn Fn(Audience) -> String + Send>),
}

pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

impl Resource {
    pub(crate) fn new(path: &'static str, content_type: &'static str, headers: &'static str, body: Body) -> Self {
        Self { path, content_type, headers, body }
    }

    pub(crate) fn plain(path: &'static str, body: Body) -> Self {
        Self::new(path, PLAIN, "", body)
    }
}

/// All resources of an HTTP server.
pub(crate) struct Site {
    /// The text of the reply to a request for a path that does not exist.
    pub(super) absent: String,
    /// The text of the reply to a request whose header `Host` names another host.
    pub(super) misdirected: String,
    /// The key that a client must send to see the traffic of a run. Without a key, every client
    /// gets only the data that all users of the machine may see.
    key: Option<String>,
    resources: Vec<Resource>,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Site")
    }
}

impl Site {
    /// Creates a site (the resources of an HTTP server) with the resources `resources`. `main` is
    /// the path of the main resource.
    pub(crate) fn new(main: &str, resources: Vec<Resource>) -> Self {
        let misdirected =
            "The Host of this request is neither an address nor a name of this server: use its address.\n".to_owned();
        Self { absent: format!("There is nothing here but {main}.\n"), misdirected, key: None, resources }
    }

    pub(crate) fn with_key(self, key: String) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Sets the name of the command line option that adds a host name to this server.
    pub(crate) fn names_by(mut self, option: &str) -> Self {
        self.misdirected = format!(
            "The Host of this request is neither an address nor a name of this server: {option} adds a name.\n"
        );
        self
    }

    pub(super) fn find(&self, path: &str) -> Option<usize> {
        self.resources.iter().position(|resource| resource.path == path)
    }

    pub(super) fn resource(&self, index: usize) -> &Resource {
        &self.resources[index]
    }

    /// Returns the audience (public or private) of a client that sends the key `shown`. The
    /// comparison of the keys always takes the same time. Therefore a client cannot measure the
    /// time of a comparison to guess the key byte by byte.
    pub(super) fn audience(&self, shown: &[u8]) -> Audience {
        let is_key = |key: &String| {
            key.len() == shown.len() && key.bytes().zip(shown).fold(0, |all, (one, other)| all | (one ^ other)) == 0
        };
        if self.key.as_ref().is_some_and(is_key) { Audience::Private } else { Audience::Public }
    }

    /// Begins a *turn* of the server, in which the server serves each ready client once.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn { site: self, made: self.resources.iter().map(|_| Default::default()).collect() }
    }
}

/// The reply bodies that the server has created in one turn (in which it serves each ready client
/// once). All clients that request the same resource in one turn of the server get the same body.
/// Therefore a flood of requests takes the server little more time than one request.
pub(super) struct Turn<'a> {
    site: &'a Site,
    /// For each resource, the reply's body in two versions: one for the public, and one for the
    /// owner of the run.
    made: Vec<[OnceCell<String>; 2]>,
}

impl Turn<'_> {
    pub(super) fn body(&self, index: usize, audience: Audience) -> &str {
        match &self.site.resources[index].body {
            Body::Fixed(text) => text,
            Body::Made(make) => {
                self.made[index][usize::from(audience == Audience::Private)].get_or_init(|| make(audience))
            }
        }
    }
}
