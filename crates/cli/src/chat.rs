//! `cairn chat`: a conversation in the terminal. Each turn reads only what is new.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, Result};
use cairn_chat::{Message, Role};
use cairn_engine::{GenerateEvent, GenerateRequest, PromptInput};

use crate::arguments::Chat;
use crate::session::Session;

const HELP: &str = "Type a message and press Enter.\n  q  leaves\n  r  starts a new conversation\n  h  shows this help";

pub async fn run(arguments: Chat) -> Result<()> {
    arguments.sampling.params().validate()?;
    let session = Session::open(&arguments.model).await?;
    eprintln!("Chatting with {}. q leaves, r starts anew, h helps.", session.model.name);
    let beginning: Vec<Message> = arguments.system_prompt.iter().map(|prompt| message(Role::System, prompt.clone(), None)).collect();
    let mut messages = beginning.clone();
    while let Some(line) = read_line()? {
        match line.trim() {
            "" => {}
            "q" => break,
            "r" => {
                messages = beginning.clone();
                eprintln!("A new conversation.");
            }
            "h" => eprintln!("{HELP}"),
            text => answer(&session, &arguments, &mut messages, text.to_owned()).await?,
        }
    }
    session.engine.shutdown().await;
    Ok(())
}

/// Asks for an answer to `text`; Ctrl-C ends the answer, not the program.
async fn answer(session: &Session, arguments: &Chat, messages: &mut Vec<Message>, text: String) -> Result<()> {
    messages.push(message(Role::User, text, None));
    let mut request = GenerateRequest::new(PromptInput::Messages(messages.clone()));
    request.sampling = arguments.sampling.params();
    request.max_tokens = arguments.max_tokens;
    let mut generation = session.engine.generate(request);
    let mut answer = String::new();
    loop {
        let event = tokio::select! {
            event = generation.recv() => event,
            _ = tokio::signal::ctrl_c() => {
                generation.stop();
                continue;
            }
        };
        match event {
            Some(GenerateEvent::Prefill { .. }) => {}
            Some(GenerateEvent::Delta { text, .. }) => answer += &print(text)?,
            Some(GenerateEvent::Finished(finished)) => {
                answer += &print(finished.text)?;
                println!();
                if let Some(user) = messages.last_mut() {
                    user.token_ids = Some(finished.new_prompt_ids);
                }
                messages.push(message(Role::Assistant, answer, Some(finished.token_ids)));
                return Ok(());
            }
            Some(GenerateEvent::Failed(error)) => {
                // The conversation goes on without the message that failed.
                messages.pop();
                eprintln!("cairn: {error}");
                return Ok(());
            }
            None => return Ok(()),
        }
    }
}

fn message(role: Role, content: String, token_ids: Option<Vec<u32>>) -> Message {
    Message { role, content, token_ids }
}

fn print(text: String) -> Result<String> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(text)
}

fn read_line() -> Result<Option<String>> {
    if std::io::stdin().is_terminal() {
        eprint!("> ");
    }
    let mut line = String::new();
    let length = std::io::stdin().lock().read_line(&mut line).context("cannot read from the terminal")?;
    Ok((length > 0).then_some(line))
}
