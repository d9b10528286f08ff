//! Prints the TypeScript twin of the wire types; `cargo xtask bindings` writes it to
//! `ui/src/platform/wire.ts`.

fn main() {
    print!("{}", cairn_app::typescript());
}
