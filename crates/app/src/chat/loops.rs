//! Which part of an answer is looked at for loops, and as what.

use cairn_chat::{LoopDetector, SegmentEvent};

/// Watches an answer for loops, each segment by itself: an answer may well repeat what was drafted in
/// its reasoning.
#[derive(Debug, Default)]
pub(crate) struct LoopWatch {
    kind: Option<Kind>,
    detector: LoopDetector,
    has_found: bool,
    num_allowed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
    Call,
}

impl LoopWatch {
    pub(crate) fn push(&mut self, event: &SegmentEvent) {
        let (kind, piece) = match event {
            SegmentEvent::Text(text) => (Kind::Text, text),
            SegmentEvent::Reasoning(text) => (Kind::Reasoning, text),
            SegmentEvent::CallArguments { json, .. } => (Kind::Call, json),
            _ => return,
        };
        if self.kind != Some(kind) {
            self.kind = Some(kind);
            self.detector = match kind {
                Kind::Text | Kind::Reasoning => LoopDetector::new(),
                Kind::Call => LoopDetector::of_code(),
            };
            (0..self.num_allowed).for_each(|_| self.detector.allow());
        }
        self.has_found |= self.detector.push(piece);
    }

    /// Whether a loop was found since this was last asked.
    pub(crate) fn take(&mut self) -> bool {
        std::mem::take(&mut self.has_found)
    }

    /// Lets the answer go on; from now on it takes twice as much.
    pub(crate) fn allow(&mut self) {
        self.num_allowed += 1;
        self.detector.allow();
        self.has_found = false;
    }
}
