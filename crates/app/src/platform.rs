//! Questions to the operating system: this process's memory, how short the system is of it,
//! private folders, how many files may be open. The only file of this crate that distinguishes systems.

use std::fs::File;
use std::io;
use std::path::Path;

use cairn_engine::MemoryPressure;
// Below, because models are imported and converted without this crate too.
pub(crate) use cairn_formats::free_disk_bytes;

/// Memory of this process, in bytes; zeros if unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ProcessMemory {
    pub(crate) now: u64,
    /// The peak since the process started.
    pub(crate) peak: u64,
}

/// The number that the system's own monitor shows: resident memory on Linux, physical footprint on
/// macOS.
pub(crate) fn process_memory() -> ProcessMemory {
    read_process_memory().unwrap_or_default()
}

#[cfg(target_os = "linux")]
fn read_process_memory() -> Option<ProcessMemory> {
    parse_status(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Memory of another process of this user, in bytes, as its own monitor shows it; none if it has
/// ended or the system does not say.
pub(crate) fn memory_of(process: u32) -> Option<u64> {
    read_memory_of(process)
}

#[cfg(target_os = "linux")]
fn read_memory_of(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    parse_status(&status).map(|memory| memory.now)
}

#[cfg(target_os = "macos")]
fn read_memory_of(process: u32) -> Option<u64> {
    use libproc::libproc::pid_rusage::{RUsageInfoV4, pidrusage};

    let usage: RUsageInfoV4 = pidrusage(i32::try_from(process).ok()?).ok()?;
    Some(usage.ri_phys_footprint)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn read_memory_of(_process: u32) -> Option<u64> {
    None
}

/// Whether this system keeps the limit of memory under which a model is checked.
pub const KEEPS_MEMORY_LIMIT: bool = cfg!(target_os = "linux");

/// Lets every later allocation of this process fail that would take it above so many bytes. Linux
/// only: macOS takes such a limit and does not keep it.
#[cfg(target_os = "linux")]
pub(crate) fn limit_memory(bytes: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};

    // Not the address space: MLX and drivers reserve more of it than they use.
    setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    Ok(())
}

/// Lets every later allocation of this process fail that would take it above so many bytes. Linux
/// only: macOS takes such a limit and does not keep it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn limit_memory(_bytes: u64) -> io::Result<()> {
    Ok(())
}

/// Lets this process open as many files as the system allows: a program that launchd starts may open
/// 256, and each connection, model and chunk of saved context is one. Call it once, at the start.
#[cfg(unix)]
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};

    /// `OPEN_MAX` of <sys/syslimits.h>: macOS refuses more, also where it says that there is no limit.
    const MOST_ON_MACOS: u64 = 10_240;

    let mut limit = getrlimit(Resource::Nofile);
    let most = if cfg!(target_os = "macos") { Some(MOST_ON_MACOS) } else { None };
    let most = limit.maximum.into_iter().chain(most).min();
    if most.is_none_or(|most| limit.current.is_some_and(|current| current < most)) {
        limit.current = most;
        // With the old limit Cairn runs all the same.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Lets this process open as many files as the system allows.
#[cfg(not(unix))]
pub fn raise_file_limit() {}

/// Reads `VmRSS` and `VmHWM` of proc_pid_status(5), which are in units of 1024 bytes.
#[cfg(target_os = "linux")]
fn parse_status(status: &str) -> Option<ProcessMemory> {
    let field = |name: &str| -> Option<u64> {
        let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(ProcessMemory { now: field("VmRSS:")?, peak: field("VmHWM:")? })
}

#[cfg(target_os = "macos")]
fn read_process_memory() -> Option<ProcessMemory> {
    use libproc::libproc::pid_rusage::{RUsageInfoV4, pidrusage};

    let usage: RUsageInfoV4 = pidrusage(i32::try_from(std::process::id()).ok()?).ok()?;
    Some(ProcessMemory { now: usage.ri_phys_footprint, peak: usage.ri_lifetime_max_phys_footprint })
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn read_process_memory() -> Option<ProcessMemory> {
    None
}

/// The machine's memory, in bytes; that of a small machine if unknown.
pub(crate) fn memory_bytes() -> u64 {
    read_memory_bytes().unwrap_or(8 << 30)
}

/// The machine's memory, in bytes; 0 if unknown.
pub(crate) fn machine_memory_bytes() -> u64 {
    read_memory_bytes().unwrap_or(0)
}

/// How much of the machine's memory all programs use, without what the system would give back at once;
/// none if it does not say.
#[cfg(target_os = "linux")]
pub(crate) fn used_memory_bytes() -> Option<u64> {
    parse_used_memory(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Reads proc_meminfo(5).
#[cfg(target_os = "linux")]
fn parse_used_memory(info: &str) -> Option<u64> {
    let bytes = |field: &str| -> Option<u64> {
        let rest = info.lines().find_map(|line| line.strip_prefix(field))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    bytes("MemTotal:")?.checked_sub(bytes("MemAvailable:")?)
}

/// How much of the machine's memory all programs use, without what the system would give back at once;
/// none if it does not say.
#[cfg(target_os = "macos")]
pub(crate) fn used_memory_bytes() -> Option<u64> {
    // The percentage that memory_pressure(1) prints as free.
    let free = sysctl_number("kern.memorystatus_level")?.min(100);
    Some(read_memory_bytes()? / 100 * (100 - free))
}

/// How much of the machine's memory all programs use; the system does not say.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn used_memory_bytes() -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
fn read_memory_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(target_os = "macos")]
fn read_memory_bytes() -> Option<u64> {
    sysctl_number("hw.memsize")
}

/// A number that sysctl(3) names.
#[cfg(target_os = "macos")]
fn sysctl_number(name: &str) -> Option<u64> {
    use sysctl::Sysctl;

    sysctl::Ctl::new(name).ok()?.value_string().ok()?.parse().ok()
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn read_memory_bytes() -> Option<u64> {
    None
}

/// How short of memory the system is, to be asked every few seconds; none if it does not say. The
/// level is the one that the kernel reports to programs which wait for its memory-pressure events.
#[cfg(target_os = "macos")]
pub(crate) fn memory_pressure() -> Option<MemoryPressure> {
    // NOTE_MEMORYSTATUS_PRESSURE_NORMAL, _WARN and _CRITICAL of <sys/event.h>.
    match sysctl_number("kern.memorystatus_vm_pressure_level")? {
        4 => Some(MemoryPressure::Critical),
        2 => Some(MemoryPressure::Warning),
        _ => Some(MemoryPressure::Normal),
    }
}

/// How short of memory the system is, to be asked every few seconds; none if it does not say.
#[cfg(target_os = "linux")]
pub(crate) fn memory_pressure() -> Option<MemoryPressure> {
    parse_pressure(&std::fs::read_to_string("/proc/pressure/memory").ok()?)
}

/// Reads the kernel's pressure stall information: the part of the last ten seconds in which some
/// task, or every task, waited for memory.
#[cfg(target_os = "linux")]
fn parse_pressure(text: &str) -> Option<MemoryPressure> {
    /// In percent.
    const STALLED: f64 = 10.0;
    let average = |tasks: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(tasks))?;
        line.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
    };
    Some(match (average("some ")?, average("full ")?) {
        (_, full) if full >= STALLED => MemoryPressure::Critical,
        (some, _) if some >= STALLED => MemoryPressure::Warning,
        _ => MemoryPressure::Normal,
    })
}

/// How short of memory the system is; it does not say.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn memory_pressure() -> Option<MemoryPressure> {
    None
}

/// The name and version of the system; asking may start a program.
pub(crate) fn system_version() -> String {
    let version = read_system_version().unwrap_or_else(|| "unknown version".to_owned());
    format!("{} {} ({version})", std::env::consts::OS, std::env::consts::ARCH)
}

#[cfg(target_os = "macos")]
fn read_system_version() -> Option<String> {
    let asked =
        std::process::Command::new("/usr/bin/sw_vers").arg("-productVersion").output().ok()?;
    Some(String::from_utf8(asked.stdout).ok()?.trim().to_owned())
}

#[cfg(not(target_os = "macos"))]
fn read_system_version() -> Option<String> {
    let release = std::fs::read_to_string("/etc/os-release").ok()?;
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

/// Ends the process at once: nothing is dropped and no exit handler runs. For a process whose engine
/// still computes, because MLX's exit handlers abort the process while MLX is busy.
#[cfg(unix)]
pub fn exit_now(code: i32) -> ! {
    signal_hook::low_level::exit(code)
}

/// Ends the process.
#[cfg(not(unix))]
pub fn exit_now(code: i32) -> ! {
    std::process::exit(code)
}

/// Opens a file to be locked, and creates it if need be. Anyone who can open it could hold its
/// lock, so only its owner can.
pub(crate) fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // Earlier versions let everyone read it. If that cannot be changed, it locks all the same.
    #[cfg(unix)]
    let _ = file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600));
    Ok(file)
}

/// Creates a folder and its parents. A new one is readable by its owner only; an existing one is
/// not changed.
pub(crate) fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|error| match error.kind() {
        // "File exists" would be misleading: a folder was wanted, and a file is there.
        io::ErrorKind::AlreadyExists => {
            io::Error::new(io::ErrorKind::NotADirectory, "it is a file, not a folder")
        }
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn process_memory_is_read_from_the_status_file() {
        fn check(status: &str, expected: Option<(u64, u64)>) {
            assert_eq!(
                parse_status(status).map(|memory| (memory.now, memory.peak)),
                expected,
                "for {status:?}"
            );
        }
        check("Name:\tcairn\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n", Some((1 << 20, 2 << 20)));
        check("VmRSS:\t1024 kB\n", None);
        check("VmHWM:\t1 kB\nVmRSS:\tmany kB\n", None);
        check("VmHWM:\t1 kB\nVmRSS:\t18446744073709551615 kB\n", None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn used_memory_is_what_is_not_available() {
        let info = "MemTotal:       4 kB\nMemFree:   1 kB\nMemAvailable:    3 kB\n";
        assert_eq!(parse_used_memory(info), Some(1024));
        assert_eq!(parse_used_memory("MemTotal: 4 kB\n"), None);
        assert_eq!(parse_used_memory("MemTotal: 4 kB\nMemAvailable: 5 kB\n"), None);
        assert!(used_memory_bytes().is_some_and(|used| used < machine_memory_bytes()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_pressure_is_read_from_stalls() {
        fn check(some: &str, full: &str, expected: Option<MemoryPressure>) {
            let text = format!(
                "some {some} avg60=99.00 avg300=0.00 total=8\nfull {full} avg60=99.00 avg300=0.00 total=7\n"
            );
            assert_eq!(parse_pressure(&text), expected, "{text}");
        }
        check("avg10=0.00", "avg10=0.00", Some(MemoryPressure::Normal));
        check("avg10=9.99", "avg10=9.99", Some(MemoryPressure::Normal));
        check("avg10=10.00", "avg10=9.99", Some(MemoryPressure::Warning));
        check("avg10=98.10", "avg10=45.00", Some(MemoryPressure::Critical));
        check("avg10=many", "avg10=0.00", None);
        check("", "avg10=0.00", None);
        assert_eq!(parse_pressure(""), None);
    }

    #[test]
    fn this_process_has_memory() {
        let memory = process_memory();
        assert!(memory.now > 0 && memory.peak >= memory.now / 2, "{memory:?}");
        assert!(memory_bytes() > memory.now, "{}", memory_bytes());
        assert!(memory_of(std::process::id()).is_some_and(|bytes| bytes > 0));
        assert_eq!(memory_of(u32::MAX), None);
    }
}
