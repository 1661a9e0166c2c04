//! Maps values to positions along an axis, and chooses the values that are written beside it.
//! A report may come from anywhere, so a scale accepts every number. NaN and values outside of the axis get a
//! position at one of its ends. So no coordinate is infinite; a browser would silently ignore such a shape.

/// An axis: its title, its scale and the values written beside it.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Text at its end.
    pub title: String,
    /// The position of each value.
    pub scale: Scale,
    /// Values with their texts, ascending.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Even steps from 0 to at least `most`.
    pub fn from_zero(title: impl Into<String>, most: f64) -> Self {
        let most = if most > 0.0 { most.min(LARGEST) } else { 1.0 };
        let step = nice_step(most / 4.0);
        let count = (most / step - 1e-9).ceil().clamp(1.0, 10.0);
        Self {
            title: title.into(),
            scale: Scale::Linear {
                low: 0.0,
                high: step * count,
            },
            ticks: (0..=count as u32)
                .map(|index| f64::from(index) * step)
                .map(|value| (value, compact(value)))
                .collect(),
        }
    }

    /// Even steps from 0 to exactly `end`, for time.
    pub fn until(title: impl Into<String>, end: f64) -> Self {
        let mut axis = Self::from_zero(title, end);
        let high = if end > 0.0 { end.min(LARGEST) } else { 1.0 };
        axis.scale = Scale::Linear { low: 0.0, high };
        axis.ticks.retain(|(value, _)| *value <= high);
        axis
    }

    /// Powers of ten, with 2 and 5 between them while there is room, around all values above 0.
    pub fn logarithmic(title: impl Into<String>, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| *value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        let [low, high] = [low, high].map(|value| value.clamp(1.0 / LARGEST, LARGEST));
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let all: Vec<(u32, f64)> = (first..=last)
            .flat_map(|power| [1, 2, 5].map(|step| (step, f64::from(step) * 10_f64.powi(power))))
            .collect();
        let within = |value: f64| value * (1.0 + 1e-9);
        let from = all
            .iter()
            .rposition(|(_, tick)| *tick <= within(low))
            .unwrap_or(0);
        let to = all
            .iter()
            .position(|(_, tick)| within(*tick) >= high)
            .unwrap_or(all.len() - 1);
        let to = to.max(from + 1).min(all.len() - 1);
        let from = from.min(to - 1);
        // Two decades have room for 2 and 5; more than eight are written with gaps.
        let decades = (to - from).div_ceil(3);
        let stride = decades.div_ceil(8);
        let ticks = all[from..=to].iter();
        let ticks = ticks.filter(|(step, _)| decades <= 2 || *step == 1);
        Self {
            title: title.into(),
            scale: Scale::Logarithmic {
                low: all[from].1,
                high: all[to].1,
            },
            ticks: ticks
                .step_by(stride)
                .map(|(_, value)| (*value, compact(*value)))
                .collect(),
        }
    }
}

/// The rule that maps values to positions.
#[derive(Clone, Copy, Debug)]
pub enum Scale {
    /// Equal differences have equal lengths.
    Linear {
        /// Value at the lower end.
        low: f64,
        /// Value at the upper end.
        high: f64,
    },
    /// Equal ratios have equal lengths.
    Logarithmic {
        /// Value at the lower end, above 0.
        low: f64,
        /// Value at the upper end.
        high: f64,
    },
}

impl Scale {
    /// Returns the position of a value, from 0 to 1.
    pub fn share(self, value: f64) -> f64 {
        let share = match self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Logarithmic { low, high } => (value / low).log10() / (high / low).log10(),
        };
        if share.is_nan() {
            return 0.0;
        }
        share.clamp(0.0, 1.0)
    }

    /// The values at the lower and the upper end.
    pub fn ends(self) -> (f64, f64) {
        match self {
            Self::Linear { low, high } | Self::Logarithmic { low, high } => (low, high),
        }
    }
}

/// The next of 1, 2 and 5 times a power of ten.
fn nice_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|step| step * power >= least * (1.0 - 1e-9));
    step.unwrap_or(10.0) * power
}

/// A number beside an axis: few letters, as `0.05`, `20`, `5k` or `2.5M`.
pub(crate) fn compact(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e15 => return format!("{value:.0e}"),
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.6}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    if text == "0" && value != 0.0 {
        return format!("{value:.0e}");
    }
    format!("{text}{unit}")
}

/// Larger values are drawn at the end of the axis, because their differences overflow.
const LARGEST: f64 = 1e100;

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn axes_are_marked_in_round_numbers() {
        assert_eq!(texts(&Axis::from_zero("", 9_300.0)), ["0", "5k", "10k"]);
        assert_eq!(texts(&Axis::from_zero("", 0.0)), ["0", "0.5", "1"]);
        assert_eq!(texts(&Axis::until("", 8.3)), ["0", "5"]);
        let fine = Axis::logarithmic("", [0.3, 7.0].into_iter());
        assert_eq!(texts(&fine), ["0.2", "0.5", "1", "2", "5", "10"]);
        let wide = Axis::logarithmic("", [0.003, 4_000.0].into_iter());
        assert_eq!(texts(&wide)[0], "0.01");
        assert_eq!(wide.scale.ends(), (0.002, 5_000.0));
        assert_eq!(compact(2_500_000.0), "2.5M");
        assert_eq!(compact(0.000_5), "0.0005");
    }

    #[test]
    fn every_number_has_a_place() {
        let extremes = [
            0.0,
            -1.0,
            f64::MAX,
            f64::MIN_POSITIVE,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            3.0,
        ];
        for one in extremes {
            for axis in [
                Axis::from_zero("", one),
                Axis::until("", one),
                Axis::logarithmic("", [one, 2.0].into_iter()),
            ] {
                let (low, high) = axis.scale.ends();
                assert!(low < high && high.is_finite(), "{axis:?}");
                assert!((1..=14).contains(&axis.ticks.len()), "{axis:?}");
                for value in extremes {
                    assert!((0.0..=1.0).contains(&axis.scale.share(value)));
                }
            }
        }
    }
}
