// The status line under an answer, the figures behind it, and the states it can end in.
import { failureSentence } from '../platform/failures';
import type { FailureKind, Message, MessageStats } from '../platform/wire';
import { shortModelName } from '../status/engine';
import { strings } from '../text';
import { newlyRead, savedMilliseconds } from './estimates';
import { causeWords } from './misses';
import type { Prefill } from './thread.svelte';

/** A first answer with fewer cached tokens only shares its template or a short system prompt with other chats. */
const LEAST_CONTINUED_TOKENS = 256;
/** Neither does a later one share more, where less than this part of what was before it was cached: an imported chat's. */
const LEAST_CONTINUED_PART = 0.1;

/** How fast fewer tokens were read says nothing. */
const LEAST_RATED_TOKENS = 16;

/**
 * `continued`: saved context was used. `reread`: some of it could not be. `read`: there was none to use, or most of it was
 * read for this question before that was sent, which saves no time.
 */
export interface StatusLine {
  kind: 'continued' | 'reread' | 'read';
  words: string;
  /** The tokens behind the words, for a tooltip. */
  detail: string;
}

/** The most important fact about an answer. `hasStartingPoint`: its chat begins with one. */
export function statusLine(
  message: Message & { stats: MessageStats },
  messages: readonly Message[],
  hasStartingPoint: boolean,
): StatusLine {
  const { stats } = message;
  const detail = promptWords(stats);
  if (stats.miss && isFirstReading(message, messages)) {
    return { kind: 'read', words: strings.stats.firstReading, detail };
  }
  if (stats.miss) {
    const words = strings.stats.readAgain(stats.miss.tokens, causeWords(stats.miss, message.created_at_ms));
    return { kind: 'reread', words, detail };
  }
  if (stats.cache_note) return { kind: 'reread', words: rereadWords(stats.cache_note), detail };
  const saved = savedMilliseconds(stats, messages);
  const readAhead = stats.cached_from?.read_ahead ?? 0;
  if (readAhead * 2 > stats.cached_tokens && saved === null)
    return { kind: 'read', words: strings.stats.readAhead, detail };
  const least = hasStartingPoint ? 1 : leastContinued(message, messages);
  // An answer that is written again has its whole prompt there; the last token of one is always read.
  const isWhole = stats.cached_tokens > 0 && stats.cached_tokens >= stats.prompt_tokens - 1;
  const isContinued = isWhole || stats.cached_tokens >= least;
  if (!isContinued) {
    const { read, readAndKept } = strings.stats;
    const words =
      stats.kept_tokens === null ? read(newlyRead(stats)) : readAndKept(stats.prompt_tokens, stats.kept_tokens);
    return { kind: 'read', words, detail };
  }
  return {
    kind: 'continued',
    words: saved === null ? strings.stats.continued : strings.stats.continuedSaving(saved),
    detail,
  };
}

/** Whether only other models have answered in the chat before: what such a one reads is no loss. */
function isFirstReading({ id, stats }: Message & { stats: MessageStats }, messages: readonly Message[]): boolean {
  if (stats.miss?.cause !== 'other_model') return false;
  const index = messages.findIndex((message) => message.id === id);
  return !messages.slice(0, Math.max(index, 0)).some((message) => message.stats?.model === stats.model);
}

function leastContinued({ id, stats }: Message & { stats: MessageStats }, messages: readonly Message[]): number {
  const index = messages.findIndex((message) => message.id === id);
  if (index <= 1) return LEAST_CONTINUED_TOKENS;
  const before = messages.slice(0, index).findLast((message) => message.stats !== null)?.stats;
  const known = before ? before.prompt_tokens + before.generation_tokens : stats.prompt_tokens;
  return Math.max(1, LEAST_CONTINUED_PART * Math.min(known, stats.prompt_tokens));
}

/** The parts of the note of an earlier version, which is stored as “re-read 285 tokens: the system prompt changed at token 12”. */
function rereadWords(note: string): string {
  const found = /^re-read ([\d,]+) tokens: (.+)$/s.exec(note.trim());
  if (!found) return note.trim();
  const [, count = '', reason = ''] = found;
  return strings.stats.readAgain(Number(count.replaceAll(',', '')), reason.replace(/ at token [\d,]+\.?$/, ''));
}

/** How much of a prompt was read, was saved and was kept. */
function promptWords(stats: MessageStats): string {
  const { promptContinued, promptRead } = strings.stats;
  const words = (stats.cached_from ? promptContinued : promptRead)(newlyRead(stats), stats.cached_tokens);
  return stats.kept_tokens === null ? words : strings.stats.withKept(words, stats.kept_tokens);
}

/** All figures of an answer, as rows of a table; `title` says what a short value leaves out. */
export function statsRows(stats: MessageStats): [name: string, value: string, title?: string][] {
  const words = strings.stats;
  const rows: [string, string, string?][] = [
    [words.model, shortModelName(stats.model), stats.model],
    [words.prompt, promptWords(stats)],
  ];
  const from = stats.cached_from;
  for (const source of ['in_memory', 'restored', 'shared', 'read_ahead'] as const)
    if (from && from[source] > 0) rows.push([words.sources[source], strings.common.tokens(from[source])]);
  if (stats.prompt_tps > 0 && newlyRead(stats) >= LEAST_RATED_TOKENS)
    rows.push([words.readingSpeed, words.rate(stats.prompt_tps)]);
  const hasBegun = stats.generation_tokens > 0 || stats.time_to_first_token_ms > 0;
  if (hasBegun) {
    rows.push([words.answer, answerWords(stats)], [words.firstToken, firstTokenWords(stats)]);
    if (stats.guesses) {
      const { accepted, proposed, checked } = stats.guesses;
      rows.push([words.guesses, words.guessed(accepted, proposed, checked)]);
    }
  } else rows.push([words.answer, words.stoppedBeforeFirst]);
  rows.push(
    [words.appMemory, words.memory(stats.process_bytes, stats.process_peak_bytes)],
    [words.mlxMemory, words.memory(stats.mlx_active_bytes, stats.mlx_peak_bytes)],
  );
  return rows;
}

/** Without a speed where the tokens are too few to tell. */
function answerWords({ generation_tokens, generation_tps }: MessageStats): string {
  if (generation_tps <= 0) return strings.common.tokens(generation_tokens);
  return strings.stats.answerRate(generation_tokens, generation_tps);
}

function firstTokenWords({ time_to_first_token_ms, queue_ms }: MessageStats): string {
  // Less than this nobody notices as waiting.
  if (queue_ms < 100) return strings.stats.firstTokenAfter(time_to_first_token_ms);
  return strings.stats.firstTokenAfterWait(time_to_first_token_ms, queue_ms);
}

export function prefillWords({
  processed_tokens,
  total_tokens,
}: Pick<Prefill, 'processed_tokens' | 'total_tokens'>): string {
  return strings.reading.progress(processed_tokens, total_tokens);
}

/** How an error ends that says itself what to do: “…: shorten it or start a new conversation.” */
const REMEDY = /: (ask|choose|download|import|make|shorten|start|use) [^:]+$/;

/** Kinds of failures whose sentences do not. */
const WITHOUT_REMEDY = new Set<FailureKind['type']>(['closing', 'load_cancelled', 'database', 'engine']);

/**
 * How an answer ended before its end, and what can be done (`isLast`: it can be regenerated, or go on).
 * `isSaidBelow`: what can be done about a full context is offered above the composer.
 */
export function endingWords(message: Message, isLast: boolean, isSaidBelow = false): string | null {
  const { endings } = strings;
  const withAdvice = (ending: string, advice: string) => {
    if (!isLast) return ending;
    return `${ending} ${message.can_continue ? endings.continueAdvice : advice}`;
  };
  // Also of an answer that was whole so far and could not go on.
  if (message.error && message.status !== 'streaming') {
    const isHelped = !isLast || isSaidBelow;
    if (isHelped && message.error_kind?.type === 'context_full') return endings.tooLong(message.error_kind);
    const why = failureSentence({ message: message.error, kind: message.error_kind });
    const { error_kind: kind } = message;
    if (kind?.type === 'load_failed' || kind?.type === 'model_unusable') {
      // Written again it would fail again: its model's files are what must change.
      return isLast && !REMEDY.test(message.error) ? `${why} ${endings.modelAdvice}` : why;
    }
    const saysWhatToDo = (kind && !WITHOUT_REMEDY.has(kind.type)) || REMEDY.test(message.error);
    return saysWhatToDo ? why : withAdvice(why, endings.failedAdvice);
  }
  switch (message.status) {
    case 'stopped':
      return withAdvice(endings.stopped, endings.stoppedAdvice);
    case 'interrupted':
      return withAdvice(endings.interrupted, endings.interruptedAdvice);
    case 'failed':
      return withAdvice(endings.failed, endings.failedAdvice);
    case 'complete':
      if (message.stats?.finish_reason === 'context' && isSaidBelow) return endings.context;
      if (message.stats?.finish_reason === 'context') return withAdvice(endings.context, endings.contextAdvice);
      if (message.stats?.finish_reason !== 'length') return null;
      return withAdvice(endings.length(message.stats.generation_tokens), endings.lengthAdvice);
    case 'streaming':
      return null;
  }
}
