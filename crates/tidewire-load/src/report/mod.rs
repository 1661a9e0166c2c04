//! What a run found, for programs, for readers and for the terminal.
