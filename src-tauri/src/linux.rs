//! What a Linux desktop may lack: the tray library, and a panel that shows tray icons.

use std::process::Command;
use std::time::Duration;

use tauri::image::Image;
use tauri::{AppHandle, RunEvent, include_image};

/// Panels are light or dark and draw what they are given, so the icon is in colour.
pub const TRAY_ICON: Image<'_> = include_image!("../assets/icon-32.png");

/// The names that Tauri's tray loads, in its order; it panics where neither is there.
const TRAY_LIBRARIES: [&str; 2] = ["libayatana-appindicator3.so.1", "libappindicator3.so.1"];

/// Longer than a panel that works takes to answer; a panel that hangs must not hang us.
const BUS_TIMEOUT: Duration = Duration::from_millis(500);

/// Whether building a tray icon can work at all. Asked of the linker's cache: loading a library to
/// see whether it loads would be unsafe, and a library that the cache does not know is only a menu
/// less.
pub fn can_build_tray() -> bool {
    ["ldconfig", "/sbin/ldconfig"]
        .iter()
        .find_map(|program| Command::new(program).arg("-p").output().ok())
        .is_some_and(|output| {
            let known = String::from_utf8_lossy(&output.stdout);
            TRAY_LIBRARIES.iter().any(|name| known.contains(name))
        })
}

/// Whether a panel shows our icon now: without one, a hidden window could never be found again.
pub fn is_tray_shown(app: &AppHandle) -> bool {
    app.tray_by_id("cairn").is_some() && is_tray_host_registered().unwrap_or(false)
}

fn is_tray_host_registered() -> zbus::Result<bool> {
    let bus =
        zbus::blocking::connection::Builder::session()?.method_timeout(BUS_TIMEOUT).build()?;
    let watcher = "org.kde.StatusNotifierWatcher";
    // Read by hand, not through a proxy: a proxy would also follow the name and cache the
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

/// Nothing here is Linux's own.
pub fn on_event(_app: &AppHandle, _event: &RunEvent) {}
