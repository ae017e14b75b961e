//! The figures of all rounds, and how the endpoints compare by them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::{Report, thousands};

/// What is measured of a row, and whether more of it is better. `None`: it is told, and compared with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Name with unit.
    pub name: &'static str,
    /// Which way is better.
    pub better: Option<Better>,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More.
    More,
    /// Less.
    Less,
}

const fn more(name: &'static str) -> Kind {
    Kind { name, better: Some(Better::More) }
}

const fn less(name: &'static str) -> Kind {
    Kind { name, better: Some(Better::Less) }
}

const SENT: Kind = more("msg/s");
const RECEIVED: Kind = more("received msg/s");
const MEGABYTES: Kind = more("MB/s");
const P50: Kind = less("p50 ms");
const P99: Kind = less("p99 ms");
const P999: Kind = less("p99.9 ms");
const CPU_PER_MILLION: Kind = less("CPU s per M");
const CPU_PER_GB: Kind = less("CPU ms per GB");
/// Processors in use.
pub const PROCESSORS: Kind = less("processors");
/// A time.
pub const SECONDS: Kind = less("seconds");
/// Memory without mapped files, which the kernel can take back.
pub const RESIDENT: Kind = less("MB own memory");
/// The same that came on top.
pub const GREW: Kind = less("MB more own memory");
/// How fast a log grew.
pub const CAUGHT_UP: Kind = more("MB/s caught up");
const HARNESS: Kind = Kind { name: "harness us a message", better: None };

/// What a run tells.
#[must_use]
pub fn of_run(report: &Report) -> Vec<(Kind, f64)> {
    let mut figures = Vec::new();
    let receives = report.receive.as_ref();
    match (&report.send, receives) {
        (Some(send), None) => figures.push((SENT, send.messages_per_second)),
        (Some(_), Some(receive)) => figures.push((RECEIVED, receive.messages_per_second)),
        (None, Some(receive)) => {
            figures.extend([
                (SENT, receive.messages_per_second),
                (MEGABYTES, receive.megabytes_per_second),
            ]);
        }
        (None, None) => {}
    }
    if let Some(side) = receives.or(report.send.as_ref()) {
        let latency = &side.latency;
        // What never came has no latency, rather than a good one.
        if report.send.is_some() && latency.count > 0 {
            let ms = [(P50, latency.p50_us), (P99, latency.p99_us), (P999, latency.p999_us)];
            figures.extend(ms.map(|(kind, us)| (kind, us / 1e3)));
        }
    }
    if let Some(broker) = &report.broker {
        figures.extend(broker.cpu_seconds_per_million.map(|cpu| (CPU_PER_MILLION, cpu)));
        if report.rate_asked.is_some() {
            figures.push((PROCESSORS, broker.cores));
        }
        let gigabytes =
            receives.map(|side| side.megabytes_per_second * report.measured_seconds / 1e3);
        if let (None, Some(gigabytes)) =
            (&report.send, gigabytes.filter(|gigabytes| *gigabytes > 0.0))
        {
            figures.push((CPU_PER_GB, broker.cpu_seconds * 1e3 / gigabytes));
        }
    }
    figures.extend(report.harness.cpu_us_per_message.map(|us| (HARNESS, us)));
    figures
}

/// All figures of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    rows: Vec<RowFigures>,
}

#[derive(Clone, Debug, Default)]
struct RowFigures {
    name: String,
    command: String,
    kinds: Vec<Kind>,
    /// By kind, endpoint and round.
    values: BTreeMap<&'static str, BTreeMap<String, BTreeMap<usize, f64>>>,
    /// Runs that were not clean, by endpoint.
    unclean: BTreeMap<String, usize>,
    /// Why runs told nothing, by endpoint.
    failed: BTreeMap<String, Vec<String>>,
}

impl Figures {
    /// Adds what a row told at an endpoint in a round.
    pub fn add(
        &mut self,
        (row, command): (&str, &str),
        endpoint: &str,
        round: usize,
        figures: &[(Kind, f64)],
        clean: bool,
    ) {
        let row = self.row(row, command);
        for (kind, value) in figures {
            if !row.kinds.contains(kind) {
                row.kinds.push(*kind);
            }
            let of_kind = row.values.entry(kind.name).or_default();
            of_kind.entry(endpoint.to_owned()).or_default().insert(round, *value);
        }
        if !clean {
            *row.unclean.entry(endpoint.to_owned()).or_default() += 1;
        }
    }

    /// Notes that a row told nothing at an endpoint in a round.
    pub fn failed(
        &mut self,
        (row, command): (&str, &str),
        endpoint: &str,
        round: usize,
        why: &str,
    ) {
        let failed = &mut self.row(row, command).failed;
        let failed = failed.entry(endpoint.to_owned()).or_default();
        failed.push(format!("round {}: {why}", round + 1));
    }

    /// Whether nothing told anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|row| row.values.is_empty())
    }

    fn row(&mut self, row: &str, command: &str) -> &mut RowFigures {
        let at = self.rows.iter().position(|known| known.name == row).unwrap_or_else(|| {
            let (name, command) = (row.to_owned(), command.to_owned());
            self.rows.push(RowFigures { name, command, ..RowFigures::default() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// How the endpoints compare; the first is what the others are compared with. `rivals` are those whose best it is held against.
    #[must_use]
    pub fn compare(&self, endpoints: &[String], rivals: &[String]) -> Vec<Row> {
        let row = |row: &RowFigures| Row {
            name: row.name.clone(),
            command: row.command.clone(),
            measures: row.kinds.iter().map(|kind| row.measure(*kind, endpoints, rivals)).collect(),
            unclean: row.unclean.clone(),
            failed: row.failed.clone(),
        };
        self.rows.iter().map(row).collect()
    }
}

impl RowFigures {
    fn measure(&self, kind: Kind, endpoints: &[String], rivals: &[String]) -> Measure {
        let empty = BTreeMap::new();
        let values = |endpoint: &String| {
            self.values.get(kind.name).and_then(|of| of.get(endpoint)).unwrap_or(&empty)
        };
        let figure = |endpoint: &String| {
            let spread = Spread::of(values(endpoint).values().copied().collect())?;
            Some((endpoint.clone(), spread))
        };
        let advantage = |(base, better, other): (&String, Better, &String)| {
            let pairs = values(base)
                .iter()
                .filter_map(|(round, own)| Some((*own, *values(other).get(round)?)));
            let factors = pairs.map(|(own, other)| match better {
                Better::More => own / other,
                Better::Less => other / own,
            });
            let spread =
                Spread::of(factors.filter(|factor| factor.is_finite() && *factor > 0.0).collect())?;
            Some((other.clone(), spread))
        };
        let others = endpoints.split_first().zip(kind.better).into_iter();
        let others = others.flat_map(|((base, others), better)| {
            others.iter().map(move |other| (base, better, other))
        });
        let advantage: BTreeMap<String, Spread> = others.filter_map(advantage).collect();
        let best_rival = rivals
            .iter()
            .filter_map(|rival| Some((rival, advantage.get(rival)?.median)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other));
        Measure {
            name: kind.name,
            better: kind.better,
            best_rival: best_rival.map(|(rival, _)| rival.clone()),
            figures: endpoints.iter().filter_map(figure).collect(),
            advantage,
        }
    }
}

/// A row of the comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What made it.
    pub command: String,
    /// What was measured.
    pub measures: Vec<Measure>,
    /// How many runs were not clean, by endpoint.
    pub unclean: BTreeMap<String, usize>,
    /// Why runs told nothing, by endpoint.
    pub failed: BTreeMap<String, Vec<String>>,
}

/// One measure of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// Name with unit.
    pub name: &'static str,
    /// Which way is better, if any is.
    pub better: Option<Better>,
    /// By endpoint.
    pub figures: BTreeMap<String, Spread>,
    /// How many times better the first endpoint did than each other one, round by round.
    pub advantage: BTreeMap<String, Spread>,
    /// The rival that did best beside the first endpoint.
    pub best_rival: Option<String>,
}

/// Values of several rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two middle ones.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
    /// All, in the order of rounds.
    pub values: Vec<f64>,
}

impl Spread {
    /// `None` if there are no values.
    #[must_use]
    pub fn of(values: Vec<f64>) -> Option<Self> {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let (below, above) = (sorted.get((sorted.len() - 1) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Spread { median: (below + above) / 2.0, low, high, values })
    }
}

/// Three digits that count.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1000.0 {
        thousands(value.round() as u64)
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.1 || value == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_taken_round_by_round_and_above_one_where_the_first_is_better() {
        let mut figures = Figures::default();
        let names = ["a".to_owned(), "b".to_owned()];
        for (round, (a, b)) in [(100.0, 50.0), (90.0, 30.0), (120.0, 60.0)].into_iter().enumerate()
        {
            figures.add(
                ("row", "produce"),
                "a",
                round,
                &[(SENT, a), (P99, 1.0), (HARNESS, 0.4)],
                true,
            );
            figures.add(("row", "produce"), "b", round, &[(SENT, b), (P99, 4.0)], round != 1);
        }
        let rows = figures.compare(&names, &names[1..]);
        let [sent, p99, harness] = &rows[0].measures[..] else { panic!("{rows:?}") };
        assert_eq!(
            sent.figures["a"],
            Spread { median: 100.0, low: 90.0, high: 120.0, values: vec![100.0, 90.0, 120.0] }
        );
        let factor = &sent.advantage["b"];
        assert_eq!((factor.median, factor.low, factor.high), (2.0, 2.0, 3.0));
        assert_eq!(p99.advantage["b"].median, 4.0);
        assert!(harness.advantage.is_empty());
        assert_eq!(rows[0].unclean, [("b".to_owned(), 1)].into());
    }

    #[test]
    fn the_best_rival_is_the_one_that_is_hardest_to_beat() {
        let mut figures = Figures::default();
        let names = ["a", "variant", "b", "c"].map(str::to_owned);
        for (name, rate, p99) in
            [("a", 100.0, 2.0), ("variant", 500.0, 1.0), ("b", 50.0, 9.0), ("c", 80.0, 10.0)]
        {
            figures.add(("row", ""), name, 0, &[(SENT, rate), (P99, p99)], true);
        }
        figures.failed(("other", ""), "a", 1, "it ended");
        let rows = figures.compare(&names, &names[2..]);
        let best = rows[0].measures.iter().map(|measure| measure.best_rival.clone());
        assert_eq!(best.collect::<Vec<_>>(), [Some("c".to_owned()), Some("b".to_owned())]);
        assert_eq!(rows[1].failed["a"], ["round 2: it ended"]);
        assert!(!figures.is_empty() && Figures::default().is_empty());
    }

    #[test]
    fn a_round_that_one_of_them_lacks_is_not_compared() {
        let mut figures = Figures::default();
        let names = ["a".to_owned(), "b".to_owned()];
        figures.add(("row", ""), "a", 0, &[(SENT, 1.0)], true);
        figures.add(("row", ""), "a", 1, &[(SENT, 8.0)], true);
        figures.add(("row", ""), "b", 1, &[(SENT, 2.0)], true);
        let rows = figures.compare(&names, &names[1..]);
        assert_eq!(rows[0].measures[0].advantage["b"].values, [4.0]);
        assert_eq!(Spread::of(vec![4.0, 1.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let shown = [379_883.4, 999.4, 12.34, 1.005, 0.123, 0.0123, 0.0].map(number);
        assert_eq!(shown, ["379,883", "999", "12.3", "1.00", "0.12", "0.0123", "0.00"]);
    }
}
