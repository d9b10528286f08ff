//! Which chunks hold a beginning of a prompt.

use std::cell::Cell;
use std::ops::Bound;

use super::{Chunk, ChunkIndex};
use crate::tokens::common_prefix;
use crate::{ChunkKey, ChunkRecord, MAX_CHUNK_TOKENS, Namespace, PromptTokens};

/// What must be stored for a model's caches to be restored at a position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestoreNeeds {
    /// The width of the widest sliding window; none where every layer attends to all tokens.
    pub window: Option<usize>,
    /// Whether there are recurrent states, which are needed at exactly that position.
    pub needs_state: bool,
}

impl RestoreNeeds {
    /// Whether caches can be restored after every stored token.
    pub(super) fn is_met_anywhere(&self) -> bool {
        self.window.is_none() && !self.needs_state
    }
}

/// The chunks from which the caches of a prompt's beginning can be restored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestorePlan {
    /// The chunks in order; of the last one perhaps only the first tokens are wanted.
    pub chunks: Vec<ChunkRecord>,
    /// How many tokens.
    pub num_tokens: usize,
}

impl RestorePlan {
    fn of(path: &[Matched<'_>], needs: RestoreNeeds) -> RestorePlan {
        let num_tokens = num_restorable(path, needs);
        let wanted = path.iter().filter(|part| part.chunk.record.start < num_tokens);
        RestorePlan { chunks: wanted.map(|part| part.chunk.record.clone()).collect(), num_tokens }
    }
}

/// A chunk whose first `num_tokens` tokens stand in a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matched<'a> {
    pub(super) chunk: &'a Chunk,
    pub(super) num_tokens: usize,
}

impl Matched<'_> {
    fn is_whole(&self) -> bool {
        self.num_tokens == self.chunk.record.num_tokens()
    }

    fn stop(&self) -> usize {
        self.chunk.record.start + self.num_tokens
    }
}

/// A path of chunks that match a beginning of a prompt; the last may match in part.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    pub(super) path: Vec<Matched<'a>>,
    pub(super) worth: usize,
    /// How many chunks were compared with the prompt.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test bounds it"))]
    pub(super) num_visited: usize,
}

impl<'a> Found<'a> {
    /// Takes a path if it is worth more than the one before, or equally much and longer.
    fn consider(&mut self, path: &[Matched<'a>], worth: impl Fn(&[Matched<'a>]) -> usize) {
        let stop_of = |path: &[Matched<'_>]| path.last().map_or(0, Matched::stop);
        let (stop, before) = (stop_of(path), (self.worth, stop_of(&self.path)));
        // A path is worth no more than its tokens.
        if (stop, stop) <= before {
            return;
        }
        let worth = worth(path);
        if (worth, stop) > before {
            (self.path, self.worth) = (path.to_vec(), worth);
        }
    }

    /// The last of the chunks that match whole.
    fn last_whole(&self) -> Option<&ChunkRecord> {
        self.path.iter().rfind(|part| part.is_whole()).map(|part| &part.chunk.record)
    }
}

impl ChunkIndex {
    /// The chunks that let the most of a prompt be restored.
    pub fn restore_plan(
        &self,
        namespace: &Namespace,
        tokens: &PromptTokens,
        needs: RestoreNeeds,
    ) -> RestorePlan {
        RestorePlan::of(&self.restorable(namespace, tokens, needs).path, needs)
    }

    pub(super) fn restorable(
        &self,
        namespace: &Namespace,
        tokens: &PromptTokens,
        needs: RestoreNeeds,
    ) -> Found<'_> {
        // States are stored after whole chunks only.
        let parts = if needs.needs_state { Parts::Whole } else { Parts::Any };
        self.search(namespace, tokens, parts, |path| num_restorable(path, needs))
    }

    /// As [`ChunkIndex::restore_plan`], for the tokens up to the end of a chunk.
    pub fn restore_plan_to(&self, key: &ChunkKey, needs: RestoreNeeds) -> RestorePlan {
        let whole = |chunk| Matched { chunk, num_tokens: chunk.record.num_tokens() };
        let path: Vec<Matched<'_>> = self.path(key).into_iter().map(whole).collect();
        RestorePlan::of(&path, needs)
    }

    /// The chunks that hold a beginning of a prompt, the longest one.
    pub fn keys_of(&self, namespace: &Namespace, tokens: &PromptTokens) -> Vec<ChunkKey> {
        let found = self.restorable(namespace, tokens, RestoreNeeds::default());
        found.path.iter().map(|part| part.chunk.key()).collect()
    }

    /// The last chunk of what is stored of a prompt: where a reference to it points. Among paths of
    /// equal length one that can be restored at its end is preferred.
    pub fn end_of(
        &self,
        namespace: &Namespace,
        tokens: &PromptTokens,
        needs: RestoreNeeds,
    ) -> Option<ChunkKey> {
        let worth = |path: &[Matched<'_>]| {
            let stop = path.last().map_or(0, Matched::stop);
            stop - usize::from(num_restorable(path, needs) < stop)
        };
        let found = self.search(namespace, tokens, Parts::Whole, worth);
        found.last_whole().map(|record| record.key)
    }

    /// Of all paths of chunks that match a beginning of `tokens`, the one with the highest worth,
    /// among equals the longest. The worth of a path must not exceed its number of tokens, and must
    /// not become less where chunks are added at its end.
    ///
    /// Siblings may begin alike and differ in length. The one that matches further may have no
    /// children, while the conversation continues after a shorter one, or only there can its caches
    /// be restored.
    pub(super) fn search<'a>(
        &'a self,
        namespace: &Namespace,
        tokens: &PromptTokens,
        parts: Parts,
        worth: impl Fn(&[Matched<'a>]) -> usize,
    ) -> Found<'a> {
        let walk = Walk { index: self, tokens, num_visited: Cell::new(0) };
        let mut best = Found::default();
        let mut path: Vec<Matched<'a>> = Vec::new();
        // What is still to be followed, and the depth at which it joins the path. A stack: the last
        // is followed first.
        let mut pending = vec![(0, Step::Root)];
        while let Some((depth, step)) = pending.pop().filter(|_| best.worth < tokens.len()) {
            path.truncate(depth);
            let (parent, position) = match step {
                Step::Root => (ChunkKey::root(namespace), 0),
                Step::Whole(matched) => {
                    path.push(matched);
                    (matched.chunk.key(), matched.stop())
                }
                Step::Partial(parent, position) => {
                    for matched in walk.partial_matches(&parent, position) {
                        // Those that follow match less.
                        if position + matched.num_tokens <= best.worth {
                            break;
                        }
                        path.push(matched);
                        best.consider(&path, &worth);
                        path.pop();
                    }
                    continue;
                }
            };
            let whole = walk.whole_matches(&parent, position);
            if whole.is_empty() {
                best.consider(&path, &worth);
            }
            // Chunks that match whole are followed first: a longer path spares comparisons.
            if parts == Parts::Any {
                pending.push((path.len(), Step::Partial(parent, position)));
            }
            pending.extend(whole.into_iter().map(|matched| (path.len(), Step::Whole(matched))));
        }
        Found { num_visited: walk.num_visited.get(), ..best }
    }
}

/// Which chunks a path may end with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// Only those that match whole.
    Whole,
    /// Also one of which only the first tokens match.
    Any,
}

enum Step<'a> {
    Root,
    Whole(Matched<'a>),
    /// The children of a chunk, at a position, that match in part.
    Partial(ChunkKey, usize),
}

/// Compares the children of chunks with a prompt.
struct Walk<'a, 't> {
    index: &'a ChunkIndex,
    tokens: &'t PromptTokens,
    num_visited: Cell<usize>,
}

impl<'a, 't> Walk<'a, 't> {
    fn matched(&self, key: &ChunkKey, num_tokens: usize) -> Option<Matched<'a>> {
        Some(Matched { chunk: self.index.chunks.get(key)?, num_tokens })
    }

    /// How many tokens `ids` and `rest` share.
    fn compare(&self, ids: &[u32], rest: &[u32]) -> usize {
        self.num_visited.update(|count| count + 1);
        common_prefix(ids, rest)
    }

    /// As many of the prompt's tokens from `position` on as a chunk can hold; none where they are
    /// opaque.
    fn rest(&self, position: usize) -> Option<&'t [u32]> {
        let rest = self.tokens.known_from(position)?;
        Some(&rest[..rest.len().min(MAX_CHUNK_TOKENS)])
    }

    /// The children of `parent` all of whose tokens stand in the prompt at `position`, the shortest
    /// first.
    fn whole_matches(&self, parent: &ChunkKey, position: usize) -> Vec<Matched<'a>> {
        let Some(children) = self.index.children.get(parent) else { return Vec::new() };
        let Some(mut rest) = self.rest(position) else {
            let opaque = children.opaque.range(..=self.tokens.num_opaque_from(position));
            return opaque.filter_map(|(count, key)| self.matched(key, *count)).collect();
        };
        let mut found = Vec::new();
        while !rest.is_empty() {
            // A child that is a beginning of `rest` sorts before it, but others may stand between.
            // The nearest one says how much such a beginning can have at most.
            let before = (Bound::Unbounded, Bound::Included(rest));
            let Some((ids, key)) = children.known.range::<[u32], _>(before).next_back() else {
                break;
            };
            let shared = self.compare(ids, rest);
            if shared == ids.len() {
                found.extend(self.matched(key, shared));
                rest = &rest[..shared - 1];
            } else {
                rest = &rest[..shared];
            }
        }
        found.reverse();
        found
    }

    /// The children of `parent` of which only the first tokens stand in the prompt at `position`,
    /// those that match further first.
    fn partial_matches(
        &self,
        parent: &ChunkKey,
        position: usize,
    ) -> impl Iterator<Item = Matched<'a>> {
        let children = self.index.children.get(parent);
        let opaque = self.tokens.num_opaque_from(position);
        let longer = children.filter(|_| opaque > 0).into_iter();
        let longer = longer.flat_map(move |children| children.opaque.range(opaque + 1..));
        let of_opaque = longer.filter_map(move |(_, key)| self.matched(key, opaque));

        // The nearest neighbours of `rest` in the order of tokens share the most with it.
        let rest = self.rest(position).unwrap_or_default();
        let known = children.filter(|_| !rest.is_empty()).map(|children| &children.known);
        let compared = move |(ids, key): (&std::sync::Arc<[u32]>, &'a ChunkKey)| {
            (self.compare(ids, rest), ids.len(), key)
        };
        let range = move |bounds: (Bound<&'t [u32]>, Bound<&'t [u32]>)| {
            known.into_iter().flat_map(move |known| known.range::<[u32], _>(bounds))
        };
        let before = range((Bound::Unbounded, Bound::Included(rest))).rev().map(compared);
        let mut before = before.filter(|(shared, len, _)| shared < len).peekable();
        let after = range((Bound::Excluded(rest), Bound::Unbounded)).map(compared);
        let mut after = after.peekable();
        let nearest = std::iter::from_fn(move || match (before.peek(), after.peek()) {
            (Some((before_shared, ..)), Some((after_shared, ..)))
                if before_shared < after_shared =>
            {
                after.next()
            }
            (Some(_), _) => before.next(),
            (None, _) => after.next(),
        });
        let of_known = nearest
            .take_while(|(shared, ..)| *shared > 0)
            .filter_map(move |(shared, _, key)| self.matched(key, shared));
        of_opaque.chain(of_known)
    }
}

/// The most tokens of a path after which caches with these needs can be restored.
pub(super) fn num_restorable(path: &[Matched<'_>], needs: RestoreNeeds) -> usize {
    let mut position = path.last().map_or(0, Matched::stop);
    'positions: while position > 0 {
        if needs.needs_state {
            let with_state = path.iter().rev().filter(|part| part.chunk.record.has_state);
            let mut states = with_state.filter(|part| part.is_whole()).map(Matched::stop);
            let Some(state) = states.find(|stop| *stop <= position) else { return 0 };
            position = state;
        }
        let Some(window) = needs.window else { return position };
        let from = position.saturating_sub(window);
        for part in path.iter().rev() {
            let record = &part.chunk.record;
            if record.stop() <= from {
                break;
            }
            if record.start < position && record.held_from > record.start.max(from) {
                // The tokens missing here are missing for every position down to the chunk's start.
                position = record.start;
                continue 'positions;
            }
        }
        return position;
    }
    0
}

/// The number of tokens in the leading whole chunks of a path that can be extended so that each of
/// `positions` is restorable. A chunk stands in the way if a position is inside it, or if it lacks
/// the state or window that the position needs.
pub(super) fn num_extendable(
    path: &[Matched<'_>],
    needs: RestoreNeeds,
    positions: &[usize],
) -> usize {
    let whole = path.iter().filter(|part| part.is_whole()).map(|part| &part.chunk.record);
    let whole: Vec<&ChunkRecord> = whole.collect();
    let mut num_usable = whole.len();
    for &position in positions {
        let is_blocking = |record: &ChunkRecord| {
            position < record.stop()
                || (position == record.stop() && needs.needs_state && !record.has_state)
        };
        // The first token of the window that ends at the position.
        let from = position - needs.window.unwrap_or_default().min(position);
        let lacks_window = |record: &ChunkRecord| {
            record.stop() > from && record.held_from > record.start.max(from)
        };
        let mut before = whole.iter().take_while(|record| record.start < position);
        num_usable = before
            .position(|record| is_blocking(record) || lacks_window(record))
            .map_or(num_usable, |blocking| num_usable.min(blocking));
    }
    whole[..num_usable].last().map_or(0, |record| record.stop())
}
