//! Notices models that other programs put on this machine or take away, such as `cairn models import` and
//! mlx-lm, until the app closes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_hub::ModelFolder;

use super::list;
use super::names::found;
use crate::app::App;

/// The least interval between two looks at the folders.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// The most: a look also takes long while the machine is busy, and a model is not to wait minutes for that.
const MOST_INTERVAL: Duration = Duration::from_secs(15);
/// A rest is at least this many times as long as the look before it, up to [`MOST_INTERVAL`], because folders
/// may be slow or very large.
const LEAST_REST: u32 = 100;

pub(crate) async fn follow_folders(app: Arc<App>) {
    let mut seen = Seen { folders: found(&app).await, is_unsettled: false };
    let mut rest = LOOK_INTERVAL;
    while app.is_open_after(rest).await {
        let began = Instant::now();
        let folders = found(&app).await;
        rest = rest_after(began.elapsed());
        if seen.is_news(folders) {
            list::emit_if_changed(&app).await;
        }
    }
}

/// How long to wait after a look that took this long.
fn rest_after(look: Duration) -> Duration {
    look.saturating_mul(LEAST_REST).clamp(LOOK_INTERVAL, MOST_INTERVAL)
}

/// The folders as the last look found them.
struct Seen {
    folders: Vec<ModelFolder>,
    /// Files of a model have changed since the look before, and may still be changing.
    is_unsettled: bool,
}

impl Seen {
    /// Whether these folders are news: models have come or gone, or their files have changed and no longer
    /// do. A model that is being copied here is not listed again with each look.
    fn is_news(&mut self, folders: Vec<ModelFolder>) -> bool {
        let is_changed = folders != self.folders;
        let is_same_names = folders.iter().map(|folder| &folder.name).eq(self.names());
        let is_news = if is_changed { !is_same_names } else { self.is_unsettled };
        self.is_unsettled = is_changed;
        self.folders = folders;
        is_news
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.folders.iter().map(|folder| &folder.name)
    }
}

#[cfg(test)]
mod tests {
    use cairn_hub::ModelSource;

    use super::*;

    #[test]
    fn looks_again_within_seconds_however_long_a_look_takes() {
        for (look_ms, rest_ms) in [(1, 2_000), (50, 5_000), (1_800, 15_000), (60_000, 15_000)] {
            let rest = rest_after(Duration::from_millis(look_ms));
            assert_eq!(rest, Duration::from_millis(rest_ms), "after {look_ms} ms");
        }
    }

    #[test]
    fn tells_of_models_at_once_and_files_once_settled() {
        let model = |name: &str, bytes: u64| ModelFolder {
            name: name.to_owned(),
            path: name.into(),
            source: ModelSource::Imported,
            model_type: None,
            bytes,
            identity: None,
            problem: None,
        };
        let mut seen = Seen { folders: vec![model("a", 1)], is_unsettled: false };
        let mut check = |folders: &[ModelFolder], expected: bool| {
            assert_eq!(seen.is_news(folders.to_vec()), expected, "{folders:?}");
        };
        let a = model("a", 1);
        check(std::slice::from_ref(&a), false);
        check(&[a.clone(), model("b", 1)], true);
        // More of the model arrives.
        check(&[a.clone(), model("b", 2)], false);
        check(&[a.clone(), model("b", 3)], false);
        check(&[a.clone(), model("b", 3)], true);
        check(&[a.clone(), model("b", 3)], false);
        check(&[model("b", 3)], true);
    }
}
