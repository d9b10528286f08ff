//! Limits on templates: a budget for one rendering, and checks inserted into the compiled
//! instructions.
//!
//! The template engine's fuel bounds how many instructions run, but one instruction can double a
//! string, repeat it a million times or print a value that contains itself. So every instruction
//! that builds or reads something of any size is surrounded by calls of the checks below, which are
//! filters that templates cannot name.

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The longest text that a template may write or hold in a variable; no context window is larger.
pub(crate) const MAX_TEXT_BYTES: usize = 4 << 20;
/// What a rendering may build and read in all, roughly in bytes. An ordinary template touches each
/// message about ten times.
pub(crate) const MAX_WORK_BYTES: usize = 128 << 20;
/// Instructions of one rendering; the checks are counted too and are up to three of four.
pub(crate) const MAX_STEPS: u64 = 2_000_000;
/// How deep lists and dictionaries may be nested; dropping and printing them recurses.
const MAX_VALUE_DEPTH: usize = 64;
/// The longest expression or statement; its tree is walked recursively.
const MAX_EXPRESSION_TOKENS: usize = 1_000;
/// The most `elif` in a template; each nests in the one before.
const MAX_BRANCHES: usize = 500;

const MAKE: &str = "check:made";
const READ: &str = "check:read";
const ADD: &str = "check:add";
const REPEAT: &str = "check:repeat";
const CONCATENATE: &str = "check:concatenate";
const COMPARE: &str = "check:compare";
const CONTAIN: &str = "check:contain";

/// Why a rendering was stopped on purpose; the source of the engine's error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    #[error("{0}")]
    Refused(String),
    #[error("text too long")]
    TextTooLong,
    #[error("too much work")]
    TooMuchWork,
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        Error::new(ErrorKind::InvalidOperation, stop.to_string()).with_source(stop)
    }
}

/// The remaining budget of one rendering.
#[derive(Debug)]
pub(crate) struct Budget {
    work_bytes: AtomicUsize,
    written_bytes: AtomicUsize,
}

impl Budget {
    pub(crate) fn new() -> Budget {
        // Text captured in a variable is written twice, so writing has more room than the finished
        // text.
        Budget {
            work_bytes: AtomicUsize::new(MAX_WORK_BYTES),
            written_bytes: AtomicUsize::new(4 * MAX_TEXT_BYTES),
        }
    }

    fn take(&self, bytes: usize) -> Result<(), Error> {
        let taken = self
            .work_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| Stop::TooMuchWork.into())
    }

    /// Allows for a text of this length to be built.
    pub(crate) fn text(&self, bytes: Option<usize>) -> Result<(), Error> {
        match bytes {
            Some(bytes) if bytes <= MAX_TEXT_BYTES => self.take(bytes),
            _ => Err(Stop::TextTooLong.into()),
        }
    }

    fn written(&self, bytes: usize) -> Result<(), Error> {
        let taken = self
            .written_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| Stop::TextTooLong.into())
    }

    /// Allows for a value to be read from end to end, and refuses one that is nested too deeply or
    /// contains itself.
    pub(crate) fn read(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.take(text.len()),
            None => self.walk(value, 0),
        }
    }

    fn walk(&self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_VALUE_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "values are nested too deeply"));
        }
        // A text inside a container is mostly passed on, not read: it counts for a sixteenth.
        self.take(64 + value.as_str().map_or(0, str::len) / 16)?;
        match value.kind() {
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.walk(&key, depth + 1)?;
                    self.walk(&value.get_item(&key)?, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.walk(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// How long a value is when written as text, counting no further than is allowed.
    pub(crate) fn displayed_bytes(&self, value: &Value) -> Result<usize, Error> {
        if let Some(text) = value.as_str() {
            return Ok(text.len());
        }
        self.read(value)?;
        let mut length = Length(0);
        write!(length, "{value}").map_err(|_| Stop::TextTooLong)?;
        Ok(length.0)
    }

    /// Accounts for a value that an instruction produced. Lazy sequences become lists, for they
    /// would wrap each other without end.
    fn made(&self, value: Value) -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            self.text(Some(text.len()))?;
            return Ok(value);
        }
        let is_list = value.is_tuple() || value.downcast_object_ref::<Vec<Value>>().is_some();
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !is_list {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                self.take(size_of::<Value>())?;
                items.push(item?);
            }
            let list = Value::from(items);
            self.walk(&list, 0)?;
            return Ok(list);
        }
        self.walk(&value, 0)?;
        Ok(value)
    }
}

struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        if self.0 > MAX_TEXT_BYTES { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Registers the checks that `weave` calls in an environment, and how values are written.
pub(crate) fn install(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let operands = |pair: &Value| -> Result<(Value, Value), Error> {
        Ok((pair.get_item_by_index(0)?, pair.get_item_by_index(1)?))
    };
    let b = budget.clone();
    env.add_filter(MAKE, move |value: Value| b.made(value));
    let b = budget.clone();
    env.add_filter(READ, move |value: Value| b.read(&value).map(|()| value));
    let b = budget.clone();
    env.add_filter(ADD, move |pair: Value| {
        let (left, right) = operands(&pair)?;
        if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
            b.text(left.len().checked_add(right.len()))?;
        }
        Ok::<_, Error>(pair)
    });
    let b = budget.clone();
    env.add_filter(REPEAT, move |pair: Value| {
        let (left, right) = operands(&pair)?;
        for (repeated, times) in [(&left, &right), (&right, &left)] {
            let (Some(length), Some(times)) = (repeated.len(), times.as_usize()) else { continue };
            let item_bytes = if repeated.as_str().is_some() { 1 } else { size_of::<Value>() };
            b.text(length.checked_mul(times).and_then(|count| count.checked_mul(item_bytes)))?;
        }
        Ok::<_, Error>(pair)
    });
    let b = budget.clone();
    env.add_filter(CONCATENATE, move |pair: Value| {
        let (left, right) = operands(&pair)?;
        b.text(b.displayed_bytes(&left)?.checked_add(b.displayed_bytes(&right)?))?;
        Ok::<_, Error>(pair)
    });
    let b = budget.clone();
    env.add_filter(COMPARE, move |pair: Value| {
        b.read(&operands(&pair)?.1)?;
        Ok::<_, Error>(pair)
    });
    let b = budget.clone();
    env.add_filter(CONTAIN, move |pair: Value| {
        let (item, container) = operands(&pair)?;
        if item.as_str().is_none() {
            b.read(&item)?;
        }
        // A key is looked up in a dictionary without reading the rest.
        if container.kind() != ValueKind::Map {
            b.read(&container)?;
        }
        Ok::<_, Error>(pair)
    });
    let b = budget.clone();
    env.set_formatter(move |out: &mut Output, _: &mut State, value: &Value| {
        b.written(b.displayed_bytes(value)?)?;
        Ok(write!(out, "{value}")?)
    });
}

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
        if expression_tokens > MAX_EXPRESSION_TOKENS || branches > MAX_BRANCHES {
            let what =
                format!("line {} has more terms or branches than are allowed", span.start_line);
            return Err(Error::new(ErrorKind::SyntaxError, what));
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

/// A compiled template with its checks.
pub(crate) struct Program<'source> {
    pub(crate) instructions: Instructions<'source>,
    pub(crate) blocks: BTreeMap<&'source str, Instructions<'source>>,
}

/// Compiles a prepared source and weaves the checks in.
pub(crate) fn compile<'source>(
    prepared: &'source str,
    syntax: &SyntaxConfig,
) -> Result<Program<'source>, Error> {
    const NAME: &str = "chat template";
    let tree = parse(prepared, NAME, syntax.clone())?;
    let mut generator = CodeGenerator::new(NAME, prepared);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    Ok(Program {
        instructions: weave(&instructions),
        blocks: blocks.iter().map(|(name, block)| (*name, weave(block))).collect(),
    })
}

fn weave<'source>(plain: &Instructions<'source>) -> Instructions<'source> {
    let mut starts = Vec::new();
    let mut length = 0;
    for index in 0.. {
        starts.push(length);
        let Some(instruction) = plain.get(index) else { break };
        length += surrounded(instruction).len() as u32;
    }
    // Jumps go to the checks before their target.
    let moved = |target: u32| starts.get(target as usize).copied().unwrap_or(length);
    let mut woven = Instructions::new(plain.name(), plain.source());
    for index in 0.. {
        let Some(instruction) = plain.get(index) else { break };
        let line = plain.get_line(index).unwrap_or(0) as u16;
        for instruction in surrounded(instruction).into_owned() {
            let instruction = match instruction {
                Instruction::Jump(target) => Instruction::Jump(moved(target)),
                Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(moved(target)),
                Instruction::JumpIfFalseOrPop(target) => {
                    Instruction::JumpIfFalseOrPop(moved(target))
                }
                Instruction::JumpIfTrueOrPop(target) => Instruction::JumpIfTrueOrPop(moved(target)),
                Instruction::Iterate(target) => Instruction::Iterate(moved(target)),
                Instruction::BuildMacro(name, target, flags) => {
                    Instruction::BuildMacro(name, moved(target), flags)
                }
                other => other,
            };
            woven.add_with_line(instruction, line);
        }
    }
    woven
}

/// An instruction with the checks before and after it.
fn surrounded<'a, 'source>(
    instruction: &'a Instruction<'source>,
) -> Cow<'a, [Instruction<'source>]> {
    // A local id that means: look the filter up by name every time.
    const UNCACHED: u8 = !0;
    let check = |name| Instruction::ApplyFilter(name, Some(1), UNCACHED);
    // Shows both operands to a check; unpacking leaves the first on top.
    let operands = |name| {
        vec![
            Instruction::BuildTuple(Some(2)),
            check(name),
            Instruction::UnpackList(2),
            Instruction::Swap,
        ]
    };
    let (checks_before, makes_a_value) = match instruction {
        // Raw text is written like a value, so that it is counted also where the output is
        // captured.
        Instruction::EmitRaw(text) => {
            return Cow::Owned(vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit]);
        }
        Instruction::Add => (operands(ADD), true),
        Instruction::Mul => (operands(REPEAT), true),
        Instruction::StringConcat => (operands(CONCATENATE), true),
        Instruction::In => (operands(CONTAIN), false),
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::CompareAndPreserve(_) => (operands(COMPARE), false),
        Instruction::PerformTest(_, Some(1), _) => (vec![check(READ)], false),
        Instruction::Slice
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_)
        | Instruction::ApplyFilter(..)
        | Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(_) => (vec![], true),
        _ => return Cow::Borrowed(std::slice::from_ref(instruction)),
    };
    let mut surrounded = checks_before;
    surrounded.push(instruction.clone());
    if makes_a_value {
        surrounded.push(check(MAKE));
    }
    Cow::Owned(surrounded)
}
