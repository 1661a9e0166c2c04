//! Programs of a few lines that a test writes and then runs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Writes an executable script of the shell with the text `body`, and returns its path.
///
/// Another process writes the file. A child of a concurrent test inherits every open file of this process, and the
/// kernel refuses to run a file that a process may still write to.
pub fn write_script(path: impl AsRef<Path>, body: &str) -> PathBuf {
    let path = path.as_ref();
    let mut writer = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("the shell starts");
    let mut input = writer.stdin.take().expect("its input is a pipe");
    write!(input, "#!/bin/sh\n{body}").expect("the shell reads the script");
    drop(input);
    let status = writer.wait().expect("the shell ends");
    assert!(status.success(), "cannot write {}", path.display());
    path.to_owned()
}
