//! How much a model thinks: the settings that say so, and what reaches its chat template.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    AnswerSegment, Command, CompareColumn, Event, Message, MessageStatus, Reply, SettingTarget,
    Thinking, ThinkingChoices,
};
use cairn_tiny_models::set_template;
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;

use crate::kit::{answered, ended, messages, new_conversation, next, send, set_for_all};
use crate::script::{MODEL, STRIPS, Script, ids, open_scripted};

/// Thinks very long unless asked, and refuses efforts that it does not know. The more it thinks, the
/// longer is its prompt.
const THINKS: &str = "{%- set effort = reasoning_effort | default('xhigh') -%}\
    {%- if effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('no ' ~ effort) }}{% endif -%}\
    {%- for turn in messages -%}\
    {{- ('Q' if turn.role == 'user' else 'A') ~ turn.content.split('</think>') | last -}}\
    {%- endfor -%}\
    {%- if enable_thinking is not defined or enable_thinking -%}\
    {{- 'z' * {'low': 10, 'medium': 20, 'xhigh': 30}[effort] -}}\
    {%- endif -%}A{# <think> #}";

/// Says which prompt it was given: by how much it thinks.
fn script() -> Script {
    let prompt = |thinking: usize| ids(&format!("Qwhy{}A", "z".repeat(thinking)));
    Script::new(THINKS)
        .then(&prompt(0), &ids("Off."))
        .then(&prompt(10), &ids("Low."))
        .then(&prompt(20), &ids("Medium."))
        .then(&prompt(30), &ids("Xhigh."))
}

async fn set(app: &Arc<App>, scope: SettingTarget, value: impl Into<Value>) {
    let key = "thinking".to_owned();
    app.call(Command::SetSetting { scope, key, value: value.into() }).await.unwrap();
}

async fn choices(app: &Arc<App>, scope: SettingTarget) -> Option<ThinkingChoices> {
    match app.call(Command::GetSettings { scope }).await.unwrap() {
        Reply::Settings { resolved } => resolved.thinking,
        other => panic!("{other:?}"),
    }
}

/// The answer to a message in a new chat.
async fn said(app: &Arc<App>) -> String {
    let id = new_conversation(app).await;
    answered(app, &id, "why").await.text
}

#[tokio::test(flavor = "multi_thread")]
async fn strongest_setting_reaches_template() {
    let home = script().home();
    let app = open_scripted(&home, 100).await;
    assert_eq!(said(&app).await, "Medium.", "its own is more than medium");
    set_for_all(&app, "thinking", "low").await;
    assert_eq!(said(&app).await, "Low.");
    let model = SettingTarget::Model { name: MODEL.to_owned() };
    set(&app, model.clone(), "off").await;
    assert_eq!(said(&app).await, "Off.");

    let id = new_conversation(&app).await;
    let chat = SettingTarget::Chat { id: id.clone() };
    // The template has no such level.
    set(&app, chat.clone(), "max").await;
    assert_eq!(answered(&app, &id, "why").await.text, "Xhigh.");
    let levels = vec![Thinking::Off, Thinking::Low, Thinking::Medium, Thinking::Xhigh];
    let expected = ThinkingChoices { levels, automatic: Some(Thinking::Medium) };
    assert_eq!(choices(&app, chat).await.as_ref(), Some(&expected));
    assert_eq!(choices(&app, model).await, Some(expected));
    assert_eq!(choices(&app, SettingTarget::App).await, None);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn presets_and_personas_set_thinking() {
    let home = script().home();
    let app = open_scripted(&home, 100).await;
    let id = new_conversation(&app).await;
    let values = serde_json::from_value(json!({ "thinking": "off" })).unwrap();
    app.call(Command::SetParameters { conversation_id: id.clone(), values }).await.unwrap();
    assert_eq!(answered(&app, &id, "why").await.text, "Off.");

    let create = Command::CreatePersona {
        name: "Brief".to_owned(),
        system_prompt: String::new(),
        model: None,
        values: serde_json::from_value(json!({ "thinking": "low" })).unwrap(),
    };
    let Reply::Persona { persona } = app.call(create).await.unwrap() else { panic!() };
    let begin = Command::NewConversationAs { persona_id: persona.id };
    let reply = app.call(begin).await.unwrap();
    let Reply::Conversation { conversation, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(answered(&app, &conversation.id, "why").await.text, "Low.");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compares_two_levels() {
    let home = script().home();
    let app = open_scripted(&home, 100).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let column = |thinking| CompareColumn { model: None, temperature: None, seed: None, thinking };
    let compare = Command::Compare {
        conversation_id: id.clone(),
        message_id: None,
        text: Some("why".to_owned()),
        columns: vec![column(Some(Thinking::Off)), column(None)],
    };
    let reply = app.call(compare).await.unwrap();
    let Reply::Compared { messages: begun, .. } = reply else { panic!("{reply:?}") };
    let wanted: Vec<String> = begun.iter().rev().take(2).rev().map(|m| m.id.clone()).collect();
    let mut ended: Vec<Message> = Vec::new();
    while ended.len() < 2 {
        let event = match next(&mut events).await {
            Event::Beside { event } => *event,
            event => event,
        };
        if let Event::Message { message } = event
            && wanted.contains(&message.id)
            && message.status != MessageStatus::Streaming
        {
            ended.push(message);
        }
    }
    ended.sort_by_key(|message| wanted.iter().position(|id| *id == message.id));
    let texts: Vec<_> = ended.iter().map(|message| message.text.as_str()).collect();
    assert_eq!(texts, ["Off.", "Medium."]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_without_choice_are_left_alone() {
    let home = Script::new(STRIPS).then(&ids("QwhyA"), &ids("Because.")).home();
    let app = open_scripted(&home, 100).await;
    let id = new_conversation(&app).await;
    let chat = SettingTarget::Chat { id: id.clone() };
    assert_eq!(choices(&app, chat.clone()).await, Some(ThinkingChoices::default()));
    set(&app, chat, "high").await;
    assert_eq!(answered(&app, &id, "why").await.text, "Because.");
    assert_eq!(messages(&app, &id).await.len(), 2);
    app.close().await;
}

/// Opens thoughts at the beginning of each answer.
const OPENS: &str = "{% for turn in messages %}{% if turn.role == 'user' %}Q{{ turn.content }}\
    {% else %}A{{ turn.content }}{% endif %}{% endfor %}A<think>";

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_end_when_a_person_wants_answer() {
    let home = Script::endless("abcdefgh ").home();
    set_template(&home.path().join("models").join(MODEL), OPENS).unwrap();
    let app = open_scripted(&home, 1_000_000).await;
    set_for_all(&app, "holds_loops", false).await;
    let id = new_conversation(&app).await;
    let (mut events, mut all_events) = (app.subscribe(), app.subscribe());
    let [_, answer] = send(&app, &id, "why").await;
    let answer_now =
        || Command::AnswerNow { conversation_id: id.clone(), message_id: answer.id.clone() };
    let segment = async |events: &mut Receiver<Event>, wanted: fn(&AnswerSegment) -> bool| loop {
        if let Event::Segment { segment, .. } = next(events).await
            && wanted(&segment)
        {
            return;
        }
    };
    segment(&mut events, |it| matches!(it, AnswerSegment::Reasoning { .. })).await;
    app.call(answer_now()).await.unwrap();
    segment(&mut events, |it| matches!(it, AnswerSegment::Text { .. })).await;
    // It answers already.
    app.call(answer_now()).await.unwrap();
    app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();
    let stopped = ended(&mut all_events, &answer.id).await;
    assert_eq!(stopped.status, MessageStatus::Stopped, "{:?}", stopped.error);
    let [
        AnswerSegment::Reasoning { text: thoughts, duration_ms, .. },
        AnswerSegment::Text { text },
    ] = stopped.segments.as_slice()
    else {
        panic!("{:?}", stopped.segments)
    };
    assert!(duration_ms.is_some());
    assert!(!thoughts.is_empty() && !text.is_empty());
    assert!(!thoughts.contains("think>") && !text.contains("think>"), "{thoughts}: {text}");
    assert_eq!(messages(&app, &id).await[1], stopped);
    app.close().await;
}
