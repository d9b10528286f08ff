//! `cairn chat`: a conversation in the terminal. The KV cache of earlier turns is reused, so that
//! each turn only prefills its new tokens; with `--max-kv-size` it prefills the whole conversation.

use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use cairn_chat::{Message, Role};
use cairn_engine::{GenerateEvent, GenerateRequest, PromptInput};
use tokio::signal::ctrl_c;

use crate::arguments::Chat;
use crate::download::Questions;
use crate::output::{self, note};
use crate::session::Session;

const HELP: &str = "Type a message and press Enter.
  q       quits
  r       starts a new conversation
  h       shows this help
  Ctrl-C  stops generation, or quits";

pub async fn run(arguments: Chat) -> Result<()> {
    let speculation = arguments.speculation.speculation()?;
    let questions = Questions::Allowed;
    let session = Session::open(&arguments.model, questions).await?;
    session.load_draft(&arguments.speculation, &arguments.model, questions).await?;
    if let Some(level) = arguments.thinking {
        session.require_thinking(level).await?;
    }
    note!(
        "Chatting with {}. q quits, r starts a new conversation, h shows help.",
        session.model.name
    );
    let opening: Vec<Message> = arguments
        .system_prompt
        .iter()
        .map(|prompt| message(Role::System, prompt.clone(), None))
        .collect();
    let mut messages = opening.clone();
    while let Some(line) = read_line().await? {
        match line.trim() {
            "" => {}
            "q" => break,
            "r" => {
                messages = opening.clone();
                note!("New conversation.");
            }
            "h" => note!("{HELP}"),
            text => {
                let request =
                    |messages| GenerateRequest { speculation, ..request(&arguments, messages) };
                if reply(&session, request, &mut messages, text.to_owned()).await?.is_break() {
                    break;
                }
            }
        }
    }
    session.engine.shutdown().await;
    Ok(())
}

fn request(arguments: &Chat, messages: Vec<Message>) -> GenerateRequest {
    let default = GenerateRequest::new(PromptInput::Messages(messages));
    GenerateRequest {
        thinking: arguments.thinking,
        sampling: arguments.sampling.params(),
        max_tokens: arguments.max_tokens,
        prefill_step_size: arguments
            .prefill_step_size
            .map_or(default.prefill_step_size, |step| step as usize),
        kv_cache: arguments.cache.options(),
        ..default
    }
}

/// Generates and prints the reply to `text`. The first Ctrl-C stops generation, a second one quits.
async fn reply(
    session: &Session,
    request: impl Fn(Vec<Message>) -> GenerateRequest,
    messages: &mut Vec<Message>,
    text: String,
) -> Result<ControlFlow<()>> {
    messages.push(message(Role::User, text, None));
    let mut generation = session.engine.generate(request(messages.clone()));
    let mut reply = String::new();
    let mut is_stopping = false;
    loop {
        let event = tokio::select! {
            event = generation.recv() => event,
            _ = ctrl_c() => {
                if is_stopping {
                    return Ok(ControlFlow::Break(()));
                }
                is_stopping = true;
                generation.stop();
                continue;
            }
        };
        match event {
            Some(GenerateEvent::SoFar(_) | GenerateEvent::Prefill { .. }) => {}
            Some(GenerateEvent::Delta { text, .. }) => {
                output::text(&text)?;
                reply += &text;
            }
            Some(GenerateEvent::Finished(finished)) => {
                output::line(&finished.text)?;
                reply += &finished.text;
                if reply.is_empty() {
                    // Templates require that user and assistant alternate, so the user's message is
                    // removed too.
                    messages.pop();
                    return Ok(ControlFlow::Continue(()));
                }
                if let Some(user) = messages.last_mut() {
                    user.token_ids = Some(finished.new_prompt_ids);
                }
                messages.push(message(Role::Assistant, reply, Some(finished.token_ids)));
                return Ok(ControlFlow::Continue(()));
            }
            Some(GenerateEvent::Failed(error)) => {
                // The conversation continues without the message that failed.
                messages.pop();
                note!("cairn: {error}");
                return Ok(ControlFlow::Continue(()));
            }
            None => return Ok(ControlFlow::Continue(())),
        }
    }
}

fn message(role: Role, content: String, token_ids: Option<Vec<u32>>) -> Message {
    Message { role, content, token_ids }
}

/// Reads the next line; `None` at the end of the input or after Ctrl-C.
async fn read_line() -> Result<Option<String>> {
    if std::io::stdin().is_terminal() {
        output::ask("> ");
    }
    // The read blocks on a thread of its own: on one of the runtime's, shutdown would wait for one
    // more line.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = sender.send(
            std::io::stdin().lock().read_line(&mut line).map(|length| (length > 0).then_some(line)),
        );
    });
    tokio::select! {
        line = receiver => line?.context("cannot read from the terminal"),
        _ = ctrl_c() => Ok(None),
    }
}
