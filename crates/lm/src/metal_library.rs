//! Finds MLX's Metal library, `mlx.metallib`, for the program that runs.
//!
//! MLX itself knows only where the library was put on the machine that built it. A program that runs on
//! another Mac brings its own copy:
//!
//! ```text
//! Cairn.app/Contents/MacOS/cairn-app          in a bundle
//! Cairn.app/Contents/Resources/mlx.metallib   data in MacOS/ would break the signature
//!
//! bin/cairn                                   on its own
//! bin/mlx.metallib
//! ```

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use mlx_rs::error::Exception;

/// The library's file name.
pub const METAL_LIBRARY: &str = "mlx.metallib";

/// MLX's Metal library cannot be used. Each displays as one sentence.
#[derive(Debug, thiserror::Error)]
pub enum MetalLibraryError {
    /// The system does not say where the running program is.
    #[error(
        "cannot compute on the GPU: the program's own path is unknown ({0}), and mlx.metallib is next to it"
    )]
    NoProgram(io::Error),
    /// There is no such file.
    #[error("cannot compute on the GPU: {} is missing: install Cairn again", path.display())]
    Missing {
        /// Where it belongs.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("cannot compute on the GPU: {} cannot be read ({source}): install Cairn again", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has no bytes.
    #[error("cannot compute on the GPU: {} is empty: install Cairn again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// MLX takes paths as UTF-8 only, or refused this one.
    #[error("cannot compute on the GPU: MLX does not take {} ({source}): move Cairn to another folder", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// MLX's error.
        source: Exception,
    },
}

/// Finds the library of the program at `program`, which may be a link to it.
///
/// Outside of a bundle, `built` is used if there is none next to the program: the folder into which
/// the build put it. In a bundle it is not; otherwise a bundle without the library would still work
/// on its builder's Mac.
///
/// Fails if the library is missing, empty or cannot be opened, and names the file.
pub fn find_metal_library(
    program: &Path,
    built: Option<&Path>,
) -> Result<PathBuf, MetalLibraryError> {
    let program = program.canonicalize().map_err(MetalLibraryError::NoProgram)?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let (own, built) = match resources(folder) {
        Some(resources) => (resources.join(METAL_LIBRARY), None),
        None => (folder.join(METAL_LIBRARY), built.map(|folder| folder.join(METAL_LIBRARY))),
    };
    match check(&own) {
        // A copy that is there but broken is not passed over: its fault would stay unseen.
        Err(MetalLibraryError::Missing { path }) => match built.filter(|built| built.exists()) {
            Some(built) => check(&built).map(|()| built),
            None => Err(MetalLibraryError::Missing { path }),
        },
        checked => checked.map(|()| own),
    }
}

/// The bundle's folder for data, if `folder` is its folder of programs.
fn resources(folder: &Path) -> Option<PathBuf> {
    let contents = folder.parent()?;
    let is_bundle = folder.ends_with("Contents/MacOS")
        && contents.parent()?.extension().is_some_and(|extension| extension == "app");
    is_bundle.then(|| contents.join("Resources"))
}

fn check(path: &Path) -> Result<(), MetalLibraryError> {
    let unreadable = |source| MetalLibraryError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MetalLibraryError::Missing { path: path.to_owned() },
        _ => unreadable(error),
    })?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        Err(unreadable(io::Error::other("it is not a file")))
    } else if metadata.len() == 0 {
        Err(MetalLibraryError::Empty { path: path.to_owned() })
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Files below a new folder; those whose name ends in `.metallib` have a byte.
    fn tree(files: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        (folder, root)
    }

    /// Finds the library of `program`, built in `built/`, as a path below the root.
    fn found(root: &Path, program: &str) -> Result<String, String> {
        let found = find_metal_library(&root.join(program), Some(&root.join("built")));
        let below = |path: PathBuf| path.strip_prefix(root).unwrap().display().to_string();
        let sentence = |error: MetalLibraryError| {
            error.to_string().replace(&format!("{}/", root.display()), "")
        };
        found.map(below).map_err(sentence)
    }

    const PROGRAM: &str = "Cairn.app/Contents/MacOS/cairn-app";
    const RESOURCE: &str = "Cairn.app/Contents/Resources/mlx.metallib";

    #[test]
    fn finds_library_in_each_layout() {
        for (files, program, expected) in [
            (vec![PROGRAM, RESOURCE], PROGRAM, RESOURCE),
            (vec![PROGRAM, RESOURCE, "built/mlx.metallib"], PROGRAM, RESOURCE),
            (vec!["bin/cairn", "bin/mlx.metallib"], "bin/cairn", "bin/mlx.metallib"),
            (vec!["bin/cairn", "built/mlx.metallib"], "bin/cairn", "built/mlx.metallib"),
            (vec!["MacOS/cairn", "MacOS/mlx.metallib"], "MacOS/cairn", "MacOS/mlx.metallib"),
        ] {
            let (_folder, root) = tree(&files);
            assert_eq!(found(&root, program).as_deref(), Ok(expected), "{files:?}");
        }
    }

    #[test]
    fn follows_link_to_program() {
        let (_folder, root) = tree(&["opt/cairn", "opt/mlx.metallib", PROGRAM, RESOURCE]);
        fs::create_dir(root.join("bin")).unwrap();
        symlink("../opt/cairn", root.join("bin/cairn")).unwrap();
        symlink(root.join(PROGRAM), root.join("bin/cairn-app")).unwrap();
        assert_eq!(found(&root, "bin/cairn").as_deref(), Ok("opt/mlx.metallib"));
        assert_eq!(found(&root, "bin/cairn-app").as_deref(), Ok(RESOURCE));
    }

    #[test]
    fn finds_library_of_moved_app() {
        let (_folder, root) = tree(&[PROGRAM, RESOURCE]);
        fs::create_dir(root.join("Other Disk")).unwrap();
        fs::rename(root.join("Cairn.app"), root.join("Other Disk/Cairn 2.app")).unwrap();
        let moved = found(&root, "Other Disk/Cairn 2.app/Contents/MacOS/cairn-app");
        let expected = "Other Disk/Cairn 2.app/Contents/Resources/mlx.metallib";
        assert_eq!(moved.as_deref(), Ok(expected));
    }

    #[test]
    fn names_missing_library_in_one_sentence() {
        let sentence = |path| {
            Err(format!("cannot compute on the GPU: {path} is missing: install Cairn again"))
        };
        let (_folder, root) = tree(&[PROGRAM, "bin/cairn"]);
        assert_eq!(found(&root, "bin/cairn"), sentence("bin/mlx.metallib"));
        assert_eq!(found(&root, PROGRAM), sentence(RESOURCE));
        // Only the Mac that built the app has this one, and only there the app would start.
        let (_folder, root) = tree(&[PROGRAM, "built/mlx.metallib"]);
        assert_eq!(found(&root, PROGRAM), sentence(RESOURCE));
        let gone = find_metal_library(&root.join("gone"), None).unwrap_err().to_string();
        assert!(gone.contains("the program's own path is unknown"), "{gone}");
    }

    #[test]
    fn refuses_library_that_is_empty_or_unreadable() {
        let (_folder, root) = tree(&[PROGRAM, RESOURCE, "built/mlx.metallib", "bin/cairn"]);
        fs::write(root.join(RESOURCE), "").unwrap();
        let empty = format!("cannot compute on the GPU: {RESOURCE} is empty: install Cairn again");
        assert_eq!(found(&root, PROGRAM), Err(empty));

        fs::create_dir(root.join("bin/mlx.metallib")).unwrap();
        let folder = found(&root, "bin/cairn").unwrap_err();
        assert!(folder.contains("bin/mlx.metallib cannot be read (it is not a file)"), "{folder}");

        // As root every file can be read, so links in a circle stand for one that cannot.
        fs::remove_dir(root.join("bin/mlx.metallib")).unwrap();
        symlink("mlx.metallib", root.join("bin/mlx.metallib")).unwrap();
        let circle = found(&root, "bin/cairn").unwrap_err();
        assert!(circle.contains("bin/mlx.metallib cannot be read ("), "{circle}");
        assert!(circle.ends_with("install Cairn again"), "{circle}");

        fs::write(root.join(RESOURCE), "x").unwrap();
        fs::set_permissions(root.join(RESOURCE), fs::Permissions::from_mode(0o000)).unwrap();
        let is_root = File::open(root.join(RESOURCE)).is_ok();
        assert_eq!(found(&root, PROGRAM).is_ok(), is_root);
    }
}
