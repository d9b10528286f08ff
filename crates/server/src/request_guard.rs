//! The checks that a request must pass before it is handled, as pure rules over its headers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use constant_time_eq::constant_time_eq;

/// Accepts or refuses requests by the server's address and token.
#[derive(Clone)]
pub(crate) struct RequestGuard {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    /// Names besides the server's own that a `Host` header may have, with a port or for any.
    pub(crate) allowed_hosts: Vec<String>,
    /// Origins besides the server's own whose pages may call the API; `*` for any.
    pub(crate) allowed_origins: Vec<String>,
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
    /// there is one, must be this server's own or an allowed one. A request of the API may come under
    /// any name if it has a key, which a page that has pointed its name at this machine does not know.
    pub(crate) fn check_host_and_origin(&self, request: &Parts) -> Result<(), Refusal> {
        let host = single_value(&request.headers, header::HOST).ok_or(Refusal::Host)?;
        let target = request.uri.authority().map_or(host, |authority| authority.as_str());
        let has_key = is_of_api(request) && keys(&request.headers).next().is_some();
        if target != host || !(has_key || self.is_own_host(host) || self.is_allowed_host(host)) {
            return Err(Refusal::Host);
        }
        if request.headers.contains_key(header::ORIGIN) && self.allowed_origin(request).is_none() {
            let origin = single_value(&request.headers, header::ORIGIN)
                .and_then(|origin| origin.split_once("://"))
                .filter(|&(scheme, _)| {
                    // A proxy under an allowed name may have added the encryption.
                    scheme == "http" || scheme == "https" && self.is_allowed_host(host)
                });
            if origin.is_none_or(|(_, origin)| origin != host) {
                return Err(Refusal::Origin);
            }
        }
        Ok(())
    }

    /// The origin of a request of the API, if its pages may read the answer.
    pub(crate) fn allowed_origin<'a>(&self, request: &'a Parts) -> Option<&'a HeaderValue> {
        let origin =
            single_value(&request.headers, header::ORIGIN).filter(|_| is_of_api(request))?;
        let is_allowed = |allowed: &String| allowed == "*" || allowed.eq_ignore_ascii_case(origin);
        self.allowed_origins.iter().any(is_allowed).then(|| &request.headers[header::ORIGIN])
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
        let (name, port) = name_and_port(host);
        let is_loopback_name =
            name.eq_ignore_ascii_case("localhost") || ["127.0.0.1", "[::1]"].contains(&name);
        let ip = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let is_own_ip = || ip.parse::<IpAddr>().is_ok_and(|ip| self.is_own_ip(ip));
        // Some clients leave the port out.
        port.is_none_or(|port| port.parse() == Ok(self.address.port()))
            && (is_loopback_name || is_own_ip())
    }

    fn is_allowed_host(&self, host: &str) -> bool {
        let (name, _) = name_and_port(host);
        let is_it = |allowed: &String| {
            allowed.eq_ignore_ascii_case(host) || allowed.eq_ignore_ascii_case(name)
        };
        self.allowed_hosts.iter().any(is_it)
    }

    fn is_own_ip(&self, ip: IpAddr) -> bool {
        let own = self.address.ip();
        own == ip || own.is_unspecified()
    }
}

/// Whether a request is one of the API, whose routes ask for a key.
pub(crate) fn is_of_api(request: &Parts) -> bool {
    request.uri.path().starts_with("/v1/")
}

/// Splits a `Host` header.
fn name_and_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        // The last colon of an IPv6 address is in its brackets.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
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
        RequestGuard {
            address: address.parse().unwrap(),
            token: "secret".to_owned(),
            allowed_hosts: vec!["mac.local".to_owned(), "proxy.test:443".to_owned()],
            allowed_origins: vec!["app://notes".to_owned(), "https://chat.test".to_owned()],
        }
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
        check(here, "/", &[("host", "127.0.0.1")], Ok(()));
        check(here, "/", &[("host", "LOCALHOST:8011")], Ok(()));
        check(here, "/", &[("host", "[::1]")], Ok(()));
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
        for path in ["/", "/api/call", "/v1/models"] {
            check(here, path, &[("host", "mac.local:8011")], Ok(()));
            check(here, path, &[("host", "MAC.local")], Ok(()));
            check(here, path, &[("host", "proxy.test:443")], Ok(()));
            check(here, path, &[("host", "proxy.test:80")], Err(Refusal::Host));
            let page = ("origin", "https://proxy.test:443");
            check(here, path, &[("host", "proxy.test:443"), page], Ok(()));
            check(here, path, &[("host", "not-mac.local")], Err(Refusal::Host));
        }
        // With a key the API takes any name, and pages of allowed origins.
        let (docker, key) = (("host", "host.docker.internal:8011"), ("x-api-key", "k"));
        check(here, "/v1/models", &[docker, key], Ok(()));
        check(here, "/api/call", &[docker, key], Err(Refusal::Host));
        check(
            here,
            "/v1/models",
            &[docker, key, ("origin", "http://evil.test")],
            Err(Refusal::Origin),
        );
        let page = ("origin", "app://notes");
        check(here, "/v1/models", &[("host", here), page], Ok(()));
        check(here, "/v1/models", &[("host", here), ("origin", "HTTPS://chat.test")], Ok(()));
        check(
            here,
            "/v1/models",
            &[("host", here), ("origin", "https://chat.test:1")],
            Err(Refusal::Origin),
        );
        check(here, "/api/call", &[("host", here), page], Err(Refusal::Origin));
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
