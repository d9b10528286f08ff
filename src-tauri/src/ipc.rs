//! The one command that the window may invoke for everything but files, and the app behind it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cairn_app::wire::{Command, Failure, FailureCode, Frame, Reply};
use cairn_app::{App, Closed, FolderLock, OpenError, Options};
use cairn_server::ApiSwitch;
use tauri::async_runtime::JoinHandle;
use tauri::ipc::Channel;
use tauri::{State, WebviewWindow};
use tokio::sync::broadcast::error::RecvError;

use crate::consent;
use crate::offered::Offered;

/// The app, or the reason why it could not be opened, with which every command is then answered.
pub struct Core {
    app: Result<Arc<App>, Failure>,
    subscription: Mutex<Option<JoinHandle<()>>>,
    /// Serves the API while the settings say so; none without an app, and once it has stopped.
    api: Mutex<Option<ApiSwitch>>,
    is_closing: AtomicBool,
}

impl Core {
    /// Opens the app on the default data folder, with its lock or the reason why that was not taken.
    pub async fn open(lock: Result<FolderLock, OpenError>) -> Self {
        let app =
            open(lock).await.map_err(|error| Failure::new(FailureCode::Storage, error.to_string()));
        let api = app.as_ref().ok().map(|app| ApiSwitch::follow(app.clone()));
        let (subscription, api) = (Mutex::new(None), Mutex::new(api));
        Self { app, subscription, api, is_closing: AtomicBool::new(false) }
    }

    /// Whether [`Core::close`] has begun.
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Ends the answers of programs, then the app itself. Takes three seconds at most.
    pub async fn close(&self) -> Result<Closed, &Failure> {
        self.is_closing.store(true, Ordering::Release);
        let app = self.app()?;
        let api = self.api.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(api) = api {
            api.stop().await;
        }
        Ok(app.close().await)
    }

    /// The app, or the failure that replaces it.
    pub fn app(&self) -> Result<&Arc<App>, &Failure> {
        self.app.as_ref()
    }

    /// The reason why there is no app.
    pub fn failure(&self) -> Option<&Failure> {
        self.app.as_ref().err()
    }

    /// Sends every event to `channel` from now on. A page subscribes once, so a second subscription
    /// comes from a reloaded page, and the earlier channel is dead.
    fn subscribe(&self, app: &Arc<App>, channel: Channel<Frame>) {
        let task = tauri::async_runtime::spawn(forward(app.clone(), channel));
        let earlier =
            self.subscription.lock().unwrap_or_else(PoisonError::into_inner).replace(task);
        if let Some(earlier) = earlier {
            earlier.abort();
        }
    }
}

/// Runs a command and sends its reply to `channel`; for `Subscribe`, every event after it.
///
/// # Errors
/// Only if the window is gone.
#[tauri::command]
pub async fn call(
    command: Command,
    channel: Channel<Frame>,
    window: WebviewWindow,
    core: State<'_, Core>,
    offered: State<'_, Offered>,
) -> tauri::Result<()> {
    let app = match core.app() {
        Ok(app) => app,
        Err(failure) => return channel.send(Frame::Failure(failure.clone())),
    };
    if matches!(command, Command::Subscribe) {
        core.subscribe(app, channel);
        return Ok(());
    }
    let is_first_state = matches!(command, Command::Bootstrap);
    let allowed = match app.needed_consent(&command) {
        Some(consent) => consent::require(&consent, &window, &offered).await,
        None => Ok(()),
    };
    let result = match allowed {
        Ok(()) => app.call(command).await,
        Err(failure) => Err(failure),
    };
    channel.send(result.map_or_else(Frame::Failure, Frame::Reply))?;
    if is_first_state {
        // `make bench` waits for this line: the page can be used from here on.
        tracing::info!("interface ready");
    }
    Ok(())
}

async fn open(lock: Result<FolderLock, OpenError>) -> Result<Arc<App>, OpenError> {
    App::open_locked(lock?, Options::from_environment()?).await
}

async fn forward(app: Arc<App>, channel: Channel<Frame>) {
    let mut events = app.subscribe();
    if channel.send(Frame::Reply(Reply::Done)).is_err() {
        return;
    }
    loop {
        let frame = match events.recv().await {
            Ok(event) => Frame::Event(event),
            // The window has missed events; a second `Done` makes it ask for everything again.
            Err(RecvError::Lagged(_)) => Frame::Reply(Reply::Done),
            Err(RecvError::Closed) => return,
        };
        if channel.send(frame).is_err() {
            return;
        }
    }
}
