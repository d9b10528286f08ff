//! Keys and values that earlier turns computed, kept so that the next turn, or another conversation with the same beginning, reads
//! them back instead of computing them again.
//!
//! ```text
//! <folder>/prompt-cache-v1/                 (given as CacheOptions::folder)
//!   <model fingerprint>/
//!     <chunk key>.safetensors               keys and values of at most 256 tokens, never rewritten
//! ```
//! A chunk continues its parent; its key is a hash over the parent's key and its token ids, the root's over the model fingerprint. So
//! equal beginnings have equal keys and are kept once. `index` decides (pure), `chunk_file` encodes, `filing` writes; this module is
//! what the worker calls. The most recent conversation also stays in memory as it is.
//!
//! Invariants: a file is visible complete or not at all; whatever is read back was hashed when it was written and hashes the same; any
//! failure is a miss with its reason, never an error and never a wrong token.

mod chunk_file;
mod filing;
mod index;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_chat::Prompt;
use cairn_lm::LoadedModel;
use cairn_lm::cache::{KvCache, LayerCache};
use cairn_lm::models::Model;
use tokio::sync::{mpsc, oneshot, watch};

use crate::records::{CacheEvent, CacheOptions, ChunkRecord};
use crate::{EngineError, EngineStatus};
use filing::{Filing, PendingChunk};
use index::ChunkIndex;

/// What could be reused of earlier work.
pub(crate) struct Reuse {
    /// Prompt tokens that `caches` hold.
    pub(crate) num_tokens: usize,
    /// Why not more, in words; none when everything that could be expected was there.
    pub(crate) note: Option<String>,
    pub(crate) caches: Vec<LayerCache>,
}

impl Reuse {
    pub(crate) fn nothing(model: &Model) -> Self {
        Reuse { num_tokens: 0, note: None, caches: model.make_cache() }
    }
}

/// The conversation that ran last, as it is in memory.
struct Hot {
    fingerprint: String,
    tokens: Vec<u32>, // exactly those that the caches hold
    caches: Vec<LayerCache>,
}

/// The prompt cache as the worker sees it. Owned by the engine's thread.
pub(crate) struct PromptCache {
    stored: Option<Stored>,
    hot: Option<Hot>,
}

struct Stored {
    folder: PathBuf,
    index: Arc<Mutex<ChunkIndex>>,
    filing: Filing,
    events: mpsc::UnboundedSender<CacheEvent>,
}

impl PromptCache {
    /// What the disk holds is kept current in `status`, whichever thread changes it.
    pub(crate) fn new(
        options: Option<CacheOptions>,
        events: mpsc::UnboundedSender<CacheEvent>,
        status: watch::Sender<EngineStatus>,
    ) -> Self {
        let stored = options.map(|options| {
            let index = Arc::new(Mutex::new(ChunkIndex::new(options.budget_bytes, options.chunks)));
            let filing = Filing::start(options.folder.clone(), Arc::clone(&index), events.clone(), status);
            Stored { folder: options.folder, index, filing, events }
        });
        PromptCache { stored, hot: None }
    }

    /// The longest beginning of `prompt` that is in memory or on disk, at most `limit` tokens.
    pub(crate) fn longest_prefix(&mut self, model: &LoadedModel, prompt: &Prompt, limit: usize) -> Reuse {
        let hot = self.hot.take().filter(|hot| hot.fingerprint == model.fingerprint);
        let num_hot = hot.as_ref().map_or(0, |hot| common_prefix(&hot.tokens, &prompt.tokens)).min(limit);
        let mut problem = None;
        if let Some(stored) = &self.stored {
            let found = lock(&stored.index).longest_prefix(&model.fingerprint, &prompt.tokens);
            // Memory wins a tie: there is nothing to read.
            if found.num_tokens.min(limit) > num_hot {
                match stored.restore(&found, &model.model, limit) {
                    // A damaged part can leave less than memory holds.
                    Ok(restored) if restored.num_tokens < num_hot => problem = restored.problem,
                    Ok(restored) => {
                        let note = note(prompt, restored.num_tokens, limit, restored.problem);
                        return Reuse { num_tokens: restored.num_tokens, note, caches: restored.caches };
                    }
                    Err(reason) => problem = Some(reason),
                }
            }
        }
        match hot {
            Some(mut hot) if num_hot > 0 => {
                let surplus = hot.tokens.len() - num_hot;
                if hot.caches.iter_mut().all(|cache| cache.trim(surplus) == surplus) {
                    return Reuse { num_tokens: num_hot, note: note(prompt, num_hot, limit, problem), caches: hot.caches };
                }
                Reuse { note: note(prompt, 0, limit, problem), ..Reuse::nothing(&model.model) }
            }
            _ => Reuse { note: note(prompt, 0, limit, problem), ..Reuse::nothing(&model.model) },
        }
    }

    /// Keeps what an answer has computed: in memory as it is, and on disk what is not there yet.
    ///
    /// `tokens` are the prompt and the sampled ones; `caches` hold a beginning of them.
    pub(crate) fn keep(&mut self, fingerprint: &str, mut tokens: Vec<u32>, boundaries: &[usize], caches: Vec<LayerCache>) {
        let num_held = caches.iter().map(LayerCache::offset).min().unwrap_or(0);
        if num_held == 0 || num_held > tokens.len() || caches.iter().any(|cache| cache.offset() != num_held) {
            return;
        }
        tokens.truncate(num_held);
        if let Some(stored) = &self.stored {
            stored.file(fingerprint, &tokens, boundaries, &caches);
        }
        self.hot = Some(Hot { fingerprint: fingerprint.to_owned(), tokens, caches });
    }

    /// Drops what is in memory.
    pub(crate) fn forget_hot(&mut self) {
        self.hot = None;
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.stored.as_ref().map_or(0, |stored| lock(&stored.index).total_bytes())
    }

    pub(crate) fn set_budget(&mut self, bytes: u64) {
        if let Some(stored) = &self.stored {
            stored.filing.set_budget(bytes);
        }
    }

    /// Answers when everything queued until now is on disk.
    pub(crate) fn flush(&mut self, reply: oneshot::Sender<Result<(), EngineError>>) {
        match &self.stored {
            Some(stored) => stored.filing.flush(reply),
            None => {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Files what is queued and ends the filing thread.
    pub(crate) fn close(self) {
        if let Some(stored) = self.stored {
            stored.filing.close();
        }
    }
}

struct Restored {
    num_tokens: usize,
    caches: Vec<LayerCache>,
    problem: Option<String>,
}

impl Stored {
    /// Reads the chunks that were found. A chunk that cannot be used ends the prefix before it and is forgotten.
    fn restore(&self, found: &index::Prefix, model: &Model, limit: usize) -> Result<Restored, String> {
        let num_layers = model.make_cache().len();
        let mut keys: Vec<Vec<_>> = (0..num_layers).map(|_| Vec::new()).collect();
        let mut values: Vec<Vec<_>> = (0..num_layers).map(|_| Vec::new()).collect();
        let mut num_tokens = 0;
        let mut problem = None;
        let mut touched = Vec::new();
        for part in &found.parts {
            let wanted = part.num_tokens.min(limit - num_tokens);
            if wanted == 0 {
                break;
            }
            match chunk_file::read(&self.folder, &part.record, num_layers, wanted) {
                Ok(layers) => {
                    for (layer, (key, value)) in layers.into_iter().enumerate() {
                        keys[layer].push(key);
                        values[layer].push(value);
                    }
                    num_tokens += wanted;
                    touched.push(part.record.key.clone());
                }
                Err(error) => {
                    let reason = error.to_string();
                    tracing::warn!(chunk = %part.record.key, %reason, "a stored prompt cache cannot be used");
                    let _ = self.events.send(CacheEvent::Removed { keys: self.discard(&part.record.key), reason: reason.clone() });
                    problem = Some(reason);
                    break;
                }
            }
        }
        if num_tokens == 0 {
            return Err(problem.unwrap_or_else(|| "nothing was stored".to_owned()));
        }
        let mut caches = Vec::with_capacity(num_layers);
        for (keys, values) in keys.iter().zip(&values) {
            caches.push(LayerCache::Kv(KvCache::from_parts(keys, values).map_err(|error| error.to_string())?));
        }
        let at_ms = now_ms();
        lock(&self.index).touch(&touched, at_ms);
        let _ = self.events.send(CacheEvent::Touched { keys: touched, at_ms });
        Ok(Restored { num_tokens, caches, problem })
    }

    /// Forgets a chunk and what continues it, files included; returns the keys.
    fn discard(&self, key: &str) -> Vec<String> {
        let mut index = lock(&self.index);
        let removed = index.remove_with_descendants(key);
        // Under the lock: the filing thread must not take their room in the budget while they are there.
        for record in &removed {
            let _ = std::fs::remove_file(chunk_file::path(&self.folder, &record.fingerprint, &record.key));
        }
        removed.into_iter().map(|record| record.key).collect()
    }

    /// Queues the chunks of `tokens` that are not stored yet.
    fn file(&self, fingerprint: &str, tokens: &[u32], boundaries: &[usize], caches: &[LayerCache]) {
        if lock(&self.index).is_off() {
            return;
        }
        // Only keys and values of every token can be cut into chunks; what else a layer remembers stays in memory.
        let kv_layers: Option<Vec<&KvCache>> =
            caches.iter().map(|cache| if let LayerCache::Kv(cache) = cache { Some(cache) } else { None }).collect();
        let Some(kv_layers) = kv_layers else { return };
        let planned = lock(&self.index).plan(fingerprint, tokens, boundaries);
        for chunk in planned {
            let layers =
                kv_layers.iter().map(|cache| chunk_file::LayerBytes::copy(cache, chunk.start, chunk.start + chunk.token_ids.len()));
            match layers.collect::<Result<Vec<_>, _>>() {
                Ok(layers) => self.filing.file(PendingChunk { chunk, layers }),
                Err(error) => {
                    tracing::warn!(%error, "a prompt cache cannot be copied for filing");
                    return;
                }
            }
        }
    }
}

/// Why fewer tokens were read from cache than earlier turns had computed.
fn note(prompt: &Prompt, num_cached: usize, limit: usize, problem: Option<String>) -> Option<String> {
    let reread = |reason: &str| format!("re-read {} tokens: {reason}", group(limit + 1 - num_cached));
    // `new_from` is how far earlier turns of this conversation agree with the prompt.
    let expected = prompt.new_from.saturating_sub(1).min(limit);
    match problem {
        Some(problem) => Some(reread(&problem)),
        None if num_cached < expected => Some(reread("the rest of this conversation was not stored for this model, or has been evicted")),
        None => None,
    }
}

/// 3100 as "3,100".
fn group(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn lock(index: &Mutex<ChunkIndex>) -> MutexGuard<'_, ChunkIndex> {
    // A panic while the lock was held leaves at worst a stale entry, which reads as a miss.
    index.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Milliseconds since the Unix epoch; only for "last used".
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as i64)
}
