//! Tests of the example `market_data`, with fewer updates and subscribers than its defaults.

use std::process::Command;

const SYMBOLS: u64 = 10_000;
const ROUNDS: u64 = 10;
const SUBSCRIBERS: usize = 15;

/// Each subscriber receives every update or a report of its loss.
#[test]
fn after_a_stall_every_symbol_is_at_its_newest_and_every_update_accounted_for() {
    let output = Command::new(env!("CARGO_BIN_EXE_market_data"))
        .arg("tcp://127.0.0.1:0")
        .args([SYMBOLS, ROUNDS, 200_000].map(|number| number.to_string()))
        .arg(SUBSCRIBERS.to_string())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("md.")).collect();
    assert_eq!(lines.len(), SUBSCRIBERS, "{text}");
    for (index, line) in lines.iter().enumerate() {
        let (pattern, account) = line.split_once(": ").expect("a pattern");
        let symbols = if index % 10 == 0 {
            SYMBOLS
        } else {
            SYMBOLS / 10
        };
        assert_eq!(pattern == "md.>", symbols == SYMBOLS, "{line}");
        let words = account.split_whitespace().map(str::parse);
        let numbers: Vec<u64> = words.filter_map(Result::ok).collect();
        let [newest, of, delivered, lost, published] = numbers[..] else {
            panic!("{line}");
        };
        assert_eq!((newest, of), (symbols, symbols), "{line}");
        assert_eq!(
            (delivered + lost, published),
            (symbols * ROUNDS, symbols * ROUNDS),
            "{line}"
        );
        // The first subscriber stalled, so its updates were conflated.
        assert!(index > 0 || lost > 0, "{line}");
    }
}
