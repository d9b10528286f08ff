//! Which chunks are still to be saved of a prompt.

use super::ChunkIndex;
use super::search::{Parts, RestoreNeeds, num_extendable};
use crate::{ChunkKey, ChunkKind, MAX_CHUNK_TOKENS, Namespace, PromptTokens, Tokens};

/// A chunk to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedChunk {
    /// Its key.
    pub key: ChunkKey,
    /// The chunk that it continues.
    pub parent: Option<ChunkKey>,
    /// The role that its tokens belong to.
    pub kind: ChunkKind,
    /// Position of its first token.
    pub start: usize,
    /// Its tokens.
    pub tokens: Tokens,
}

impl ChunkIndex {
    /// Plans the chunks that `tokens` still need after those already stored.
    ///
    /// They are cut where a message ends (`boundaries`, with the role of what ends there), where a
    /// checkpoint was taken, and at [`MAX_CHUNK_TOKENS`]; the tokens after the last boundary are the
    /// answer's. Afterwards caches with these needs can be restored at each checkpoint and at the
    /// end, which the chunks already stored may not allow. A chunk is never rewritten: one that
    /// matches in part, or stands in the way, gets a sibling that repeats its tokens.
    pub fn write_plan(
        &self,
        namespace: &Namespace,
        tokens: &PromptTokens,
        boundaries: &[(usize, ChunkKind)],
        checkpoints: &[usize],
        needs: RestoreNeeds,
    ) -> Vec<PlannedChunk> {
        // A checkpoint helps only where a chunk ends.
        let boundaries = with_checkpoints(boundaries, checkpoints);
        let end = (!needs.is_met_anywhere()).then_some(tokens.len());
        let positions: Vec<usize> = checkpoints.iter().copied().chain(end).collect();
        let worth = |path: &[_]| num_extendable(path, needs, &positions);
        let stored = self.search(namespace, tokens, Parts::Whole, worth);
        let mut start = stored.worth;
        let last = stored.path.iter().find(|part| part.chunk.record.stop() == start);
        let mut parent = last.map(|part| part.chunk.key());
        let mut planned = Vec::new();
        while start < tokens.len() {
            let next = boundaries.iter().find(|(boundary, _)| *boundary > start);
            let (boundary, kind) = next.copied().unwrap_or((tokens.len(), ChunkKind::Assistant));
            let stop = boundary.min(start + MAX_CHUNK_TOKENS).min(tokens.len());
            let chunk = self.new_chunk(namespace, tokens, parent, kind, start..stop);
            start += chunk.tokens.len();
            parent = Some(chunk.key);
            planned.push(chunk);
        }
        planned
    }

    /// A chunk of `range`, or of as many of its first tokens as no sibling has.
    fn new_chunk(
        &self,
        namespace: &Namespace,
        tokens: &PromptTokens,
        parent: Option<ChunkKey>,
        kind: ChunkKind,
        range: std::ops::Range<usize>,
    ) -> PlannedChunk {
        let above = parent.unwrap_or_else(|| ChunkKey::root(namespace));
        let mut own = tokens.slice(range.start, range.end);
        let mut key = above.child(&own);
        // A sibling with the same tokens would have the same key, so it must be shorter.
        while self.contains(&key) && own.len() > 1 {
            own = tokens.slice(range.start, range.start + own.len() - 1);
            key = above.child(&own);
        }
        // By its kind a row tells opaque tokens from zeros.
        let kind = if own.known_ids().is_empty() { ChunkKind::System } else { kind };
        PlannedChunk { key, parent, kind, start: range.start, tokens: own }
    }
}

/// The boundaries with one more at each checkpoint, of the kind of the message that it is in.
fn with_checkpoints(
    boundaries: &[(usize, ChunkKind)],
    checkpoints: &[usize],
) -> Vec<(usize, ChunkKind)> {
    let mut boundaries = boundaries.to_vec();
    for &position in checkpoints {
        let at = boundaries.partition_point(|(boundary, _)| *boundary < position);
        if boundaries.get(at).is_none_or(|(boundary, _)| *boundary != position) {
            let kind = boundaries.get(at).map_or(ChunkKind::Assistant, |(_, kind)| *kind);
            boundaries.insert(at, (position, kind));
        }
    }
    boundaries
}
