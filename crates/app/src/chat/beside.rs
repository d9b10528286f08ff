//! Loads the model of an answer that is written beside another.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::chat::running::Running;
use crate::models::loading;
use crate::wire::Failure;

/// Loads a model beside the one of `other`, which writes; where both do not fit, after that has ended.
pub(crate) async fn load(
    app: &Arc<App>,
    name: &str,
    other: Option<Arc<Running>>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let loaded = loading::ensure_loaded_beside(app, name).await;
    let Some(other) = other.filter(|_| loaded.is_err()) else { return loaded.map(drop) };
    tokio::select! {
        // Nobody waits for the model any more, and the other one keeps its place.
        () = stop.cancelled() => loaded.map(drop),
        () = other.ended.cancelled() => {
            loading::ensure_loaded_beside(app, name).await.map(drop)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::chat::prompt::unsent_question;
    use crate::convert;
    use crate::models::loaded::loaded_name;
    use crate::wire::Role;
    use crate::{DataFolder, Options};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_model_that_does_not_fit_is_loaded_when_the_other_answer_has_ended() {
        let home = tempfile::tempdir().unwrap();
        let app = App::open(Options::new(DataFolder::new(home.path()))).await.unwrap();
        let row = cairn_store::Message {
            id: "answer".to_owned(),
            role: cairn_chat::Role::Assistant,
            status: cairn_store::MessageStatus::Streaming,
            ..unsent_question("chat", "")
        };
        let message = convert::message(row).unwrap();
        assert_eq!(message.role, Role::Assistant);
        let other = app.answers.begin(message, false);

        // It cannot be loaded now, for whatever reason; later it can.
        let loading = tokio::spawn({
            let (app, other) = (app.clone(), other.clone());
            async move { load(&app, "m", Some(other), CancellationToken::new()).await }
        });
        let stop = CancellationToken::new();
        let fails = load(&app, "m", None, stop.clone()).await;
        assert!(fails.is_err(), "without another answer it fails at once");
        stop.cancel();
        assert!(
            load(&app, "m", Some(other.clone()), stop).await.is_err(),
            "stopped it does not wait"
        );
        assert!(!loading.is_finished(), "it waits");
        let folder = home.path().join("models").join("m");
        cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &folder).unwrap();
        other.ended.cancel();
        loading.await.unwrap().unwrap();
        assert_eq!(loaded_name(&app).as_deref(), Some("m"));
        app.close().await;
    }
}
