//! Tests of what a page may invoke, in the program as it is built.

use std::collections::BTreeSet;

use serde_json::Value;
use tauri::ipc::Origin;

use crate::window::MAIN;

/// Our own commands, and four of Tauri's: events from the menus, and the bar by which the window is dragged.
/// A new one belongs here only if script that got into the page may have it too.
const ALLOWED: [&str; 17] = [
    "call",
    "choose_documents",
    "choose_folder",
    "export_cache",
    "export_chats",
    "export_job",
    "import_cache",
    "import_chats",
    "import_model",
    "list_dropped",
    "plugin:event|listen",
    "plugin:event|unlisten",
    "plugin:window|internal_toggle_maximize",
    "plugin:window|start_dragging",
    "read_document",
    "save_text",
    "show_menus",
];

/// The manifest that Tauri's build writes: every command of ours, of Tauri and of its plugins.
const MANIFESTS: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/gen/schemas/acl-manifests.json"));

/// Every command that some permission allows or denies, as a page invokes it.
fn all_commands() -> BTreeSet<String> {
    let manifests: Value = serde_json::from_str(MANIFESTS).expect("JSON");
    let mut commands = BTreeSet::new();
    for (plugin, manifest) in manifests.as_object().expect("an object") {
        let permissions = manifest["permissions"].as_object().expect("an object").values();
        for permission in permissions {
            let named = ["allow", "deny"].map(|list| permission["commands"][list].as_array());
            let names = named.into_iter().flatten().flatten().filter_map(Value::as_str);
            commands.extend(names.map(
                |name| match plugin.strip_prefix("core:").unwrap_or(plugin) {
                    "__app-acl__" => name.to_owned(),
                    plugin => format!("plugin:{plugin}|{name}"),
                },
            ));
        }
    }
    commands
}

/// The commands that content of this origin in this window may invoke.
fn allowed(window: &str, origin: &Origin) -> Vec<String> {
    let mut context = crate::context();
    let authority = context.runtime_authority_mut();
    let is_allowed =
        |command: &String| authority.resolve_access(command, window, window, origin).is_some();
    all_commands().into_iter().filter(is_allowed).collect()
}

#[test]
fn main_window_invokes_listed_commands_only() {
    assert_eq!(allowed(MAIN, &Origin::Local), ALLOWED);
    let all = all_commands();
    for plugin in ["dialog", "notification", "opener", "webview", "menu", "tray", "path"] {
        let prefix = format!("plugin:{plugin}|");
        assert!(all.iter().any(|command| command.starts_with(&prefix)), "{plugin} is looked at");
    }
}

#[test]
fn no_other_window_or_origin_invokes_anything() {
    assert_eq!(allowed("other", &Origin::Local), [""; 0]);
    for url in ["https://example.org", "http://127.0.0.1:11435", "http://ipc.localhost"] {
        let origin = Origin::Remote { url: url.parse().expect("a URL") };
        assert_eq!(allowed(MAIN, &origin), [""; 0], "{url}");
    }
}

#[test]
fn handler_has_listed_commands_only() {
    let source = include_str!("main.rs");
    let (_, list) = source.split_once("tauri::generate_handler![").expect("one handler");
    let (list, rest) = list.split_once(']').expect("its end");
    assert!(!rest.contains("generate_handler!"), "there is one handler");
    let paths = list.split(',').map(str::trim).filter(|path| !path.is_empty());
    let handled: BTreeSet<&str> = paths.filter_map(|path| path.rsplit("::").next()).collect();
    let own: BTreeSet<&str> =
        ALLOWED.into_iter().filter(|command| !command.starts_with("plugin:")).collect();
    assert_eq!(handled, own);
}

#[test]
fn only_main_capability_exists() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/capabilities");
    let files: Vec<_> = std::fs::read_dir(folder)
        .expect("the capabilities")
        .map(|entry| entry.expect("a file").file_name())
        .collect();
    assert_eq!(files, ["main.json"]);
    let capability: Value =
        serde_json::from_str(include_str!("../capabilities/main.json")).expect("JSON");
    assert_eq!(capability["windows"], serde_json::json!([MAIN]));
    for name in ["remote", "webviews", "local", "platforms"] {
        assert!(capability.get(name).is_none(), "{name} is as Tauri has it by default");
    }
    let configuration: Value =
        serde_json::from_str(include_str!("../tauri.conf.json")).expect("JSON");
    assert_eq!(configuration["app"]["security"]["capabilities"], serde_json::json!(["main"]));
    assert_eq!(configuration["app"]["withGlobalTauri"], false);
}
