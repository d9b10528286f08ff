//! Whether the API is to be served, and whether it is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::settings::Settings;
use crate::wire::ApiServer;

/// What the settings ask for, and what the shell has made of it.
#[derive(Debug)]
pub(super) struct ServerState {
    /// The port to serve on; none: not at all.
    wanted: watch::Sender<Option<u16>>,
    now: Mutex<ApiServer>,
}

impl ServerState {
    pub(super) fn new(settings: &Settings) -> ServerState {
        ServerState {
            wanted: watch::Sender::new(port(settings)),
            now: Mutex::new(ApiServer::Off { problem: None }),
        }
    }

    /// The port to serve on, whenever that changes; none: not at all.
    pub(super) fn wanted(&self) -> watch::Receiver<Option<u16>> {
        self.wanted.subscribe()
    }

    /// Asks the shell's server for what the settings say.
    pub(super) fn follow(&self, settings: &Settings) {
        let wanted = port(settings);
        self.wanted.send_if_modified(|port| std::mem::replace(port, wanted) != wanted);
    }

    /// Asks the shell's server to stop, whatever the settings say.
    pub(super) fn switch_off(&self) {
        self.wanted.send_replace(None);
    }

    pub(super) fn now(&self) -> ApiServer {
        self.guard().clone()
    }

    pub(super) fn set(&self, now: ApiServer) {
        *self.guard() = now;
    }

    fn guard(&self) -> MutexGuard<'_, ApiServer> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn port(settings: &Settings) -> Option<u16> {
    u16::try_from(settings.api_port).ok().filter(|_| settings.api_is_on)
}
