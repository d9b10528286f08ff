//! A notification of the system when a download ends or fails while the window is not in front.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{Download, DownloadState, Event};
use tauri::AppHandle;
use tauri_plugin_notification::NotificationExt;
use tokio::sync::broadcast::error::RecvError;

use crate::window;

/// What a notification says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    title: &'static str,
    body: String,
}

/// Tells of downloads until the app closes.
pub fn follow(app: &AppHandle, core: &Arc<App>) {
    let (app, mut events) = (app.clone(), core.subscribe());
    tauri::async_runtime::spawn(async move {
        let mut downloads = Downloads::default();
        loop {
            match events.recv().await {
                Ok(Event::Downloads { downloads: list }) => {
                    let ended = downloads.ended(&list);
                    // Who looks at the window sees it there.
                    if !window::is_in_front(&app) {
                        ended.into_iter().for_each(|text| show(&app, text));
                    }
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
}

/// A desktop without a service for notifications shows none, which is no fault.
fn show(app: &AppHandle, Text { title, body }: Text) {
    if let Err(error) = app.notification().builder().title(title).body(body).show() {
        tracing::debug!("a notification is not shown: {error}");
    }
}

/// The state of each download when it was last heard of.
#[derive(Debug, Default)]
struct Downloads(HashMap<String, DownloadState>);

impl Downloads {
    /// What there is to say about those that have ended or failed since.
    fn ended(&mut self, list: &[Download]) -> Vec<Text> {
        let is_over = |state| matches!(state, DownloadState::Done | DownloadState::Failed);
        let is_new = |download: &&Download| {
            is_over(download.state) && self.0.get(&download.name) != Some(&download.state)
        };
        let texts = list.iter().filter(is_new).map(text).collect();
        self.0 = list.iter().map(|download| (download.name.clone(), download.state)).collect();
        texts
    }
}

fn text(download: &Download) -> Text {
    let name = download.name.rsplit('/').next().unwrap_or(&download.name);
    match &download.failure {
        Some(failure) => {
            Text { title: "Download failed", body: format!("{name}: {}", failure.message) }
        }
        None => {
            Text { title: "Download finished", body: format!("{name} is on this computer now.") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_app::wire::{Failure, FailureCode};

    fn download(name: &str, state: DownloadState) -> Download {
        let message = "The disk is full.".to_owned();
        let failure = Failure::new(FailureCode::NoSpace, message);
        Download {
            name: name.to_owned(),
            state,
            bytes: 0,
            total_bytes: 1,
            bytes_per_second: None,
            seconds_left: None,
            files: Vec::new(),
            failure: (state == DownloadState::Failed).then_some(failure),
            page: None,
        }
    }

    #[test]
    fn each_end_is_told_once_and_a_second_failure_again() {
        let mut downloads = Downloads::default();
        let mut check = |states: &[(&str, DownloadState)], expected: &[&str]| {
            let list: Vec<Download> =
                states.iter().map(|(name, state)| download(name, *state)).collect();
            let told = downloads.ended(&list);
            let bodies: Vec<&str> = told.iter().map(|text| text.body.as_str()).collect();
            assert_eq!(bodies, expected, "{states:?}");
        };
        use DownloadState::{Done, Failed, Offline, Paused, Running};
        check(&[("o/a", Running), ("o/b", Running)], &[]);
        check(&[("o/a", Done), ("o/b", Offline)], &["a is on this computer now."]);
        check(&[("o/a", Done), ("o/b", Failed)], &["b: The disk is full."]);
        check(&[("o/a", Done), ("o/b", Failed)], &[]);
        check(&[("o/a", Done), ("o/b", Running)], &[]);
        check(&[("o/b", Failed)], &["b: The disk is full."]);
        check(&[("o/b", Paused)], &[]);
        check(&[], &[]);
        check(&[("o/quick", Done)], &["quick is on this computer now."]);
    }
}
