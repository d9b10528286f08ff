//! The main window: what it may show, where its links go, and what closing it does.

use tauri::utils::config::BackgroundThrottlingPolicy;
use tauri::webview::NewWindowResponse;
use tauri::{
    AppHandle, Manager, Url, WebviewUrl, WebviewWindow, WebviewWindowBuilder, WindowEvent,
};

use crate::ipc::Core;
use crate::system;

/// The main window's label, which its capability names.
pub const MAIN: &str = "main";

/// Brings the window to the front; creates it if there is none.
pub fn show(app: &AppHandle) {
    let shown = match app.get_webview_window(MAIN) {
        Some(window) => Ok(window),
        None => build(app),
    };
    match shown.and_then(|window| bring_to_front(app, &window)) {
        Ok(()) => (),
        Err(error) => tracing::error!("cannot show the window: {error}"),
    }
}

/// Whether a person has the window before them: it has the keyboard.
pub fn is_in_front(app: &AppHandle) -> bool {
    app.get_webview_window(MAIN).is_some_and(|window| window.is_focused().unwrap_or(false))
}

fn bring_to_front(app: &AppHandle, window: &WebviewWindow) -> tauri::Result<()> {
    system::window_is_shown(app, true);
    window.unminimize()?;
    window.show()?;
    window.set_focus()
}

fn build(app: &AppHandle) -> tauri::Result<WebviewWindow> {
    let window =
        system::with_title_bar(WebviewWindowBuilder::new(app, MAIN, WebviewUrl::default()))
            .title("Cairn")
            .inner_size(1180.0, 780.0)
            .min_inner_size(360.0, 480.0)
            // A hidden page would be suspended and later killed, but it must keep receiving events.
            .background_throttling(BackgroundThrottlingPolicy::Disabled)
            // The window's name, in its menu and its switcher, is that of the open chat or page.
            .on_document_title_changed(|window, title| {
                if let Err(error) = window.set_title(&title) {
                    tracing::warn!("cannot name the window: {error}");
                }
            })
            .on_navigation(|url| {
                let target = Target::of(url);
                target.open(url);
                target == Target::Own
            })
            .on_new_window(|url, _features| {
                Target::of(&url).open(&url);
                NewWindowResponse::Deny
            })
            .build()?;
    let app = app.clone();
    window.on_window_event(move |event| {
        if let WindowEvent::CloseRequested { api, .. } = event
            // If the app could not start, the window only shows the reason.
            && app.state::<Core>().failure().is_none()
            && system::is_tray_shown(&app)
        {
            api.prevent_close();
            hide(&app);
        }
    });
    Ok(window)
}

fn hide(app: &AppHandle) {
    let Some(window) = app.get_webview_window(MAIN) else { return };
    if let Err(error) = window.hide() {
        tracing::error!("cannot hide the window: {error}");
    }
    system::window_is_shown(app, false);
}

/// The kinds of link targets that the window treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The interface itself.
    Own,
    /// A target for the browser or the mail program.
    Outside,
    /// A target that is not opened.
    Refused,
}

impl Target {
    fn of(url: &Url) -> Self {
        match (url.scheme(), url.host_str()) {
            ("tauri", Some("localhost")) => Self::Own,
            ("https" | "http" | "mailto", _) => Self::Outside,
            _ => Self::Refused,
        }
    }

    /// Opens an outside link with the system's program for it.
    fn open(self, url: &Url) {
        if self == Self::Outside
            && let Err(error) = tauri_plugin_opener::open_url(url.as_str(), None::<&str>)
        {
            tracing::warn!("cannot open a link: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Target) {
        assert_eq!(Target::of(&Url::parse(url).expect("a URL")), expected, "{url}");
    }

    #[test]
    fn the_window_shows_itself_and_hands_web_links_out() {
        check("tauri://localhost/", Target::Own);
        check("tauri://localhost/index.html#chat", Target::Own);
        check("https://example.org/a?b=c", Target::Outside);
        check("http://127.0.0.1:8080/", Target::Outside);
        check("mailto:someone@example.org", Target::Outside);
    }

    #[test]
    fn other_schemes_and_other_hosts_of_ours_are_refused() {
        check("tauri://elsewhere/", Target::Refused);
        check("ipc://localhost/call", Target::Refused);
        check("file:///etc/passwd", Target::Refused);
        check("javascript:alert(1)", Target::Refused);
        check("data:text/html,hello", Target::Refused);
        check("about:blank", Target::Refused);
    }
}
