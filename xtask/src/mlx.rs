//! MLX on Linux: replaces mlx-sys's build script, which only works on a Mac.
//!
//! ```text
//! target/mlx/
//!   wheel/        the mlx-cpu wheel: headers, libmlx.so, CMake package; its reference BLAS replaced by OpenBLAS
//!   mlxc/         libmlxc.a, built from the mlx-c sources that ship inside the mlx-sys crate
//!   bindings/     bindings.rs, what mlx-sys includes
//!   cargo.toml    cargo settings that name the three; .cargo/config.toml includes it
//! ```
//! `cargo.toml` is written last, so it only exists if everything else does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::fetch::{self, Wheel};
use crate::{process, root, system};

/// mlx-rs 0.33.0 → mlx-sys 0.7.0 → mlx-c 0.7.0 → MLX 0.32.2: these fit together and only these.
const MLX: Wheel = Wheel {
    package: "mlx-cpu",
    version: "0.32.2",
    file: "mlx_cpu-0.32.2-py3-none-manylinux_2_35_x86_64.whl",
    sha256: "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878",
};

/// Increase it when this file builds something else from the same inputs.
const RECIPE: u32 = 2;

const OPENBLAS: &str = "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0";

/// Builds `target/mlx` unless it is up to date.
pub fn make() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("off the Mac, MLX is set up for x86-64 Linux only");
    }
    system::ensure(system::Part::Engine)?;
    let folder = root().join("target/mlx");
    let settings = folder.join("cargo.toml");
    let stamp =
        format!("# {} {}, recipe {RECIPE}, {}\n", MLX.package, MLX.version, folder.display());
    if fs::read_to_string(&settings).is_ok_and(|text| text.starts_with(&stamp)) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;

    fetch::unpack(&MLX, &folder.join("wheel"))?;
    use_openblas(&folder.join("wheel"))?;
    let sources = mlx_c_sources()?;
    build_mlx_c(&sources, &folder)?;
    write_bindings(&sources, &folder.join("bindings"))?;
    fs::write(&settings, stamp + &cargo_settings(&folder))?;
    eprintln!("MLX {} is ready in {}", MLX.version, folder.display());
    Ok(())
}

/// Does nothing: MLX computes on the CPU here.
pub fn put_metal_library(_folder: &Path) -> Result<()> {
    Ok(())
}

/// The wheel brings netlib's reference BLAS (about 3 GFLOP/s); OpenBLAS has the same interface and
/// is some fifty times faster.
pub fn use_openblas(wheel: &Path) -> Result<()> {
    ensure!(Path::new(OPENBLAS).exists(), "{OPENBLAS} is missing: install libopenblas0-pthread");
    let libraries = wheel.join("mlx_cpu.libs");
    for entry in
        fs::read_dir(&libraries).with_context(|| format!("cannot list {}", libraries.display()))?
    {
        let path = entry?.path();
        let is_blas =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libblas-"));
        if is_blas {
            fs::remove_file(&path)?;
            std::os::unix::fs::symlink(OPENBLAS, &path)?;
            return Ok(());
        }
    }
    bail!("the {} wheel has no libblas to replace", MLX.package)
}

/// The mlx-c sources inside the mlx-sys crate that Cargo.lock names.
fn mlx_c_sources() -> Result<PathBuf> {
    let metadata = process::output(
        Command::new(env!("CARGO")).current_dir(root()).args(["metadata", "--format-version=1"]),
    )?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "mlx-sys")
        .and_then(|package| package["manifest_path"].as_str())
        .and_then(|manifest| Path::new(manifest).parent())
        .map(|folder| folder.join("src/mlx-c"))
        .context("Cargo.lock names no mlx-sys")
}

fn build_mlx_c(sources: &Path, folder: &Path) -> Result<()> {
    eprintln!("building mlx-c");
    let build = folder.join("build");
    let native = root().join("xtask/native");
    let flags = format!("-include {} -DFMT_HEADER_ONLY", native.join("linux_compat.h").display());
    process::run(
        Command::new("cmake")
            .args([
                "-DCMAKE_BUILD_TYPE=Release",
                "-DMLX_C_USE_SYSTEM_MLX=ON",
                "-DMLX_C_BUILD_EXAMPLES=OFF",
                "-Wno-dev",
            ])
            .arg(format!("-DCMAKE_PREFIX_PATH={}", folder.join("wheel/mlx").display()))
            .arg(format!("-DCMAKE_CXX_FLAGS={flags}"))
            .arg("-S")
            .arg(sources)
            .arg("-B")
            .arg(&build)
            .stdout(std::io::stderr()),
    )?;
    let jobs = std::thread::available_parallelism().map_or(2, |count| count.get());
    process::run(
        Command::new("cmake")
            .arg("--build")
            .arg(&build)
            .args(["--target", "mlxc", "--parallel", &jobs.to_string()])
            .stdout(std::io::stderr()),
    )?;
    let library = folder.join("mlxc/libmlxc.a");
    fs::create_dir_all(folder.join("mlxc"))?;
    fs::copy(build.join("libmlxc.a"), &library)?;
    let object = build.join("mach_time.o");
    process::run(
        Command::new("cc")
            .args(["-O2", "-fPIC", "-c"])
            .arg(native.join("mach_time.c"))
            .arg("-o")
            .arg(&object),
    )?;
    process::run(
        Command::new("ar").arg("rs").arg(&library).arg(&object).stderr(std::process::Stdio::null()),
    )?;
    fs::remove_dir_all(&build)?;
    Ok(())
}

fn write_bindings(sources: &Path, folder: &Path) -> Result<()> {
    eprintln!("writing bindings");
    let mut headers: Vec<PathBuf> = fs::read_dir(sources.join("mlx/c"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers.sort();
    let mut builder = bindgen::Builder::default()
        .clang_arg(format!("-I{}", sources.display()))
        .clang_arg(format!("-include{}", root().join("xtask/native/linux_compat.h").display()))
        .blocklist_function("malloc")
        .blocklist_function("realloc")
        // mlx-rs expects float16_t to be a struct around its bits, and bfloat16_t to be a plain u16.
        .blocklist_type("float16_t")
        .blocklist_type("bfloat16_t")
        .raw_line(
            "#[repr(C)] #[derive(Debug, Clone, Copy, Default)] pub struct float16_t(pub u16);",
        )
        .raw_line("pub type bfloat16_t = u16;");
    for header in &headers {
        builder = builder.header(header.to_string_lossy());
    }
    fs::create_dir_all(folder)?;
    builder
        .generate()
        .context("bindgen cannot read mlx-c's headers")?
        .write_to_file(folder.join("bindings.rs"))?;
    Ok(())
}

/// Besides the override itself: two run paths. The relative one is first, so a program in a
/// target/<profile>/ that was moved with its target/mlx never loads what lies at the old place.
/// Tests are a folder deeper, and need the other.
fn cargo_settings(folder: &Path) -> String {
    let path = folder.display();
    let mut text = String::new();
    // The Mac's target gets the same override, for type-checking from Linux; nothing is linked
    // there.
    for target in ["x86_64-unknown-linux-gnu", "aarch64-apple-darwin"] {
        text += &format!(
            "[target.{target}.mlx]\n\
             rustc-link-search = [\"native={path}/mlxc\", \"native={path}/wheel/mlx/lib\"]\n\
             rustc-link-lib = [\"static=mlxc\", \"dylib=mlx\", \"dylib=stdc++\"]\n\
             rustc-env = {{ OUT_DIR = \"{path}/bindings\" }}\n\n"
        );
    }
    // Examples in documentation are programs too, with flags of their own.
    let rpath = format!("-Clink-arg=-Wl,-rpath,{path}/wheel/mlx/lib");
    text += &format!(
        "[target.x86_64-unknown-linux-gnu]\n\
         rustflags = [\"-Clink-arg=-Wl,-rpath,$ORIGIN/../mlx/wheel/mlx/lib\", \"{rpath}\"]\n\
         rustdocflags = [\"{rpath}\"]\n"
    );
    text
}
