use std::cell::OnceCell;
use std::fmt;

use crate::audience::Audience;

pub(crate) struct Resource {
    pub(super) path: &'static str,
    pub(super) content_type: &'static str,
    /// Further headers of the reply, each with its line break.
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

pub(crate) struct Site {
    pub(super) absent: String,
    /// The text of the reply to a request with a wrong `Host`.
    pub(super) misdirected: String,
    /// The key of the live page. A client that sends the key may see the traffic of the run.
    key: Option<String>,
    resources: Vec<Resource>,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Site")
    }
}

impl Site {
    pub(crate) fn new(main: &str, resources: Vec<Resource>) -> Self {
        let misdirected =
            "The Host of this request is neither an address nor a name of this server: use its address.\n".to_owned();
        Self { absent: format!("There is nothing here but {main}.\n"), misdirected, key: None, resources }
    }

    pub(crate) fn with_key(self, key: String) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Sets the command line option that the error message recommends for adding a host name.
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

    /// Returns `Private` if the client has sent the key. Compares the keys in constant time, so
    /// that no client can guess the key byte by byte.
    pub(super) fn audience(&self, shown: &[u8]) -> Audience {
        let is_key = |key: &String| {
            key.len() == shown.len() && key.bytes().zip(shown).fold(0, |all, (one, other)| all | (one ^ other)) == 0
        };
        if self.key.as_ref().is_some_and(is_key) { Audience::Private } else { Audience::Public }
    }

    /// Begins a *turn*, in which the server serves each ready client once.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn { site: self, made: self.resources.iter().map(|_| Default::default()).collect() }
    }
}

/// The bodies of the replies in one turn of the server's loop. Clients share the bodies, so a flood
/// of requests costs little more than one request.
pub(super) struct Turn<'a> {
    site: &'a Site,
    /// The public and the private body of each resource.
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
