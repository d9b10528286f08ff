//! Measures what rounding has cost a model that was imported from a GGUF file: in a process of its
//! own, one model at a time, while the engine computes nothing. Whoever asks a model something ends the
//! process, and it is started again later; what quitting has ended, at the next start.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_engine::{EngineState, EngineStatus, default_memory_limit_bytes};
use cairn_formats::gguf::PerplexityChange;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::child::{Exit, command, wait};
use super::due_measurements::DueMeasurement;
use super::measure_child::{ARGUMENTS, MEMORY_VARIABLE, RESERVE_VARIABLE};
use super::{checking, list};
use crate::app::App;
use crate::crashes::record::{Step, StepKind};

/// After so many processes that were ended, because somebody asked or quit, nothing is measured.
const MAX_TRIES: usize = 4;
/// The bytes that a process leaves free on the disk.
const RESERVE_BYTES: u64 = 4 << 30;

/// A model that was imported, and what it was made of.
pub(crate) struct Measured<S> {
    pub(crate) model: String,
    pub(crate) folder: PathBuf,
    pub(crate) file: PathBuf,
    /// Lives as long as the file is needed.
    pub(crate) source: S,
}

/// Measures a model that was imported now in the background.
pub(crate) async fn measure<S>(app: Arc<App>, measured: Measured<S>) {
    let Measured { model, folder, file, source } = measured;
    match app.blocking(move || DueMeasurement::new(model, folder, file)).await {
        Some(Ok(due)) => {
            app.measurements.due.put(&app.store, &due).await;
            measure_due(app, due).await;
        }
        Some(Err(error)) => tracing::warn!("nothing is measured: {error}"),
        // The fault is in the log.
        None => {}
    }
    drop(source);
}

/// What quitting has ended. Asked for before this run measures anything of its own, which would be in the
/// same list.
pub(crate) async fn left_over(app: &App) -> Vec<DueMeasurement> {
    app.measurements.due.all(&app.store).await.unwrap_or_else(|error| {
        tracing::warn!("what was to be measured is not known: {error}");
        Vec::new()
    })
}

/// Begins again with what quitting has ended, unless the model or its file is another one by now.
pub(crate) async fn resume(app: Arc<App>, left_over: Vec<DueMeasurement>) {
    for due in left_over {
        let looked_at = due.clone();
        let is_possible = app.blocking(move || looked_at.is_possible()).await == Some(true);
        if is_possible && due.tries < MAX_TRIES {
            app.spawn(measure_due(app.clone(), due));
        } else {
            app.measurements.due.remove(&app.store, &due.model).await;
        }
    }
}

/// Measures a model, and puts what came of it beside its files, where the list of models finds it. A
/// failure is no more than a line of the log.
async fn measure_due(app: Arc<App>, due: DueMeasurement) {
    let Some(program) = app.catalog.program().map(Path::to_owned) else { return };
    let (model, folder) = (due.model.clone(), due.folder.clone());
    let cancelled = app.closing.child_token();
    app.measurements.running().insert(model.clone(), cancelled.clone());
    list::emit(&app).await;
    let mut process = Process { program, due };
    let change = tokio::select! {
        () = cancelled.cancelled() => None,
        turn = app.measurements.turn.lock() => {
            let change = process.run_while_idle(&app, &cancelled).await;
            drop(turn);
            change
        }
    };
    if let Some(change) = change {
        checking::keep_perplexity(&app, folder, change).await;
    } else if app.closing.is_cancelled() {
        // It stays in the list of the database.
        return;
    }
    app.measurements.due.remove(&app.store, &model).await;
    app.measurements.running().remove(&model);
    list::emit(&app).await;
}

struct Process {
    program: PathBuf,
    due: DueMeasurement,
}

impl Process {
    /// What the process answers; none if it fails, or is never left alone.
    async fn run_while_idle(
        &mut self,
        app: &Arc<App>,
        cancelled: &CancellationToken,
    ) -> Option<PerplexityChange> {
        while self.due.tries < MAX_TRIES {
            tokio::select! {
                () = cancelled.cancelled() => return None,
                () = has_been_idle(app.engine.status(), app.measurements.quiet) => {}
            }
            // First: a process that takes the app with it has been tried too.
            self.due.tries += 1;
            app.measurements.due.put(&app.store, &self.due).await;
            let model = self.due.model.clone();
            let _step = app.crashes.begin(Step::new(StepKind::Measuring, model));
            let mut child = self
                .start(memory_left(&app.engine.status().borrow()))
                .inspect_err(|error| tracing::warn!("nothing is measured: {error}"))
                .ok()?;
            let mut status = app.engine.status();
            let ended = tokio::select! {
                biased;
                () = cancelled.cancelled() => None,
                _ = status.wait_for(is_busy) => None,
                exit = wait(&mut child) => Some(exit),
            };
            if let Some(exit) = ended {
                return exit.and_then(answer_of).map_err(|reason| self.log(&reason)).ok();
            }
            // The copy that it was making is nobody's once it is dead.
            let _ = child.kill().await;
            let folders = app.model_folders.clone();
            app.blocking(move || folders.remove_leftovers()).await;
        }
        self.log("it was never left alone");
        None
    }

    fn start(&self, memory_bytes: u64) -> std::io::Result<tokio::process::Child> {
        command(&self.program, &ARGUMENTS, &[&self.due.file, &self.due.folder])
            .env(MEMORY_VARIABLE, memory_bytes.to_string())
            .env(RESERVE_VARIABLE, RESERVE_BYTES.to_string())
            .spawn()
    }

    fn log(&self, reason: &str) {
        tracing::info!("what rounding costs {} is not known: {reason}", self.due.folder.display());
    }
}

fn answer_of(exit: Exit) -> Result<PerplexityChange, String> {
    if !exit.status.success() {
        let complaint = String::from_utf8_lossy(&exit.complaint);
        return Err(format!("its process ended with {}: {}", exit.status, complaint.trim()));
    }
    serde_json::from_slice(&exit.answer)
        .ok()
        .filter(PerplexityChange::is_valid)
        .ok_or_else(|| "its process gave no perplexities".to_owned())
}

/// What models may take beside those that are loaded.
fn memory_left(status: &EngineStatus) -> u64 {
    let taken: u64 = status.models.iter().map(|model| model.weight_bytes).sum();
    default_memory_limit_bytes().saturating_sub(taken)
}

fn is_busy(status: &EngineStatus) -> bool {
    match status.state {
        EngineState::Empty | EngineState::Ready { .. } | EngineState::Failed { .. } => false,
        EngineState::Loading { .. }
        | EngineState::Prefilling { .. }
        | EngineState::Generating { .. } => true,
    }
}

/// Returns when the engine has computed nothing for so long.
async fn has_been_idle(mut status: watch::Receiver<EngineStatus>, quiet: Duration) {
    loop {
        let ended = status.wait_for(|status| !is_busy(status)).await.is_err();
        let asked = tokio::time::timeout(quiet, status.wait_for(is_busy)).await;
        if ended || asked.is_err() {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_formats::gguf::RoundedWeights;

    use super::*;
    use crate::data_folder::DataFolder;
    use crate::options::Options;
    use crate::wire::{self, Command, Event, Reply};

    /// A wait after which the test fails.
    const SOON: Duration = Duration::from_secs(60);

    /// With this program, and without a wait for the engine.
    fn options(home: &Path, program: PathBuf) -> Options {
        Options {
            check_program: Some(program),
            measures_after: Duration::ZERO,
            ..Options::new(DataFolder::new(home))
        }
    }

    /// An app with an imported model of this name, which says what the program does.
    async fn with_model(name: &str) -> (tempfile::TempDir, Arc<App>, Measured<tempfile::TempPath>) {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("models").join(name);
        cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &folder).unwrap();
        let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
        let rounded = RoundedWeights { num_tensors: 3, relative_error: 0.01, perplexity: None };
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config[RoundedWeights::KEY] = serde_json::to_value(rounded).unwrap();
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();

        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/models/check_program.sh");
        let app = App::open(options(home.path(), program)).await.unwrap();
        let source = tempfile::NamedTempFile::new_in(home.path()).unwrap().into_temp_path();
        let (model, file) = (name.to_owned(), source.to_path_buf());
        (home, app, Measured { model, folder, file, source })
    }

    async fn listed(app: &Arc<App>) -> wire::Model {
        let Reply::Models { mut models } = app.call(Command::ListModels).await.unwrap() else {
            panic!("no list")
        };
        assert_eq!(models.len(), 1);
        models.remove(0)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_measured_stands_with_the_model_and_its_files_are_not_opened_again() {
        let (_home, app, measured) = with_model("usable").await;
        let (folder, source) = (measured.folder.clone(), measured.file.clone());
        checking::require_usable(&app, "usable", &folder).await.unwrap();
        let mut events = app.subscribe();
        tokio::time::timeout(SOON, measure(app.clone(), measured)).await.unwrap();
        assert!(!source.exists(), "nobody needs it any more");

        let mut seen = Vec::new();
        while let Ok(event) = events.try_recv() {
            if let Event::Models { models } = event {
                assert!(models.iter().all(|model| !model.is_being_checked));
                seen.extend(models.iter().map(|model| model.is_being_measured));
            }
        }
        assert_eq!(seen, [true, false]);
        let rounded = listed(&app).await.facts.unwrap().rounded_weights.unwrap();
        let expected = wire::PerplexityChange { before: 12.1, after: 12.4 };
        assert_eq!((rounded.num_tensors, rounded.perplexity), (3, Some(expected)));
        app.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_measurement_ends_when_a_person_or_the_app_ends_it() {
        let (_home, app, measured) = with_model("hangs").await;
        let folder = measured.folder.clone();
        let mut events = app.subscribe();
        let running = app.spawn(measure(app.clone(), measured));
        loop {
            let event = tokio::time::timeout(SOON, events.recv()).await.unwrap().unwrap();
            if matches!(event, Event::Models { models } if models[0].is_being_measured) {
                break;
            }
        }
        let name = "hangs".to_owned();
        app.call(Command::CancelModelMeasurement { name }).await.unwrap();
        tokio::time::timeout(SOON, running).await.unwrap().unwrap();
        assert!(!app.measurements.has("hangs"));
        assert!(!folder.join(PerplexityChange::FILE_NAME).exists());
        app.close().await;

        let (_home, app, measured) = with_model("hangs").await;
        let running = app.spawn(measure(app.clone(), measured));
        app.close().await;
        tokio::time::timeout(SOON, running).await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_process_that_fails_says_nothing_of_the_model() {
        for name in ["refuses", "garbage", "overflows"] {
            let (_home, app, measured) = with_model(name).await;
            let folder = measured.folder.clone();
            let ended = measure(app.clone(), measured);
            tokio::time::timeout(SOON, ended).await.unwrap();
            assert!(!folder.join(PerplexityChange::FILE_NAME).exists(), "{name}");
            app.close().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_answer_ends_the_process_and_it_is_started_again() {
        let (home, app, measured) = with_model("hangs").await;
        let (file, folder) = (measured.file.clone(), measured.folder.clone());
        let program = home.path().join("program.sh");
        // The first one hangs, and says who it is; those behind it answer.
        let script = r#"#!/bin/sh
            if [ -e "$4.began" ]; then echo '{"before":2,"after":3}'; exit; fi
            echo $$ > "$4.first"; mv "$4.first" "$4.began"; while :; do :; done
        "#;
        std::fs::write(&program, script).unwrap();
        let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, runs).unwrap();
        let mut began = file.clone().into_os_string();
        began.push(".began");
        let due = DueMeasurement::new("hangs".to_owned(), folder, file.clone()).unwrap();
        let mut process = Process { program, due };
        let cancelled = CancellationToken::new();
        let asked = async {
            let first = loop {
                match std::fs::read_to_string(&began) {
                    Ok(first) => break first,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            let is_alive = || {
                let asks = std::process::Command::new("kill").args(["-0", first.trim()]).output();
                asks.unwrap().status.success()
            };
            // A load may be over before anyone has looked.
            while is_alive() {
                app.engine.load("m", &measured.folder).await.unwrap();
                app.engine.unload().await.unwrap();
            }
        };
        let both = async { tokio::join!(process.run_while_idle(&app, &cancelled), asked).0 };
        let change = tokio::time::timeout(SOON, both).await.unwrap();
        assert_eq!(change, Some(PerplexityChange { before: 2.0, after: 3.0 }));
        app.close().await;
    }

    /// How to open an app with the model `hangs`, which is due, and the file that it was made of. The
    /// program for it notes beside the file that it was started, and does the rest.
    async fn due(rest: &str) -> (tempfile::TempDir, PathBuf, Options) {
        let (home, app, measured) = with_model("hangs").await;
        let program = home.path().join("program.sh");
        let script = format!("#!/bin/sh\necho started >> \"$4.starts\"\n{rest}\n");
        std::fs::write(&program, script).unwrap();
        let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, runs).unwrap();
        // A file of the person's, which stays.
        let file = home.path().join("model.gguf");
        std::fs::write(&file, "weights").unwrap();
        let due = DueMeasurement::new(measured.model, measured.folder, file.clone()).unwrap();
        app.measurements.due.put(&app.store, &due).await;
        app.close().await;
        let options = options(home.path(), program);
        (home, file, options)
    }

    fn num_starts(file: &Path) -> usize {
        let noted = std::fs::read_to_string(file.with_extension("gguf.starts"));
        noted.map_or(0, |noted| noted.lines().count())
    }

    async fn until(is_so: impl AsyncFn() -> bool) {
        let waiting = async {
            while !is_so().await {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, waiting).await.unwrap();
    }

    async fn is_nothing_due(app: &App) -> bool {
        app.measurements.due.all(&app.store).await.unwrap().is_empty()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_measurement_that_quitting_ended_is_begun_again_at_the_next_start() {
        let answers_the_second_time = r#"
            if [ $(wc -l < "$4.starts") -gt 1 ]; then echo '{"before":2,"after":3}'; exit; fi
            while :; do :; done
        "#;
        let (_home, file, options) = due(answers_the_second_time).await;
        let app = App::open(options.clone()).await.unwrap();
        until(async || num_starts(&file) == 1).await;
        app.close().await;

        let app = App::open(options).await.unwrap();
        until(async || is_nothing_due(&app).await).await;
        let model = listed(&app).await;
        let folder = Path::new(&model.path);
        let measured = RoundedWeights::read(folder).unwrap().perplexity;
        assert_eq!(measured, Some(PerplexityChange { before: 2.0, after: 3.0 }));
        app.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_quit_again_and_again_is_given_up() {
        let (_home, file, options) = due("while :; do :; done").await;
        for start in 1..=MAX_TRIES {
            let app = App::open(options.clone()).await.unwrap();
            until(async || num_starts(&file) == start).await;
            app.close().await;
        }
        let app = App::open(options).await.unwrap();
        until(async || is_nothing_due(&app).await).await;
        assert!(!listed(&app).await.is_being_measured);
        assert_eq!(num_starts(&file), MAX_TRIES);
        app.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_model_or_a_file_that_is_another_one_by_now_is_not_measured() {
        type Change = fn(&Path, &Path);
        let changes: [Change; 3] = [
            |file, _| std::fs::remove_file(file).unwrap(),
            |file, _| std::fs::write(file, "other weights").unwrap(),
            |_, model| std::fs::write(model.join("added.txt"), "another model").unwrap(),
        ];
        for change in changes {
            let (home, file, options) = due("echo '{\"before\":2,\"after\":3}'").await;
            change(&file, &home.path().join("models/hangs"));
            let app = App::open(options).await.unwrap();
            until(async || is_nothing_due(&app).await).await;
            assert_eq!(num_starts(&file), 0);
            app.close().await;
        }
    }

    #[tokio::test]
    async fn nothing_is_measured_while_the_engine_computes() {
        for busy in [
            EngineState::Loading { model: String::new(), progress: Default::default() },
            EngineState::Prefilling { model: String::new(), processed_tokens: 1, total_tokens: 2 },
            EngineState::Generating {
                model: String::new(),
                generation_tokens: 1,
                generation_tps: 9.0,
            },
        ] {
            let status = EngineStatus { state: busy, ..EngineStatus::default() };
            let (sender, status) = watch::channel(status);
            let mut idle = std::pin::pin!(has_been_idle(status, Duration::ZERO));
            tokio::select! {
                biased;
                () = &mut idle => panic!("it is busy"),
                () = std::future::ready(()) => {}
            }
            sender.send_modify(|status| status.state = EngineState::Empty);
            tokio::time::timeout(SOON, idle).await.unwrap();
        }
    }
}
