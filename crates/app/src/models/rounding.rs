//! What the weights of a file that have no exact form can be rounded to, with what each choice takes
//! on the disk and in memory.

use cairn_engine::ModelMemory;
use cairn_formats::gguf::{RoundTo, RoundingChoice};

use super::check_child::CheckedFacts;
use crate::wire::{self, Fit, RoundingForm};

/// What is proposed unless it is too large: hardly anybody notices this rounding.
const USUAL: RoundTo = RoundTo::Bits8;

/// The choices for a window, one of which is proposed, where models may take so much memory.
pub(crate) fn choices(found: Vec<RoundingChoice>, budget_bytes: u64) -> Vec<wire::RoundingChoice> {
    let mut choices: Vec<_> =
        found.into_iter().map(|choice| described(choice, budget_bytes)).collect();
    propose(&mut choices);
    choices
}

/// Marks the usual choice, or the largest of the smaller ones that fits where it does not.
fn propose(choices: &mut [wire::RoundingChoice]) {
    let fits = |choice: &wire::RoundingChoice| {
        choice.memory.as_ref().is_none_or(|memory| memory.fit != Fit::TooLarge)
    };
    let usual = choices.iter().position(|choice| choice.form == form(USUAL)).unwrap_or_default();
    let proposed = choices[..choices.len().min(usual + 1)].iter().rposition(fits).unwrap_or(usual);
    if let Some(choice) = choices.get_mut(proposed) {
        choice.is_proposed = true;
    }
}

fn described(choice: RoundingChoice, budget_bytes: u64) -> wire::RoundingChoice {
    let memory = ModelMemory::before_download(&choice.config, choice.weight_bytes).ok();
    wire::RoundingChoice {
        form: form(choice.round_to),
        is_proposed: false,
        bytes: choice.weight_bytes,
        memory: memory.map(|memory| CheckedFacts::of(&memory).within(budget_bytes).memory),
        relative_error: choice.relative_error,
    }
}

fn form(round_to: RoundTo) -> RoundingForm {
    match round_to {
        RoundTo::Bits4 => RoundingForm::Bits4,
        RoundTo::Bits8 => RoundingForm::Bits8,
        RoundTo::Bfloat16 => RoundingForm::Bfloat16,
        RoundTo::Float32 => RoundingForm::Float32,
    }
}

/// The other way round.
pub(crate) fn round_to(form: RoundingForm) -> RoundTo {
    match form {
        RoundingForm::Bits4 => RoundTo::Bits4,
        RoundingForm::Bits8 => RoundTo::Bits8,
        RoundingForm::Bfloat16 => RoundTo::Bfloat16,
        RoundingForm::Float32 => RoundTo::Float32,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_formats::test_files::gguf::{TestGguf, file_with};

    use super::*;

    fn found() -> Vec<RoundingChoice> {
        let (folder, file) = file_with(&TestGguf::with_k_quants().bytes());
        RoundingChoice::all(&file, folder.path(), None).unwrap()
    }

    fn proposed(budget_bytes: u64) -> RoundingForm {
        let choices = choices(found(), budget_bytes);
        let proposed: Vec<_> = choices.iter().filter(|choice| choice.is_proposed).collect();
        assert_eq!(proposed.len(), 1);
        proposed[0].form
    }

    #[test]
    fn each_choice_says_its_size_and_memory() {
        let choices = choices(found(), u64::MAX);
        let forms: Vec<_> = choices.iter().map(|choice| choice.form).collect();
        assert_eq!(forms, RoundTo::ALL.map(form));
        for choice in &choices {
            let memory = choice.memory.as_ref().unwrap();
            assert!(choice.bytes > 0 && memory.total_bytes > memory.weight_bytes, "{choice:?}");
        }
        assert!(RoundTo::ALL.iter().all(|one| round_to(form(*one)) == *one));
    }

    #[test]
    fn eight_bits_are_proposed_unless_only_less_fits() {
        assert_eq!(proposed(u64::MAX), RoundingForm::Bits8);
        // Nothing fits: the least bad is as usual.
        assert_eq!(proposed(1), RoundingForm::Bits8);
        let mut found = found();
        found.truncate(1);
        assert!(choices(found, u64::MAX)[0].is_proposed);
        assert!(choices(Vec::new(), u64::MAX).is_empty());
    }

    #[test]
    fn four_bits_are_proposed_where_they_fit_and_eight_do_not() {
        // Set by hand: without a GPU, all choices take the same memory.
        fn check(four: Fit, eight: Fit, expected: RoundingForm) {
            let mut choices = choices(found(), u64::MAX);
            for (choice, fit) in choices.iter_mut().zip([four, eight]) {
                choice.memory.as_mut().unwrap().fit = fit;
                choice.is_proposed = false;
            }
            propose(&mut choices);
            let proposed = choices.iter().filter(|choice| choice.is_proposed);
            let proposed: Vec<_> = proposed.map(|choice| choice.form).collect();
            assert_eq!(proposed, [expected], "{four:?} {eight:?}");
        }
        check(Fit::Well, Fit::TooLarge, RoundingForm::Bits4);
        check(Fit::Tight, Fit::TooLarge, RoundingForm::Bits4);
        check(Fit::Well, Fit::Tight, RoundingForm::Bits8);
        check(Fit::Tight, Fit::Tight, RoundingForm::Bits8);
        check(Fit::TooLarge, Fit::TooLarge, RoundingForm::Bits8);
    }
}
