//! Exports and imports of prompt-cache files: an import is previewed first, then confirmed by the
//! user.

use std::path::{Path, PathBuf};

use cairn_engine::{
    CacheHandle, Engine, EngineError, ExportRequest, Import, PromptFileInfo, PromptFileLayout,
    PromptKind,
};
use cairn_formats::check_disk_space;
use cairn_store::new_id;
use cairn_store::{NamedCacheKind, NamedCacheRow, Store, StoreError};

use crate::app::App;
use crate::cache::commands;
use crate::cache::excerpts::ends;
use crate::cache::owners::{named_owner, owner};
use crate::cache::prefix;
use crate::cache::previews::Previewed;
use crate::clock::now_ms;
use crate::convert;
use crate::crashes::record::{Step, StepKind};
use crate::data_folder::DataFolder;
use crate::models::loaded::loaded_name;
use crate::names::checked_name;
use crate::wire::{
    CacheFileLayout, CacheSource, Failure, FailureCode, FailureKind, ImportPreview, Reply,
};

impl App {
    /// Describes a prompt-cache file and whether it can be imported, for the user to decide.
    pub async fn preview_import(&self, file: PathBuf) -> ImportPreview {
        self.preview(Previewed::of(file)).await
    }

    pub(crate) async fn preview(&self, previewed: Previewed) -> ImportPreview {
        let preview = preview(&self.engine, &previewed.file, &previewed.file_name).await;
        // Last, because dropping `previewed` removes Cairn's copy: also if the caller goes away before
        // this line.
        self.imports.begin(preview.token.clone(), previewed);
        preview
    }

    /// Writes the saved context of a conversation, or a starting point, to a file that mlx-lm reads
    /// too.
    pub async fn export_cache(
        &self,
        source: &CacheSource,
        layout: CacheFileLayout,
        file: &Path,
    ) -> Result<(), Failure> {
        let handle = commands::cache_handle(self)?;
        let layout = convert::file_layout(layout);
        let request = export_request(&self.store, handle, source, layout, file).await?;
        self.engine.export_prompt(request).await?;
        Ok(())
    }
}

/// The request that writes a conversation or a starting point to a file.
pub(crate) async fn export_request(
    store: &Store,
    handle: &CacheHandle,
    source: &CacheSource,
    layout: PromptFileLayout,
    file: &Path,
) -> Result<ExportRequest, Failure> {
    let owner = owner(source);
    let (kind, title) = match source {
        CacheSource::Conversation { id } => {
            let row = store.listed_conversation(id).await?;
            (prefix::ending(row.prefix.as_ref(), &handle.path(&owner)), row.title)
        }
        CacheSource::Named { id } => {
            let row = store.listed_named_cache(id).await?;
            (row.kind, row.name)
        }
    };
    let saved_bytes = handle.ref_usage(&owner).map_or(0, |ref_usage| ref_usage.num_bytes);
    check_disk_space(file.parent().unwrap_or(file), saved_bytes)?;
    let made_by = format!("Cairn {}", env!("CARGO_PKG_VERSION"));
    Ok(ExportRequest {
        owner,
        file: file.to_owned(),
        layout,
        kind: convert::prompt_kind(kind),
        title,
        made_by,
        created_at_ms: now_ms(),
    })
}

/// Describes a file, as far as the loaded model can check it, under a new token.
pub(crate) async fn preview(engine: &Engine, file: &Path, file_name: &str) -> ImportPreview {
    let mut preview = ImportPreview {
        token: new_id().to_string(),
        file_name: file_name.to_owned(),
        suggested_name: file_name.strip_suffix(".safetensors").unwrap_or(file_name).to_owned(),
        title: None,
        model: String::new(),
        kind: PromptKind::Prompt.as_str().to_owned(),
        tokens: 0,
        bytes: std::fs::metadata(file).map_or(0, |metadata| metadata.len()),
        start_text: None,
        end_text: None,
        made_by: None,
        created_at_ms: None,
        problem: None,
        warnings: Vec::new(),
        can_check: false,
    };
    match engine.inspect_prompt_file(file).await {
        Ok(info) => describe(engine, &mut preview, info).await,
        Err(EngineError::NoModel) => {
            let reason = "Load the model that it was made with first: without it the file cannot be checked.";
            preview.problem = Some(reason.to_owned());
        }
        Err(error) => preview.problem = Some(about(&error, file, file_name)),
    }
    preview
}

async fn describe(engine: &Engine, preview: &mut ImportPreview, info: PromptFileInfo) {
    if let Some(ids) = &info.token_ids {
        let (start, end) = ends(engine, info.namespace.model.as_str(), ids).await;
        (preview.start_text, preview.end_text) = (Some(start), Some(end));
    } else {
        preview.warnings.push("It does not name its tokens, so its text cannot be shown and only its shapes were checked.".to_owned());
    }
    if !info.is_model_proven {
        preview.warnings.push("It does not name the version of the model that made it.".to_owned());
    }
    if let Some(title) = &info.title {
        preview.suggested_name.clone_from(title);
    }
    preview.title = info.title;
    preview.model = info.model;
    preview.kind = info.kind.as_str().to_owned();
    preview.tokens = convert::tokens(info.num_tokens);
    preview.made_by = info.made_by;
    preview.created_at_ms = info.created_at_ms;
    preview.can_check = info.can_check;
}

/// Imports a previewed file under a name.
pub(crate) async fn confirm(
    app: &App,
    token: &str,
    name: &str,
    check: bool,
) -> Result<Reply, Failure> {
    let name = checked_name(name)?.to_owned();
    let previewed = app.imports.find(token);
    let gone = || {
        let why = "This import was cancelled: choose the file again.";
        Failure::new(FailureCode::NotFound, why).of_kind(FailureKind::ImportCancelled)
    };
    let previewed = previewed.ok_or_else(gone)?;
    refuse_name_in_use(&app.store, &name).await?;
    check_room(&app.data_folder, &previewed.file)?;
    let _naming = app.naming.lock().await;
    let id = new_id().to_string();
    let owner = named_owner(&id);
    let model = loaded_name(app);
    let step = app.crashes.begin(Step::new(StepKind::ImportingContext, model));
    let imported = app
        .engine
        .import_prompt_file(&previewed.file, Import { owner: owner.clone(), check })
        .await;
    drop(step);
    let info = imported
        .map_err(|error| Failure::invalid(about(&error, &previewed.file, &previewed.file_name)))?;
    let row = named_row(&app.engine, info, &id, name, &previewed.file_name).await;
    if let Err(error) = app.store.create_named_cache(&row).await {
        commands::cache_handle(app)?.release(&owner);
        return Err(error.into());
    }
    app.imports.end(token);
    commands::emit_new_named_cache(app, &id).await
}

/// Fails if the disk of the saved context has no room for what a file holds.
pub(crate) fn check_room(data_folder: &DataFolder, file: &Path) -> Result<(), Failure> {
    let num_bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    Ok(check_disk_space(&data_folder.prompt_cache(), num_bytes)?)
}

pub(crate) async fn refuse_name_in_use(store: &Store, name: &str) -> Result<(), Failure> {
    match store.named_caches().await?.iter().any(|named| named.row.name == name) {
        true => Err(StoreError::NameInUse { name: name.to_owned() }.into()),
        false => Ok(()),
    }
}

/// The row of a starting point that was imported for the loaded model.
pub(crate) async fn named_row(
    engine: &Engine,
    info: PromptFileInfo,
    id: &str,
    name: String,
    file_name: &str,
) -> NamedCacheRow {
    let (start_text, end_text) = match &info.token_ids {
        Some(ids) => ends(engine, info.namespace.model.as_str(), ids).await,
        None => Default::default(),
    };
    let loaded_model = engine.status().borrow().state.loaded_model().map(str::to_owned);
    NamedCacheRow {
        id: id.to_owned(),
        name,
        // The model's name on this machine, where it is known: the file's name for it may be a path
        // on another machine.
        model: loaded_model.unwrap_or(info.model),
        namespace: info.namespace,
        kind: match info.kind {
            PromptKind::Prompt => NamedCacheKind::Prompt,
            PromptKind::Conversation => NamedCacheKind::Conversation,
        },
        num_tokens: info.num_tokens as i64,
        token_ids: info.token_ids,
        title: info.title.unwrap_or_default(),
        start_text,
        end_text,
        imported_from: Some(file_name.to_owned()),
        created_at_ms: now_ms(),
        last_used_at_ms: now_ms(),
        deleted_at_ms: None,
    }
}

/// Discards a preview.
pub(crate) fn cancel(app: &App, token: &str) -> Result<Reply, Failure> {
    app.imports.end(token);
    Ok(Reply::Done)
}

/// The text of an error about a file, with the file's name instead of its path.
pub(crate) fn about(error: &EngineError, file: &Path, file_name: &str) -> String {
    let text = error.to_string().replace(&file.display().to_string(), file_name);
    // Errors quote text from files.
    let text = text.replace(char::is_control, " ");
    // The first letter of a file name is not changed to a capital.
    if text.starts_with(file_name) { format!("{text}.") } else { convert::sentence(text) }
}
