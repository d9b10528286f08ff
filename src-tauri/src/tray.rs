//! The tray icon: a state line, and a menu that is enough to use the app from.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use cairn_app::wire::{Command, Download, DownloadState, EngineState, Event, Model, Reply, Status};
use cairn_app::{App, model_title};
use tauri::menu::{CheckMenuItem, Menu, MenuEvent, MenuItem, PredefinedMenuItem, Submenu};
use tauri::tray::TrayIconBuilder;
use tauri::{AppHandle, Manager, Wry};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::ipc::Core;
use crate::{menu, system, window};

/// The least time between two changes: faster ones cannot be read, and redrawing costs time.
const SHORTEST_CHANGE: Duration = Duration::from_millis(500);

const NO_DOWNLOAD: &str = "No downloads";

/// What the ids of items that load a model begin with.
const MODEL_PREFIX: &str = "model.";

/// Longer model names are cut: a menu is as wide as its longest line.
const MAX_NAME_CHARS: usize = 40;

/// Builds the tray icon and starts the task that updates its lines.
///
/// # Errors
/// If the system has no tray; the app runs without one.
pub fn build(app: &AppHandle) -> Result<()> {
    if !system::can_build_tray() {
        bail!("this desktop lacks libayatana-appindicator3");
    }
    let state = MenuItem::with_id(app, "state", "Starting", false, None::<&str>)?;
    let model = MenuItem::with_id(app, "model", "No model", false, None::<&str>)?;
    let download = MenuItem::with_id(app, "download", NO_DOWNLOAD, false, None::<&str>)?;
    let models = Submenu::with_id(app, "models", "Use Model", false)?;
    let open = MenuItem::with_id(app, "open", "Open Cairn", true, None::<&str>)?;
    let new_chat = MenuItem::with_id(app, "new-chat", "New Chat", true, None::<&str>)?;
    let quit = MenuItem::with_id(app, "quit", "Quit Cairn", true, None::<&str>)?;
    let separators = [PredefinedMenuItem::separator(app)?, PredefinedMenuItem::separator(app)?];
    let menu = Menu::with_items(
        app,
        &[
            &state,
            &model,
            &download,
            &models,
            &separators[0],
            &open,
            &new_chat,
            &separators[1],
            &quit,
        ],
    )?;
    let items = Items { state, model, download, models, shown_models: Arc::default() };
    let clicked = items.clone();
    TrayIconBuilder::with_id("cairn")
        .icon(system::TRAY_ICON)
        .icon_as_template(true)
        .menu(&menu)
        .show_menu_on_left_click(true)
        .on_menu_event(move |app, event| choose(app, &clicked, event))
        .build(app)?;

    match app.state::<Core>().app() {
        Ok(core) => {
            tauri::async_runtime::spawn(follow(app.clone(), core.clone(), items));
        }
        Err(_) => items.state.set_text("Cairn could not start")?,
    }
    Ok(())
}

fn choose(app: &AppHandle, items: &Items, event: MenuEvent) {
    match event.id().as_ref() {
        "open" => window::show(app),
        "new-chat" => menu::run(app, "new_chat"),
        "quit" => app.exit(0),
        id => {
            if let Some(name) = id.strip_prefix(MODEL_PREFIX) {
                items.mark_models();
                load(app, name.to_owned());
            }
        }
    }
}

/// Loads a model. The lines of the menu say how far that is, and why the engine failed.
fn load(app: &AppHandle, name: String) {
    let Ok(core) = app.state::<Core>().app().cloned() else { return };
    tauri::async_runtime::spawn(async move {
        if let Err(failure) = core.call(Command::LoadModel { name }).await {
            tracing::warn!("a model was not loaded: {}", failure.message);
        }
    });
}

/// The items whose texts change.
#[derive(Clone)]
struct Items {
    state: MenuItem<Wry>,
    model: MenuItem<Wry>,
    download: MenuItem<Wry>,
    models: Submenu<Wry>,
    /// What the list of models shows.
    shown_models: Arc<Mutex<Vec<ModelLine>>>,
}

/// Their texts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lines {
    state: String,
    model: String,
    download: String,
    models: Vec<ModelLine>,
}

/// A model that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ModelLine {
    name: String,
    title: String,
    is_loaded: bool,
}

impl Items {
    /// Shows lines instead of those `before`.
    fn show(&self, app: &AppHandle, lines: Lines, before: Option<&Lines>) {
        // A list that is open is not drawn again without need.
        let models = match before.is_some_and(|before| before.models == lines.models) {
            true => Ok(()),
            false => self.show_models(app, &lines.models),
        };
        let shown = self
            .state
            .set_text(lines.state)
            .and_then(|()| self.model.set_text(lines.model))
            .and_then(|()| self.download.set_text(lines.download))
            .and(models);
        if let Err(error) = shown {
            tracing::warn!("the tray menu is out of date: {error}");
        }
    }

    /// Replaces the list of models.
    fn show_models(&self, app: &AppHandle, models: &[ModelLine]) -> tauri::Result<()> {
        for item in self.models.items()? {
            if let Some(item) = item.as_check_menuitem() {
                self.models.remove(item)?;
            }
        }
        for ModelLine { name, title, is_loaded } in models {
            let id = format!("{MODEL_PREFIX}{name}");
            let item = CheckMenuItem::with_id(app, id, title, true, *is_loaded, None::<&str>)?;
            self.models.append(&item)?;
        }
        *self.shown_models.lock().unwrap_or_else(PoisonError::into_inner) = models.to_vec();
        self.models.set_enabled(!models.is_empty())
    }

    /// Marks the loaded model and no other. A click turns the mark of its item round, whether or not
    /// its model gets loaded, or is loaded already.
    fn mark_models(&self) {
        let shown = self.shown_models.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let marked = self.models.items().and_then(|items| {
            let items = items.iter().filter_map(|item| item.as_check_menuitem());
            for item in items {
                item.set_checked(is_marked(&shown, item.id().as_ref()))?;
            }
            Ok(())
        });
        if let Err(error) = marked {
            tracing::warn!("the tray menu is out of date: {error}");
        }
    }
}

/// Shows each change of status, at most twice a second, and nothing while nothing changes.
async fn follow(app: AppHandle, core: Arc<App>, items: Items) {
    let mut events = core.subscribe();
    let (mut status, mut models) = current(&core).await;
    let mut downloads = Vec::new();
    let mut wanted = status.as_ref().map(|status| Lines::of(status, &downloads, &models));
    let mut shown = None;
    let mut next_change = Instant::now();
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Ok(Event::Status { status: changed }) => {
                    wanted = Some(Lines::of(&changed, &downloads, &models));
                    status = Some(changed);
                }
                Ok(Event::Models { models: changed }) => {
                    models = changed;
                    wanted = status.as_ref().map(|status| Lines::of(status, &downloads, &models));
                }
                Ok(Event::Downloads { downloads: changed }) => {
                    downloads = changed;
                    if let Some(lines) = &mut wanted {
                        lines.download = download_line(&downloads, &models);
                    }
                }
                Ok(_) => (),
                Err(RecvError::Lagged(_)) => {
                    (status, models) = current(&core).await;
                    wanted = status.as_ref().map(|status| Lines::of(status, &downloads, &models));
                }
                Err(RecvError::Closed) => return,
            },
            () = tokio::time::sleep_until(next_change), if wanted != shown => {
                if let Some(lines) = wanted.clone() {
                    let (items, handle, before) = (items.clone(), app.clone(), shown.clone());
                    let show = move || items.show(&handle, lines, before.as_ref());
                    // Fails only when the event loop has ended.
                    if app.run_on_main_thread(show).is_err() {
                        return;
                    }
                }
                shown = wanted.clone();
                next_change = Instant::now() + SHORTEST_CHANGE;
            }
        }
    }
}

async fn current(core: &Arc<App>) -> (Option<Status>, Vec<Model>) {
    let status = match core.call(Command::GetStatus).await {
        Ok(Reply::Status { status }) => Some(status),
        _ => None,
    };
    match core.call(Command::ListModels).await {
        Ok(Reply::Models { models }) => (status, models),
        _ => (status, Vec::new()),
    }
}

impl Lines {
    fn of(status: &Status, downloads: &[Download], models: &[Model]) -> Self {
        let (state, model) = match &status.engine {
            EngineState::Empty => ("No model is loaded".to_owned(), None),
            EngineState::Loading { model, .. } => {
                (format!("Loading · {}", called(model, models)), None)
            }
            EngineState::Ready { model } => {
                (format!("Ready · {}", called(model, models)), Some(model))
            }
            EngineState::Prefilling { model, processed_tokens, total_tokens } => {
                let percent = u64::from(*processed_tokens) * 100 / u64::from(*total_tokens).max(1);
                (format!("Reading · {percent} %"), Some(model))
            }
            EngineState::Generating { model, generation_tps, .. } => {
                (format!("Writing · {generation_tps:.0} tok/s"), Some(model))
            }
            EngineState::Failed { model, .. } if model.is_empty() => {
                ("Could not start the engine".to_owned(), None)
            }
            EngineState::Failed { model, .. } => {
                (format!("Could not load {}", called(model, models)), None)
            }
        };
        Self {
            state,
            model: model
                .map_or("No model".to_owned(), |model| format!("Model: {}", called(model, models))),
            download: download_line(downloads, models),
            models: model_lines(status, models),
        }
    }
}

/// The models that can be loaded, by what a person calls them.
fn model_lines(status: &Status, models: &[Model]) -> Vec<ModelLine> {
    let is_loadable =
        |model: &&Model| model.problem.is_none() && !model.is_being_checked && !model.is_set_aside;
    let loadable = models.iter().filter(is_loadable);
    loadable
        .map(|model| ModelLine {
            name: model.name.clone(),
            title: called(&model.name, models),
            is_loaded: is_current(status, &model.name),
        })
        .collect()
}

/// Whether the item of this id is that of the loaded model.
fn is_marked(models: &[ModelLine], id: &str) -> bool {
    let name = id.strip_prefix(MODEL_PREFIX);
    models.iter().any(|line| line.is_loaded && Some(line.name.as_str()) == name)
}

fn is_current(status: &Status, name: &str) -> bool {
    match &status.engine {
        EngineState::Ready { model }
        | EngineState::Prefilling { model, .. }
        | EngineState::Generating { model, .. } => model == name,
        EngineState::Empty | EngineState::Loading { .. } | EngineState::Failed { .. } => false,
    }
}

/// The running downloads: one by name, several by their number, with percent and rate.
fn download_line(downloads: &[Download], models: &[Model]) -> String {
    let running: Vec<&Download> =
        downloads.iter().filter(|download| download.state == DownloadState::Running).collect();
    let sum = |bytes: fn(&Download) -> u64| running.iter().map(|one| bytes(one)).sum::<u64>();
    let percent = sum(|one| one.bytes) * 100 / sum(|one| one.total_bytes).max(1);
    let rate: f64 = running.iter().filter_map(|one| one.bytes_per_second).sum();
    let rate = if rate > 0.0 { format!(" · {:.1} MB/s", rate / 1e6) } else { String::new() };
    match running.as_slice() {
        [] => NO_DOWNLOAD.to_owned(),
        [one] => format!("Downloading {} · {percent} %{rate}", called(&one.name, models)),
        several => format!("Downloading {} models · {percent} %{rate}", several.len()),
    }
}

/// What a person calls a model: its alias, else its title among those here; cut to a menu's width.
fn called(name: &str, models: &[Model]) -> String {
    let name = model_title(name, models);
    if name.chars().count() <= MAX_NAME_CHARS {
        return name;
    }
    let start: String = name.chars().take(MAX_NAME_CHARS - 1).collect();
    start + "…"
}

#[cfg(test)]
mod tests {
    use cairn_app::wire::ModelSource;

    use super::*;

    fn status(engine: EngineState) -> Status {
        Status {
            engine,
            model_fingerprint: None,
            models: Vec::new(),
            device: "cpu".to_owned(),
            process_bytes: 0,
            process_peak_bytes: 0,
            mlx_active_bytes: 0,
            mlx_peak_bytes: 0,
            mlx_cache_bytes: 0,
            cache_disk_bytes: 0,
            cache_ram_bytes: 0,
            wired_memory: None,
        }
    }

    #[track_caller]
    fn check(engine: EngineState, state: &str, model: &str) {
        let status = status(engine);
        let expected = Lines {
            state: state.to_owned(),
            model: model.to_owned(),
            download: NO_DOWNLOAD.to_owned(),
            models: Vec::new(),
        };
        assert_eq!(Lines::of(&status, &[], &[]), expected);
    }

    #[test]
    fn the_lines_show_the_engine_s_state() {
        let model = || "HuggingFaceTB/SmolLM2-135M-Instruct".to_owned();
        check(EngineState::Empty, "No model is loaded", "No model");
        check(
            EngineState::Loading { model: model(), bytes_read: 1, total_bytes: 2 },
            "Loading · SmolLM2 135M",
            "No model",
        );
        check(EngineState::Ready { model: model() }, "Ready · SmolLM2 135M", "Model: SmolLM2 135M");
        let reading = |processed_tokens, total_tokens| EngineState::Prefilling {
            model: model(),
            processed_tokens,
            total_tokens,
        };
        check(reading(0, 0), "Reading · 0 %", "Model: SmolLM2 135M");
        check(reading(512, 2048), "Reading · 25 %", "Model: SmolLM2 135M");
        check(reading(u32::MAX, u32::MAX), "Reading · 100 %", "Model: SmolLM2 135M");
        check(
            EngineState::Generating { model: model(), generation_tokens: 40, generation_tps: 16.7 },
            "Writing · 17 tok/s",
            "Model: SmolLM2 135M",
        );
        check(
            EngineState::Failed { model: model(), message: "no".to_owned() },
            "Could not load SmolLM2 135M",
            "No model",
        );
        check(
            EngineState::Failed { model: String::new(), message: "no".to_owned() },
            "Could not start the engine",
            "No model",
        );
    }

    #[test]
    fn the_models_that_can_be_loaded_are_listed_by_what_a_person_calls_them() {
        let model = |name: &str, alias: Option<&str>, is_being_checked| Model {
            name: name.to_owned(),
            alias: alias.map(str::to_owned),
            is_pinned: false,
            path: String::new(),
            model_type: "llama".to_owned(),
            bytes: 1,
            source: ModelSource::Imported,
            problem: None,
            facts: None,
            is_being_checked,
            is_proposed: false,
            is_set_aside: false,
            is_being_measured: false,
            can_delete: true,
        };
        let models =
            [model("o/tiny", None, false), model("o/b", Some("B"), false), model("c", None, true)];
        let status = status(EngineState::Ready { model: "o/b".to_owned() });
        let line = |name: &str, title: &str, is_loaded| ModelLine {
            name: name.to_owned(),
            title: title.to_owned(),
            is_loaded,
        };
        let expected = [line("o/tiny", "tiny", false), line("o/b", "B", true)];
        let lines = model_lines(&status, &models);
        assert_eq!(lines, expected);
        let marked = |id: &str| is_marked(&lines, id);
        assert_eq!(
            ["model.o/b", "model.o/tiny", "model.gone", "o/b"].map(marked),
            [true, false, false, false]
        );
    }

    #[test]
    fn the_download_line_has_percent_and_rate() {
        let download = |name: &str, state, bytes| Download {
            name: name.to_owned(),
            state,
            bytes,
            total_bytes: 200,
            bytes_per_second: (bytes > 0).then_some(2_500_000.0),
            seconds_left: None,
            files: Vec::new(),
            failure: None,
            page: None,
        };
        let one = download("o/tiny", DownloadState::Running, 50);
        let other = download("o/other", DownloadState::Running, 150);
        let paused = download("o/paused", DownloadState::Paused, 100);
        assert_eq!(download_line(&[], &[]), NO_DOWNLOAD);
        assert_eq!(download_line(std::slice::from_ref(&paused), &[]), NO_DOWNLOAD);
        assert_eq!(
            download_line(&[paused, one.clone()], &[]),
            "Downloading tiny · 25 % · 2.5 MB/s"
        );
        assert_eq!(download_line(&[one, other], &[]), "Downloading 2 models · 50 % · 5.0 MB/s");
        let unknown = download("o/new", DownloadState::Running, 0);
        assert_eq!(download_line(&[unknown], &[]), "Downloading new · 0 %");
    }

    #[test]
    fn names_are_shown_without_folders_and_cut_to_the_menu_width() {
        let long = "ä".repeat(50);
        check(
            EngineState::Ready { model: long.clone() },
            &format!("Ready · {}…", "ä".repeat(39)),
            &format!("Model: {}…", "ä".repeat(39)),
        );
        check(
            EngineState::Ready { model: "/models/tiny/".to_owned() },
            "Ready · tiny",
            "Model: tiny",
        );
    }
}
