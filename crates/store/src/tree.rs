//! The tree of one conversation without its texts: which messages are versions of each other, and
//! where a branch ends; pure.
//!
//! A message that was deleted stays in the tree until its deletion is purged, but nobody is led to it:
//! what follows it counts as following its *live parent*, the nearest message before it that is not
//! deleted.

use std::collections::HashMap;

use sqlx::FromRow;

/// A row of the messages table, as far as the tree needs it.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub(crate) struct TreeRow {
    pub(crate) id: String,
    pub(crate) parent_id: Option<String>,
    pub(crate) shown_seq: Option<i64>,
    pub(crate) deletion_id: Option<String>,
}

impl TreeRow {
    fn is_live(&self) -> bool {
        self.deletion_id.is_none()
    }
}

/// The messages of one conversation. Rows are in the order of their numbers, so a parent stands before
/// its children.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    rows: Vec<TreeRow>,
    places: HashMap<String, usize>,
    /// The live parent of each row.
    parents: Vec<Option<usize>>,
}

impl Tree {
    /// Builds the tree; rows are ordered by their number.
    pub(crate) fn new(rows: Vec<TreeRow>) -> Tree {
        let places: HashMap<String, usize> =
            rows.iter().enumerate().map(|(place, row)| (row.id.clone(), place)).collect();
        let mut parents: Vec<Option<usize>> = Vec::with_capacity(rows.len());
        for (place, row) in rows.iter().enumerate() {
            // A parent that is not older is damage: without this condition a walk might not end.
            let parent = row.parent_id.as_ref().and_then(|id| places.get(id)).copied();
            let parent = parent.filter(|parent| *parent < place);
            let live = parent.and_then(|parent| match rows[parent].is_live() {
                true => Some(parent),
                false => parents[parent],
            });
            parents.push(live);
        }
        Tree { rows, places, parents }
    }

    /// Where a message that is not deleted stands.
    fn live(&self, id: &str) -> Option<usize> {
        self.places.get(id).copied().filter(|place| self.rows[*place].is_live())
    }

    pub(crate) fn is_live(&self, id: &str) -> bool {
        self.live(id).is_some()
    }

    fn id(&self, place: usize) -> &str {
        &self.rows[place].id
    }

    /// The nearest message before one that is not deleted; none at the beginning.
    pub(crate) fn live_parent(&self, id: &str) -> Option<&str> {
        let place = *self.places.get(id)?;
        self.parents[place].map(|parent| self.id(parent))
    }

    /// The messages of this tree, by the live parent that they share.
    pub(crate) fn into_versions(self) -> Versions {
        let mut by_parent: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
        for (place, _) in self.rows.iter().enumerate().filter(|(_, row)| row.is_live()) {
            by_parent.entry(self.parents[place]).or_default().push(place);
        }
        Versions { tree: self, by_parent }
    }

    /// A message and all that follows it, deleted ones included.
    pub(crate) fn following(&self, id: &str) -> Vec<&str> {
        let Some(first) = self.places.get(id).copied() else { return Vec::new() };
        let mut is_in = vec![false; self.rows.len()];
        is_in[first] = true;
        for place in first + 1..self.rows.len() {
            let parent = self.rows[place].parent_id.as_ref().and_then(|id| self.places.get(id));
            is_in[place] = parent.is_some_and(|parent| *parent < place && is_in[*parent]);
        }
        let places = is_in.iter().enumerate().filter(|(_, is_in)| **is_in);
        places.map(|(place, _)| self.id(place)).collect()
    }

    /// Where the branch through a message ends: at the one behind it that was shown last, and then at
    /// the newest behind that. Without a message, among all.
    pub(crate) fn leaf_below(&self, id: Option<&str>) -> Option<&str> {
        let first = match id {
            Some(id) => Some(self.live(id)?),
            None => None,
        };
        let mut is_below: Vec<bool> = vec![false; self.rows.len()];
        for place in 0..self.rows.len() {
            let parent_is = || match self.parents[place] {
                Some(parent) => is_below[parent],
                None => first.is_none(),
            };
            is_below[place] = self.rows[place].is_live() && (Some(place) == first || parent_is());
        }
        let below = (0..self.rows.len()).filter(|place| is_below[*place]);
        // Of several that were never shown, the newest.
        let shown = below.max_by_key(|place| (self.rows[*place].shown_seq, *place))?;
        let newest_children = self.newest_children();
        let mut leaf = shown;
        while let Some(newest) = newest_children[leaf] {
            leaf = newest;
        }
        Some(self.id(leaf))
    }

    /// The newest live child of each row.
    fn newest_children(&self) -> Vec<Option<usize>> {
        let mut newest = vec![None; self.rows.len()];
        for (place, parent) in self.parents.iter().enumerate() {
            if let Some(parent) = parent.filter(|_| self.rows[place].is_live()) {
                newest[parent] = Some(place);
            }
        }
        newest
    }

    /// Where the branch ends once its end was deleted: at another version of what was deleted, or at
    /// what stood before it.
    pub(crate) fn leaf_instead(&self, deleted: &str) -> Option<&str> {
        self.leaf_below(self.live_parent(deleted))
    }
}

/// Versions: messages of a conversation that replace each other. The ids of a place are kept once: a
/// question with thousands of answers would otherwise need millions of them.
#[derive(Debug, Default)]
pub struct Versions {
    tree: Tree,
    by_parent: HashMap<Option<usize>, Vec<usize>>,
}

impl Versions {
    /// The ids of all messages that follow the same message as this one, itself included, oldest first.
    /// Empty if it has no other version.
    pub fn siblings(&self, id: &str) -> Vec<String> {
        let Some(place) = self.tree.live(id) else { return Vec::new() };
        let siblings = self.by_parent.get(&self.tree.parents[place]).map_or(&[][..], Vec::as_slice);
        match siblings {
            [_] => Vec::new(),
            several => several.iter().map(|place| self.tree.id(*place).to_owned()).collect(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// Rows such as `b<a` for a message b that follows a; `!` before it: deleted, `*3` behind it: the
    /// number under which it was shown.
    fn tree(rows: &str) -> Tree {
        let row = |text: &str| {
            let deletion_id = text.starts_with('!').then(|| "d".to_owned());
            let (text, shown_seq) = match text.trim_start_matches('!').split_once('*') {
                Some((text, number)) => (text, Some(number.parse().unwrap())),
                None => (text.trim_start_matches('!'), None),
            };
            let (id, parent_id) = match text.split_once('<') {
                Some((id, parent)) => (id, Some(parent.to_owned())),
                None => (text, None),
            };
            TreeRow { id: id.to_owned(), parent_id, shown_seq, deletion_id }
        };
        Tree::new(rows.split_whitespace().map(row).collect())
    }

    #[test]
    fn a_branch_ends_at_what_was_shown_last_and_then_at_the_newest() {
        fn check(rows: &str, below: Option<&str>, expected: Option<&str>) {
            assert_eq!(tree(rows).leaf_below(below), expected, "{rows} below {below:?}");
        }
        check("", None, None);
        check("a", None, Some("a"));
        check("a b<a c<b", Some("a"), Some("c"));
        check("a b<a c<a", Some("a"), Some("c"));
        check("a b<a*2 c<a*1", Some("a"), Some("b"));
        check("a b<a*2 c<a*1", Some("c"), Some("c"));
        check("a b<a*2 c<a*1 d<b", Some("a"), Some("d"));
        check("a b<a*2 !c<a*3", Some("a"), Some("b"));
        check("a b<a c<b e", None, Some("e"));
        check("a*1 b<a*4 e*2", None, Some("b"));
        check("!a b<a c<b", None, Some("c"));
        check("!a b<a c<b", Some("a"), None);
        check("a !b<a c<b", Some("a"), Some("c"));
        check("!a !b<a", None, None);
        // Damage: a circle, and a parent that is nowhere.
        check("a<b b<a", None, Some("b"));
        check("a<z", None, Some("a"));
    }

    #[test]
    fn versions_follow_the_same_message_that_is_there() {
        fn check(rows: &str, id: &str, expected: &[&str]) {
            assert_eq!(tree(rows).into_versions().siblings(id), expected, "{rows}: {id}");
        }
        check("a b<a c<b", "b", &[]);
        check("a b<a c<a", "b", &["b", "c"]);
        check("a b<a c<a", "c", &["b", "c"]);
        check("a b", "a", &["a", "b"]);
        check("a b<a !c<a d<a", "d", &["b", "d"]);
        check("a b<a !c<a d<c", "b", &["b", "d"]);
        check("a !b<a c<a", "c", &[]);
        check("a !b<a", "b", &[]);
    }

    /// A walk that looked through all rows for each child would take minutes.
    #[test]
    fn finds_the_end_of_a_long_chain() {
        let row = |place: usize| TreeRow {
            id: place.to_string(),
            parent_id: place.checked_sub(1).map(|parent| parent.to_string()),
            shown_seq: (place == 0).then_some(1),
            deletion_id: None,
        };
        let tree = Tree::new((0..300_000).map(row).collect());
        assert_eq!(tree.leaf_below(None), Some("299999"));
    }

    #[test]
    fn what_follows_a_message_includes_what_was_deleted_before() {
        assert_eq!(tree("a b<a !c<b d<c e<a").following("b"), ["b", "c", "d"]);
        assert_eq!(tree("a b<a").following("z"), [""; 0]);
    }
}
