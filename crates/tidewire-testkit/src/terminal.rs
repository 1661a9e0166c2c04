//! A pseudo-terminal with a test as its user.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Opens a terminal of 80 columns and 24 rows. The first end types and reads the screen. The second end is the
/// program's.
#[must_use]
pub fn open_terminal() -> (File, OwnedFd) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&person).expect("it is ours");
    unlockpt(&person).expect("it is ours");
    let path = ptsname(&person, Vec::new()).expect("it has a name");
    let program =
        open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its other end opens");
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&program, size).expect("it takes a size");
    (File::from(person), program)
}
