//! One app at a time has the data folder open; a second launch shows the window of the first and ends.
//!
//! ```text
//! second launch                         first
//! lock the folder ─ free ──▶ it is the first: binds window.sock, opens the app
//!        │ locked
//!        ▼
//! connect to window.sock ─────────────▶ shows its window
//!        ◀── `s`: shown ─────────────── or `c`: it is closing
//! ```
//! The lock decides. A launch asks at the socket only if the folder is locked, and believes only a
//! listener of the same user: otherwise another user could make every launch end.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use cairn_app::{DataFolder, FolderLock, OpenError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// Whether a launch is the first.
#[derive(Debug)]
pub enum Launch {
    /// The only one with this data folder.
    First(FolderLock, Doorbell),
    /// A second one: the first has shown its window.
    Second,
}

/// Where the first app hears of second launches.
#[derive(Debug)]
pub struct Doorbell(Option<UnixListener>);

/// The reply of the first app to a second launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It has shown its window.
    Shown,
    /// It is closing, so the second launch can soon be the first.
    Closing,
}

/// How long the first app may take to reply: it may still be opening its database.
const REPLY_LIMIT: Duration = Duration::from_secs(20);
/// Time between two tries to get the folder.
const INTERVAL: Duration = Duration::from_millis(100);
/// Tries while the first app closes; they last longer than closing may take.
const MAX_CLOSING: usize = 50;
/// Tries while no one listens: an app listens at once when it has the lock, and its process ends at once
/// when it has closed.
const MAX_UNHEARD: usize = 5;

/// Becomes the first launch with this data folder, or has the first one show its window.
///
/// # Errors
/// Why the folder cannot be opened, also if its owner is another program, such as `cairn serve`.
pub async fn launch(data_folder: &DataFolder) -> Result<Launch, OpenError> {
    launch_as(data_folder, rustix::process::geteuid().as_raw()).await
}

async fn launch_as(data_folder: &DataFolder, user: u32) -> Result<Launch, OpenError> {
    let socket = data_folder.window_socket();
    let (mut num_closing, mut num_unheard) = (0, 0);
    loop {
        let locked = match FolderLock::take(data_folder) {
            Ok(lock) => return Ok(Launch::First(lock, Doorbell::hang(&socket))),
            Err(error @ OpenError::AlreadyRunning { .. }) => error,
            Err(error) => return Err(error),
        };
        match tokio::time::timeout(REPLY_LIMIT, ring(&socket, user)).await {
            Ok(Ok(Reply::Shown)) => return Ok(Launch::Second),
            Ok(Ok(Reply::Closing)) => num_closing += 1,
            Ok(Err(error)) => {
                tracing::info!("{} is not answered: {error}", socket.display());
                num_unheard += 1;
            }
            Err(_too_late) => return Err(locked),
        }
        if num_closing == MAX_CLOSING || num_unheard == MAX_UNHEARD {
            return Err(locked);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Asks the first app for its window.
async fn ring(socket: &Path, user: u32) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(socket).await?;
    if stream.peer_cred()?.uid() != user {
        return Err(io::Error::other("another user listens there"));
    }
    match stream.read_u8().await? {
        b's' => Ok(Reply::Shown),
        b'c' => Ok(Reply::Closing),
        _ => Err(io::Error::other("another program listens there")),
    }
}

impl Doorbell {
    /// Listens at the socket. The caller has the folder's lock, so what is there was left by an app that
    /// has ended. Without a doorbell a second launch says that Cairn is running.
    fn hang(socket: &Path) -> Doorbell {
        let listen = || {
            match std::fs::remove_file(socket) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(socket)?;
            std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let listener = listen();
        if let Err(error) = &listener {
            tracing::warn!(
                "a second launch cannot show this window: {}: {error}",
                socket.display()
            );
        }
        Doorbell(listener.ok())
    }

    /// Answers second launches with what `reply` does, for as long as the app runs.
    pub async fn answer(self, reply: impl Fn() -> Reply) {
        let Some(listener) = self.0 else { return };
        loop {
            let answered = async {
                let (mut stream, _) = listener.accept().await?;
                let byte = match reply() {
                    Reply::Shown => b's',
                    Reply::Closing => b'c',
                };
                stream.write_u8(byte).await
            };
            if let Err(error) = answered.await {
                tracing::info!("a second launch is not answered: {error}");
                // Without handles, accepting fails at once, again and again.
                tokio::time::sleep(INTERVAL).await;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn folder() -> (tempfile::TempDir, DataFolder) {
        let home = tempfile::tempdir().unwrap();
        let data_folder = DataFolder::new(home.path());
        (home, data_folder)
    }

    /// The first launch, and how often it has shown its window.
    async fn first(data_folder: &DataFolder) -> (FolderLock, Arc<AtomicUsize>) {
        let Launch::First(lock, doorbell) = launch(data_folder).await.unwrap() else {
            panic!("no other has the folder")
        };
        let shown = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&shown);
        tokio::spawn(doorbell.answer(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            Reply::Shown
        }));
        (lock, shown)
    }

    #[tokio::test]
    async fn second_launch_shows_window_of_first() {
        let (_home, data_folder) = folder();
        let (lock, shown) = first(&data_folder).await;
        for count in [1, 2] {
            assert!(matches!(launch(&data_folder).await, Ok(Launch::Second)));
            assert_eq!(shown.load(Ordering::SeqCst), count);
        }
        drop(lock);
        // The socket that it left is no app.
        assert!(matches!(launch(&data_folder).await, Ok(Launch::First(..))));
    }

    #[tokio::test]
    async fn asks_no_socket_while_folder_is_free() {
        let (_home, data_folder) = folder();
        data_folder.create().unwrap();
        let stranger = Doorbell::hang(&data_folder.window_socket());
        let asked = tokio::spawn(stranger.answer(|| panic!("the folder is free")));
        let (_lock, shown) = first(&data_folder).await;
        assert!(matches!(launch(&data_folder).await, Ok(Launch::Second)));
        assert_eq!(shown.load(Ordering::SeqCst), 1);
        assert!(!asked.is_finished());
    }

    #[tokio::test]
    async fn refuses_listener_of_another_user() {
        let (_home, data_folder) = folder();
        let (_lock, _shown) = first(&data_folder).await;
        let user = rustix::process::geteuid().as_raw() + 1;
        let launched = launch_as(&data_folder, user).await;
        assert!(matches!(launched, Err(OpenError::AlreadyRunning { .. })), "{launched:?}");
    }

    #[tokio::test]
    async fn says_running_if_holder_has_no_window() {
        let (_home, data_folder) = folder();
        let _server = FolderLock::take(&data_folder).unwrap();
        let launched = launch(&data_folder).await;
        assert!(matches!(launched, Err(OpenError::AlreadyRunning { .. })), "{launched:?}");
    }

    #[tokio::test]
    async fn waits_for_app_that_closes() {
        let (_home, data_folder) = folder();
        let Ok(Launch::First(lock, doorbell)) = launch(&data_folder).await else { panic!() };
        // Dropped with the first reply, as an app that has closed drops it.
        let lock = std::sync::Mutex::new(Some(lock));
        tokio::spawn(doorbell.answer(move || {
            drop(lock.lock().unwrap().take());
            Reply::Closing
        }));
        assert!(matches!(launch(&data_folder).await, Ok(Launch::First(..))));
    }

    #[tokio::test]
    async fn socket_is_its_owners_alone() {
        let (_home, data_folder) = folder();
        let _first = first(&data_folder).await;
        let mode = data_folder.window_socket().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn opens_without_doorbell_if_path_is_too_long() {
        let home = tempfile::tempdir().unwrap();
        let data_folder = DataFolder::new(home.path().join("x".repeat(200)));
        let Ok(Launch::First(_lock, doorbell)) = launch(&data_folder).await else { panic!() };
        assert!(doorbell.0.is_none());
    }
}
