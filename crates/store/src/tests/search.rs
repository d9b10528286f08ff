//! Searching conversations, and keeping the index equal to the messages.

use super::*;
use crate::{
    DocumentIndexer, DocumentKind, FoundConversation, ImportedConversation, ImportedMessage,
    NewDocument,
};
use cairn_chat::Role;

const NOW_MS: i64 = 1_000_000_000_000;
const MONTH_MS: i64 = 30 * 24 * 3600 * 1000;

/// A conversation with one question and its answer.
async fn chat(store: &Store, title: &str, question: &str, answer: &str) -> String {
    let id = store.create_conversation(1).await.unwrap().id;
    turn(store, &id, question, answer).await;
    store.rename_conversation(&id, title).await.unwrap();
    id
}

async fn search(store: &Store, text: &str) -> Vec<FoundConversation> {
    store.search_messages(text, 10, NOW_MS).await.unwrap()
}

async fn found(store: &Store, text: &str) -> Vec<String> {
    search(store, text).await.into_iter().map(|found| found.conversation_id).collect()
}

/// Whether the words of the index are those of the messages that have ended.
async fn check_index(scratch: &Scratch) {
    scratch
        .execute("insert into message_search (message_search, rank) values ('integrity-check', 0)")
        .await;
    let indexed: i64 = scratch.scalar("select count(*) from message_search_docsize").await;
    let ended: i64 =
        scratch.scalar("select count(*) from messages where status <> 'streaming'").await;
    assert_eq!(indexed, ended);
}

fn imported(text: &str, at_ms: i64) -> ImportedConversation {
    ImportedConversation {
        origin: format!("test:{text}:{at_ms}"),
        created_at_ms: at_ms,
        updated_at_ms: at_ms,
        messages: vec![ImportedMessage::new(None, Role::User, text.to_owned(), at_ms)],
        ..ImportedConversation::default()
    }
}

#[tokio::test]
async fn conversations_are_found_by_title_and_by_any_message() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let ids = [
        chat(&store, "Stones", "What is granite?", "An igneous rock.").await,
        chat(&store, "Refund", "Is 100% of it paid back?", "Yes.").await,
        chat(&store, "Crème", "What is grass_seed?", "The seed of C:\\grass.").await,
    ];
    store.create_conversation(3).await.unwrap();
    let deleted = chat(&store, "Granite", "granite", "A stone.").await;
    store.delete_conversations(&[&deleted], 5).await.unwrap();

    for (text, expected) in [
        ("", &[2, 1, 0][..]),
        (" ", &[2, 1, 0]),
        ("STONE", &[0]),
        ("igneo", &[0]),
        ("is What", &[2, 0]),
        ("100%", &[1]),
        ("%", &[]),
        ("ass", &[]),
        ("creme", &[2]),
        ("grass_seed", &[2]),
        ("C:\\grass", &[2]),
    ] {
        let expected: Vec<&String> = expected.iter().map(|&index| &ids[index]).collect();
        let found = store.search_conversations(text).await.unwrap();
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{text:?}");
    }
}

#[tokio::test]
async fn messages_are_found_by_words_in_any_language() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let granite = chat(&store, "1", "What is granite, exactly?", "An igneous rock").await;
    let cafe = chat(&store, "2", "Ein Café über dem See", "Schön.").await;
    let chinese = chat(&store, "3", "我想学习语言模型", "好的，大型语言模型").await;
    let japanese = chat(&store, "4", "東京タワーはどこですか", "港区です").await;
    for (text, expected) in [
        ("granite", vec![&granite]),
        ("gran", vec![&granite]),
        ("gran ", vec![]),
        ("\"exactly granite\"", vec![]),
        ("\"is granite\"", vec![&granite]),
        ("granite igneous", vec![]),
        ("cafe", vec![&cafe]),
        ("uber SEE", vec![&cafe]),
        ("模型", vec![&chinese]),
        ("学习", vec![&chinese]),
        ("型模", vec![]),
        ("タワー", vec![&japanese]),
        ("", vec![]),
        ("???", vec![]),
    ] {
        assert_eq!(found(&store, text).await.iter().collect::<Vec<_>>(), expected, "{text:?}");
    }
    let excerpt = &search(&store, "语言").await[0].excerpt;
    assert!(excerpt.contains(&("语言".to_owned(), true)), "{excerpt:?}");
    let piece = |text: &str, is_word| (text.to_owned(), is_word);
    assert_eq!(
        search(&store, "granite").await[0].excerpt,
        [piece("What is ", false), piece("granite", true), piece(", exactly?", false)]
    );
}

#[tokio::test]
async fn a_new_message_is_better_than_an_old_one_with_the_same_words() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for (text, months) in [("a stone", 24), ("a stone", 0), ("stone stone", 24)] {
        let chat = imported(text, NOW_MS - months * MONTH_MS);
        store.import_conversation(&chat).await.unwrap();
    }
    let texts: Vec<String> = search(&store, "stone")
        .await
        .iter()
        .map(|found| format!("{} {}", found.created_at_ms == NOW_MS, found.excerpt.len()))
        .collect();
    assert_eq!(texts[0], "true 2", "the new one first");
    assert_eq!(texts.len(), 3);
}

#[tokio::test]
async fn words_in_very_many_messages_are_found_in_the_newest_conversations() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let first = chat(&store, "first", "stone", "stone").await;
    let mut long = imported("stone", NOW_MS);
    long.messages = vec![long.messages[0].clone(); 1500];
    store.import_conversation(&long).await.unwrap();
    let last = chat(&store, "last", "stone", "grass").await;
    let ids = found(&store, "stone").await;
    assert_eq!((ids.len(), &ids[0], &ids[2]), (3, &last, &first));
    assert_eq!(store.search_messages("stone", 1, NOW_MS).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_index_follows_answers_and_deletions() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    let (user, answer) = store.begin_turn(&id, "zebrawood", 10).await.unwrap();
    store.save_progress(&answer.id, "half", None, &[], None).await.unwrap();
    assert_eq!(found(&store, "half").await.len(), 0, "an answer is indexed when it has ended");
    let reasoning = r#"[{"kind":"reasoning","text":"secret","began_at_ms":0,"duration_ms":1},{"kind":"text","text":"whole"}]"#;
    let mut ended = finished(MessageStatus::Complete, "<think>secret</think>whole");
    ended.segments = Some(reasoning.to_owned());
    store.finish_turn(&user.id, &[1], &answer.id, &ended).await.unwrap();
    assert_eq!(found(&store, "whole").await, [id.as_str()]);
    assert_eq!(found(&store, "secret").await.len(), 0);
    // Ending it again replaces the words.
    store.finish(&answer.id, &finished(MessageStatus::Complete, "jacaranda")).await.unwrap();
    assert_eq!(found(&store, "whole").await.len(), 0);
    assert_eq!(found(&store, "jacaranda").await[0], id);
    check_index(&scratch).await;

    store.delete_conversations(&[&id], 20).await.unwrap();
    assert_eq!(found(&store, "jacaranda").await.len(), 0);
    store.restore_conversations(&[&id]).await.unwrap();
    assert_eq!(found(&store, "jacaranda").await[0], id);
    store.delete_conversations(&[&id], 21).await.unwrap();
    assert_eq!(store.purge_conversations(&[&id], 21).await.unwrap().len(), 1);
    check_index(&scratch).await;
    store.close().await.unwrap();
    let file = std::fs::read(scratch.database()).unwrap();
    let has = |word: &[u8]| file.windows(word.len()).any(|window| window == word);
    assert!(!has(b"jacaranda") && !has(b"zebrawood"), "nothing of a purged chat stays in the file");
}

#[tokio::test]
async fn a_deleted_message_is_found_when_it_is_restored() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = chat(&store, "Woods", "zebrawood", "jacaranda").await;
    let answer = store.branch(&id).await.unwrap().pop().unwrap();
    let deletion = store.delete_messages(&id, &answer.id, false).await.unwrap();
    assert_eq!(found(&store, "jacaranda").await.len(), 0);
    assert_eq!(found(&store, "zebrawood").await, [id.as_str()]);
    store.restore_messages(&id, &deletion.id).await.unwrap();
    assert_eq!(found(&store, "jacaranda").await, [id.as_str()]);
}

#[tokio::test]
async fn an_answer_that_was_interrupted_is_found() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    let (_, answer) = store.begin_turn(&id, "question", 10).await.unwrap();
    store.save_progress(&answer.id, "模型 half", None, &[], None).await.unwrap();
    drop(store);
    let store = scratch.open().await;
    assert_eq!(found(&store, "half").await, [id.as_str()]);
    assert_eq!(found(&store, "模型").await, [id]);
    check_index(&scratch).await;
}

#[tokio::test]
async fn messages_of_an_earlier_version_are_indexed_in_parts() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let old = chat(&store, "old", "a stone", "模型").await;
    let mut long = imported("filling", NOW_MS);
    long.messages = vec![long.messages[0].clone(); 900];
    store.import_conversation(&long).await.unwrap();
    store.close().await.unwrap();
    // As the migration leaves a database that had messages.
    scratch
        .execute(
            "insert into message_search (message_search) values ('delete-all');
             update search_progress set indexed_from = 903, began_from = 903;
             update messages set search_text = null;",
        )
        .await;
    let store = scratch.open().await;
    assert_eq!(store.indexed_share().await.unwrap(), 0.0);
    assert_eq!(found(&store, "stone").await.len(), 0);
    let new = chat(&store, "new", "another stone", "yes").await;
    assert_eq!(found(&store, "stone").await, [new.as_str()]);
    let share = store.index_older().await.unwrap();
    assert!(share > 0.4 && share < 0.5, "{share}");
    assert_eq!(found(&store, "filling").await.len(), 1);
    // What is deleted before it was indexed is never in the index.
    store.delete_conversations(&[&old], 5).await.unwrap();
    store.purge_conversations(&[&old], 5).await.unwrap();
    while store.index_older().await.unwrap() < 1.0 {}
    assert_eq!(store.indexed_share().await.unwrap(), 1.0);
    assert_eq!(found(&store, "stone").await, [new]);
    check_index(&scratch).await;
}

fn document(name: &str, text: &str) -> NewDocument {
    NewDocument { name: name.to_owned(), kind: DocumentKind::Text, text: text.to_owned() }
}

/// A conversation with a document before its question.
async fn chat_about(store: &Store, name: &str, text: &str) -> String {
    let id = store.create_conversation(1).await.unwrap().id;
    store.add_draft_documents(&id, &[document(name, text)], 2).await.unwrap();
    turn(store, &id, "What does it say?", "This and that.").await;
    id
}

/// The documents that have the words, with what stands at the place that was found.
async fn places(store: &Store, query: &str, text: &str) -> Vec<(String, String)> {
    let units: Vec<u16> = text.encode_utf16().collect();
    let found = search(store, query).await.into_iter().filter_map(|found| found.document);
    let place = |at: u32| String::from_utf16_lossy(&units[at as usize..]);
    let places = found.map(|found| {
        let place = found.at_utf16.map(place).unwrap_or_default();
        (found.document.name, place.chars().take(9).collect())
    });
    places.collect()
}

#[tokio::test]
async fn a_document_is_found_by_its_words_with_their_place() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let filling = "Es gilt, was 𝄞 hier steht.\n".repeat(500);
    let text =
        format!("Vertrag\n{filling}Die Kündigungsfrist beträgt drei Monate.\n{filling}出租人模型");
    let contract = chat_about(&store, "lease.txt", &text).await;
    assert_eq!(places(&store, "Monate", &text).await, [], "it is indexed behind its chat");
    index_all(&store).await;

    let name = || "lease.txt".to_owned();
    for (query, expected) in [
        ("kundigungsfrist", "Kündigung"),
        ("drei monate", "drei Mona"),
        ("\"beträgt drei\"", "beträgt d"),
        ("vertrag", "Vertrag\nE"),
        // Far apart, and one of them in the name only.
        ("vertrag kündigungs", "Kündigung"),
        ("lease monate", "Monate.\nE"),
        ("模型", "模型"),
        ("lease", ""),
    ] {
        assert_eq!(places(&store, query, &text).await, [(name(), expected.to_owned())], "{query}");
    }
    assert_eq!(places(&store, "monate nirgends", &text).await, []);
    let hit = search(&store, "kündigungsfrist").await.remove(0);
    assert_eq!(hit.message_id, store.branch(&contract).await.unwrap()[0].id);
    let piece = |text: &str, is_word| (text.to_owned(), is_word);
    assert!(hit.excerpt.contains(&piece("Kündigungsfrist", true)), "{:?}", hit.excerpt);
    assert_eq!(store.search_conversations("drei monate").await.unwrap(), [contract]);
}

#[tokio::test]
async fn documents_and_messages_are_found_beside_each_other() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let says = chat(&store, "says", "Where is the quarry?", "There.").await;
    let has = chat_about(&store, "map.txt", "A quarry in the woods.").await;
    let folder = store.create_folder("Stones", 0).await.unwrap().id;
    let documents = [document("stones.txt", "Each quarry has a number.")];
    store.add_folder_documents(&folder, &documents, 5).await.unwrap();
    let mut begun = String::new();
    for at_ms in [10, 11] {
        begun = store.create_conversation_in(at_ms, &folder, "").await.unwrap().id;
        turn(&store, &begun, "Which?", "All.").await;
    }
    index_all(&store).await;
    let mut ids = found(&store, "quarry").await;
    assert_eq!(ids[0], says, "what was said comes first");
    let mut expected = vec![says.clone(), has.clone(), begun.clone()];
    expected.sort();
    ids.sort();
    assert_eq!(ids, expected, "what two chats begin with is found once, in the newer one");
    store.delete_conversations(&[&has], 20).await.unwrap();
    assert!(!found(&store, "quarry").await.contains(&has));
    assert_eq!(store.purge_conversations(&[&has], 20).await.unwrap().len(), 1);
    assert_eq!(scratch.scalar::<i64>("select count(*) from document_passages").await, 1);
    scratch
        .execute(
            "insert into document_search (document_search, rank) values ('integrity-check', 1)",
        )
        .await;
    store.close().await.unwrap();
    let file = std::fs::read(scratch.database()).unwrap();
    let has = |word: &[u8]| file.windows(word.len()).any(|window| window == word);
    assert!(has(b"quarry") && !has(b"woods"), "nothing of a purged document stays in the file");
}

async fn index_all(store: &Store) {
    let mut indexer = DocumentIndexer::new(store);
    while indexer.index_part().await.unwrap() {}
}

#[tokio::test]
async fn a_document_is_found_by_a_phrase_of_its_name() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let text = "Three months of notice.";
    let chats = [chat_about(&store, "Lease agreement.txt", text).await];
    index_all(&store).await;
    for query in ["\"lease agreement\"", "„lease agreement“", "\"lease agreement\" lea"] {
        let expected = ("Lease agreement.txt".to_owned(), String::new());
        assert_eq!(places(&store, query, text).await, [expected], "{query}");
        assert_eq!(store.search_conversations(query).await.unwrap(), chats, "{query}");
    }
    let expected = ("Lease agreement.txt".to_owned(), "months of".to_owned());
    assert_eq!(places(&store, "\"lease agreement\" months", text).await, [expected]);
    assert_eq!(places(&store, "\"lease contract\"", text).await, []);
}

#[tokio::test]
async fn a_word_in_very_many_passages_says_little_beside_a_rare_one() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let before = "word ".repeat(200_000);
    let text = format!("{before}zebrawood {before}");
    chat_about(&store, "long.txt", &text).await;
    chat_about(&store, "short.txt", "A word.").await;
    index_all(&store).await;
    let num_passages = scratch.scalar::<i64>("select count(*) from document_passages").await;
    assert!(num_passages > 1000, "{num_passages} are ranked");

    let names: Vec<String> =
        places(&store, "word", &text).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["short.txt", "long.txt"], "the newest first");
    let [found] = &search(&store, "word zebrawood").await[..] else { panic!("one has both") };
    let at = found.document.as_ref().and_then(|document| document.at_utf16).unwrap() as usize;
    assert!(at.abs_diff(before.len()) < 2000, "found at {at}, it stands at {}", before.len());
}

#[tokio::test]
async fn a_long_text_is_read_once_and_a_document_that_goes_meanwhile_is_left() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let text = format!("{} zebrawood", "word ".repeat(60_000));
    let gone = chat_about(&store, "gone.txt", &text).await;
    chat_about(&store, "long.txt", &text).await;
    let mut indexer = DocumentIndexer::new(&store);
    assert!(indexer.index_part().await.unwrap());
    scratch.execute("update documents set text = 'another' where name = 'long.txt'").await;
    for _ in 0..3 {
        assert!(indexer.index_part().await.unwrap());
    }
    let expected = ("long.txt".to_owned(), "zebrawood".to_owned());
    assert_eq!(places(&store, "zebrawood", &text).await, [expected]);
    // A part of the other one is indexed; then it goes.
    let before = scratch.scalar::<i64>("select count(*) from document_passages").await;
    store.delete_conversations(&[&gone], 20).await.unwrap();
    assert_eq!(store.purge_conversations(&[&gone], 20).await.unwrap().len(), 1);
    while indexer.index_part().await.unwrap() {}
    let after = scratch.scalar::<i64>("select count(*) from document_passages").await;
    assert!(after < before, "{after} of {before} passages are left");
}

#[tokio::test]
async fn a_long_document_is_indexed_in_parts() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let text = format!("{} zebrawood", "word ".repeat(60_000));
    chat_about(&store, "long.txt", &text).await;
    assert!(DocumentIndexer::new(&store).index_part().await.unwrap());
    assert_eq!(places(&store, "zebrawood", &text).await, []);
    store.close().await.unwrap();
    let store = scratch.open().await;
    let (mut indexer, mut num_parts) = (DocumentIndexer::new(&store), 1);
    while indexer.index_part().await.unwrap() {
        num_parts += 1;
    }
    assert_eq!(num_parts, 3);
    let expected = ("long.txt".to_owned(), "zebrawood".to_owned());
    assert_eq!(places(&store, "zebrawood", &text).await, [expected]);
    // As the migration leaves a database that had documents.
    scratch
        .execute(
            "delete from document_passages;
             insert into documents_to_index (document_id) select id from documents;",
        )
        .await;
    index_all(&store).await;
    assert_eq!(places(&store, "zebrawood", &text).await.len(), 1);
}
