//! Whether the API is to be served, and whether it is.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::app::App;
use crate::settings::{Settings, commands as settings};
use crate::wire::{ApiServer, Event, SettingTarget};

const IS_ON: &str = "api_is_on";
const PORT: &str = "api_port";

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
            wanted: watch::Sender::new(wanted(settings)),
            now: Mutex::new(ApiServer::Off { problem: None }),
        }
    }

    pub(super) fn now(&self) -> ApiServer {
        self.guard().clone()
    }

    fn guard(&self) -> MutexGuard<'_, ApiServer> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wanted(settings: &Settings) -> Option<u16> {
    u16::try_from(settings.api_port).ok().filter(|_| settings.api_is_on)
}

/// Whether a setting decides if and where the API is served.
pub(crate) fn is_about_server(key: &str) -> bool {
    [IS_ON, PORT].contains(&key)
}

/// Tells the shell's server what the settings ask for now.
pub(crate) fn follow_setting(app: &App) {
    let wanted = wanted(&app.settings());
    // A server that is wanted has not failed yet, and one that is not has no problem.
    if matches!(app.api.server.now(), ApiServer::Off { problem: Some(_) }) {
        set(app, ApiServer::Off { problem: None });
    }
    app.api.server.wanted.send_if_modified(|port| std::mem::replace(port, wanted) != wanted);
}

fn set(app: &App, now: ApiServer) {
    *app.api.server.guard() = now.clone();
    app.emit(Event::ApiServer { server: now });
}

impl App {
    /// On which port of this machine the shell is to serve the API, as the settings say; none: it
    /// is switched off.
    pub fn api_wanted(&self) -> watch::Receiver<Option<u16>> {
        self.api.server.wanted.subscribe()
    }

    /// The API is served at this address from now on. `is_switched`: because the settings say so.
    pub fn api_started(&self, mut address: SocketAddr, is_switched: bool) {
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        set(self, ApiServer::Running { address: format!("http://{address}"), is_switched });
    }

    /// The API is no longer served. With a problem it is switched off: at the next start it would
    /// most likely fail again.
    pub async fn api_stopped(self: &Arc<Self>, problem: Option<String>) {
        let has_failed = problem.is_some();
        if !has_failed {
            return set(self, ApiServer::Off { problem });
        }
        // First, so that the server is not started again even if the setting cannot be saved.
        self.api.server.wanted.send_replace(None);
        let switched_off = settings::set(self, SettingTarget::App, IS_ON, false.into()).await;
        if let Err(failure) = switched_off {
            tracing::warn!("the API stays switched on in the settings: {}", failure.message);
        }
        set(self, ApiServer::Off { problem });
    }
}
