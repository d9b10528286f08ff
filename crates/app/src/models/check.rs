//! Checks whether a model can be used, in a child process: a file from the internet can make a parser
//! take all memory, loop or crash. What the child does is in [`super::check_child`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Child;

use super::check_child::{ARGUMENTS, CheckedFacts, MEMORY_BYTES, MEMORY_VARIABLE, ModelVerdict};
use super::child::{Exit, command, wait};
use crate::platform;
use crate::wire::{ModelProblem, ModelProblemKind, ModelProblemWhat};

/// Starts the check's processes.
#[derive(Debug, Clone)]
pub(crate) struct Checker {
    /// The program, which calls [`crate::run_child_if_asked`] before all else. The app's own.
    pub(crate) program: PathBuf,
    pub(crate) limits: CheckLimits,
}

/// What opening a model's files may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckLimits {
    pub(crate) memory_bytes: u64,
    pub(crate) time: Duration,
}

impl Default for CheckLimits {
    fn default() -> Self {
        CheckLimits { memory_bytes: MEMORY_BYTES, time: Duration::from_secs(30) }
    }
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CheckVerdict {
    Usable(CheckedFacts),
    Problem(ModelProblem),
    /// Nothing was learned about the model, for this reason: the process could not be started, or is
    /// another program.
    NotChecked(String),
}

/// How the process ended.
enum End {
    Exited(Exit),
    TookTooLong,
    TookTooMuch,
}

/// How often the process's memory is read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The exit status of a panic.
const PANICKED: i32 = 101;

impl Checker {
    /// Checks the model in `folder`. The process is killed at a limit, and when the check is dropped.
    pub(crate) async fn check(&self, folder: &Path) -> CheckVerdict {
        let mut child = match self.start(folder) {
            Ok(child) => child,
            Err(error) => {
                let program = self.program.display();
                return CheckVerdict::NotChecked(format!("{program} cannot be started: {error}"));
            }
        };
        let process = child.id();
        let CheckLimits { memory_bytes, time } = self.limits;
        let end = tokio::select! {
            exit = wait(&mut child) => exit.map(End::Exited),
            () = exceeds(process, memory_bytes) => Ok(End::TookTooMuch),
            () = tokio::time::sleep(time) => Ok(End::TookTooLong),
        };
        // It has ended already if it exited; a failure means the same.
        let _ = child.kill().await;
        match end {
            Ok(end) => self.verdict(end),
            Err(reason) => CheckVerdict::NotChecked(reason),
        }
    }

    fn start(&self, folder: &Path) -> std::io::Result<Child> {
        command(&self.program, &ARGUMENTS, &[folder])
            .env(MEMORY_VARIABLE, self.limits.memory_bytes.to_string())
            // No product is computed: OpenBLAS would take memory for each of its threads.
            .env("OPENBLAS_NUM_THREADS", "1")
            .spawn()
    }

    fn verdict(&self, end: End) -> CheckVerdict {
        let too_much = || {
            let limit_bytes = self.limits.memory_bytes;
            let limit = gigabytes(limit_bytes);
            unsafe_to_open(
                ModelProblemWhat::TooMuchMemory { limit_bytes },
                format!("opening its files takes more than {limit} of memory"),
            )
        };
        match end {
            End::TookTooMuch => too_much(),
            End::TookTooLong => {
                let what = ModelProblemWhat::TooSlow { seconds: self.limits.time.as_secs() };
                let seconds = self.limits.time.as_secs_f64();
                unsafe_to_open(what, format!("opening its files takes more than {seconds} s"))
            }
            End::Exited(Exit { status, answer, .. }) if status.success() => {
                match ModelVerdict::from_json(&answer) {
                    Some(ModelVerdict::Usable(facts)) => CheckVerdict::Usable(facts),
                    Some(ModelVerdict::Problem(problem)) => CheckVerdict::Problem(problem),
                    None => CheckVerdict::NotChecked("its process gave no verdict".to_owned()),
                }
            }
            // Rust's allocator says so before it aborts.
            End::Exited(Exit { complaint, .. })
                if contains(&complaint, b"memory allocation of ") =>
            {
                too_much()
            }
            // No status: a signal.
            End::Exited(Exit { status, .. }) if matches!(status.code(), None | Some(PANICKED)) => {
                unsafe_to_open(
                    ModelProblemWhat::Crashed { status: status.to_string() },
                    format!("the process that opened its files crashed ({status})"),
                )
            }
            End::Exited(Exit { status, .. }) => {
                CheckVerdict::NotChecked(format!("its process ended with {status}"))
            }
        }
    }
}

/// Ends when the process has more memory than the limit. On Linux the process limits itself too,
/// which leaves no time in between; on macOS no such limit holds.
async fn exceeds(process: Option<u32>, limit_bytes: u64) {
    let mut interval = tokio::time::interval(POLL_INTERVAL);
    loop {
        interval.tick().await;
        let memory = process.and_then(platform::memory_of);
        if memory.is_some_and(|bytes| bytes > limit_bytes) {
            return;
        }
    }
}

fn unsafe_to_open(what: ModelProblemWhat, detail: String) -> CheckVerdict {
    let kind = ModelProblemKind::Unsafe;
    CheckVerdict::Problem(ModelProblem { kind, what: Some(what), detail })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// One figure is enough for a limit.
fn gigabytes(bytes: u64) -> String {
    match bytes as f64 / 1e9 {
        size if size >= 1.0 => format!("{} GB", size.round()),
        size => format!("{} GB", (size * 10.0).round() / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::child::KEPT_VARIABLES;

    /// Longer than any test takes.
    const PATIENT: CheckLimits =
        CheckLimits { memory_bytes: 8 << 30, time: Duration::from_secs(3600) };

    async fn check(does: &str, limits: CheckLimits) -> CheckVerdict {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/models/check_program.sh");
        Checker { program, limits }.check(&Path::new("/models").join(does)).await
    }

    /// The detail of a model that is not opened again.
    async fn unsafe_detail(does: &str, limits: CheckLimits) -> String {
        match check(does, limits).await {
            CheckVerdict::Problem(ModelProblem {
                kind: ModelProblemKind::Unsafe, detail, ..
            }) => detail,
            other => panic!("{does}: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_verdict_is_the_answer_of_the_process() {
        let CheckVerdict::Usable(facts) = check("usable", PATIENT).await else { panic!("usable") };
        assert_eq!((facts.parameters, facts.total_bytes), (7, 120));
        for (does, detail) in
            [("broken", "tokenizer.json is not valid"), ("complains", "after complaints")]
        {
            let problem = ModelProblem {
                kind: ModelProblemKind::Broken,
                what: None,
                detail: detail.to_owned(),
            };
            assert_eq!(check(does, PATIENT).await, CheckVerdict::Problem(problem));
        }
    }

    #[tokio::test]
    async fn a_process_that_does_not_end_is_killed() {
        let limits = CheckLimits { time: Duration::from_millis(200), ..PATIENT };
        for does in ["hangs", "hangs-silently"] {
            let detail = unsafe_detail(does, limits).await;
            assert_eq!(detail, "opening its files takes more than 0.2 s");
        }
    }

    #[tokio::test]
    async fn a_process_that_takes_too_much_memory_is_killed() {
        let limits = CheckLimits { memory_bytes: 100_000_000, ..PATIENT };
        let expected = "opening its files takes more than 0.1 GB of memory";
        for does in ["grows", "runs-out-of-memory"] {
            assert_eq!(unsafe_detail(does, limits).await, expected, "{does}");
        }
    }

    #[test]
    fn a_limit_is_named_in_one_figure() {
        for (bytes, expected) in
            [(MEMORY_BYTES, "2 GB"), (100_000_000, "0.1 GB"), (999_000_000, "1 GB")]
        {
            assert_eq!(gigabytes(bytes), expected);
        }
    }

    #[tokio::test]
    async fn a_process_that_crashes_makes_its_model_unsafe() {
        for does in ["killed", "aborts", "panics"] {
            let detail = unsafe_detail(does, PATIENT).await;
            assert!(detail.contains("crashed"), "{does}: {detail}");
        }
    }

    #[tokio::test]
    async fn another_program_says_nothing_about_a_model() {
        for does in ["refuses", "says-nothing", "garbage", "endless"] {
            let verdict = check(does, PATIENT).await;
            assert!(matches!(verdict, CheckVerdict::NotChecked(_)), "{does}: {verdict:?}");
        }
        let checker = Checker { program: PathBuf::from("/no/such/program"), limits: PATIENT };
        let verdict = checker.check(Path::new("/models/usable")).await;
        let CheckVerdict::NotChecked(reason) = verdict else { panic!("{verdict:?}") };
        assert!(reason.contains("/no/such/program"), "{reason}");
    }

    #[tokio::test]
    async fn the_process_knows_only_what_it_needs() {
        let CheckVerdict::Problem(problem) = check("environment", PATIENT).await else {
            panic!("the script answers with its variables");
        };
        // The shell sets some itself.
        let own = [MEMORY_VARIABLE, "OPENBLAS_NUM_THREADS", "PWD", "OLDPWD", "SHLVL", "_"];
        for name in problem.detail.split_whitespace() {
            assert!(own.contains(&name) || KEPT_VARIABLES.contains(&name), "{name} is passed on");
        }
        assert!(problem.detail.contains(MEMORY_VARIABLE), "{}", problem.detail);
    }
}
