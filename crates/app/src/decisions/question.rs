//! Questions about a text, the rows that ask them, and the probabilities of their answers. Pure.

/// A question, whose answer is a probability for each of its options.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// What is asked, or stated.
    pub instructions: String,
    /// What may be answered.
    pub kind: QuestionKind,
}

/// What may be answered.
#[derive(Debug, Clone, PartialEq)]
pub enum QuestionKind {
    /// Yes or no.
    Predicate,
    /// One of several options, in no order.
    Choice(Vec<Described>),
    /// One of several levels, the lowest first.
    Score(Vec<Described>),
}

/// An option or a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub label: String,
    /// What it stands for, if its name does not say.
    pub description: Option<String>,
}

/// What a question may have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// There is nothing to answer.
    #[error("the question is empty")]
    Empty,
    /// Too few or too many options.
    #[error("a choice has 2 to {MAX_OPTIONS} options, not {count}")]
    NumOptions {
        /// How many there are.
        count: usize,
    },
    /// Too few or too many levels.
    #[error("a score has 2 to {MAX_LEVELS} levels, not {count}")]
    NumLevels {
        /// How many there are.
        count: usize,
    },
    /// An option is there twice.
    #[error("“{label}” is there twice")]
    Twice {
        /// Its name.
        label: String,
    },
}

/// The most options of a choice.
pub const MAX_OPTIONS: usize = 255;

/// The most levels of a score.
pub const MAX_LEVELS: usize = 10;

/// How many orders the options of a choice are asked in: models prefer some places in a list, and the
/// mean over several orders prefers none.
const NUM_ROTATIONS: usize = 2;

/// How to answer questions of every kind. It comes before the text that they are about, where it is
/// read once for all of them.
pub(super) const HOW_TO_ANSWER: &str = "A text and a question about it follow. Answer with Yes or No, \
    or with the letter or number of one of the options, and nothing else.";

/// One way of asking a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wording {
    /// The question and its options.
    pub(crate) text: String,
    /// How to answer this one, where nothing has said so before.
    pub(crate) how: &'static str,
    /// What the model may answer, and which option each answer stands for.
    pub(crate) answers: Vec<(String, usize)>,
}

impl Question {
    /// Fails if it has no text, or a number of options that is not allowed.
    pub fn check(&self) -> Result<(), QuestionError> {
        if self.instructions.trim().is_empty() {
            return Err(QuestionError::Empty);
        }
        let count = self.options().len();
        match &self.kind {
            QuestionKind::Predicate => {}
            QuestionKind::Choice(_) if !(2..=MAX_OPTIONS).contains(&count) => {
                return Err(QuestionError::NumOptions { count });
            }
            QuestionKind::Score(_) if !(2..=MAX_LEVELS).contains(&count) => {
                return Err(QuestionError::NumLevels { count });
            }
            QuestionKind::Choice(_) | QuestionKind::Score(_) => {}
        }
        let mut labels: Vec<&str> = self.options().iter().map(|one| one.label.as_str()).collect();
        labels.sort_unstable();
        match labels.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(QuestionError::Twice { label: pair[0].to_owned() }),
            None => Ok(()),
        }
    }

    /// Its options or levels; a predicate has none that need a name.
    pub fn options(&self) -> &[Described] {
        match &self.kind {
            QuestionKind::Predicate => &[],
            QuestionKind::Choice(options) | QuestionKind::Score(options) => options,
        }
    }

    /// How it is asked: the options of a choice in several orders.
    pub(crate) fn wordings(&self) -> Vec<Wording> {
        let instructions = self.instructions.trim();
        match &self.kind {
            QuestionKind::Predicate => {
                let (text, how) = (instructions.to_owned(), "Answer Yes or No.");
                let answers = [("Yes", 1), ("yes", 1), ("No", 0), ("no", 0)];
                let answers = answers.map(|(text, option)| (text.to_owned(), option)).to_vec();
                vec![Wording { text, how, answers }]
            }
            QuestionKind::Score(levels) => {
                let in_order: Vec<usize> = (0..levels.len()).collect();
                vec![list(instructions, "Levels, the lowest first", levels, &in_order)]
            }
            QuestionKind::Choice(options) => {
                let step = options.len().div_ceil(NUM_ROTATIONS);
                let rotated = |first: usize| -> Vec<usize> {
                    (0..options.len()).map(|index| (index + first) % options.len()).collect()
                };
                (0..NUM_ROTATIONS)
                    .map(|turn| list(instructions, "Options", options, &rotated(turn * step)))
                    .collect()
            }
        }
    }

    /// The probability of each option, from the log-probabilities of every [`Wording`]'s answers; of a
    /// predicate that of “no”, then that of “yes”.
    ///
    /// `temperature` above 1 makes them less certain; 1 takes them as the model has them.
    pub(crate) fn probabilities(
        &self,
        wordings: &[Wording],
        logprobs: &[Vec<f32>],
        temperature: f64,
    ) -> Vec<f64> {
        let (num_options, asked_in) = (self.options().len().max(2), wordings.len());
        let mut mean = vec![0.0; num_options];
        for (wording, logprobs) in std::iter::zip(wordings, logprobs) {
            let mut sums = vec![0.0; num_options];
            for ((_, option), logprob) in std::iter::zip(&wording.answers, logprobs) {
                sums[*option] += f64::from(*logprob).exp();
            }
            let scaled: Vec<f64> = sums.iter().map(|sum: &f64| sum.ln() / temperature).collect();
            for (mean, probability) in std::iter::zip(&mut mean, softmax(&scaled)) {
                *mean += probability / asked_in as f64;
            }
        }
        mean
    }
}

/// Probabilities that add up to 1, in proportion to the exponentials.
pub(super) fn softmax(logs: &[f64]) -> Vec<f64> {
    let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if highest == f64::NEG_INFINITY {
        return vec![1.0 / logs.len() as f64; logs.len()];
    }
    let exponentials: Vec<f64> = logs.iter().map(|log| (log - highest).exp()).collect();
    let total: f64 = exponentials.iter().sum();
    exponentials.iter().map(|exponential| exponential / total).collect()
}

/// A list of options to choose from by their letters, or by numbers if there are more than letters.
fn list(instructions: &str, heading: &str, options: &[Described], order: &[usize]) -> Wording {
    let has_letters = options.len() <= 26;
    let name = |place: usize| match has_letters {
        true => char::from(b'A' + place as u8).to_string(),
        false => (place + 1).to_string(),
    };
    let mut text = format!("{instructions}\n{heading}:");
    for (place, &option) in order.iter().enumerate() {
        let Described { label, description } = &options[option];
        let description = description.as_ref().map(|text| format!(": {text}"));
        text += &format!("\n{}. {label}{}", name(place), description.unwrap_or_default());
    }
    let how = if has_letters { "Answer with one letter." } else { "Answer with one number." };
    let answers = order.iter().enumerate().map(|(place, &option)| (name(place), option)).collect();
    Wording { text, how, answers }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(labels: &[&str]) -> Vec<Described> {
        let one = |label: &&str| Described { label: (*label).to_owned(), description: None };
        labels.iter().map(one).collect()
    }

    fn question(kind: QuestionKind) -> Question {
        Question { instructions: " Which one? ".to_owned(), kind }
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in std::iter::zip(found, expected) {
            assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let many: Vec<String> = (0..256).map(|index| index.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (kind, expected) in [
            (QuestionKind::Choice(described(&["a"])), Err(QuestionError::NumOptions { count: 1 })),
            (QuestionKind::Choice(described(&many)), Err(QuestionError::NumOptions { count: 256 })),
            (QuestionKind::Choice(described(&many[1..])), Ok(())),
            (
                QuestionKind::Score(described(&many[..11])),
                Err(QuestionError::NumLevels { count: 11 }),
            ),
            (
                QuestionKind::Score(described(&["a", "b", "a"])),
                Err(QuestionError::Twice { label: "a".to_owned() }),
            ),
            (QuestionKind::Predicate, Ok(())),
        ] {
            assert_eq!(question(kind).check(), expected);
        }
        let empty = Question { instructions: " ".to_owned(), kind: QuestionKind::Predicate };
        assert_eq!(empty.check(), Err(QuestionError::Empty));
    }

    #[test]
    fn a_choice_is_asked_in_two_orders() {
        let wordings =
            question(QuestionKind::Choice(described(&["red", "green", "blue"]))).wordings();
        assert_eq!(wordings[0].text, "Which one?\nOptions:\nA. red\nB. green\nC. blue");
        assert_eq!(wordings[0].how, "Answer with one letter.");
        let orders: Vec<Vec<usize>> = wordings
            .iter()
            .map(|wording| wording.answers.iter().map(|(_, option)| *option).collect())
            .collect();
        assert_eq!(orders, [[0, 1, 2], [2, 0, 1]]);
    }

    #[test]
    fn a_preference_for_a_place_in_the_list_cancels_out() {
        let question = question(QuestionKind::Choice(described(&["one", "two"])));
        let wordings = question.wordings();
        // The model says A with 0.8, whatever A is.
        let logprobs = vec![vec![0.8f32.ln(), 0.2f32.ln()]; 2];
        assert_near(&question.probabilities(&wordings, &logprobs, 1.0), &[0.5, 0.5]);
    }

    #[test]
    fn answers_that_say_the_same_are_added_up() {
        let question = question(QuestionKind::Predicate);
        let wordings = question.wordings();
        let logprobs = vec![[0.2f32, 0.1, 0.05, 0.05].map(f32::ln).to_vec()];
        assert_near(&question.probabilities(&wordings, &logprobs, 1.0), &[0.25, 0.75]);
        // A temperature of 2 takes square roots.
        let root = 3f64.sqrt();
        let expected = [1.0 / (1.0 + root), root / (1.0 + root)];
        assert_near(&question.probabilities(&wordings, &logprobs, 2.0), &expected);
    }

    #[test]
    fn many_options_have_numbers() {
        let labels: Vec<String> = (0..30).map(|index| format!("option {index}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let wordings = question(QuestionKind::Choice(described(&labels))).wordings();
        assert_eq!(wordings[1].answers[0], ("1".to_owned(), 15));
        assert_eq!(wordings[1].answers[29], ("30".to_owned(), 14));
        assert_eq!(wordings[0].how, "Answer with one number.");
    }
}
