//! The results as a table in Markdown, which is what a terminal shows, too.

use super::results::{BenchReport, Figures, RowResult, SuiteResult};
use crate::format::thousands;

impl BenchReport {
    /// A heading and a table for each suite.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        for suite in &self.suites {
            text.push_str(&suite.to_markdown());
            text.push('\n');
        }
        text
    }
}

impl SuiteResult {
    /// A heading and its table.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = format!("## {}\n\n", self.name);
        text.push_str(
            "| row | unit | limit | Tidewire | of the limit | against peers | CPU ns/msg server, client \
             | bytes/msg server, client | RSS MiB | lost |\n|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            text.push_str(&row.to_markdown());
        }
        text
    }
}

impl RowResult {
    fn to_markdown(&self) -> String {
        let ours = &self.tidewire;
        let cells = [
            self.id.clone(),
            self.unit.clone(),
            self.limit.as_ref().map_or_else(none, median),
            median(ours),
            self.limit_ratio
                .map_or_else(none, |ratio| format!("{:.0} %", ratio * 100.0)),
            self.peers_cell(),
            pair(ours.server_cpu_ns_per_msg, ours.client_cpu_ns_per_msg),
            pair(
                ours.allocated_bytes_per_msg.server,
                ours.allocated_bytes_per_msg.client,
            ),
            ours.rss_bytes_max.map_or_else(none, |bytes| {
                format!("{:.1}", bytes as f64 / f64::from(1 << 20))
            }),
            self.loss_cell(),
        ];
        format!("| {} |\n", cells.join(" | "))
    }

    fn peers_cell(&self) -> String {
        let peers: Vec<String> = self
            .peers
            .iter()
            .map(|(name, peer)| match (peer.ratio, &peer.figures.error) {
                (Some(ratio), _) => format!("{name} {ratio:.2}×"),
                (None, Some(_)) => format!("{name} failed"),
                (None, None) => format!("{name} –"),
            })
            .collect();
        if peers.is_empty() {
            none()
        } else {
            peers.join(", ")
        }
    }

    fn loss_cell(&self) -> String {
        let faults: Vec<String> = [("", Some(&self.tidewire)), ("limit ", self.limit.as_ref())]
            .into_iter()
            .filter_map(|(who, figures)| Some(format!("**{who}{}**", figures?.fault()?)))
            .collect();
        if faults.is_empty() {
            thousands(self.tidewire.lost)
        } else {
            faults.join(", ")
        }
    }
}

fn median(figures: &Figures) -> String {
    let (Some(median), Some([low, high])) = (figures.median, figures.ci95) else {
        return none();
    };
    format!("{} [{}–{}]", figure(median), figure(low), figure(high))
}

fn pair(server: Option<f64>, client: Option<f64>) -> String {
    if server.is_none() && client.is_none() {
        return none();
    }
    let one = |value: Option<f64>| value.map_or_else(none, figure);
    format!("{}, {}", one(server), one(client))
}

/// Three significant digits, or all of a large number with separators.
fn figure(value: f64) -> String {
    match value {
        value if value >= 1_000.0 => thousands(value.round() as u64),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn none() -> String {
    "–".to_owned()
}
