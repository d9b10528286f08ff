//! Embeds the configuration and the permissions: the interface may invoke these commands and no
//! others.

fn main() {
    let commands = &[
        "call",
        "export_cache",
        "export_job",
        "export_chats",
        "import_chats",
        "save_text",
        "import_cache",
        "import_model",
        "choose_folder",
        "choose_documents",
        "list_dropped",
        "read_document",
        "show_menus",
    ];
    let manifest = tauri_build::AppManifest::new().commands(commands);
    if let Err(error) =
        tauri_build::try_build(tauri_build::Attributes::new().app_manifest(manifest))
    {
        panic!("{error:#}");
    }
}
