//! Newer credentials for an open connection, before the present credentials expire.
//!
//! The server says after which time they expire. This time also passes while the machine sleeps, but the monotonic
//! clock stops. So the client compares both clocks every few seconds, and the longer time counts.

use std::time::{Duration, SystemTime};

use tidewire_io::clock::Moment;

use super::dialing::look_up;
use super::events::Event;
use super::service::ClientService;
use crate::limits::nanoseconds;
use crate::service::Context;
use crate::session::SessionId;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Renewal {
    /// When they expire, as the server said last.
    expires_ns: Option<u64>,
    step: Step,
    /// When the server said that, on the monotonic and on the wall clock.
    told: Option<(u64, SystemTime)>,
}

/// The next step of a renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// The credentials do not expire, or the application got an event and has no newer credentials.
    #[default]
    None,
    /// Newer credentials are requested at `at_ns`.
    Planned { at_ns: u64 },
    /// The provider was asked.
    Asked,
    /// Newer credentials were sent, and the server has not confirmed them yet.
    Sent,
}

impl Renewal {
    /// Whether the provider was asked and has not answered.
    pub(super) fn is_asked(&self) -> bool {
        self.step == Step::Asked
    }

    /// The present moment on the monotonic clock, plus the time in which this clock stood still.
    fn moment_ns(&self, now_ns: u64, wall: SystemTime) -> u64 {
        let passed = self.told.and_then(|(told_ns, told)| {
            let passed = wall.duration_since(told).ok()?;
            Some(told_ns.saturating_add(nanoseconds(passed)))
        });
        passed.map_or(now_ns, |by_wall_ns| by_wall_ns.max(now_ns))
    }
}

impl ClientService {
    /// Plans the renewal of credentials after the server confirmed them or changed their expiry.
    pub(super) fn plan_renewal(&mut self, cx: &mut Context<'_>) {
        let now_ns = cx.now().as_ns();
        let expires_ns = self.session().and_then(|id| expires_ns(cx, id));
        let step = expires_ns.map_or(Step::None, |expires_ns| {
            let left_ns = expires_ns.saturating_sub(now_ns);
            let at_ns = now_ns.saturating_add(left_ns - left_ns / SHARE_LEFT);
            Step::Planned { at_ns }
        });
        let told = expires_ns.map(|_| (now_ns, cx.timers().wall_time()));
        self.dialing.renewal = Renewal {
            expires_ns,
            step,
            told,
        };
    }

    /// Asks for newer credentials if it is time, and sends them. Returns when to call again.
    pub(super) fn renew_if_due(&mut self, cx: &mut Context<'_>, now_ns: u64) -> Option<u64> {
        let session = self.pending.session?;
        let Renewal {
            expires_ns, step, ..
        } = self.dialing.renewal;
        if step != Step::Asked && self::expires_ns(cx, session) != expires_ns {
            self.plan_renewal(cx);
        }
        let renewal = self.dialing.renewal;
        let Renewal {
            expires_ns, step, ..
        } = renewal;
        if matches!(step, Step::None | Step::Sent) {
            return None;
        }
        let moment_ns = renewal.moment_ns(now_ns, cx.timers().wall_time());
        match step {
            Step::None | Step::Sent => None,
            Step::Planned { at_ns } if at_ns > moment_ns => {
                Some((now_ns + (at_ns - moment_ns)).min(now_ns + LOOK_NS))
            }
            Step::Planned { .. } => {
                let left_ns = expires_ns.unwrap_or(moment_ns).saturating_sub(moment_ns);
                let left = Duration::from_nanos(left_ns);
                self.link.events.push(Event::CredentialsExpire { left });
                self.dialing.renewal.step = Step::None;
                match look_up(self.dialing.dialer.renewal()?, &self.link) {
                    Ok(()) => self.dialing.renewal.step = Step::Asked,
                    Err(error) => {
                        return self.try_again((now_ns, moment_ns), left_ns, &error.to_string());
                    }
                }
                None
            }
            Step::Asked => match self.link.take_found()?.token? {
                Ok(token) => {
                    let is_sent =
                        matches!(cx.connections().set_credentials(session, token), Ok(true));
                    self.dialing.renewal.step = if is_sent { Step::Sent } else { Step::None };
                    None
                }
                Err(cause) => {
                    let left_ns = expires_ns.unwrap_or(moment_ns).saturating_sub(moment_ns);
                    self.try_again((now_ns, moment_ns), left_ns, &cause)
                }
            },
        }
    }

    /// Plans another attempt, when half of the time that is left has passed.
    fn try_again(
        &mut self,
        (now_ns, moment_ns): (u64, u64),
        left_ns: u64,
        cause: &str,
    ) -> Option<u64> {
        tracing::warn!(cause, "cannot get newer credentials; trying again");
        if left_ns < LEFT_NS_MIN {
            self.dialing.renewal.step = Step::None;
            return None;
        }
        let at_ns = moment_ns + left_ns / 2;
        self.dialing.renewal.step = Step::Planned { at_ns };
        Some((now_ns + left_ns / 2).min(now_ns + LOOK_NS))
    }
}

/// Divisor: newer credentials are requested when this fraction of the time, one third, is left.
const SHARE_LEFT: u64 = 3;

/// If less time than this is left, there is no further attempt.
const LEFT_NS_MIN: u64 = 10_000_000;

/// The interval at which the client compares the wall clock with the monotonic clock.
const LOOK_NS: u64 = 3_000_000_000;

fn expires_ns(cx: &mut Context<'_>, session: SessionId) -> Option<u64> {
    let expire = cx.connections().credentials_expire(session);
    expire.map(Moment::as_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a machine that slept renewed its credentials after they had expired.
    #[test]
    fn the_time_of_sleep_counts_and_a_clock_that_is_set_back_does_not() {
        let (told_ns, told) = (
            5_000_000_000,
            SystemTime::UNIX_EPOCH + Duration::from_secs(100),
        );
        let renewal = Renewal {
            told: Some((told_ns, told)),
            ..Renewal::default()
        };
        let later = |seconds| told + Duration::from_secs(seconds);
        let second_ns = told_ns + 1_000_000_000;
        assert_eq!(renewal.moment_ns(second_ns, later(1)), second_ns);
        assert_eq!(
            renewal.moment_ns(second_ns, later(3_600)),
            told_ns + 3_600_000_000_000
        );
        let set_back = told - Duration::from_secs(50);
        assert_eq!(renewal.moment_ns(second_ns, set_back), second_ns);
    }
}
