//! Holds an answer that repeats itself until a person has chosen: stop, or go on.
//!
//! A held answer's request has been stopped, so that nothing is computed, and its row is saved as one
//! that is being written: after a crash it is an interrupted answer with all of its text. Another
//! request lets it go on behind its tokens, with the caches of the first.

use std::sync::Arc;
use std::time::Instant;

use cairn_chat::{GenerationStats, GuessCounts};

use crate::app::App;
use crate::chat::answer_events::emit_changes;
use crate::chat::progress::Progress;
use crate::chat::running::Running;
use crate::chat::saving::Saving;
use crate::chat::segments::Now;
use crate::chat::turn::Turn;
use crate::wire::Event;

/// What becomes of a held answer.
pub(crate) enum Choice {
    Stop,
    GoOn,
}

/// Shows and saves an answer as held, and waits for the choice. An app that closes stops it.
pub(crate) async fn hold(
    app: &Arc<App>,
    running: &Running,
    turn: &Turn,
    progress: &mut Progress,
    saving: &mut Saving,
) -> Choice {
    let now = Instant::now();
    progress.pause(now);
    emit_changes(app, running, progress.flush_changes());
    emit_held(app, running, true);
    saving.settle(app).await;
    progress.mark_saved(now);
    saving.begin(app, turn, progress);
    let choice = tokio::select! {
        () = running.stop.cancelled() => Choice::Stop,
        () = app.closing.cancelled() => Choice::Stop,
        () = running.go_on.notified() => Choice::GoOn,
    };
    if let Choice::GoOn = choice {
        progress.resume(Now::read());
        emit_changes(app, running, progress.flush_changes());
        emit_held(app, running, false);
    }
    choice
}

fn emit_held(app: &App, running: &Running, is_held: bool) {
    running.message().is_held = is_held;
    app.emit(running.event(Event::Message { message: running.shown() }));
}

/// The figures of an answer that was held or ended before: those of its prompt are the first
/// request's, the rest is counted together.
pub(crate) fn with_before(
    stats: GenerationStats,
    before: Option<GenerationStats>,
) -> GenerationStats {
    let Some(before) = before else { return stats };
    let num_generation_tokens = before.num_generation_tokens + stats.num_generation_tokens;
    let seconds = |stats: &GenerationStats| match stats.generation_tps > 0.0 {
        true => stats.num_generation_tokens as f64 / stats.generation_tps,
        false => 0.0,
    };
    let together = seconds(&before) + seconds(&stats);
    GenerationStats {
        finish_reason: stats.finish_reason,
        num_generation_tokens,
        guesses: GuessCounts::together(before.guesses, stats.guesses),
        saved_ms: match (before.saved_ms, stats.saved_ms) {
            (Some(before), Some(now)) => Some(before + now),
            (before, now) => before.or(now),
        },
        generation_tps: if together > 0.0 { num_generation_tokens as f64 / together } else { 0.0 },
        mlx_active_bytes: stats.mlx_active_bytes,
        mlx_peak_bytes: before.mlx_peak_bytes.max(stats.mlx_peak_bytes),
        process_bytes: stats.process_bytes,
        process_peak_bytes: stats.process_peak_bytes,
        ..before
    }
}

/// The figures of an answer that goes on behind `num_so_far` tokens of which there are none, because
/// it was interrupted: they count as generated, not as read.
pub(crate) fn with_so_far(stats: GenerationStats, num_so_far: usize) -> GenerationStats {
    let num_prompt_tokens = stats.num_prompt_tokens.saturating_sub(num_so_far);
    let num_cached_tokens = stats.num_cached_tokens.min(num_prompt_tokens);
    let num_beyond = stats.num_cached_tokens - num_cached_tokens;
    GenerationStats {
        num_prompt_tokens,
        num_cached_tokens,
        cached_from: stats.cached_from.map(|mut from| {
            from.shorten(num_beyond);
            from
        }),
        num_generation_tokens: stats.num_generation_tokens + num_so_far,
        ..stats
    }
}
