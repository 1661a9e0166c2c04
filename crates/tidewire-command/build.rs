//! Passes the commit of the build to the programs, for `--version` and for their reports.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = commit().unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=TIDEWIRE_COMMIT={commit}");
    println!("cargo:rerun-if-changed=build.rs");
}

/// Returns the short hash of the checked-out commit; `None` without git, or outside a checkout of this project.
fn commit() -> Option<String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // A copy of these sources inside another project's repository must not report that project's commit.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != workspace.canonicalize().ok()? {
        return None;
    }
    // The log of HEAD grows with every commit and checkout. A path that does not exist would make cargo run
    // this script each time, hence the check.
    for name in ["logs/HEAD", "HEAD"] {
        // git prints the path relative to this package. Clones that share a build directory also share this script's
        // output.
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(env!("CARGO_MANIFEST_DIR")).join(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
