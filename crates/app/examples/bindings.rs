//! Prints what the interface takes over from Rust: `bindings wire` the wire types, `bindings
//! settings` the table of settings. `cargo xtask bindings` writes them to their files in `ui/src`.

fn main() -> Result<(), String> {
    let file = std::env::args().nth(1).unwrap_or_default();
    match file.as_str() {
        "wire" => print!("{}", cairn_app::typescript()),
        "settings" => print!("{}", cairn_app::typescript_settings()),
        _ => return Err(format!("{file:?} is neither `wire` nor `settings`")),
    }
    Ok(())
}
