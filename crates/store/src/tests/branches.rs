//! Branches: versions, what is shown, copies, deletions and answers that go on; and that no sequence
//! of all these loses a message.

use std::collections::{BTreeMap, BTreeSet};

use super::{Scratch, finished, texts, turn};
use crate::branches::TREE;
use crate::{Message, MessageStatus, Store, StoreError};

async fn conversation(store: &Store) -> String {
    store.create_conversation(1).await.unwrap().id
}

/// The id of the message with a text on the current branch.
async fn id_of(store: &Store, conversation_id: &str, text: &str) -> String {
    let branch = store.branch(conversation_id).await.unwrap();
    branch.into_iter().find(|message| message.text == text).unwrap().id
}

/// Answers the last question again, or the one of an answer.
async fn again(store: &Store, conversation_id: &str, beside: Option<&str>, text: &str) -> String {
    let answer = store.begin_sibling_answer(conversation_id, beside, 20).await.unwrap();
    store.finish(&answer.id, &finished(MessageStatus::Complete, text)).await.unwrap();
    answer.id
}

async fn edited(store: &Store, conversation_id: &str, question: &str, text: &str) -> String {
    let (user, answer) =
        store.begin_edited_turn(conversation_id, question, text, None, 30).await.unwrap();
    let outcome = finished(MessageStatus::Complete, &format!("to {text}"));
    store.finish_turn(&user.id, &[7], &answer.id, &outcome).await.unwrap();
    user.id
}

#[tokio::test]
async fn an_edited_question_stands_beside_the_first() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    turn(&store, &id, "q1", "a1").await;
    turn(&store, &id, "q2", "a2").await;
    let (q1, q2) = (id_of(&store, &id, "q1").await, id_of(&store, &id, "q2").await);
    let other = edited(&store, &id, &q2, "q2'").await;
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2'", "to q2'"]);
    let versions = store.versions(&id).await.unwrap();
    assert_eq!(versions.siblings(&other), [q2.clone(), other.clone()]);
    assert!(versions.siblings(&q1).is_empty(), "it has no other version");
    // The first question too, which follows nothing.
    edited(&store, &id, &q1, "q1'").await;
    assert_eq!(texts(&store, &id).await, ["q1'", "to q1'"]);

    store.show_version(&id, &q1).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2'", "to q2'"]);
    store.show_version(&id, &q2).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2", "a2"]);
    let a1 = id_of(&store, &id, "a1").await;
    assert!(
        matches!(store.begin_edited_turn(&id, &a1, "no", None, 1).await, Err(StoreError::NotAQuestion { message_id }) if message_id == a1)
    );
}

#[tokio::test]
async fn what_was_shown_last_is_shown_again_after_a_restart() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    turn(&store, &id, "q1", "a1").await;
    turn(&store, &id, "q2", "a2").await;
    let a1 = id_of(&store, &id, "a1").await;
    let b1 = again(&store, &id, Some(&a1), "b1").await;
    turn(&store, &id, "q3", "a3").await;
    let a3 = id_of(&store, &id, "a3").await;
    again(&store, &id, Some(&a3), "b3").await;
    store.show_version(&id, &a3).await.unwrap();
    store.show_version(&id, &a1).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2", "a2"]);
    store.close().await.unwrap();

    let store = scratch.open().await;
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2", "a2"]);
    store.show_version(&id, &b1).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "b1", "q3", "a3"], "not the newest answer");
    assert!(matches!(
        store.show_version(&id, "unknown").await,
        Err(StoreError::NoMessage { id }) if id == "unknown"
    ));
}

#[tokio::test]
async fn an_answer_goes_on_with_what_it_has() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    let (_, answer) = store.begin_turn(&id, "q", 1).await.unwrap();
    store.save_progress(&answer.id, "half", None, &[1, 2], Some("smol")).await.unwrap();
    store.close().await.unwrap();

    let store = scratch.open().await;
    let before = store.resume_answer(&id, &answer.id).await.unwrap();
    assert_eq!((before.status, before.text.as_str()), (MessageStatus::Interrupted, "half"));
    assert_eq!((before.token_ids, before.model.as_deref()), (Some(vec![1, 2]), Some("smol")));
    let now = store.message(&answer.id).await.unwrap().unwrap();
    assert_eq!((now.status, now.text.as_str()), (MessageStatus::Streaming, "half"));
    assert!(matches!(
        store.resume_answer(&id, &answer.id).await,
        Err(StoreError::AlreadyStreaming { .. })
    ));
    store.finish(&answer.id, &finished(MessageStatus::Complete, "half and half")).await.unwrap();

    turn(&store, &id, "next", "last").await;
    for other in [&answer.id, &id_of(&store, &id, "next").await] {
        assert!(matches!(
            store.resume_answer(&id, other).await,
            Err(StoreError::NotTheLastAnswer { .. })
        ));
    }
}

#[tokio::test]
async fn a_branch_is_one_of_a_title_until_a_person_gives_it_another() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    turn(&store, &id, "q", "a").await;
    store.rename_conversation(&id, "Branch 7: Walls").await.unwrap();
    let branched = async |id: &str, title: &str| {
        let end = id_of(&store, id, "a").await;
        let copy = store.copy_branch(id, &end, title, 2).await.unwrap();
        (copy.id, copy.branch_of)
    };
    let of = |title: &str| Some(title.to_owned());
    let (first, of_first) = branched(&id, "Branch: Branch 7: Walls").await;
    assert_eq!(of_first, of("Branch 7: Walls"));
    let (second, of_second) = branched(&first, "Branch 2: Branch 7: Walls").await;
    assert_eq!(of_second, of("Branch 7: Walls"), "a branch of a branch has no longer title");
    store.rename_conversation(&second, "Branch 2: mine").await.unwrap();
    assert_eq!(store.conversation(&second).await.unwrap().unwrap().branch_of, None);
    assert_eq!(branched(&second, "x").await.1, of("Branch 2: mine"));
    store.rename_conversation(&second, "Branch 2: Branch 7: Walls").await.unwrap();
    assert_eq!(branched(&second, "x").await.1, of("Branch 7: Walls"), "the renaming was undone");
}

#[tokio::test]
async fn a_branch_is_copied_up_to_a_message() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation_with(1, "Be brief.").await.unwrap().id;
    store.set_conversation_settings(&id, Some("{}")).await.unwrap();
    turn(&store, &id, "q1", "a1").await;
    turn(&store, &id, "q2", "a2").await;
    let folder = store.create_folder("Stones", 2).await.unwrap().id;
    store.move_conversations(&[&id], Some(&folder)).await.unwrap();
    let a1 = id_of(&store, &id, "a1").await;
    let copy = store.copy_branch(&id, &a1, "Another way", 90).await.unwrap();
    assert_eq!(copy.folder_id, Some(folder), "it stays where the chat is");
    assert_eq!((copy.title.as_str(), copy.system_prompt.as_str()), ("Another way", "Be brief."));
    assert_eq!(copy.branch_of.as_deref(), Some("q1"), "what the chat was called");
    assert_eq!(store.conversation_settings(&copy.id).await.unwrap().as_deref(), Some("{}"));
    assert_eq!(store.conversations().await.unwrap()[0], copy, "it comes first in the list");
    let originals = store.branch(&id).await.unwrap();
    let copies = store.branch(&copy.id).await.unwrap();
    assert_eq!(copies.len(), 2);
    for (original, copied) in originals.iter().zip(&copies) {
        assert_ne!(original.id, copied.id);
        let Message { id, conversation_id, parent_id, seq, .. } = copied.clone();
        assert_eq!(*copied, Message { id, conversation_id, parent_id, seq, ..original.clone() });
    }
    turn(&store, &copy.id, "q3", "a3").await;
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q2", "a2"], "the first is not touched");

    let (_, streaming) = store.begin_turn(&id, "q4", 91).await.unwrap();
    assert!(matches!(
        store.copy_branch(&id, &streaming.id, "", 92).await,
        Err(StoreError::AlreadyStreaming { .. })
    ));
    assert_eq!(store.copy_branch(&id, &a1, "", 93).await.unwrap().title, "");
    assert!(matches!(
        store.copy_branch("unknown", &a1, "", 92).await,
        Err(StoreError::NoMessage { .. })
    ));
}

#[tokio::test]
async fn deleted_messages_come_back_until_the_program_has_ended() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    turn(&store, &id, "q1", "a1").await;
    turn(&store, &id, "q2", "a2").await;
    turn(&store, &id, "q3", "a3").await;
    let (a1, q2) = (id_of(&store, &id, "a1").await, id_of(&store, &id, "q2").await);
    let alone = store.delete_messages(&id, &a1, false).await.unwrap();
    assert_eq!(alone.num_messages, 1);
    assert_eq!(texts(&store, &id).await, ["q1", "q2", "a2", "q3", "a3"]);
    let branch = store.delete_messages(&id, &q2, true).await.unwrap();
    assert_eq!(branch.num_messages, 4);
    assert_eq!(texts(&store, &id).await, ["q1"]);
    assert!(matches!(
        store.delete_messages(&id, &q2, true).await,
        Err(StoreError::NoMessage { .. })
    ));
    store.restore_messages(&id, &branch.id).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "q2", "a2", "q3", "a3"]);
    assert!(matches!(
        store.restore_messages(&id, &branch.id).await,
        Err(StoreError::NoDeletion { .. })
    ));
    assert!(store.search_conversations("a1").await.unwrap().is_empty());
    store.close().await.unwrap();

    let store = scratch.open().await;
    assert_eq!(store.message(&a1).await.unwrap(), None, "the deletion is final");
    assert_eq!(texts(&store, &id).await, ["q1", "q2", "a2", "q3", "a3"]);
    assert!(matches!(
        store.restore_messages(&id, &alone.id).await,
        Err(StoreError::NoDeletion { .. })
    ));
}

#[tokio::test]
async fn another_version_is_shown_instead_of_a_deleted_one() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = conversation(&store).await;
    turn(&store, &id, "q1", "a1").await;
    let b1 = again(&store, &id, None, "b1").await;
    turn(&store, &id, "q2", "a2").await;
    let deletion = store.delete_messages(&id, &b1, true).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "a1"]);
    let a1 = id_of(&store, &id, "a1").await;
    turn(&store, &id, "q3", "a3").await;
    store.restore_messages(&id, &deletion.id).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "b1", "q2", "a2"], "what came back is shown");
    store.show_version(&id, &a1).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["q1", "a1", "q3", "a3"]);

    let q1 = id_of(&store, &id, "q1").await;
    let all = store.delete_messages(&id, &q1, true).await.unwrap();
    assert_eq!(texts(&store, &id).await, [""; 0]);
    assert_eq!(store.conversation(&id).await.unwrap().unwrap().leaf_message_id, None);
    turn(&store, &id, "new", "start").await;
    store.begin_turn(&id, "more", 3).await.unwrap();
    store.restore_messages(&id, &all.id).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["new", "start", "more", ""], "an answer is not left");
    assert!(matches!(
        store.delete_messages(&id, &q1, true).await,
        Err(StoreError::AlreadyStreaming { .. })
    ));
}

#[tokio::test]
async fn a_tree_is_read_without_its_texts() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let plan: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(sqlx::AssertSqlSafe(format!("explain query plan {TREE}")))
            .bind("id")
            .fetch_all(&store.readers)
            .await
            .unwrap();
    assert!(plan.iter().all(|(.., step)| step.contains("COVERING INDEX")), "{plan:?}");
}

/// A linear congruential generator (Knuth's MMIX constants): the same sequence on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn pick(&mut self, ids: impl Iterator<Item = String>) -> Option<String> {
        let ids: Vec<String> = ids.collect();
        (!ids.is_empty()).then(|| ids[self.below(ids.len())].clone())
    }
}

/// What a message must keep for ever: its text, author and, while nothing before it is purged, parent.
type Kept = (String, &'static str, Option<String>);

/// One conversation, and what is known of it.
struct Sequence {
    scratch: Scratch,
    store: Store,
    random: Random,
    id: String,
    /// Every message that was ever saved and is not deleted for good.
    kept: BTreeMap<String, Kept>,
    /// The deletions that can be undone, with the messages that each hides.
    deletions: Vec<(String, BTreeSet<String>)>,
    num_texts: usize,
}

impl Sequence {
    async fn new(seed: u64) -> Sequence {
        let scratch = Scratch::new();
        let store = scratch.open().await;
        let id = conversation(&store).await;
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7ee5);
        let (kept, deletions) = (BTreeMap::new(), Vec::new());
        Sequence { scratch, store, random, id, kept, deletions, num_texts: 0 }
    }

    fn text(&mut self) -> String {
        self.num_texts += 1;
        format!("text {}", self.num_texts)
    }

    fn keep(&mut self, message: &Message, text: &str) {
        let kept = (text.to_owned(), message.role.as_str(), message.parent_id.clone());
        assert!(self.kept.insert(message.id.clone(), kept).is_none());
    }

    fn hidden(&self) -> BTreeSet<&String> {
        self.deletions.iter().flat_map(|(_, hidden)| hidden).collect()
    }

    /// Some message that is there, of any branch.
    fn any(&mut self) -> Option<String> {
        let hidden = self.hidden();
        let there: Vec<String> =
            self.kept.keys().filter(|id| !hidden.contains(id)).cloned().collect();
        self.random.pick(there.into_iter())
    }

    async fn step(&mut self) -> &'static str {
        match self.random.below(9) {
            0 | 1 => self.send().await,
            2 => self.edit().await,
            3 => self.answer_again().await,
            4 => self.go_on().await,
            5 => self.show().await,
            6 => self.delete().await,
            7 => self.restore().await,
            _ => self.reopen_or_copy().await,
        }
    }

    async fn finish(&mut self, question: Option<Message>, answer: Message) {
        let text = self.text();
        self.store.finish(&answer.id, &finished(MessageStatus::Stopped, &text)).await.unwrap();
        if let Some(question) = question {
            self.keep(&question, &question.text);
        }
        self.keep(&answer, &text);
    }

    async fn send(&mut self) -> &'static str {
        let text = self.text();
        let (user, answer) = self.store.begin_turn(&self.id, &text, 1).await.unwrap();
        self.finish(Some(user), answer).await;
        "sending"
    }

    async fn edit(&mut self) -> &'static str {
        let Some(id) = self.any() else { return "editing nothing" };
        let text = self.text();
        let begun = self.store.begin_edited_turn(&self.id, &id, &text, None, 1).await;
        match (begun, self.kept[&id].1) {
            (Ok((user, answer)), "user") => self.finish(Some(user), answer).await,
            (Err(StoreError::NotAQuestion { .. }), "assistant") => {}
            (begun, role) => panic!("{begun:?} of the {role}'s"),
        }
        "editing"
    }

    async fn answer_again(&mut self) -> &'static str {
        let Some(id) = self.any() else { return "answering nothing" };
        match self.store.begin_sibling_answer(&self.id, Some(&id), 1).await {
            Ok(answer) => self.finish(None, answer).await,
            // Everything before it has been deleted.
            Err(StoreError::NothingToAnswer { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        "answering again"
    }

    async fn go_on(&mut self) -> &'static str {
        let last = self.store.branch(&self.id).await.unwrap().pop();
        let Some(last) = last else { return "going on with nothing" };
        match self.store.resume_answer(&self.id, &last.id).await {
            Ok(before) => {
                let text = format!("{} and on", before.text);
                let outcome = finished(MessageStatus::Complete, &text);
                self.store.finish(&last.id, &outcome).await.unwrap();
                self.kept.get_mut(&last.id).unwrap().0 = text;
            }
            Err(StoreError::NotTheLastAnswer { .. }) => assert_eq!(last.role.as_str(), "user"),
            Err(error) => panic!("{error}"),
        }
        "going on"
    }

    async fn show(&mut self) -> &'static str {
        let Some(id) = self.any() else { return "showing nothing" };
        self.store.show_version(&self.id, &id).await.unwrap();
        let branch = self.store.branch(&self.id).await.unwrap();
        assert!(branch.iter().any(|message| message.id == id), "what was chosen is shown");
        "showing"
    }

    async fn delete(&mut self) -> &'static str {
        let Some(id) = self.any() else { return "deleting nothing" };
        let with_following = self.random.below(2) == 0;
        let before: BTreeSet<String> = self.hidden().into_iter().cloned().collect();
        let deletion = self.store.delete_messages(&self.id, &id, with_following).await.unwrap();
        let mut hidden = BTreeSet::from([id]);
        loop {
            let follows = |(id, kept): &(&String, &Kept)| {
                kept.2.as_ref().is_some_and(|parent| hidden.contains(parent))
                    && !hidden.contains(*id)
            };
            let more: Vec<String> =
                self.kept.iter().filter(follows).map(|(id, _)| id.clone()).collect();
            if !with_following || more.is_empty() {
                break;
            }
            hidden.extend(more);
        }
        hidden.retain(|id| !before.contains(id));
        assert_eq!(deletion.num_messages, hidden.len());
        self.deletions.push((deletion.id, hidden));
        "deleting"
    }

    async fn restore(&mut self) -> &'static str {
        if self.deletions.is_empty() {
            return "restoring nothing";
        }
        let index = self.random.below(self.deletions.len());
        let (deletion, _) = self.deletions.remove(index);
        self.store.restore_messages(&self.id, &deletion).await.unwrap();
        "restoring"
    }

    async fn reopen_or_copy(&mut self) -> &'static str {
        let branch = self.store.branch(&self.id).await.unwrap();
        if self.random.below(2) == 0 {
            let Some(end) = self.random.pick(branch.iter().map(|message| message.id.clone()))
            else {
                return "copying nothing";
            };
            let copy = self.store.copy_branch(&self.id, &end, "copy", 1).await.unwrap();
            let texts_of = |messages: Vec<Message>| -> Vec<String> {
                messages.into_iter().map(|message| message.text).collect()
            };
            let copied = texts_of(self.store.branch(&copy.id).await.unwrap());
            assert_eq!(copied, texts_of(branch)[..copied.len()]);
            return "copying";
        }
        self.store.close().await.unwrap();
        self.store = self.scratch.open().await;
        // Deletions are final now, and what followed a message that is gone follows the one before.
        let gone: BTreeSet<String> = self.hidden().into_iter().cloned().collect();
        self.deletions.clear();
        let parents: BTreeMap<String, Option<String>> =
            self.kept.iter().map(|(id, kept)| (id.clone(), kept.2.clone())).collect();
        for kept in self.kept.values_mut() {
            while let Some(parent) = kept.2.as_ref().filter(|parent| gone.contains(*parent)) {
                kept.2 = parents[parent].clone();
            }
        }
        self.kept.retain(|id, _| !gone.contains(id));
        let again = self.store.branch(&self.id).await.unwrap();
        assert!(
            again.iter().map(|message| &message.id).eq(branch.iter().map(|message| &message.id))
        );
        "reopening"
    }

    /// Compares everything with what is known.
    async fn check(&self, when: &str) {
        let rows: Vec<Message> = sqlx::query_as("select * from messages where conversation_id = ?")
            .bind(&self.id)
            .fetch_all(&self.store.readers)
            .await
            .unwrap();
        let found: BTreeMap<String, Kept> = rows
            .into_iter()
            .map(|row| (row.id, (row.text, row.role.as_str(), row.parent_id)))
            .collect();
        assert_eq!(found, self.kept, "{when}: a message was lost or overwritten");

        let hidden = self.hidden();
        let is_there = |id: &String| !hidden.contains(id);
        let leaf = self.store.conversation(&self.id).await.unwrap().unwrap().leaf_message_id;
        assert_eq!(leaf.is_none(), !self.kept.keys().any(is_there), "{when}: the leaf");
        let live_parent = |id: &String| {
            let mut parent = self.kept[id].2.as_ref();
            while let Some(hidden) = parent.filter(|id| !is_there(id)) {
                parent = self.kept[hidden].2.as_ref();
            }
            parent
        };
        let there = || self.kept.keys().filter(|id| is_there(id));
        assert!(leaf.iter().all(is_there), "{when}: the leaf is deleted");
        let followed = |leaf: &String| there().any(|id| live_parent(id) == Some(leaf));
        assert!(!leaf.iter().any(followed), "{when}: something follows the leaf");

        let mut expected = Vec::new();
        let mut next = leaf.as_ref();
        while let Some(id) = next {
            expected.insert(0, id.clone());
            next = live_parent(id);
        }
        let branch = self.store.branch(&self.id).await.unwrap();
        let branch: Vec<String> = branch.into_iter().map(|message| message.id).collect();
        assert_eq!(branch, expected, "{when}: the branch");
        let versions = self.store.versions(&self.id).await.unwrap();
        for id in there() {
            let beside: BTreeSet<&String> =
                there().filter(|other| live_parent(other) == live_parent(id)).collect();
            let found = versions.siblings(id);
            let found: BTreeSet<&String> = found.iter().collect();
            let expected = if beside.len() > 1 { beside } else { BTreeSet::new() };
            assert_eq!(found, expected, "{when}: versions");
        }
    }
}

#[tokio::test]
async fn no_sequence_of_operations_loses_or_overwrites_a_message() {
    for seed in cairn_sweeps::sweep("branches", 12) {
        let mut sequence = Sequence::new(seed).await;
        for number in 0..40 {
            let did = sequence.step().await;
            sequence.check(&format!("seed {seed}, step {number}, {did}")).await;
        }
    }
}

#[tokio::test]
async fn two_answers_to_one_question_are_written_beside_each_other() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    let texts = async |id: &str| {
        let branch = store.branch_to(id).await.unwrap();
        branch.into_iter().map(|message| message.text).collect::<Vec<_>>()
    };

    // A new question, and both answers to it.
    let (user, [a, b]) = store.begin_comparison(&id, None, Some("Which?"), 1).await.unwrap();
    let user = user.unwrap();
    let parents = [&a, &b].map(|answer| answer.parent_id.clone());
    assert_eq!(parents, [Some(user.id.clone()), Some(user.id.clone())]);
    assert!(a.seq < b.seq);
    assert_eq!(store.branch(&id).await.unwrap().last().unwrap().id, a.id);
    let versions = store.versions(&id).await.unwrap();
    assert_eq!(versions.siblings(&a.id), [a.id.clone(), b.id.clone()]);

    // While either is written, nothing else begins; the other may end.
    let busy = |result: Result<(), StoreError>| {
        assert!(matches!(result, Err(StoreError::AlreadyStreaming { .. })), "{result:?}");
    };
    let nothing_begins = async || {
        busy(store.begin_turn(&id, "More?", 2).await.map(drop));
        busy(store.begin_comparison(&id, None, None, 2).await.map(drop));
        busy(store.show_version(&id, &b.id).await);
        busy(store.delete_messages(&id, &a.id, true).await.map(drop));
    };
    nothing_begins().await;
    store.finish(&a.id, &finished(MessageStatus::Complete, "First.")).await.unwrap();
    nothing_begins().await;
    assert_eq!(texts(&b.id).await, ["Which?", ""]);

    // The one that is still written can be the branch on screen.
    store.show_compared(&id, &b.id).await.unwrap();
    assert_eq!(store.branch(&id).await.unwrap().last().unwrap().id, b.id);
    store.finish(&b.id, &finished(MessageStatus::Complete, "Second.")).await.unwrap();
    let (next, _) = store.begin_turn(&id, "More?", 3).await.unwrap();
    assert_eq!(texts(&next.id).await, ["Which?", "Second.", "More?"]);

    // Two more answers to the first question leave everything where it was.
    store.close().await.unwrap();
    let store = scratch.open().await;
    let (none, [c, d]) = store.begin_comparison(&id, Some(&a.id), None, 4).await.unwrap();
    assert_eq!(none, None);
    let all = [&a, &b, &c, &d].map(|answer| answer.id.clone());
    assert_eq!(store.versions(&id).await.unwrap().siblings(&d.id), all);
    store.close().await.unwrap();

    // A crash ends both; each is an interrupted version.
    let store = scratch.open().await;
    for answer in [&c, &d] {
        let row = store.message(&answer.id).await.unwrap().unwrap();
        assert_eq!(row.status, MessageStatus::Interrupted);
    }
    store.show_version(&id, &d.id).await.unwrap();
}
