//! The checks that a request must pass before it is handled, as pure rules over its headers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use constant_time_eq::constant_time_eq;

/// Accepts or refuses requests by the server's address and token.
#[derive(Clone)]
pub(crate) struct RequestGuard {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

impl fmt::Debug for RequestGuard {
    /// Leaves the token out, because debug output may end up in a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RequestGuard")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Host,
    Origin,
    Token,
    /// Its key was revoked while it was answered.
    Revoked,
    ContentType,
}

impl Refusal {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Refusal::Host | Refusal::Origin => StatusCode::FORBIDDEN,
            Refusal::Token | Refusal::Revoked => StatusCode::UNAUTHORIZED,
            Refusal::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Refusal::Host => {
                "The Host header does not name this server: use the URL that Cairn printed."
            }
            Refusal::Origin => "Pages of other origins may not call Cairn.",
            Refusal::Token => "The token is missing or wrong: use the URL that Cairn printed.",
            Refusal::Revoked => "The key was revoked.",
            Refusal::ContentType => "A command must have the content type application/json.",
        }
    }
}

impl RequestGuard {
    /// Checks every request: the `Host` header must name this server, and an `Origin` header, where
    /// there is one, must be this server's own.
    pub(crate) fn check_host_and_origin(&self, request: &Parts) -> Result<(), Refusal> {
        let host = single_value(&request.headers, header::HOST).ok_or(Refusal::Host)?;
        let target = request.uri.authority().map_or(host, |authority| authority.as_str());
        if target != host || !self.is_own_host(host) {
            return Err(Refusal::Host);
        }
        if request.headers.contains_key(header::ORIGIN) {
            let origin = single_value(&request.headers, header::ORIGIN)
                .and_then(|origin| origin.strip_prefix("http://"));
            if origin != Some(host) {
                return Err(Refusal::Origin);
            }
        }
        Ok(())
    }

    /// Checks the token of a file transfer. It is in a header that neither an HTML form nor an
    /// image can send.
    pub(crate) fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match bearer(headers).is_some_and(|token| self.is_token(token)) {
            true => Ok(()),
            false => Err(Refusal::Token),
        }
    }

    fn is_token(&self, key: &str) -> bool {
        constant_time_eq(key.as_bytes(), self.token.as_bytes())
    }

    /// Checks the token and the content type of a command.
    pub(crate) fn check_command(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_token(headers)?;
        check_json(headers)
    }

    /// Whether a request of the API has the token as its key.
    pub(crate) fn has_token(&self, headers: &HeaderMap) -> bool {
        keys(headers).any(|key| self.is_token(key))
    }

    /// Whether a `Host` header names this server: a loopback name, or one of its IP addresses.
    /// Other names are refused, because anyone can point a DNS name at this machine (DNS
    /// rebinding).
    fn is_own_host(&self, host: &str) -> bool {
        let port = self.address.port();
        let is_loopback_name =
            [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")]
                .iter()
                .any(|name| name == host);
        // Browsers leave out port 80, the default of HTTP.
        let is_loopback_name =
            is_loopback_name || (port == 80 && ["127.0.0.1", "localhost", "[::1]"].contains(&host));
        let address: Option<SocketAddr> = host.parse().ok();
        let is_own_address =
            address.is_some_and(|address| address.port() == port && self.is_own_ip(address.ip()));
        is_loopback_name || is_own_address
    }

    fn is_own_ip(&self, ip: IpAddr) -> bool {
        let own = self.address.ip();
        own == ip || own.is_unspecified()
    }
}

/// The token or key after `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = single_value(headers, header::AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// The keys of a request of the API, where OpenAI's and Anthropic's clients put one.
pub(crate) fn keys(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let key = single_value(headers, HeaderName::from_static("x-api-key"));
    key.into_iter().chain(bearer(headers))
}

/// An HTML form cannot send this content type.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let content_type = single_value(headers, header::CONTENT_TYPE).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Refusal::ContentType),
    }
}

/// The value of a header that occurs exactly once and is text. A repeated header is refused: two
/// checks could each read another of its values.
pub(crate) fn single_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| value.to_str().ok()).flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use axum::http::Request;

    fn guard(address: &str) -> RequestGuard {
        RequestGuard { address: address.parse().unwrap(), token: "secret".to_owned() }
    }

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_requests_to_its_address_from_its_own_pages_pass() {
        fn check(
            address: &str,
            uri: &str,
            headers: &[(&str, &str)],
            expected: Result<(), Refusal>,
        ) {
            assert_eq!(
                guard(address).check_host_and_origin(&parts(uri, headers)),
                expected,
                "{uri} with {headers:?} at {address}"
            );
        }
        let here = "127.0.0.1:8011";
        check(here, "/", &[("host", "127.0.0.1:8011")], Ok(()));
        check(here, "/", &[("host", "localhost:8011")], Ok(()));
        check(here, "/", &[("host", "[::1]:8011")], Ok(()));
        check(here, "http://localhost:8011/", &[("host", "localhost:8011")], Ok(()));
        check(here, "http://evil.test/", &[("host", "localhost:8011")], Err(Refusal::Host));
        check(here, "/", &[], Err(Refusal::Host));
        check(here, "/", &[("host", "127.0.0.1")], Err(Refusal::Host));
        check(here, "/", &[("host", "127.0.0.1:81")], Err(Refusal::Host));
        check(here, "/", &[("host", "evil.test:8011")], Err(Refusal::Host));
        check(here, "/", &[("host", "localhost.evil.test:8011")], Err(Refusal::Host));
        check(here, "/", &[("host", "192.168.1.2:8011")], Err(Refusal::Host));
        check(here, "/", &[("host", "0.0.0.0:8011")], Err(Refusal::Host));
        check(
            here,
            "/",
            &[("host", "localhost:8011"), ("host", "evil.test:8011")],
            Err(Refusal::Host),
        );
        check(
            here,
            "/",
            &[("host", "localhost:8011"), ("origin", "http://localhost:8011")],
            Ok(()),
        );
        check(
            here,
            "/",
            &[("host", "localhost:8011"), ("origin", "http://127.0.0.1:8011")],
            Err(Refusal::Origin),
        );
        check(
            here,
            "/",
            &[("host", "localhost:8011"), ("origin", "https://localhost:8011")],
            Err(Refusal::Origin),
        );
        check(
            here,
            "/",
            &[("host", "localhost:8011"), ("origin", "http://localhost:8080")],
            Err(Refusal::Origin),
        );
        check(
            here,
            "/",
            &[("host", "localhost:8011"), ("origin", "http://evil.test")],
            Err(Refusal::Origin),
        );
        check(here, "/", &[("host", "localhost:8011"), ("origin", "null")], Err(Refusal::Origin));
        check(
            "127.0.0.1:80",
            "/",
            &[("host", "localhost"), ("origin", "http://localhost")],
            Ok(()),
        );
        check("127.0.0.1:80", "/", &[("host", "evil.test")], Err(Refusal::Host));
        let open = "0.0.0.0:8011";
        check(open, "/", &[("host", "192.168.1.2:8011")], Ok(()));
        check(open, "/", &[("host", "[fe80::1]:8011")], Ok(()));
        check(open, "/", &[("host", "192.168.1.2:81")], Err(Refusal::Host));
        check(open, "/", &[("host", "evil.test:8011")], Err(Refusal::Host));
        check("192.168.1.2:8011", "/", &[("host", "192.168.1.2:8011")], Ok(()));
        check("192.168.1.2:8011", "/", &[("host", "192.168.1.3:8011")], Err(Refusal::Host));
    }

    #[test]
    fn a_command_needs_the_token_and_its_content_type() {
        fn check(headers: &[(&str, &str)], expected: Result<(), Refusal>) {
            assert_eq!(
                guard("127.0.0.1:8011").check_command(&parts("/", headers).headers),
                expected,
                "with {headers:?}"
            );
        }
        let json = ("content-type", "application/json");
        check(&[("authorization", "Bearer secret"), json], Ok(()));
        check(
            &[
                ("authorization", "bearer secret"),
                ("content-type", "Application/JSON; charset=utf-8"),
            ],
            Ok(()),
        );
        check(&[json], Err(Refusal::Token));
        check(&[("authorization", "secret"), json], Err(Refusal::Token));
        check(&[("authorization", "Basic secret"), json], Err(Refusal::Token));
        check(&[("authorization", "Bearer secre"), json], Err(Refusal::Token));
        check(&[("authorization", "Bearer secret "), json], Err(Refusal::Token));
        check(&[("authorization", "Bearer "), json], Err(Refusal::Token));
        check(
            &[("authorization", "Bearer secret"), ("authorization", "Bearer secret"), json],
            Err(Refusal::Token),
        );
        check(&[("authorization", "Bearer secret")], Err(Refusal::ContentType));
        check(
            &[("authorization", "Bearer secret"), ("content-type", "text/plain")],
            Err(Refusal::ContentType),
        );
        check(
            &[("authorization", "Bearer secret"), ("content-type", "application/jsonp")],
            Err(Refusal::ContentType),
        );
    }
}
