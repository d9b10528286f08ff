//! `cairn score`: the log-probability of each token of a text, and of the next token.

use anyhow::Result;
use cairn_engine::PromptInput;
use serde_json::json;

use crate::arguments::Score;
use crate::output;
use crate::session::Session;

pub async fn run(arguments: Score) -> Result<()> {
    let prompt = match (arguments.tokens, arguments.prompt) {
        (Some(tokens), _) => PromptInput::Tokens(tokens),
        (None, text) => PromptInput::Text(output::text_or_stdin(text.unwrap_or_default())?),
    };
    let session = Session::open(&arguments.model).await?;
    let score = session.engine.score(prompt, arguments.top).await?;
    session.engine.shutdown().await;
    if arguments.json {
        output::line(
            json!({"tokens": score.tokens, "logprobs": score.logprobs, "next": score.next}),
        )?;
        return Ok(());
    }
    output::line(format_args!("token\tlogprob"))?;
    for (token, logprob) in score.tokens.iter().zip(&score.logprobs) {
        match logprob {
            Some(logprob) => output::line(format_args!("{token}\t{logprob:.4}"))?,
            None => output::line(format_args!("{token}\t-"))?,
        }
    }
    output::line(format_args!("\nnext\tlogprob"))?;
    for (token, logprob) in &score.next {
        output::line(format_args!("{token}\t{logprob:.4}"))?;
    }
    Ok(())
}
