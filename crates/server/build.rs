//! Has the interface embedded anew when it was built anew.

use std::path::Path;

fn main() {
    let dist = Path::new("../../ui/dist");
    // A watched path that is missing would make cargo build this crate again every time. The folder
    // is no source: git ignores it.
    if let Err(error) = std::fs::create_dir_all(dist) {
        println!("cargo:warning=ui/dist cannot be made ({error})");
    }
    println!("cargo:rerun-if-changed={}", dist.display());
}
