//! The prompt caches of a data folder, without the app: for programs that look at them and change
//! them, also while the app has the folder open.
//!
//! Rows are read afresh for each call, and the engine that works on them lives as long as the call.
//! An app that has the folder open takes over what is changed here when it sees that the database
//! has changed.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use cairn_engine::{
    CacheEvent, CacheHandle, CacheOptions, CacheRef, ChunkRecord, Engine, EngineOptions,
    ExportRequest, Import, PromptFileLayout, Repaired,
};
use cairn_store::{ListedNamedCache, Store};
use tokio::sync::mpsc::UnboundedReceiver;
use uuid::Uuid;

use crate::app::now_ms;
use crate::cache::commands::checked_name;
use crate::cache::owners::{conversation_owner, named_owner, owner};
use crate::cache::previews::file_name;
use crate::cache::{imports, rows};
use crate::convert::{self, tokens};
use crate::wire::{CacheKind, CacheSource, Failure, FailureCode, ImportPreview};
use crate::{DataFolder, OpenError, platform, settings};

/// The prompt caches of a data folder that this process need not own.
#[derive(Debug)]
pub struct OfflineCaches {
    data_folder: DataFolder,
    store: Store,
}

/// Something that is kept, as a person names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedItem {
    /// A named prompt cache or what is kept of a conversation.
    Source(CacheSource),
    /// A chunk, by its key.
    Chunk {
        /// The key.
        key: String,
    },
}

/// What is kept of a conversation or under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedEntry {
    /// Which.
    pub source: CacheSource,
    /// The name, or the conversation's title, which may be empty.
    pub title: String,
    /// The name of the model that read it.
    pub model: String,
    /// How many tokens are kept.
    pub tokens: u32,
    /// What their files take, those that others share included.
    pub bytes: u64,
    /// Whether it is safe from eviction.
    pub is_pinned: bool,
    /// When it was last used, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
    /// The file it was imported from.
    pub imported_from: Option<String>,
    /// How its text begins and ends, where that is known.
    pub ends: Option<(String, String)>,
    /// What was lost of it and why, in words.
    pub loss: Option<String>,
}

impl CachedEntry {
    /// Its id.
    pub fn id(&self) -> &str {
        match &self.source {
            CacheSource::Conversation { id } | CacheSource::Named { id } => id,
        }
    }
}

/// A part of what is kept: one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkSummary {
    /// Its key.
    pub key: String,
    /// Position of its first token.
    pub start: u32,
    /// How many tokens it holds.
    pub tokens: u32,
    /// Whose words they are.
    pub kind: CacheKind,
    /// Length of its file.
    pub bytes: u64,
    /// How often it was read back.
    pub hits: u64,
}

/// A file that has been looked at with the model loaded that made it.
#[derive(Debug)]
pub struct OfflineImport<'a> {
    caches: &'a OfflineCaches,
    bench: Bench,
    file: PathBuf,
    /// What it holds.
    pub preview: ImportPreview,
}

/// An engine over the rows, and what it reports about them.
#[derive(Debug)]
struct Bench {
    engine: Engine,
    window: CacheHandle,
    events: UnboundedReceiver<CacheEvent>,
}

/// What the rows say.
struct Rows {
    chunks: HashMap<String, ChunkRecord>,
    cache_refs: HashMap<String, CacheRef>,
}

impl OfflineCaches {
    /// Opens the database of a data folder, making what is missing. Takes no lock: others may have
    /// the folder open.
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

    /// Named prompt caches, and conversations of which something is kept; those used last first.
    pub async fn list(&self) -> Result<Vec<CachedEntry>, Failure> {
        let rows = self.rows().await?;
        let mut kept = Vec::new();
        for ListedNamedCache { row, has_token_ids, .. } in self.store.named_caches().await? {
            let ends = has_token_ids.then_some((row.start_text, row.end_text));
            let seen = CachedEntry {
                title: row.name,
                model: row.model,
                last_used_at_ms: row.last_used_at_ms,
                imported_from: row.imported_from,
                ends,
                ..rows.kept(&named_owner(&row.id), CacheSource::Named { id: row.id })
            };
            kept.push(seen);
        }
        for row in self.store.conversations().await? {
            let seen =
                rows.kept(&conversation_owner(&row.id), CacheSource::Conversation { id: row.id });
            if seen.tokens > 0 {
                kept.push(CachedEntry { title: row.title, ..seen });
            }
        }
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.last_used_at_ms));
        Ok(kept)
    }

    /// What all files take together.
    pub async fn total_bytes(&self) -> Result<u64, Failure> {
        Ok(u64::try_from(self.store.total_chunk_bytes().await?).unwrap_or(0))
    }

    /// What a person means by a name or an id of [`OfflineCaches::list`], or by the key of a chunk.
    pub async fn find(&self, word: &str) -> Result<CachedItem, Failure> {
        let named = self.store.named_caches().await?;
        let by_id = named.iter().find(|named| named.row.id == word);
        if let Some(named) = by_id.or_else(|| named.iter().find(|named| named.row.name == word)) {
            return Ok(CachedItem::Source(CacheSource::Named { id: named.row.id.clone() }));
        }
        if self.store.conversation_title(word).await?.is_some() {
            return Ok(CachedItem::Source(CacheSource::Conversation { id: word.to_owned() }));
        }
        if self.rows().await?.chunks.contains_key(word) {
            return Ok(CachedItem::Chunk { key: word.to_owned() });
        }
        let why = format!(
            "“{word}” is neither the name of a prompt cache nor the id of one, of a conversation or of a chunk."
        );
        Err(Failure::new(FailureCode::NotFound, why))
    }

    /// The chunks from the first of a prompt to the end of what is meant.
    pub async fn chunks(&self, kept: &CachedItem) -> Result<Vec<ChunkSummary>, Failure> {
        let rows = self.rows().await?;
        let key = match kept {
            CachedItem::Source(source) => rows
                .cache_refs
                .get(&owner(source))
                .and_then(|cache_ref| cache_ref.chunk_key.as_deref()),
            CachedItem::Chunk { key } => Some(key.as_str()),
        };
        let chunk = |record: &ChunkRecord| ChunkSummary {
            key: record.key.clone(),
            start: tokens(record.start),
            tokens: tokens(record.token_ids.len()),
            kind: convert::cache_kind(record.kind),
            bytes: record.bytes,
            hits: record.hits,
        };
        Ok(key.map_or(Vec::new(), |key| rows.path(key)).into_iter().map(chunk).collect())
    }

    /// Writes a stored prompt cache to a file that mlx-lm reads too. Needs no model.
    pub async fn export(
        &self,
        source: &CacheSource,
        file: &Path,
        layout: PromptFileLayout,
    ) -> Result<(), Failure> {
        let bench = self.bench().await?;
        let exported = match imports::export_request(&self.store, &bench.window, source, file).await
        {
            Ok(request) => {
                let request = ExportRequest { layout, ..request };
                bench.engine.export_prompt(request).await.map(drop).map_err(Failure::from)
            }
            Err(failure) => Err(failure),
        };
        bench.engine.shutdown().await;
        exported
    }

    /// Removes what is kept, files included: of a conversation what only it holds, a name with what
    /// only it holds, a chunk with all that continues it. Returns the bytes that each had.
    pub async fn delete(&self, kept: &[CachedItem]) -> Result<Vec<u64>, Failure> {
        let mut bench = self.bench().await?;
        let mut freed = Vec::new();
        for kept in kept {
            freed.push(match kept {
                CachedItem::Source(source @ CacheSource::Conversation { .. }) => {
                    bench.window.purge(&owner(source))
                }
                CachedItem::Source(source @ CacheSource::Named { .. }) => {
                    bench.window.release(&owner(source))
                }
                // It may have gone with one before.
                CachedItem::Chunk { key } => bench.window.remove(key).unwrap_or(0),
            });
            if let CachedItem::Source(CacheSource::Named { id }) = kept {
                self.store.delete_named_cache(id, now_ms()).await?;
            }
        }
        let events = bench.events().await;
        bench.engine.shutdown().await;
        self.write(events).await?;
        Ok(freed)
    }

    /// Rebuilds the rows of chunk files that no row names, and removes damaged chunk files. Files
    /// that are not Cairn's stay. Works while the app has the folder open.
    pub async fn repair(&self) -> Result<Repaired, Failure> {
        // Held until the rows are written, as for an import.
        let _lock = lock_files(&self.data_folder).await?;
        let mut bench = self.bench().await?;
        let repaired = bench.window.repair().await.unwrap_or_default();
        let events = bench.events().await;
        bench.engine.shutdown().await;
        self.write(events).await?;
        Ok(repaired)
    }

    /// Looks at a prompt-cache file with the model that made it, which is loaded for that.
    pub async fn begin_import(
        &self,
        file: &Path,
        model: &str,
        model_folder: &Path,
    ) -> Result<OfflineImport<'_>, Failure> {
        let bench = self.bench().await?;
        bench.engine.load(model, model_folder).await?;
        let preview = imports::preview(&bench.engine, file, &file_name(file)).await;
        Ok(OfflineImport { caches: self, bench, file: file.to_owned(), preview })
    }

    async fn rows(&self) -> Result<Rows, Failure> {
        // References first: what they stand on was written before them.
        let cache_refs = self.store.cache_refs().await?.into_iter().filter_map(convert::cache_ref);
        let cache_refs = cache_refs.map(|cache_ref| (cache_ref.owner.clone(), cache_ref)).collect();
        let chunks = self.store.chunks().await?.into_iter().filter_map(convert::chunk_record);
        Ok(Rows { chunks: chunks.map(|record| (record.key.clone(), record)).collect(), cache_refs })
    }

    /// An engine that neither evicts nor sweeps.
    async fn bench(&self) -> Result<Bench, Failure> {
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
        let window = engine.cache().cloned();
        let window = window.ok_or_else(|| {
            Failure::new(FailureCode::Engine, "The engine's thread could not start.")
        })?;
        let mut bench = Bench { engine, window, events };
        // What starting alone reports is for the app, which may know better.
        bench.events().await;
        Ok(bench)
    }

    async fn write(&self, events: Vec<CacheEvent>) -> Result<(), Failure> {
        Ok(self.store.change_cache(&rows::changes(events)).await?)
    }

    /// The app's budget on disk. Refuses a file for which it has no room beside what is pinned.
    async fn budget_for(&self, num_bytes: u64) -> Result<u64, Failure> {
        let disk_bytes = platform::free_disk_bytes(self.data_folder.home())
            .unwrap_or(0)
            .saturating_add(self.total_bytes().await?);
        let budget = settings::load(&self.store, disk_bytes).await.cache_budget_bytes;
        if self.rows().await?.pinned_bytes().saturating_add(num_bytes) > budget {
            let why = format!(
                "The prompt cache's budget of {:.1} GB on disk has no room for it beside what is pinned.",
                budget as f64 / 1e9
            );
            return Err(Failure::new(FailureCode::Storage, why));
        }
        Ok(budget)
    }
}

impl OfflineImport<'_> {
    /// Files it under a name, perhaps recomputing sample positions of it first. What has not been
    /// used for long may be evicted for it, as in the app.
    pub async fn confirm(mut self, name: &str, check: bool) -> Result<CachedEntry, Failure> {
        let name = checked_name(name)?;
        let OfflineCaches { data_folder, store } = self.caches;
        imports::refuse_name_in_use(store, &name).await?;
        // Held until the rows are written, so that no app that starts meanwhile takes the files for
        // leftovers.
        let _lock = lock_files(data_folder).await?;
        let Rows { chunks, cache_refs } = self.caches.rows().await?;
        // What was pinned while the model was loaded and the question was open is not to go.
        self.bench
            .window
            .take_over(chunks.into_values().collect(), cache_refs.into_values().collect());
        self.bench.events().await;
        let budget = self.caches.budget_for(self.preview.bytes).await?;
        self.bench.engine.set_cache_budgets(budget, 0);

        let id = Uuid::now_v7().to_string();
        let owner = named_owner(&id);
        let imported = self
            .bench
            .engine
            .import_prompt_file(&self.file, Import { owner: owner.clone(), check })
            .await;
        let mut events = self.bench.events().await;
        let is_its_anchor = |event: &CacheEvent| matches!(event, CacheEvent::RefSet(cache_ref) if cache_ref.owner == owner);
        let info = match imported {
            Ok(info) => info,
            Err(error) => {
                events.retain(|event| !is_its_anchor(event));
                self.caches.write(events).await?;
                return Err(Failure::invalid(imports::about(
                    &error,
                    &self.file,
                    &self.preview.file_name,
                )));
            }
        };
        let row =
            imports::named_row(&self.bench.engine, info, &id, name, &self.preview.file_name).await;
        self.bench.engine.shutdown().await;
        // The name before the reference: an app that starts in between removes references of what is not
        // there.
        let (with_ref, others): (Vec<_>, Vec<_>) = events.into_iter().partition(is_its_anchor);
        self.caches.write(others).await?;
        store.create_named_cache(&row).await?;
        self.caches.write(with_ref).await?;
        let kept = self.caches.list().await?.into_iter().find(|kept| kept.id() == id);
        kept.ok_or_else(|| {
            Failure::new(FailureCode::NotFound, "Another program has removed it already.")
        })
    }
}

impl Bench {
    /// What the engine has told until everything queued was done.
    async fn events(&mut self) -> Vec<CacheEvent> {
        self.engine.flush_cache().await;
        let mut events = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            events.push(event);
        }
        events
    }
}

impl Rows {
    /// The chunks from the first of a prompt to `key`; none where one is missing.
    fn path(&self, key: &str) -> Vec<&ChunkRecord> {
        let mut path = Vec::new();
        let mut next = Some(key);
        while let Some(key) = next {
            // Rows that were changed by others may go in circles.
            let Some(record) = self.chunks.get(key).filter(|_| path.len() < self.chunks.len())
            else {
                return Vec::new();
            };
            path.push(record);
            next = record.parent_key.as_deref();
        }
        path.reverse();
        path
    }

    /// What an owner's reference holds; the rest is for the caller to say.
    fn kept(&self, owner: &str, source: CacheSource) -> CachedEntry {
        let cache_ref = self.cache_refs.get(owner);
        let path = cache_ref
            .and_then(|cache_ref| cache_ref.chunk_key.as_deref())
            .map_or(Vec::new(), |key| self.path(key));
        CachedEntry {
            source,
            title: String::new(),
            model: cache_ref.map(|cache_ref| cache_ref.model.clone()).unwrap_or_default(),
            tokens: path.last().map_or(0, |last| tokens(last.stop())),
            bytes: path.iter().map(|record| record.bytes).sum(),
            is_pinned: cache_ref.is_some_and(|cache_ref| cache_ref.is_pinned),
            last_used_at_ms: path.last().map_or(0, |last| last.last_used_at_ms),
            imported_from: None,
            ends: None,
            loss: cache_ref
                .and_then(|cache_ref| cache_ref.loss.as_ref())
                .map(|loss| loss.reason.clone()),
        }
    }

    fn pinned_bytes(&self) -> u64 {
        let pinned = self
            .cache_refs
            .values()
            .filter(|cache_ref| cache_ref.is_pinned)
            .filter_map(|cache_ref| cache_ref.chunk_key.as_deref());
        let mut seen = HashSet::new();
        pinned
            .flat_map(|key| self.path(key))
            .filter(|record| seen.insert(&record.key))
            .map(|record| record.bytes)
            .sum()
    }
}

/// Waits until no app removes leftovers, and keeps others from it.
async fn lock_files(data_folder: &DataFolder) -> Result<File, Failure> {
    let path = data_folder.prompt_cache_lock();
    let locking = move || {
        let file = File::options().create(true).append(true).open(path)?;
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
