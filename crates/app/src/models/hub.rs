//! What the app asks the hub: searches, a model's card, and with what token.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use cairn_engine::{ModelMemory, default_memory_limit_bytes};
use cairn_hub::{Commit, Hub, HubOptions, RepoFile, RepoId, Token, plain_description};
use serde_json::Value;

use super::catalog;
use super::check_child::CheckedFacts;
use super::downloads::MAIN;
use super::token_store::TokenStore;
use crate::app::App;
use crate::wire::{
    Failure, FailureCode, FoundModel, HubAccess, HubFile, HubModel, ModelFacts, ModelProblem,
    ModelProblemKind, TokenPlace,
};

/// Models that a search returns.
const MAX_FOUND: usize = 40;
/// A description is shown as a few paragraphs.
const MAX_DESCRIPTION_CHARS: usize = 1200;
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The hub that is asked now, and where its token is kept.
#[derive(Debug)]
pub(crate) struct HubAccount {
    /// Without a token; none where no folder for models is known.
    options: Option<HubOptions>,
    current: RwLock<Current>,
    tokens: TokenStore,
}

#[derive(Debug, Clone)]
struct Current {
    /// Or why none can be asked.
    hub: Result<Hub, Failure>,
    token_place: Option<TokenPlace>,
}

impl HubAccount {
    /// Finds the token: the environment's, else the one that was saved.
    pub(crate) async fn load(options: Option<HubOptions>, tokens: TokenStore) -> HubAccount {
        let environment = options.as_ref().and_then(|options| options.token.clone());
        let found = match environment {
            Some(token) => Some((token, TokenPlace::Environment)),
            None => {
                let tokens = tokens.clone();
                // A keychain may take its time.
                tokio::task::spawn_blocking(move || tokens.read()).await.ok().flatten()
            }
        };
        let (token, token_place) = found.unzip();
        let current = Current { hub: connect(options.as_ref(), token), token_place };
        HubAccount { options, current: RwLock::new(current), tokens }
    }

    /// The hub as it is set up now.
    pub(crate) fn hub(&self) -> Result<Hub, Failure> {
        self.current().hub
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn access(&self) -> Result<HubAccess, Failure> {
        let Current { hub, token_place } = self.current();
        let is_offline = self.options.as_ref().is_some_and(|options| options.is_offline);
        let endpoint = hub?.endpoint().trim_end_matches('/').to_owned();
        Ok(HubAccess { endpoint, token_place, is_offline })
    }
}

fn connect(options: Option<&HubOptions>, token: Option<Token>) -> Result<Hub, Failure> {
    let Some(options) = options else {
        let why = "Models cannot be downloaded: the folder for them is not known. Set HF_HOME.";
        return Err(Failure::new(FailureCode::Storage, why));
    };
    Ok(Hub::new(HubOptions { token, ..options.clone() })?)
}

/// Which hub is asked, and with what token.
pub(crate) fn access(app: &App) -> Result<HubAccess, Failure> {
    app.hub.access()
}

/// Saves a token, or removes the saved one, and uses it from now on.
pub(crate) async fn set_token(app: &App, text: &str) -> Result<HubAccess, Failure> {
    let current = app.hub.current();
    if current.token_place == Some(TokenPlace::Environment) {
        return Err(Failure::invalid(
            "The access token is set by the environment (HF_TOKEN, or Hugging Face's own file): change it there.",
        ));
    }
    let text = text.trim().to_owned();
    let token = if text.is_empty() { None } else { Some(Token::new(&text)?) };
    let tokens = app.hub.tokens.clone();
    let saved = app.blocking(move || match text.as_str() {
        "" => tokens.remove().map(|()| None),
        text => tokens.save(text).map(Some),
    });
    let not_saved = |why: &str| {
        Failure::new(FailureCode::Storage, format!("The access token was not saved: {why}."))
    };
    let token_place = match saved.await {
        Some(Ok(place)) => place,
        Some(Err(error)) => return Err(not_saved(&error.to_string())),
        None => return Err(not_saved("a fault in Cairn prevented it")),
    };
    let hub = connect(app.hub.options.as_ref(), token);
    if let Ok(hub) = &hub {
        app.downloads.set_hub(hub.clone());
    }
    *app.hub.current.write().unwrap_or_else(PoisonError::into_inner) = Current { hub, token_place };
    app.hub.access()
}

/// The models whose names contain the words, those for MLX first.
pub(crate) async fn search(app: &App, text: &str) -> Result<Vec<FoundModel>, Failure> {
    let found = app.hub.hub()?.search_models(text.trim(), MAX_FOUND).await?;
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
    let (hub, repo): (Hub, RepoId) = (app.hub.hub()?, name.parse()?);
    let plan = hub.plan(&repo, &MAIN.parse()?).await?;
    let (config, readme) = tokio::join!(
        text(&hub, &repo, &plan.commit, "config.json"),
        text(&hub, &repo, &plan.commit, "README.md"),
    );
    let config: Option<Value> = config.and_then(|text| serde_json::from_str(&text).ok());
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
    let broken = |detail: String| ModelProblem { kind: ModelProblemKind::Broken, detail };
    let Some(model_type) = config.get("model_type").and_then(Value::as_str) else {
        return (None, None, Some(broken("config.json has no model_type".to_owned())));
    };
    let (facts, problem) = match catalog::unsupported(model_type) {
        Some(problem) => (None, Some(problem)),
        None => match ModelMemory::before_download(config, weight_bytes) {
            Ok(memory) => {
                let facts = CheckedFacts::of(&memory);
                (Some(facts.within(default_memory_limit_bytes())), None)
            }
            Err(error) => (None, Some(broken(error.to_string()))),
        },
    };
    (Some(model_type.to_owned()), facts, problem)
}
