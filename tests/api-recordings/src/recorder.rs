//! A proxy between a client and the server, which writes down what passes by.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::Value;
use thiserror::Error;

use crate::http::{header, split_head};
use crate::normal::with_numbered_ids;
use crate::{Exchange, Recording, Reply, Sent};

/// Why nothing can be recorded.
#[derive(Debug, Error)]
pub enum RecorderError {
    /// No port could be bound.
    #[error("the recorder cannot listen: {source}")]
    Listen {
        /// What went wrong.
        source: io::Error,
    },
}

/// The header by which a client names an exchange. One without it is passed on and not recorded.
const CASE: &str = "x-case";
/// The headers that say something to the API.
const KEPT: [&str; 6] =
    ["accept", "anthropic-beta", "anthropic-version", "authorization", "content-type", "x-api-key"];

/// A proxy on a port of its own. It serves until the process ends.
#[derive(Debug)]
pub struct Recorder {
    address: SocketAddr,
    recorded: Arc<Mutex<BTreeMap<String, Exchange>>>,
}

/// Where requests go, and where exchanges are put.
#[derive(Debug, Clone)]
struct Route {
    server: SocketAddr,
    key: String,
    recorded: Arc<Mutex<BTreeMap<String, Exchange>>>,
}

impl Recorder {
    /// Passes requests on to `server`, whose key is replaced in what is recorded.
    pub fn start(server: SocketAddr, key: &str) -> Result<Recorder, RecorderError> {
        let listen = || {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listen().map_err(|source| RecorderError::Listen { source })?;
        let recorded = Arc::new(Mutex::new(BTreeMap::new()));
        let route = Route { server, key: key.to_owned(), recorded: recorded.clone() };
        thread::spawn(move || {
            for client in listener.incoming().filter_map(Result::ok) {
                let route = route.clone();
                // A connection that breaks is an exchange that is not recorded.
                thread::spawn(move || route.pass(client));
            }
        });
        Ok(Recorder { address, recorded })
    }

    /// Where the client finds the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was recorded for a client, by name.
    pub fn recording(&self, client: &str) -> Recording {
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        Recording { client: client.to_owned(), exchanges: recorded.values().cloned().collect() }
    }
}

/// A request as it has arrived.
struct Request {
    /// Its first line.
    first: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn read(client: &mut TcpStream) -> io::Result<Option<Request>> {
        let (mut raw, mut buffer) = (Vec::new(), [0; 1 << 16]);
        loop {
            if let Some(request) = Request::parse(&raw) {
                return Ok(Some(request));
            }
            match client.read(&mut buffer)? {
                0 => return Ok(None),
                length => raw.extend_from_slice(&buffer[..length]),
            }
        }
    }

    /// None while something is still to come.
    fn parse(raw: &[u8]) -> Option<Request> {
        let (head, rest) = split_head(raw)?;
        let mut lines = head.lines();
        let first = lines.next()?.to_owned();
        let headers: Vec<(String, String)> = lines.filter_map(header).collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length = length.and_then(|(_, length)| length.parse().ok()).unwrap_or(0);
        let body = rest.get(..length)?.to_vec();
        Some(Request { first, headers, body })
    }

    /// The request for the server: to its address, and the connection ends with the reply.
    fn for_server(&self, server: SocketAddr) -> Vec<u8> {
        let mut head = format!("{}\r\nhost: {server}\r\nconnection: close\r\n", self.first);
        let ours = ["host", "connection", CASE];
        for (name, value) in self.headers.iter().filter(|(name, _)| !ours.contains(&name.as_str()))
        {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        [head.as_bytes(), &self.body].concat()
    }

    fn sent(&self, key: &str) -> Sent {
        let mut words = self.first.split(' ').map(str::to_owned);
        let kept = self.headers.iter().filter(|(name, _)| KEPT.contains(&name.as_str()));
        let mut headers: Vec<(String, String)> =
            kept.map(|(name, value)| (name.clone(), value.replace(key, "KEY"))).collect();
        headers.sort();
        Sent {
            method: words.next().unwrap_or_default(),
            path: words.next().unwrap_or_default(),
            headers,
            body: serde_json::from_slice::<Value>(&self.body).ok().map(with_numbered_ids),
        }
    }
}

impl Route {
    /// Passes one request on and its reply back, until the client or the server closes.
    fn pass(&self, mut client: TcpStream) -> io::Result<()> {
        let Some(request) = Request::read(&mut client)? else { return Ok(()) };
        let mut server = TcpStream::connect(self.server)?;
        server.write_all(&request.for_server(self.server))?;
        let (mut raw, mut buffer) = (Vec::new(), [0; 1 << 16]);
        loop {
            let length = server.read(&mut buffer)?;
            raw.extend_from_slice(&buffer[..length]);
            if length == 0 || client.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        // The client is read no further, and the server has noticed when it writes again.
        let _ = server.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
        self.record(&request, &raw);
        Ok(())
    }

    fn record(&self, request: &Request, raw: &[u8]) {
        let case = request.headers.iter().find(|(name, _)| name == CASE);
        let (Some((_, case)), Some(reply)) = (case, Reply::parse(raw)) else { return };
        let sent = request.sent(&self.key);
        let got = reply.normalized(sent.detail(reply.status));
        let exchange = Exchange { case: case.clone(), sent, got };
        let body = |exchange: &Exchange| exchange.sent.body.as_ref().map(Value::to_string);
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        // Which of several comes first differs from run to run.
        match recorded.get(case) {
            Some(other) if body(other) <= body(&exchange) => {}
            _ => drop(recorded.insert(case.clone(), exchange)),
        }
    }
}
