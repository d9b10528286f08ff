//! The saved prompt caches of a data folder without the app: for programs that list and change them,
//! also while an app has the folder open.
//!
//! Each call reads the rows again, and its engine lives as long as the call. An app that has the
//! folder open adopts the changes when it notices that the database has changed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use cairn_engine::{
    CacheHandle, CacheOptions, Engine, EngineOptions, Import, ModelOptions, PromptFileLayout,
    Repaired,
};
use cairn_prompt_cache::{CacheChange, CacheRef, ChunkKey, ChunkRecord, Owner, RefName};
use cairn_store::new_id;
use cairn_store::{ListedNamedCache, Store};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::cache::owners::{is_of_key, key_of, named_owner, owner, unnamed};
use crate::cache::previews::file_name;
use crate::cache::{imports, rows};
use crate::clock::now_ms;
use crate::convert::{self, tokens};
use crate::data_folder::DataFolder;
use crate::error::OpenError;
use crate::names::checked_name;
use crate::platform;
use crate::settings::AppSettings;
use crate::wire::{CacheKind, CacheSource, Failure, FailureCode, ImportPreview};

/// The prompt caches of a data folder that this process need not own.
#[derive(Debug)]
pub struct OfflineCaches {
    data_folder: DataFolder,
    store: Store,
}

/// Something in the prompt cache, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedItem {
    /// A starting point, or the saved context of a conversation.
    Source(CacheSource),
    /// What is saved of the prompts that a program has sent over the API.
    ApiKey {
        /// The id of the program's key.
        id: String,
    },
    /// A chunk, by its key.
    Chunk {
        /// The key.
        key: String,
    },
}

/// The saved context of a conversation or of a program, or a starting point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedEntry {
    /// What it is; no chunk.
    pub item: CachedItem,
    /// The name of a starting point or of a key, or the conversation's title, which may be empty.
    pub title: String,
    /// The name of the model that read it, or the names of several.
    pub model: String,
    /// How many tokens are saved.
    pub tokens: u32,
    /// The bytes of their files, shared ones included.
    pub bytes: u64,
    /// Whether it is pinned, so that it is never evicted.
    pub is_pinned: bool,
    /// When it was last used, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
    /// The file it was imported from.
    pub imported_from: Option<String>,
    /// The beginning and the end of its text, where they are known.
    pub ends: Option<(String, String)>,
    /// The reason why a part was lost, if any.
    pub loss: Option<String>,
}

impl CachedEntry {
    /// Its id.
    pub fn id(&self) -> &str {
        match &self.item {
            CachedItem::Source(CacheSource::Conversation { id } | CacheSource::Named { id })
            | CachedItem::ApiKey { id } => id,
            CachedItem::Chunk { key } => key,
        }
    }
}

/// A chunk: one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkSummary {
    /// Its key.
    pub key: String,
    /// Position of its first token.
    pub start: u32,
    /// How many tokens it has.
    pub tokens: u32,
    /// The role of the message that its tokens belong to.
    pub kind: CacheKind,
    /// Length of its file.
    pub bytes: u64,
    /// How often a prompt continued from it.
    pub hits: u64,
}

/// A previewed file, with the model that made it loaded.
#[derive(Debug)]
pub struct OfflineImport<'a> {
    caches: &'a OfflineCaches,
    session: EngineSession,
    file: PathBuf,
    /// The description of the file.
    pub preview: ImportPreview,
}

/// An engine that works on the rows, and its events.
#[derive(Debug)]
struct EngineSession {
    engine: Engine,
    handle: CacheHandle,
    events: UnboundedReceiver<CacheChange>,
}

/// The rows of the prompt cache.
struct Rows {
    chunks: HashMap<ChunkKey, ChunkRecord>,
    cache_refs: HashMap<RefName, CacheRef>,
}

impl OfflineCaches {
    /// Opens the database of a data folder, and creates what is missing. Takes no lock: other
    /// programs may have the folder open.
    pub async fn open(data_folder: DataFolder) -> Result<Self, OpenError> {
        data_folder.create()?;
        let store = Store::open(&data_folder.database()).await?;
        Ok(OfflineCaches { data_folder, store })
    }

    /// Closes the database.
    pub async fn close(self) {
        if let Err(error) = self.store.close().await {
            tracing::warn!("{error}");
        }
    }

    /// Starting points, and conversations and programs with saved context; the last used first.
    pub async fn list(&self) -> Result<Vec<CachedEntry>, Failure> {
        let rows = self.rows().await?;
        let mut entries = Vec::new();
        for ListedNamedCache { row, has_token_ids, .. } in self.store.named_caches().await? {
            let ends = has_token_ids.then_some((row.start_text, row.end_text));
            let entry = CachedEntry {
                title: row.name,
                model: row.model,
                last_used_at_ms: row.last_used_at_ms,
                imported_from: row.imported_from,
                ends,
                ..rows.entry(CacheSource::Named { id: row.id })
            };
            entries.push(entry);
        }
        for row in self.store.conversations().await? {
            let entry = rows.entry(CacheSource::Conversation { id: row.id });
            if entry.tokens > 0 {
                entries.push(CachedEntry { title: row.title, ..entry });
            }
        }
        let names = self.key_names().await?;
        let of_key = |id: &str| {
            let title = names.get(id).cloned().unwrap_or_else(|| unnamed(id).to_owned());
            CachedEntry { title, ..rows.key_entry(id) }
        };
        entries.extend(rows.keys().into_iter().map(of_key).filter(|entry| entry.tokens > 0));
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.last_used_at_ms));
        Ok(entries)
    }

    /// The bytes of all chunk files.
    pub async fn total_bytes(&self) -> Result<u64, Failure> {
        Ok(u64::try_from(self.store.total_chunk_bytes().await?).unwrap_or(0))
    }

    /// Finds an item by a name or an id of [`OfflineCaches::list`], or by the key of a chunk.
    pub async fn find(&self, word: &str) -> Result<CachedItem, Failure> {
        let named = self.store.named_caches().await?;
        let by_id = named.iter().find(|named| named.row.id == word);
        if let Some(named) = by_id.or_else(|| named.iter().find(|named| named.row.name == word)) {
            return Ok(CachedItem::Source(CacheSource::Named { id: named.row.id.clone() }));
        }
        if self.store.conversation_title(word).await?.is_some() {
            return Ok(CachedItem::Source(CacheSource::Conversation { id: word.to_owned() }));
        }
        let rows = self.rows().await?;
        let names = self.key_names().await?;
        let keys = rows.keys();
        let is_named = |id: &&&str| names.get(**id).is_some_and(|name| name == word);
        if let Some(id) = keys.get(word).or_else(|| keys.iter().find(is_named)) {
            return Ok(CachedItem::ApiKey { id: (*id).to_owned() });
        }
        if let Ok(key) = word.parse()
            && rows.chunks.contains_key(&key)
        {
            return Ok(CachedItem::Chunk { key: word.to_owned() });
        }
        let why = format!(
            "“{word}” is neither the name of a prompt cache or of a program nor the id of one, of a \
             conversation or of a chunk."
        );
        Err(Failure::new(FailureCode::NotFound, why))
    }

    /// The names of the keys of programs, by their ids.
    async fn key_names(&self) -> Result<HashMap<String, String>, Failure> {
        let keys = self.store.api_keys().await?.into_iter();
        Ok(keys.map(|key| (key.id, key.name)).collect())
    }

    /// The chunks of an item, from the root on.
    pub async fn chunks(&self, item: &CachedItem) -> Result<Vec<ChunkSummary>, Failure> {
        let rows = self.rows().await?;
        let path = |key: Option<ChunkKey>| key.map_or(Vec::new(), |key| rows.path(&key));
        let records = match item {
            CachedItem::Source(source) => {
                path(rows.ref_of(owner(source)).and_then(|cache_ref| cache_ref.target))
            }
            CachedItem::ApiKey { id } => rows.of_key(id),
            CachedItem::Chunk { key } => path(key.parse().ok()),
        };
        let chunk = |record: &ChunkRecord| ChunkSummary {
            key: record.key.to_string(),
            start: tokens(record.start),
            tokens: tokens(record.num_tokens()),
            kind: convert::cache_kind(record.kind),
            bytes: record.num_file_bytes(),
            hits: record.hits,
        };
        Ok(records.into_iter().map(chunk).collect())
    }

    /// Writes an item to a file that mlx-lm reads too. Needs no model.
    pub async fn export(
        &self,
        source: &CacheSource,
        file: &Path,
        layout: PromptFileLayout,
    ) -> Result<(), Failure> {
        let session = self.session().await?;
        let request =
            imports::export_request(&self.store, &session.handle, source, layout, file).await;
        let exported = match request {
            Ok(request) => {
                session.engine.export_prompt(request).await.map(drop).map_err(Failure::from)
            }
            Err(failure) => Err(failure),
        };
        session.engine.shutdown().await;
        exported
    }

    /// Removes items and their files: the chunks that only a conversation or a program refers to, a
    /// starting point with the chunks that only it refers to, or a chunk with its descendants.
    /// Returns the bytes of each.
    pub async fn delete(&self, items: &[CachedItem]) -> Result<Vec<u64>, Failure> {
        // Only the references of programs have to be looked up.
        let has_keys = items.iter().any(|item| matches!(item, CachedItem::ApiKey { .. }));
        let cache_refs = match has_keys {
            true => self.rows().await?.cache_refs,
            false => HashMap::new(),
        };
        let mut session = self.session().await?;
        let mut freed = Vec::new();
        for item in items {
            freed.push(match item {
                CachedItem::Source(source @ CacheSource::Conversation { .. }) => {
                    session.handle.purge(&owner(source))
                }
                CachedItem::Source(source @ CacheSource::Named { .. }) => {
                    session.handle.release(&owner(source))
                }
                CachedItem::ApiKey { id } => {
                    let owners = cache_refs.keys().map(|name| &name.owner);
                    let owners: HashSet<_> = owners.filter(|owner| is_of_key(owner, id)).collect();
                    // Their references go too: what two of them share would stay for the other.
                    owners.into_iter().map(|owner| session.handle.release(owner)).sum()
                }
                // An earlier item may have removed it.
                CachedItem::Chunk { key } => {
                    let key = key.parse::<ChunkKey>().ok();
                    key.and_then(|key| session.handle.remove(&key)).unwrap_or(0)
                }
            });
            if let CachedItem::Source(CacheSource::Named { id }) = item {
                self.store.delete_named_cache(id, now_ms()).await?;
            }
        }
        let events = session.events().await;
        session.engine.shutdown().await;
        self.write(events).await?;
        Ok(freed)
    }

    /// Reads every chunk file: rebuilds the rows of those that have none or a wrong one, and removes
    /// damaged ones with their rows. Files of other programs stay. Works while the app has the folder
    /// open.
    pub async fn repair(&self) -> Result<Repaired, Failure> {
        // Locked until the rows are written, as for an import.
        let _lock = lock_files(&self.data_folder).await?;
        let mut session = self.session().await?;
        let repaired = session.handle.repair().await.unwrap_or_default();
        let events = session.events().await;
        session.engine.shutdown().await;
        self.write(events).await?;
        Ok(repaired)
    }

    /// Previews a prompt-cache file with the model that made it, which is loaded for that.
    pub async fn begin_import(
        &self,
        file: &Path,
        model: &str,
        model_folder: &Path,
    ) -> Result<OfflineImport<'_>, Failure> {
        let session = self.session().await?;
        let settings = AppSettings::load(&self.store, 0).await;
        let options =
            ModelOptions { bf16_state: settings.of_model(model).bf16_state, ..Default::default() };
        session.engine.load_with(model, model_folder, options).await?;
        let preview = imports::preview(&session.engine, file, &file_name(file)).await;
        Ok(OfflineImport { caches: self, session, file: file.to_owned(), preview })
    }

    async fn rows(&self) -> Result<Rows, Failure> {
        // References first: their chunks were written before them.
        let cache_refs = self.store.cache_refs().await?.into_iter();
        let cache_refs = cache_refs.map(|cache_ref| (cache_ref.name.clone(), cache_ref)).collect();
        let chunks = self.store.chunks().await?.into_iter();
        Ok(Rows { chunks: chunks.map(|record| (record.key, record)).collect(), cache_refs })
    }

    /// Starts an engine that neither evicts nor removes files.
    async fn session(&self) -> Result<EngineSession, Failure> {
        let Rows { chunks, cache_refs } = self.rows().await?;
        let cache = CacheOptions {
            folder: self.data_folder.prompt_cache(),
            old_folders: Vec::new(),
            disk_budget_bytes: u64::MAX,
            memory_budget_bytes: 0,
            chunks: chunks.into_values().collect(),
            refs: cache_refs.into_values().collect(),
            cleanup_lock: None,
        };
        let (engine, events) =
            Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() });
        let settings = AppSettings::load(&self.store, 0).await;
        let handle = engine.cache().cloned();
        let handle = handle.ok_or_else(|| {
            Failure::new(FailureCode::Engine, "The engine's thread could not start.")
        })?;
        handle.set_file_coding(convert::file_coding(settings.current().compresses_cache));
        let mut session = EngineSession { engine, handle, events };
        // The events of the start are dropped: an app that has the folder open emits its own.
        session.events().await;
        Ok(session)
    }

    async fn write(&self, changes: Vec<CacheChange>) -> Result<(), Failure> {
        Ok(self.store.change_cache(&rows::last_of_each_ref(changes)).await?)
    }

    /// The app's budget on disk. Refuses a file that does not fit beside the pinned chunks.
    async fn budget_for(&self, num_bytes: u64) -> Result<u64, Failure> {
        let disk_bytes = platform::free_disk_bytes(self.data_folder.home())
            .unwrap_or(0)
            .saturating_add(self.total_bytes().await?);
        let settings = AppSettings::load(&self.store, disk_bytes).await;
        let budget = settings.current().cache_budget_bytes;
        if self.rows().await?.pinned_bytes().saturating_add(num_bytes) > budget {
            let why = format!(
                "The disk limit of {:.1} GB leaves no room for it beside pinned chats and starting points.",
                budget as f64 / 1e9
            );
            return Err(Failure::new(FailureCode::Storage, why));
        }
        Ok(budget)
    }
}

impl OfflineImport<'_> {
    /// Imports the file under a name, with `check` after verifying it. As in the app, chunks that
    /// have not been used for long may be evicted for it.
    pub async fn confirm(mut self, name: &str, check: bool) -> Result<CachedEntry, Failure> {
        let name = checked_name(name)?.to_owned();
        let OfflineCaches { data_folder, store } = self.caches;
        imports::refuse_name_in_use(store, &name).await?;
        imports::check_room(data_folder, &self.file)?;
        // Locked until the rows are written, so that an app that starts meanwhile does not remove
        // the files as leftovers.
        let _lock = lock_files(data_folder).await?;
        let Rows { chunks, cache_refs } = self.caches.rows().await?;
        // Chunks that were pinned while the model was loaded and the user was asked must not be
        // evicted.
        self.session
            .handle
            .adopt_all(chunks.into_values().collect(), cache_refs.into_values().collect());
        self.session.events().await;
        let budget = self.caches.budget_for(self.preview.bytes).await?;
        self.session.engine.set_cache_budgets(budget, 0);

        let id = new_id().to_string();
        let owner = named_owner(&id);
        let import = Import { owner: owner.clone(), check };
        let imported = self.session.engine.import_prompt_file(&self.file, import).await;
        let events = self.session.events().await;
        let (set_ref, others): (Vec<_>, Vec<_>) = events.into_iter().partition(
            |change| matches!(change, CacheChange::RefSet(cache_ref) if *cache_ref.owner() == owner),
        );
        self.caches.write(others).await?;
        let file_name = &self.preview.file_name;
        let info = imported
            .map_err(|error| Failure::invalid(imports::about(&error, &self.file, file_name)))?;
        let row = imports::named_row(&self.session.engine, info, &id, name, file_name).await;
        self.session.engine.shutdown().await;
        // The name is written before the reference: an app that starts in between removes
        // references of names that do not exist.
        store.create_named_cache(&row).await?;
        self.caches.write(set_ref).await?;
        let entry = self.caches.list().await?.into_iter().find(|entry| entry.id() == id);
        entry.ok_or_else(|| {
            Failure::new(FailureCode::NotFound, "Another program has removed it already.")
        })
    }
}

impl EngineSession {
    /// The engine's changes until all queued work is done.
    async fn events(&mut self) -> Vec<CacheChange> {
        self.engine.flush_cache().await;
        let mut events = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            events.push(event);
        }
        events
    }
}

impl Rows {
    /// The chunks from the root to `key`; none if one is missing.
    fn path(&self, key: &ChunkKey) -> Vec<&ChunkRecord> {
        let mut path = Vec::new();
        let mut next = Some(*key);
        while let Some(key) = next {
            // Rows that other programs changed may form a cycle.
            let Some(record) = self.chunks.get(&key).filter(|_| path.len() < self.chunks.len())
            else {
                return Vec::new();
            };
            path.push(record);
            next = record.parent;
        }
        path.reverse();
        path
    }

    fn ref_of(&self, owner: Owner) -> Option<&CacheRef> {
        self.cache_refs.get(&RefName::from(owner))
    }

    /// An entry for an owner's reference; the caller adds the other fields.
    fn entry(&self, source: CacheSource) -> CachedEntry {
        let cache_ref = self.ref_of(owner(&source));
        let target = cache_ref.and_then(|cache_ref| cache_ref.target);
        let path = target.map_or(Vec::new(), |key| self.path(&key));
        CachedEntry {
            item: CachedItem::Source(source),
            title: String::new(),
            model: cache_ref.map(|cache_ref| cache_ref.model_name.clone()).unwrap_or_default(),
            tokens: path.last().map_or(0, |last| tokens(last.stop())),
            bytes: path.iter().map(|record| record.num_file_bytes()).sum(),
            is_pinned: cache_ref.is_some_and(|cache_ref| cache_ref.is_pinned),
            last_used_at_ms: path.last().map_or(0, |last| last.last_used_at_ms),
            imported_from: None,
            ends: None,
            loss: cache_ref
                .and_then(|cache_ref| cache_ref.loss.as_ref())
                .map(|loss| convert::loss_reason(&loss.reason)),
        }
    }

    /// The ids of the keys of programs that something is saved for.
    fn keys(&self) -> BTreeSet<&str> {
        self.cache_refs.keys().filter_map(|name| key_of(&name.owner)).collect()
    }

    /// The chunks that are saved for a key and for its parts, each once.
    fn of_key(&self, id: &str) -> Vec<&ChunkRecord> {
        let refs = self.cache_refs.values().filter(|cache_ref| is_of_key(cache_ref.owner(), id));
        let mut seen = HashSet::new();
        let paths = refs.filter_map(|cache_ref| cache_ref.target).flat_map(|key| self.path(&key));
        paths.filter(|record| seen.insert(record.key)).collect()
    }

    /// An entry for a key; the caller adds its name.
    fn key_entry(&self, id: &str) -> CachedEntry {
        let refs = self.cache_refs.values().filter(|cache_ref| is_of_key(cache_ref.owner(), id));
        let models: BTreeSet<&str> = refs.map(|cache_ref| cache_ref.model_name.as_str()).collect();
        let records = self.of_key(id);
        CachedEntry {
            item: CachedItem::ApiKey { id: id.to_owned() },
            title: String::new(),
            model: models.into_iter().collect::<Vec<&str>>().join(", "),
            tokens: tokens(records.iter().map(|record| record.num_tokens()).sum()),
            bytes: records.iter().map(|record| record.num_file_bytes()).sum(),
            is_pinned: false,
            last_used_at_ms: records.iter().map(|record| record.last_used_at_ms).max().unwrap_or(0),
            imported_from: None,
            ends: None,
            loss: None,
        }
    }

    fn pinned_bytes(&self) -> u64 {
        let pinned = self
            .cache_refs
            .values()
            .filter(|cache_ref| cache_ref.is_pinned)
            .filter_map(|cache_ref| cache_ref.target);
        let mut seen = HashSet::new();
        pinned
            .flat_map(|key| self.path(&key))
            .filter(|record| seen.insert(record.key))
            .map(ChunkRecord::num_file_bytes)
            .sum()
    }
}

/// Takes a shared lock, which waits until no app removes leftovers and prevents that while it is
/// locked.
async fn lock_files(data_folder: &DataFolder) -> Result<File, Failure> {
    let path = data_folder.prompt_cache_lock();
    let locking = move || {
        let file = platform::open_lock_file(&path)?;
        file.lock_shared()?;
        Ok(file)
    };
    let locked = tokio::task::spawn_blocking(locking)
        .await
        .unwrap_or_else(|fault| Err(std::io::Error::other(fault)));
    locked.map_err(|error| {
        Failure::new(FailureCode::Storage, format!("The prompt cache cannot be locked: {error}."))
    })
}
