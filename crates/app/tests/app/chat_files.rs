//! Chats out and in: the whole tree comes back equal, and foreign files come in or are refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    ChatFileFormat, ChatsImported, Command, Conversation, FailureCode, FailureKind, Message, Reply,
    Role,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kit::{
    answered, bootstrap, home_with_model, messages, new_conversation, open, open_greedy,
    open_with_one_turn, save_as, set_for_all, start_from,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chats").join(name)
}

async fn import(app: &Arc<App>, path: &Path) -> ChatsImported {
    app.import_chats(path).await.unwrap()
}

async fn listed(app: &Arc<App>) -> Vec<Conversation> {
    bootstrap(app).await.0
}

fn texts(messages: &[Message]) -> Vec<(Role, &str)> {
    messages.iter().map(|message| (message.role, message.text.as_str())).collect()
}

/// A chat with two answers to one question, a system prompt, a setting and a folder.
async fn with_branches(app: &Arc<App>) -> String {
    set_for_all(app, "max_tokens", 3).await;
    let id = new_conversation(app).await;
    let system_prompt = "Be brief. 简短。".to_owned();
    app.call(Command::SetSystemPrompt { id: id.clone(), system_prompt }).await.unwrap();
    answered(app, &id, "What is \"granite\"?\n\n\u{1F5FF}").await;
    let mut events = app.subscribe();
    let again = Command::Regenerate { conversation_id: id.clone(), message_id: None, model: None };
    let again = app.call(again).await.unwrap();
    let Reply::Sent { messages, .. } = again else { panic!("{again:?}") };
    crate::kit::ended(&mut events, &messages[0].id).await;
    answered(app, &id, "And basalt?").await;
    let made = app.call(Command::CreateFolder { name: "Stones".to_owned() }).await.unwrap();
    let Reply::Folder { folder } = made else { panic!("{made:?}") };
    let folder_id = Some(folder.id);
    app.call(Command::MoveConversations { ids: vec![id.clone()], folder_id }).await.unwrap();
    app.call(Command::PinConversation { id: id.clone(), is_pinned: true }).await.unwrap();
    id
}

/// The conversations of a file, without the time at which it was written.
fn content(path: &Path) -> Value {
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!((&file["format"], &file["version"]), (&"cairn-chats".into(), &1.into()));
    file["conversations"].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_that_was_taken_out_comes_in_equal() {
    let (home, other_home) = (home_with_model(), home_with_model());
    let app = open(&home).await;
    let id = with_branches(&app).await;
    let before = messages(&app, &id).await;
    let file = home.path().join("chats.json");
    app.export_chats(std::slice::from_ref(&id), ChatFileFormat::Json, &file).await.unwrap();
    let written = content(&file);
    assert_eq!(written[0]["messages"].as_array().unwrap().len(), 5, "all branches");
    assert_eq!(written[0]["folder"], "Stones");
    assert_eq!(import(&app, &file).await.num_here, 1);
    app.close().await;

    let other = open(&other_home).await;
    let done = import(&other, &file).await;
    assert_eq!((done.num_added, done.first_id.as_ref()), (1, Some(&id)));
    assert_eq!(done.added_ids.as_slice(), std::slice::from_ref(&id));
    let [row] = &listed(&other).await[..] else { panic!("one chat") };
    assert_eq!((row.id.as_str(), row.is_pinned), (id.as_str(), true));
    assert_eq!(row.system_prompt, "Be brief. 简短。");
    // Without its token ids an answer cannot be continued.
    let expected = before.into_iter().map(|message| Message { can_continue: false, ..message });
    assert_eq!(messages(&other, &id).await, expected.collect::<Vec<_>>());
    let again = other_home.path().join("again.json");
    other.export_chats(&[], ChatFileFormat::Json, &again).await.unwrap();
    assert_eq!(content(&again), written);
    // The chat goes on.
    answered(&other, &id, "And slate?").await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_that_went_on_in_two_places_has_both_branches_in_each() {
    let (home, other_home) = (home_with_model(), home_with_model());
    let (app, other) = (open_greedy(&home, 3).await, open_greedy(&other_home, 3).await);
    let id = new_conversation(&app).await;
    answered(&app, &id, "What is granite?").await;
    let file = home.path().join("chats.json");
    app.export_chats(&[], ChatFileFormat::Json, &file).await.unwrap();
    import(&other, &file).await;
    answered(&other, &id, "And slate?").await;
    answered(&app, &id, "And basalt?").await;
    let there = other_home.path().join("there.json");
    other.export_chats(&[], ChatFileFormat::Json, &there).await.unwrap();
    let done = import(&app, &there).await;
    assert_eq!((done.num_added, done.num_here, done.num_extended), (0, 0, 1));
    assert_eq!((done.num_new_messages, done.first_id.as_ref()), (2, Some(&id)));
    let branch = messages(&app, &id).await;
    assert_eq!(branch[2].text, "And basalt?", "what is on screen stays");
    let [_, slate] = &branch[2].versions[..] else { panic!("{:?}", branch[2].versions) };
    let show = Command::ShowVersion { conversation_id: id.clone(), message_id: slate.clone() };
    app.call(show).await.unwrap();
    assert_eq!(messages(&app, &id).await[2].text, "And slate?");
    // Both go on, and what was taken in once is here.
    answered(&app, &id, "And marble?").await;
    assert_eq!(import(&app, &there).await.num_here, 1);
    app.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_are_taken_out_to_be_read_and_for_other_programs() {
    let home = home_with_model();
    let app = open(&home).await;
    import(&app, &fixture("open-webui.json")).await;
    import(&app, &fixture("messages.jsonl")).await;
    let file = home.path().join("out");
    app.export_chats(&[], ChatFileFormat::Openai, &file).await.unwrap();
    let lines = std::fs::read_to_string(&file).unwrap();
    let line = |text: &str| lines.lines().any(|line| line == text);
    assert!(
        line(
            r#"{"messages":[{"role":"user","content":"Colour of basalt?"},{"role":"assistant","content":"Black."}]}"#
        ),
        "{lines}"
    );
    assert!(
        line(
            r#"{"messages":[{"role":"system","content":"Answer as a mountain guide."},{"role":"user","content":"Is there snow in May?"},{"role":"assistant","content":"Often, above 2,000 metres."}]}"#
        ),
        "{lines}"
    );
    let done = import(&app, &file).await;
    assert_eq!((done.num_added, done.num_here), (1, 2), "the other two have come from such a file");

    let snow = listed(&app).await.into_iter().find(|row| row.title == "Snow on the pass").unwrap();
    app.export_chats(&[snow.id], ChatFileFormat::Markdown, &file).await.unwrap();
    assert_eq!(
        std::fs::read_to_string(&file).unwrap(),
        "# Snow on the pass\n\n## System prompt\n\nAnswer as a mountain guide.\n\n## You\n\nIs there snow in May?\n\n## Assistant\n\nOften, above 2,000 metres.\n"
    );
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_of_other_programs_come_in() {
    let home = home_with_model();
    let app = open(&home).await;
    let done = import(&app, &fixture("chatgpt.json")).await;
    assert_eq!((done.num_added, done.num_refused), (1, 1));
    assert_eq!((done.refused[0].number, done.refused[0].title.as_str()), (2, "Empty"));
    assert_eq!(done.refused[0].why, "It has no messages.");
    let id = done.first_id.unwrap();
    use Role::{Assistant, User};
    assert_eq!(
        texts(&messages(&app, &id).await),
        [
            (User, "Which stones make a cairn?"),
            (Assistant, "Flat, heavy ones: slate or gneiss."),
            (User, "How high?"),
            (Assistant, "As high as it stands."),
        ]
    );
    let row = listed(&app).await.remove(0);
    assert_eq!(
        (row.title.as_str(), row.updated_at_ms),
        ("Which stones make a cairn?", 1_700_000_300_900)
    );
    assert_eq!(import(&app, &fixture("chatgpt.json")).await.num_here, 1);

    let snow = import(&app, &fixture("open-webui.json")).await.first_id.unwrap();
    let answer = messages(&app, &snow).await.remove(1);
    assert_eq!((answer.text.trim(), answer.segments.len()), ("Often, above 2,000 metres.", 2));
    assert!(listed(&app).await.iter().any(|row| row.id == snow && row.is_archived));
    let gems = import(&app, &fixture("sharegpt.json")).await.first_id.unwrap();
    assert_eq!(messages(&app, &gems).await.len(), 4);
    let began_at_ms = listed(&app).await.iter().map(|row| row.updated_at_ms).max().unwrap();
    assert_eq!(import(&app, &fixture("messages.jsonl")).await.num_added, 2);
    // A file without dates is of now, and the same file all the same.
    let dateless = listed(&app).await;
    assert!(dateless[..2].iter().all(|row| row.updated_at_ms >= began_at_ms), "{dateless:?}");
    assert!(dateless.iter().all(|row| row.created_at_ms > 0), "{dateless:?}");
    assert_eq!(import(&app, &fixture("messages.jsonl")).await.num_here, 2);
    // What came in is found, and goes on.
    let found = app.call(Command::SearchMessages { text: "gneiss".to_owned() }).await.unwrap();
    let Reply::FoundMessages { found, indexed_share } = found else { panic!("{found:?}") };
    assert_eq!((found[0].conversation_id.as_str(), indexed_share), (id.as_str(), 1.0));
    set_for_all(&app, "max_tokens", 2).await;
    answered(&app, &id, "Why?").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_none_of_chats_is_refused_in_one_sentence() {
    let home = home_with_model();
    let app = open(&home).await;
    let none = "has no chats that Cairn can read";
    for (content, expected) in [
        ("", "it is not valid JSON (line 1, column 0)"),
        ("hello", "it is not valid JSON (line 1, column 1)"),
        ("[{\"a\": 1}]", none),
        ("{}", none),
        ("{\"format\":\"cairn-chats\",\"version\":1}", none),
        ("PK\u{3}\u{4}…", "it is an archive: unpack it"),
        (
            "{\"format\":\"cairn-chats\",\"version\":2,\"conversations\":[]}",
            "newer version of Cairn",
        ),
    ] {
        let file = home.path().join("bad.json");
        std::fs::write(&file, content).unwrap();
        let refused = app.import_chats(&file).await.unwrap_err();
        assert_eq!(refused.code, FailureCode::Invalid);
        assert!(refused.message.starts_with("“bad.json” "), "{}", refused.message);
        assert!(refused.message.contains(expected), "{}", refused.message);
        assert!(refused.message.ends_with('.'), "{}", refused.message);
        assert!(refused.kind.is_some(), "{refused:?}");
    }
    assert!(app.import_chats(&home.path().join("missing")).await.is_err());
    assert!(listed(&app).await.is_empty());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_without_chats_is_no_mistake() {
    let home = home_with_model();
    let app = open(&home).await;
    let file = home.path().join("none.json");
    for format in [ChatFileFormat::Openai, ChatFileFormat::Markdown, ChatFileFormat::Json] {
        app.export_chats(&[], format, &file).await.unwrap();
        let is_own = format == ChatFileFormat::Json;
        assert_eq!(std::fs::read(&file).unwrap().is_empty(), !is_own, "{format:?}");
    }
    assert_eq!(content(&file), json!([]));
    assert_eq!(import(&app, &file).await, ChatsImported::default());
    std::fs::write(&file, "[]").unwrap();
    assert_eq!(import(&app, &file).await, ChatsImported::default());
    app.close().await;
}

/// Writes chats as Cairn does, and imports them.
async fn import_own(app: &Arc<App>, home: &TempDir, chats: &[Value]) -> ChatsImported {
    let file = home.path().join("own.json");
    let whole = json!({"format": "cairn-chats", "version": 1, "conversations": chats});
    std::fs::write(&file, whole.to_string()).unwrap();
    import(app, &file).await
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_without_an_id_are_known_by_their_content() {
    let home = home_with_model();
    let app = open(&home).await;
    let chat =
        |question: &str| json!({"messages": [{"id": "1", "role": "user", "text": question}]});
    let (granite, slate, basalt) = (chat("Granite?"), chat("Slate?"), chat("Basalt?"));
    let done = import_own(&app, &home, &[granite.clone(), slate.clone()]).await;
    assert_eq!((done.num_added, done.num_here), (2, 0));
    let done = import_own(&app, &home, &[slate, basalt, granite]).await;
    assert_eq!((done.num_added, done.num_here), (1, 2));
    // The same time is not the same chat, and neither is an empty id.
    let at = |mut chat: Value, key: &str, value: Value| {
        chat[key] = value;
        chat
    };
    let dated = ["Gneiss?", "Marble?"].map(|text| at(chat(text), "updated_at_ms", 5.into()));
    assert_eq!(import_own(&app, &home, &dated).await.num_added, 2);
    assert_eq!(import_own(&app, &home, &dated).await.num_here, 2);
    let nameless = ["Chalk?", "Flint?"].map(|text| at(chat(text), "id", "".into()));
    assert_eq!(import_own(&app, &home, &nameless).await.num_added, 2);
    assert_eq!(listed(&app).await.len(), 7);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_with_an_id_and_without_a_date_goes_on() {
    let home = home_with_model();
    let app = open(&home).await;
    let question = json!({"id": "1", "role": "user", "text": "Granite?"});
    let answer = json!({"id": "2", "parent_id": "1", "role": "assistant", "text": "Hard."});
    let chat = json!({"id": "stones", "messages": [question]});
    let longer = json!({"id": "stones", "messages": [question, answer]});
    let (chat, longer) = ([chat], [longer]);
    assert_eq!(import_own(&app, &home, &chat).await.num_added, 1);
    assert_eq!(import_own(&app, &home, &longer).await.num_new_messages, 1);
    assert_eq!(import_own(&app, &home, &chat).await.num_here, 1);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_an_answer_failed_is_said_in_the_same_language_after_an_import() {
    let home = home_with_model();
    let app = open(&home).await;
    let uuid = |number: u32| format!("00000000-0000-7000-8000-{number:012}");
    let kind = json!({"type": "closing"});
    let file = home.path().join("failed.json");
    let chat = json!({"id": uuid(0), "messages": [
        {"id": uuid(1), "role": "user", "text": "Why?"},
        {"id": uuid(2), "parent_id": uuid(1), "role": "assistant", "text": "", "status": "failed",
         "error": "Cairn is closing.", "error_kind": kind},
    ]});
    let whole = json!({"format": "cairn-chats", "version": 1, "conversations": [chat]});
    std::fs::write(&file, whole.to_string()).unwrap();
    assert_eq!(import(&app, &file).await.num_added, 1);
    let stored = messages(&app, &uuid(0)).await;
    assert_eq!(stored[1].error_kind.as_deref(), Some(&FailureKind::Closing));
    let out = home.path().join("out.json");
    app.export_chats(&[], ChatFileFormat::Json, &out).await.unwrap();
    let messages = &content(&out)[0]["messages"];
    assert_eq!(messages[1]["error_kind"], kind);
    assert_eq!(messages[0].get("error_kind"), None);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_file_that_breaks_off_the_whole_chats_come_in() {
    let home = home_with_model();
    let app = open(&home).await;
    let chat =
        r#"{"id":"ID","conversations":[{"from":"human","value":"1"},{"from":"gpt","value":"2"}]}"#;
    let file = home.path().join("cut.json");
    let all = format!("[{},{},{}", chat.replace("ID", "1"), chat.replace("ID", "2"), &chat[..40]);
    std::fs::write(&file, all).unwrap();
    let done = import(&app, &file).await;
    assert_eq!(done.num_added, 2);
    assert!(done.problem.unwrap().starts_with("The rest of “cut.json” cannot be read: EOF"));
    assert_eq!(listed(&app).await.len(), 2);
    app.close().await;
}

/// One of Cairn's own files in which a message follows one that is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_with_a_hole_is_left_out_whole() {
    let home: TempDir = home_with_model();
    let app = open(&home).await;
    let file = home.path().join("hole.json");
    let message = |id: &str, parent: &str| {
        format!(r#"{{"id":"{id}","parent_id":{parent},"role":"user","text":"x"}}"#)
    };
    let chat = |title: &str, second: &str| {
        let messages = [message("1", "null"), message("2", second)].join(",");
        format!(r#"{{"title":"{title}","messages":[{messages}]}}"#)
    };
    let chats = [chat("Hole", "\"9\""), chat("Whole", "\"1\"")].join(",");
    std::fs::write(
        &file,
        format!(r#"{{"format":"cairn-chats","version":1,"conversations":[{chats}]}}"#),
    )
    .unwrap();
    let done = import(&app, &file).await;
    assert_eq!((done.num_added, done.num_refused), (1, 1));
    assert_eq!(done.refused[0].title, "Hole");
    assert_eq!(listed(&app).await[0].title, "Whole");
    app.close().await;
}

/// A number below `end`; the same ones every time.
fn below(state: &mut u64, end: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % end
}

fn one_of<'a>(state: &mut u64, all: &[&'a str]) -> &'a str {
    all[below(state, all.len() as u64) as usize]
}

fn uuid(state: &mut u64) -> String {
    let mut hex = |digits: usize| {
        let number = below(state, 1 << 30) | below(state, 1 << 30) << 30;
        format!("{number:016x}")[16 - digits..].to_owned()
    };
    format!("{}-{}-7{}-8{}-{}", hex(8), hex(4), hex(3), hex(3), hex(12))
}

/// A text that is in no other place.
fn words(state: &mut u64) -> String {
    let odd = ["", " \u{1F5FF}", "\n\"quoted\"", " 石", "\u{2028}\\"];
    format!("w{}{}", below(state, 1 << 30), odd[below(state, odd.len() as u64) as usize])
}

/// A chat as Cairn writes it, with anything that a chat can have.
fn any_chat(state: &mut u64) -> Value {
    let documents = |state: &mut u64, at_least: u64| -> Vec<Value> {
        let number = at_least + below(state, 3);
        let kinds = ["text", "code", "markdown", "csv", "html", "pdf"];
        let kind = |state: &mut u64| one_of(state, &kinds);
        (0..number)
            .map(|_| json!({ "name": words(state).replace('\n', " "), "kind": kind(state), "text": words(state) }))
            .collect()
    };
    let mut messages: Vec<Value> = Vec::new();
    for index in 0..1 + below(state, 12) {
        let parent = below(state, index + 1).checked_sub(1).map(|parent| parent as usize);
        let is_question = parent.is_none_or(|parent| messages[parent]["role"] == "assistant");
        let mut message = json!({
            "id": uuid(state),
            "parent_id": parent.map(|parent| messages[parent]["id"].clone()),
            "role": if is_question { "user" } else { "assistant" },
            "status": one_of(state, &["complete", "stopped", "interrupted"]),
            "text": words(state),
            "segments": null,
            "error": null,
            "stats": null,
            "created_at_ms": below(state, 1 << 40),
        });
        if is_question && below(state, 2) == 0 {
            message["documents"] = documents(state, 1).into();
        }
        if is_question && below(state, 3) == 0 {
            let summary = (below(state, 2) == 0).then(|| words(state));
            message["cut"] = json!({ "summary": summary });
        }
        if !is_question {
            message["model"] = words(state).into();
        }
        messages.push(message);
    }
    let leaf = below(state, messages.len() as u64) as usize;
    let persona = json!({
        "name": words(state),
        "system_prompt": words(state),
        "model": (below(state, 2) == 0).then(|| words(state)),
        "settings": { "temperature": 0.25, "stop": "END" },
        "created_at_ms": below(state, 1 << 40),
    });
    let token_ids: Vec<u64> = (0..1 + below(state, 30)).map(|_| below(state, 1 << 17)).collect();
    let opaque = below(state, 3) == 0;
    let starting_point = json!({
        "id": uuid(state),
        "name": words(state),
        "kind": one_of(state, &["prompt", "conversation"]),
        "kv_format": one_of(state, &["plain", "kv8g64"]),
        "provenance": if opaque { "opaque:0f" } else { one_of(state, &["computed", "import:0f"]) },
        "tokens": token_ids.len(),
        "token_ids": (!opaque).then_some(token_ids),
        "start_text": words(state),
        "end_text": words(state),
        "is_imported": opaque,
    });
    let mut chat = json!({
        "id": uuid(state),
        "title": format!("Chat {}", below(state, 1000)),
        "system_prompt": words(state),
        "created_at_ms": below(state, 1 << 40),
        "updated_at_ms": below(state, 1 << 40),
        "is_pinned": below(state, 2) == 0,
        "is_archived": below(state, 2) == 0,
        "folder": (below(state, 2) == 0).then(|| format!("Folder {}", below(state, 3))),
        "settings": (below(state, 2) == 0).then(|| json!({ "top_p": 0.5, "max_tokens": 77 })),
        "persona": (below(state, 2) == 0).then_some(persona),
        "model": (below(state, 2) == 0).then(|| words(state)),
        "starting_point": (below(state, 2) == 0).then_some(starting_point),
        "leaf_message_id": messages[leaf]["id"],
        "messages": messages,
    });
    if below(state, 2) == 0 {
        chat["begins_with"] = documents(state, 1).into();
    }
    if below(state, 2) == 0 {
        chat["draft_documents"] = documents(state, 1).into();
    }
    chat
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_chat_has_survives_going_in_and_out() {
    let home = home_with_model();
    let app = open(&home).await;
    let mut state = 7;
    let mut chats: Vec<Value> = (0..60).map(|_| any_chat(&mut state)).collect();
    let file = home.path().join("all.json");
    let whole = json!({ "format": "cairn-chats", "version": 1, "conversations": chats });
    std::fs::write(&file, whole.to_string()).unwrap();
    let done = import(&app, &file).await;
    assert_eq!((done.num_added, &done.refused[..]), (60, &[][..]));
    let again = home.path().join("again.json");
    app.export_chats(&[], ChatFileFormat::Json, &again).await.unwrap();
    let Value::Array(mut written) = content(&again) else { panic!("no list") };
    let by_id = |chat: &Value| chat["id"].as_str().unwrap().to_owned();
    chats.sort_by_key(by_id);
    written.sort_by_key(by_id);
    for (given, found) in chats.iter().zip(&written) {
        assert_eq!(given, found, "{given:#}\n{found:#}");
    }
    // What could not be attached does not come in from a file either.
    let unfit = |document: Value| {
        json!({ "title": "Unfit", "updated_at_ms": 1, "messages": [],
            "draft_documents": [document] })
    };
    let empty = unfit(json!({ "name": "map.txt", "kind": "text", "text": " " }));
    let nameless = unfit(json!({ "name": "\n", "kind": "text", "text": "A map." }));
    let whole =
        json!({ "format": "cairn-chats", "version": 1, "conversations": [empty, nameless] });
    let file = home.path().join("unfit.json");
    std::fs::write(&file, whole.to_string()).unwrap();
    let done = import(&app, &file).await;
    assert_eq!(done.num_added, 0);
    let why = format!("{:?}", done.refused);
    assert!(why.contains("is empty") && why.contains("needs a name"), "{why}");
    // Personas that are the same are one; documents that several chats begin with are there once.
    let file = home.path().join("one.json");
    let persona = json!({ "name": "Guide", "system_prompt": "Be a guide." });
    let begins_with = json!([{ "name": "map.txt", "kind": "text", "text": "A map." }]);
    let chat = |title: &str, id: &str| {
        json!({
            "id": id, "title": title, "persona": persona, "begins_with": begins_with,
            "messages": [{ "id": "1", "role": "user", "text": "Where?" }],
        })
    };
    let two = [chat("One", "1"), chat("Two", "2")];
    let whole = json!({ "format": "cairn-chats", "version": 1, "conversations": two });
    std::fs::write(&file, whole.to_string()).unwrap();
    assert_eq!(import(&app, &file).await.num_added, 2);
    let all = listed(&app).await;
    let persona_of = |title: &str| {
        let row = all.iter().find(|row| row.title == title).unwrap();
        row.persona_id.clone().unwrap()
    };
    assert_eq!(persona_of("One"), persona_of("Two"));
    let pool = crate::kit::database(&home).await;
    let num_maps: i64 =
        sqlx::query_scalar("select count(*) from folder_documents where name = 'map.txt'")
            .fetch_one(&pool)
            .await
            .unwrap();
    assert_eq!(num_maps, 1);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_with_a_starting_point_goes_on_where_its_file_is_imported() {
    let (home, elsewhere) = (home_with_model(), home_with_model());
    let (app, id) = open_with_one_turn(&home).await;
    let notes = save_as(&app, &id, "Notes").await;
    let chat = start_from(&app, &notes.id).await;
    let before = answered(&app, &chat, "Two").await;
    let file = home.path().join("chats.json");
    app.export_chats(std::slice::from_ref(&chat), ChatFileFormat::Json, &file).await.unwrap();
    app.close().await;

    let other = open_greedy(&elsewhere, 8).await;
    assert_eq!(import(&other, &file).await.first_id.as_ref(), Some(&chat));
    let row = listed(&other).await.remove(0);
    let prefix = row.prefix.unwrap();
    assert_eq!((prefix.name.as_str(), prefix.tokens), ("Notes", notes.tokens));
    // Its tokens are read again, and the prompt is that of the chat it was.
    let mut events = other.subscribe();
    let again =
        Command::Regenerate { conversation_id: chat.clone(), message_id: None, model: None };
    let Reply::Sent { messages, .. } = other.call(again).await.unwrap() else { panic!() };
    let after = crate::kit::ended(&mut events, &messages[0].id).await;
    let prompt = |answer: &Message| answer.stats.as_ref().unwrap().prompt_tokens;
    assert_eq!((prompt(&after), &after.text), (prompt(&before), &before.text));
    other.close().await;

    // Tokens that no model here has are refused with a sentence.
    let text = std::fs::read_to_string(&file).unwrap();
    let (head, rest) = text.split_once("\"token_ids\":[").unwrap();
    let (ids, rest) = rest.split_once(']').unwrap();
    let mut ids: Vec<&str> = ids.split(',').collect();
    let middle = ids.len() / 2;
    ids[middle] = "4000000000";
    std::fs::write(&file, format!("{head}\"token_ids\":[{}]{rest}", ids.join(","))).unwrap();
    let third = home_with_model();
    let other = open_greedy(&third, 8).await;
    let chat = import(&other, &file).await.first_id.unwrap();
    let refused = answered(&other, &chat, "Three").await;
    let why = refused.error.unwrap();
    assert!(why.contains("context of") && why.contains("choose that model"), "{why}");
    other.close().await;
}

/// One question with `count` alternative answers, as ChatGPT exports them.
fn star(home: &TempDir, count: usize) -> PathBuf {
    let node = |place: usize| {
        let (parent, role) = if place == 0 { (None, "user") } else { (Some("n0"), "assistant") };
        let content = json!({"content_type": "text", "parts": ["x"]});
        let message = json!({"author": {"role": role}, "content": content, "create_time": 1.0});
        (format!("n{place}"), json!({"parent": parent, "children": [], "message": message}))
    };
    let mapping: serde_json::Map<String, Value> = (0..=count).map(node).collect();
    let chat = json!([{"title": "star", "mapping": mapping, "current_node": format!("n{count}")}]);
    let path = home.path().join(format!("star-{count}.json"));
    std::fs::write(&path, chat.to_string()).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn opens_question_with_thousands_of_answers() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    let mut sizes = Vec::new();
    for count in [2_000, 4_000] {
        let id = import(&app, &star(&home, count)).await.first_id.unwrap();
        let shown = messages(&app, &id).await;
        assert_eq!(shown[1].versions.len(), count);
        sizes.push(serde_json::to_string(&shown).unwrap().len());
    }
    assert!(sizes[1] < sizes[0] * 21 / 10, "twice the answers: {sizes:?} bytes");
    app.close().await;
}
