//! Files that the user chooses in native dialogs or drops on the window: prompt caches to save and
//! open, chats to save and open, models to import, answers about many texts and code to save.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_app::wire::{
    CacheFileLayout, CacheSource, ChatFileFormat, ChatsImported, Failure, FailureCode,
    ImportPreview, ImportedModel,
};
use cairn_app::{App, Replacement};
use tauri::{State, WebviewWindow};
use tauri_plugin_dialog::{DialogExt, FileDialogBuilder, FilePath};
use tokio::sync::oneshot;

use crate::ipc::Core;
use crate::offered::Offered;

/// Of prompt caches.
const EXTENSION: &str = "safetensors";
/// The longest file name that file systems allow.
const MAX_NAME_BYTES: usize = 255;

/// Asks for a path and exports saved context to it in the given layout. False if the user cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn export_cache(
    source: CacheSource,
    layout: CacheFileLayout,
    suggested_name: String,
    window: WebviewWindow,
    core: State<'_, Core>,
) -> Result<bool, Failure> {
    let app = app(&core)?;
    let dialog = dialog(&window)
        .set_title("Export prompt cache")
        .set_file_name(file_name(&suggested_name, EXTENSION));
    let Some(path) = chosen(|answer| dialog.save_file(answer)).await? else { return Ok(false) };
    app.export_cache(&source, layout, &path).await?;
    Ok(true)
}

/// Asks for a path and writes the rows of a job to it as CSV. False if the user cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn export_job(
    id: String,
    suggested_name: String,
    window: WebviewWindow,
    core: State<'_, Core>,
) -> Result<bool, Failure> {
    let app = app(&core)?;
    let dialog = window.dialog().file().set_parent(&window).add_filter("CSV", &["csv"]);
    let dialog =
        dialog.set_title("Export answers").set_file_name(file_name(&suggested_name, "csv"));
    let Some(path) = chosen(|answer| dialog.save_file(answer)).await? else { return Ok(false) };
    app.export_job(&id, &path).await?;
    Ok(true)
}

/// Asks for a path and writes chats to it; no ids stand for all. False if the user cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn export_chats(
    ids: Vec<String>,
    format: ChatFileFormat,
    suggested_name: String,
    window: WebviewWindow,
    core: State<'_, Core>,
) -> Result<bool, Failure> {
    let app = app(&core)?;
    let (filter, extension) = match format {
        ChatFileFormat::Json => ("Chats", "json"),
        ChatFileFormat::Markdown => ("Markdown", "md"),
        ChatFileFormat::Openai => ("Messages", "jsonl"),
    };
    let dialog = window.dialog().file().set_parent(&window).add_filter(filter, &[extension]);
    let dialog =
        dialog.set_title("Export chats").set_file_name(file_name(&suggested_name, extension));
    let Some(path) = chosen(|answer| dialog.save_file(answer)).await? else { return Ok(false) };
    app.export_chats(&ids, format, &path).await?;
    Ok(true)
}

/// Imports the chats of the dropped file at `path`, or else of one that the user chooses. None if the user
/// cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn import_chats(
    path: Option<PathBuf>,
    window: WebviewWindow,
    core: State<'_, Core>,
    offered: State<'_, Offered>,
) -> Result<Option<ChatsImported>, Failure> {
    let app = app(&core)?;
    let dialog = || {
        let dialog = window.dialog().file().set_parent(&window).set_title("Import chats");
        dialog.add_filter("Chats", &["json", "jsonl", "ndjson"])
    };
    let Some(path) = dropped_or_chosen(path.as_deref(), &offered, dialog).await? else {
        return Ok(None);
    };
    app.import_chats(&path).await.map(Some)
}

/// Asks for a path and writes a text to it. False if the user cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn save_text(
    text: String,
    suggested_name: String,
    window: WebviewWindow,
) -> Result<bool, Failure> {
    let (stem, extension) = suggested_name.rsplit_once('.').unwrap_or((&suggested_name, ""));
    let is_plain = !extension.is_empty() && extension.chars().all(|c| c.is_ascii_alphanumeric());
    let extension = if is_plain { extension } else { "txt" };
    let dialog = window.dialog().file().set_parent(&window).set_title("Save file");
    let dialog = dialog.set_file_name(file_name(stem, extension));
    let Some(path) = chosen(|answer| dialog.save_file(answer)).await? else { return Ok(false) };
    let failed = |why: String| Failure::not_writable(&path, why);
    let target = path.clone();
    match tauri::async_runtime::spawn_blocking(move || Replacement::write(&target, text.as_bytes()))
        .await
    {
        Ok(written) => written.map_err(|error| failed(error.to_string()))?,
        Err(error) => return Err(failed(error.to_string())),
    }
    Ok(true)
}

/// Previews the dropped file at `path`, or else one that the user chooses. None if the user cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn import_cache(
    path: Option<PathBuf>,
    window: WebviewWindow,
    core: State<'_, Core>,
    offered: State<'_, Offered>,
) -> Result<Option<ImportPreview>, Failure> {
    let app = app(&core)?;
    let dialog = || dialog(&window).set_title("Import prompt cache");
    let Some(path) = dropped_or_chosen(path.as_deref(), &offered, dialog).await? else {
        return Ok(None);
    };
    Ok(Some(app.preview_import(path).await))
}

/// Imports the dropped GGUF file or model folder at `path`, or else a file that the user chooses, and returns
/// the model. None if the user cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn import_model(
    path: Option<PathBuf>,
    window: WebviewWindow,
    core: State<'_, Core>,
    offered: State<'_, Offered>,
) -> Result<Option<ImportedModel>, Failure> {
    let app = app(&core)?;
    let dialog = || {
        let dialog = window.dialog().file().set_parent(&window).set_title("Import model");
        dialog.add_filter("GGUF file", &["gguf"])
    };
    let Some(whole) = dropped_or_chosen(path.as_deref(), &offered, dialog).await? else {
        return Ok(None);
    };
    // A link in a cache of models names the model; the file behind it is named by its hash.
    let named = path.as_deref().unwrap_or(&whole);
    let name = named.file_name().unwrap_or(named.as_os_str()).to_string_lossy().into_owned();
    app.import_model_as(whole, name).await
}

/// The folder for models that the user chooses. None if the user cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn choose_folder(
    window: WebviewWindow,
    offered: State<'_, Offered>,
) -> Result<Option<PathBuf>, Failure> {
    let dialog = window.dialog().file().set_parent(&window).set_title("Choose folder");
    let folder = chosen(|answer| dialog.pick_folder(answer)).await?;
    folder.iter().for_each(|folder| offered.add_model_folder(folder));
    Ok(folder)
}

fn app(core: &Core) -> Result<Arc<App>, Failure> {
    core.app().map(Arc::clone).map_err(Failure::clone)
}

fn dialog(window: &WebviewWindow) -> FileDialogBuilder<tauri::Wry> {
    window.dialog().file().set_parent(window).add_filter("Prompt cache", &[EXTENSION])
}

/// Returns the path of a dropped file, or else of one that the user chooses. `None` if the user
/// cancelled. A dropped path comes back without links, as it was checked: a link in it may lead
/// elsewhere a moment later.
async fn dropped_or_chosen(
    dropped: Option<&Path>,
    offered: &Offered,
    dialog: impl FnOnce() -> FileDialogBuilder<tauri::Wry>,
) -> Result<Option<PathBuf>, Failure> {
    match dropped {
        Some(path) => offered.check(path).map(Some),
        None => chosen(|answer| dialog().pick_file(answer)).await,
    }
}

/// The path chosen in a dialog; none if it was cancelled.
async fn chosen(
    open: impl FnOnce(Box<dyn FnOnce(Option<FilePath>) + Send>),
) -> Result<Option<PathBuf>, Failure> {
    let (sender, answer) = oneshot::channel();
    open(Box::new(move |path| {
        // Fails only if the window is gone.
        let _ = sender.send(path);
    }));
    // No answer comes if the app is closing.
    answer.await.ok().flatten().map(into_path).transpose()
}

/// The paths chosen in a dialog; empty if it was cancelled.
pub(crate) async fn chosen_all(
    open: impl FnOnce(Box<dyn FnOnce(Option<Vec<FilePath>>) + Send>),
) -> Result<Vec<PathBuf>, Failure> {
    let (sender, answer) = oneshot::channel();
    open(Box::new(move |paths| {
        let _ = sender.send(paths);
    }));
    answer.await.ok().flatten().unwrap_or_default().into_iter().map(into_path).collect()
}

fn into_path(path: FilePath) -> Result<PathBuf, Failure> {
    path.into_path().map_err(|error| {
        Failure::new(FailureCode::Storage, format!("The file cannot be used: {error}."))
    })
}

/// A valid file name from the one that a page suggests.
fn file_name(suggested: &str, extension: &str) -> String {
    let ending = format!(".{extension}");
    let stem = suggested.strip_suffix(&ending).unwrap_or(suggested);
    let is_allowed = |char: &char| !char.is_control() && !r#"/\:*?"<>|"#.contains(*char);
    let stem: String = stem.chars().filter(is_allowed).collect();
    let stem = stem.trim().trim_start_matches('.');
    let stem = &stem[..stem.floor_char_boundary(MAX_NAME_BYTES - ending.len())];
    format!("{}{ending}", if stem.is_empty() { "Cairn" } else { stem })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn opens_dropped_file_and_not_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (file, link) = (root.join("a.json"), root.join("link.json"));
        std::fs::write(&file, "a").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let offered = Offered::default();
        let open = |path| {
            let opened = dropped_or_chosen(Some(path), &offered, || panic!("no dialog"));
            tauri::async_runtime::block_on(opened)
        };
        assert!(open(&link).is_err(), "it was not dropped");
        offered.add(&link);
        assert_eq!(open(&link), Ok(Some(file)));
    }

    #[track_caller]
    fn check(suggested: &str, expected: &str) {
        assert_eq!(file_name(suggested, EXTENSION), expected, "{suggested:?}");
    }

    #[test]
    fn a_suggested_name_becomes_a_valid_file_name() {
        check("My book.safetensors", "My book.safetensors");
        check("My book", "My book.safetensors");
        check("../../etc/passwd", "etcpasswd.safetensors");
        check("a\nb: c?", "ab c.safetensors");
        check(" ", "Cairn.safetensors");
        check(".safetensors", "Cairn.safetensors");
        check(&"x".repeat(300), &format!("{}.safetensors", "x".repeat(243)));
        check(&"ä".repeat(300), &format!("{}.safetensors", "ä".repeat(121)));
        assert_eq!(file_name("Stones.csv", "csv"), "Stones.csv");
    }
}
