//! The hub as a server: who it is, what it has, and one way to ask it.

mod error;
mod model_info;
mod names;
mod options;
mod request;
mod retries;
mod search;
mod text_file;
mod token;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use reqwest::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use reqwest::{Client, Proxy, Url, redirect};
use tokio::sync::Semaphore;

pub use error::DownloadError;
pub(crate) use error::{Failure, Subject};
pub use model_info::ModelPage;
pub(crate) use names::is_plain_path;
pub use names::{Commit, ContentHash, RepoFile, RepoId, Revision};
pub use options::{DEFAULT_ENDPOINT, HubLimits, HubOptions, origin};
pub(crate) use request::{Answer, Range};
pub(crate) use retries::Retries;
pub use search::{FoundModel, SearchQuery};
pub use token::Token;

/// Connections of one [`Hub`] at a time, for questions and files together.
pub(crate) const MAX_CONNECTIONS: usize = 8;

/// A hub, and the shared cache that its models come to. A clone is the same hub: its connections
/// are counted together.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

#[derive(Clone)]
struct Shared {
    client: Client,
    /// As `client`, but it does not wait long for a connection.
    quick_client: Client,
    /// Ends with a slash.
    endpoint: Url,
    options: HubOptions,
    connections: Arc<Semaphore>,
}

impl Hub {
    /// Checks the options. Nothing is asked yet.
    pub fn new(options: HubOptions) -> Result<Hub, DownloadError> {
        let endpoint = options::checked_endpoint(&options.endpoint)?;
        let client = |limits: &HubLimits| client(&options, limits, &endpoint);
        let (client, quick_client) =
            (client(&options.limits)?, client(&options.limits.for_a_person())?);
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let shared = Shared { client, quick_client, endpoint, options, connections };
        Ok(Hub { shared: Arc::new(shared) })
    }

    /// The same hub asked with another token, or without one. Connections are counted together.
    pub fn with_token(&self, token: Option<Token>) -> Hub {
        self.with_options(HubOptions { token, ..self.shared.options.clone() })
    }

    /// The same hub with another folder for what it downloads. Connections are counted together.
    pub fn with_cache(&self, cache: PathBuf) -> Hub {
        self.with_options(HubOptions { cache, ..self.shared.options.clone() })
    }

    /// The same hub for questions that a person waits for: it gives up within seconds where a
    /// download waits and tries again. Connections are counted together.
    pub fn for_a_person(&self) -> Hub {
        let options = self.shared.options.clone();
        let limits = options.limits.for_a_person();
        let shared = Shared {
            client: self.shared.quick_client.clone(),
            options: HubOptions { limits, ..options },
            ..(*self.shared).clone()
        };
        Hub { shared: Arc::new(shared) }
    }

    fn with_options(&self, options: HubOptions) -> Hub {
        Hub { shared: Arc::new(Shared { options, ..(*self.shared).clone() }) }
    }

    /// The folder of the shared cache.
    pub fn cache(&self) -> &Path {
        &self.shared.options.cache
    }

    /// The hub's address, with a slash at its end.
    pub fn endpoint(&self) -> &str {
        self.shared.endpoint.as_str()
    }

    /// Scheme, host and port of its address, to which a token belongs.
    pub fn origin(&self) -> String {
        self.shared.endpoint.origin().ascii_serialization()
    }

    /// Whether requests carry a token.
    pub fn has_token(&self) -> bool {
        self.shared.options.token.is_some()
    }

    /// The address of a model's page, to open in a browser.
    pub fn page_url(&self, repo: &RepoId) -> String {
        self.address(repo.parts()).into()
    }

    pub(crate) fn limits(&self) -> &HubLimits {
        &self.shared.options.limits
    }

    /// The address of a path of the hub. The parts are encoded, so none can add a part or a query.
    pub(crate) fn address<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.shared.endpoint.clone();
        // Only addresses without a host have no path, and those were refused.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Hub").field(&self.shared.options).finish()
    }
}

fn client(
    options: &HubOptions,
    limits: &HubLimits,
    endpoint: &Url,
) -> Result<Client, DownloadError> {
    // An error means that it was installed before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let mut client = Client::builder()
        .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .redirect(redirect::Policy::none())
        .connect_timeout(limits.connect_timeout)
        .pool_max_idle_per_host(MAX_CONNECTIONS)
        .referer(false);
    let proxy = options.proxy.as_deref().map(options::checked_proxy).transpose()?;
    if options::is_loopback(endpoint) {
        client = client.no_proxy();
    } else if let Some(proxy) = proxy {
        let reason = "no connection can be made through it";
        client = client.proxy(Proxy::all(proxy).map_err(|_| DownloadError::BadProxy { reason })?);
    }
    let reason = |error: reqwest::Error| DownloadError::NoTls { reason: request::reason(&error) };
    if endpoint.scheme() == "http" {
        // A hub on this machine needs no certificates, which not every machine has.
        client = client.tls_certs_only([]);
    }
    client.build().map_err(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_another_token_it_is_the_same_hub() {
        let hub = Hub::new(HubOptions::new("cache".into())).unwrap();
        assert!(!hub.has_token());
        let with_token = hub.with_token(Some(Token::new("hf_canary").unwrap()));
        assert!(with_token.has_token() && !hub.has_token());
        assert!(!with_token.with_token(None).has_token());
        assert_eq!(with_token.endpoint(), hub.endpoint());
        assert_eq!((with_token.cache(), with_token.limits()), (hub.cache(), hub.limits()));
        assert!(Arc::ptr_eq(&with_token.shared.connections, &hub.shared.connections));
        assert!(!format!("{with_token:?}").contains("canary"));
    }

    #[test]
    fn a_page_is_below_the_hubs_address() {
        for (endpoint, repo, expected) in [
            (DEFAULT_ENDPOINT, "a/b.c", "https://huggingface.co/a/b.c"),
            ("https://hub.example/x/", "gpt2", "https://hub.example/x/gpt2"),
        ] {
            let endpoint = endpoint.to_owned();
            let hub = Hub::new(HubOptions { endpoint, ..HubOptions::new("cache".into()) }).unwrap();
            assert_eq!(hub.page_url(&repo.parse().unwrap()), expected);
        }
    }
}
