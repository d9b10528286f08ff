//! Who may come in: the checks that every request passes, as pure rules over its headers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use constant_time_eq::constant_time_eq;

/// What a request is checked against.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

impl fmt::Debug for Door {
    /// Without the token: what is printed may end up in a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Door").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Why a request is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Host,
    Origin,
    Token,
    ContentType,
}

impl Refusal {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Refusal::Host | Refusal::Origin => StatusCode::FORBIDDEN,
            Refusal::Token => StatusCode::UNAUTHORIZED,
            Refusal::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Refusal::Host => "This address does not lead here: use the URL that Cairn printed.",
            Refusal::Origin => "Pages of other sites have no access to Cairn.",
            Refusal::Token => "The token is missing or wrong: use the URL that Cairn printed.",
            Refusal::ContentType => "A command must be sent as application/json.",
        }
    }
}

impl Door {
    /// What holds for every request: it is meant for this server and comes from its own pages.
    pub(crate) fn check_every(&self, request: &Parts) -> Result<(), Refusal> {
        let host = only(&request.headers, header::HOST).ok_or(Refusal::Host)?;
        let asked = request.uri.authority().map_or(host, |authority| authority.as_str());
        if asked != host || !self.is_mine(host) {
            return Err(Refusal::Host);
        }
        if request.headers.contains_key(header::ORIGIN) {
            let origin = only(&request.headers, header::ORIGIN)
                .and_then(|origin| origin.strip_prefix("http://"));
            if origin != Some(host) {
                return Err(Refusal::Origin);
            }
        }
        Ok(())
    }

    /// What holds for files besides: a header that no plain form and no picture can send.
    pub(crate) fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let authorization = only(headers, header::AUTHORIZATION).unwrap_or_default();
        let (scheme, token) = authorization.split_once(' ').unwrap_or_default();
        if !scheme.eq_ignore_ascii_case("bearer")
            || !constant_time_eq(token.as_bytes(), self.token.as_bytes())
        {
            return Err(Refusal::Token);
        }
        Ok(())
    }

    /// What holds for commands besides.
    pub(crate) fn check_command(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_token(headers)?;
        let content_type = only(headers, header::CONTENT_TYPE).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            return Err(Refusal::ContentType);
        }
        Ok(())
    }

    /// A server that others may reach was given its token by hand, and may be asked by any of its
    /// addresses; still not by a name.
    fn is_mine(&self, host: &str) -> bool {
        let port = self.address.port();
        let is_loopback_name =
            [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")]
                .iter()
                .any(|name| name == host);
        // Browsers leave out the port that plain HTTP has by itself.
        let is_loopback_name =
            is_loopback_name || (port == 80 && ["127.0.0.1", "localhost", "[::1]"].contains(&host));
        let named: Option<SocketAddr> = host.parse().ok();
        let is_own_address =
            named.is_some_and(|named| named.port() == port && self.is_own_ip(named.ip()));
        is_loopback_name || is_own_address
    }

    fn is_own_ip(&self, ip: IpAddr) -> bool {
        let own = self.address.ip();
        own == ip || own.is_unspecified()
    }
}

/// The value of a header that occurs once and is text; two values are how one check is made to see
/// another than the next.
pub(crate) fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| value.to_str().ok()).flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use axum::http::Request;

    fn door(address: &str) -> Door {
        Door { address: address.parse().unwrap(), token: "secret".to_owned() }
    }

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_requests_by_address_and_from_own_pages_come_in() {
        fn check(
            address: &str,
            uri: &str,
            headers: &[(&str, &str)],
            expected: Result<(), Refusal>,
        ) {
            assert_eq!(
                door(address).check_every(&parts(uri, headers)),
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
                door("127.0.0.1:8011").check_command(&parts("/", headers).headers),
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
