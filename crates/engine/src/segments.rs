//! The segments of an answer, and the grammar that constrains it: what the engine makes of them for
//! one sequence.

use std::sync::Arc;

use cairn_chat::{AnswerFormat, Encode, SegmentEvent, SegmentParser, TextForm};
use cairn_lm::{AnswerStep, Constraint, Grammar, GrammarCompiler};

use crate::EngineError;
use crate::guard::caught;
use crate::model_pool::Loaded;
use crate::request::GenerateRequest;

/// Cuts an answer into segments.
pub(crate) struct AnswerSegments {
    /// None once the text is JSON that goes on to the end.
    parser: Option<SegmentParser>,
    is_json: bool,
}

impl AnswerSegments {
    /// For an answer to a rendered prompt, if the request asks for segments. Special tokens that are no markers are no text.
    pub(crate) fn new(loaded: &Loaded, request: &GenerateRequest, prompt: &str) -> Option<Self> {
        let options = request.segments.as_ref()?;
        let model = &loaded.model;
        let special = model.tokenizer.special_tokens().iter().map(|(text, _)| text.as_str());
        let format = if options.reads_calls {
            format(loaded, !options.tools.is_empty())
        } else {
            model.answer_format.without_calls()
        };
        let parser = SegmentParser::new(format).with_tools(options.tools.clone());
        let parser = parser.without_tokens(special).after_prompt(prompt);
        let form = request.form.as_ref();
        let is_json = form.is_some_and(|form| matches!(form.text, TextForm::Json(_)));
        Some(AnswerSegments { parser: Some(parser), is_json })
    }

    /// The segments that a step has made clear.
    pub(crate) fn push(&mut self, step: &AnswerStep) -> Vec<SegmentEvent> {
        let Some(parser) = &mut self.parser else { return text(&step.visible) };
        let mut events = parser.push(&step.text);
        // A string in JSON may spell a marker, and is none.
        let is_text = |event: &SegmentEvent| matches!(event, SegmentEvent::Text(_));
        if self.is_json && events.iter().any(is_text) {
            let held = self.parser.take().map(SegmentParser::finish).unwrap_or_default();
            let is_end = |event: &SegmentEvent| matches!(event, SegmentEvent::Ended { .. });
            events.extend(held.into_iter().filter(|event| !is_end(event)));
        }
        events
    }

    /// The last segments.
    pub(crate) fn finish(mut self, step: &AnswerStep) -> Vec<SegmentEvent> {
        let mut events = self.push(step);
        match self.parser {
            Some(parser) => events.extend(parser.finish()),
            None => events.push(SegmentEvent::Ended { num_complete_calls: 0 }),
        }
        events
    }
}

fn text(text: &str) -> Vec<SegmentEvent> {
    if text.is_empty() { Vec::new() } else { vec![SegmentEvent::Text(text.to_owned())] }
}

/// How an answer marks reasoning and calls. Where the template takes no tools, the prompt has asked for
/// the generic form of calls.
fn format(loaded: &Loaded, offers_tools: bool) -> AnswerFormat {
    let model = &loaded.model;
    if offers_tools && !model.takes_tools() {
        model.answer_format.with_generic_calls()
    } else {
        model.answer_format
    }
}

/// The grammar of an answer, in llguidance's dialect of Lark, if the request asks for a form. Fails
/// if that cannot be kept to. `prompt` is the rendered prompt.
pub(crate) fn lark(
    loaded: &Loaded,
    request: &GenerateRequest,
    prompt: &str,
) -> Result<Option<String>, EngineError> {
    let Some(form) = &request.form else { return Ok(None) };
    let model = &loaded.model;
    let format = format(loaded, !form.calls.is_empty());
    let lark = format.grammar(form, prompt, model.tokenizer.special_tokens());
    let lark = lark.ok_or_else(|| EngineError::Form {
        reason: format!("{} has no form of tool calls that is JSON", loaded.name),
    })?;
    Ok(Some(lark))
}

/// What constrains an answer: its compiled grammar, and its state until the sequence is run.
#[derive(Debug)]
pub(crate) struct AnswerGrammar {
    grammar: Arc<Grammar>,
    /// Made beside the engine's thread, because a large grammar takes a while to copy.
    first: Option<Constraint>,
}

impl AnswerGrammar {
    pub(crate) fn compile(compiler: &GrammarCompiler, lark: &str) -> Result<Self, EngineError> {
        let grammar = caught("compiling a grammar", || Ok(compiler.compile(lark)?))?;
        let first = Some(grammar.constraint(0));
        Ok(AnswerGrammar { grammar, first })
    }

    /// The state behind the first tokens of an answer. A sequence that is retried is further.
    pub(crate) fn constraint(&mut self, num_sampled: usize) -> Constraint {
        let first = self.first.take().filter(|_| num_sampled == 0);
        first.unwrap_or_else(|| self.grammar.constraint(num_sampled))
    }
}
