//! Linux: whether the desktop has a tray library, and a panel that shows tray icons.

use std::process::Command;
use std::time::Duration;

use tauri::image::Image;
use tauri::{AppHandle, Manager, RunEvent, WebviewWindowBuilder, Wry, include_image};

/// Panels are light or dark and draw icons unchanged, so the icon is in colour.
pub const TRAY_ICON: Image<'_> = include_image!("../assets/icon-32.png");

/// The libraries that Tauri's tray tries to load, in its order; it panics if neither exists.
const TRAY_LIBRARIES: [&str; 2] = ["libayatana-appindicator3.so.1", "libappindicator3.so.1"];

/// Longer than a working panel takes to reply; a hanging panel must not block the app.
const BUS_TIMEOUT: Duration = Duration::from_millis(500);

/// The window manager draws the title bar, with the desktop's own buttons.
pub fn with_title_bar<M: Manager<Wry>>(
    builder: WebviewWindowBuilder<'_, Wry, M>,
) -> WebviewWindowBuilder<'_, Wry, M> {
    builder
}

/// Whether a tray icon can be built at all. Checked in the linker's cache: loading a library as a
/// test would be unsafe, and if the cache is wrong, only the menu is missing.
pub fn can_build_tray() -> bool {
    ["ldconfig", "/sbin/ldconfig"]
        .iter()
        .find_map(|program| Command::new(program).arg("-p").output().ok())
        .is_some_and(|output| {
            let known = String::from_utf8_lossy(&output.stdout);
            TRAY_LIBRARIES.iter().any(|name| known.contains(name))
        })
}

/// Whether a panel shows the icon now: without one, a hidden window could never be found again.
pub fn is_tray_shown(app: &AppHandle) -> bool {
    app.tray_by_id("cairn").is_some() && is_tray_host_registered().unwrap_or(false)
}

fn is_tray_host_registered() -> zbus::Result<bool> {
    let bus =
        zbus::blocking::connection::Builder::session()?.method_timeout(BUS_TIMEOUT).build()?;
    let watcher = "org.kde.StatusNotifierWatcher";
    // Called directly, not through a proxy, which would also follow the name and cache the
    // properties.
    let reply = bus.call_method(
        Some(watcher),
        "/StatusNotifierWatcher",
        Some("org.freedesktop.DBus.Properties"),
        "Get",
        &(watcher, "IsStatusNotifierHostRegistered"),
    )?;
    let value: zbus::zvariant::OwnedValue = reply.body().deserialize()?;
    Ok(bool::try_from(value)?)
}

/// A Linux desktop shows and hides an app's entry by itself.
pub fn window_is_shown(_app: &AppHandle, _is_shown: bool) {}

/// Linux has nothing to do here.
pub fn on_event(_app: &AppHandle, _event: &RunEvent) {}
