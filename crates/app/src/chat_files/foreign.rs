//! The forms of other programs: ChatGPT's conversations.json, Open WebUI's export, ShareGPT's, and lists
//! of messages as OpenAI's API takes them. They are known by their fields.

use cairn_chat::Role;
use cairn_store::ImportedConversation;
use serde_json::{Map, Value};

use super::branches::{Branches, Node};
use super::content_hash;
use crate::answer_segment::AnswerSegment;

/// What of a value could not be taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It has none of the known forms.
    Unknown,
    /// It has one, and this is wrong with it.
    Bad(String),
}

/// Numbers above this are milliseconds, and not seconds, since 1970.
const MAX_SECONDS: f64 = 1e11;
/// Frame the marks of citations in ChatGPT's texts, which mean nothing elsewhere.
const CITATION: [char; 2] = ['\u{E200}', '\u{E201}'];

/// The conversation that a value is.
pub(crate) fn read(value: &Value) -> Result<ImportedConversation, Refused> {
    let Value::Object(object) = value else { return Err(Refused::Unknown) };
    let chat = match object {
        _ if object.get("mapping").is_some_and(Value::is_object) => chat_gpt(object),
        _ if object.get("chat").is_some_and(Value::is_object) => open_webui(object)?,
        _ if object.get("conversations").is_some_and(Value::is_array) => share_gpt(object)?,
        _ if object.get("messages").is_some_and(Value::is_array) => messages(object)?,
        _ => return Err(Refused::Unknown),
    };
    let Draft { program, id, has_any, mut conversation } = chat;
    if conversation.messages.is_empty() {
        let why = match has_any {
            true => "none of its messages is a question or an answer that Cairn can read",
            false => "it has no messages",
        };
        return Err(Refused::Bad(why.to_owned()));
    }
    let id = id.unwrap_or_else(|| content_hash(value));
    conversation.origin = format!("{program}:{id}:{}", conversation.updated_at_ms);
    Ok(conversation)
}

/// The title of a value, as far as it has one.
pub(crate) fn title(value: &Value) -> Option<&str> {
    value.get("title").and_then(Value::as_str).filter(|title| !title.trim().is_empty())
}

/// A conversation without its origin.
struct Draft {
    program: &'static str,
    /// Its id in that program.
    id: Option<String>,
    /// The file has a message of it, be it one that is left out.
    has_any: bool,
    conversation: ImportedConversation,
}

impl Draft {
    fn new(program: &'static str, object: &Map<String, Value>) -> Draft {
        let id = ["conversation_id", "id"].iter().find_map(|key| object.get(*key)?.as_str());
        let first = |keys: [&str; 2]| keys.iter().find_map(|key| time(object.get(*key)));
        let created_at_ms = first(["create_time", "created_at"]);
        let updated_at_ms = first(["update_time", "updated_at"]).or(created_at_ms);
        let is =
            |keys: [&str; 2]| keys.iter().any(|key| object.get(*key) == Some(&Value::Bool(true)));
        let conversation = ImportedConversation {
            title: object.get("title").and_then(Value::as_str).unwrap_or_default().to_owned(),
            created_at_ms: created_at_ms.or(updated_at_ms).unwrap_or_default(),
            updated_at_ms: updated_at_ms.unwrap_or_default(),
            is_pinned: is(["pinned", "is_starred"]),
            is_archived: is(["archived", "is_archived"]),
            ..ImportedConversation::default()
        };
        Draft { program, id: id.map(str::to_owned), has_any: false, conversation }
    }

    /// Takes the messages, of which the one with the id `last` ends the branch on screen. What a system
    /// says becomes the system prompt.
    fn with(mut self, nodes: Vec<Node>, last: Option<&str>) -> Draft {
        self.has_any = !nodes.is_empty();
        let system: Vec<String> = nodes
            .iter()
            .filter(|node| node.role == Some(Role::System))
            .flat_map(|node| node.segments.iter().filter_map(text_of).map(str::to_owned))
            .collect();
        if self.conversation.system_prompt.is_empty() {
            self.conversation.system_prompt = system.join("\n\n");
        }
        let without =
            |node: Node| Node { role: node.role.filter(|role| *role != Role::System), ..node };
        let branches = Branches::of(nodes.into_iter().map(without).collect());
        self.conversation.leaf = last.and_then(|last| branches.place(last));
        self.conversation.messages = branches.into_messages();
        // A file without times: the conversation is as old as its messages.
        let newest = self.conversation.messages.iter().map(|message| message.created_at_ms).max();
        if self.conversation.updated_at_ms == 0 {
            self.conversation.updated_at_ms = newest.unwrap_or_default();
        }
        self
    }
}

fn chat_gpt(object: &Map<String, Value>) -> Draft {
    let mapping = object.get("mapping").and_then(Value::as_object);
    let mut has_any = false;
    let nodes = mapping.into_iter().flatten().map(|(id, node)| {
        let message = node.get("message").filter(|message| message.is_object());
        has_any |= message.is_some();
        let role = message.and_then(chat_gpt_role);
        Node {
            id: id.clone(),
            parent: node.get("parent").and_then(Value::as_str).map(str::to_owned),
            role,
            segments: message
                .and_then(|message| message.get("content"))
                .map(chat_gpt_content)
                .unwrap_or_default(),
            error: None,
            created_at_ms: message
                .and_then(|message| time(message.get("create_time")))
                .unwrap_or_default(),
        }
    });
    let nodes = nodes.collect();
    let last = object.get("current_node").and_then(Value::as_str);
    // The first node of a tree has no message.
    Draft { has_any, ..Draft::new("chatgpt", object).with(nodes, last) }
}

/// None for what a person never saw: calls of tools and their results, and hidden messages.
fn chat_gpt_role(message: &Value) -> Option<Role> {
    let metadata = message.get("metadata");
    let is_hidden = metadata
        .and_then(|metadata| metadata.get("is_visually_hidden_from_conversation"))
        .is_some_and(|hidden| hidden == &Value::Bool(true));
    let is_for_tool = message
        .get("recipient")
        .and_then(Value::as_str)
        .is_some_and(|recipient| recipient != "all");
    match message.get("author")?.get("role")?.as_str()? {
        _ if is_hidden || is_for_tool => None,
        "user" => Some(Role::User),
        "assistant" => Some(Role::Assistant),
        _ => None,
    }
}

fn chat_gpt_content(content: &Value) -> Vec<AnswerSegment> {
    let kind = content.get("content_type").and_then(Value::as_str).unwrap_or_default();
    let parts = || content.get("parts").and_then(Value::as_array).into_iter().flatten();
    match kind {
        "text" | "multimodal_text" => {
            text(parts().filter_map(part).collect::<Vec<_>>().join("\n\n"))
        }
        "code" => text(field(content, "text")),
        "thoughts" => {
            let thoughts = content.get("thoughts").and_then(Value::as_array).into_iter().flatten();
            let thoughts: Vec<String> = thoughts.map(|thought| field(thought, "content")).collect();
            reasoning(thoughts.join("\n\n"))
        }
        _ => Vec::new(),
    }
}

/// A part of a message: its text, or a word for what is not in the file.
fn part(part: &Value) -> Option<String> {
    let text = match part {
        Value::String(text) => without_citations(text),
        Value::Object(_) => match part.get("text").and_then(Value::as_str) {
            Some(text) => text.to_owned(),
            None if part.get("image_url").is_some() || is_image(part) => "[image]".to_owned(),
            None => return None,
        },
        _ => return None,
    };
    (!text.trim().is_empty()).then_some(text)
}

fn is_image(part: &Value) -> bool {
    part.get("content_type").and_then(Value::as_str) == Some("image_asset_pointer")
}

fn without_citations(text: &str) -> String {
    let mut rest = text;
    let mut all = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once(CITATION[0]) {
        all.push_str(before);
        rest = after.split_once(CITATION[1]).map_or("", |(_, after)| after);
    }
    all + rest
}

fn open_webui(object: &Map<String, Value>) -> Result<Draft, Refused> {
    let chat = object.get("chat").unwrap_or(&Value::Null);
    let history = chat.get("history");
    let listed = history.and_then(|history| history.get("messages")).and_then(Value::as_object);
    let nodes: Vec<Node> = match listed {
        Some(all) => {
            let nodes = all.iter().map(|(id, message)| open_webui_node(id, message));
            nodes.collect::<Result<_, _>>()?
        }
        None => linear(chat.get("messages"), "role", "content")?,
    };
    let last = history.and_then(|history| history.get("currentId")).and_then(Value::as_str);
    let mut draft = Draft::new("open-webui", object);
    if draft.conversation.title.is_empty() {
        draft.conversation.title = field(chat, "title");
    }
    let system = chat.get("params").map(|params| field(params, "system")).unwrap_or_default();
    draft.conversation.system_prompt =
        if system.is_empty() { field(chat, "system") } else { system };
    Ok(draft.with(nodes, last))
}

fn open_webui_node(id: &str, message: &Value) -> Result<Node, Refused> {
    let role = message.get("role").and_then(Value::as_str).and_then(role);
    let error = match message.get("error") {
        None | Some(Value::Null | Value::Bool(_)) => None,
        Some(Value::String(why)) => Some(why.clone()),
        Some(error) => Some(field(error, "content")).filter(|why| !why.is_empty()),
    };
    let content = content(message, role, "content")?;
    Ok(Node {
        id: id.to_owned(),
        parent: message.get("parentId").and_then(Value::as_str).map(str::to_owned),
        role,
        segments: match role {
            Some(Role::Assistant) => without_details(&content),
            _ => text(content),
        },
        error,
        created_at_ms: time(message.get("timestamp")).unwrap_or_default(),
    })
}

/// Reasoning stands in an element of HTML before the answer, calls of tools in another.
fn without_details(content: &str) -> Vec<AnswerSegment> {
    let mut segments = Vec::new();
    let mut rest = content;
    while let Some((before, after)) = rest.split_once("<details type=\"") {
        let Some((details, behind)) = after.split_once("</details>") else { break };
        segments.extend(text(before.to_owned()));
        if let Some(("reasoning", details)) = details.split_once('"') {
            let inner = details.split_once("</summary>").map_or("", |(_, inner)| inner);
            let lines: Vec<&str> =
                inner.lines().map(|line| line.strip_prefix("> ").unwrap_or(line)).collect();
            segments.extend(reasoning(unescaped(lines.join("\n").trim())));
        }
        rest = behind;
    }
    segments.extend(text(rest.to_owned()));
    segments
}

fn unescaped(text: &str) -> String {
    let plain = text.replace("&gt;", ">").replace("&lt;", "<").replace("&quot;", "\"");
    plain.replace("&#x27;", "'").replace("&amp;", "&")
}

fn share_gpt(object: &Map<String, Value>) -> Result<Draft, Refused> {
    let nodes = linear(object.get("conversations"), "from", "value")?;
    Ok(Draft::new("sharegpt", object).with(nodes, None))
}

fn messages(object: &Map<String, Value>) -> Result<Draft, Refused> {
    let nodes = linear(object.get("messages"), "role", "content")?;
    Ok(Draft::new("messages", object).with(nodes, None))
}

/// Messages that follow each other.
fn linear(list: Option<&Value>, role_key: &str, content_key: &str) -> Result<Vec<Node>, Refused> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    let node = |(place, message): (usize, &Value)| {
        let role = message.get(role_key).and_then(Value::as_str).and_then(role);
        let mut segments = match message.get("reasoning_content").and_then(Value::as_str) {
            Some(thoughts) if role == Some(Role::Assistant) => reasoning(thoughts.to_owned()),
            _ => Vec::new(),
        };
        segments.extend(text(content(message, role, content_key)?));
        Ok(Node {
            id: place.to_string(),
            parent: place.checked_sub(1).map(|before| before.to_string()),
            role,
            segments,
            error: None,
            created_at_ms: time(message.get("timestamp")).unwrap_or_default(),
        })
    };
    list.enumerate().map(node).collect()
}

/// Who wrote a message, by the names that programs have for it; none for tools.
fn role(name: &str) -> Option<Role> {
    match name.to_ascii_lowercase().as_str() {
        "user" | "human" => Some(Role::User),
        "assistant" | "gpt" | "chatgpt" | "bot" | "model" | "bing" | "bard" => {
            Some(Role::Assistant)
        }
        "system" | "developer" => Some(Role::System),
        _ => None,
    }
}

/// The text of a message, or the texts of its parts; none where nobody that Cairn knows wrote it.
fn content(message: &Value, role: Option<Role>, key: &str) -> Result<String, Refused> {
    Ok(match message.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(part).collect::<Vec<_>>().join("\n\n"),
        Some(Value::Null) | None => String::new(),
        Some(_) if role.is_none() => String::new(),
        Some(_) => {
            let why = format!("the “{key}” of a message is neither a text nor a list of parts");
            return Err(Refused::Bad(why));
        }
    })
}

fn field(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn text(text: String) -> Vec<AnswerSegment> {
    if text.trim().is_empty() { Vec::new() } else { vec![AnswerSegment::Text { text }] }
}

fn reasoning(text: String) -> Vec<AnswerSegment> {
    match text.trim().is_empty() {
        true => Vec::new(),
        // How long it took is not known.
        false => vec![AnswerSegment::Reasoning { text, began_at_ms: 0, duration_ms: Some(0) }],
    }
}

fn text_of(segment: &AnswerSegment) -> Option<&str> {
    match segment {
        AnswerSegment::Text { text } => Some(text),
        AnswerSegment::Reasoning { .. } | AnswerSegment::ToolCall { .. } => None,
    }
}

/// A time in seconds or milliseconds since 1970.
fn time(value: Option<&Value>) -> Option<i64> {
    let number = value?.as_f64().filter(|number| number.is_finite() && *number > 0.0)?;
    let ms = if number > MAX_SECONDS { number } else { number * 1000.0 };
    // Beyond this a clock was wrong, and JavaScript has no date.
    (ms < 8.64e15).then_some(ms as i64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use serde_json::json;

    /// The parents, roles and texts of a value's messages.
    fn shape(value: &Value) -> Vec<(Option<usize>, &'static str, String)> {
        let read = read(value).unwrap();
        let message = |message: cairn_store::ImportedMessage| {
            (message.parent, message.role.as_str(), message.text)
        };
        read.messages.into_iter().map(message).collect()
    }

    #[test]
    fn chat_gpt_s_tree_comes_in_without_what_nobody_saw() {
        let node = |parent: Option<&str>, role: &str, content: Value| {
            json!({"parent": parent, "children": [], "message": {
                "author": {"role": role}, "content": content, "create_time": 1_700_000_000.5, "recipient": "all"}})
        };
        let words = |text: &str| json!({"content_type": "text", "parts": [text]});
        let image = json!({"content_type": "multimodal_text", "parts": [{"content_type": "image_asset_pointer"}, "what is it?"]});
        let thoughts =
            json!({"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "hm"}]});
        let mut call =
            node(Some("q"), "assistant", json!({"content_type": "code", "text": "search()"}));
        call["message"]["recipient"] = "web".into();
        let value = json!({
            "title": "Stone", "conversation_id": "c1", "create_time": 1_700_000_000, "update_time": 1_700_000_100,
            "current_node": "a1", "is_archived": true,
            "mapping": {
                "root": {"parent": null, "message": null},
                "s": node(Some("root"), "system", words("")),
                "q": node(Some("s"), "user", image),
                "call": call,
                "result": node(Some("call"), "tool", words("found")),
                "think": node(Some("result"), "assistant", thoughts),
                "a1": node(Some("think"), "assistant", words("Granite\u{E200}cite1\u{E201}.")),
                "a2": node(Some("q"), "assistant", words("Basalt.")),
            }
        });
        let question = (None, "user", "[image]\n\nwhat is it?".to_owned());
        let first = (Some(0), "assistant", "Granite.".to_owned());
        let second = (Some(0), "assistant", "Basalt.".to_owned());
        assert_eq!(shape(&value), [question, first, second]);
        let read = read(&value).unwrap();
        assert_eq!((read.leaf, read.is_archived), (Some(1), true));
        assert_eq!(
            (read.created_at_ms, read.updated_at_ms),
            (1_700_000_000_000, 1_700_000_100_000)
        );
        assert_eq!(read.origin, "chatgpt:c1:1700000100000");
        assert!(read.messages[1].segments.as_deref().unwrap().contains("\"hm\""));
    }

    #[test]
    fn open_webui_s_tree_comes_in_with_its_reasoning_apart() {
        let answer = "<details type=\"reasoning\" done=\"true\" duration=\"3\">\n<summary>Thought</summary>\n> a &gt; b\n</details>\nYes.";
        let value = json!({
            "id": "w1", "user_id": "u", "title": "Greater", "updated_at": 1_700_000_100, "created_at": 1_700_000_000, "pinned": true,
            "chat": {
                "title": "Greater", "models": ["m"], "params": {"system": "Be brief."},
                "history": {"currentId": "2", "messages": {
                    "1": {"id": "1", "parentId": null, "childrenIds": ["2", "3"], "role": "user", "content": "Is a > b?", "timestamp": 1_700_000_000},
                    "2": {"id": "2", "parentId": "1", "role": "assistant", "content": answer, "timestamp": 1_700_000_001},
                    "3": {"id": "3", "parentId": "1", "role": "assistant", "content": "", "error": {"content": "no model"}, "timestamp": 1_700_000_002},
                }}
            }
        });
        let read = read(&value).unwrap();
        assert_eq!(
            (read.system_prompt.as_str(), read.is_pinned, read.leaf),
            ("Be brief.", true, Some(1))
        );
        assert_eq!(read.messages[1].text.trim(), "Yes.");
        assert!(read.messages[1].segments.as_deref().unwrap().contains("a > b"));
        assert_eq!(read.messages[2].error.as_deref(), Some("no model"));
    }

    #[test]
    fn lists_of_messages_come_in() {
        let value = json!({"id": "s1", "conversations": [
            {"from": "system", "value": "Be brief."}, {"from": "human", "value": "1"}, {"from": "gpt", "value": "2"},
            {"from": "tool", "value": "x"}, {"from": "human", "value": "3"},
        ]});
        assert_eq!(read(&value).unwrap().system_prompt, "Be brief.");
        let texts: Vec<String> = shape(&value).into_iter().map(|(_, _, text)| text).collect();
        assert_eq!(texts, ["1", "2", "3"]);
        let value = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "image_url", "image_url": {"url": "data:"}}]},
            {"role": "assistant", "content": "2", "reasoning_content": "hm"},
        ]});
        assert_eq!(shape(&value)[0].2, "1\n\n[image]");
        assert!(read(&value).unwrap().origin.starts_with("messages:"));
    }

    #[test]
    fn what_is_no_chat_is_refused() {
        let bad = |why: &str| Refused::Bad(why.to_owned());
        let unreadable = bad("none of its messages is a question or an answer that Cairn can read");
        let hidden = json!({"author": {"role": "user"}, "recipient": "tool"});
        let question = json!({"role": "user", "content": "Why?"});
        for (value, expected) in [
            (json!(1), Refused::Unknown),
            (json!({"a": 1}), Refused::Unknown),
            (json!({"messages": []}), bad("it has no messages")),
            (json!({"mapping": {}}), bad("it has no messages")),
            (json!({"mapping": {"r": {"message": null}}}), bad("it has no messages")),
            (json!({"mapping": {"r": {"message": hidden}}}), unreadable.clone()),
            (json!({"conversations": [{"from": 1, "value": {}}]}), unreadable.clone()),
            (json!({"messages": [{"role": "user", "content": null}]}), unreadable.clone()),
            (json!({"messages": [{"role": "system", "content": "Be brief."}]}), unreadable),
            (
                json!({"messages": [question, {"role": "assistant", "content": 5}]}),
                bad("the “content” of a message is neither a text nor a list of parts"),
            ),
            (
                json!({"conversations": [{"from": "human", "value": {}}]}),
                bad("the “value” of a message is neither a text nor a list of parts"),
            ),
            (
                json!({"chat": {"history": {"messages": {"1": {"role": "user", "content": 5}}}}}),
                bad("the “content” of a message is neither a text nor a list of parts"),
            ),
        ] {
            assert_eq!(read(&value).unwrap_err(), expected, "{value}");
        }
    }
}
