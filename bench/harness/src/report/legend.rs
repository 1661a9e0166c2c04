//! The legend of `bench.html`: the marks of a row, and how a ratio is made.

use std::fmt::Write as _;

use tidewire_load::compare::{STOLEN_PCT_MAX, WAITED_PCT_MAX};
use tidewire_load::format::markup;

use super::DRIVER_BOUND_PCT_MIN;

/// The words of the page, and how its ratios are made.
pub(super) fn write(page: &mut String) {
    page.push_str("<section id=\"words\"><h2>How to read this</h2>\n<dl class=\"facts\">");
    let stolen = format!(
        "the host took more than {STOLEN_PCT_MAX:.0} % of the machine's time in one of the runs"
    );
    let waited = format!(
        "in one of the runs the server or the driver waited for a core that other programs used, for more than {WAITED_PCT_MAX:.0} % of the window"
    );
    let driver_bound = format!(
        "the driver was {DRIVER_BOUND_PCT_MIN:.0} % busy or more, and busier than its server: the figure is the driver's, and the ratio \
         does not compare the servers. Compare their processor time"
    );
    let words = [
        (
            "limit",
            "a bare loop that moves the same bytes in the same run and does nothing else; 100 % is as fast as this loop",
        ),
        ("ratio", RATIO),
        ("stolen", &stolen),
        ("waited", &waited),
        ("driver-bound", &driver_bound),
        (
            "limit passed",
            "The bare loop was certainly slower than Tidewire or a peer, so it is no limit",
        ),
        (
            "interval",
            "of the median, as near to 95 % as the number of rounds allows",
        ),
    ];
    for (word, meaning) in words {
        let _ = write!(
            page,
            "<div><dt>{word}</dt><dd>{}</dd></div>",
            markup(meaning)
        );
    }
    page.push_str("</dl></section>\n");
}

/// How ratios are made, for the legend.
const RATIO: &str = "the median of the rounds' ratios: in each round both sides run one after the other, their figures are divided, and the \
                     median of these quotients is shown. It is not the ratio of the two medians in the table, and may differ from \
                     it. In rows that search for the highest rate, rounds are not paired, and the ratio of the medians is shown";
