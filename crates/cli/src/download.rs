//! `cairn models download`, and the download of a model that a command names and this machine
//! lacks.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_hub::{
    DownloadPlan, DownloadProgress, DownloadedModel, FileState, Hub, HubError, HubOptions,
    ModelProblemKind, Rate, RepoId, Revision,
};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::signal::ctrl_c;
use tokio::sync::watch;

use crate::arguments::Download;
use crate::model_folders::{find_model, model_folders};
use crate::output::{self, size};

/// Whether a command may ask questions on the terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Questions {
    Allowed,
    /// A script reads the output.
    Forbidden,
}

impl Questions {
    pub fn unless(json: bool) -> Questions {
        if json { Questions::Forbidden } else { Questions::Allowed }
    }
}

pub async fn run(arguments: Download) -> Result<()> {
    let cannot = || format!("cannot download {}", arguments.repo);
    let hub = hub()?;
    let plan = hub.plan(&arguments.repo, &arguments.revision).await.with_context(cannot)?;
    let model = fetch(&hub, &plan).await.with_context(cannot)?;
    if arguments.json {
        return output::line(json!({
            "name": model.repo.as_str(),
            "path": model.folder,
            "revision": model.commit.as_str(),
            "bytes": model.bytes,
            "files": model.num_files,
        }));
    }
    output::line(model.folder.display())
}

/// The hub that the environment names.
pub fn hub() -> Result<Hub> {
    Ok(Hub::new(HubOptions::from_lookup(std::env::var_os)?)?)
}

/// The folder of a model given on the command line. One that is not on this machine, or not all of
/// it, is downloaded after asking, or without if `yes`.
pub async fn find_or_download(name: &str, yes: bool, questions: Questions) -> Result<PathBuf> {
    let error = match model_folders()?.resolve(name) {
        Ok(folder) => return Ok(folder),
        Err(error) => error,
    };
    let Some(repo) = repo_to_download(name, &error)? else { return Err(error.into()) };
    let may_ask = questions == Questions::Allowed
        && std::io::stdin().is_terminal()
        && std::io::stderr().is_terminal();
    if !yes && !may_ask {
        bail!("{error}; with --yes it is downloaded");
    }
    let cannot = || format!("cannot download {name}");
    let hub = hub()?;
    let plan = hub.plan(&repo, &Revision::default()).await.with_context(cannot)?;
    if !yes && !output::confirm(&question(&plan, &hub))? {
        bail!("{error}");
    }
    fetch(&hub, &plan).await.with_context(cannot)?;
    find_model(name)
}

/// The repository to ask for a model that cannot be loaded; none for a path, for an imported model,
/// which no hub completes, and for one that only cannot be opened now.
fn repo_to_download(name: &str, error: &HubError) -> Result<Option<RepoId>> {
    let is_incomplete = match error {
        HubError::NotFound { .. } => true,
        HubError::Unusable { problem, .. } if problem.kind() == ModelProblemKind::Unreadable => {
            false
        }
        HubError::Unusable { path, .. } => {
            let folders = model_folders()?;
            folders.hub_cache().is_some_and(|cache| path.starts_with(cache))
        }
        _ => false,
    };
    let has_owner = name.split('/').count() == 2;
    let is_path = std::path::Path::new(name).exists();
    Ok(name.parse().ok().filter(|_| is_incomplete && has_owner && !is_path))
}

fn question(plan: &DownloadPlan, hub: &Hub) -> String {
    let licence = plan.licence.as_ref().map(|name| format!(", licence {name}")).unwrap_or_default();
    let from = hub.endpoint().trim_end_matches('/');
    format!("Download {} ({}{licence}) from {from}?", plan.repo, size(plan.bytes_missing))
}

/// Downloads what is missing, with a bar on a terminal. Ctrl-C ends it and keeps what has come.
pub async fn fetch(hub: &Hub, plan: &DownloadPlan) -> Result<DownloadedModel> {
    let (progress, watched) = watch::channel(DownloadProgress::default());
    let bar = output::bar(plan.bytes, "{wide_bar} {decimal_bytes}/{decimal_total_bytes}  {msg}");
    let model = tokio::select! {
        model = hub.download(plan, &progress) => model,
        () = show(&bar, watched.clone()) => bail!("the download has no progress"),
        pressed = ctrl_c() => {
            pressed.context("cannot listen for Ctrl-C")?;
            bar.finish_and_clear();
            let kept = size(watched.borrow().bytes());
            bail!("stopped: {kept} of {} are kept, and the same command continues", size(plan.bytes));
        }
    };
    bar.finish_and_clear();
    Ok(model?)
}

/// How often the bar is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Draws until it is dropped.
async fn show(bar: &ProgressBar, watched: watch::Receiver<DownloadProgress>) {
    let mut rate = Rate::default();
    loop {
        tokio::time::sleep(DRAW_INTERVAL).await;
        let progress = watched.borrow().clone();
        rate.add(Instant::now(), progress.bytes_fetched);
        bar.set_position(progress.bytes());
        bar.set_message(message(&progress, rate.bytes_per_second()));
    }
}

/// Rate and time left, or why nothing comes.
fn message(progress: &DownloadProgress, bytes_per_second: Option<f64>) -> String {
    let is_any = |state| progress.files.iter().any(|file| file.state == state);
    if !is_any(FileState::Fetching) {
        let states = [
            (FileState::Waiting, "waiting to try again"),
            (FileState::Locked, "another program downloads it"),
            (FileState::Checking, "checking what is there"),
        ];
        let state = states.into_iter().find(|(state, _)| is_any(*state));
        return state.map_or("", |(_, text)| text).to_owned();
    }
    let Some(rate) = bytes_per_second.filter(|rate| *rate >= 1.0) else { return String::new() };
    let left = (progress.total() - progress.bytes()) as f64 / rate;
    format!("{}/s  {} left", size(rate as u64), time(left))
}

fn time(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use cairn_hub::ModelProblem;

    use super::*;

    #[test]
    fn a_model_that_only_cannot_be_opened_is_not_downloaded_again() {
        let folders = model_folders().expect("the model folders");
        let path = folders.hub_cache().expect("a cache").join("models--owner--name");
        let asks_for = |problem| {
            let error = HubError::Unusable { path: path.clone(), problem };
            repo_to_download("owner/name", &error).expect("an answer")
        };
        assert!(asks_for(ModelProblem::NoWeights).is_some());
        let reason = "Permission denied".to_owned();
        assert!(asks_for(ModelProblem::FolderUnreadable { reason }).is_none());
    }

    #[test]
    fn times_are_short() {
        assert_eq!([0.9, 59.0, 61.0, 3661.0].map(time), ["0 s", "59 s", "1:01 min", "1:01 h"]);
    }
}
