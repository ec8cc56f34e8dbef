//! Links the command without position independence, so that no call of it rewrites its addresses first (ADR 0017).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let env = |name| std::env::var(name).unwrap_or_default();
    // The start-up code of other C libraries is chosen by rustc, for a position-independent file.
    if env("CARGO_CFG_TARGET_ENV") == "gnu" && env("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
