//! The list of conversations: order, names, deletion.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::{Scratch, texts, turn};
use crate::{Conversation, NamedCacheKind, Prefix, Store, StoreError};

async fn titles(store: &Store) -> Vec<String> {
    store
        .conversations()
        .await
        .unwrap()
        .into_iter()
        .map(|conversation| conversation.title)
        .collect()
}

#[tokio::test]
async fn a_conversation_comes_back_as_it_was_saved() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let made = store.create_conversation(1_000).await.unwrap();
    assert_eq!(store.conversation(&made.id).await.unwrap(), Some(made.clone()));
    assert_eq!((made.created_at_ms, made.updated_at_ms, made.deleted_at_ms), (1_000, 1_000, None));

    let odd = "עברית\u{202e}\0\u{200b}🪨\r\n";
    store.rename_conversation(&made.id, odd).await.unwrap();
    store.set_system_prompt(&made.id, odd).await.unwrap();
    store.close().await.unwrap();
    let read = scratch.open().await.conversation(&made.id).await.unwrap().unwrap();
    assert_eq!((read.title.as_str(), read.system_prompt.as_str()), (odd, odd));
    let store = scratch.open().await;
    assert_eq!(store.conversation_title(&made.id).await.unwrap().as_deref(), Some(odd));
    store.delete_conversations(&[&made.id], 2_000).await.unwrap();
    assert_eq!(store.conversation_title(&made.id).await.unwrap(), None);
}

#[tokio::test]
async fn a_new_conversation_is_written_with_its_system_prompt_or_not_at_all() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let made = store.create_conversation_with(1_000, "Answer in rhymes.").await.unwrap();
    assert_eq!(made.system_prompt, "Answer in rhymes.");
    assert_eq!(store.conversation(&made.id).await.unwrap(), Some(made));
    // Whatever stops a later statement, as a kill would, leaves no conversation without its prompt.
    scratch
        .execute(
            "create trigger stop before update on conversations begin select raise(abort, 'x'); end",
        )
        .await;
    let made = store.create_conversation_with(2_000, "In prose.").await.unwrap();
    let read = store.conversation(&made.id).await.unwrap().unwrap();
    assert_eq!(read.system_prompt, "In prose.", "one statement writes it all");
}

#[tokio::test]
async fn a_conversation_keeps_the_prefix_that_it_began_with() {
    async fn check(
        kind: NamedCacheKind,
        token_ids: Option<Vec<u32>>,
        title: &str,
        title_after_a_turn: &str,
    ) {
        let scratch = Scratch::new();
        let store = scratch.open().await;
        let prefix = Prefix {
            named_id: "n".into(),
            name: "A long book".into(),
            kind,
            kv_format: "kv8g64".parse().unwrap(),
            provenance: "import:0f".parse().unwrap(),
            num_tokens: 3,
            token_ids,
            start_text: "It was".into(),
            end_text: "".into(),
            is_imported: true,
        };
        let made = store.create_conversation_from(7, &prefix, title).await.unwrap();
        assert_eq!(
            (made.title.as_str(), made.created_at_ms, made.prefix.as_ref()),
            (title, 7, Some(&prefix))
        );
        assert_eq!(store.conversation(&made.id).await.unwrap(), Some(made.clone()));
        assert_eq!(store.create_conversation(8).await.unwrap().prefix, None);

        turn(&store, &made.id, "How does it end?", "…").await;
        let [listed, _] = store.conversations().await.unwrap().try_into().unwrap();
        assert_eq!(listed.prefix, Some(Prefix { token_ids: None, ..prefix.clone() }));
        assert_eq!(listed.title, title_after_a_turn);
        store.close().await.unwrap();
        assert_eq!(
            scratch.open().await.conversation(&made.id).await.unwrap().unwrap().prefix,
            Some(prefix)
        );
    }
    check(NamedCacheKind::Prompt, Some(vec![1, 70_000, u32::MAX]), "A long book", "A long book")
        .await;
    check(NamedCacheKind::Conversation, Some(vec![]), "", "How does it end?").await;
    check(NamedCacheKind::Conversation, None, "Imported\0", "Imported\0").await;
}

#[tokio::test]
async fn the_list_is_ordered_by_activity_even_when_the_clock_goes_back() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let first = store.create_conversation(9_000).await.unwrap();
    let second = store.create_conversation(5_000).await.unwrap();
    store.rename_conversation(&first.id, "first").await.unwrap();
    store.rename_conversation(&second.id, "second").await.unwrap();
    assert_eq!(titles(&store).await, ["second", "first"]);
    store.begin_turn(&first.id, "again", 1).await.unwrap();
    assert_eq!(titles(&store).await, ["first", "second"]);
    assert_eq!(store.conversation(&first.id).await.unwrap().unwrap().updated_at_ms, 1);
}

#[tokio::test]
async fn a_turn_names_a_conversation_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    for (question, expected) in
        [("  \n ", ""), ("How do\n rocks grow?", "How do"), ("And trees?", "How do")]
    {
        turn(&store, &id, question, "…").await;
        assert_eq!(titles(&store).await, [expected], "after {question:?}");
    }
    store.rename_conversation(&id, "Mine").await.unwrap();
    turn(&store, &id, "More?", "…").await;
    assert_eq!(titles(&store).await, ["Mine"]);
}

#[tokio::test]
async fn a_deleted_conversation_can_be_restored_until_the_program_ends() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let live = store.create_conversation(1).await.unwrap().id;
    let deleted = store.create_conversation(2).await.unwrap().id;
    for id in [&live, &deleted] {
        turn(&store, id, "question", "answer").await;
        store.delete_conversations(&[id], 50).await.unwrap();
    }
    assert_eq!(titles(&store).await, [""; 0]);
    assert!(
        matches!(store.begin_turn(&deleted, "more", 60).await, Err(StoreError::NoConversation { id }) if id == deleted)
    );

    // Deleting again keeps the first date; restoring twice is as good as once.
    store.delete_conversations(&[&deleted], 70).await.unwrap();
    assert_eq!(store.conversation(&deleted).await.unwrap().unwrap().deleted_at_ms, Some(50));
    store.restore_conversations(&[&live]).await.unwrap();
    store.restore_conversations(&[&live]).await.unwrap();
    assert_eq!(texts(&store, &live).await, ["question", "answer"]);

    let message = store.branch(&deleted).await.unwrap().remove(0);
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.conversation(&deleted).await.unwrap(), None);
    assert_eq!(store.message(&message.id).await.unwrap(), None);
    assert_eq!(texts(&store, &live).await, ["question", "answer"]);
    assert!(
        matches!(store.restore_conversations(&[&deleted]).await, Err(StoreError::NoConversation { id }) if id == deleted)
    );
}

#[tokio::test]
async fn many_conversations_change_together_and_those_that_are_gone_are_passed_over() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut ids = Vec::new();
    for at_ms in 1..=3 {
        ids.push(store.create_conversation(at_ms).await.unwrap().id);
    }
    let left = ids.pop().unwrap();
    ids.push("unknown".to_owned());
    let folder = store.create_folder("Letters", 1).await.unwrap().id;
    let changed = async |is_changed: fn(&Conversation) -> bool| {
        let rows = store.conversations().await.unwrap();
        let mut changed: Vec<String> =
            rows.into_iter().filter(is_changed).map(|row| row.id).collect();
        changed.sort();
        changed
    };
    store.move_conversations(&ids, Some(&folder)).await.unwrap();
    assert_eq!(changed(|row| row.folder_id.is_some()).await, ids[..2]);
    store.set_conversations_archived(&ids, Some(5)).await.unwrap();
    assert_eq!(changed(|row| row.archived_at_ms.is_some()).await, ids[..2]);
    store.delete_conversations(&ids, 6).await.unwrap();
    assert_eq!(changed(|_| true).await, [left]);
    store.restore_conversations(&ids[1..]).await.unwrap();
    let mut purged = store.purge_conversations(&ids, 6).await.unwrap();
    purged.sort();
    assert_eq!(purged, ids[..1], "the other one was restored");
}

#[tokio::test]
async fn a_conversation_that_is_not_there_is_named() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    fn check<T: std::fmt::Debug>(what: &str, outcome: Result<T, StoreError>) {
        assert!(
            matches!(&outcome, Err(StoreError::NoConversation { id }) if id == "unknown"),
            "{what}: {outcome:?}"
        );
    }
    check("rename", store.rename_conversation("unknown", "x").await);
    check("system prompt", store.set_system_prompt("unknown", "x").await);
    check("delete", store.delete_conversations(&["unknown"], 1).await);
    check("restore", store.restore_conversations(&["unknown"]).await);
    check("turn", store.begin_turn("unknown", "x", 1).await);
    check("sibling", store.begin_sibling_answer("unknown", None, 1).await);
    check("branch", store.branch("unknown").await);
    assert_eq!(store.conversation("unknown").await.unwrap(), None);
}

#[tokio::test]
async fn a_deletion_that_can_no_longer_be_undone_removes_the_conversation() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    turn(&store, &id, "q", "a").await;
    assert!(store.purge_conversations(&[&id], 5).await.unwrap().is_empty(), "it is not deleted");
    store.delete_conversations(&[&id], 5).await.unwrap();
    store.restore_conversations(&[&id]).await.unwrap();
    store.delete_conversations(&[&id], 6).await.unwrap();
    assert!(
        store.purge_conversations(&[&id], 5).await.unwrap().is_empty(),
        "that deletion was undone"
    );
    assert_eq!(store.purge_conversations(&[&id], 6).await.unwrap().len(), 1);
    assert_eq!(store.conversation(&id).await.unwrap(), None);

    let (mine, theirs) = (
        store.create_conversation(1).await.unwrap().id,
        store.create_conversation(1).await.unwrap().id,
    );
    let other = scratch.open().await;
    store.delete_conversations(&[&mine], 7).await.unwrap();
    other.delete_conversations(&[&theirs], 7).await.unwrap();
    store.purge_deleted().await.unwrap();
    assert_eq!(store.conversation(&mine).await.unwrap(), None);
    assert!(store.conversation(&theirs).await.unwrap().is_some(), "another program may restore it");
}

#[tokio::test]
async fn a_store_in_memory_does_all_that_one_in_a_file_does() {
    let store = Store::in_memory().await.unwrap();
    let id = store.create_conversation(1).await.unwrap().id;
    turn(&store, &id, "q1", "a1").await;
    // More than one task at once, on the one connection.
    let (branch, begun) = tokio::join!(store.branch(&id), store.begin_turn(&id, "q2", 2));
    assert!(branch.is_ok());
    let (_, assistant) = begun.unwrap();
    store.save_progress(&assistant.id, "half", None, &[1], None).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2", "half"]);
    store.delete_conversations(&[&id], 3).await.unwrap();
    assert!(store.conversations().await.unwrap().is_empty());
    assert!(Store::in_memory().await.unwrap().conversation(&id).await.unwrap().is_none());
}

#[tokio::test]
async fn a_store_in_memory_outlives_calls_that_are_dropped() {
    let store = Store::in_memory().await.unwrap();
    let id = store.create_conversation(1).await.unwrap().id;
    for num_polls in 0..40 {
        drop_after(&store, num_polls, store.conversation(&id)).await;
        drop_after(&store, num_polls, store.begin_turn(&id, "q", 2)).await;
        assert!(store.conversation(&id).await.unwrap().is_some(), "after {num_polls} polls");
    }
}

/// Drops a call that did not end while it was polled so often. The connection waits for it, so that
/// already the first poll has it.
async fn drop_after<T>(store: &Store, num_polls: usize, call: impl Future<Output = T>) {
    while store.writer.num_idle() == 0 {
        assert_eq!(store.writer.size(), 1, "the connection was closed before {num_polls} polls");
        tokio::task::yield_now().await;
    }
    let mut call = pin!(call);
    for _ in 0..num_polls {
        let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        if polled.is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_model_writes_the_title_only_in_the_place_of_the_first_line() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let asked = async |question: &str| {
        let id = store.create_conversation(1).await.unwrap().id;
        store.begin_turn(&id, question, 2).await.unwrap();
        id
    };
    let check = async |id: &str, question: &str, written: &str, is_set: bool, title: &str| {
        let may = store.has_first_line_title(id, question).await.unwrap();
        let done = store.set_written_title(id, question, written).await.unwrap();
        let now = store.conversation_title(id).await.unwrap().unwrap();
        assert_eq!((done, now.as_str()), (is_set, title));
        assert!(may || !done);
    };
    let question = "How do I\nkeep a sourdough alive?";
    let id = asked(question).await;
    check(&id, question, " \n ", false, "How do I").await;
    check(&id, "Another question", "Bread", false, "How do I").await;
    check(&id, question, "Keeping sourdough\nalive", true, "Keeping sourdough").await;
    check(&id, question, "Again", false, "Keeping sourdough").await;

    let renamed = asked(question).await;
    store.rename_conversation(&renamed, "Mine").await.unwrap();
    check(&renamed, question, "Bread", false, "Mine").await;
    // Also if it happens to be what the first line is.
    store.rename_conversation(&renamed, "How do I").await.unwrap();
    check(&renamed, question, "Bread", false, "How do I").await;
    let deleted = asked(question).await;
    store.delete_conversations(&[&deleted], 3).await.unwrap();
    assert!(!store.set_written_title(&deleted, question, "Bread").await.unwrap());
}
