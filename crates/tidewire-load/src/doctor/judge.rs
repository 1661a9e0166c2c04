//! The findings that follow from the facts. Every limit is a named constant with its reason.

use super::{ClockFacts, CoreFacts, Facts, Finding, Level, LimitFacts};
use crate::format::{mebibytes, thousands};

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let (cores, limits) = (&facts.cores, &facts.limits);
    vec![
        clock(&facts.clock),
        core_count(cores),
        steal(cores),
        governor(cores),
        load(cores),
        evenness(facts),
        wakeup(facts),
        descriptors(limits),
        socket_buffers(limits),
        accept_queue(limits),
        ports(limits),
    ]
}

fn clock(clock: &ClockFacts) -> Finding {
    let source = clock.source.as_deref().unwrap_or("source unknown");
    let (step, cost) = (clock.resolution_ns, clock.cost_ns);
    let is_slow = cost > CLOCK_COST_NS_MAX || step > CLOCK_STEP_NS_MAX;
    let found = format!("{source}, {step} ns steps, {cost:.0} ns a reading");
    finding(
        "clock",
        (good_unless(is_slow, Level::Warning), found),
        "every message reads the clock several times; boot with clocksource=tsc, or choose kvm-clock on a virtual \
         machine, in /sys/devices/system/clocksource/clocksource0",
    )
}

fn core_count(cores: &CoreFacts) -> Finding {
    let (usable, allowed) = (cores.usable, cores.allowed);
    let mut found = format!("{usable} usable");
    let (level, remedy) = match usable {
        _ if usable < allowed => {
            found = format!("{usable} usable of {allowed} by a quota");
            (
                Level::Warning,
                "a quota pauses the process for milliseconds when it is used up, which shows as latency; raise \
                 the container's CPU limit to whole cores, or bind it to some",
            )
        }
        1 => (
            Level::Warning,
            "client and server wait for each other's turn, and latencies measure that; use a second machine for the \
             server with --target, or one with 4 cores",
        ),
        2..CORES_ROOMY => (
            Level::Advice,
            "client and server have a core each and share it with everything else: read latencies at 30 to 70 % of \
             the highest rate, not at the highest",
        ),
        _ => (Level::Good, ""),
    };
    finding("cores", (level, found), remedy)
}

fn steal(cores: &CoreFacts) -> Finding {
    let kind = if cores.is_virtual {
        "virtual machine"
    } else {
        "no hypervisor"
    };
    let judged = match cores.steal_pct {
        None => (Level::Good, format!("{kind}, not shown")),
        Some(pct) => (
            at_most(pct, STEAL_PCT_GOOD, STEAL_PCT_MAX),
            format!("{kind}, {pct:.1} % of processor time taken by others"),
        ),
    };
    finding(
        "steal",
        judged,
        "neighbours on the same host use the cores; use dedicated cores or another host, and measure in pairs with \
         `tidewire ab`",
    )
}

fn governor(cores: &CoreFacts) -> Finding {
    let is_other = cores.governors != ["performance"];
    let judged = (
        good_unless(is_other, Level::Advice),
        cores.governors.join(", "),
    );
    finding(
        "governor",
        Some(judged).filter(|_| !cores.governors.is_empty()),
        "cores slow down when idle, so low rates show longer latencies than high ones; as root: \
         echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    )
}

fn load(cores: &CoreFacts) -> Finding {
    let most = cores.usable as f64 * LOAD_SHARE_MAX;
    let judge = |average| {
        let found = format!("load average {average:.2} in the last minute");
        (at_most(average, most, most), found)
    };
    finding(
        "other programs",
        cores.load_average.map(judge),
        "something else runs and takes cores and caches; stop it (`top` shows it) and wait a minute",
    )
}

fn evenness(facts: &Facts) -> Finding {
    let (lost, longest) = (
        facts.fixed_loop.lost_pct,
        facts.fixed_loop.longest_by_median,
    );
    let found = format!(
        "a fixed loop lost {lost:.1} % of its time, its longest piece took {longest:.0} times the median"
    );
    finding(
        "evenness",
        (at_most(lost, LOOP_LOST_PCT_GOOD, LOOP_LOST_PCT_MAX), found),
        "the same work takes unequal time here, through other programs, interrupts or changing frequency: differences \
         of about this size are noise; repeat runs and compare them with `tidewire ab`",
    )
}

fn wakeup(facts: &Facts) -> Finding {
    let late = &facts.wakeup;
    let found = format!(
        "sleeps of 1 ms end {:.0} µs late at p50, {:.0} µs at p99, {:.0} µs at most",
        late.p50_us, late.p99_us, late.max_us
    );
    let level = at_most(late.p99_us, WAKEUP_P99_US_GOOD, WAKEUP_P99_US_MAX);
    finding(
        "wake-ups",
        (level, found),
        "messages are sent that much too late at low rates, which the report shows as send lag; leave a core to the \
         client, or lower the idle states (boot with intel_idle.max_cstate=1 or processor.max_cstate=1)",
    )
}

fn descriptors(limits: &LimitFacts) -> Finding {
    let most = limits.descriptors_max;
    let found = match most {
        u64::MAX => "unlimited".to_owned(),
        most => format!("{} at most", thousands(most)),
    };
    finding(
        "descriptors",
        (at_least(most, DESCRIPTORS_GOOD), found),
        "each agent and each session takes one; raise the hard limit: ulimit -Hn 1048576 as root, or LimitNOFILE= of \
         the service",
    )
}

fn socket_buffers(limits: &LimitFacts) -> Finding {
    let (receive, send) = (
        limits.receive_buffer_bytes_max,
        limits.send_buffer_bytes_max,
    );
    let judge = |(receive, send)| {
        let sizes = [receive, send].map(mebibytes);
        let found = format!("{} to receive and {} to send at most", sizes[0], sizes[1]);
        (at_least(receive.min(send), SOCKET_BUFFER_BYTES_GOOD), found)
    };
    finding(
        "socket buffers",
        receive.zip(send).map(judge),
        "UDP drops what does not fit while the receiver is busy (TCP sizes its own buffers); as root: \
         sysctl -w net.core.rmem_max=8388608 net.core.wmem_max=8388608",
    )
}

fn accept_queue(limits: &LimitFacts) -> Finding {
    let judge = |most| {
        let found = format!("{} connections at most", thousands(most));
        (at_least(most, ACCEPT_QUEUE_GOOD), found)
    };
    finding(
        "accept queue",
        limits.accept_queue_max.map(judge),
        "when many agents connect at once, those that find the queue full try again a second later; as root: \
         sysctl -w net.core.somaxconn=4096",
    )
}

fn ports(limits: &LimitFacts) -> Finding {
    let judge = |count| {
        let found = format!("{} for outgoing connections", thousands(count));
        (at_least(count, PORTS_GOOD), found)
    };
    finding(
        "local ports",
        limits.local_ports.map(judge),
        "so many agents can connect to one address and port, fewer while closed connections linger; as root: \
         sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"",
    )
}

/// A warning above `most`, advice above `good`.
fn at_most(value: f64, good: f64, most: f64) -> Level {
    match value {
        value if value > most => Level::Warning,
        value if value > good => Level::Advice,
        _ => Level::Good,
    }
}

fn at_least(value: u64, good: u64) -> Level {
    good_unless(value < good, Level::Advice)
}

fn good_unless(is_amiss: bool, level: Level) -> Level {
    if is_amiss { level } else { Level::Good }
}

/// The finding of a check; good where the fact is hidden.
fn finding(
    check: &'static str,
    judged: impl Into<Option<(Level, String)>>,
    remedy: &'static str,
) -> Finding {
    let hidden = || (Level::Good, "not shown".to_owned());
    let (level, found) = judged.into().unwrap_or_else(hidden);
    Finding {
        check,
        level,
        found,
        remedy: if level == Level::Good { "" } else { remedy },
    }
}

/// A system call instead of a read of shared memory costs more than this.
const CLOCK_COST_NS_MAX: f64 = 150.0;

/// Deliveries inside a machine take some ten microseconds; coarser steps would round them.
const CLOCK_STEP_NS_MAX: u64 = 1_000;

/// Two for each side: lanes on one, the kernel's work for them on the other.
const CORES_ROOMY: usize = 4;

/// Above this, runs with and without it differ visibly.
const STEAL_PCT_GOOD: f64 = 0.5;

/// Above this share stolen time makes up the p99.
const STEAL_PCT_MAX: f64 = 2.0;

/// The examination itself keeps one core busy only for seconds of the minute.
const LOAD_SHARE_MAX: f64 = 0.5;

/// Lost time of a loop on a quiet machine, in percent.
const LOOP_LOST_PCT_GOOD: f64 = 3.0;

/// Above this even a change of 5 % cannot be told from the machine.
const LOOP_LOST_PCT_MAX: f64 = 10.0;

/// The timer's slack of 50 µs and the way out of a deep idle state.
const WAKEUP_P99_US_GOOD: f64 = 250.0;

/// The send lag at which a step is not valid any more.
const WAKEUP_P99_US_MAX: f64 = 1_000.0;

/// Enough for a scenario of twenty thousand agents with the server on the same machine, and to spare.
const DESCRIPTORS_GOOD: u64 = 65_536;

/// Some milliseconds of 10 Gbit/s.
const SOCKET_BUFFER_BYTES_GOOD: u64 = 4 << 20;

/// The default of the kernel since 5.4.
const ACCEPT_QUEUE_GOOD: u64 = 4_096;

/// The kernel's default range has 28,232.
const PORTS_GOOD: u64 = 28_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Examination, LoopFacts, WakeupFacts};

    type Change = fn(&mut Facts);

    fn quiet() -> Facts {
        Facts {
            cpu: "Ordinary 3000".to_owned(),
            kernel: "6.1".to_owned(),
            clock: ClockFacts {
                source: Some("tsc".to_owned()),
                resolution_ns: 10,
                cost_ns: 22.0,
            },
            cores: CoreFacts {
                allowed: 8,
                usable: 8,
                is_virtual: false,
                steal_pct: Some(0.0),
                governors: vec!["performance".to_owned()],
                load_average: Some(0.1),
            },
            limits: LimitFacts {
                descriptors_max: 1 << 20,
                receive_buffer_bytes_max: Some(8 << 20),
                send_buffer_bytes_max: Some(8 << 20),
                accept_queue_max: Some(4_096),
                local_ports: Some(28_232),
            },
            wakeup: WakeupFacts {
                p50_us: 55.0,
                p99_us: 80.0,
                max_us: 200.0,
            },
            fixed_loop: LoopFacts {
                pieces: 20_000,
                lost_pct: 0.5,
                longest_by_median: 1.2,
            },
        }
    }

    /// The check and level of everything that is not good after a change to the quiet machine.
    fn found(change: impl FnOnce(&mut Facts)) -> Vec<(&'static str, Level)> {
        let mut facts = quiet();
        change(&mut facts);
        let examination = Examination::of(facts);
        let findings = examination.findings.into_iter();
        findings
            .filter(|finding| finding.level != Level::Good)
            .map(|finding| {
                assert!(!finding.remedy.is_empty());
                (finding.check, finding.level)
            })
            .collect()
    }

    #[test]
    fn a_quiet_machine_has_nothing_to_fix() {
        assert_eq!(found(|_| ()), []);
        let examination = Examination::of(quiet());
        assert_eq!(examination.count(Level::Good), 11);
        assert!(
            examination
                .to_text()
                .ends_with("0 to fix before measuring, 0 to consider, 11 good\n")
        );
    }

    #[test]
    fn each_trouble_is_found_alone() {
        use Level::{Advice, Warning};
        let cases: [(Change, &str, Level); 17] = [
            (|facts| facts.clock.cost_ns = 900.0, "clock", Warning),
            (|facts| facts.clock.resolution_ns = 4_000, "clock", Warning),
            (|facts| facts.cores.usable = 4, "cores", Warning),
            (|facts| facts.cores.steal_pct = Some(1.0), "steal", Advice),
            (|facts| facts.cores.steal_pct = Some(7.0), "steal", Warning),
            (
                |facts| facts.cores.governors = vec!["powersave".to_owned()],
                "governor",
                Advice,
            ),
            (
                |facts| facts.cores.load_average = Some(5.0),
                "other programs",
                Warning,
            ),
            (|facts| facts.fixed_loop.lost_pct = 4.0, "evenness", Advice),
            (
                |facts| facts.fixed_loop.lost_pct = 20.0,
                "evenness",
                Warning,
            ),
            (|facts| facts.wakeup.p99_us = 300.0, "wake-ups", Advice),
            (|facts| facts.wakeup.p99_us = 4_000.0, "wake-ups", Warning),
            (
                |facts| facts.limits.descriptors_max = 4_096,
                "descriptors",
                Advice,
            ),
            (
                |facts| facts.limits.send_buffer_bytes_max = Some(212_992),
                "socket buffers",
                Advice,
            ),
            (
                |facts| facts.limits.accept_queue_max = Some(128),
                "accept queue",
                Advice,
            ),
            (
                |facts| facts.limits.local_ports = Some(1_000),
                "local ports",
                Advice,
            ),
            (
                |facts| (facts.cores.allowed, facts.cores.usable) = (1, 1),
                "cores",
                Warning,
            ),
            (
                |facts| (facts.cores.allowed, facts.cores.usable) = (2, 2),
                "cores",
                Advice,
            ),
        ];
        for (change, check, level) in cases {
            assert_eq!(found(change), [(check, level)], "{check}");
        }
    }

    #[test]
    fn what_a_container_hides_is_no_trouble() {
        let hidden = found(|facts| {
            facts.clock.source = None;
            facts.cores.steal_pct = None;
            facts.cores.governors.clear();
            facts.cores.load_average = None;
            facts.limits.receive_buffer_bytes_max = None;
            facts.limits.accept_queue_max = None;
            facts.limits.local_ports = None;
        });
        assert_eq!(hidden, []);
    }

    #[test]
    fn the_worst_comes_first_with_its_remedy() {
        let mut facts = quiet();
        facts.limits.descriptors_max = 1_024;
        facts.wakeup.p99_us = 5_000.0;
        let text = Examination::of(facts).to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("FIX      wake-ups"));
        assert!(lines[1].trim_start().starts_with("→ "));
        assert!(lines[2].starts_with("consider descriptors     1,024 at most"));
        assert!(text.ends_with("1 to fix before measuring, 1 to consider, 9 good\n"));
    }

    #[test]
    fn this_machine_can_be_examined() {
        let examination = Examination::make();
        assert_eq!(examination.findings.len(), 11);
        assert!(examination.facts.fixed_loop.pieces > 0);
        assert!(examination.facts.cores.usable >= 1);
        let json = serde_json::to_value(&examination).unwrap();
        assert_eq!(json["findings"][0]["check"], "clock");
    }
}
