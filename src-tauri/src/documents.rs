//! Files that are attached to messages.

use std::path::{Path, PathBuf};

use cairn_app::wire::Failure;
use serde::Serialize;
use tauri::ipc::Response;
use tauri::{State, WebviewWindow};
use tauri_plugin_dialog::DialogExt;

use crate::files::chosen_all;
use crate::offered::{Offered, not_readable, refused};

/// More files of a folder nobody looks through.
const MAX_LISTED: usize = 2000;
/// Deeper folders are left out.
const MAX_DEPTH: usize = 12;
/// The largest file that is handed to the page: a PDF with many pictures.
const MAX_BYTES: u64 = 128 << 20;
/// Folders that programs fill; nothing in them is listed.
const PROGRAMS: [&str; 8] =
    ["node_modules", "target", "dist", "build", "__pycache__", "venv", "vendor", "Pods"];

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
    listed.iter().for_each(|file| offered.add(&file.path));
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
        offered.check(path)?;
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
    let path = offered.check(&path)?;
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

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
