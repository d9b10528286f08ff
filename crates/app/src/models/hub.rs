//! What the app asks the hub: searches, a model's card, and with what token.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use cairn_engine::{ModelMemory, default_memory_limit_bytes};
use cairn_formats::python_json;
use cairn_hub::{Commit, Hub, HubOptions, RepoFile, RepoId, Token, origin, plain_description};
use serde_json::Value;

use super::check_child::CheckedFacts;
use super::downloads::MAIN;
use super::hub_settings::{self, shown};
use super::token_store::{SavedToken, TokenStore};
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

/// The hub that is asked now, and the token that was saved.
///
/// A token goes to the hub that it belongs to and to no other: a saved one to the hub that it was
/// entered for, that of the environment to the environment's hub.
#[derive(Debug)]
pub(crate) struct HubAccount {
    /// None where no folder for models is known.
    environment: Option<HubOptions>,
    current: RwLock<Current>,
    tokens: TokenStore,
    /// Locked while the hub or the token is changed, here and in the queue of downloads.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone)]
struct Current {
    /// Or why none can be asked.
    hub: Result<Hub, Failure>,
    /// Of the token that is sent.
    token_place: Option<TokenPlace>,
    /// Whether or not it belongs to this hub.
    saved: Option<SavedToken>,
}

impl HubAccount {
    /// The hub of the settings, else of the environment, with the token that belongs to it.
    pub(crate) async fn load(
        environment: Option<HubOptions>,
        settings: &Settings,
        tokens: TokenStore,
    ) -> HubAccount {
        // With a token of the environment the keychain need not be asked, which may ask the person.
        let has_token = environment.as_ref().is_some_and(|options| options.token.is_some());
        let is_other_hub = !settings.hub_endpoint.is_empty();
        let saved = match has_token && !is_other_hub {
            true => None,
            false => {
                let tokens = tokens.clone();
                // A keychain may take its time.
                tokio::task::spawn_blocking(move || tokens.read()).await.ok().flatten()
            }
        };
        let current = RwLock::new(connect(environment.as_ref(), settings, saved));
        HubAccount { environment, current, tokens, changing: tokio::sync::Mutex::default() }
    }

    /// The hub as it is set up now.
    pub(crate) fn hub(&self) -> Result<Hub, Failure> {
        self.current().hub
    }

    /// Whether this is the hub that the environment names.
    pub(super) fn is_of_environment(&self, asked: &str) -> bool {
        let environment = self.environment.as_ref();
        environment.and_then(|found| origin(&found.endpoint)).as_deref() == Some(asked)
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, current: Current) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
    }

    fn access(&self) -> Result<HubAccess, Failure> {
        let Current { hub, token_place, saved } = self.current();
        let hub = hub?;
        let environment = self.environment.as_ref();
        let is_offline = environment.is_some_and(|options| options.is_offline);
        let is_sent = matches!(token_place, Some(TokenPlace::Keychain | TokenPlace::File));
        Ok(HubAccess {
            endpoint: hub.endpoint().trim_end_matches('/').to_owned(),
            folder: shown(hub.cache()),
            default_endpoint: environment.map_or_else(String::new, |found| found.endpoint.clone()),
            default_folder: environment.map_or_else(String::new, |found| shown(&found.cache)),
            token_place,
            other_token_hub: saved.filter(|_| !is_sent).map(|saved| saved.origin),
            is_offline,
        })
    }
}

/// The hub that the settings name, else the environment's, with the token that belongs to it.
fn connect(
    environment: Option<&HubOptions>,
    settings: &Settings,
    saved: Option<SavedToken>,
) -> Current {
    let Some(environment) = environment else {
        let why = "Models cannot be downloaded: the folder for them is not known. Set HF_HOME.";
        let why = Failure::new(FailureCode::Storage, why).of_kind(FailureKind::NoModelFolder);
        let hub = Err(why);
        return Current { hub, token_place: None, saved };
    };
    let hub = match Hub::new(hub_settings::options(environment, settings)) {
        Ok(hub) => hub,
        Err(error) => return Current { hub: Err(error.into()), token_place: None, saved },
    };
    let wanted = hub.origin();
    let is_environments = origin(&environment.endpoint).as_ref() == Some(&wanted);
    let from_environment = environment.token.clone().filter(|_| is_environments);
    let from_environment = from_environment.map(|token| (token, TokenPlace::Environment));
    let is_its = |saved: &&SavedToken| saved.origin == wanted;
    let from_saved = saved.as_ref().filter(is_its).map(|saved| (saved.token.clone(), saved.place));
    let (token, token_place) = from_environment.or(from_saved).unzip();
    Current { hub: Ok(hub.with_token(token)), token_place, saved }
}

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
    let current = connect(app.hub.environment.as_ref(), settings, saved);
    app.hub.put(current.clone());
    if let Ok(hub) = current.hub {
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
    let plan = hub.plan(&repo, &MAIN.parse()?).await?;
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
    let plan = hub.plan(&repo, &MAIN.parse()?).await?;
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
