//! What a chat has of its own: parameters, presets, personas, and what happens when it has outgrown the
//! model's context.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    ChatContext, Command, ContextCut, ContextOf, Event, FailureCode, Message, MessageStatus,
    NewChat, Persona, Preset, Reply, ResolvedSettings, SettingScope, SettingTarget,
};
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;

use crate::kit::{
    MODEL, answered, check_failure, ended, home_with_model, messages, new_conversation, next,
    open_greedy, send,
};
use crate::script::{self, Script, open_scripted};

fn values(json: Value) -> BTreeMap<String, Value> {
    serde_json::from_value(json).unwrap()
}

async fn set(app: &Arc<App>, scope: SettingTarget, key: &str, value: impl Into<Value>) {
    let command = Command::SetSetting { scope, key: key.to_owned(), value: value.into() };
    app.call(command).await.unwrap();
}

async fn set_for_chat(app: &Arc<App>, id: &str, key: &str, value: impl Into<Value>) {
    set(app, SettingTarget::Chat { id: id.to_owned() }, key, value).await;
}

async fn resolved(app: &Arc<App>, id: &str) -> ResolvedSettings {
    let scope = SettingTarget::Chat { id: id.to_owned() };
    match app.call(Command::GetSettings { scope }).await.unwrap() {
        Reply::Settings { resolved } => *resolved,
        other => panic!("{other:?}"),
    }
}

async fn presets_and_personas(app: &Arc<App>) -> (Vec<Preset>, Vec<Persona>) {
    match app.call(Command::Bootstrap).await.unwrap() {
        Reply::Bootstrap { presets, personas, .. } => (presets, personas),
        other => panic!("{other:?}"),
    }
}

async fn create_persona(app: &Arc<App>, name: &str, system_prompt: &str, json: Value) -> Persona {
    let command = Command::CreatePersona {
        name: name.to_owned(),
        system_prompt: system_prompt.to_owned(),
        model: None,
        values: values(json),
    };
    match app.call(command).await.unwrap() {
        Reply::Persona { persona } => persona,
        other => panic!("{other:?}"),
    }
}

async fn begin_as(app: &Arc<App>, persona_id: &str) -> cairn_app::wire::Conversation {
    let persona_id = persona_id.to_owned();
    match app.call(Command::NewConversationAs { persona_id }).await.unwrap() {
        Reply::Conversation { conversation, .. } => conversation,
        other => panic!("{other:?}"),
    }
}

async fn context(app: &Arc<App>, id: Option<&str>) -> Option<ChatContext> {
    let of = match id {
        Some(id) => ContextOf::Conversation { id: id.to_owned() },
        None => ContextOf::New(NewChat::default()),
    };
    context_of(app, of).await
}

async fn context_of(app: &Arc<App>, of: ContextOf) -> Option<ChatContext> {
    match app.call(Command::GetContext { of }).await.unwrap() {
        Reply::Context { context } => context,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_of_a_chat_ends_its_answers_before_it() {
    let home = home_with_model();
    let app = open_greedy(&home, 24).await;
    let id = new_conversation(&app).await;
    let whole = answered(&app, &id, "Count").await;
    let middle = whole.text.char_indices().nth(5).unwrap().0;
    let stop: String = whole.text[middle..].chars().take(2).collect();
    let stop = stop.replace('\\', "\\\\").replace('\n', "\\n");
    let id = new_conversation(&app).await;
    set_for_chat(&app, &id, "stop", stop.clone()).await;
    let cut = answered(&app, &id, "Count").await;
    assert_eq!(cut.status, MessageStatus::Complete);
    assert!(cut.text.len() < whole.text.len(), "{stop:?} ends {:?}", whole.text);
    assert!(whole.text.starts_with(&cut.text));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn presets_give_a_chat_all_of_their_values_and_take_the_others_away() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    let create = |name: &str, json: Value| Command::CreatePreset {
        name: name.to_owned(),
        values: values(json),
    };
    app.call(create(" Exact ", json!({ "temperature": 0, "top_k": 1 }))).await.unwrap();
    for (command, named) in [
        (create("Exact", json!({ "top_k": 2 })), "Exact"),
        (create("Empty", json!({})), "at least one value"),
        (create("Bad", json!({ "top_p": 2 })), "top_p"),
        (create("Other", json!({ "holds_loops": true })), "holds_loops"),
        (create(" ", json!({ "top_k": 2 })), "name"),
    ] {
        check_failure(&app, command, FailureCode::Invalid, named).await;
    }
    let (presets, _) = presets_and_personas(&app).await;
    let [preset] = &presets[..] else { panic!("{presets:?}") };
    assert_eq!(preset.name, "Exact");

    set_for_chat(&app, &id, "min_p", 0.2).await;
    set_for_chat(&app, &id, "holds_loops", true).await;
    let apply =
        Command::SetParameters { conversation_id: id.clone(), values: preset.values.clone() };
    app.call(apply).await.unwrap();
    let now = resolved(&app, &id).await;
    assert_eq!((now.settings.top_k, now.settings.min_p), (1, 0.0));
    assert!(now.settings.holds_loops, "only parameters are replaced");
    assert_eq!(now.from.get("top_k"), Some(&SettingScope::Chat));
    assert_eq!(now.from.get("min_p"), None);

    let preset_id = preset.id.clone();
    app.call(Command::RenamePreset { id: preset_id.clone(), name: "Careful".to_owned() })
        .await
        .unwrap();
    app.call(Command::DeletePreset { id: preset_id.clone() }).await.unwrap();
    assert!(presets_and_personas(&app).await.0.is_empty());
    app.call(Command::RestorePreset { id: preset_id }).await.unwrap();
    assert_eq!(presets_and_personas(&app).await.0[0].name, "Careful");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_begin_with_their_persona_and_read_its_prompt_once() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let prompt = "You are a careful stone who answers in one short sentence. ".repeat(20);
    let persona = create_persona(&app, "Stone", &prompt, json!({ "top_k": 7 })).await;
    let first = begin_as(&app, &persona.id).await;
    assert_eq!(first.persona_id.as_deref(), Some(persona.id.as_str()));
    assert_eq!(first.system_prompt, prompt);
    let now = resolved(&app, &first.id).await;
    assert_eq!((now.settings.top_k, now.from.get("top_k")), (7, Some(&SettingScope::Persona)));
    set_for_chat(&app, &first.id, "top_k", 3).await;
    assert_eq!(resolved(&app, &first.id).await.from.get("top_k"), Some(&SettingScope::Chat));
    set_for_chat(&app, &first.id, "top_k", Value::Null).await;

    // The parameters are the persona's as they are now; the prompt is the chat's.
    set(&app, SettingTarget::Persona { id: persona.id.clone() }, "top_k", 9).await;
    let change = Command::ChangePersona {
        id: persona.id.clone(),
        name: "Pebble".to_owned(),
        system_prompt: prompt.clone() + "Be kind.",
        model: Some(MODEL.to_owned()),
    };
    app.call(change).await.unwrap();
    assert_eq!(resolved(&app, &first.id).await.settings.top_k, 9);
    let (_, personas) = presets_and_personas(&app).await;
    assert_eq!((personas[0].name.as_str(), personas[0].values.len()), ("Pebble", 1));

    answered(&app, &first.id, "What is granite?").await;
    let change = Command::ChangePersona {
        id: persona.id.clone(),
        name: "Stone".to_owned(),
        system_prompt: prompt,
        model: None,
    };
    app.call(change).await.unwrap();
    let second = begin_as(&app, &persona.id).await;
    let stats = answered(&app, &second.id, "And marble?").await.stats.unwrap();
    let num_new = stats.prompt_tokens - stats.cached_tokens;
    assert!(stats.cached_tokens > 100 && num_new < 60, "{stats:?}");

    app.call(Command::DeletePersona { id: persona.id.clone() }).await.unwrap();
    assert_eq!(resolved(&app, &first.id).await.from.get("top_k"), None);
    let begin = Command::NewConversationAs { persona_id: persona.id.clone() };
    check_failure(&app, begin, FailureCode::NotFound, "persona").await;
    app.call(Command::RestorePersona { id: persona.id.clone() }).await.unwrap();
    assert_eq!(resolved(&app, &first.id).await.settings.top_k, 9);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_of_a_chat_is_counted_by_part() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    assert_eq!(context(&app, Some(&id)).await, None, "no model is loaded");
    answered(&app, &id, "What is granite?").await;
    let short = context(&app, Some(&id)).await.unwrap();
    assert_eq!(short.model, MODEL);
    assert!(short.used_tokens > 8 && short.used_tokens < short.limit_tokens, "{short:?}");
    assert_eq!((short.summary_tokens, short.answer_tokens), (0, 8));
    let prompt = "Answer briefly. ".repeat(12);
    let set_prompt = Command::SetSystemPrompt { id: id.clone(), system_prompt: prompt };
    app.call(set_prompt).await.unwrap();
    let long = context(&app, Some(&id)).await.unwrap();
    assert!(long.beginning_tokens > short.beginning_tokens + 12, "{long:?}");
    let more = long.used_tokens - short.used_tokens;
    assert!(more.abs_diff(long.beginning_tokens - short.beginning_tokens) <= 4, "{long:?}");
    let new = context(&app, None).await.unwrap();
    assert_eq!((new.used_tokens, new.limit_tokens), (short.beginning_tokens, long.limit_tokens));

    let model = SettingTarget::Model { name: MODEL.to_owned() };
    set(&app, model, "context_length", 300).await;
    assert_eq!(context(&app, Some(&id)).await.unwrap().limit_tokens, 300);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_what_a_new_chat_begins_with() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let new = async |new: NewChat| context_of(&app, ContextOf::New(new)).await.unwrap();
    let bare = new(NewChat::default()).await;
    assert!(bare.used_tokens > 0 && bare.used_tokens == bare.beginning_tokens, "{bare:?}");
    let own = new(NewChat { system_prompt: Some("Be brief.".to_owned()), ..Default::default() });
    let own = own.await;
    assert!(own.used_tokens > bare.used_tokens, "{own:?}");

    // The system prompt that is set for the model holds where nothing else does.
    let model = SettingTarget::Model { name: MODEL.to_owned() };
    set(&app, model, "system_prompt", "Answer in verse, and name every stone.").await;
    let set_for_model = new(NewChat::default()).await;
    assert_eq!(set_for_model.system_prompt, "Answer in verse, and name every stone.");
    assert!(set_for_model.used_tokens > own.used_tokens, "{set_for_model:?}");
    let none = new(NewChat { system_prompt: Some(String::new()), ..Default::default() }).await;
    assert_eq!(none, bare, "a persona without one");

    let id = new_conversation(&app).await;
    assert_eq!(context(&app, Some(&id)).await.unwrap(), set_for_model, "the chat that it becomes");
    app.close().await;
}

/// A chat that nearly fills a context of so many tokens with questions of this text.
async fn full_chat(app: &Arc<App>, limit: u32, text: &str) -> String {
    full_chat_of(app, MODEL, limit, text).await
}

async fn full_chat_of(app: &Arc<App>, model: &str, limit: u32, text: &str) -> String {
    let model = SettingTarget::Model { name: model.to_owned() };
    set(app, model, "context_length", limit).await;
    let id = new_conversation(app).await;
    let mut used = 0;
    for number in 0.. {
        answered(app, &id, &format!("{number}: {text}")).await;
        let context = context(app, Some(&id)).await.unwrap();
        let more = context.used_tokens - used;
        used = context.used_tokens;
        if used + more > limit - context.answer_tokens {
            break;
        }
        assert!(number < 40, "{context:?}");
    }
    id
}

const SHORT: &str = "what do you know about stones and pebbles?";
const LONG: &str = "And what is granite made of, where is it found, who carves it, and what do people build of it today?";

/// The message behind which the branch is read.
fn cut(messages: &[Message]) -> Option<(usize, &ContextCut)> {
    messages.iter().enumerate().rev().find_map(|(at, message)| Some((at, message.cut.as_ref()?)))
}

async fn cut_event(events: &mut Receiver<Event>) -> Message {
    loop {
        if let Event::Message { message } = next(events).await
            && message.cut.is_some()
        {
            return message;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_chat_forgets_its_oldest_turns_once_and_keeps_them_in_sight() {
    let home = home_with_model();
    let app = open_greedy(&home, 16).await;
    let id = full_chat(&app, 400, SHORT).await;
    set_for_chat(&app, &id, "at_overflow", "forget").await;
    let before = messages(&app, &id).await;
    assert_eq!(cut(&before), None);
    let (mut events, mut all_events) = (app.subscribe(), app.subscribe());
    let question = LONG.repeat(2);
    let [_, answer] = send(&app, &id, &question).await;
    let read_first = cut_event(&mut events).await;
    let answer = ended(&mut all_events, &answer.id).await;
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    let now = messages(&app, &id).await;
    assert_eq!(now.len(), before.len() + 2, "nothing goes out of sight");
    let (first, forgets) = cut(&now).unwrap();
    assert_eq!((&now[first].id, forgets), (&read_first.id, &ContextCut { summary: None }));
    assert_eq!(now[first].role, cairn_app::wire::Role::User);
    let stats = answer.stats.unwrap();
    assert!(stats.prompt_tokens <= 300, "much is cut off at once: {stats:?}");
    let note = stats.cache_note.unwrap_or_default();
    assert!(note.is_empty() || note.contains("oldest messages"), "{note}");

    // The next turn continues what was read, without another cut.
    let stats = answered(&app, &id, "Thanks.").await.stats.unwrap();
    assert!(stats.cached_tokens > 0 && stats.cache_note.is_none(), "{stats:?}");
    assert_eq!(cut(&messages(&app, &id).await).unwrap().0, first);
    let used = context(&app, Some(&id)).await.unwrap().used_tokens;
    assert!(used < 400, "{used}");

    // Taken back, all of it is read, which is more than the context has.
    let read_again =
        Command::ReadAgain { conversation_id: id.clone(), message_id: read_first.id.clone() };
    // Twice, as by a double click.
    app.call(read_again.clone()).await.unwrap();
    app.call(read_again).await.unwrap();
    assert_eq!(cut(&messages(&app, &id).await), None);
    assert!(context(&app, Some(&id)).await.unwrap().used_tokens > used);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_choice_a_full_chat_stops_and_loses_nothing() {
    let home = home_with_model();
    let app = open_greedy(&home, 16).await;
    let id = full_chat(&app, 400, SHORT).await;
    let before = context(&app, Some(&id)).await.unwrap().used_tokens;
    let mut events = app.subscribe();
    let [_, answer] = send(&app, &id, &LONG.repeat(4)).await;
    let answer = ended(&mut events, &answer.id).await;
    assert_eq!(answer.status, MessageStatus::Failed);
    assert!(answer.error.unwrap().contains("context"));
    assert_eq!(cut(&messages(&app, &id).await), None);
    // What is asked next is read without it.
    assert_eq!(context(&app, Some(&id)).await.unwrap().used_tokens, before);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_says_how_far_it_is_and_is_stopped() {
    let home = Script::endless("stones ").home();
    let app = open_scripted(&home, 16).await;
    let id = full_chat_of(&app, script::MODEL, 20_000, &LONG.repeat(40)).await;
    set_for_chat(&app, &id, "at_overflow", "summarize").await;
    let mut events = app.subscribe();
    let [_, answer] = send(&app, &id, &LONG.repeat(80)).await;
    let mut last = (0, 0);
    loop {
        let event = next(&mut events).await;
        let Event::Summarizing {
            processed_tokens, total_tokens, written_tokens, limit_tokens, ..
        } = event
        else {
            continue;
        };
        assert_eq!(limit_tokens, 1024);
        let now = (processed_tokens, written_tokens);
        assert!(now.0 >= last.0 && now.1 >= last.1, "{last:?} {now:?}");
        assert!(processed_tokens <= total_tokens && written_tokens <= limit_tokens);
        last = now;
        if written_tokens > 0 {
            break;
        }
    }
    app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();
    let answer = ended(&mut events, &answer.id).await;
    assert_eq!((answer.status, answer.text.as_str()), (MessageStatus::Stopped, ""));
    assert_eq!(
        cut(&messages(&app, &id).await),
        None,
        "a summary that was stopped stands for nothing"
    );
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_chat_goes_on_from_the_models_own_summary() {
    let home = home_with_model();
    let app = open_greedy(&home, 16).await;
    let id = full_chat(&app, 1600, LONG).await;
    set_for_chat(&app, &id, "at_overflow", "summarize").await;
    let (mut events, mut all_events) = (app.subscribe(), app.subscribe());
    let [_, answer] = send(&app, &id, &LONG.repeat(2)).await;
    while !matches!(next(&mut events).await, Event::Summarizing { message_id, .. } if message_id == answer.id)
    {
    }
    let read_first = cut_event(&mut events).await;
    let answer = ended(&mut all_events, &answer.id).await;
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    let summary = read_first.cut.unwrap().summary.unwrap();
    assert!(!summary.trim().is_empty());
    let with_summary = context(&app, Some(&id)).await.unwrap();
    assert!(with_summary.summary_tokens > 0, "{with_summary:?}");
    assert!(with_summary.used_tokens < with_summary.limit_tokens);

    // A copy of the branch is read as the chat itself.
    let last = messages(&app, &id).await.pop().unwrap();
    let branch = Command::BranchConversation {
        conversation_id: id,
        message_id: last.id,
        title: "Copy".to_owned(),
    };
    let Reply::Conversation { conversation, messages } = app.call(branch).await.unwrap() else {
        panic!("no conversation")
    };
    assert_eq!(cut(&messages).unwrap().1.summary.as_ref(), Some(&summary));
    assert_eq!(context(&app, Some(&conversation.id)).await.unwrap(), with_summary);
    app.close().await;
}
