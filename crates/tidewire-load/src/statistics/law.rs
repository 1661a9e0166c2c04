//! The Universal Scalability Law itself, and its one best fit.
//!
//! Solved for N/X the law is linear in 1/λ, σ/λ and κ/λ, so least squares has exactly one solution and needs no
//! start, no steps and no crate. Each level is weighted by its own N/X: measured rates err by a share of
//! themselves, and unweighted the slowest level would decide alone. Iterating on X itself was rejected: it
//! differs by the square of that share and can fail to converge.

/// Throughput at a level of concurrency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalePoint {
    /// Agents, connections or requests in flight; 1 or more.
    pub concurrency: f64,
    /// Messages a second, above 0.
    pub throughput: f64,
}

/// λ, σ and κ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Law {
    pub(super) lambda: f64,
    pub(super) sigma: f64,
    pub(super) kappa: f64,
}

impl Law {
    /// Least squares of the relative deviations of N/X; nothing when no curve of this kind is positive everywhere.
    pub(super) fn fitted(points: &[ScalePoint]) -> Option<Self> {
        let most = points
            .iter()
            .map(|point| point.concurrency)
            .fold(1.0, f64::max);
        // Columns of similar size keep the small matrix well conditioned.
        let scales = [1.0, most, most * most];
        let mut matrix = [[0.0; FITTED]; FITTED];
        let mut right = [0.0; FITTED];
        for point in points {
            let n = point.concurrency;
            let weight = point.throughput / n;
            let row = [1.0, n - 1.0, n * (n - 1.0)];
            let row: [f64; FITTED] = std::array::from_fn(|at| row[at] / scales[at] * weight);
            for (line, left) in row.iter().enumerate() {
                right[line] += left;
                for (column, value) in row.iter().enumerate() {
                    matrix[line][column] += left * value;
                }
            }
        }
        let solved = solve(matrix, right)?;
        let [inverse, sigma, kappa]: [f64; FITTED] =
            std::array::from_fn(|at| solved[at] / scales[at]);
        let law = Self {
            lambda: 1.0 / inverse,
            sigma: sigma / inverse,
            kappa: kappa / inverse,
        };
        let real = inverse > 0.0
            && points.iter().all(|point| {
                let throughput = law.throughput(point.concurrency);
                throughput.is_finite() && throughput > 0.0
            });
        real.then_some(law)
    }

    /// Messages a second at a concurrency.
    pub(super) fn throughput(&self, concurrency: f64) -> f64 {
        let others = concurrency - 1.0;
        self.lambda * concurrency / (1.0 + self.sigma * others + self.kappa * concurrency * others)
    }

    /// The concurrency with the highest throughput: at least 1, and infinite without a cost of agreement.
    pub(super) fn knee(&self) -> f64 {
        if self.kappa <= 0.0 {
            return f64::INFINITY;
        }
        ((1.0 - self.sigma).max(0.0) / self.kappa).sqrt().max(1.0)
    }
}

/// Gaussian elimination with the largest pivot; nothing when there is no single solution.
fn solve(mut matrix: [[f64; FITTED]; FITTED], mut right: [f64; FITTED]) -> Option<[f64; FITTED]> {
    for column in 0..FITTED {
        let pivot = (column..FITTED).max_by(|left, right| {
            matrix[*left][column]
                .abs()
                .total_cmp(&matrix[*right][column].abs())
        })?;
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let divisor = matrix[column][column];
        if !divisor.is_finite() || divisor.abs() < f64::MIN_POSITIVE {
            return None;
        }
        for line in 0..FITTED {
            if line != column {
                let factor = matrix[line][column] / divisor;
                let above = matrix[column];
                for (value, above) in matrix[line].iter_mut().zip(above) {
                    *value -= factor * above;
                }
                right[line] -= factor * right[column];
            }
        }
    }
    let solved: [f64; FITTED] = std::array::from_fn(|at| right[at] / matrix[at][at]);
    solved
        .iter()
        .all(|value| value.is_finite())
        .then_some(solved)
}

/// Figures of the law.
pub(super) const FITTED: usize = 3;
