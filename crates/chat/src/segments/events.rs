//! What the parser gives out, in pieces and whole.

/// A piece of an answer.
///
/// The raw texts of the pieces, joined in order, are the text that came in: `Text`, `Reasoning`
/// and `Markup` are their own, a call's is given when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentEvent {
    /// Text for the reader.
    Text(String),
    /// Text that the model wrote for itself.
    Reasoning(String),
    /// Markers, and the line ends that belong to them. Nobody is shown these.
    Markup(String),
    /// A tool call: its number among those of the answer, from 0, its name, and its id if the model
    /// wrote one.
    CallStarted {
        /// Its number.
        index: usize,
        /// The tool's name.
        name: String,
        /// The id that the model chose.
        id: Option<String>,
    },
    /// The next piece of a call's arguments. Joined, the pieces of a complete call are one JSON
    /// object.
    CallArguments {
        /// The call's number.
        index: usize,
        /// The piece.
        json: String,
    },
    /// The end of a call.
    CallEnded {
        /// The call's number; none if no name was found, so that it never started.
        index: Option<usize>,
        /// Whether its arguments are complete.
        outcome: CallOutcome,
        /// What the model wrote, without the markers around it.
        raw: String,
    },
    /// The end of the answer, and how many complete calls it has.
    Ended {
        /// The number of calls whose outcome is [`CallOutcome::Complete`].
        num_complete_calls: usize,
    },
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// It can be run.
    Complete,
    /// The answer ended within it.
    Unfinished,
    /// It is not in the family's form.
    Malformed,
}

/// A part of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Text for the reader.
    Text(String),
    /// Text that the model wrote for itself.
    Reasoning(String),
    /// Markers, and the line ends that belong to them.
    Markup(String),
    /// A tool call.
    ToolCall(ToolCall),
}

/// A tool call of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool's name; none if the call is not complete and no name was found.
    pub name: Option<String>,
    /// The id that the model chose.
    pub id: Option<String>,
    /// The arguments as JSON text: an object if the call is complete, else its beginning.
    pub arguments: String,
    /// Whether it can be run.
    pub outcome: CallOutcome,
    /// What the model wrote, without the markers around it.
    pub raw: String,
}

impl Segment {
    /// The whole answer of all its events.
    pub fn collect(events: impl IntoIterator<Item = SegmentEvent>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut call = None;
        for event in events {
            match event {
                SegmentEvent::Text(text) => match segments.last_mut() {
                    Some(Segment::Text(last)) => last.push_str(&text),
                    _ => segments.push(Segment::Text(text)),
                },
                SegmentEvent::Reasoning(text) => match segments.last_mut() {
                    Some(Segment::Reasoning(last)) => last.push_str(&text),
                    _ => segments.push(Segment::Reasoning(text)),
                },
                SegmentEvent::Markup(text) => match segments.last_mut() {
                    Some(Segment::Markup(last)) => last.push_str(&text),
                    _ => segments.push(Segment::Markup(text)),
                },
                SegmentEvent::CallStarted { name, id, .. } => {
                    call.get_or_insert_with(ToolCall::nameless).name = Some(name);
                    call.get_or_insert_with(ToolCall::nameless).id = id;
                }
                SegmentEvent::CallArguments { json, .. } => {
                    call.get_or_insert_with(ToolCall::nameless).arguments += &json;
                }
                SegmentEvent::CallEnded { outcome, raw, .. } => {
                    let call = call.take().unwrap_or_else(ToolCall::nameless);
                    segments.push(Segment::ToolCall(ToolCall { outcome, raw, ..call }));
                }
                SegmentEvent::Ended { .. } => {}
            }
        }
        segments
    }

    /// What the model wrote.
    pub fn raw(&self) -> &str {
        match self {
            Segment::Text(text) | Segment::Reasoning(text) | Segment::Markup(text) => text,
            Segment::ToolCall(call) => &call.raw,
        }
    }
}

impl ToolCall {
    fn nameless() -> ToolCall {
        ToolCall {
            name: None,
            id: None,
            arguments: String::new(),
            outcome: CallOutcome::Unfinished,
            raw: String::new(),
        }
    }
}

/// The events of a piece of text, and the call that is open.
#[derive(Debug, Clone, Default)]
pub(super) struct Events {
    pending: Vec<SegmentEvent>,
    /// The raw text of the open call.
    raw: String,
    /// The open call's number, once it has started.
    index: Option<usize>,
    num_started: usize,
    num_complete: usize,
    trial: Option<Trial>,
}

/// State before events that may be taken back.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// Pending events that stay.
    num_certain: usize,
    num_started: usize,
    num_complete: usize,
}

impl Events {
    /// Takes the events that are certain.
    pub(super) fn take(&mut self) -> Vec<SegmentEvent> {
        let Some(trial) = &mut self.trial else { return std::mem::take(&mut self.pending) };
        let uncertain = self.pending.split_off(trial.num_certain);
        trial.num_certain = 0;
        std::mem::replace(&mut self.pending, uncertain)
    }

    /// Holds all further events until the trial is kept or dropped. No call may be open.
    pub(super) fn begin_trial(&mut self) {
        let Events { num_started, num_complete, .. } = *self;
        self.trial = Some(Trial { num_certain: self.pending.len(), num_started, num_complete });
    }

    pub(super) fn keep_trial(&mut self) {
        self.trial = None;
    }

    /// Forgets all events since the trial began.
    pub(super) fn drop_trial(&mut self) {
        let Some(trial) = self.trial.take() else { return };
        self.pending.truncate(trial.num_certain);
        (self.num_started, self.num_complete) = (trial.num_started, trial.num_complete);
        (self.index, self.raw) = (None, String::new());
    }

    /// Returns the name of the call that the last event completed.
    pub(super) fn completed_name(&self) -> Option<&str> {
        let complete = |event: &SegmentEvent| {
            matches!(event, SegmentEvent::CallEnded { outcome: CallOutcome::Complete, .. })
        };
        self.pending.last().filter(|event| complete(event))?;
        self.pending.iter().rev().find_map(|event| match event {
            SegmentEvent::CallStarted { name, .. } => Some(name.as_str()),
            _ => None,
        })
    }

    /// The last pending event, unless a trial has begun after it.
    fn last(&mut self) -> Option<&mut SegmentEvent> {
        let num_certain = self.trial.map_or(0, |trial| trial.num_certain);
        self.pending.get_mut(num_certain..)?.last_mut()
    }

    pub(super) fn text(&mut self, text: &str) {
        match self.last() {
            _ if text.is_empty() => {}
            Some(SegmentEvent::Text(last)) => last.push_str(text),
            _ => self.pending.push(SegmentEvent::Text(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.last() {
            _ if text.is_empty() => {}
            Some(SegmentEvent::Reasoning(last)) => last.push_str(text),
            _ => self.pending.push(SegmentEvent::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn markup(&mut self, text: &str) {
        match self.last() {
            _ if text.is_empty() => {}
            Some(SegmentEvent::Markup(last)) => last.push_str(text),
            _ => self.pending.push(SegmentEvent::Markup(text.to_owned())),
        }
    }

    pub(super) fn start_call(&mut self, name: String, id: Option<String>) {
        let index = self.num_started;
        self.num_started += 1;
        self.index = Some(index);
        self.pending.push(SegmentEvent::CallStarted { index, name, id });
    }

    pub(super) fn arguments(&mut self, json: &str) {
        let Some(index) = self.index.filter(|_| !json.is_empty()) else { return };
        match self.last() {
            Some(SegmentEvent::CallArguments { json: last, .. }) => last.push_str(json),
            _ => self.pending.push(SegmentEvent::CallArguments { index, json: json.to_owned() }),
        }
    }

    /// Adds to the raw text of the open call.
    pub(super) fn raw(&mut self, text: &str) {
        self.raw.push_str(text);
    }

    /// Forgets a call that was none; returns its raw text.
    pub(super) fn take_back(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }

    pub(super) fn end_call(&mut self, outcome: CallOutcome) {
        self.num_complete += usize::from(outcome == CallOutcome::Complete);
        let (index, raw) = (self.index.take(), std::mem::take(&mut self.raw));
        self.pending.push(SegmentEvent::CallEnded { index, outcome, raw });
    }

    pub(super) fn end(&mut self) {
        self.pending.push(SegmentEvent::Ended { num_complete_calls: self.num_complete });
    }
}
