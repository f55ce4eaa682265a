//! Builds the BPF object into `OUT_DIR`, so that the helper carries it inside.

use std::{env, error::Error, path::PathBuf, process::Command};

fn main() -> Result<(), Box<dyn Error>> {
    let ebpf = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../ebpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", ebpf.display());
    println!(
        "cargo::rerun-if-changed={}",
        ebpf.join("../Cargo.lock").display()
    );
    // OUT_DIR is TARGET/PROFILE/build/PACKAGE/out: one build of `core` serves all profiles.
    let shared = out.ancestors().nth(4).unwrap_or(&out).join("ebpf");
    let status = Command::new(ebpf.join("build.sh"))
        .arg(&out)
        .env("EBPF_TARGET_DIR", shared)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err("ebpf/build.sh failed; it says why above".into())
    }
}
