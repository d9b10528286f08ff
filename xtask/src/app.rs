//! `make app`: sets everything up and opens Cairn: its window if there is a display, otherwise the
//! same interface over loopback HTTP.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{mlx, process, root, starter, system, ui};

/// Sets up, builds, imports the starter model and becomes the running app.
pub fn run() -> Result<()> {
    let has_display = has_display();
    mlx::make()?;
    if has_display {
        system::ensure(system::Part::Desktop)?;
    }
    ui::build()?;
    starter::fetch()?;

    let mut build = process::cargo();
    build.args(["build", "--release", "-p", "cairn-cli"]);
    if has_display {
        build.args(["-p", "cairn-desktop"]);
    }
    process::run(&mut build)?;
    mlx::put_metal_library(&root().join("target/release"))?;
    import_starter()?;

    let mut app = if has_display {
        Command::new(process::release("cairn-app"))
    } else {
        eprintln!("no display here: serving the interface to a browser instead");
        let mut serve = Command::new(process::release("cairn"));
        serve.args(["serve", "--ui"]);
        serve
    };
    // Replaces this process, so that Ctrl-C and the exit status are the app's own.
    Err(app.exec()).with_context(|| format!("cannot start {}", app.get_program().to_string_lossy()))
}

fn import_starter() -> Result<()> {
    let models = process::output(
        Command::new(process::release("cairn")).args(["models", "list", "--json"]),
    )?;
    let models: serde_json::Value = serde_json::from_str(&models)?;
    if models.as_array().into_iter().flatten().any(|model| model["name"] == starter::MODEL) {
        return Ok(());
    }
    process::run(
        Command::new(process::release("cairn"))
            .args(["models", "import", "--name", starter::MODEL])
            .arg(starter::file()),
    )
}

fn has_display() -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}
