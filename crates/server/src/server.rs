//! The server: binding, the printed URL, running, ending.

use std::fmt::Write;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use cairn_app::App;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::door::Door;
use crate::shared::Shared;
use crate::{cache, call, interface};

const TOKEN_BYTES: usize = 32;
const MAX_TOKEN_LENGTH: usize = 256;
/// How long connections may take to end once the server is to stop.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The address to listen on. One that other machines can reach needs a token of one's own.
    pub host: IpAddr,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// Visible ASCII characters; none makes 256 random bits.
    pub token: Option<String>,
    /// Whether the interface is served too.
    pub ui: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions { host: Ipv4Addr::LOCALHOST.into(), port: 11435, token: None, ui: true }
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Others could reach the server, and no token was chosen.
    #[error(
        "other machines can reach {host}: choose a token with --token or --token-file to serve there"
    )]
    NeedsToken {
        /// The address.
        host: IpAddr,
    },
    /// The token cannot be sent in a header.
    #[error("a token must have 1 to {MAX_TOKEN_LENGTH} visible ASCII characters and no spaces")]
    BadToken,
    /// The system gave no random bits.
    #[error("the system gave no random bits for a token: {0}")]
    NoRandomBits(getrandom::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address} ({source}): choose another port with --port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The server broke off.
    #[error("the server on {address} broke off: {source}")]
    Run {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    /// Listens. From here on the port is taken and [`Server::url`] is known.
    pub async fn bind(app: Arc<App>, options: ServeOptions) -> Result<Server, ServeError> {
        let ServeOptions { host, port, token, ui } = options;
        let token = match token {
            Some(token)
                if token.len() <= MAX_TOKEN_LENGTH
                    && !token.is_empty()
                    && token.bytes().all(|b| b.is_ascii_graphic()) =>
            {
                token
            }
            Some(_) => return Err(ServeError::BadToken),
            None if host.is_loopback() => random_token()?,
            None => return Err(ServeError::NeedsToken { host }),
        };
        let wanted = SocketAddr::new(host, port);
        let bind_error = |source| ServeError::Bind { address: wanted, source };
        let listener = TcpListener::bind(wanted).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        let door = Door { address, token };
        let shared =
            Arc::new(Shared { app, door, serves_interface: ui, closing: CancellationToken::new() });
        Ok(Server { listener, address, shared })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where a browser finds the interface. The token stands in the fragment, which is sent to
    /// nobody.
    pub fn url(&self) -> String {
        format!("http://{}/#token={}", self.address, in_fragment(&self.shared.door.token))
    }

    /// The token that commands must carry.
    pub fn token(&self) -> &str {
        &self.shared.door.token
    }

    /// Answers until `shutdown` is done. Commands being run are finished; whoever listens to events
    /// is sent away.
    pub async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        let Server { listener, address, shared } = self;
        let closing = shared.closing.clone();
        let router = Router::new()
            .route("/api/call", post(call::call))
            .route("/api/cache/export", get(cache::export))
            .route("/api/cache/import", post(cache::import))
            .fallback(get(interface::file))
            .layer(middleware::from_fn_with_state(shared.clone(), check))
            .with_state(shared);
        let stopped = closing.clone();
        let server = axum::serve(listener, router).with_graceful_shutdown(async move {
            shutdown.await;
            closing.cancel();
        });
        let give_up = async {
            stopped.cancelled().await;
            tokio::time::sleep(STOP_LIMIT).await;
        };
        tokio::select! {
            result = server.into_future() => result.map_err(|source| ServeError::Run { address, source }),
            // A connection that its client keeps half open.
            () = give_up => Ok(()),
        }
    }
}

/// Listens and answers until `shutdown` is done, for callers that need not know the URL.
pub async fn serve(
    app: Arc<App>,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    Server::bind(app, options).await?.run(shutdown).await
}

/// Turns away what does not belong here, and gives every answer its headers.
async fn check(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let mut response = match shared.door.check_every(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(refusal) => call::refuse(refusal.status(), refusal.sentence()),
    };
    response.headers_mut().extend(interface::SECURITY_HEADERS);
    response
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

/// A token as part of a URL that is read as a form: only characters that mean themselves stand as
/// they are.
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
    fn a_random_token_has_256_bits_and_never_comes_twice() {
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
    fn a_token_survives_the_fragment() {
        fn check(token: &str, expected: &str) {
            assert_eq!(in_fragment(token), expected);
        }
        check("0a-._~Z", "0a-._~Z");
        check("a+b/c=&#%", "a%2Bb%2Fc%3D%26%23%25");
    }
}
