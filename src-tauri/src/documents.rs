//! Files that are attached to messages. The page reads no file but those that a person has chosen in a
//! dialog or dropped on the window.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_app::wire::{Failure, FailureCode, FailureKind};
use serde::Serialize;
use tauri::ipc::Response;
use tauri::{DragDropEvent, Manager, State, WebviewWindow, Window, WindowEvent};
use tauri_plugin_dialog::DialogExt;

use crate::files::chosen_all;

/// More files of a folder nobody looks through.
const MAX_LISTED: usize = 2000;
/// Deeper folders are left out.
const MAX_DEPTH: usize = 12;
/// The largest file that is handed to the page: a PDF with many pictures.
const MAX_BYTES: u64 = 128 << 20;
/// Folders that programs fill; nothing in them is listed.
const PROGRAMS: [&str; 8] =
    ["node_modules", "target", "dist", "build", "__pycache__", "venv", "vendor", "Pods"];

/// The paths that a person has chosen or dropped, and so lets the page read.
#[derive(Debug, Default)]
pub struct Offered(Mutex<HashSet<PathBuf>>);

impl Offered {
    fn paths(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a path was offered itself, or is in a folder that was.
    fn has(&self, path: &Path) -> bool {
        let paths = self.paths();
        path.ancestors().any(|ancestor| paths.contains(ancestor))
    }
}

/// A file that can be attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedFile {
    path: PathBuf,
    /// Its name, or its path within the folder that was dropped.
    name: String,
    bytes: u64,
}

/// What was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedDrop {
    /// The name of a folder that was dropped alone.
    folder: Option<String>,
    /// It is a folder with a model.
    is_model: bool,
    files: Vec<ListedFile>,
    /// There are more files than are listed.
    is_cut: bool,
}

/// Remembers what is dropped on the window.
pub fn note_drop(window: &Window, event: &WindowEvent) {
    if let WindowEvent::DragDrop(DragDropEvent::Drop { paths, .. }) = event {
        let offered = window.state::<Offered>();
        offered.paths().extend(paths.iter().filter_map(|path| path.canonicalize().ok()));
    }
}

/// Asks for files. None of them if the user cancelled.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn choose_documents(
    window: WebviewWindow,
    offered: State<'_, Offered>,
) -> Result<Vec<ListedFile>, Failure> {
    let dialog = window.dialog().file().set_parent(&window).set_title("Attach files");
    let paths = chosen_all(|answer| dialog.pick_files(answer)).await?;
    let listed = paths.iter().map(|path| listed_file(path)).collect::<Result<Vec<_>, _>>()?;
    offered.paths().extend(listed.iter().map(|file| file.path.clone()));
    Ok(listed)
}

/// Lists what was dropped on the window: files, or the files of a folder.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn list_dropped(
    paths: Vec<PathBuf>,
    offered: State<'_, Offered>,
) -> Result<ListedDrop, Failure> {
    for path in &paths {
        check_offered(&offered, path)?;
    }
    let listed = tauri::async_runtime::spawn_blocking(move || list(&paths)).await;
    listed.map_err(|error| refused(Path::new("The folder"), &error.to_string()))?
}

/// The bytes of a file that was chosen or dropped.
///
/// # Errors
/// The failure to show.
#[tauri::command]
pub async fn read_document(
    path: PathBuf,
    offered: State<'_, Offered>,
) -> Result<Response, Failure> {
    let path = check_offered(&offered, &path)?;
    let read = move || {
        let too_large = std::fs::metadata(&path).is_ok_and(|file| file.len() > MAX_BYTES);
        if too_large {
            let why = format!("it has more than {} MB", MAX_BYTES >> 20);
            return Err(refused(&path, &why));
        }
        std::fs::read(&path).map_err(|error| not_readable(&path, &error))
    };
    match tauri::async_runtime::spawn_blocking(read).await {
        Ok(bytes) => bytes.map(Response::new),
        Err(error) => Err(refused(Path::new("The file"), &error.to_string())),
    }
}

/// The path without links, if a person has offered it.
fn check_offered(offered: &Offered, path: &Path) -> Result<PathBuf, Failure> {
    let whole = path.canonicalize().map_err(|error| not_readable(path, &error))?;
    match offered.has(&whole) {
        true => Ok(whole),
        false => Err(refused(path, "it was neither chosen nor dropped here")),
    }
}

fn list(paths: &[PathBuf]) -> Result<ListedDrop, Failure> {
    if let [path] = paths
        && path.is_dir()
    {
        let is_model = path.join("config.json").is_file() && has_weights(path);
        let (mut files, mut is_cut) = (Vec::new(), false);
        if !is_model {
            walk(path, path, 0, &mut files, &mut is_cut)
                .map_err(|error| not_readable(path, &error))?;
            files.sort_by(|a, b| a.name.cmp(&b.name));
        }
        return Ok(ListedDrop { folder: Some(name_of(path)), is_model, files, is_cut });
    }
    let files = paths.iter().filter(|path| !path.is_dir()).map(|path| listed_file(path));
    let files = files.collect::<Result<_, _>>()?;
    Ok(ListedDrop { folder: None, is_model: false, files, is_cut: false })
}

fn has_weights(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let endings = entries.map(|entry| entry.path().extension().map(ToOwned::to_owned));
    endings.flatten().any(|ending| ending == "safetensors")
}

/// Adds the files below a folder; links are not followed.
fn walk(
    root: &Path,
    folder: &Path,
    depth: usize,
    files: &mut Vec<ListedFile>,
    is_cut: &mut bool,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        if files.len() >= MAX_LISTED {
            *is_cut = true;
            return Ok(());
        }
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = name_of(&path);
        if kind.is_dir() {
            let is_skipped = name.starts_with('.') || PROGRAMS.contains(&name.as_str());
            if is_skipped {
                // In the place of its files, so that the page can say why they are not there.
                files.push(ListedFile {
                    name: format!("{}/", within(root, &path)),
                    path,
                    bytes: 0,
                });
            } else if depth < MAX_DEPTH {
                // A folder that cannot be read is left out; the others are there.
                let _ = walk(root, &path, depth + 1, files, is_cut);
            }
        } else if kind.is_file() {
            let bytes = entry.metadata()?.len();
            files.push(ListedFile { name: within(root, &path), path, bytes });
        }
    }
    Ok(())
}

fn within(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

fn listed_file(path: &Path) -> Result<ListedFile, Failure> {
    let failed = |error: std::io::Error| not_readable(path, &error);
    let path = path.canonicalize().map_err(failed)?;
    let bytes = path.metadata().map_err(failed)?.len();
    Ok(ListedFile { name: name_of(&path), path, bytes })
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The reason is in its sentence alone.
fn refused(path: &Path, why: &str) -> Failure {
    let message = format!("{} cannot be attached: {why}.", path.display());
    Failure::new(FailureCode::Storage, message)
}

/// The system does not let it be read.
fn not_readable(path: &Path, error: &std::io::Error) -> Failure {
    refused(path, &error.to_string())
        .of_kind(FailureKind::NotReadable { name: path.display().to_string() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn only_what_was_offered_and_what_is_in_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("given/deep")).unwrap();
        std::fs::write(root.join("given/deep/a.txt"), "a").unwrap();
        std::fs::write(root.join("secret.txt"), "s").unwrap();
        let offered = Offered::default();
        offered.paths().insert(root.join("given"));
        assert!(check_offered(&offered, &root.join("given/deep/a.txt")).is_ok());
        for path in ["secret.txt", "given/../secret.txt", "given/missing.txt"] {
            let refused = check_offered(&offered, &root.join(path)).unwrap_err();
            assert!(refused.message.contains("cannot be attached"), "{refused:?}");
            let is_missing = path.contains("missing");
            assert_eq!(refused.kind.is_some(), is_missing, "{refused:?}");
        }
    }

    #[test]
    fn a_folder_is_listed_without_hidden_and_made_ones_and_a_model_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        for path in ["src/a.rs", "node_modules/x.js", ".git/config", "b.md"] {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), "text").unwrap();
        }
        let listed = list(std::slice::from_ref(&root)).unwrap();
        let names: Vec<&str> = listed.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, [".git/", "b.md", "node_modules/", "src/a.rs"]);
        assert!(!listed.is_model && listed.folder.is_some() && listed.files[1].bytes == 4);

        std::fs::write(root.join("config.json"), "{}").unwrap();
        std::fs::write(root.join("model.safetensors"), "").unwrap();
        assert!(list(std::slice::from_ref(&root)).unwrap().is_model);
        let files = list(&[root.join("b.md"), root.join("src/a.rs")]).unwrap();
        assert_eq!((files.folder, files.files.len()), (None, 2));
    }
}
