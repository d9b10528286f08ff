//! The records that a database stores: chunks, references to them, and how both change.

use crate::{ChunkKey, FileHash, LossReason, Namespace, Owner, PromptCacheError, RefName, Tokens};

/// The most tokens of one chunk.
pub const MAX_CHUNK_TOKENS: usize = 256;
/// More than a chunk of any model takes; a row or file that says more is wrong.
pub const MAX_CHUNK_BYTES: u64 = 64 << 30;
/// Far longer than any context.
const MAX_POSITION: usize = 1 << 40;

/// The role of the message that a chunk's tokens belong to. As text, in rows and chunk files:
/// `system`, `user` or `assistant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChunkKind {
    /// The system prompt, or a starting point: the beginning that conversations share.
    System,
    /// A question, with everything that a template puts around it.
    User,
    /// An answer.
    Assistant,
}

impl ChunkKind {
    /// All kinds.
    pub const ALL: [ChunkKind; 3] = [ChunkKind::System, ChunkKind::User, ChunkKind::Assistant];

    /// The kind's name in rows and files.
    pub fn as_str(self) -> &'static str {
        match self {
            ChunkKind::System => "system",
            ChunkKind::User => "user",
            ChunkKind::Assistant => "assistant",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<ChunkKind> {
        ChunkKind::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The file of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkFile {
    /// Its length.
    pub num_bytes: u64,
    /// Its hash.
    pub hash: FileHash,
}

/// A stored chunk: the keys and values, and the state, of a run of consecutive tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRecord {
    /// What it is found by, and the name of its file.
    pub key: ChunkKey,
    /// The chunk that this one continues; none for the first of a prompt.
    pub parent: Option<ChunkKey>,
    /// What the contents depend on besides the tokens; the parent's is the same.
    pub namespace: Namespace,
    /// The role that the tokens belong to.
    pub kind: ChunkKind,
    /// Position of the first token in the prompt: where the parent ends.
    pub start: usize,
    /// The tokens, from 1 to [`MAX_CHUNK_TOKENS`].
    pub tokens: Tokens,
    /// The first position whose keys and values sliding-window layers still had when the chunk was
    /// saved; `start` for models without such layers.
    pub held_from: usize,
    /// Whether it contains recurrent states after its last token.
    pub has_state: bool,
    /// Its file; none while it is only in memory.
    pub file: Option<ChunkFile>,
    /// How often a prompt continued from it.
    pub hits: u64,
    /// When it was written first, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// When it was last used or written, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
}

impl ChunkRecord {
    /// The tokens of a row or file that names `ids`. Zeros stand for opaque tokens, which begin an
    /// [`crate::Provenance::OpaqueImport`] and are of the kind `System`; what continues them is a
    /// question.
    pub fn stored_tokens(namespace: &Namespace, kind: ChunkKind, ids: Vec<u32>) -> Tokens {
        let is_opaque = namespace.provenance.is_opaque()
            && kind == ChunkKind::System
            && ids.iter().all(|id| *id == 0);
        if is_opaque { Tokens::Opaque { count: ids.len() } } else { Tokens::known(ids) }
    }

    /// How many tokens it has.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The position after its last token.
    pub fn stop(&self) -> usize {
        self.start + self.num_tokens()
    }

    /// The length of its file; 0 without one.
    pub fn num_file_bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.num_bytes)
    }

    /// The key that follows from its parent or namespace and its tokens.
    pub fn expected_key(&self) -> ChunkKey {
        self.parent_or_root().child(&self.tokens)
    }

    /// Its parent, or what stands for its namespace.
    pub(crate) fn parent_or_root(&self) -> ChunkKey {
        self.parent.unwrap_or_else(|| ChunkKey::root(&self.namespace))
    }

    /// The record if it agrees with itself: a damaged database or file may say anything. Records
    /// from outside enter [`crate::ChunkIndex`] only through here.
    pub fn checked(self) -> Result<ChunkRecord, PromptCacheError> {
        match self.contradiction() {
            None => Ok(self),
            Some(what) => Err(PromptCacheError::BadRecord { key: self.key, what }),
        }
    }

    /// What cannot be true of it.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let is_opaque = matches!(self.tokens, Tokens::Opaque { .. });
        if !(1..=MAX_CHUNK_TOKENS).contains(&self.num_tokens()) {
            Some("no chunk has that many tokens")
        } else if self.start >= MAX_POSITION {
            Some("it starts after any context")
        } else if self.parent.is_none() != (self.start == 0) {
            Some("a chunk starts a prompt if, and only if, it has no parent")
        } else if !(self.start..=self.stop()).contains(&self.held_from) {
            Some("its window begins outside of it")
        } else if self.num_file_bytes() > MAX_CHUNK_BYTES {
            Some("no chunk's file is that long")
        } else if self.file.as_ref().is_some_and(|file| !file.hash.is_hash()) {
            Some("its file's hash is none")
        } else if !self.namespace.model.is_hash() {
            Some("its model's fingerprint is no hash")
        } else if is_opaque && !self.namespace.provenance.is_opaque() {
            Some("its tokens are opaque, but its source names them")
        } else if self.expected_key() != self.key {
            Some("its key is not that of its tokens")
        } else {
            None
        }
    }
}

/// A reference to a position in the stored chunks, such as the end of a conversation. Referenced
/// chunks are shown as saved; pinned ones are never evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRef {
    /// Who holds it.
    pub name: RefName,
    /// The namespace of its chunks.
    pub namespace: Namespace,
    /// The name under which the model was loaded.
    pub model_name: String,
    /// The last chunk before the position; none where nothing is stored any more.
    pub target: Option<ChunkKey>,
    /// The tokens up to that chunk's end.
    pub num_tokens: usize,
    /// Whether its chunks stay whatever the budgets are; never of a stale reference.
    pub is_pinned: bool,
    /// What it had to give up since it was set.
    pub loss: Option<Loss>,
}

impl CacheRef {
    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        &self.name.owner
    }
}

/// What a reference no longer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The tokens up to the position that it once referred to.
    pub num_tokens: usize,
    /// Why it lost its last chunks.
    pub reason: LossReason,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// A change of what is stored, for files, rows and watchers.
///
/// Files change first: `Written` is made when the chunk is on disk. `Removed` is made when a chunk
/// leaves the index; it may reach rows only once its file is gone, because a row must exist for as
/// long as its file may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheChange {
    /// A chunk was written, or has got its record back.
    Written(ChunkRecord),
    /// Chunks were removed. Those without a file never had a row.
    Removed {
        /// The chunks, the last of each prompt first.
        chunks: Vec<ChunkRecord>,
        /// Why.
        reason: LossReason,
    },
    /// A prompt continued from chunks.
    Used {
        /// Their keys.
        keys: Vec<ChunkKey>,
        /// When, in milliseconds since the Unix epoch.
        at_ms: i64,
    },
    /// A reference was set or has changed. It names the last chunk that is on disk, as it would
    /// survive a crash.
    RefSet(CacheRef),
    /// A reference is gone.
    RefRemoved(RefName),
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::{KvFormat, Provenance};

    fn record() -> ChunkRecord {
        let mut record = ChunkRecord {
            key: ChunkKey::from_bytes([0; 16]),
            parent: None,
            namespace: Namespace::computed("0123456789abcdef", KvFormat::Plain),
            kind: ChunkKind::User,
            start: 0,
            tokens: Tokens::known([5, 6, 7]),
            held_from: 0,
            has_state: false,
            file: None,
            hits: 0,
            created_at_ms: 0,
            last_used_at_ms: 0,
        };
        record.key = record.expected_key();
        record
    }

    #[test]
    fn only_a_record_that_agrees_with_itself_is_accepted() {
        fn check(is_accepted: bool, change: impl Fn(&mut ChunkRecord)) {
            let mut changed = record();
            change(&mut changed);
            assert_eq!(changed.clone().checked().is_ok(), is_accepted, "{changed:?}");
        }
        /// Changes what the key depends on, and the key with it.
        fn check_rekeyed(is_accepted: bool, change: impl Fn(&mut ChunkRecord)) {
            check(is_accepted, |record| {
                change(record);
                record.key = record.expected_key();
            });
        }
        let file = |num_bytes| Some(ChunkFile { num_bytes, hash: "0".repeat(64).into() });
        check(true, |_| {});
        check(true, |record| record.file = file(MAX_CHUNK_BYTES));
        check(false, |record| record.file = file(MAX_CHUNK_BYTES + 1));
        for hash in ["", "hash", &"0".repeat(63), &"A".repeat(64)] {
            check(false, |record| {
                record.file = Some(ChunkFile { num_bytes: 1, hash: hash.into() })
            });
        }
        check(false, |record| record.tokens = Tokens::known([5, 6, 8]));
        check(false, |record| record.namespace.kv_format = "kv8g64".parse().unwrap());
        check(false, |record| record.parent = Some(record.key));
        check(false, |record| record.start = 1);
        check(true, |record| record.held_from = 3);
        check(false, |record| record.held_from = 4);
        check_rekeyed(false, |record| record.tokens = Tokens::known([]));
        check_rekeyed(true, |record| record.tokens = Tokens::known([1; MAX_CHUNK_TOKENS]));
        check_rekeyed(false, |record| record.tokens = Tokens::known([1; MAX_CHUNK_TOKENS + 1]));
        check_rekeyed(false, |record| record.namespace.model = "../somewhere-else".into());
        check_rekeyed(false, |record| record.tokens = Tokens::Opaque { count: 3 });
        check_rekeyed(true, |record| {
            record.tokens = Tokens::Opaque { count: 3 };
            record.namespace.provenance = Provenance::OpaqueImport("0f".into());
        });
        let continues = |start: usize| {
            move |record: &mut ChunkRecord| {
                (record.parent, record.start) = (Some(ChunkKey::from_bytes([1; 16])), start);
                record.held_from = start;
            }
        };
        check_rekeyed(true, continues(3));
        check_rekeyed(false, continues(0));
        check_rekeyed(false, continues(MAX_POSITION));
        check_rekeyed(false, continues(usize::MAX));
    }

    #[test]
    fn zeros_are_opaque_tokens_only_where_an_opaque_import_begins() {
        let check = |provenance: Provenance, kind: ChunkKind, ids: &[u32], is_opaque: bool| {
            let namespace = Namespace { provenance, ..record().namespace };
            let tokens = ChunkRecord::stored_tokens(&namespace, kind, ids.to_vec());
            assert_eq!(matches!(tokens, Tokens::Opaque { .. }), is_opaque, "{namespace:?}");
            assert_eq!(tokens.stored_ids(), ids);
        };
        let opaque = || Provenance::OpaqueImport("0f".into());
        check(opaque(), ChunkKind::System, &[0, 0], true);
        check(opaque(), ChunkKind::System, &[0, 1], false);
        check(opaque(), ChunkKind::User, &[0, 0], false);
        check(Provenance::Import("0f".into()), ChunkKind::System, &[0, 0], false);
        check(Provenance::Computed, ChunkKind::System, &[0, 0], false);
    }

    #[test]
    fn kinds_have_names() {
        for kind in ChunkKind::ALL {
            assert_eq!(ChunkKind::named(kind.as_str()), Some(kind));
        }
        assert_eq!(ChunkKind::named("tool"), None);
    }
}
