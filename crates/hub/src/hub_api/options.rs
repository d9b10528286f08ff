//! Which hub to ask, with what token, and where to put models.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::read_file;
use reqwest::Url;

use super::{DownloadError, Token};
use crate::CacheVariables;

/// The hub that is asked unless another is named.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// A token has some forty characters.
const MAX_TOKEN_FILE_BYTES: u64 = 16 << 10;

/// How to reach a hub. A Mac app sees no shell's variables, so each field can be set by hand.
#[derive(Clone)]
pub struct HubOptions {
    /// The hub's address: `https`, or `http` on this machine.
    pub endpoint: String,
    /// The cache that is shared with Hugging Face's tools.
    pub cache: PathBuf,
    /// For private and gated models.
    pub token: Option<Token>,
    /// The proxy's address, without a password; none means the system's proxy, if it has one.
    pub proxy: Option<String>,
    /// Whether to fail at once instead of asking.
    pub is_offline: bool,
    /// Times and sizes.
    pub limits: HubLimits,
}

/// How long to wait and how often to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubLimits {
    /// For a connection.
    pub connect_timeout: Duration,
    /// For the beginning of an answer.
    pub answer_timeout: Duration,
    /// For [`HubLimits::least_bytes`] more of a body.
    pub stall_timeout: Duration,
    /// What must come within a stall timeout.
    pub least_bytes: usize,
    /// Failures in a row that gained nothing, after which a download gives up.
    pub tries: u32,
    /// The wait after a first failure; it doubles with each that follows.
    pub first_wait: Duration,
    /// The longest of those waits.
    pub longest_wait: Duration,
    /// The longest wait that is granted to a server that asks for one.
    pub longest_server_wait: Duration,
    /// Free disk space that a download leaves.
    pub reserve_bytes: u64,
}

impl Default for HubLimits {
    fn default() -> HubLimits {
        HubLimits {
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            least_bytes: 16 << 10,
            tries: 6,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(60),
            longest_server_wait: Duration::from_secs(300),
            reserve_bytes: 1 << 30,
        }
    }
}

impl HubLimits {
    /// Those of a question that a person waits for: what does not come soon counts as failed.
    pub(super) fn for_a_person(&self) -> HubLimits {
        let most = Duration::from_secs(5);
        HubLimits {
            connect_timeout: self.connect_timeout.min(most),
            answer_timeout: self.answer_timeout.min(2 * most),
            stall_timeout: self.stall_timeout.min(2 * most),
            tries: self.tries.min(2),
            longest_server_wait: self.longest_server_wait.min(most),
            ..self.clone()
        }
    }
}

impl HubOptions {
    /// The default hub and this cache, without a token.
    pub fn new(cache: PathBuf) -> HubOptions {
        HubOptions {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            cache,
            token: None,
            proxy: None,
            is_offline: false,
            limits: HubLimits::default(),
        }
    }

    /// As the environment says: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, and the
    /// variables of [`CacheVariables`]. Without `HF_TOKEN` the file is read in which Hugging Face's
    /// tools keep the token. A program passes `std::env::var_os`.
    pub fn from_lookup(
        lookup: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<HubOptions, DownloadError> {
        let variables = CacheVariables::from_lookup(&lookup);
        let text = |name| {
            let value = lookup(name)?.into_string().ok()?;
            (!value.trim().is_empty()).then(|| value.trim().to_owned())
        };
        let is_on = |name| {
            text(name).is_some_and(|value| {
                ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
            })
        };
        let cache = variables.hub_cache().ok_or(DownloadError::NoCacheFolder)?;
        let mut options = HubOptions::new(cache);
        options.endpoint = text("HF_ENDPOINT").unwrap_or(options.endpoint);
        options.is_offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).or_else(|| {
            let path = lookup("HF_TOKEN_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
            let path = path.or_else(|| Some(variables.hf_home()?.join("token")))?;
            let text = String::from_utf8(read_file(&path, MAX_TOKEN_FILE_BYTES).ok()?).ok()?;
            (!text.trim().is_empty()).then_some(text)
        });
        options.token = token.map(|token| Token::new(&token)).transpose()?;
        Ok(options)
    }
}

impl fmt::Debug for HubOptions {
    /// Without the proxy, whose address may contain a password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HubOptions")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("has_token", &self.token.is_some())
            .field("has_proxy", &self.proxy.is_some())
            .field("is_offline", &self.is_offline)
            .field("limits", &self.limits)
            .finish()
    }
}

/// The hub's address, checked: no secrets in it, and no open line to another machine.
pub(super) fn checked_endpoint(endpoint: &str) -> Result<Url, DownloadError> {
    let refused = |reason| DownloadError::BadEndpoint { endpoint: endpoint.to_owned(), reason };
    let mut url = Url::parse(endpoint.trim_end_matches('/'))
        .map_err(|_| refused("it is not an address such as https://huggingface.co"))?;
    if !url.username().is_empty() || url.password().is_some() {
        // The error must not repeat the password.
        let reason = "it contains a password";
        return Err(DownloadError::BadEndpoint { endpoint: "…".to_owned(), reason });
    }
    if url.query().is_some() || url.fragment().is_some() || url.host().is_none() {
        return Err(refused("it is not an address such as https://huggingface.co"));
    }
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&url) => {}
        "http" => return Err(refused("http is only allowed for this machine: use https")),
        _ => return Err(refused("it is neither https nor http")),
    }
    // `join` replaces what follows the last slash.
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// Scheme, host and port of an address, in one spelling; none for what is no address. A token belongs
/// to an origin.
pub fn origin(endpoint: &str) -> Option<String> {
    let origin = Url::parse(endpoint.trim()).ok()?.origin();
    origin.is_tuple().then(|| origin.ascii_serialization())
}

/// The proxy's address, checked. One with a password is refused: it would stand in the settings, which
/// are no place for secrets.
pub(super) fn checked_proxy(proxy: &str) -> Result<Url, DownloadError> {
    let refused = |reason| DownloadError::BadProxy { reason };
    let not_an_address =
        "it is not an http, https or socks5 address such as http://proxy.example:8080";
    let url = Url::parse(proxy).map_err(|_| refused(not_an_address))?;
    if !["http", "https", "socks5", "socks5h"].contains(&url.scheme()) || url.host().is_none() {
        return Err(refused(not_an_address));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("it contains a password, which a setting does not keep safe"));
    }
    if !["", "/"].contains(&url.path()) || url.query().is_some() || url.fragment().is_some() {
        return Err(refused(not_an_address));
    }
    Ok(url)
}

/// Whether an address is this machine's by its text; no name is resolved but `localhost`.
pub(super) fn is_loopback(url: &Url) -> bool {
    match ip(url) {
        Some(ip) => ip.is_loopback(),
        None => url.host_str() == Some("localhost"),
    }
}

/// Whether an address is a number in this machine or its network.
pub(super) fn is_private(url: &Url) -> bool {
    match ip(url) {
        Some(IpAddr::V4(ip)) => {
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified()
        }
        Some(IpAddr::V6(ip)) => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_unique_local()
                || ip.is_unicast_link_local()
        }
        None => url.host_str() == Some("localhost"),
    }
}

fn ip(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    let ip: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hub;

    #[test]
    fn the_endpoint_is_https_or_this_machine() {
        for good in ["https://huggingface.co", "https://hub.example/a/", "http://127.0.0.1:81"]
            .into_iter()
            .chain(["http://localhost:8080", "http://[::1]:9"])
        {
            assert!(checked_endpoint(good).unwrap().as_str().ends_with('/'), "{good}");
        }
        for bad in ["", "huggingface.co", "ftp://x", "http://hub.example", "http://10.0.0.1"]
            .into_iter()
            .chain(["https://me:canary@hub.example", "https://hub.example/?q=1", "file:///x"])
        {
            let error = checked_endpoint(bad).unwrap_err();
            assert!(!error.to_string().contains("canary"), "{bad}");
        }
    }

    #[test]
    fn a_proxy_is_an_address_without_a_password() {
        for good in
            ["http://proxy.example:8080", "https://proxy.example/", "socks5://10.0.0.1:1080"]
                .into_iter()
                .chain(["socks5h://proxy.example:1080", "http://[::1]:3128"])
        {
            assert!(checked_proxy(good).is_ok(), "{good}");
            let options =
                HubOptions { proxy: Some(good.to_owned()), ..HubOptions::new("c".into()) };
            assert!(Hub::new(options).is_ok(), "{good}");
        }
        for bad in ["", "proxy.example:8080", "ftp://proxy.example", "http://", "socks4://a:1"]
            .into_iter()
            .chain(["http://me:canary@proxy.example", "http://canary@proxy.example"])
            .chain(["http://proxy.example/canary", "http://proxy.example/?canary"])
        {
            let error = checked_proxy(bad).unwrap_err();
            assert!(!error.to_string().contains("canary"), "{bad}: {error}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("https://Hub.example/a/").as_deref(), Some("https://hub.example"));
        assert_eq!(origin("https://hub.example:443").as_deref(), Some("https://hub.example"));
        assert_eq!(origin("http://127.0.0.1:81/x").as_deref(), Some("http://127.0.0.1:81"));
        assert_eq!(origin("hub.example"), None);
    }

    #[test]
    fn numbers_of_this_machine_and_its_network_are_private() {
        for private in ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254"]
            .into_iter()
            .chain(["[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "0.0.0.0", "localhost"])
        {
            assert!(is_private(&Url::parse(&format!("https://{private}/x")).unwrap()), "{private}");
        }
        for public in ["1.1.1.1", "huggingface.co", "[2606:4700::1]"] {
            assert!(!is_private(&Url::parse(&format!("https://{public}/x")).unwrap()), "{public}");
        }
    }

    #[test]
    fn the_environment_names_hub_token_and_cache() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_canary\n").unwrap();
        let home = folder.path().to_str().unwrap().to_owned();
        let options = |variables: &[(&str, &str)]| {
            HubOptions::from_lookup(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        let from_file = options(&[("HF_HOME", &home), ("HF_ENDPOINT", "https://hub.example")]);
        let from_file = from_file.unwrap();
        assert_eq!(from_file.endpoint, "https://hub.example");
        assert_eq!(from_file.cache, folder.path().join("hub"));
        assert_eq!(from_file.token, Some(Token::new("hf_canary").unwrap()));
        assert!(!format!("{from_file:?}").contains("canary"));
        let by_name = options(&[("HF_HOME", &home), ("HF_TOKEN", "hf_other")]).unwrap();
        assert_eq!(by_name.token, Some(Token::new("hf_other").unwrap()));
        assert!(!by_name.is_offline && by_name.endpoint == DEFAULT_ENDPOINT);
        let offline = options(&[("HOME", &home), ("HF_HUB_OFFLINE", "1")]).unwrap();
        assert!(offline.is_offline && offline.token.is_none());
        assert_eq!(options(&[]).unwrap_err(), DownloadError::NoCacheFolder);
    }
}
