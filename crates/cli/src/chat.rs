//! `cairn chat`: a conversation in the terminal. Each turn reads only what is new.

use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;

use anyhow::{Context, Result};
use cairn_chat::{Message, Role};
use cairn_engine::{GenerateEvent, GenerateRequest, PromptInput};
use tokio::signal::ctrl_c;

use crate::arguments::Chat;
use crate::output;
use crate::session::Session;

const HELP: &str = "Type a message and press Enter.\n  q       leaves\n  r       starts a new conversation\n  h       shows this help\n  Ctrl-C  stops an answer, or leaves";

pub async fn run(arguments: Chat) -> Result<()> {
    let session = Session::open(&arguments.model).await?;
    eprintln!("Chatting with {}. q leaves, r starts anew, h helps.", session.model.name);
    let beginning: Vec<Message> = arguments
        .system_prompt
        .iter()
        .map(|prompt| message(Role::System, prompt.clone(), None))
        .collect();
    let mut messages = beginning.clone();
    while let Some(line) = read_line().await? {
        match line.trim() {
            "" => {}
            "q" => break,
            "r" => {
                messages = beginning.clone();
                eprintln!("A new conversation.");
            }
            "h" => eprintln!("{HELP}"),
            text => {
                if answer(&session, &arguments, &mut messages, text.to_owned()).await?.is_break() {
                    break;
                }
            }
        }
    }
    session.engine.shutdown().await;
    Ok(())
}

/// Asks for an answer to `text`. The first Ctrl-C ends the answer, a second one the program.
async fn answer(
    session: &Session,
    arguments: &Chat,
    messages: &mut Vec<Message>,
    text: String,
) -> Result<ControlFlow<()>> {
    messages.push(message(Role::User, text, None));
    let mut request = GenerateRequest::new(PromptInput::Messages(messages.clone()));
    request.sampling = arguments.sampling.params();
    request.max_tokens = arguments.max_tokens;
    request.prefill_step_size = session.engine.interactive_prefill_step_size();
    let mut generation = session.engine.generate(request);
    let mut answer = String::new();
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
            Some(GenerateEvent::Prefill { .. }) => {}
            Some(GenerateEvent::Delta { text, .. }) => {
                output::text(&text)?;
                answer += &text;
            }
            Some(GenerateEvent::Finished(finished)) => {
                output::line(&finished.text)?;
                answer += &finished.text;
                if answer.is_empty() {
                    // Nothing was said: templates insist on turns, so the question goes too.
                    messages.pop();
                    return Ok(ControlFlow::Continue(()));
                }
                if let Some(user) = messages.last_mut() {
                    user.token_ids = Some(finished.new_prompt_ids);
                }
                messages.push(message(Role::Assistant, answer, Some(finished.token_ids)));
                return Ok(ControlFlow::Continue(()));
            }
            Some(GenerateEvent::Failed(error)) => {
                // The conversation goes on without the message that failed.
                messages.pop();
                eprintln!("cairn: {error}");
                return Ok(ControlFlow::Continue(()));
            }
            None => return Ok(ControlFlow::Continue(())),
        }
    }
}

fn message(role: Role, content: String, token_ids: Option<Vec<u32>>) -> Message {
    Message { role, content, token_ids }
}

/// The next line typed; none at the end of the input or after Ctrl-C.
async fn read_line() -> Result<Option<String>> {
    if std::io::stdin().is_terminal() {
        eprint!("> ");
    }
    // A thread of its own: a blocking read on the runtime's shutdown path would wait for one more
    // line.
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
