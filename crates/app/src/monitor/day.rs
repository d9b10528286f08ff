//! The last day: stored minutes and the work of requests, put together in stretches of ten minutes.

use std::collections::BTreeMap;

use cairn_store::{Store, WorkSpan, WorkSums};

use crate::app::App;
use crate::chat::savings;
use crate::clock::now_ms;
use crate::convert;
use crate::monitor::minute::MinuteFigures;
use crate::monitor::recording;
use crate::monitor::speed::SpeedOf;
use crate::wire::{Failure, MonitorDay, MonitorRow, MonitorSpan, Reply, Spread};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;
const SPAN_MS: u32 = 10 * 60 * 1000;
const MAX_CHATS: usize = 20;

/// The last day until now.
pub(crate) async fn day(app: &App) -> Result<Reply, Failure> {
    recording::write_pending(app).await;
    let until_ms = now_ms();
    let since_ms = until_ms - DAY_MS;
    let mut spans = Spans::default();
    for (at_ms, figures) in app.store.monitor_minutes(since_ms, until_ms).await? {
        // What a newer or damaged file has is left out.
        spans.add_minute(at_ms, &serde_json::from_str(&figures).unwrap_or_default());
    }
    if let Some(minute) = app.monitor.minute_so_far() {
        spans.add_minute(minute.at_ms.clamp(since_ms + 1, until_ms), &minute.figures);
    }
    let all = Done::read(&app.store, since_ms, until_ms).await?;
    let private = match app.private.get() {
        Some(store) => Done::read(store, since_ms, until_ms).await?,
        None => Done::default(),
    };
    for span in all.spans.iter().chain(&private.spans) {
        spans.add_work(span);
    }
    // The time that was saved altogether knows no private chats, and a day is never more than that.
    let unsaved = |sums: &WorkSums| WorkSums { saved_ms: None, ..sums.clone() };
    let of_private: Vec<WorkSums> = private.sums.iter().map(unsaved).collect();
    let models = rows(all.sums.iter().chain(&of_private), |sums| {
        Some((sums.model.clone(), sums.model.clone(), None))
    });
    let mut rows_of_chats = rows(&all.sums, |sums| {
        let id = sums.conversation_id.clone()?;
        Some((id.clone(), sums.title.clone()?, Some(id)))
    });
    let num_more = rows_of_chats.len().saturating_sub(MAX_CHATS);
    rows_of_chats.truncate(MAX_CHATS);
    let no_name = |_: &WorkSums| Some((String::new(), String::new(), None));
    Ok(Reply::MonitorDay {
        day: MonitorDay {
            until_ms,
            span_ms: SPAN_MS,
            spans: spans.into_wire(),
            models,
            chats: rows_of_chats,
            num_more_chats: convert::tokens(num_more),
            private: rows(&private.sums, no_name).pop(),
            time_saved: savings::overview(app).await?,
        },
    })
}

/// The work that a store knows.
#[derive(Default)]
struct Done {
    sums: Vec<WorkSums>,
    spans: Vec<WorkSpan>,
}

impl Done {
    async fn read(store: &Store, since_ms: i64, until_ms: i64) -> Result<Done, Failure> {
        Ok(Done {
            sums: store.work_sums(since_ms, until_ms).await?,
            spans: store.work_spans(since_ms, until_ms, i64::from(SPAN_MS)).await?,
        })
    }
}

/// Adds up what has the same key. `name_of` gives the key, the name and the conversation's id; sums
/// without a name are in no row.
fn rows<'a>(
    sums: impl IntoIterator<Item = &'a WorkSums>,
    name_of: impl Fn(&WorkSums) -> Option<(String, String, Option<String>)>,
) -> Vec<MonitorRow> {
    let mut found: Vec<(String, Total)> = Vec::new();
    for sums in sums {
        let Some((key, name, conversation_id)) = name_of(sums) else { continue };
        let index = found.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
            found.push((key, Total { name, conversation_id, ..Total::default() }));
            found.len() - 1
        });
        found[index].1.add(sums);
    }
    found.sort_by_key(|(_, total)| std::cmp::Reverse(total.newest_at_ms));
    found.into_iter().map(|(_, total)| total.into_row()).collect()
}

#[derive(Default)]
struct Total {
    name: String,
    conversation_id: Option<String>,
    num_answers: i64,
    num_read_tokens: i64,
    num_cached_tokens: i64,
    num_written_tokens: i64,
    num_first_tokens: i64,
    first_token_ms: f64,
    saved_ms: Option<f64>,
    newest_at_ms: i64,
}

impl Total {
    fn add(&mut self, sums: &WorkSums) {
        self.num_answers += sums.num_answers;
        self.num_read_tokens += sums.num_read_tokens;
        self.num_cached_tokens += sums.num_cached_tokens;
        self.num_written_tokens += sums.num_written_tokens;
        self.num_first_tokens += sums.num_first_tokens;
        self.first_token_ms += sums.first_token_ms;
        self.newest_at_ms = self.newest_at_ms.max(sums.newest_at_ms);
        if let Some(saved_ms) = sums.saved_ms {
            self.saved_ms = Some(self.saved_ms.unwrap_or(0.0) + saved_ms);
        }
    }

    fn into_row(self) -> MonitorRow {
        let positive = |number: i64| u64::try_from(number).unwrap_or(0);
        MonitorRow {
            name: self.name,
            conversation_id: self.conversation_id,
            num_answers: u32::try_from(self.num_answers).unwrap_or(u32::MAX),
            read_tokens: positive(self.num_read_tokens),
            cached_tokens: positive(self.num_cached_tokens),
            written_tokens: positive(self.num_written_tokens),
            saved_ms: self.saved_ms.map(convert::figure),
            first_token_ms: (self.num_first_tokens > 0)
                .then(|| convert::figure(self.first_token_ms / self.num_first_tokens as f64)),
        }
    }
}

/// Stretches of time by their numbers.
#[derive(Default)]
struct Spans(BTreeMap<i64, Span>);

#[derive(Default)]
struct Span {
    num_minutes: f64,
    figures: MinuteFigures,
    most_waiting: Option<u32>,
    num_answers: f64,
    first_token_ms: Option<Spread>,
    prompt_tokens: i64,
    cached_tokens: i64,
}

impl Spans {
    fn add_minute(&mut self, at_ms: i64, minute: &MinuteFigures) {
        let span = self.0.entry(at_ms.div_euclid(i64::from(SPAN_MS))).or_default();
        let figures = &mut span.figures;
        let memory = [
            (&mut figures.process_bytes, minute.process_bytes),
            (&mut figures.mlx_active_bytes, minute.mlx_active_bytes),
            (&mut figures.mlx_cache_bytes, minute.mlx_cache_bytes),
            (&mut figures.machine_used_bytes, minute.machine_used_bytes),
        ];
        for (spread, of_minute) in memory {
            if let Some(of_minute) = of_minute {
                let with = spread.map(|spread| spread.with(of_minute, span.num_minutes));
                *spread = Some(with.unwrap_or(of_minute));
            }
        }
        span.num_minutes += 1.0;
        figures.begins_run |= minute.begins_run;
        figures.reading.add(minute.reading);
        figures.writing.add(minute.writing);
        span.most_waiting = span.most_waiting.max(Some(minute.most_waiting));
    }

    fn add_work(&mut self, work: &WorkSpan) {
        let span = self.0.entry(work.span).or_default();
        span.prompt_tokens += work.num_read_tokens + work.num_cached_tokens;
        span.cached_tokens += work.num_cached_tokens;
        let times = (work.least_first_token_ms, work.mean_first_token_ms, work.most_first_token_ms);
        if let (Some(least), Some(mean), Some(most)) = times {
            let (one, num_answers) = (Spread { least, mean, most }, work.num_first_tokens as f64);
            let with = |spread: Spread| spread.with(one, span.num_answers / num_answers);
            span.first_token_ms = Some(span.first_token_ms.map_or(one, with));
            span.num_answers += num_answers;
        }
    }

    fn into_wire(self) -> Vec<MonitorSpan> {
        let wire = |(number, span): (i64, Span)| {
            let MinuteFigures { begins_run, reading, writing, .. } = span.figures;
            MonitorSpan {
                at_ms: number * i64::from(SPAN_MS),
                begins_run,
                process_bytes: span.figures.process_bytes,
                mlx_active_bytes: span.figures.mlx_active_bytes,
                mlx_cache_bytes: span.figures.mlx_cache_bytes,
                machine_used_bytes: span.figures.machine_used_bytes,
                reading_tps: reading.spread(SpeedOf::Reading),
                writing_tps: writing.spread(SpeedOf::Writing),
                most_waiting: span.most_waiting,
                first_token_ms: span.first_token_ms,
                prompt_tokens: u64::try_from(span.prompt_tokens).unwrap_or(0),
                cached_tokens: u64::try_from(span.cached_tokens).unwrap_or(0),
            }
        };
        self.0.into_iter().map(wire).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::monitor::minute::Speed;

    const MINUTE_MS: i64 = 60_000;

    fn speed(num_tokens: u64, tps: f64) -> Speed {
        let took_ms = num_tokens as f64 / tps * 1000.0;
        Speed { num_tokens, took_ms, slowest: Some(tps), fastest: Some(tps) }
    }

    #[test]
    fn minutes_become_spans_with_the_mean_of_all_tokens() {
        let mut spans = Spans::default();
        let minute = |bytes: f64, writing: Speed, most_waiting| MinuteFigures {
            process_bytes: Some(Spread::one(bytes)),
            writing,
            most_waiting,
            ..MinuteFigures::default()
        };
        spans.add_minute(0, &minute(10.0, speed(100, 10.0), 0));
        spans.add_minute(MINUTE_MS, &minute(20.0, speed(300, 30.0), 4));
        spans.add_minute(2 * MINUTE_MS, &minute(30.0, Speed::default(), 0));
        spans.add_minute(10 * MINUTE_MS, &MinuteFigures { begins_run: true, ..Default::default() });
        let spans = spans.into_wire();
        assert_eq!(spans.len(), 2);
        let (first, second) = (&spans[0], &spans[1]);
        assert_eq!(first.process_bytes, Some(Spread { least: 10.0, mean: 20.0, most: 30.0 }));
        assert_eq!(first.writing_tps, Some(Spread { least: 10.0, mean: 20.0, most: 30.0 }));
        assert_eq!(
            (first.reading_tps, first.most_waiting, first.begins_run),
            (None, Some(4), false)
        );
        assert_eq!((second.at_ms, second.process_bytes, second.begins_run), (600_000, None, true));
    }

    #[test]
    fn what_was_saved_is_added_up_as_it_was_written() {
        let sums = |model: &str, id: &str, saved_ms| WorkSums {
            model: model.to_owned(),
            conversation_id: Some(id.to_owned()),
            title: Some(id.to_owned()).filter(|id| id != "deleted"),
            num_answers: 1,
            num_read_tokens: 1250,
            num_cached_tokens: 750,
            num_written_tokens: 5,
            num_first_tokens: 1,
            first_token_ms: 40.0,
            saved_ms,
            newest_at_ms: 1,
        };
        let all = [
            sums("m", "a", Some(1000.0)),
            sums("m", "b", Some(500.0)),
            sums("m", "b", None),
            sums("short", "b", None),
            sums("short", "deleted", None),
        ];
        let models = rows(&all, |sums| Some((sums.model.clone(), sums.model.clone(), None)));
        let figures: Vec<_> =
            models.iter().map(|row| (row.name.as_str(), row.num_answers, row.saved_ms)).collect();
        assert_eq!(figures, [("m", 3, Some(1500.0)), ("short", 2, None)]);
        assert_eq!((models[0].read_tokens, models[0].first_token_ms), (3750, Some(40.0)));
        let chats =
            rows(&all, |sums| Some((sums.conversation_id.clone()?, sums.title.clone()?, None)));
        assert_eq!(chats.iter().map(|row| row.num_answers).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(chats[1].saved_ms, Some(500.0), "what is known of it");
    }
}
