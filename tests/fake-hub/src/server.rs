//! The listeners, the table of faults and the record of requests.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use crate::reply::answer;
use crate::{Asked, FakeRepo, Fault, Misdeed};

/// A hub that runs until it is dropped.
pub struct FakeHub {
    state: Arc<State>,
}

/// Which of the two hosts was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The hub.
    Hub,
    /// The one that the hub redirects to.
    Bytes,
}

/// A request, as it was made.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which host.
    pub side: Side,
    /// Whether only the headers were asked for, as Python's tools do.
    pub is_head: bool,
    /// Path and query.
    pub target: String,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

pub(crate) struct State {
    pub hub: SocketAddr,
    pub bytes: SocketAddr,
    is_closed: AtomicBool,
    changing: Mutex<Changing>,
    changed: Condvar,
}

#[derive(Default)]
struct Changing {
    repos: Vec<FakeRepo>,
    faults: Vec<Fault>,
    requests: Vec<Request>,
    num_open: usize,
    most_open: usize,
    num_bytes_sent: u64,
    num_stalled: usize,
}

impl FakeHub {
    /// Serves these repositories.
    ///
    /// # Panics
    /// If no port can be opened on loopback.
    #[expect(clippy::expect_used, reason = "a test without a port cannot go on")]
    pub fn start(repos: Vec<FakeRepo>) -> FakeHub {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let (hub, bytes) = (listen(), listen());
        let state = Arc::new(State {
            hub: hub.local_addr().expect("a listener has an address"),
            bytes: bytes.local_addr().expect("a listener has an address"),
            is_closed: AtomicBool::new(false),
            changing: Mutex::new(Changing { repos, ..Changing::default() }),
            changed: Condvar::new(),
        });
        for (listener, side) in [(hub, Side::Hub), (bytes, Side::Bytes)] {
            let state = state.clone();
            thread::spawn(move || accept(&listener, side, &state));
        }
        FakeHub { state }
    }

    /// The hub's address.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.state.hub)
    }

    /// Adds a fault behind those that are there.
    pub fn add_fault(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Behaves from now on. Connections that stalled are cut.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
        self.state.changed.notify_all();
    }

    /// Changes the repositories.
    pub fn change(&self, change: impl FnOnce(&mut Vec<FakeRepo>)) {
        change(&mut self.state.lock().repos);
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().requests.clone()
    }

    /// Forgets the requests so far, and what was counted.
    pub fn forget_requests(&self) {
        let mut changing = self.state.lock();
        changing.requests.clear();
        (changing.most_open, changing.num_bytes_sent) = (changing.num_open, 0);
    }

    /// The most connections that were open at a time.
    pub fn most_connections(&self) -> usize {
        self.state.lock().most_open
    }

    /// Bytes of bodies that were sent.
    pub fn num_bytes_sent(&self) -> u64 {
        self.state.lock().num_bytes_sent
    }

    /// Waits until a connection stalls by [`Misdeed::StallAfter`], or until `is_over` says that none
    /// will.
    pub fn wait_for_stall(&self, mut is_over: impl FnMut() -> bool) {
        let mut changing = self.state.lock();
        while changing.num_stalled == 0 && !is_over() {
            let tick = std::time::Duration::from_millis(10);
            changing = match self.state.changed.wait_timeout(changing, tick) {
                Ok((changing, _)) => changing,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
        self.clear_faults();
        for address in [self.state.hub, self.state.bytes] {
            // Wakes the listener, which then ends.
            let _ = TcpStream::connect(address);
        }
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn repo(&self, name: &str) -> Option<FakeRepo> {
        self.lock().repos.iter().find(|repo| repo.name == name).cloned()
    }

    pub fn repos(&self) -> Vec<FakeRepo> {
        self.lock().repos.clone()
    }

    /// What the table of faults has for a request.
    pub fn misdeed(&self, asked: &Asked) -> Option<Misdeed> {
        let mut changing = self.lock();
        let fits = |fault: &&mut Fault| {
            fault.times > 0 && (fault.asked == Asked::Any || fault.asked == *asked)
        };
        let fault = changing.faults.iter_mut().find(fits)?;
        fault.times -= 1;
        Some(fault.misdeed.clone())
    }

    pub fn sent(&self, num_bytes: usize) {
        self.lock().num_bytes_sent += num_bytes as u64;
    }

    /// Keeps a connection open without sending, until faults are cleared or the client leaves.
    pub fn stall(&self, stream: &TcpStream) {
        let mut changing = self.lock();
        changing.num_stalled += 1;
        self.changed.notify_all();
        let _ = stream.set_nonblocking(true);
        while !changing.faults.is_empty() && !is_gone(stream) {
            let tick = std::time::Duration::from_millis(10);
            changing = match self.changed.wait_timeout(changing, tick) {
                Ok((changing, _)) => changing,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        changing.num_stalled -= 1;
    }
}

fn is_gone(stream: &TcpStream) -> bool {
    !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

fn accept(listener: &TcpListener, side: Side, state: &Arc<State>) {
    for stream in listener.incoming() {
        if state.is_closed.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(stream), state) = (stream, state.clone()) else { continue };
        thread::spawn(move || {
            {
                let mut changing = state.lock();
                changing.num_open += 1;
                changing.most_open = changing.most_open.max(changing.num_open);
            }
            if let Some(request) = read_request(&stream, side) {
                state.lock().requests.push(request.clone());
                // A client that has left is no matter.
                let _ = answer(&stream, &request, &state);
            }
            let _ = stream.shutdown(std::net::Shutdown::Write);
            state.lock().num_open -= 1;
        });
    }
}

fn read_request(stream: &TcpStream, side: Side) -> Option<Request> {
    let mut lines = BufReader::new(stream.take(64 << 10)).lines();
    let first = lines.next()?.ok()?;
    let (method, rest) = first.split_once(' ')?;
    let is_head = match method {
        "GET" => false,
        "HEAD" => true,
        _ => return None,
    };
    let target = rest.split(' ').next()?.to_owned();
    let mut headers = Vec::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    Some(Request { side, is_head, target, headers })
}
