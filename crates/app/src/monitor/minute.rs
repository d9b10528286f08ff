//! A minute of the monitor, and whether there is something to note about it.

use std::time::{Duration, Instant};

use cairn_engine::{TimedTokens, WorkDone};
use serde::{Deserialize, Serialize};

use crate::monitor::speed::SpeedOf;
use crate::wire::{MonitorPoint, Spread};

/// Memory that differs by less from what was noted last has not changed.
const MEMORY_STEP_BYTES: f64 = (32 << 20) as f64;

/// What is noted of a minute; stored as JSON, in which fields may be missing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MinuteFigures {
    /// It is the first since the app was opened.
    pub(super) begins_run: bool,
    pub(super) process_bytes: Option<Spread>,
    pub(super) mlx_active_bytes: Option<Spread>,
    pub(super) mlx_cache_bytes: Option<Spread>,
    pub(super) machine_used_bytes: Option<Spread>,
    pub(super) reading: Speed,
    pub(super) writing: Speed,
    pub(super) most_waiting: u32,
}

/// How fast tokens were read or written.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Speed {
    pub(super) num_tokens: u64,
    /// How long that took.
    pub(super) took_ms: f64,
    /// The slowest and the fastest speed of the minute's points, in tokens a second; none if no
    /// point has one. Earlier versions stored them under other names, and took them from single
    /// tokens.
    pub(super) slowest: Option<f64>,
    pub(super) fastest: Option<f64>,
}

impl Speed {
    /// Adds what was done in another stretch of time.
    pub(super) fn add(&mut self, other: Speed) {
        let least = |one: f64, other: Option<f64>| other.map_or(one, |other| one.min(other));
        let most = |one: f64, other: Option<f64>| other.map_or(one, |other| one.max(other));
        self.slowest = self.slowest.map(|own| least(own, other.slowest)).or(other.slowest);
        self.fastest = self.fastest.map(|own| most(own, other.fastest)).or(other.fastest);
        self.num_tokens += other.num_tokens;
        self.took_ms += other.took_ms;
    }

    /// The work of a point, with the speed that the point shows.
    fn from_point(TimedTokens { num_tokens, took }: TimedTokens, shown: Option<f64>) -> Speed {
        let took_ms = took.as_secs_f64() * 1000.0;
        Speed { num_tokens, took_ms, slowest: shown, fastest: shown }
    }

    /// Returns speeds in tokens a second, with the mean over all tokens. `None` if there are too
    /// few.
    pub(super) fn spread(self, of: SpeedOf) -> Option<Spread> {
        let took = Duration::try_from_secs_f64(self.took_ms / 1000.0).unwrap_or_default();
        let mean = of.rate(TimedTokens { num_tokens: self.num_tokens, took })?;
        let least = self.slowest.map_or(mean, |slowest| slowest.min(mean));
        let most = self.fastest.map_or(mean, |fastest| fastest.max(mean));
        Some(Spread { least, mean, most })
    }
}

/// What is to be written of a minute.
#[derive(Debug, Clone)]
pub(super) struct NotedMinute {
    /// When it began, by the wall clock.
    pub(super) at_ms: i64,
    pub(super) figures: MinuteFigures,
}

/// The minute under way.
#[derive(Debug)]
pub(super) struct Minute {
    pub(super) began: Instant,
    at_ms: i64,
    figures: MinuteFigures,
    num_points: u32,
    /// The process's memory in the minute that was noted last.
    noted_bytes: f64,
}

impl Minute {
    /// The first since the app was opened.
    pub(super) fn first(began: Instant, at_ms: i64) -> Minute {
        let figures = MinuteFigures { begins_run: true, ..MinuteFigures::default() };
        Minute { began, at_ms, figures, num_points: 0, noted_bytes: 0.0 }
    }

    /// Adds a point, and the work since the one before it.
    pub(super) fn add(&mut self, point: &MonitorPoint, work: WorkDone) {
        let (figures, before) = (&mut self.figures, self.num_points);
        let memory = [
            (&mut figures.process_bytes, Some(point.process_bytes)),
            (&mut figures.mlx_active_bytes, Some(point.mlx_active_bytes)),
            (&mut figures.mlx_cache_bytes, Some(point.mlx_cache_bytes)),
            (&mut figures.machine_used_bytes, point.machine_used_bytes),
        ];
        for (spread, bytes) in memory {
            if let Some(bytes) = bytes {
                let one = Spread::one(bytes as f64);
                *spread = Some(spread.map_or(one, |spread| spread.with(one, f64::from(before))));
            }
        }
        self.num_points += 1;
        figures.reading.add(Speed::from_point(work.reading, point.reading_tps));
        figures.writing.add(Speed::from_point(work.writing, point.writing_tps));
        figures.most_waiting = figures.most_waiting.max(point.num_waiting);
    }

    /// What there is to note so far; none where nothing was done and memory is what it was.
    pub(super) fn noted(&self) -> Option<NotedMinute> {
        let figures = &self.figures;
        let bytes = figures.process_bytes?;
        let has_changed = (bytes.least - self.noted_bytes).abs() >= MEMORY_STEP_BYTES
            || (bytes.most - self.noted_bytes).abs() >= MEMORY_STEP_BYTES;
        let is_busy =
            figures.reading.num_tokens + figures.writing.num_tokens > 0 || figures.most_waiting > 0;
        (figures.begins_run || is_busy || has_changed)
            .then(|| NotedMinute { at_ms: self.at_ms, figures: figures.clone() })
    }

    /// Ends it and begins the next one. Returns what there is to note.
    pub(super) fn end(&mut self, now: Instant, wall_ms: i64) -> Option<NotedMinute> {
        let noted = self.noted();
        let bytes = noted.as_ref().and_then(|noted| noted.figures.process_bytes);
        let noted_bytes = bytes.map_or(self.noted_bytes, |bytes| bytes.mean);
        let (figures, at_ms) = (MinuteFigures::default(), wall_ms);
        *self = Minute { began: now, at_ms, figures, num_points: 0, noted_bytes };
        noted
    }
}
