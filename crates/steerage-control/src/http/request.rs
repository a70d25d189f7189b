use httparse::{EMPTY_HEADER, Error, Request, Status};

use super::hosts::Hosts;
use super::site::{PLAIN, Site, Turn};
use crate::audience::Audience;

/// The maximum length of a request in bytes. A request from Prometheus has about 500 bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 4096;

/// The maximum number of headers in a request. Prometheus sends five.
const HEADERS_MAX: usize = 32;

/// An `Authorization` header with a key begins with this text (RFC 6750).
const BEARER: &[u8] = b"Bearer ";

/// Returns the reply to an HTTP request, or `None` if the request is incomplete.
pub(super) fn answer(received: &[u8], hosts: &Hosts, site: &Site, turn: &Turn<'_>) -> Option<Vec<u8>> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    match request.parse(received) {
        Ok(Status::Partial) if received.len() < REQUEST_BYTES_MAX => None,
        Ok(Status::Partial) | Err(Error::TooManyHeaders) => {
            Some(refusal("431 Request Header Fields Too Large", "", "The request is too long.\n"))
        }
        Err(_) => Some(refusal("400 Bad Request", "", "That is no HTTP/1.1 request.\n")),
        Ok(Status::Complete(_)) => Some(of_request(&request, hosts, site, turn)),
    }
}

fn of_request(request: &Request<'_, '_>, hosts: &Hosts, site: &Site, turn: &Turn<'_>) -> Vec<u8> {
    let values = |name: &'static str| {
        let named = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| header.value)
    };
    // The check of the host name refuses requests after DNS rebinding: see [`Hosts`].
    if !values("host").all(|host| hosts.accept(host)) {
        return refusal("421 Misdirected Request", "", &site.misdirected);
    }
    let with_body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return refusal("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "Only GET and HEAD are answered.\n"),
    };
    let path = request.path.and_then(|target| target.split('?').next());
    let Some(index) = path.and_then(|path| site.find(path)) else {
        return refusal("404 Not Found", "", &site.absent);
    };
    let key = values("authorization").find_map(|value| value.strip_prefix(BEARER));
    let audience = key.map_or(Audience::Public, |key| site.audience(key));
    let (resource, body) = (site.resource(index), turn.body(index, audience));
    response("200 OK", resource.headers, resource.content_type, body, with_body)
}

fn refusal(status: &str, header: &str, body: &str) -> Vec<u8> {
    response(status, header, PLAIN, body, true)
}

/// Returns an HTTP reply. The end of the connection ends the reply, because a connection serves
/// only one request.
fn response(status: &str, header: &str, content: &str, body: &str, with_body: bool) -> Vec<u8> {
    let length = body.len();
    let body = if with_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\n{header}Content-Type: {content}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::site::{Body, Resource};
    use super::*;

    fn asked(request: &str) -> Option<String> {
        let of = |audience| if audience == Audience::Private { "steerage_y 2\n" } else { "steerage_x 1\n" };
        let site = Site::new(
            "/metrics",
            vec![
                Resource::plain("/metrics", Body::Made(Box::new(move |audience| of(audience).to_owned()))),
                Resource::new("/", "text/html", "X-Further: header\r\n", Body::Fixed("<p>")),
            ],
        );
        let site = site.with_key("secret".to_owned()).names_by("--metrics-host NAME");
        let answered = answer(request.as_bytes(), &Hosts::new(&["x".to_owned()]), &site, &site.turn());
        answered.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_key_shows_what_is_private() {
        let body = |header: &str| {
            let reply = asked(&format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{header}\r\n")).unwrap();
            reply.split_once("\r\n\r\n").unwrap().1.to_owned()
        };
        assert_eq!(body("Authorization: Bearer secret\r\n"), "steerage_y 2\n");
        assert_eq!(body("authorization: Bearer secret\r\n"), "steerage_y 2\n");
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer Secret", "Basic secret", "secret"]
        {
            assert_eq!(body(&format!("Authorization: {wrong}\r\n")), "steerage_x 1\n", "{wrong}");
        }
        assert_eq!(body(""), "steerage_x 1\n");
    }

    #[test]
    fn each_path_has_its_type_and_headers() {
        let page = asked("GET /?x HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(
            page.contains("\r\nContent-Type: text/html\r\n") && page.contains("\r\nX-Further: header\r\n"),
            "{page}"
        );
        assert!(page.ends_with("\r\n\r\n<p>"), "{page}");
    }

    fn status(request: &str) -> Option<u16> {
        asked(request).map(|answer| answer["HTTP/1.1 ".len()..][..3].parse().unwrap())
    }

    #[test]
    fn metrics_and_nothing_else() {
        assert_eq!(
            asked("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap(),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 13\r\n\
             Connection: close\r\n\r\nsteerage_x 1\n"
        );
        assert_eq!(status("GET /metrics?name[]=up HTTP/1.0\r\n\r\n"), Some(200));
        assert_eq!(status("GET /x HTTP/1.1\r\n\r\n"), Some(404));
        assert_eq!(status("GET /metrics/ HTTP/1.1\r\n\r\n"), Some(404));
        assert!(asked("POST /metrics HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 405 "));
        assert!(asked("POST /metrics HTTP/1.1\r\n\r\n").unwrap().contains("\r\nAllow: GET, HEAD\r\n"));
    }

    #[test]
    fn a_head_is_the_same_without_the_body() {
        let (get, head) = (asked("GET /metrics HTTP/1.1\r\n\r\n"), asked("HEAD /metrics HTTP/1.1\r\n\r\n"));
        assert_eq!(get.unwrap().strip_suffix("steerage_x 1\n"), head.as_deref());
    }

    #[test]
    fn half_a_request_is_waited_for_up_to_a_limit() {
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!((0..request.len()).all(|length| status(&request[..length]).is_none()));
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(REQUEST_BYTES_MAX));
        assert_eq!(status(&long[..REQUEST_BYTES_MAX - 1]), None);
        assert_eq!(status(&long[..REQUEST_BYTES_MAX]), Some(431));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(status(&many), Some(431));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for wrong in ["\x16\x03\x01\x02\0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET\r\n\r\n", "\0\0\0\0"] {
            assert_eq!(status(wrong), Some(400), "{wrong:?}");
        }
    }

    /// Every `Host` header counts, because a proxy may have used any of these headers.
    #[test]
    fn only_our_own_names_are_answered() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n"), Some(421));
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\nHOST: rebound.example\r\n\r\n"), Some(421));
        assert_eq!(status("GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n"), Some(421));
        assert_eq!(status("GET /metrics HTTP/1.0\r\n\r\n"), Some(200));
        let refused = asked("GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n").unwrap();
        let (_, body) = refused.split_once("\r\n\r\n").unwrap();
        assert_eq!((body.lines().count(), body.contains("--metrics-host")), (1, true), "{refused}");
    }
}
