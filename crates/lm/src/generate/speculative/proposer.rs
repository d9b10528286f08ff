//! Who proposes tokens, and how many.

use std::cell::RefCell;
use std::rc::Rc;

use super::head::HeadReader;
use super::pace::{Choice, EndedPass, Pace, Source};
use super::prompt_lookup::LookupDrafter;
use super::reader::Reader;
use crate::device::ComputeDevice;
use crate::pass_costs::PassCosts;

/// What can propose tokens for a sequence, and the choice between them.
#[derive(Debug)]
pub(super) struct Proposer {
    pub(super) drawn: Option<Drawn>,
    pub(super) lookup: Option<Box<LookupDrafter>>,
    pub(super) number: Number,
}

/// What draws proposals one after another.
#[derive(Debug)]
pub(super) enum Drawn {
    /// A smaller model.
    Model(Reader),
    /// The model's own head.
    Head(Box<HeadReader>),
}

/// How many tokens are proposed.
#[derive(Debug)]
pub(super) enum Number {
    /// So many, wherever it is possible.
    Always(usize),
    /// As many as pay, by what pays most.
    WhereItPays(Box<Pace>),
}

impl Number {
    /// With what is known of the model's costs.
    pub(super) fn where_it_pays(costs: Rc<RefCell<PassCosts>>) -> Self {
        Number::WhereItPays(Box::new(Pace::new(costs)))
    }
}

impl Proposer {
    /// A draft model, which has caches of its own.
    pub(super) fn draft_mut(&mut self) -> Option<&mut Reader> {
        match &mut self.drawn {
            Some(Drawn::Model(reader)) => Some(reader),
            Some(Drawn::Head(_)) | None => None,
        }
    }

    pub(super) fn head_mut(&mut self) -> Option<&mut HeadReader> {
        match &mut self.drawn {
            Some(Drawn::Head(head)) => Some(head),
            Some(Drawn::Model(_)) | None => None,
        }
    }

    /// What proposes behind the latest token of a sequence of `sequence_length` tokens and how many, or
    /// behind the token after it if `num_before` is 1.
    pub(super) fn choose(
        &self,
        sequence_length: usize,
        num_before: usize,
    ) -> Option<(Source, usize)> {
        let length = self.lookup.as_ref().and_then(|lookup| lookup.match_length());
        let draws = match &self.drawn {
            Some(Drawn::Model(reader)) => reader.is_near(sequence_length + num_before),
            Some(Drawn::Head(_)) => true,
            None => false,
        };
        match &self.number {
            Number::WhereItPays(pace) => {
                let choice = pace.choose(length, num_before, draws);
                choice.map(|Choice { source, num_tokens, .. }| (source, num_tokens))
            }
            &Number::Always(number) if draws => Some((Source::Drawn, number)),
            &Number::Always(number) => length.map(|_| (Source::LookedUp, number)),
        }
    }

    /// The draft model, if it is to propose as soon as it has read the sequence.
    pub(super) fn wanted_draft(&mut self) -> Option<&mut Reader> {
        let is_wanted = match &self.number {
            Number::WhereItPays(pace) => pace.wants_drawn(),
            Number::Always(_) => true,
        };
        self.draft_mut().filter(|_| is_wanted)
    }

    /// Whether proposals wait until the token before them is known. On a CPU that costs next to nothing,
    /// more of them are right, and what they cost can be measured.
    pub(super) fn waits_for_tokens(&self) -> bool {
        let is_on_cpu = matches!(ComputeDevice::current(), ComputeDevice::Cpu);
        matches!(self.number, Number::WhereItPays(_)) && is_on_cpu
    }

    /// A token of the answer was returned.
    pub(super) fn push(&mut self, token: u32) {
        let predicted = self.lookup.as_mut().and_then(|lookup| lookup.push(token));
        if let (Number::WhereItPays(pace), Some((length, is_right))) = (&mut self.number, predicted)
        {
            pace.predicted(length, is_right);
        }
    }

    /// A pass has ended, of whose proposals so many were right.
    pub(super) fn passed(&mut self, pass: EndedPass, num_right: usize) {
        let Number::WhereItPays(pace) = &mut self.number else { return };
        pace.passed(pass);
        if pass.source == Source::Drawn && pass.num_proposed > 0 {
            pace.drawn(pass.num_proposed, num_right);
        }
    }
}
