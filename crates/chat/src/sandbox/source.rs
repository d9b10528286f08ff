//! Checks and rewrites a template's source before it is compiled.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

/// The longest expression or statement; its tree is walked recursively.
const MAX_EXPRESSION_TOKENS: usize = 1_000;
/// The most `elif` in a template; each nests in the one before.
const MAX_BRANCHES: usize = 500;
/// The longest name. It is read whenever the variable or attribute is.
const MAX_NAME_BYTES: usize = 256;

/// Rewrites a template's source where the engine's compiler would otherwise do unbounded work, and
/// where Hugging Face has a tag that the engine lacks.
pub(crate) fn prepare(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let mut prepared = String::with_capacity(source.len());
    let mut copied = 0;
    let mut after_operand = false;
    let mut after_block_start = false;
    let mut expression_tokens = 0;
    let mut branches = 0;
    let mut replace = |start: u32, end: u32, with: &str| {
        prepared.push_str(&source[copied..start as usize]);
        prepared.push_str(with);
        copied = end as usize;
    };
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        expression_tokens += 1;
        match token {
            Token::BlockStart | Token::VariableStart | Token::TemplateData(_) => {
                expression_tokens = 0
            }
            // The compiler computes constants, and a repeated string is one. A factor that it does
            // not know leaves this to run time.
            Token::Mul if after_operand => {
                replace(span.start_offset, span.end_offset, "* (1|int) *")
            }
            // Marks the assistant's words for training.
            Token::Ident("generation") if after_block_start => {
                replace(span.start_offset, span.end_offset, "if true")
            }
            Token::Ident("endgeneration") if after_block_start => {
                replace(span.start_offset, span.end_offset, "endif")
            }
            Token::Ident("elif") => branches += 1,
            _ => {}
        }
        let refuse = |what| {
            let what = format!("line {} has {what}", span.start_line);
            Err(Error::new(ErrorKind::SyntaxError, what))
        };
        if expression_tokens > MAX_EXPRESSION_TOKENS || branches > MAX_BRANCHES {
            return refuse("more terms or branches than are allowed");
        }
        if matches!(token, Token::Ident(name) if name.len() > MAX_NAME_BYTES) {
            return refuse("a name of more letters than are allowed");
        }
        after_block_start = matches!(token, Token::BlockStart);
        after_operand = matches!(
            token,
            Token::Ident(_)
                | Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Int128(_)
                | Token::Float(_)
                | Token::ParenClose
                | Token::BracketClose
                | Token::BraceClose
        );
    }
    prepared.push_str(&source[copied..]);
    Ok(prepared)
}
