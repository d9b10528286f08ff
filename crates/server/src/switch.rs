//! The server of the desktop app: it serves the API on this machine while the app's settings say
//! so.

use std::io;
use std::sync::Arc;

use cairn_app::App;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{ServeError, Server};

/// Follows the settings `api_is_on` and `api_port` of an app.
#[derive(Debug)]
pub struct ApiSwitch {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl ApiSwitch {
    /// Serves the API whenever the settings ask for it. Must be called in a Tokio runtime.
    pub fn follow(app: Arc<App>) -> ApiSwitch {
        let stop = CancellationToken::new();
        let task = tokio::spawn(follow(app, stop.clone()));
        ApiSwitch { stop, task }
    }

    /// Stops serving, as Ctrl-C does with `cairn serve`: running answers get an error as their last
    /// event. Call it before the app is closed. Takes a second at most.
    pub async fn stop(self) {
        self.stop.cancel();
        // If the task has panicked, nothing is served any more either.
        let _ = self.task.await;
    }
}

async fn follow(app: Arc<App>, stop: CancellationToken) {
    let mut wanted = app.api_wanted();
    while !stop.is_cancelled() {
        let port = *wanted.borrow_and_update();
        let mut later = wanted.clone();
        let stopped = stop.clone();
        // An app that is gone wants no server either.
        let changed = async move {
            tokio::select! {
                () = stopped.cancelled_owned() => {}
                _ = later.changed() => {}
            }
        };
        match port {
            None => changed.await,
            Some(port) => serve(&app, port, changed).await,
        }
    }
}

/// Serves until `shutdown` resolves. If that fails, the app switches the setting off.
async fn serve(app: &Arc<App>, port: u16, shutdown: impl Future<Output = ()> + Send + 'static) {
    match Server::bind_api(app.clone(), port).await {
        Ok(server) => server.run(shutdown).await,
        Err(error) => app.api_stopped(Some(sentence(port, &error))).await,
    }
}

fn sentence(port: u16, error: &ServeError) -> String {
    match error {
        ServeError::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
            format!("Port {port} is in use by another program: choose another port.")
        }
        ServeError::Bind { source, .. } => {
            format!("The server could not be started on port {port}: {source}.")
        }
        error => format!("The server could not be started: {error}."),
    }
}
