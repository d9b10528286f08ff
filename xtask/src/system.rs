//! The Debian packages that each part of the work needs: installed if this user may, otherwise named
//! with the command that installs them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::process;

/// A part of the work with its own system packages.
#[derive(Clone, Copy, ValueEnum)]
pub enum Part {
    /// Downloading from the Python package index.
    Download,
    /// Compiling the engine: MLX's C interface and its bindings.
    Engine,
    /// Compiling and showing the desktop app.
    Desktop,
    /// Driving the app in tests: browsers, a virtual display, fault injection.
    Test,
}

impl Part {
    fn packages(self) -> &'static [&'static str] {
        match self {
            Part::Download => &["python3", "python3-pip"],
            Part::Engine => &[
                "cmake",
                "make",
                "g++",
                "libfmt-dev",
                "libclang-dev",
                "libopenblas0-pthread",
                "pkg-config",
            ],
            Part::Desktop => &[
                "libwebkit2gtk-4.1-dev",
                "libayatana-appindicator3-dev",
                "librsvg2-dev",
                "libxdo-dev",
                "pkg-config",
                "dbus-x11",
                "g++",
            ],
            Part::Test => &[
                "chromium",
                "webkit2gtk-driver",
                "xvfb",
                "xauth",
                "dbus-x11",
                "imagemagick",
                "strace",
                "fonts-dejavu-core",
            ],
        }
    }
}

/// Installs the missing packages of `part`. On systems without dpkg it only reports that nothing
/// was checked.
pub fn ensure(part: Part) -> Result<()> {
    if !process::exists("dpkg-query") {
        eprintln!("no dpkg here: system packages are not checked");
        return Ok(());
    }
    let missing: Vec<&str> =
        part.packages().iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let install = format!("apt-get install -y --no-install-recommends {}", missing.join(" "));
    let Some(prefix) = administrator() else {
        bail!("packages are missing; install them with: sudo apt-get update && sudo {install}");
    };
    eprintln!("installing {}", missing.join(", "));
    apt_get(prefix, &["update", "-q"])?;
    let mut arguments = vec!["install", "-y", "-q", "--no-install-recommends"];
    arguments.extend(missing);
    apt_get(prefix, &arguments)
        .with_context(|| format!("cannot install packages; try by hand: {install}"))
}

/// Unpacks packages, and those of the packages they depend on that are not installed, into `folder`,
/// which appears only when it is complete. Nothing is installed.
pub fn unpack(packages: &[&str], folder: &Path) -> Result<()> {
    let (archives, partial) = (folder.with_extension("archives"), folder.with_extension("partial"));
    for leftover in [&archives, &partial] {
        if leftover.exists() {
            fs::remove_dir_all(leftover)
                .with_context(|| format!("cannot remove {}", leftover.display()))?;
        }
    }
    fs::create_dir_all(archives.join("partial"))
        .with_context(|| format!("cannot create {}", archives.display()))?;
    if let Some(prefix) = administrator() {
        apt_get(prefix, &["update", "-q"])?;
    }
    // The locks and the archives of the system stay free for other programs.
    let cache = format!("Dir::Cache::archives={}", archives.display());
    let options = ["-y", "-q", "--no-install-recommends", "--reinstall", "--download-only"];
    let mut arguments = vec!["install", "-o", &cache, "-o", "Debug::NoLocking=1"];
    arguments.extend(options);
    arguments.extend(packages);
    let names = packages.join(", ");
    apt_get(&[], &arguments).with_context(|| format!("cannot download the packages {names}"))?;
    for entry in fs::read_dir(&archives)? {
        let archive = entry?.path();
        if archive.extension().is_some_and(|extension| extension == "deb") {
            process::run(Command::new("dpkg").arg("-x").arg(&archive).arg(&partial))?;
        }
    }
    fs::rename(&partial, folder)
        .with_context(|| format!("cannot unpack into {}", folder.display()))?;
    fs::remove_dir_all(&archives)?;
    Ok(())
}

fn apt_get(prefix: &[&str], arguments: &[&str]) -> Result<()> {
    // stdout is for results; apt's output goes to stderr.
    process::run(
        Command::new("env")
            .arg("DEBIAN_FRONTEND=noninteractive")
            .args(["sh", "-c", "exec \"$@\" 1>&2", "sh"])
            .args(prefix)
            .arg("apt-get")
            .args(arguments),
    )
}

fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.status.success() && output.stdout == b"installed")
}

/// The prefix that makes a command run as root: empty when already root, `sudo -n` where that works
/// without asking.
fn administrator() -> Option<&'static [&'static str]> {
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    if is_root {
        return Some(&[]);
    }
    let can_sudo = Command::new("sudo")
        .args(["-n", "true"])
        .output()
        .is_ok_and(|output| output.status.success());
    can_sudo.then_some(&["sudo", "-n"])
}
