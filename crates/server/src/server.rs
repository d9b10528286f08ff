//! The server: it binds an address, makes its URL, serves, and shuts down.

use std::fmt::Write;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use cairn_app::App;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::api::AnsweredPrompts;
use crate::connections::{self, ConnectionLimits};
use crate::parsing::Parser;
use crate::request_guard::{RequestGuard, is_of_api};
use crate::shared::Shared;
use crate::{api, cache, call, chats, interface, models};

const TOKEN_BYTES: usize = 32;
const MAX_TOKEN_LENGTH: usize = 256;
/// The shortest token for an address that other machines can reach: they could guess a shorter one.
const MIN_PUBLIC_TOKEN_LENGTH: usize = 16;
/// How long open connections may take to finish at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Where and how to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The address to listen on. One that other machines can reach needs an explicit token.
    pub host: IpAddr,
    /// The port; with 0 the system chooses a free one.
    pub port: u16,
    /// Visible ASCII characters, at least 16 where other machines can reach the host; `None`
    /// generates 256 random bits.
    pub token: Option<String>,
    /// Whether to serve the interface besides the commands.
    pub ui: bool,
    /// Names besides the server's own that requests may come under, such as that of a proxy; with a
    /// port, or for any.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may call the API, as `https://chat.example`; `*` for any. They need a key
    /// all the same.
    pub allowed_origins: Vec<String>,
}

impl ServeOptions {
    /// Fails if [`Server::bind`] would: because of the token, or because the address is in use or
    /// not this machine's. Call it before an app is opened for the server.
    pub fn check(&self) -> Result<(), ServeError> {
        match &self.token {
            Some(token) => check_token(token, self.host)?,
            None if self.host.is_loopback() => {}
            None => return Err(ServeError::NeedsToken { host: self.host }),
        }
        self.check_allowed()?;
        let address = SocketAddr::new(self.host, self.port);
        match std::net::TcpListener::bind(address) {
            Ok(_) => Ok(()),
            Err(source) => Err(ServeError::Bind { address, source }),
        }
    }

    fn check_allowed(&self) -> Result<(), ServeError> {
        let is_host = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
        };
        if let Some(name) = self.allowed_hosts.iter().find(|name| !is_host(name)) {
            return Err(ServeError::BadHost { name: name.clone() });
        }
        let is_origin = |origin: &str| match origin.split_once("://") {
            Some((scheme, host)) => {
                let is_visible = origin.bytes().all(|byte| byte.is_ascii_graphic());
                is_visible && !scheme.is_empty() && !host.is_empty() && !host.contains('/')
            }
            None => origin == "*",
        };
        match self.allowed_origins.iter().find(|origin| !is_origin(origin)) {
            Some(origin) => Err(ServeError::BadOrigin { origin: origin.clone() }),
            None => Ok(()),
        }
    }
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            host: Ipv4Addr::LOCALHOST.into(),
            port: 11435,
            token: None,
            ui: true,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
        }
    }
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Other machines can reach the address, and no token was given.
    #[error(
        "other machines can reach {host}: give a token with --token or --token-file to serve there"
    )]
    NeedsToken {
        /// The address.
        host: IpAddr,
    },
    /// Other machines can reach the address, and could guess the token.
    #[error(
        "other machines can reach {host}: \
         the token must have at least {MIN_PUBLIC_TOKEN_LENGTH} characters to serve there"
    )]
    ShortToken {
        /// The address.
        host: IpAddr,
    },
    /// The token cannot be sent in a header.
    #[error("a token must have 1 to {MAX_TOKEN_LENGTH} visible ASCII characters and no spaces")]
    BadToken,
    /// A name that no `Host` header has.
    #[error("{name:?} is no host: name one as mac.local or proxy.example:8080")]
    BadHost {
        /// The name.
        name: String,
    },
    /// An origin that no browser sends.
    #[error("{origin:?} is no origin: name one as https://chat.example, or * for any")]
    BadOrigin {
        /// The origin.
        origin: String,
    },
    /// The operating system's random number generator failed.
    #[error("cannot generate a random token: {0}")]
    NoRandomBits(getrandom::Error),
    /// Listening on the address failed.
    #[error("cannot listen on {address} ({source}): choose another port with --port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        source: io::Error,
    },
}

impl ServeError {
    /// Whether the options must be changed, rather than something outside.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::NoRandomBits(_) | Self::Bind { .. })
    }
}

/// What a server serves besides the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    /// The app's commands, and its interface if asked to.
    Commands,
    /// Nothing: it follows the switch in the app's settings.
    ApiOnly,
}

/// A server that has bound its address but does not accept requests yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    serves: Serves,
}

impl Server {
    /// Binds the address. Afterwards the port is known and so is [`Server::url`].
    pub async fn bind(app: Arc<App>, options: ServeOptions) -> Result<Server, ServeError> {
        Self::bind_for(app, options, Serves::Commands).await
    }

    /// Binds a port of this machine for a server of the API alone, which takes the keys that were
    /// made in the app, and a token that nobody is told.
    pub(crate) async fn bind_api(app: Arc<App>, port: u16) -> Result<Server, ServeError> {
        let options = ServeOptions { port, ui: false, ..ServeOptions::default() };
        Self::bind_for(app, options, Serves::ApiOnly).await
    }

    async fn bind_for(
        app: Arc<App>,
        options: ServeOptions,
        serves: Serves,
    ) -> Result<Server, ServeError> {
        options.check_allowed()?;
        let ServeOptions { host, port, token, ui, allowed_hosts, allowed_origins } = options;
        let token = match token {
            Some(token) => {
                check_token(&token, host)?;
                token
            }
            None if host.is_loopback() => random_token()?,
            None => return Err(ServeError::NeedsToken { host }),
        };
        let requested = SocketAddr::new(host, port);
        let bind_error = |source| ServeError::Bind { address: requested, source };
        let listener = TcpListener::bind(requested).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        let guard = RequestGuard { address, token, allowed_hosts, allowed_origins };
        let shared = Arc::new(Shared {
            app,
            guard,
            serves_interface: ui,
            closing: CancellationToken::new(),
            answers: Arc::new(Semaphore::new(api::MAX_ANSWERS)),
            parser: Parser::new(),
            answered: AnsweredPrompts::default(),
        });
        Ok(Server { listener, address, shared, serves })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The interface's URL. It holds the token in its fragment, which browsers do not send.
    pub fn url(&self) -> String {
        format!("http://{}/#token={}", self.address, in_fragment(&self.shared.guard.token))
    }

    /// The token that commands and file transfers must carry.
    pub fn token(&self) -> &str {
        &self.shared.guard.token
    }

    /// Serves until `shutdown` resolves. Running commands may then finish; event streams end.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) {
        let Server { listener, address, shared, serves } = self;
        let (app, closing) = (shared.app.clone(), shared.closing.clone());
        app.api_started(address, serves == Serves::ApiOnly);
        let commands = match serves {
            Serves::Commands => commands(),
            Serves::ApiOnly => Router::new(),
        };
        let router = commands
            .merge(api::routes(&shared))
            .fallback(get(interface::file).fallback(api::outside))
            .layer(middleware::from_fn_with_state(shared.clone(), check))
            .with_state(shared);
        let served =
            connections::serve(listener, router, ConnectionLimits::DEFAULT, closing.clone());
        let grace_expired = async {
            shutdown.await;
            closing.cancel();
            tokio::time::sleep(SHUTDOWN_GRACE).await;
        };
        tokio::select! {
            () = served => {}
            // A client keeps a connection half open.
            () = grace_expired => {}
        }
        app.api_stopped(None).await;
    }
}

/// The routes of the app's interface.
fn commands() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/call", post(call::call))
        .route("/api/cache/export", get(cache::export))
        .route("/api/cache/import", post(cache::import))
        .route("/api/chats/export", get(chats::export).post(chats::export))
        .route("/api/chats/import", post(chats::import))
        .route("/api/models/import", post(models::import))
}

/// Binds and serves until `shutdown` resolves, for callers that do not need the URL.
pub async fn serve(
    app: Arc<App>,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    Server::bind(app, options).await?.run(shutdown).await;
    Ok(())
}

/// Refuses requests from other origins, and of the API those that come when the server has stopped,
/// over a connection that was open before. Adds the security headers to every response, and an id to
/// those of the API.
async fn check(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let is_api = is_of_api(&parts);
    let origin = shared.guard.allowed_origin(&parts).cloned();
    let is_preflight = parts.method == Method::OPTIONS
        && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match shared.guard.check_host_and_origin(&parts) {
        Ok(()) if origin.is_some() && is_preflight => StatusCode::NO_CONTENT.into_response(),
        Ok(()) if is_api && shared.closing.is_cancelled() => api::refuse_closing(&parts),
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(refusal) if is_api => api::refuse(&parts, refusal),
        Err(refusal) => call::refuse(refusal.status(), refusal.sentence()),
    };
    response.headers_mut().extend(interface::SECURITY_HEADERS);
    if is_api {
        response.headers_mut().extend(api::request_id().into_iter().flatten());
    }
    if let Some(origin) = origin {
        response.headers_mut().extend(cross_origin(origin));
    }
    response
}

/// Headers that let a page of this origin call the API and read its answers.
fn cross_origin(origin: HeaderValue) -> [(HeaderName, HeaderValue); 5] {
    [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin),
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST")),
        // A `*` does not stand for the header of the key.
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization, *")),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*")),
        (header::VARY, HeaderValue::from_static("origin")),
    ]
}

fn check_token(token: &str, host: IpAddr) -> Result<(), ServeError> {
    let is_visible = token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_visible || token.is_empty() || token.len() > MAX_TOKEN_LENGTH {
        return Err(ServeError::BadToken);
    }
    if !host.is_loopback() && token.len() < MIN_PUBLIC_TOKEN_LENGTH {
        return Err(ServeError::ShortToken { host });
    }
    Ok(())
}

fn random_token() -> Result<String, ServeError> {
    let mut bits = [0; TOKEN_BYTES];
    getrandom::fill(&mut bits).map_err(ServeError::NoRandomBits)?;
    Ok(bits.iter().fold(String::new(), |mut token, byte| {
        // Writing to a String cannot fail.
        let _ = write!(token, "{byte:02x}");
        token
    }))
}

/// Percent-encodes a token for the URL's fragment, which the interface parses as form data.
fn in_fragment(token: &str) -> String {
    token.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn random_tokens_have_256_bits_and_differ() {
        let tokens = [random_token().unwrap(), random_token().unwrap()];
        for token in &tokens {
            assert!(
                token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{token}"
            );
        }
        assert_ne!(tokens[0], tokens[1]);
    }

    #[test]
    fn a_token_is_percent_encoded_in_the_fragment() {
        fn check(token: &str, expected: &str) {
            assert_eq!(in_fragment(token), expected);
        }
        check("0a-._~Z", "0a-._~Z");
        check("a+b/c=&#%", "a%2Bb%2Fc%3D%26%23%25");
    }
}
