//! Which tokens have stored keys and values, and which of them go when there are too many. Pure:
//! what is stored is any value.
//!
//! ```text
//! root ── "the cat" ──┬── " sat on"        a segment holds what belongs to its own tokens only
//!                     └── " ran" ── " to"
//! ```

use std::collections::HashMap;
use std::ops::Range;

/// A radix tree of token ids. Segments without others behind them go first, the least recently used
/// of these before the others.
///
/// - Two segments that follow the same one begin with different tokens.
/// - All segments together hold at most `limits`.
#[derive(Debug)]
pub(super) struct KvTree<T> {
    limits: Amount,
    held: Amount,
    segments: HashMap<SegmentId, Segment<T>>,
    roots: HashMap<u32, SegmentId>,
    next_id: u64,
    num_uses: u64,
}

/// Names a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SegmentId(u64);

/// How much there is or may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Amount {
    pub(super) num_tokens: usize,
    /// Bytes of recurrent states, which do not grow with the tokens.
    pub(super) state_bytes: usize,
}

/// What is stored of a segment's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored<T> {
    /// The first token of which every layer has keys and values.
    pub(super) held_from: usize,
    /// Whether the recurrent states after its last token are stored.
    pub(super) has_state: bool,
    pub(super) state_bytes: usize,
    pub(super) value: T,
}

#[derive(Debug)]
struct Segment<T> {
    parent: Option<SegmentId>,
    start: usize,
    tokens: Vec<u32>,
    children: HashMap<u32, SegmentId>,
    stored: Stored<T>,
    last_use: u64,
}

/// What has to be stored to continue a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Needs {
    /// How many of the last tokens; `None` for all.
    pub(super) window: Option<usize>,
    /// The states after the last one.
    pub(super) state: bool,
}

/// The segments that begin a sequence, the first of them first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Path {
    pub(super) segments: Vec<SegmentId>,
    /// How many tokens of the sequence they cover; the last may hold more.
    pub(super) num_tokens: usize,
}

impl<T> Segment<T> {
    fn stop(&self) -> usize {
        self.start + self.tokens.len()
    }

    fn amount(&self) -> Amount {
        Amount { num_tokens: self.tokens.len(), state_bytes: self.stored.state_bytes }
    }
}

impl<T> KvTree<T> {
    pub(super) fn new(limits: Amount) -> Self {
        KvTree {
            limits,
            held: Amount::default(),
            segments: HashMap::new(),
            roots: HashMap::new(),
            next_id: 0,
            num_uses: 0,
        }
    }

    /// The segments that begin `ids`.
    pub(super) fn path(&self, ids: &[u32]) -> Path {
        let mut path = Path::default();
        let mut next = ids.first().and_then(|token| self.roots.get(token));
        while let Some(&id) = next
            && let Some(segment) = self.segments.get(&id)
        {
            let same = num_common(&segment.tokens, &ids[segment.start..]);
            path.segments.push(id);
            path.num_tokens = segment.start + same;
            if same < segment.tokens.len() {
                break;
            }
            next = ids.get(path.num_tokens).and_then(|token| segment.children.get(token));
        }
        path
    }

    /// The longest beginning of `ids`, at most `most` tokens, from which a model with these needs
    /// can continue.
    pub(super) fn usable(&self, ids: &[u32], most: usize, needs: Needs) -> Path {
        let path = self.path(ids);
        let most = most.min(path.num_tokens);
        let usable = (1..=most).rev().find(|&stop| self.can_continue(&path, stop, needs));
        let num_tokens = usable.unwrap_or(0);
        let begins_before = |id: &SegmentId| self.range(*id).start < num_tokens;
        let segments = path.segments.into_iter().take_while(begins_before).collect();
        Path { segments, num_tokens }
    }

    fn can_continue(&self, path: &Path, stop: usize, needs: Needs) -> bool {
        let first = stop - needs.window.unwrap_or(0).min(stop);
        let segments = path.segments.iter().filter_map(|id| self.segments.get(id));
        let mut has_state = false;
        for segment in segments.take_while(|segment| segment.start < stop) {
            has_state = segment.stop() == stop && segment.stored.has_state;
            let needed_from = segment.start.max(first);
            if needs.window.is_some()
                && needed_from < segment.stop().min(stop)
                && segment.stored.held_from > needed_from
            {
                return false;
            }
        }
        has_state || !needs.state
    }

    /// The positions of a segment's tokens.
    pub(super) fn range(&self, id: SegmentId) -> Range<usize> {
        self.segments.get(&id).map_or(0..0, |segment| segment.start..segment.stop())
    }

    /// What is stored of a segment.
    pub(super) fn stored(&self, id: SegmentId) -> Option<&Stored<T>> {
        self.segments.get(&id).map(|segment| &segment.stored)
    }

    /// Counts the segments of a path as used now.
    pub(super) fn touch(&mut self, path: &Path) {
        self.num_uses += 1;
        for id in &path.segments {
            if let Some(segment) = self.segments.get_mut(id) {
                segment.last_use = self.num_uses;
            }
        }
    }

    /// Cuts the last segment of a path where the path ends in the middle of it: `head` is what is
    /// stored up to there, and `tail` what is stored behind. Returns whether there was room for the
    /// states of `head`.
    pub(super) fn split(&mut self, path: &Path, head: Stored<T>, tail: Stored<T>) -> bool {
        let at = path.num_tokens;
        let more = Amount { state_bytes: head.state_bytes, ..Amount::default() };
        let (Some(&id), true) = (path.segments.last(), self.make_room(more, path)) else {
            return false;
        };
        let new_id = self.new_id();
        let Some(segment) = self.segments.get_mut(&id) else { return false };
        if at <= segment.start || at >= segment.stop() {
            return false;
        }
        let before = segment.amount();
        let tokens = segment.tokens.split_off(at - segment.start);
        let children = std::mem::take(&mut segment.children);
        segment.children.insert(tokens[0], new_id);
        segment.stored = head;
        let (last_use, first) = (segment.last_use, segment.amount());
        let (parent, stored) = (Some(id), tail);
        let behind = Segment { parent, start: at, tokens, children, stored, last_use };
        for child in behind.children.values() {
            if let Some(child) = self.segments.get_mut(child) {
                child.parent = Some(new_id);
            }
        }
        let second = behind.amount();
        self.segments.insert(new_id, behind);
        self.held.num_tokens += first.num_tokens + second.num_tokens;
        self.held.num_tokens -= before.num_tokens;
        self.held.state_bytes += first.state_bytes + second.state_bytes;
        self.held.state_bytes -= before.state_bytes;
        true
    }

    /// Replaces what is stored of a segment of a path, if there is room for more states.
    pub(super) fn replace(&mut self, path: &Path, id: SegmentId, stored: Stored<T>) {
        let before = self.stored(id).map_or(0, |before| before.state_bytes);
        let state_bytes = stored.state_bytes.saturating_sub(before);
        if self.make_room(Amount { state_bytes, ..Amount::default() }, path)
            && let Some(segment) = self.segments.get_mut(&id)
        {
            self.held.state_bytes += stored.state_bytes;
            self.held.state_bytes -= segment.stored.state_bytes;
            segment.stored = stored;
        }
    }

    /// Stores the tokens that follow a path, which ends with a segment or is empty. Returns whether
    /// there was room: segments of the path stay.
    pub(super) fn push(&mut self, path: &mut Path, tokens: Vec<u32>, stored: Stored<T>) -> bool {
        let amount = Amount { num_tokens: tokens.len(), state_bytes: stored.state_bytes };
        let Some(&first) = tokens.first() else { return false };
        if !self.make_room(amount, path) {
            return false;
        }
        let id = self.new_id();
        let (parent, start) = (path.segments.last().copied(), path.num_tokens);
        let siblings = match parent.and_then(|parent| self.segments.get_mut(&parent)) {
            Some(parent) => &mut parent.children,
            None => &mut self.roots,
        };
        siblings.insert(first, id);
        path.num_tokens += tokens.len();
        path.segments.push(id);
        self.held.num_tokens += amount.num_tokens;
        self.held.state_bytes += amount.state_bytes;
        let (children, last_use) = (HashMap::new(), self.num_uses);
        self.segments.insert(id, Segment { parent, start, tokens, children, stored, last_use });
        self.touch(&path.clone());
        true
    }

    /// Drops segments that are not of the path until there is room for so much. Drops nothing if
    /// there cannot be.
    fn make_room(&mut self, amount: Amount, path: &Path) -> bool {
        let kept = path.segments.iter().filter_map(|id| self.segments.get(id)).map(Segment::amount);
        let least = kept.fold(amount, |sum, next| Amount {
            num_tokens: sum.num_tokens + next.num_tokens,
            state_bytes: sum.state_bytes + next.state_bytes,
        });
        if !least.is_within(self.limits) {
            return false;
        }
        loop {
            let wanted = Amount {
                num_tokens: self.held.num_tokens + amount.num_tokens,
                state_bytes: self.held.state_bytes + amount.state_bytes,
            };
            if wanted.is_within(self.limits) {
                return true;
            }
            let leaves = self
                .segments
                .iter()
                .filter(|(id, segment)| segment.children.is_empty() && !path.segments.contains(id));
            let oldest = leaves.min_by_key(|(id, segment)| (segment.last_use, **id));
            let Some(oldest) = oldest.map(|(id, _)| *id) else { return false };
            self.drop_leaf(oldest);
        }
    }

    fn drop_leaf(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.remove(&id) else { return };
        let amount = segment.amount();
        self.held.num_tokens -= amount.num_tokens;
        self.held.state_bytes -= amount.state_bytes;
        let siblings = match segment.parent.and_then(|parent| self.segments.get_mut(&parent)) {
            Some(parent) => &mut parent.children,
            None => &mut self.roots,
        };
        siblings.remove(&segment.tokens[0]);
    }

    /// The most that may be held.
    pub(super) fn limits(&self) -> Amount {
        self.limits
    }

    /// All that is stored, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.segments.values().map(|segment| &segment.stored.value)
    }

    /// What is held.
    pub(super) fn held(&self) -> Amount {
        self.held
    }

    pub(super) fn clear(&mut self) {
        *self = KvTree { next_id: self.next_id, ..KvTree::new(self.limits) };
    }

    fn new_id(&mut self) -> SegmentId {
        self.next_id += 1;
        SegmentId(self.next_id)
    }
}

impl Amount {
    fn is_within(self, limits: Amount) -> bool {
        self.num_tokens <= limits.num_tokens && self.state_bytes <= limits.state_bytes
    }
}

/// How many tokens both begin with.
pub(super) fn num_common(one: &[u32], other: &[u32]) -> usize {
    std::iter::zip(one, other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was stored of which tokens: plain keys and values.
    type Tree = KvTree<Range<usize>>;

    fn plain(range: Range<usize>) -> Stored<Range<usize>> {
        Stored { held_from: range.start, has_state: false, state_bytes: 0, value: range }
    }

    fn tree(num_tokens: usize) -> Tree {
        KvTree::new(Amount { num_tokens, state_bytes: 100 })
    }

    /// Stores a sequence as its owner does, with `last` for what is stored at its end.
    fn store(tree: &mut Tree, text: &str, last: impl Fn(Range<usize>) -> Stored<Range<usize>>) {
        let ids = ids(text);
        let mut path = tree.path(&ids);
        let at = path.num_tokens;
        if let Some(&id) = path.segments.last()
            && at < tree.range(id).end
        {
            let Range { start, end } = tree.range(id);
            let of = |range: Range<usize>| if at == ids.len() { last(range) } else { plain(range) };
            let old = tree.stored(id).expect("stored").clone();
            let tail = Stored { held_from: old.held_from.max(at), value: at..end, ..old };
            if !tree.split(&path, of(start..at), tail) {
                return;
            }
        }
        tree.touch(&path);
        if at < ids.len() {
            tree.push(&mut path, ids[at..].to_vec(), last(at..ids.len()));
        }
    }

    fn ids(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn usable(tree: &Tree, text: &str, needs: Needs) -> usize {
        let path = tree.usable(&ids(text), text.len(), needs);
        let covered = path.segments.last().map_or(0, |&id| tree.range(id).end);
        assert!(covered >= path.num_tokens, "{text}: {path:?}");
        path.num_tokens
    }

    #[test]
    fn sequences_share_the_segments_that_they_begin_with() {
        let mut tree = tree(100);
        for text in ["the cat sat", "the cat ran", "the cat ran to", "a dog"] {
            store(&mut tree, text, plain);
        }
        assert_eq!(tree.held().num_tokens, "the cat sat".len() + "ran to".len() + "a dog".len());
        let table = [
            ("the cat sat", 11),
            ("the cat sat down", 11),
            ("the cat ran to", 14),
            ("the cat ran away", 12),
            ("the car", 6),
            ("a dogma", 5),
            ("b", 0),
            ("", 0),
        ];
        for (text, expected) in table {
            assert_eq!(tree.path(&ids(text)).num_tokens, expected, "{text}");
            assert_eq!(usable(&tree, text, Needs::default()), expected, "{text}");
        }
        // Each segment stores what its own tokens are.
        let path = tree.path(&ids("the cat ran to"));
        let values = path.segments.iter().map(|&id| {
            let stored = tree.stored(id).expect("stored");
            assert_eq!(stored.value, tree.range(id));
            stored.value.clone()
        });
        assert_eq!(values.collect::<Vec<_>>(), [0..8, 8..11, 11..14]);
        assert_eq!(tree.usable(&ids("the cat ran"), 10, Needs::default()).num_tokens, 10);
        tree.clear();
        assert_eq!((tree.held(), usable(&tree, "the", Needs::default())), (Amount::default(), 0));
    }

    #[test]
    fn a_state_is_continued_only_from_its_own_token() {
        let with_state = |range| Stored { has_state: true, state_bytes: 10, ..plain(range) };
        let needs = Needs { state: true, window: None };
        let mut tree = tree(100);
        store(&mut tree, "the cat sat", with_state);
        let check = |tree: &Tree, table: &[(&str, usize)]| {
            for (text, expected) in table {
                assert_eq!(usable(tree, text, needs), *expected, "{text}");
            }
        };
        check(&tree, &[("the cat sat down", 11), ("the cat ran", 0), ("the cat", 0)]);
        // Another sequence parts before it: there is no state where they part.
        store(&mut tree, "the cat ran", with_state);
        check(&tree, &[("the cat sat down", 11), ("the cat ran up", 11), ("the cat r", 0)]);
        // Until one is stored there.
        store(&mut tree, "the cat ", with_state);
        check(&tree, &[("the cat sat down", 11), ("the cat walks", 0)]);
        let path = tree.path(&ids("the cat "));
        tree.replace(&path, path.segments[0], with_state(0..8));
        check(&tree, &[("the cat walks", 8), ("the cat sat", 11)]);
        store(&mut tree, "the", with_state);
        check(&tree, &[("then", 3), ("the cat walks", 8), ("the cat sat", 11)]);
        assert_eq!(tree.held(), Amount { num_tokens: 14, state_bytes: 40 });
    }

    #[test]
    fn a_window_is_continued_where_its_tokens_are_held() {
        let mut tree = tree(100);
        let last_four = |range: Range<usize>| Stored {
            held_from: range.end.saturating_sub(4).max(range.start),
            ..plain(range)
        };
        let needs = |window| Needs { state: false, window: Some(window) };
        store(&mut tree, "0123456789", last_four);
        let table = [("0123456789", 4, 10), ("0123456789", 3, 10), ("0123456789", 5, 0)];
        for (text, window, expected) in table {
            assert_eq!(usable(&tree, text, needs(window)), expected, "{text}, {window}");
        }
        // Of the tokens 6 to 9 the middle can be continued with a narrower window.
        assert_eq!(usable(&tree, "01234567x", needs(2)), 8);
        assert_eq!(usable(&tree, "01234567x", needs(3)), 0);
        // A window reaches over several segments.
        store(&mut tree, "0123456789ab", last_four);
        assert_eq!(usable(&tree, "0123456789ab", needs(5)), 12);
        assert_eq!(usable(&tree, "0123456789ab", needs(7)), 0);
    }

    #[test]
    fn the_least_recently_used_end_goes_first_and_the_limits_hold() {
        let mut tree = tree(12);
        for text in ["abcd", "abxy", "mnop"] {
            store(&mut tree, text, plain);
        }
        // "ab" is two tokens shared, so that ten are held.
        assert_eq!(tree.held().num_tokens, 10);
        tree.touch(&tree.path(&ids("abcd")));
        store(&mut tree, "wxyz", plain);
        let held: Vec<usize> = ["abcd", "abxy", "mnop", "wxyz"]
            .iter()
            .map(|text| usable(&tree, text, Needs::default()))
            .collect();
        assert_eq!((held, tree.held().num_tokens), (vec![4, 2, 4, 4], 12));
        // What cannot fit is not stored, and takes nothing's place.
        store(&mut tree, "0123456789012", plain);
        assert_eq!((usable(&tree, "0123", Needs::default()), tree.held().num_tokens), (0, 12));
        // What follows a sequence does not displace its beginning.
        store(&mut tree, "wxyz12345678", plain);
        assert_eq!(
            (usable(&tree, "wxyz12345678", Needs::default()), tree.held().num_tokens),
            (12, 12)
        );
        store(&mut tree, "wxyz123456789", plain);
        assert_eq!(tree.held().num_tokens, 12);
        // The same for states.
        let heavy = |range| Stored { has_state: true, state_bytes: 60, ..plain(range) };
        for text in ["ab", "cd", "ef"] {
            store(&mut tree, text, heavy);
            assert!(tree.held().state_bytes <= 100);
        }
        assert_eq!(usable(&tree, "ef", Needs { state: true, window: None }), 2);
    }
}
