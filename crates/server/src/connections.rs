//! Connections: how many are open, which of them wait for a request, and when a waiting one is
//! closed.
//!
//! ```text
//! accept ─▶ admit ─▶ waits ─▶ request ─▶ answers ─▶ the answer is sent ─▶ waits ─▶ …
//!   │         │        └─▶ closed after `wait`, or when another connection needs its place
//!   │         └─▶ 503, if every place answers
//!   └─ not for `patience` while every place is taken: a burst of short requests frees some
//! ```
//!
//! Anyone on this machine can open a connection, so a connection without an answer takes no file
//! handle for long. A connection that answers is never closed, so a request counts as answered only
//! if its route asks for a key ([`needs_key`]) and the request was not refused.
//!
//! A client may close its side after the request and still wait for the answer. A client that has
//! gone looks the same until it is sent something: so it is sent interim responses, which its system
//! then rejects ([`Connection::check_client`]).

use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::paths;

/// The reply to a connection that finds no place.
const NO_PLACE: &str = "Every connection that Cairn may have is being answered: try again later.\n";

/// Says nothing to a client that waits; the system of a client that has gone rejects it.
const INTERIM_RESPONSE: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";
/// When a client that has closed its side is asked again for the first time. Each interval is twice
/// as long as the one before, up to `MAX_ASK_INTERVAL`.
const MIN_ASK_INTERVAL: Duration = Duration::from_millis(50);
const MAX_ASK_INTERVAL: Duration = Duration::from_secs(5);

/// How many connections may be open, and for how long without an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    pub(crate) max_open: usize,
    /// The time for a request's head, and for a client to keep an idle connection. Longer than
    /// clients keep one, which would otherwise send a request just when it is closed.
    pub(crate) wait: Duration,
    /// The time that a new connection waits for a free place before another one loses its own.
    pub(crate) patience: Duration,
}

impl ConnectionLimits {
    /// Twice as many connections as answers may run, and the minute that common servers wait.
    pub(crate) const DEFAULT: ConnectionLimits = ConnectionLimits {
        max_open: 128,
        wait: Duration::from_secs(60),
        patience: Duration::from_secs(1),
    };
}

/// Answers requests until `closing`, and then until the answers that run have been sent.
pub(crate) async fn serve(
    mut listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    closing: CancellationToken,
) {
    let connections = Arc::new(Mutex::new(Connections::new(limits)));
    let freed = Arc::new(Notify::new());
    let tasks = TaskTracker::new();
    loop {
        let now = Instant::now();
        let (next_check, accepts_at) = {
            let mut connections = lock(&connections);
            (connections.close_overdue(now), connections.accepts_at(now))
        };
        tokio::select! {
            () = closing.cancelled() => break,
            () = sleep_until(next_check) => {}
            () = freed.notified() => {}
            () = sleep_until(accepts_at), if accepts_at > now => {}
            (stream, _) = Listener::accept(&mut listener), if accepts_at <= now => {
                let Some((id, closed)) = lock(&connections).admit(Instant::now()) else {
                    refuse(&stream);
                    continue;
                };
                let (connections, freed) = (connections.clone(), freed.clone());
                let exchange = Mutex::new(Exchange::Arrives);
                let place = Arc::new(Place { id, connections, freed, exchange });
                let connection = Connection { stream, place, asking: None };
                tasks.spawn(answer(connection, router.clone(), closed, closing.clone()));
            }
        }
    }
    // New connections are refused by the system from now on. Those that only wait would wait on: hyper ends
    // no connection that has sent a part of a request.
    drop(listener);
    lock(&connections).close_those(|connection| matches!(connection.state, State::Waits { .. }));
    tasks.close();
    tasks.wait().await;
}

/// Says why there is no answer, without waiting for a client that does not read.
fn refuse(stream: &TcpStream) {
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
         content-type: text/plain\r\ncontent-length: {}\r\n\r\n{NO_PLACE}",
        NO_PLACE.len()
    );
    // A new connection has room for this much.
    let _ = stream.try_write(answer.as_bytes());
}

/// Answers the requests of one connection until either side closes it.
async fn answer(
    connection: Connection,
    router: Router,
    closed: CancellationToken,
    closing: CancellationToken,
) {
    let place = connection.place.clone();
    let routes = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        if let Some(plain) = paths::plain(request.uri()) {
            *request.uri_mut() = plain;
        }
        let path = request.uri().path();
        let on_close = if !needs_key(path) {
            OnClose::Continue
        } else if path.starts_with("/v1/") && request.version() > Version::HTTP_10 {
            OnClose::Ask
        } else {
            // Events for the interface may fail to come for hours, and no client of HTTP/1.0 knows
            // interim responses.
            OnClose::End
        };
        let mut answering = place.begin(needs_key(path));
        let request = request.map(|body| RequestBody::new(body, place.clone(), on_close));
        let response = answering.is_some().then(|| routes.call(request));
        async move {
            let Some(response) = response else {
                return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
            };
            let response: Response = response.await?;
            // Without a key a client could hold its place by not reading the refusal.
            if !response.status().is_success()
                && let Some(answering) = answering.take()
            {
                answering.give_up();
            }
            let body = |body| Body::new(AnswerBody { body, _answering: answering });
            Ok::<_, Infallible>(response.map(body))
        }
    });
    // Otherwise hyper would end the connection, and with it the answer, when the client closes its side.
    let http =
        http1::Builder::new().half_close(true).serve_connection(TokioIo::new(connection), service);
    let mut http = pin!(http);
    let mut is_closing = false;
    loop {
        tokio::select! {
            // If the connection broke, there is no one to tell.
            _ = http.as_mut() => break,
            () = closed.cancelled() => break,
            () = closing.cancelled(), if !is_closing => {
                is_closing = true;
                http.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Whether every route below this path asks for a key before it reads a body.
fn needs_key(path: &str) -> bool {
    path.starts_with("/api/") || path.starts_with("/v1/")
}

fn lock(connections: &Mutex<Connections>) -> MutexGuard<'_, Connections> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The open connections.
#[derive(Debug)]
struct Connections {
    limits: ConnectionLimits,
    open: Vec<OpenConnection>,
    /// Since when every place is taken.
    full_since: Option<Instant>,
    next_id: u64,
}

#[derive(Debug)]
struct OpenConnection {
    id: u64,
    state: State,
    closed: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits {
        since: Instant,
    },
    Answers,
    /// The answer is complete, but the client has not been sent all of it.
    Sends,
}

impl Connections {
    fn new(limits: ConnectionLimits) -> Self {
        Connections { limits, open: Vec::new(), full_since: None, next_id: 0 }
    }

    /// Returns when the next connection is to be accepted.
    fn accepts_at(&self, now: Instant) -> Instant {
        self.full_since.map_or(now, |since| since + self.limits.patience)
    }

    /// Gives a new connection a place, and closes the connection that has waited longest if need
    /// be. `None` if all of them answer. The token closes the new connection.
    fn admit(&mut self, now: Instant) -> Option<(u64, CancellationToken)> {
        let full_since = self.full_since;
        if full_since.is_some() {
            let waiting = self.open.iter().filter_map(|connection| {
                let State::Waits { since } = connection.state else { return None };
                Some((since, connection.id))
            });
            let (_, oldest) = waiting.min()?;
            self.close_those(|connection| connection.id == oldest);
        }
        let (id, closed) = (self.next_id, CancellationToken::new());
        self.next_id += 1;
        let state = State::Waits { since: now };
        self.open.push(OpenConnection { id, state, closed: closed.clone() });
        if self.open.len() >= self.limits.max_open {
            self.full_since = full_since.or(Some(now));
        }
        Some((id, closed))
    }

    /// Closes each connection that has waited too long. Returns when to look again.
    fn close_overdue(&mut self, now: Instant) -> Instant {
        let wait = self.limits.wait;
        let due = |connection: &OpenConnection| match connection.state {
            State::Waits { since } => Some(since + wait),
            State::Answers | State::Sends => None,
        };
        self.close_those(|connection| due(connection).is_some_and(|due| due <= now));
        self.open.iter().filter_map(due).min().unwrap_or(now + wait)
    }

    fn close_those(&mut self, is_closed: impl Fn(&OpenConnection) -> bool) {
        let num_before = self.open.len();
        self.open.extract_if(.., |connection| is_closed(connection)).for_each(|connection| {
            connection.closed.cancel();
        });
        if self.open.len() < num_before {
            self.full_since = None;
        }
    }

    /// `None` if the connection has been closed.
    fn state(&mut self, id: u64) -> Option<&mut State> {
        let connection = self.open.iter_mut().find(|connection| connection.id == id)?;
        Some(&mut connection.state)
    }
}

/// The place of one connection, which it gives back when it is dropped.
#[derive(Debug)]
struct Place {
    id: u64,
    connections: Arc<Mutex<Connections>>,
    freed: Arc<Notify>,
    exchange: Mutex<Exchange>,
}

/// How far the exchange of a request and its answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exchange {
    /// The whole request has not arrived.
    Arrives,
    /// The client waits for its answer.
    Waits { on_close: OnClose },
    /// The answer is complete, but not all of it has been sent.
    Ends,
}

/// The action if a client closes its side while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnClose {
    /// It counts as gone.
    End,
    /// It is answered: the answer comes at once, or what is sent of it finds out if it has gone.
    Continue,
    /// It is sent interim responses, which can only come before the answer.
    Ask,
}

impl Place {
    /// Begins a request. `None` if the connection has been closed meanwhile: a command that ran now
    /// would have no answer.
    fn begin(self: &Arc<Self>, needs_key: bool) -> Option<Answering> {
        *self.exchange() = Exchange::Arrives;
        let mut connections = lock(&self.connections);
        *connections.state(self.id)? =
            if needs_key { State::Answers } else { State::Waits { since: Instant::now() } };
        Some(Answering(self.clone()))
    }

    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, from: State, to: State) {
        if let Some(state) = lock(&self.connections).state(self.id)
            && *state == from
        {
            *state = to;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.connections).close_those(|connection| connection.id == self.id);
        self.freed.notify_one();
    }
}

/// A request that is being answered.
#[derive(Debug)]
struct Answering(Arc<Place>);

impl Answering {
    /// Gives the place up: no connection is kept open for this response.
    fn give_up(self) {
        self.0.change(State::Answers, State::Waits { since: Instant::now() });
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut exchange = self.0.exchange();
        if matches!(*exchange, Exchange::Waits { .. }) {
            *exchange = Exchange::Ends;
        }
        drop(exchange);
        self.0.change(State::Answers, State::Sends);
    }
}

/// A request's body, which notes when all of it has arrived.
#[derive(Debug)]
struct RequestBody {
    body: Incoming,
    /// `None` once the body has arrived.
    place: Option<Arc<Place>>,
    on_close: OnClose,
}

impl RequestBody {
    fn new(body: Incoming, place: Arc<Place>, on_close: OnClose) -> RequestBody {
        let mut body = RequestBody { body, place: Some(place), on_close };
        if hyper::body::Body::is_end_stream(&body) {
            body.arrived();
        }
        body
    }

    fn arrived(&mut self) {
        if let Some(place) = self.place.take() {
            *place.exchange() = Exchange::Waits { on_close: self.on_close };
        }
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.arrived();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body, which ends the request when it has been read or its reader has gone.
#[derive(Debug)]
struct AnswerBody {
    body: Body,
    _answering: Option<Answering>,
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection's bytes. It waits again once all of an answer has been handed to the system.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    place: Arc<Place>,
    /// When the client that has closed its side is asked next, and the interval before that.
    asking: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl Connection {
    /// Fails if the client has gone while it waited for its answer.
    fn check_client(&mut self, context: &mut Context<'_>) -> std::io::Result<()> {
        let Exchange::Waits { on_close } = *self.place.exchange() else { return Ok(()) };
        let mut byte = [0];
        let peeked = self.stream.poll_peek(context, &mut ReadBuf::new(&mut byte));
        match (peeked, on_close) {
            // It may have sent its next request.
            (Poll::Pending | Poll::Ready(Ok(1..)), _) => Ok(()),
            (Poll::Ready(Err(error)), _) => Err(error),
            (Poll::Ready(Ok(0)), OnClose::End) => Err(ErrorKind::ConnectionReset.into()),
            (Poll::Ready(Ok(0)), OnClose::Continue | OnClose::Ask) => match self.ask(context) {
                Poll::Ready(asked) => asked,
                Poll::Pending => Ok(()),
            },
        }
    }

    /// Asks a client that has closed its side whether it waits for its answer, again and again. Fails
    /// once the client has gone.
    fn ask(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        loop {
            let interval = match &mut self.asking {
                None => MIN_ASK_INTERVAL,
                Some((next, interval)) => {
                    ready!(next.as_mut().poll(context));
                    (*interval * 2).min(MAX_ASK_INTERVAL)
                }
            };
            if let Some(error) = self.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            // Bytes of an answer ask as well, so nothing is lost if the system takes no more.
            if *self.place.exchange() == (Exchange::Waits { on_close: OnClose::Ask }) {
                match self.stream.try_write(INTERIM_RESPONSE) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(num_bytes) if num_bytes == INTERIM_RESPONSE.len() => {}
                    // A part of it would be the beginning of the answer.
                    Ok(_) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            self.asking = Some((Box::pin(sleep(interval)), interval));
        }
    }

    /// Notes that bytes of an answer were sent.
    fn note_sent(&self, sent: Poll<std::io::Result<usize>>) -> Poll<std::io::Result<usize>> {
        let mut exchange = self.place.exchange();
        if sent.is_ready() && *exchange == (Exchange::Waits { on_close: OnClose::Ask }) {
            *exchange = Exchange::Waits { on_close: OnClose::Continue };
        }
        drop(exchange);
        sent
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, bytes)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_sent(sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.note_sent(sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called whenever hyper has nothing left to write, also while it waits for more of an answer.
    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.check_client(context)?;
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        let mut exchange = self.place.exchange();
        if *exchange == Exchange::Ends {
            *exchange = Exchange::Arrives;
        }
        drop(exchange);
        self.place.change(State::Sends, State::Waits { since: Instant::now() });
        Poll::Ready(flushed)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use tokio_stream::StreamExt;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// A server whose `/v1/answer` writes what `answer` is sent, and which refuses on `/v1/refused`
    /// with more than a socket takes.
    struct TestServer {
        address: SocketAddr,
        answer: mpsc::UnboundedSender<&'static str>,
        closing: CancellationToken,
        task: JoinHandle<()>,
    }

    impl TestServer {
        async fn start(max_open: usize, wait: Duration) -> TestServer {
            let (answer, pieces) = mpsc::unbounded_channel::<&str>();
            let pieces = Mutex::new(Some(pieces));
            let stream = move || {
                let pieces = pieces.lock().unwrap().take().unwrap();
                let pieces = UnboundedReceiverStream::new(pieces);
                async move { Body::from_stream(pieces.map(Ok::<_, Infallible>)) }
            };
            let stream = Arc::new(stream);
            let refusal = || async { (StatusCode::UNAUTHORIZED, vec![b'-'; 64 << 20]) };
            let router = Router::new()
                .route("/health", get(|| async { "well" }))
                .route("/v1/answer", get(move || stream()))
                .route("/v1/refused", get(refusal));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let closing = CancellationToken::new();
            let limits = ConnectionLimits { max_open, wait, patience: Duration::ZERO };
            let task = tokio::spawn(serve(listener, router, limits, closing.clone()));
            TestServer { address, answer, closing, task }
        }

        /// A connection that has sent `head`.
        async fn connect(&self, head: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            // The server may have closed it.
            let _ = stream.write_all(head.as_bytes()).await;
            stream
        }

        async fn end(self) {
            drop(self.answer);
            self.closing.cancel();
            self.task.await.unwrap();
        }
    }

    fn get_of(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n")
    }

    const UNFINISHED: &str = "GET /v1/answer HTTP/1.1\r\nhost: here\r\nx-more: ";

    /// Reads up to and with `end`. False if the connection is closed before.
    async fn has_read(stream: &mut TcpStream, end: &str) -> bool {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let Ok(byte) = stream.read_u8().await else { return false };
            text.push(byte);
        }
        true
    }

    async fn read_until(stream: &mut TcpStream, end: &str) {
        assert!(has_read(stream, end).await, "the connection is closed before {end:?}");
    }

    /// A connection that has sent `head` and read up to `end`. On a slow machine its time may be over
    /// before the server has read the head: then another one tries.
    async fn answered(server: &TestServer, head: &str, end: &str) -> TcpStream {
        loop {
            let mut stream = server.connect(head).await;
            if has_read(&mut stream, end).await {
                return stream;
            }
        }
    }

    /// Waits until the other side closes the connection.
    async fn wait_for_end(stream: &mut TcpStream) {
        // Bytes that it has not read make it a reset.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }

    #[tokio::test]
    async fn closes_connections_that_wait_too_long() {
        let server = TestServer::start(8, Duration::from_millis(20)).await;
        wait_for_end(&mut server.connect("").await).await;
        wait_for_end(&mut server.connect(UNFINISHED).await).await;
        let mut idle = answered(&server, &get_of("/health"), "well").await;
        wait_for_end(&mut idle).await;
        server.end().await;
    }

    #[tokio::test]
    async fn keeps_a_connection_while_it_answers() {
        let server = TestServer::start(8, Duration::from_millis(20)).await;
        server.answer.send("first").unwrap();
        let mut answered = answered(&server, &get_of("/v1/answer"), "first\r\n").await;
        // When this one is closed, the first has been open for longer.
        wait_for_end(&mut server.connect(UNFINISHED).await).await;
        server.answer.send("second").unwrap();
        read_until(&mut answered, "second\r\n").await;
        server.end().await;
    }

    #[tokio::test]
    async fn gives_the_oldest_waiting_place_to_a_new_connection() {
        let server = TestServer::start(3, LONG).await;
        let mut answered = server.connect(&get_of("/v1/answer")).await;
        server.answer.send("first").unwrap();
        read_until(&mut answered, "first\r\n").await;
        let mut oldest = server.connect(UNFINISHED).await;
        let mut other = server.connect(&get_of("/health")).await;
        read_until(&mut other, "well").await;
        let mut new = server.connect(&get_of("/health")).await;
        read_until(&mut new, "well").await;
        wait_for_end(&mut oldest).await;
        other.write_all(get_of("/health").as_bytes()).await.unwrap();
        read_until(&mut other, "well").await;
        server.answer.send("second").unwrap();
        read_until(&mut answered, "second\r\n").await;
        server.end().await;
    }

    #[tokio::test]
    async fn refuses_a_connection_if_all_answer() {
        let server = TestServer::start(1, LONG).await;
        let mut answered = server.connect(&get_of("/v1/answer")).await;
        server.answer.send("first").unwrap();
        read_until(&mut answered, "first\r\n").await;
        read_until(&mut server.connect("").await, NO_PLACE).await;
        drop(answered);
        server.end().await;
    }

    #[tokio::test]
    async fn takes_the_place_of_a_refusal_nobody_reads() {
        let server = TestServer::start(1, LONG).await;
        let mut refused = server.connect(&get_of("/v1/refused")).await;
        read_until(&mut refused, "\r\n\r\n").await;
        read_until(&mut server.connect(&get_of("/health")).await, "well").await;
        server.end().await;
    }

    #[tokio::test]
    async fn ends_without_requests_that_never_come() {
        let server = TestServer::start(8, LONG).await;
        let mut unfinished = server.connect(UNFINISHED).await;
        // The server has taken what came before.
        let answered = answered(&server, &get_of("/health"), "well").await;
        server.end().await;
        wait_for_end(&mut unfinished).await;
        drop(answered);
    }

    #[test]
    fn looks_again_when_the_first_place_is_due() {
        const SECOND: Duration = Duration::from_secs(1);
        let limits = ConnectionLimits { max_open: 9, wait: 10 * SECOND, patience: SECOND };
        let mut connections = Connections::new(limits);
        let start = Instant::now();
        let (answered, _) = connections.admit(start).unwrap();
        let (waiting, closed) = connections.admit(start + SECOND).unwrap();
        assert_eq!(connections.close_overdue(start + SECOND), start + 10 * SECOND);
        *connections.state(answered).unwrap() = State::Answers;
        assert_eq!(connections.close_overdue(start + 2 * SECOND), start + 11 * SECOND);
        assert!(!closed.is_cancelled());
        assert_eq!(connections.close_overdue(start + 11 * SECOND), start + 21 * SECOND);
        assert!(closed.is_cancelled() && connections.state(waiting).is_none());
        assert!(connections.state(answered).is_some());
    }

    #[test]
    fn waits_for_a_free_place_before_it_takes_one() {
        const SECOND: Duration = Duration::from_secs(1);
        let limits = ConnectionLimits { max_open: 2, wait: 10 * SECOND, patience: SECOND };
        let mut connections = Connections::new(limits);
        let start = Instant::now();
        let (first, first_closed) = connections.admit(start).unwrap();
        assert_eq!(connections.accepts_at(start), start);
        let (second, _) = connections.admit(start).unwrap();
        assert_eq!(connections.accepts_at(start), start + SECOND);
        connections.close_those(|connection| connection.id == second);
        assert_eq!(connections.accepts_at(start), start);
        let (third, _) = connections.admit(start + SECOND).unwrap();
        assert_eq!(connections.accepts_at(start + SECOND), start + 2 * SECOND);
        // From then on no connection waits again until a place becomes free.
        let (fourth, _) = connections.admit(start + 2 * SECOND).unwrap();
        assert!(first_closed.is_cancelled() && connections.state(first).is_none());
        assert_eq!(connections.accepts_at(start + 3 * SECOND), start + 2 * SECOND);
        for id in [third, fourth] {
            *connections.state(id).unwrap() = State::Answers;
        }
        assert!(connections.admit(start + 3 * SECOND).is_none());
    }
}
