//! A server over a real socket: requests are written as raw bytes, so that no client library
//! corrects them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_app::wire::{Command, Reply};
use cairn_app::{App, DataFolder, ForcedSpeculation, Options};
use cairn_server::{ServeOptions, Server};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A limit that only a failing test reaches.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Running {
    pub home: TempDir,
    pub app: Arc<App>,
    pub address: SocketAddr,
    pub token: String,
    pub url: String,
    pub stop: oneshot::Sender<()>,
    pub server: JoinHandle<()>,
}

pub async fn open_app(home: &TempDir) -> Arc<App> {
    App::open(Options::new(DataFolder::new(home.path()))).await.unwrap()
}

pub async fn start(ui: bool) -> Running {
    let home = tempfile::tempdir().unwrap();
    let app = open_app(&home).await;
    serve(home, app, ServeOptions { ui, ..ServeOptions::default() }).await
}

/// A server of the API whose `options` say who may call it.
pub async fn start_allowing(options: ServeOptions) -> Running {
    let home = tempfile::tempdir().unwrap();
    let app = open_app(&home).await;
    serve(home, app, ServeOptions { ui: false, ..options }).await
}

/// A server of which `speculation` says what proposes tokens.
pub async fn start_with_speculation(speculation: ForcedSpeculation) -> Running {
    let home = tempfile::tempdir().unwrap();
    let options = Options::new(DataFolder::new(home.path()));
    let options = Options { speculation: Some(speculation), ..options };
    let app = App::open(options).await.unwrap();
    serve(home, app, ServeOptions { ui: false, ..ServeOptions::default() }).await
}

async fn serve(home: TempDir, app: Arc<App>, options: ServeOptions) -> Running {
    let options = ServeOptions { port: 0, ..options };
    let server = Server::bind(app.clone(), options).await.unwrap();
    let (address, url, token) = (server.address(), server.url(), server.token().to_owned());
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    Running { home, app, address, token, url, stop, server }
}

impl Running {
    pub async fn end(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(TIMEOUT, self.server).await.expect("the server ends").unwrap();
        self.app.close().await;
    }

    /// Sends a request verbatim, but for `HOST` and `TOKEN`, which are filled in. Returns status,
    /// headers (in lower case) and body.
    pub async fn send(&self, head: &str, body: &[u8]) -> (u16, String, String) {
        let (status, headers, answer) = self.send_bytes(head, body.len() as u64, body).await;
        (status, headers, String::from_utf8(answer).unwrap())
    }

    /// As [`Running::send`], with a content length that may be wrong and a body of any bytes.
    pub async fn send_bytes(
        &self,
        head: &str,
        content_length: u64,
        body: &[u8],
    ) -> (u16, String, Vec<u8>) {
        let mut stream = self.begin(head, content_length).await;
        // The server may refuse and close the connection before it has read a large body.
        let _ = stream.write_all(body).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer))
            .await
            .expect("the server answers");
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), answer[end + 4..].to_vec())
    }

    /// Sends the head of a request.
    pub async fn begin(&self, head: &str, content_length: u64) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = head
            .replace("HOST", &self.address.to_string())
            .replace("PORT", &self.address.port().to_string());
        let head = format!(
            "{}\r\nconnection: close\r\ncontent-length: {content_length}\r\n\r\n",
            head.replace("TOKEN", &self.token)
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    pub async fn ask(&self, command: Command) -> Reply {
        self.app.call(command).await.unwrap()
    }

    /// The number of temporary files of uploads and downloads.
    pub fn num_transfers(&self) -> usize {
        std::fs::read_dir(self.home.path().join("transfers")).unwrap().count()
    }
}
