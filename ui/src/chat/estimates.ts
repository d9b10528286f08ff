// How long reading takes or would have taken, estimated from what was measured in the same chat.
import type { ConversationCache, Message, MessageStats } from '../platform/wire';

/** With fewer newly read tokens the measured time is mostly overhead. */
const LEAST_TOKENS = 512;
/** Less is not mentioned. */
const LEAST_SAVED_MS = 1000;

/** Tokens that a model reads in a second, from the longest reading in these messages; null if none was long enough. */
export function readingRate(messages: readonly Message[], model: string): number | null {
  let longest: MessageStats | null = null;
  for (const { stats } of messages) {
    if (!stats || stats.model !== model || stats.prompt_tps <= 0) continue;
    if (longest === null || newlyRead(stats) > newlyRead(longest)) longest = stats;
  }
  return longest !== null && newlyRead(longest) >= LEAST_TOKENS ? longest.prompt_tps : null;
}

/** Tokens of the prompt that did not come from saved context. */
export function newlyRead({ prompt_tokens, cached_tokens }: MessageStats): number {
  return prompt_tokens - cached_tokens;
}

/**
 * How much longer an answer would have taken without what was restored or shared; null if nothing was, or if that is
 * unknown. The core says it, because it sums it up as well; for answers of an earlier version it is estimated here.
 */
export function savedMilliseconds(stats: MessageStats, messages: readonly Message[]): number | null {
  if (typeof stats.saved_ms === 'number') return stats.saved_ms >= LEAST_SAVED_MS ? stats.saved_ms : null;
  // The core knows where the tokens came from, so there is nothing to estimate.
  if (stats.cached_from) return null;
  const rate = readingRate(messages, stats.model);
  if (rate === null) return null;
  const milliseconds = (stats.cached_tokens / rate) * 1000;
  return milliseconds >= LEAST_SAVED_MS ? milliseconds : null;
}

/** How long `model` will read again what is not saved of a chat; null where no reading was long enough to tell. `cache`: what that model can use. */
export function rereadMilliseconds(
  cache: ConversationCache | null,
  messages: readonly Message[],
  model: string,
): number | null {
  const rate = readingRate(messages, model);
  const last = messages.findLast(({ stats }) => stats !== null)?.stats;
  if (rate === null || !last) return null;
  const missing = last.prompt_tokens + last.generation_tokens - (cache?.cached_tokens ?? 0);
  return missing > 0 ? (missing / rate) * 1000 : null;
}
