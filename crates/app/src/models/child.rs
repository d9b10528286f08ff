//! Processes of the app's own program, for what must not happen in the app: opening files that nobody
//! has looked into yet (`check`), and computing with a second engine (`measuring`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};

use cairn_engine::use_metal_library;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// The absolute paths behind the names of a task; none if the arguments are others. A name of a model
/// is for the command line, which knows the folders that models are in.
pub(super) fn asked_paths<const N: usize>(
    task: &[&str],
    arguments: &[OsString],
) -> Option<[PathBuf; N]> {
    let (names, paths) = arguments.split_at_checked(task.len())?;
    let is_asked = names.iter().zip(task).all(|(given, name)| given == name);
    let paths: [&OsString; N] = paths.iter().collect::<Vec<_>>().try_into().ok()?;
    let paths = paths.map(PathBuf::from);
    (is_asked && paths.iter().all(|path| path.is_absolute())).then_some(paths)
}

/// Makes this process ready to compute. If it cannot, says why and returns the exit status.
pub(super) fn prepare_device() -> Result<(), ExitCode> {
    use_metal_library().map_err(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

/// Variables that a process keeps: where libraries are, and which device MLX sees. It has no
/// token of the hub and no data folder.
pub(super) const KEPT_VARIABLES: &[&str] = &[
    "PATH",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
];
/// An answer is shorter.
const MAX_OUTPUT_BYTES: usize = 64 << 10;

/// The program with a task and its paths. The process is killed when it is dropped.
pub(super) fn command(program: &Path, task: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(program);
    command.args(task).args(paths).env_clear();
    let kept = KEPT_VARIABLES.iter();
    command.envs(kept.filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// How a process ended, and what it wrote.
pub(super) struct Exit {
    pub(super) status: ExitStatus,
    pub(super) answer: Vec<u8>,
    /// The beginning of what it wrote as complaints.
    pub(super) complaint: Vec<u8>,
}

/// Waits until the process has ended and its output is read, or it has written more than any answer
/// has.
pub(super) async fn wait(child: &mut Child) -> Result<Exit, String> {
    let lost = |error: std::io::Error| format!("its process is lost: {error}");
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let answer = async {
        let Some(stdout) = stdout else { return Ok(Vec::new()) };
        let answer = read(stdout).await.map_err(lost)?;
        match answer.len() {
            0..=MAX_OUTPUT_BYTES => Ok(answer),
            _ => Err("its process says more than an answer".to_owned()),
        }
    };
    let complaint = async {
        let Some(mut stderr) = stderr else { return Ok(Vec::new()) };
        let beginning = read(&mut stderr).await.map_err(lost)?;
        // The rest is read too: a process waits while nobody takes what it writes.
        tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await.map_err(lost)?;
        Ok(beginning)
    };
    let status = async { child.wait().await.map_err(lost) };
    let (answer, complaint, status) = tokio::try_join!(answer, complaint, status)?;
    Ok(Exit { status, answer, complaint })
}

/// Reads to the end, or one byte more than an answer may have.
async fn read(from: impl AsyncRead + Unpin) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_OUTPUT_BYTES as u64 + 1).read_to_end(&mut bytes).await?;
    Ok(bytes)
}
