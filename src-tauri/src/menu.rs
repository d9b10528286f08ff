//! The menu bar: the window's commands, and what macOS expects beside them.
//!
//! The window sends its list of commands with their words and shortcuts, again after each change of
//! its language, and is told the id of the command that was chosen. So there is one list.

use std::collections::HashMap;

use serde::Deserialize;
use tauri::menu::{
    Menu, MenuEvent, MenuItem, PredefinedMenuItem, Submenu, SubmenuBuilder, WINDOW_SUBMENU_ID,
};
use tauri::{AppHandle, Emitter, Wry};

use crate::window;

/// The event that tells the window which command was chosen.
const COMMAND_EVENT: &str = "command";

/// What the ids of menu items that are commands begin with.
const COMMAND_PREFIX: &str = "command.";

/// The contents of the menu bar, as `MenuBar` of the interface describes them.
#[derive(Deserialize)]
pub struct MenuBar {
    /// The commands of each menu, by the menu's name.
    commands: HashMap<String, Vec<MenuCommand>>,
    /// The words for menus and for the system's own items.
    words: HashMap<String, String>,
}

/// One line of a menu.
#[derive(Deserialize)]
struct MenuCommand {
    id: String,
    label: String,
    accelerator: Option<String>,
}

/// Shows the window's commands in the menu bar. The window asks for it only where there is one.
///
/// # Errors
/// If the system refuses an item; the menu bar stays as it was.
#[tauri::command]
pub fn show_menus(app: AppHandle, bar: MenuBar) -> tauri::Result<()> {
    let menus = [
        app_menu(&app, &bar)?,
        bar.with_commands(&app, "file")?
            .separator()
            .close_window_with_text(bar.word("close"))
            .build()?,
        edit_menu(&app, &bar)?,
        bar.with_commands(&app, "view")?
            .separator()
            .fullscreen_with_text(bar.word("fullScreen"))
            .build()?,
        bar.with_commands(&app, "chat")?.build()?,
        window_menu(&app, &bar)?,
    ];
    let menu = Menu::new(&app)?;
    for submenu in &menus {
        menu.append(submenu)?;
    }
    app.set_menu(menu)?;
    Ok(())
}

/// Brings the window to the front and tells it which command was chosen.
pub fn choose(app: &AppHandle, event: &MenuEvent) {
    if let Some(command) = event.id().as_ref().strip_prefix(COMMAND_PREFIX) {
        run(app, command);
    }
}

/// Runs a command of the window's list, with the window in front.
pub fn run(app: &AppHandle, command: &str) {
    window::show(app);
    if let Err(error) = app.emit_to(window::MAIN, COMMAND_EVENT, command) {
        tracing::error!("cannot ask the window for {command}: {error}");
    }
}

impl MenuBar {
    /// The words of a menu or an item; empty if the window did not send them.
    fn word(&self, key: &str) -> &str {
        self.words.get(key).map_or("", String::as_str)
    }

    /// A menu that begins with the window's commands.
    fn with_commands<'app>(
        &self,
        app: &'app AppHandle,
        menu: &str,
    ) -> tauri::Result<SubmenuBuilder<'app, Wry, AppHandle>> {
        let mut builder = SubmenuBuilder::new(app, self.word(menu));
        for item in self.items(app, menu)? {
            builder = builder.item(&item);
        }
        Ok(builder)
    }

    fn items(&self, app: &AppHandle, menu: &str) -> tauri::Result<Vec<MenuItem<Wry>>> {
        let commands = self.commands.get(menu).map_or(&[][..], Vec::as_slice);
        commands
            .iter()
            .map(|MenuCommand { id, label, accelerator }| {
                let id = format!("{COMMAND_PREFIX}{id}");
                MenuItem::with_id(app, id, label, true, accelerator.as_deref())
            })
            .collect()
    }
}

/// The menu that macOS shows under the app's name.
fn app_menu(app: &AppHandle, bar: &MenuBar) -> tauri::Result<Submenu<Wry>> {
    let about = PredefinedMenuItem::about(app, Some(bar.word("about")), None)?;
    let mut builder = SubmenuBuilder::new(app, "Cairn").item(&about).separator();
    for item in bar.items(app, "app")? {
        builder = builder.item(&item);
    }
    builder
        .separator()
        .services_with_text(bar.word("services"))
        .separator()
        .hide_with_text(bar.word("hide"))
        .hide_others_with_text(bar.word("hideOthers"))
        .show_all_with_text(bar.word("showAll"))
        .separator()
        .quit_with_text(bar.word("quit"))
        .build()
}

/// What the system does in fields; without these items their shortcuts would do nothing.
fn edit_menu(app: &AppHandle, bar: &MenuBar) -> tauri::Result<Submenu<Wry>> {
    SubmenuBuilder::new(app, bar.word("edit"))
        .undo_with_text(bar.word("undo"))
        .redo_with_text(bar.word("redo"))
        .separator()
        .cut_with_text(bar.word("cut"))
        .copy_with_text(bar.word("copy"))
        .paste_with_text(bar.word("paste"))
        .select_all_with_text(bar.word("selectAll"))
        .build()
}

/// The menu in which macOS lists the windows.
fn window_menu(app: &AppHandle, bar: &MenuBar) -> tauri::Result<Submenu<Wry>> {
    SubmenuBuilder::with_id(app, WINDOW_SUBMENU_ID, bar.word("window"))
        .minimize_with_text(bar.word("minimize"))
        .maximize_with_text(bar.word("zoom"))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_commands_is_read_as_the_window_sends_it() {
        let sent = r#"{
            "commands": {"file": [{"id": "new_chat", "label": "Neuer Chat", "accelerator": "CmdOrCtrl+N"},
                                  {"id": "import_cache", "label": "Importieren …", "accelerator": null}]},
            "words": {"file": "Ablage"}
        }"#;
        let bar: MenuBar = serde_json::from_str(sent).expect("the list of commands");
        let file = &bar.commands["file"];
        assert_eq!(file[0].accelerator.as_deref(), Some("CmdOrCtrl+N"));
        assert_eq!((file[1].label.as_str(), &file[1].accelerator), ("Importieren …", &None));
        assert_eq!((bar.word("file"), bar.word("unknown")), ("Ablage", ""));
    }
}
