# Every target is one chore of xtask/, which sets up what it needs and says what it cannot.

.PHONY: app bundle test pictures soak interop lint bench macos-check starter rust

# SOAK_MINUTES says how long `make soak` takes.
app bundle test pictures soak interop lint bench macos-check starter: rust
	@cargo xtask $@

# xtask is a Rust program, so a compiler and a linker are all that it cannot set up itself.
rust:
	@command -v cargo >/dev/null || { \
	  echo "Cairn needs Rust 1.94 or newer. Install it with:"; \
	  echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"; exit 1; } >&2
	@command -v cc >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev; \
	else \
	  echo "Rust needs a linker. Install one with: sudo apt-get install gcc libc6-dev (on a Mac: xcode-select --install)"; exit 1; \
	fi >&2
