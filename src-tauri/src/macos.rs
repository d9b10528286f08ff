//! macOS: the Dock and the menu bar.

use tauri::image::Image;
use tauri::{
    ActivationPolicy, AppHandle, LogicalPosition, Manager, RunEvent, TitleBarStyle,
    WebviewWindowBuilder, Wry, include_image,
};

use crate::window;

/// Black on transparent: the menu bar draws it in its own colour.
pub const TRAY_ICON: Image<'_> = include_image!("../assets/tray-template.png");

/// The page draws the bar in which the window is dragged; the traffic lights stand in it.
pub fn with_title_bar<M: Manager<Wry>>(
    builder: WebviewWindowBuilder<'_, Wry, M>,
) -> WebviewWindowBuilder<'_, Wry, M> {
    builder
        .title_bar_style(TitleBarStyle::Overlay)
        .hidden_title(true)
        .traffic_light_position(LogicalPosition::new(19.0, 26.0))
}

/// The menu bar always exists.
pub fn can_build_tray() -> bool {
    true
}

/// The icon exists, unless the user has hidden it in System Settings, which no API reports; then a
/// second launch shows the window.
pub fn is_tray_shown(app: &AppHandle) -> bool {
    app.tray_by_id("cairn").is_some()
}

/// With its window open the app is in the Dock and the app switcher and has a menu; without it,
/// only the menu-bar icon remains.
pub fn window_is_shown(app: &AppHandle, is_shown: bool) {
    let policy = if is_shown { ActivationPolicy::Regular } else { ActivationPolicy::Accessory };
    if let Err(error) = app.set_activation_policy(policy) {
        tracing::warn!("cannot show or hide the app in the Dock: {error}");
    }
}

/// A click on the Dock icon, or a second launch, shows the window.
pub fn on_event(app: &AppHandle, event: &RunEvent) {
    if let RunEvent::Reopen { .. } = event {
        window::show(app);
    }
}
