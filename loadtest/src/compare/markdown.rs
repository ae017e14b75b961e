//! A comparison as a text in Markdown, as it stands in documentation: what was run where, the table, and what spoils it.

use std::fmt::{Result, Write};

use crate::compare::Comparison;
use crate::compare::figures::{Measure, Row, Spread, number};

/// Longest reason of a failure that is shown.
const WHY_CHARS_MAX: usize = 200;

/// The whole text.
#[must_use]
pub fn document(comparison: &Comparison) -> String {
    let mut out = String::new();
    // A String takes everything.
    let _ = write_document(comparison, &mut out);
    out
}

/// The table alone: a line for each measure.
#[must_use]
pub fn table(comparison: &Comparison) -> String {
    let mut out = String::new();
    let _ = write_table(comparison, &mut out);
    out
}

fn write_document(comparison: &Comparison, out: &mut String) -> Result {
    let Comparison { title, endpoints, rounds, machine, command, facts, notes, tool, .. } =
        comparison;
    let began = utc(comparison.started_unix_ms);
    let many = if *rounds == 1 { "round" } else { "rounds, in turn" };
    writeln!(
        out,
        "{title}: {rounds} {many}, of {}. Begun on {began} with {tool}; {machine}.\n",
        endpoints.join(", ")
    )?;
    writeln!(out, "```\n{command}\n```\n")?;
    for fact in facts {
        writeln!(out, "{}:\n\n```\n{}\n```\n", fact.name, fact.text)?;
    }
    writeln!(out, "{}\n", legend(comparison))?;
    write_table(comparison, out)?;
    if !notes.is_empty() {
        writeln!(out)?;
    }
    notes.iter().try_for_each(|note| writeln!(out, "- {note}"))
}

fn legend(comparison: &Comparison) -> String {
    let mut text = "Medians of the rounds, with the lowest and the highest in brackets.".to_owned();
    if let (Some(base), Some(_)) = (comparison.endpoints.first(), comparison.rivals.first()) {
        let _ = write!(
            text,
            " A factor above 1 means that {base} did better; it is taken between runs of the same round"
        );
        text += match comparison.rivals.len() {
            1 => ".",
            _ => ", against the one named, which did best of those it is held against.",
        };
    }
    text
}

fn write_table(comparison: &Comparison, out: &mut String) -> Result {
    let Comparison { endpoints, rivals, rows, .. } = comparison;
    let mut heads = vec!["row".to_owned(), "measure".to_owned()];
    heads.extend(endpoints.iter().cloned());
    if let (Some(base), false) = (endpoints.first(), rivals.is_empty()) {
        let other = if rivals.len() > 1 { "the better of " } else { "" };
        heads.push(format!("{base} against {other}{}", rivals.join(" and ")));
    }
    writeln!(out, "| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()))?;
    for row in rows {
        let told = row.measures.iter().filter(|measure| measure.better.is_some());
        for (at, measure) in told.enumerate() {
            let name = if at == 0 { plain(&row.name) } else { String::new() };
            let mut cells = vec![name, measure.name.to_owned()];
            cells.extend(endpoints.iter().map(|endpoint| figure(measure, endpoint)));
            if !rivals.is_empty() {
                cells.push(factor(measure, rivals.len() > 1));
            }
            writeln!(out, "| {} |", cells.join(" | "))?;
        }
        write_troubles(row, heads.len(), out)?;
    }
    Ok(())
}

fn figure(measure: &Measure, endpoint: &str) -> String {
    measure.figures.get(endpoint).map(with_range).unwrap_or_default()
}

fn factor(measure: &Measure, named: bool) -> String {
    let best = measure.best_rival.as_ref();
    let Some((best, spread)) = best.and_then(|best| Some((best, measure.advantage.get(best)?)))
    else {
        return String::new();
    };
    let Spread { median, low, high, values } = spread;
    let range = match values.len() {
        1 => String::new(),
        _ => format!(" ({} to {})", number(*low), number(*high)),
    };
    let name = if named { format!(", {best}") } else { String::new() };
    format!("{}x{range}{name}", number(*median))
}

fn with_range(Spread { median, low, high, values }: &Spread) -> String {
    match values.len() {
        1 => number(*median),
        _ => format!("{} ({} to {})", number(*median), number(*low), number(*high)),
    }
}

fn write_troubles(row: &Row, cells: usize, out: &mut String) -> Result {
    let rest = " |".repeat(cells.saturating_sub(2));
    for (endpoint, count) in &row.unclean {
        writeln!(out, "| {} | {count} runs with errors at {endpoint} |{rest}", plain(&row.name))?;
    }
    for (endpoint, whys) in &row.failed {
        for why in whys {
            writeln!(
                out,
                "| {} | nothing at {endpoint}, {} |{rest}",
                plain(&row.name),
                plain(why)
            )?;
        }
    }
    Ok(())
}

/// A text that stays within a cell.
fn plain(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(WHY_CHARS_MAX).collect::<String>().replace('|', "\\|")
}

/// A time as `2026-11-30 12:35 UTC`.
fn utc(unix_ms: u64) -> String {
    let (days, minutes) = (unix_ms / 86_400_000, unix_ms / 60_000 % 1440);
    // Years that begin in March, in eras of 400 of them, so that the leap day is a year's last one.
    let since = days + 719_468;
    let (era, of_era) = (since / 146_097, since % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + later;
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Told;
    use crate::compare::figures::{Figures, RESIDENT, SECONDS};

    fn comparison(rivals: &[&str]) -> Comparison {
        let endpoints = ["a", "b", "c"].map(str::to_owned).to_vec();
        let rivals: Vec<_> = rivals.iter().map(|&name| name.to_owned()).collect();
        let mut figures = Figures::default();
        for (round, (a, b, c)) in [(1.0, 4.0, 3.0), (2.0, 4.0, 8.0)].into_iter().enumerate() {
            for (name, value) in [("a", a), ("b", b), ("c", c)] {
                let told = [(SECONDS, value), (RESIDENT, 10.0 * value)];
                figures.add(("a | row", ""), name, round, &told, name != "b");
            }
        }
        figures.failed(("a | row", ""), "c", 0, "it ended\nwith more to tell");
        Comparison {
            title: "Three".into(),
            tool: "tool 1".into(),
            started_unix_ms: 1_709_210_096_000,
            rows: figures.compare(&endpoints, &rivals),
            endpoints,
            rivals,
            rounds: 2,
            command: "tool compare x".into(),
            machine: "a machine".into(),
            facts: vec![Told { name: "The disk".into(), text: "fast".into() }],
            notes: vec!["saturated".into()],
        }
    }

    #[test]
    fn every_figure_stands_with_its_spread_beside_the_better_rival() {
        let text = document(&comparison(&["b", "c"]));
        for expected in [
            "Three: 2 rounds, in turn, of a, b, c. Begun on 2024-02-29 12:34 UTC with tool 1; a machine.\n",
            "```\ntool compare x\n```\n",
            "The disk:\n\n```\nfast\n```\n",
            "| row | measure | a | b | c | a against the better of b and c |\n|---|---|---|---|---|---|\n",
            "| a \\| row | seconds | 1.50 (1.00 to 2.00) | 4.00 (4.00 to 4.00) | 5.50 (3.00 to 8.00) | 3.00x (2.00 to 4.00), b |\n",
            "|  | MB own memory | 15.0 (10.0 to 20.0) |",
            "| a \\| row | 2 runs with errors at b | | | | |\n",
            "| a \\| row | nothing at c, round 1: it ended | | | | |\n",
            "\n- saturated\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        let widths: Vec<_> = table(&comparison(&["b", "c"]))
            .lines()
            .map(|line| line.replace("\\|", "").matches('|').count())
            .collect();
        assert!(widths.iter().all(|width| *width == 7), "{widths:?}");
    }

    #[test]
    fn one_rival_is_named_once_and_none_not_at_all() {
        let one = table(&comparison(&["c"]));
        assert!(
            one.contains("| a against c |") && one.contains(" | 3.50x (3.00 to 4.00) |"),
            "{one}"
        );
        let none = table(&comparison(&[]));
        assert!(none.contains("| row | measure | a | b | c |\n"), "{none}");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (ms, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399_000, "2000-02-28 23:59 UTC"),
            (951_868_800_000, "2000-03-01 00:00 UTC"),
            (1_796_041_500_000, "2026-11-30 12:25 UTC"),
        ] {
            assert_eq!(utc(ms), expected);
        }
    }
}
