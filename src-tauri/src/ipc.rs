//! The one command that the window may invoke, and the app behind it.

use std::sync::{Arc, Mutex, PoisonError};

use cairn_app::wire::{Command, Failure, FailureCode, Frame, Reply};
use cairn_app::{App, OpenError, Options};
use tauri::State;
use tauri::async_runtime::JoinHandle;
use tauri::ipc::Channel;
use tokio::sync::broadcast::error::RecvError;

/// What the shell is built around: the app, or why it could not be opened (every command is then answered with that).
pub struct Core {
    app: Result<Arc<App>, Failure>,
    subscription: Mutex<Option<JoinHandle<()>>>,
}

impl Core {
    /// Opens the app on the default data folder.
    pub async fn open() -> Result<Arc<App>, OpenError> {
    App::open(Options::from_environment()?).await
}

async fn forward(app: Arc<App>, channel: Channel<Frame>) {
    let mut events = app.subscribe();
    if channel.send(Frame::Reply(Reply::Done)).is_err() {
        return;
    }
    loop {
        let frame = match events.recv().await {
            Ok(event) => Frame::Event(event),
            // Some events are lost; a second `Done` makes the interface ask for everything again.
            Err(RecvError::Lagged(_)) => Frame::Reply(Reply::Done),
            Err(RecvError::Closed) => return,
        };
        if channel.send(frame).is_err() {
            return;
        }
    }
}
