//! A strict reader of Prometheus's text format 0.0.4, by its specification and not by the library that writes it.

use std::collections::{BTreeMap, BTreeSet};

pub type Labels = BTreeMap<String, String>;

/// A scrape, read.
#[derive(Debug, Default)]
pub struct Scrape {
    /// Kind of each family, by its name.
    pub families: BTreeMap<String, String>,
    pub samples: BTreeMap<(String, Labels), f64>,
}

impl Scrape {
    /// Reads a whole scrape; says what is wrong with it.
    pub fn read(text: &str) -> Result<Scrape, String> {
        if !text.ends_with('\n') {
            return Err("the last line does not end".to_owned());
        }
        let mut reader = Reader::default();
        for (number, line) in text.lines().enumerate() {
            reader.line(line).map_err(|why| format!("line {}: {why}: {line}", number + 1))?;
        }
        reader.scrape.check_histograms()?;
        Ok(reader.scrape)
    }

    /// The value of the one series that has this name and at least these labels.
    #[track_caller]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found = self.find(name, labels);
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].1
    }

    /// All series that have this name and at least these labels.
    pub fn find(&self, name: &str, labels: &[(&str, &str)]) -> Vec<(&Labels, f64)> {
        let has = |all: &Labels| labels.iter().all(|(k, v)| all.get(*k).is_some_and(|w| w == v));
        let samples = self.samples.iter().filter(|((n, all), _)| n == name && has(all));
        samples.map(|((_, all), value)| (all, *value)).collect()
    }

    /// All series of this name together.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).iter().map(|(_, value)| value).sum()
    }

    /// Each histogram: bounds ascend, counts never fall, the last bound is infinite and its count is the whole, and there is a sum.
    fn check_histograms(&self) -> Result<(), String> {
        for (family, _) in self.families.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
            for ((name, labels), value) in &self.samples {
                if *name == format!("{family}_bucket") {
                    let mut labels = labels.clone();
                    let bound = labels.remove("le").ok_or(format!("{family}: no le"))?;
                    let bound = number(&bound).ok_or(format!("{family}: le={bound}"))?;
                    series.entry(labels).or_default().push((bound, *value));
                }
            }
            for (labels, mut buckets) in series {
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                let at = |suffix: &str| {
                    let key = (format!("{family}_{suffix}"), labels.clone());
                    self.samples.get(&key).copied().ok_or(format!("{family}: no {suffix}"))
                };
                let (count, sum) = (at("count")?, at("sum")?);
                let last = buckets.last().ok_or(format!("{family}: no buckets"))?;
                if last.0 != f64::INFINITY || last.1 != count {
                    return Err(format!("{family}: the last bucket is {last:?} of {count}"));
                }
                if buckets.windows(2).any(|pair| pair[0].1 > pair[1].1) {
                    return Err(format!("{family}: counts fall: {buckets:?}"));
                }
                if sum < 0.0 || (count == 0.0) != (sum == 0.0) && count == 0.0 {
                    return Err(format!("{family}: {count} of together {sum}"));
                }
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Reader {
    scrape: Scrape,
    helped: BTreeSet<String>,
    /// The family whose samples may come now.
    open: Option<(String, String)>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("no text")?;
            check_name(name)?;
            if help.trim() != help || help.is_empty() || !self.helped.insert(name.to_owned()) {
                return Err("an empty or second text".to_owned());
            }
            self.open = None;
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("no kind")?;
            let known = ["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind);
            if !known || !self.helped.contains(name) {
                return Err("an unknown kind, or no text before it".to_owned());
            }
            if self.scrape.families.insert(name.to_owned(), kind.to_owned()).is_some() {
                return Err("a second kind".to_owned());
            }
            self.open = Some((name.to_owned(), kind.to_owned()));
            return Ok(());
        }
        if line.starts_with('#') || line.is_empty() {
            return Err("neither text, kind nor sample".to_owned());
        }
        self.sample(line)
    }

    fn sample(&mut self, line: &str) -> Result<(), String> {
        let end = line.find(['{', ' ']).ok_or("no value")?;
        let (name, rest) = line.split_at(end);
        check_name(name)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => read_labels(rest)?,
            None => (Labels::new(), rest),
        };
        let text = rest.strip_prefix(' ').ok_or("no blank before the value")?;
        let value = number(text).ok_or("no number")?;
        let (family, kind) = self.open.as_ref().ok_or("a sample of no family")?;
        let fits = match kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(family)),
            _ => name == family,
        };
        if !fits {
            return Err(format!("a sample of {name} within {family}"));
        }
        if kind == "counter" && (value < 0.0 || !value.is_finite() || !name.ends_with("_total")) {
            return Err("no counter".to_owned());
        }
        if self.scrape.samples.insert((name.to_owned(), labels), value).is_some() {
            return Err("the same series twice".to_owned());
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let start = |b: u8| b.is_ascii_alphabetic() || b == b'_' || b == b':';
    let fits = name.bytes().next().is_some_and(start)
        && name.bytes().all(|b| start(b) || b.is_ascii_digit());
    if fits { Ok(()) } else { Err(format!("{name:?} is no name")) }
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        text => text.parse().ok().filter(|value: &f64| value.is_finite()),
    }
}

/// Reads `name="value",...}`; gives what follows.
fn read_labels(text: &str) -> Result<(Labels, &str), String> {
    let mut labels = Labels::new();
    let mut rest = text;
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        check_name(name)?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            let (at, char) = chars.next().ok_or("a value without an end")?;
            match char {
                '"' => break at,
                '\n' => return Err("a line break in a value".to_owned()),
                '\\' => match chars.next().ok_or("half an escape")?.1 {
                    'n' => value.push('\n'),
                    escaped @ ('\\' | '"') => value.push(escaped),
                    other => return Err(format!("an unknown escape {other:?}")),
                },
                char => value.push(char),
            }
        };
        if labels.insert(name.to_owned(), value).is_some() {
            return Err(format!("the label {name} twice"));
        }
        rest = &after[end + 1..];
        match rest.chars().next() {
            Some(',') => rest = &rest[1..],
            Some('}') => return Ok((labels, &rest[1..])),
            _ => return Err("labels that do not end".to_owned()),
        }
    }
}

#[test]
fn the_reader_refuses_what_is_no_scrape() {
    let head = "# HELP a_total A.\n# TYPE a_total counter\n";
    let histogram = "# HELP h H.\n# TYPE h histogram\n";
    let good = format!("{head}a_total{{x=\"1\\\\\\\"\\n\",y=\"\"}} 3\n");
    let read = Scrape::read(&good).expect("a good scrape");
    assert_eq!(read.value("a_total", &[("x", "1\\\"\n")]), 3.0);
    for bad in [
        format!("{head}a_total 3"),
        format!("{head}a_total -3\n"),
        format!("{head}a_total 3\na_total 3\n"),
        format!("{head}b 3\n"),
        format!("{head}{head}"),
        format!("{head}a_total{{x=1}} 3\n"),
        format!("{head}a_total{{x=\"1\",x=\"2\"}} 3\n"),
        format!("{head}a_total{{x=\"1}} 3\n"),
        format!("{head}a_total  3\n"),
        format!("{head}a_total 3 \n"),
        format!("{head}\n"),
        "a_total 3\n".to_owned(),
        "# TYPE a_total counter\n".to_owned(),
        format!("{histogram}h_bucket{{le=\"1\"}} 1\nh_sum 1\nh_count 1\n"),
        format!(
            "{histogram}h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 1\n"
        ),
        format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_count 1\n"),
        format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_sum 1\nh_count 2\n"),
    ] {
        assert!(Scrape::read(&bad).is_err(), "{bad}");
    }
}
