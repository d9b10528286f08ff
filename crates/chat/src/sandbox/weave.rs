//! Inserts the checks into compiled instructions.
//!
//! | Instruction | Its time depends on | Check |
//! |---|---|---|
//! | `Emit`, `EmitRaw` | what is written | the formatter |
//! | `Add`, `Mul`, `StringConcat` | both operands, the result | before and after |
//! | `Eq` … `Gte`, `In`, `CompareAndPreserve` | both operands | before |
//! | `GetItem` | a text whose letters are counted, a key that is hashed | before |
//! | `Slice` | the value, the result | before and after |
//! | `PushLoop`, `FastRecurse`, calls with one argument (`loop(…)`) | a text whose letters are counted | before |
//! | `BuildList`, `BuildTuple`, `BuildMap`, `MergeKwargs` | the items | after |
//! | `ApplyFilter`, `PerformTest` | the arguments, the result | in the filter or test |
//! | `CallFunction`, `CallMethod`, `CallObject` | the arguments, the result | in the function, and after |
//! | `CallMethod` of `loop` | the arguments | before |
//! | `Iterate` | nothing; but a loop must not run without a look at the clock | after |
//! | `UnpackList(s)` | the items, which are on the stack then | the instruction that takes them |
//! | all others | nothing, or what an instruction before has paid | after every `MAX_UNCHECKED` |

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, Value};
use std::collections::{BTreeMap, BTreeSet};

use super::check;

/// The most instructions that may follow each other without a check.
const MAX_UNCHECKED: usize = 64;
/// A dictionary's key counts as short up to this many bytes.
const SHORT_KEY_BYTES: usize = 256;
/// A local id that means: look the filter up by name every time.
const UNCACHED: u8 = !0;

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
    let targets: BTreeSet<u32> =
        (0..).map_while(|index| plain.get(index)).filter_map(target_of).collect();
    let mut starts = Vec::new();
    let mut surrounded = Vec::new();
    let mut num_unchecked = 0;
    for index in 0.. {
        starts.push(surrounded.len() as u32);
        let Some(instruction) = plain.get(index) else { break };
        let line = plain.get_line(index).unwrap_or(0) as u16;
        let before = index.checked_sub(1).filter(|_| !targets.contains(&index));
        let checks = checks(instruction, before.and_then(|before| plain.get(before)));
        num_unchecked = if checks.is_none() { num_unchecked + 1 } else { 0 };
        // Only after an instruction that leaves a value on the stack, which the check passes on.
        let is_look_due = num_unchecked >= MAX_UNCHECKED
            && matches!(instruction, Instruction::Lookup(_) | Instruction::LoadConst(_));
        if is_look_due {
            num_unchecked = 0;
        }
        let look = is_look_due.then(|| call(check::LOOK));
        let Checks { before, instead_of, after } = checks.unwrap_or_default();
        let instruction = instead_of.unwrap_or_else(|| vec![instruction.clone()]);
        let all = before.into_iter().chain(instruction).chain(after).chain(look);
        surrounded.extend(all.map(|instruction| (instruction, line)));
    }
    // Jumps go to the checks before their target.
    let moved = |target: u32| {
        let end = surrounded.len() as u32;
        starts.get(target as usize).copied().unwrap_or(end)
    };
    let mut woven = Instructions::new(plain.name(), plain.source());
    for (instruction, line) in &surrounded {
        woven.add_with_line(with_target(instruction, moved), *line);
    }
    woven
}

/// Calls that surround or replace an instruction.
#[derive(Default)]
struct Checks<'source> {
    before: Vec<Instruction<'source>>,
    instead_of: Option<Vec<Instruction<'source>>>,
    after: Option<Instruction<'source>>,
}

/// The checks of an instruction; `None` if it needs none. `previous` is the instruction that always
/// runs before it.
fn checks<'source>(
    instruction: &Instruction<'source>,
    previous: Option<&Instruction<'source>>,
) -> Option<Checks<'source>> {
    let made = || Some(call(check::MADE));
    let (before, instead_of, after) = match instruction {
        // Raw text is written like a value, so that it is counted also where the output is
        // captured.
        Instruction::EmitRaw(text) => {
            let written = vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit];
            (vec![], Some(written), None)
        }
        Instruction::Add => (operands(2, check::ADD), None, made()),
        Instruction::Mul => (operands(2, check::REPEAT), None, made()),
        Instruction::StringConcat => (operands(2, check::CONCATENATE), None, made()),
        Instruction::In => (operands(2, check::CONTAIN), None, None),
        // Which comparison it is, `in` or another, is the engine's secret.
        Instruction::CompareAndPreserve(_) => (operands(2, check::COMPARE_ANY), None, None),
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte => (operands(2, check::COMPARE), None, None),
        Instruction::GetItem if is_short_key(previous) => return None,
        Instruction::GetItem => (operands(2, check::LOOK_UP), None, None),
        Instruction::Slice => (operands(4, check::SLICE), None, made()),
        Instruction::PushLoop(_) | Instruction::FastRecurse => {
            (vec![call(check::ITERATE)], None, None)
        }
        Instruction::Iterate(_) => (vec![], None, Some(call(check::LOOK))),
        Instruction::MergeKwargs(_) => (vec![], None, Some(call(check::WALK))),
        Instruction::CallFunction(_, Some(1)) => (vec![call(check::ITERATE)], None, made()),
        Instruction::CallFunction(name, None) => {
            let mut called = arguments(None, check::READ);
            called.push(Instruction::CallFunction(name, None));
            (vec![], Some(called), made())
        }
        Instruction::CallMethod(name @ ("changed" | "cycle"), num_args) => {
            let check = if *name == "cycle" { check::CYCLE } else { check::CHANGED };
            let mut called = arguments(*num_args, check);
            called.push(Instruction::CallMethod(name, None));
            (vec![], Some(called), made())
        }
        Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_)
        | Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(_) => (vec![], None, made()),
        // The formatter, filter or test that they call checks the values.
        Instruction::Emit | Instruction::ApplyFilter(..) | Instruction::PerformTest(..) => {
            (vec![], None, None)
        }
        _ => return None,
    };
    Some(Checks { before, instead_of, after })
}

fn call<'source>(name: &'static str) -> Instruction<'source> {
    Instruction::ApplyFilter(name, Some(1), UNCACHED)
}

/// Shows the operands on the stack to a check, and leaves them as they were.
fn operands<'source>(count: usize, name: &'static str) -> Vec<Instruction<'source>> {
    vec![
        Instruction::BuildTuple(Some(count)),
        call(name),
        Instruction::UnpackLists(1),
        // Their number.
        Instruction::DiscardTop,
    ]
}

/// Shows the arguments of a call to a check, and leaves them with their number on top.
fn arguments<'source>(count: Option<u16>, name: &'static str) -> Vec<Instruction<'source>> {
    vec![Instruction::BuildTuple(count.map(usize::from)), call(name), Instruction::UnpackLists(1)]
}

/// Whether an instruction loads a short text. As a key it costs nothing, whatever the container is.
fn is_short_key(instruction: Option<&Instruction<'_>>) -> bool {
    match instruction {
        Some(Instruction::LoadConst(key)) => {
            key.as_str().is_some_and(|key| key.len() <= SHORT_KEY_BYTES)
        }
        _ => false,
    }
}

fn target_of(instruction: &Instruction<'_>) -> Option<u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(*target),
        _ => None,
    }
}

fn with_target<'source>(
    instruction: &Instruction<'source>,
    moved: impl Fn(u32) -> u32,
) -> Instruction<'source> {
    match instruction {
        Instruction::Jump(target) => Instruction::Jump(moved(*target)),
        Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(moved(*target)),
        Instruction::JumpIfFalseOrPop(target) => Instruction::JumpIfFalseOrPop(moved(*target)),
        Instruction::JumpIfTrueOrPop(target) => Instruction::JumpIfTrueOrPop(moved(*target)),
        Instruction::Iterate(target) => Instruction::Iterate(moved(*target)),
        Instruction::BuildMacro(name, target, flags) => {
            Instruction::BuildMacro(name, moved(*target), *flags)
        }
        other => other.clone(),
    }
}
