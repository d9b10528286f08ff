//! How an unclean end is said, once, after the restart.

use cairn_store::{Store, UncleanSubject};

use super::consequences::Crash;
use super::record::{Step, StepKind};
use crate::wire::{Event, NoticeKind, NoticeLevel, UnexpectedQuit, UnexpectedQuitDuring};

/// The notice of an unclean end, or of the quiet start after several.
pub(super) async fn notice_for(crash: &Crash, is_quiet: bool, store: &Store) -> Event {
    if is_quiet {
        let text = "Cairn quit unexpectedly three times in a row, so it has neither loaded nor resumed anything.";
        return notice(NoticeLevel::Warning, text.to_owned(), NoticeKind::StartedQuietly);
    }
    let quit = described(crash, store).await;
    let level = if quit.is_set_aside { NoticeLevel::Warning } else { NoticeLevel::Info };
    notice(level, sentence(&quit), NoticeKind::QuitUnexpectedly { quit })
}

fn notice(level: NoticeLevel, text: String, kind: NoticeKind) -> Event {
    Event::Notice { level, text, kind: Some(Box::new(kind)) }
}

async fn described(crash: &Crash, store: &Store) -> UnexpectedQuit {
    let nothing = || UnexpectedQuit {
        during: None,
        model: None,
        job_id: None,
        job: None,
        conversation_id: None,
        is_set_aside: false,
    };
    let Some(Step { kind, model, job_id, conversation_id }) = crash.step.clone() else {
        return nothing();
    };
    // A job or chat that was deleted meanwhile has nothing to show.
    let job = match &job_id {
        Some(id) => store.listed_job(id).await.ok().map(|job| job.name),
        None => None,
    };
    let row = match &conversation_id {
        Some(id) => store.listed_conversation(id).await.ok(),
        None => None,
    };
    let is_job_set_aside = matches!(crash.set_aside, Some(UncleanSubject::Job(_)));
    UnexpectedQuit {
        during: during(kind),
        model,
        job_id: job_id.filter(|_| job.is_some()),
        // If the job is set aside with its model, continuing the job allows the model too.
        is_set_aside: crash.set_aside.is_some() && (job.is_some() || !is_job_set_aside),
        job,
        conversation_id: conversation_id.filter(|_| row.is_some()),
    }
}

fn during(kind: StepKind) -> Option<UnexpectedQuitDuring> {
    Some(match kind {
        StepKind::Loading => UnexpectedQuitDuring::Loading,
        StepKind::ImportingModel => UnexpectedQuitDuring::ImportingModel,
        StepKind::ImportingContext => UnexpectedQuitDuring::ImportingContext,
        StepKind::Answering => UnexpectedQuitDuring::Answering,
        StepKind::Comparing => UnexpectedQuitDuring::Comparing,
        StepKind::Program => UnexpectedQuitDuring::Program,
        StepKind::Job => UnexpectedQuitDuring::Job,
        StepKind::Probabilities => UnexpectedQuitDuring::Probabilities,
        StepKind::ReadingAhead => UnexpectedQuitDuring::ReadingAhead,
        StepKind::Title => UnexpectedQuitDuring::Title,
        StepKind::Counting => UnexpectedQuitDuring::Counting,
        StepKind::Measuring => UnexpectedQuitDuring::Measuring,
        StepKind::Unknown => return None,
    })
}

/// Returns the sentence that the window shows, in English.
fn sentence(quit: &UnexpectedQuit) -> String {
    let UnexpectedQuit { model, job, is_set_aside, .. } = quit;
    let again = if *is_set_aside { " again" } else { "" };
    let during = clause(quit);
    let then = match (is_set_aside, job, model) {
        (true, Some(_), _) => ", so they are paused".to_owned(),
        (true, None, Some(model)) => format!(", so {model} isn’t used until you say so"),
        _ => saved(quit).to_owned(),
    };
    format!("Cairn quit unexpectedly{again}{during}{then}.")
}

fn clause(quit: &UnexpectedQuit) -> String {
    let UnexpectedQuit { model, job, .. } = quit;
    let with = |what: &str| match model {
        Some(model) => format!(" while {what} with {model}"),
        None => format!(" while {what}"),
    };
    let of_model = |what: &str| match model {
        Some(model) => format!(" while {what} {model}"),
        None => format!(" while {what} a model"),
    };
    match quit.during {
        None => String::new(),
        Some(UnexpectedQuitDuring::Loading) => of_model("loading"),
        Some(UnexpectedQuitDuring::ImportingModel) => " while importing a model".to_owned(),
        Some(UnexpectedQuitDuring::ImportingContext) => " while importing saved context".to_owned(),
        Some(UnexpectedQuitDuring::Answering) => with("answering"),
        Some(UnexpectedQuitDuring::Comparing) => with("answering a comparison"),
        Some(UnexpectedQuitDuring::Program) => with("answering a program"),
        Some(UnexpectedQuitDuring::Job) => match job {
            Some(name) => with(&format!("answering batch questions “{name}”")),
            None => with("answering batch questions"),
        },
        Some(UnexpectedQuitDuring::Probabilities) => with("computing probabilities"),
        Some(UnexpectedQuitDuring::ReadingAhead) => with("reading documents"),
        Some(UnexpectedQuitDuring::Title) => with("writing a chat’s title"),
        Some(UnexpectedQuitDuring::Counting) => with("counting a chat’s tokens"),
        Some(UnexpectedQuitDuring::Measuring) => of_model("measuring"),
    }
}

/// Names the work that is not lost.
fn saved(quit: &UnexpectedQuit) -> &'static str {
    match quit.during {
        Some(UnexpectedQuitDuring::Answering | UnexpectedQuitDuring::Comparing)
            if quit.conversation_id.is_some() =>
        {
            "; your chat is saved"
        }
        Some(UnexpectedQuitDuring::Job) if quit.job.is_some() => "; its answers are saved",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_in_one_sentence_what_quit_and_what_follows() {
        fn check(during: Option<UnexpectedQuitDuring>, about: &str, expected: &str) {
            let has = |word: &str| about.contains(word);
            let named = |word: &str, value: &str| has(word).then(|| value.to_owned());
            let quit = UnexpectedQuit {
                during,
                model: named("model", "Qwen"),
                job_id: named("job", "j"),
                job: named("job", "Letters"),
                conversation_id: named("chat", "c"),
                is_set_aside: has("aside"),
            };
            assert_eq!(sentence(&quit), format!("Cairn quit unexpectedly{expected}."));
        }
        use UnexpectedQuitDuring::*;
        check(None, "", "");
        check(Some(Loading), "model", " while loading Qwen");
        check(Some(Answering), "model chat", " while answering with Qwen; your chat is saved");
        check(Some(Answering), "model", " while answering with Qwen");
        let comparing = " while answering a comparison with Qwen; your chat is saved";
        check(Some(Comparing), "model chat", comparing);
        let aside = " again while answering with Qwen, so Qwen isn’t used until you say so";
        check(Some(Answering), "model chat aside", aside);
        let job = " while answering batch questions “Letters” with Qwen";
        check(Some(Job), "model job", &format!("{job}; its answers are saved"));
        check(Some(Job), "model job aside", &format!(" again{job}, so they are paused"));
        check(Some(Job), "model", " while answering batch questions with Qwen");
        check(Some(ReadingAhead), "model chat", " while reading documents with Qwen");
        check(Some(Measuring), "model", " while measuring Qwen");
        check(Some(ImportingModel), "", " while importing a model");
    }
}
