//! How the work of reading a stored tree grows with it: twice as many messages take about twice the
//! work, whatever the tree looks like. The work is counted in steps of SQLite and ids, not in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_chat::Role;

use crate::{Imported, ImportedConversation, ImportedMessage, Store};

/// SQLite reports after this many steps.
const STEPS: i32 = 20;

#[derive(Debug, Clone, Copy)]
enum Shape {
    /// One question; all other messages answer it.
    Star,
    /// Each message follows the one before it.
    Chain,
    /// A chain with an alternative to each of its messages.
    Comb,
}

impl Shape {
    fn parent(self, place: usize) -> Option<usize> {
        match (self, place) {
            (_, 0) => None,
            (Shape::Star, _) => Some(0),
            (Shape::Chain, place) => Some(place - 1),
            (Shape::Comb, place) => Some((place - 1) / 2 * 2),
        }
    }

    fn conversation(self, num_messages: usize) -> ImportedConversation {
        let message = |place| {
            let role = if place == 0 { Role::User } else { Role::Assistant };
            ImportedMessage::new(self.parent(place), role, "the same words".to_owned(), 1)
        };
        ImportedConversation {
            origin: format!("test:{self:?}:1"),
            messages: (0..num_messages).map(message).collect(),
            ..ImportedConversation::default()
        }
    }
}

/// A store with one tree, which counts the steps of SQLite.
struct Tree {
    store: Store,
    id: String,
    given: ImportedConversation,
    num_steps: Arc<AtomicU64>,
}

impl Tree {
    async fn new(shape: Shape, num_messages: usize) -> Tree {
        let store = Store::in_memory().await.unwrap();
        let num_steps = Arc::new(AtomicU64::new(0));
        let counted = num_steps.clone();
        let mut connection = store.writer.acquire().await.unwrap();
        connection.lock_handle().await.unwrap().set_progress_handler(STEPS, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            true
        });
        drop(connection);
        let given = shape.conversation(num_messages);
        let imported = store.import_conversation(&given).await.unwrap();
        let Imported::Added(id) = imported else { panic!("{imported:?}") };
        Tree { store, id, given, num_steps }
    }

    /// The work of everything that reads or walks the tree, by name.
    async fn work(&self) -> Vec<(&'static str, u64)> {
        let Tree { store, id, .. } = self;
        let branch = store.branch(id).await.unwrap();
        let (first, last) = (&branch[0].id, &branch[branch.len() - 1].id);
        let mut work = Vec::new();
        let mut done = |name| work.push((name, self.num_steps.swap(0, Ordering::Relaxed)));
        done("importing it");
        store.branch(id).await.unwrap();
        done("its branch");
        store.branch_to(last).await.unwrap();
        done("the branch to a message");
        store.all_messages(id).await.unwrap();
        done("all of its messages");
        store.documents_of(id).await.unwrap();
        store.context_cuts(id).await.unwrap();
        done("its documents and cuts");
        store.conversations().await.unwrap();
        done("the list");
        store.search_messages("words", 20, 1).await.unwrap();
        store.search_conversations("words").await.unwrap();
        done("search");
        store.show_version(id, first).await.unwrap();
        done("showing a version");
        store.copy_branch(id, last, "copy", 1).await.unwrap();
        done("copying the branch");
        let deletion = store.delete_messages(id, first, true).await.unwrap();
        done("deleting it");
        store.restore_messages(id, &deletion.id).await.unwrap();
        done("bringing it back");
        // As a Cairn's chat that has come back: all of it is here under other ids.
        let origin = format!("cairn:{id}:2");
        let again = ImportedConversation { id: Some(id.clone()), origin, ..self.given.clone() };
        let again = store.import_conversation(&again).await.unwrap();
        assert_eq!(again, Imported::AlreadyHere(id.clone()));
        done("importing it again");
        let versions = store.versions(id).await.unwrap();
        done("its versions");
        let ids: usize = branch.iter().map(|message| versions.siblings(&message.id).len()).sum();
        work.push(("ids of versions", ids as u64));
        store.delete_messages(id, first, false).await.unwrap();
        store.purge_deleted().await.unwrap();
        work.push(("purging a message", self.num_steps.swap(0, Ordering::Relaxed)));
        work
    }
}

#[tokio::test]
async fn reading_a_tree_takes_linear_work() {
    for shape in [Shape::Star, Shape::Chain, Shape::Comb] {
        let once = Tree::new(shape, 600).await.work().await;
        let twice = Tree::new(shape, 1_200).await.work().await;
        for ((name, once), (_, twice)) in once.into_iter().zip(twice) {
            // What does not depend on the tree is at most some hundred steps.
            assert!(twice <= once * 5 / 2 + 100, "{shape:?}, {name}: {once}, then {twice}");
        }
    }
}
