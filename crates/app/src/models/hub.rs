//! What the app asks the hub: searches, a model's card, and with what token.

use std::path::Path;

use cairn_engine::{ModelMemory, default_memory_limit_bytes};
use cairn_formats::python_json;
use cairn_hub::{Commit, Hub, RepoFile, RepoId, Revision, Token, plain_description};
use serde_json::Value;

use super::check_child::CheckedFacts;
use super::hub_account::Current;
use super::token_store::SavedToken;
use crate::app::App;
use crate::convert;
use crate::settings::Settings;
use crate::wire::{
    Failure, FailureCode, FailureKind, FoundModel, HubAccess, HubFile, HubModel, ModelFacts,
    ModelProblem, ModelProblemKind, ModelProblemWhat, TokenPlace,
};

/// Models that a search returns.
const MAX_FOUND: usize = 40;
/// A description is shown as a few paragraphs.
const MAX_DESCRIPTION_CHARS: usize = 1200;
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Asks the hub that the settings name from now on, also for downloads.
pub(super) async fn follow_settings(app: &App, settings: &Settings) {
    let _changing = app.hub.changing.lock().await;
    let saved = match app.hub.current().saved {
        Some(saved) => Some(saved),
        None => {
            let tokens = app.hub.tokens.clone();
            app.blocking(move || tokens.read()).await.flatten()
        }
    };
    if let Ok(hub) = app.hub.follow(settings, saved) {
        app.downloads.use_hub(hub, &app.store).await;
    }
}

/// Which hub is asked, and with what token.
pub(crate) fn access(app: &App) -> Result<HubAccess, Failure> {
    app.hub.access()
}

/// Saves a token for the hub that is asked now, or removes the saved one, and uses it from now on.
pub(crate) async fn set_token(app: &App, text: &str) -> Result<HubAccess, Failure> {
    let _changing = app.hub.changing.lock().await;
    let Current { hub, token_place, .. } = app.hub.current();
    let hub = hub?;
    if token_place == Some(TokenPlace::Environment) {
        return Err(Failure::invalid(
            "The access token is set by the environment (HF_TOKEN, or Hugging Face's own file): change it there.",
        )
        .of_kind(FailureKind::TokenFromEnvironment));
    }
    let text = text.trim().to_owned();
    let token = if text.is_empty() { None } else { Some(Token::new(&text)?) };
    let change = if text.is_empty() { "removed" } else { "saved" };
    let (tokens, origin) = (app.hub.tokens.clone(), hub.origin());
    let its_origin = origin.clone();
    let changed = app.blocking(move || match text.as_str() {
        "" => tokens.remove().map(|()| None),
        text => tokens.save(text, &its_origin).map(Some),
    });
    let refused = |why: &str| {
        Failure::new(FailureCode::Storage, format!("The access token was not {change}: {why}."))
            .of_kind(FailureKind::TokenNotChanged { detail: convert::sentence(why) })
    };
    let token_place = match changed.await {
        Some(Ok(place)) => place,
        Some(Err(error)) => return Err(refused(&error.to_string())),
        None => return Err(refused("a fault in Cairn prevented it")),
    };
    let hub = hub.with_token(token.clone());
    app.downloads.use_hub(hub.clone(), &app.store).await;
    if token.is_some() {
        app.downloads.retry_refused();
    }
    let saved = token.zip(token_place);
    let saved = saved.map(|(token, place)| SavedToken { token, origin, place });
    app.hub.put(Current { hub: Ok(hub), token_place, saved });
    app.hub.access()
}

/// The models whose names contain the words, those for MLX first.
pub(crate) async fn search(app: &App, text: &str) -> Result<Vec<FoundModel>, Failure> {
    let found = app.hub.hub()?.for_a_person().search_models(text.trim(), MAX_FOUND).await?;
    let row = |model: cairn_hub::FoundModel| FoundModel {
        name: model.repo.to_string(),
        downloads: model.num_downloads,
        likes: model.num_likes,
        is_gated: model.is_gated,
        is_mlx: model.is_mlx,
        parameters: model.num_parameters,
        quantization_bits: model.quantization_bits,
        model_type: model.model_type,
        updated_at_ms: model.updated_at_ms,
    };
    Ok(found.into_iter().map(row).collect())
}

/// What the hub says about a model. Only names and small texts are fetched.
pub(crate) async fn card(app: &App, name: &str) -> Result<HubModel, Failure> {
    let (hub, repo): (Hub, RepoId) = (app.hub.hub()?.for_a_person(), name.parse()?);
    let plan = hub.plan(&repo, &Revision::default()).await?;
    let (config, readme) = tokio::join!(
        text(&hub, &repo, &plan.commit, "config.json"),
        text(&hub, &repo, &plan.commit, "README.md"),
    );
    let config: Option<Value> = config.and_then(|text| python_json(text.as_bytes()).ok());
    let (model_type, facts, problem) = match config {
        Some(config) => judge(&config, weight_bytes(&plan.files)),
        None => (None, None, None),
    };
    let file = |file: RepoFile| HubFile { path: file.path, bytes: file.bytes };
    Ok(HubModel {
        name: repo.to_string(),
        commit: plan.commit.to_string(),
        description: readme.and_then(|text| plain_description(&text, MAX_DESCRIPTION_CHARS)),
        licence: plan.licence,
        is_gated: plan.is_gated,
        page: hub.page_url(&repo),
        files: plan.files.into_iter().map(file).collect(),
        bytes: plan.bytes,
        missing_bytes: plan.bytes_missing,
        model_type,
        facts,
        problem,
    })
}

/// What a model takes, as its card says it; a row of a search has no more.
pub(crate) async fn facts(app: &App, name: &str) -> Result<Option<ModelFacts>, Failure> {
    let (hub, repo): (Hub, RepoId) = (app.hub.hub()?.for_a_person(), name.parse()?);
    let plan = hub.plan(&repo, &Revision::default()).await?;
    let config = text(&hub, &repo, &plan.commit, "config.json").await;
    let config: Option<Value> = config.and_then(|text| python_json(text.as_bytes()).ok());
    Ok(config.and_then(|config| judge(&config, weight_bytes(&plan.files)).1))
}

/// A card is of use without its texts, so what cannot be fetched is left out: those of a gated model
/// cannot before its terms are accepted.
async fn text(hub: &Hub, repo: &RepoId, commit: &Commit, path: &str) -> Option<String> {
    match hub.text_file(repo, commit, path, MAX_TEXT_BYTES).await {
        Ok(text) => text,
        Err(error) => {
            tracing::info!("the card of {repo} is shown without {path}: {error}");
            None
        }
    }
}

fn weight_bytes(files: &[RepoFile]) -> u64 {
    let is_weights =
        |file: &&RepoFile| Path::new(&file.path).extension() == Some("safetensors".as_ref());
    files.iter().filter(is_weights).map(|file| file.bytes).sum()
}

/// A model's architecture, what it takes, and why it could not be loaded, from its config.json.
fn judge(
    config: &Value,
    weight_bytes: u64,
) -> (Option<String>, Option<ModelFacts>, Option<ModelProblem>) {
    let broken = |what: Option<ModelProblemWhat>, detail: String| ModelProblem {
        kind: ModelProblemKind::Broken,
        what,
        detail,
    };
    let Some(model_type) = config.get("model_type").and_then(Value::as_str) else {
        let what = Some(ModelProblemWhat::NoModelType);
        return (None, None, Some(broken(what, "config.json has no model_type".to_owned())));
    };
    let (facts, problem) = match convert::unsupported_architecture(model_type) {
        Some(problem) => (None, Some(problem)),
        None => match ModelMemory::before_download(config, weight_bytes) {
            Ok(memory) => {
                let facts = CheckedFacts::of(&memory);
                (Some(facts.within(default_memory_limit_bytes())), None)
            }
            Err(error) => (None, Some(broken(None, error.to_string()))),
        },
    };
    (Some(model_type.to_owned()), facts, problem)
}
