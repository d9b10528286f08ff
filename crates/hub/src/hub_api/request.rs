//! Sends one request, follows its redirects, and reads short answers.

use std::error::Error as _;

use bytes::{Bytes, BytesMut};
use reqwest::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, IF_RANGE, LINK, LOCATION, RANGE,
};
use reqwest::{Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::{DownloadError, Failure, Subject};
use super::options::is_private;
use super::retries::{Retries, status_failure};
use super::{Hub, HubLimits};

const MAX_REDIRECTS: usize = 5;
const MAX_JSON_BYTES: usize = 32 << 20;

/// The part of a file that is asked for: from `start` to its end.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub start: u64,
    /// The ETag that the beginning came with, where it is known: only that file's rest is wanted.
    pub etag: Option<String>,
}

/// An answer with a successful status, whose body is still to come. It counts as a connection until
/// it is dropped.
pub(crate) struct Answer {
    pub host: String,
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The headers of the hub's own answers on the way: commit and content hash of the file.
    pub promised: Promised,
    response: Response,
    stall: StallTimer,
    _connection: OwnedSemaphorePermit,
}

/// What the hub itself said about a file before it redirected to where the bytes are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Promised {
    pub commit: Option<String>,
    pub etag: Option<String>,
}

impl Hub {
    /// One GET, with redirects. Any status but a successful one is a failure.
    pub(crate) async fn get(
        &self,
        url: Url,
        range: Option<&Range>,
        subject: Option<Subject<'_>>,
    ) -> Result<Answer, Failure> {
        let mut url = url;
        let mut is_from_hub = true;
        let mut promised = Promised::default();
        let connection = self.connection(&url).await?;
        for _ in 0..=MAX_REDIRECTS {
            let host = host(&url);
            is_from_hub &= is_same_origin(&url, &self.shared.endpoint);
            let response = self.send(&url, range, is_from_hub).await?;
            if is_from_hub {
                promised.read(response.headers());
            }
            let status = response.status();
            if matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                url = redirect_target(&url, response.headers())
                    .map_err(|problem| unexpected(&host, problem))?;
                continue;
            }
            let headers = response.headers().clone();
            if !status.is_success() {
                return Err(status_failure(status, &headers, &host, is_from_hub, subject));
            }
            if let Some(encoding) = headers.get(CONTENT_ENCODING)
                && encoding != "identity"
            {
                return Err(unexpected(&host, "its body is compressed, which was not asked for"));
            }
            let stall = StallTimer::new(self.limits());
            let _connection = connection;
            return Ok(Answer { host, status, headers, promised, response, stall, _connection });
        }
        Err(unexpected(&host(&url), "it redirects in circles"))
    }

    async fn connection(&self, url: &Url) -> Result<OwnedSemaphorePermit, Failure> {
        let offline = |reason: &str| {
            Failure::is_final(DownloadError::Offline { host: host(url), reason: reason.to_owned() })
        };
        if self.shared.options.is_offline {
            return Err(offline("HF_HUB_OFFLINE is set"));
        }
        let connections = self.shared.connections.clone();
        connections.acquire_owned().await.map_err(|_| offline("the hub was closed"))
    }

    async fn send(
        &self,
        url: &Url,
        range: Option<&Range>,
        with_token: bool,
    ) -> Result<Response, Failure> {
        let mut request = self.shared.client.get(url.clone());
        if let (true, Some(token)) = (with_token, &self.shared.options.token) {
            request = request.header(AUTHORIZATION, token.header().map_err(Failure::is_final)?);
        }
        if let Some(range) = range.filter(|range| range.start > 0) {
            request = request.header(RANGE, format!("bytes={}-", range.start));
            if let Some(etag) = &range.etag {
                request = request.header(IF_RANGE, etag);
            }
        }
        match timeout(self.limits().answer_timeout, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(send_failure(url, &error)),
            Err(_) => Err(Failure::may_pass(DownloadError::Stalled { host: host(url) })),
        }
    }

    /// The JSON at an address, and the address of the next page of it. Tries again where that may
    /// help.
    pub(crate) async fn get_json<T: DeserializeOwned>(
        &self,
        url: Url,
        subject: Option<Subject<'_>>,
    ) -> Result<(T, Option<Url>), DownloadError> {
        let mut retries = Retries::new(self.limits().clone());
        loop {
            match self.try_get_json(url.clone(), subject).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => tokio::time::sleep(retries.wait(failure)?).await,
            }
        }
    }

    async fn try_get_json<T: DeserializeOwned>(
        &self,
        url: Url,
        subject: Option<Subject<'_>>,
    ) -> Result<(T, Option<Url>), Failure> {
        let mut answer = self.get(url.clone(), None, subject).await?;
        if answer.is_html() {
            return Err(unexpected(&answer.host, "a web page, perhaps a network's sign-in page"));
        }
        let next = next_page(&url, &answer.headers);
        if next.as_ref().is_some_and(|next| !is_same_origin(next, &url)) {
            return Err(unexpected(&answer.host, "a list that goes on at another host"));
        }
        let text = answer.short_body(MAX_JSON_BYTES, "more than 32 MB of JSON").await?;
        let value = serde_json::from_slice(&text)
            .map_err(|error| unexpected(&answer.host, format!("JSON: {error}")))?;
        Ok((value, next))
    }
}

impl Answer {
    /// The next bytes of the body; none at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        match timeout_at(self.stall.deadline, self.response.chunk()).await {
            Ok(Ok(chunk)) => {
                self.stall.received(chunk.as_ref().map_or(0, Bytes::len));
                Ok(chunk)
            }
            Ok(Err(_)) => Err(Failure::may_pass(DownloadError::Cut { host: self.host.clone() })),
            Err(_) => Err(Failure::may_pass(DownloadError::Stalled { host: self.host.clone() })),
        }
    }

    /// The whole body, unless it is longer than `max_bytes`.
    pub async fn short_body(&mut self, max_bytes: usize, problem: &str) -> Result<Bytes, Failure> {
        let mut body = BytesMut::new();
        while let Some(bytes) = self.chunk().await? {
            if bytes.len() > max_bytes.saturating_sub(body.len()) {
                return Err(unexpected(&self.host, problem));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body.freeze())
    }

    /// Whether the body calls itself a web page, which nothing that is fetched here is.
    pub fn is_html(&self) -> bool {
        self.headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.to_ascii_lowercase().starts_with("text/html"))
    }
}

impl Promised {
    fn read(&mut self, headers: &HeaderMap) {
        let text = |name| headers.get(name)?.to_str().ok().map(str::to_owned);
        self.commit = text("x-repo-commit").or(self.commit.take());
        // A redirect's own ETag says nothing about the file.
        let etag = text("x-linked-etag");
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        self.etag = etag.or(self.etag.take());
    }
}

/// Notices a body that stops, or that comes in drops: within each stall timeout a least amount has
/// to arrive.
struct StallTimer {
    limits: HubLimits,
    deadline: Instant,
    num_received: usize,
}

impl StallTimer {
    fn new(limits: &HubLimits) -> StallTimer {
        let deadline = Instant::now() + limits.stall_timeout;
        StallTimer { limits: limits.clone(), deadline, num_received: 0 }
    }

    fn received(&mut self, num_bytes: usize) {
        self.num_received += num_bytes;
        if self.num_received >= self.limits.least_bytes {
            *self = StallTimer::new(&self.limits);
        }
    }
}

pub(super) fn unexpected(host: &str, problem: impl AsRef<str>) -> Failure {
    Failure::is_final(DownloadError::UnexpectedAnswer {
        host: host.to_owned(),
        problem: problem.as_ref().to_owned(),
    })
}

fn send_failure(url: &Url, error: &reqwest::Error) -> Failure {
    let (host, reason) = (host(url), reason(error));
    if error.is_builder() {
        return Failure::is_final(DownloadError::UnexpectedAnswer { host, problem: reason });
    }
    if error.is_connect() || error.is_timeout() {
        return Failure::may_pass(DownloadError::Offline { host, reason });
    }
    // The connection was made and ended before an answer came.
    Failure::may_pass(DownloadError::Cut { host })
}

/// The innermost cause of an error: the others repeat the address.
pub(super) fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match error.source() {
        Some(_) => cause.to_string(),
        None => "the request cannot be sent".to_owned(),
    }
}

fn host(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

fn is_same_origin(a: &Url, b: &Url) -> bool {
    a.origin() == b.origin()
}

/// Where a redirect leads, or why it is not followed.
fn redirect_target(from: &Url, headers: &HeaderMap) -> Result<Url, &'static str> {
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let target = location.and_then(|location| from.join(location).ok());
    let target = target.ok_or("it redirects to nowhere")?;
    match (from.scheme(), target.scheme()) {
        (_, "https") | ("http", "http") => {}
        _ => return Err("it redirects to an address without https"),
    }
    if is_private(&target) && !is_private(from) {
        return Err("it redirects into this machine's network");
    }
    Ok(target)
}

/// The address of the next page, from a `Link` header.
fn next_page(url: &Url, headers: &HeaderMap) -> Option<Url> {
    let links = headers.get(LINK)?.to_str().ok()?;
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let address = next.split_once('<')?.1.split_once('>')?.0;
    url.join(address).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn redirects_lead_to_https_and_not_into_the_network() {
        let check = |from: &str, location: &str, expected: Option<&str>| {
            let target = redirect_target(&Url::parse(from).unwrap(), &header("location", location));
            assert_eq!(target.ok().map(String::from).as_deref(), expected, "{from} -> {location}");
        };
        let hub = "https://hub.example/a/b";
        check(hub, "/c", Some("https://hub.example/c"));
        check(hub, "https://cdn.example/x?sig=1", Some("https://cdn.example/x?sig=1"));
        check(hub, "//cdn.example/x", Some("https://cdn.example/x"));
        for refused in
            ["http://hub.example/c", "file:///etc/passwd", "https://127.0.0.1/x"].into_iter().chain(
                ["https://169.254.169.254/x", "https://[::1]/", "https://localhost/", "https://"],
            )
        {
            check(hub, refused, None);
        }
        check("http://127.0.0.1:1/a", "http://127.0.0.1:2/b", Some("http://127.0.0.1:2/b"));
        assert!(redirect_target(&Url::parse(hub).unwrap(), &HeaderMap::new()).is_err());
    }

    #[test]
    fn the_next_page_is_in_the_link_header() {
        let url = Url::parse("https://hub.example/api/x?a=1").unwrap();
        let check = |link: &str, expected: Option<&str>| {
            let next = next_page(&url, &header("link", link)).map(String::from);
            assert_eq!(next.as_deref(), expected, "{link}");
        };
        let first = "<https://hub.example/api/x?cursor=1>; rel=\"first\"";
        check("</api/x?cursor=2>; rel=\"next\"", Some("https://hub.example/api/x?cursor=2"));
        check(
            &format!("{first}, <https://hub.example/api/x?cursor=3>; rel=\"next\""),
            Some("https://hub.example/api/x?cursor=3"),
        );
        check(first, None);
        check("rel=\"next\"", None);
    }
}
