//! Cairn's desktop shell: one window and a tray icon around `cairn_app`.
//!
//! ```text
//! main.rs    start, signals, exit
//! instance.rs   a second launch shows the window of the first
//! ipc.rs     the command that the window invokes for everything but files
//! files.rs   import and export by dialogs, and files dropped on the window
//! documents.rs   files that are attached: chosen, or dropped on the window
//! offered.rs   what the page may open: what a person has chosen or dropped
//! consent.rs   what a person is asked before the page may change it
//! argument_limits.rs   the most that the page may hand to a command
//! window.rs  the window: what it may show, where its links go, what closing does
//! menu.rs    the menu bar: the window's list of commands
//! tray.rs    the tray icon, its menu and its state line
//! notifications.rs   a notification of the system when a download ends
//! macos.rs, linux.rs   the same few questions, answered for each system
//! ```

#[cfg(test)]
mod access;
mod argument_limits;
mod consent;
mod documents;
mod files;
mod instance;
mod ipc;
mod menu;
mod notifications;
mod offered;
// No other file asks which system this is.
#[cfg_attr(target_os = "macos", path = "macos.rs")]
#[cfg_attr(not(target_os = "macos"), path = "linux.rs")]
mod system;
mod tray;
mod window;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context, Result};
use cairn_app::{Closed, DataFolder, FolderLock, LOG_FILTER, LogFile, OpenError};
use tauri::{AppHandle, Manager, RunEvent};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::instance::{Doorbell, Launch, Reply};
use crate::ipc::Core;
use crate::offered::Offered;

fn main() -> ExitCode {
    // The app starts this program again to check models, beside the instance that runs.
    if let Some(status) = cairn_app::run_child_if_asked(std::env::args_os()) {
        return status;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    write_logs();
    cairn_app::log_panics();
    cairn_app::raise_file_limit();
    // First, so that a second launch ends before it touches anything.
    let (lock, doorbell) = match tauri::async_runtime::block_on(launch()) {
        Ok(Launch::Second) => return Ok(()),
        Ok(Launch::First(lock, doorbell)) => (Ok(lock), Some(doorbell)),
        Err(error) => (Err(error), None),
    };

    tauri::Builder::default()
        // For the dialogs in files.rs; the window has no permission for the plugin's own commands.
        .plugin(tauri_plugin_dialog::init())
        // For notifications.rs; the window has no permission for the plugin's own commands.
        .plugin(tauri_plugin_notification::init())
        .invoke_handler(argument_limits::limited(tauri::generate_handler![
            ipc::call,
            files::export_cache,
            files::export_job,
            files::export_chats,
            files::import_chats,
            files::save_text,
            files::import_cache,
            files::import_model,
            files::choose_folder,
            documents::choose_documents,
            documents::list_dropped,
            documents::read_document,
            menu::show_menus
        ]))
        .on_window_event(offered::note_drop)
        .on_menu_event(|app, event| menu::choose(app, &event))
        .setup(|app| Ok(set_up(app.handle(), lock, doorbell)?))
        .build(context())
        .context("cairn-app: cannot start")?
        .run(|app, event| match event {
            RunEvent::Exit => close(app),
            event => system::on_event(app, &event),
        });
    Ok(())
}

/// The configuration, the interface, and what the interface may invoke.
fn context() -> tauri::Context {
    tauri::generate_context!()
}

async fn launch() -> Result<Launch, OpenError> {
    instance::launch(&DataFolder::from_environment()?).await
}

/// Logs go to stderr, as `CAIRN_LOG` says, and to the data folder's log files.
fn write_logs() {
    let filter = EnvFilter::try_from_env("CAIRN_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let stderr = std::io::stderr;
    let to_stderr =
        fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal()).with_filter(filter);
    // If there is no data folder, opening the app reports why.
    let to_files = DataFolder::from_environment().ok().map(|data_folder| {
        fmt::layer()
            .with_writer(Mutex::new(LogFile::new(&data_folder)))
            .with_ansi(false)
            .with_filter(EnvFilter::new(LOG_FILTER))
    });
    tracing_subscriber::registry().with(to_stderr).with(to_files).init();
}

fn set_up(
    app: &AppHandle,
    lock: Result<FolderLock, OpenError>,
    doorbell: Option<Doorbell>,
) -> Result<()> {
    exit_on_signals(app.clone())?;
    let core = tauri::async_runtime::block_on(Core::open(lock));
    if let Some(failure) = core.failure() {
        eprintln!("cairn-app: {}", failure.message);
    }
    if let Ok(core) = core.app() {
        notifications::follow(app, core);
    }
    app.manage(core);
    let arguments = std::env::args_os().skip(1).map(PathBuf::from);
    app.manage(Offered::from_arguments(arguments));
    if let Err(error) = tray::build(app) {
        tracing::warn!("no tray icon: {error:#}");
    }
    window::show(app);
    if let Some(doorbell) = doorbell {
        let app = app.clone();
        tauri::async_runtime::spawn(doorbell.answer(move || {
            if app.state::<Core>().is_closing() {
                return Reply::Closing;
            }
            window::show(&app);
            Reply::Shown
        }));
    }
    Ok(())
}

/// The first Ctrl-C or SIGTERM closes everything in order; a second one does not wait.
fn exit_on_signals(app: AppHandle) -> Result<()> {
    let _runtime = tauri::async_runtime::handle().inner().enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tauri::async_runtime::spawn(async move {
        for is_first in [true, false] {
            tokio::select! {
                _ = interrupt.recv() => (),
                _ = terminate.recv() => (),
            }
            if is_first {
                app.exit(0);
            } else {
                cairn_app::exit_now(1);
            }
        }
    });
    Ok(())
}

fn close(app: &AppHandle) {
    match tauri::async_runtime::block_on(app.state::<Core>().close()) {
        Ok(Closed::Completely) => {}
        Ok(Closed::EngineBusy) => {
            app.cleanup_before_exit();
            cairn_app::exit_now(0);
        }
        // The window shows why; the exit status tells the program that started this one.
        Err(_) => {
            app.cleanup_before_exit();
            std::process::exit(1);
        }
    }
}
