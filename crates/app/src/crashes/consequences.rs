//! Consequences of the crash record that a run has left: how often its models and jobs have been at
//! work in a run that ended uncleanly, which step to name, and whether this start keeps quiet.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use cairn_store::UncleanSubject;

use super::record::{Record, Step, counts_for_model};

/// A model or a job is set aside after this many unclean ends. One may be chance: memory that
/// another program took, a person who lost patience.
const MAX_UNCLEAN_ENDS: u32 = 2;
/// A start keeps quiet after this many unclean starts in a row, if the first and the last are
/// within [`QUICK_STARTS_MS`].
const NUM_QUICK_STARTS: usize = 3;
const QUICK_STARTS_MS: u64 = 60_000;

/// How many runs have ended uncleanly with each model and job at work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts(pub(super) BTreeMap<UncleanSubject, u32>);

impl Counts {
    /// Whether a model or a job is set aside: nothing uses it until a person says so.
    pub(super) fn is_set_aside(&self, subject: &UncleanSubject) -> bool {
        self.0.get(subject).is_some_and(|&num_ends| num_ends >= MAX_UNCLEAN_ENDS)
    }
}

/// Decisions of a start about the run before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Consequences {
    /// The counts from now on.
    pub(super) counts: Counts,
    /// The starts of the record that this run begins.
    pub(super) starts_ms: Vec<i64>,
    /// Nothing is loaded or resumed by itself.
    pub(super) is_quiet: bool,
    /// How the run before ended uncleanly; none if it did not.
    pub(super) crash: Option<Crash>,
}

/// An unclean end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Crash {
    /// The step in flight that most likely ended the process.
    pub(super) step: Option<Step>,
    /// The job, else the model, that is set aside because of it.
    pub(super) set_aside: Option<UncleanSubject>,
}

/// Decides what follows from the record that was `left`, for a start of this build at `now_ms`.
/// `before` are the counts of this build so far. Another build counts from zero: it may not have
/// the fault.
pub(super) fn consequences(
    left: Option<&Record>,
    mut before: Counts,
    build: &str,
    now_ms: i64,
) -> Consequences {
    let own = left.filter(|left| left.build == build);
    let subjects: BTreeSet<UncleanSubject> =
        own.iter().flat_map(|left| &left.steps).flat_map(subjects_of).collect();
    for subject in subjects {
        *before.0.entry(subject).or_default() += 1;
    }
    let counts = before;
    let earlier = own.map_or(&[][..], |left| &left.starts_ms);
    let last = &earlier[earlier.len().saturating_sub(NUM_QUICK_STARTS)..];
    let is_quiet = match last {
        // The clock may have been set back meanwhile.
        [first, .., newest] if last.len() == NUM_QUICK_STARTS => {
            first.abs_diff(*newest) <= QUICK_STARTS_MS
        }
        _ => false,
    };
    let crash = left.map(|left| {
        let step = likeliest(&left.steps).cloned();
        let concerned = step.iter().flat_map(subjects_of);
        let set_aside = concerned.filter(|subject| counts.is_set_aside(subject)).last();
        Crash { step, set_aside }
    });
    let starts_ms = last.iter().copied().chain([now_ms]).collect();
    Consequences { counts, starts_ms, is_quiet, crash }
}

/// The subjects that an unclean end in a step counts for: its model, then its job.
fn subjects_of(step: &Step) -> impl Iterator<Item = UncleanSubject> + use<> {
    let model = step.model.clone().filter(|_| counts_for_model(step.kind));
    let model = model.map(UncleanSubject::Model);
    model.into_iter().chain(step.job_id.clone().map(UncleanSubject::Job))
}

/// Returns the newest step of the likeliest kind.
fn likeliest(steps: &[Step]) -> Option<&Step> {
    steps.iter().rev().min_by_key(|step| step.kind)
}

#[cfg(test)]
mod tests {
    use super::super::record::StepKind;
    use super::*;

    /// `answering m, job m j1`: steps by kind, model and job.
    fn steps(text: &str) -> Vec<Step> {
        let step = |text: &str| {
            let mut words = text.split_whitespace();
            let kind = format!("\"{}\"", words.next().unwrap_or_default());
            let kind: StepKind = serde_json::from_str(&kind).expect("a kind");
            let model = words.next().filter(|&model| model != "-").map(str::to_owned);
            Step { job_id: words.next().map(str::to_owned), ..Step::new(kind, model) }
        };
        text.split(',').filter(|text| !text.trim().is_empty()).map(step).collect()
    }

    /// `m 1, j1 2`: counts; a name that begins with j is a job.
    fn counts(text: &str) -> Counts {
        let count = |text: &str| {
            let (name, count) = text.trim().split_once(' ').expect("a count");
            let subject = if name.starts_with('j') {
                UncleanSubject::Job(name.to_owned())
            } else {
                UncleanSubject::Model(name.to_owned())
            };
            (subject, count.parse().expect("a number"))
        };
        Counts(text.split(',').filter(|text| !text.is_empty()).map(count).collect())
    }

    #[test]
    fn counts_models_and_jobs_of_unclean_ends() {
        /// Checks a record with the steps `left` on top of the counts `before`: the counts `after`
        /// it, the step that is `named`, and its model or job that is `set_aside`.
        fn check(left: &str, before: &str, after: &str, named: &str, set_aside: &str) {
            let left = Record { build: "1".into(), starts_ms: vec![0], steps: steps(left) };
            let found = consequences(Some(&left), counts(before), "1", 9);
            assert_eq!(found.counts, counts(after), "{left:?}");
            let crash = found.crash.expect("a crash");
            assert_eq!(crash.step, steps(named).pop(), "{left:?}");
            let (UncleanSubject::Model(name) | UncleanSubject::Job(name)) =
                crash.set_aside.unwrap_or(UncleanSubject::Model(String::new()));
            assert_eq!(name, set_aside, "{left:?}");
            assert_eq!((found.starts_ms, found.is_quiet), (vec![0, 9], false));
        }
        check("", "", "", "", "");
        check("", "m 1", "m 1", "", "");
        check("answering m", "", "m 1", "answering m", "");
        check("answering m", "n 2", "m 1,n 2", "answering m", "");
        check("answering m", "m 1", "m 2", "answering m", "m");
        check("answering m", "m 2", "m 3", "answering m", "m");
        check("answering m, answering m", "", "m 1", "answering m", "");
        check("job m j1", "", "m 1,j1 1", "job m j1", "");
        check("job m j1", "m 1,j1 1", "m 2,j1 2", "job m j1", "j1");
        check("job m j1", "m 1", "m 2,j1 1", "job m j1", "m");
        check("answering m, loading n", "", "m 1,n 1", "loading n", "");
        check("loading n, answering m", "m 1", "m 2,n 1", "loading n", "");
        check("reading_ahead m, counting m, title m", "", "m 1", "reading_ahead m", "");
        check("program a, program b, counting c", "", "a 1,b 1,c 1", "program b", "");
        check("measuring m", "m 1", "m 1", "measuring m", "");
        check("importing_model", "", "", "importing_model", "");
        check("importing_context m", "m 1", "m 1", "importing_context m", "");
        check("dreaming m", "", "m 1", "dreaming m", "");
    }

    #[test]
    fn counts_anew_for_another_build() {
        let left =
            Record { build: "1".to_owned(), starts_ms: vec![1, 2, 3], steps: steps("answering m") };
        let found = consequences(Some(&left), Counts::default(), "2", 9);
        let step = steps("answering m").pop();
        let crash = Some(Crash { step, set_aside: None });
        let expected =
            Consequences { counts: Counts::default(), starts_ms: vec![9], is_quiet: false, crash };
        assert_eq!(found, expected, "the crash is named all the same");
        let unreadable = consequences(Some(&Record::default()), counts("m 1"), "2", 9);
        assert_eq!((unreadable.counts, unreadable.starts_ms), (counts("m 1"), vec![9]));
        assert!(unreadable.crash.is_some());
    }

    #[test]
    fn a_closed_run_has_no_consequences() {
        let found = consequences(None, counts("m 1"), "1", 9);
        let counts = counts("m 1");
        let expected = Consequences { counts, starts_ms: vec![9], is_quiet: false, crash: None };
        assert_eq!(found, expected);
    }

    #[test]
    fn keeps_quiet_after_three_quick_starts() {
        fn check(earlier: &[i64], is_quiet: bool, starts_ms: &[i64]) {
            let left = Record { build: "1".into(), starts_ms: earlier.to_vec(), steps: Vec::new() };
            let found = consequences(Some(&left), Counts::default(), "1", 500_000);
            let expected = (is_quiet, starts_ms.to_vec());
            assert_eq!((found.is_quiet, found.starts_ms), expected, "{earlier:?}");
        }
        check(&[], false, &[500_000]);
        check(&[1_000], false, &[1_000, 500_000]);
        check(&[1_000, 2_000], false, &[1_000, 2_000, 500_000]);
        check(&[0, 30_000, 60_000], true, &[0, 30_000, 60_000, 500_000]);
        check(&[0, 30_000, 60_001], false, &[0, 30_000, 60_001, 500_000]);
        // The clock was set back between two of them.
        check(&[60_000, 90_000, 30_000], true, &[60_000, 90_000, 30_000, 500_000]);
        check(&[i64::MIN, 0, i64::MAX], false, &[i64::MIN, 0, i64::MAX, 500_000]);
        check(&[0, 100_000, 110_000, 120_000], true, &[100_000, 110_000, 120_000, 500_000]);
        check(&[0, 1, 2, 200_000], false, &[1, 2, 200_000, 500_000]);
    }
}
