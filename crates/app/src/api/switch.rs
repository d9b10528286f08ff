//! The settings that switch the API's server on and off.

use crate::app::App;
use crate::wire::{ApiServer, Event};

pub(super) const IS_ON: &str = "api_is_on";
const PORT: &str = "api_port";

/// Whether a setting decides if and where the API is served.
pub(crate) fn is_about_server(key: &str) -> bool {
    [IS_ON, PORT].contains(&key)
}

/// Tells the shell's server what the settings ask for now.
pub(crate) fn follow_setting(app: &App) {
    // A server that is wanted has not failed yet, and one that is not has no problem.
    if matches!(app.api.server.now(), ApiServer::Off { problem: Some(_) }) {
        set(app, ApiServer::Off { problem: None });
    }
    app.api.server.follow(&app.settings());
}

/// Notes and says what has become of the server.
pub(super) fn set(app: &App, now: ApiServer) {
    app.api.server.set(now.clone());
    app.emit(Event::ApiServer { server: now });
}
