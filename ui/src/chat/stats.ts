// The figures under an answer, and the states it can end in, in words.
import type { Message, MessageStats } from '../platform/wire';
import { formatBytes, formatCount, formatMilliseconds, formatRate } from '../ui/numbers';
import type { Prefill } from './thread.svelte';

/** What was not read anew because the conversation kept its place. */
export function cacheWords({ cached_tokens, prompt_tokens }: MessageStats): string {
  return `${formatCount(cached_tokens)} of ${formatCount(prompt_tokens)} tokens read from cache`;
}

/** The line of figures, most telling first. */
export function statsWords(stats: MessageStats): string[] {
  const words = [];
  if (stats.generation_tokens > 0) words.push(`${formatRate(stats.generation_tps)} tok/s`);
  if (stats.time_to_first_token_ms > 0) words.push(`first token ${formatMilliseconds(stats.time_to_first_token_ms)}`);
  words.push(cacheWords(stats));
  return words;
}

/** Everything there is to know about an answer, as rows of a table. */
export function statsRows(stats: MessageStats): [name: string, value: string][] {
  const read = stats.prompt_tokens - stats.cached_tokens;
  const rate = stats.prompt_tps > 0 ? ` at ${formatRate(stats.prompt_tps)} tok/s` : '';
  // Less is the way through the queue, not a wait that anyone noticed.
  const waited = stats.queue_ms >= 100 ? `, of which ${formatMilliseconds(stats.queue_ms)} waiting for its turn` : '';
  const hasBegun = stats.generation_tokens > 0 || stats.time_to_first_token_ms > 0;
  const answer: [string, string][] = hasBegun
    ? [
        ['Answer', `${formatCount(stats.generation_tokens)} tokens at ${formatRate(stats.generation_tps)} tok/s`],
        ['First token', `after ${formatMilliseconds(stats.time_to_first_token_ms)}${waited}`],
      ]
    : [['Answer', 'stopped before its first token']];
  return [
    ['Model', stats.model],
    ['Prompt', `${formatCount(read)} tokens newly read${rate}, ${formatCount(stats.cached_tokens)} from cache`],
    ...answer,
    ['App memory', `${formatBytes(stats.process_bytes)} now, ${formatBytes(stats.process_peak_bytes)} at most`],
    ['MLX memory', `${formatBytes(stats.mlx_active_bytes)} now, ${formatBytes(stats.mlx_peak_bytes)} at most`],
  ];
}

export function memoryWords(stats: MessageStats): string {
  return `app ${formatBytes(stats.process_bytes)}, MLX ${formatBytes(stats.mlx_active_bytes)}`;
}

export function peakWords(stats: MessageStats): string {
  return `Most memory: app ${formatBytes(stats.process_peak_bytes)}, MLX ${formatBytes(stats.mlx_peak_bytes)}`;
}

export function prefillWords({
  processed_tokens,
  total_tokens,
}: Pick<Prefill, 'processed_tokens' | 'total_tokens'>): string {
  return `Reading ${formatCount(processed_tokens)} of ${formatCount(total_tokens)} tokens`;
}

/** How an answer ended when it did not end by itself, and what can be done (`isLast`: it can be regenerated). */
export function endingWords(message: Message, isLast: boolean): string | null {
  const then = (advice: string) => (isLast ? ` ${advice}` : '');
  switch (message.status) {
    case 'stopped':
      return `You stopped this answer.${then('Regenerate to have it written again.')}`;
    case 'interrupted':
      return `Cairn was closed while this was written.${then('Regenerate to have it written anew.')}`;
    case 'failed':
      return `${message.error ?? 'This answer could not be written.'}${then('Regenerate to try again.')}`;
    case 'complete':
      if (message.stats?.finish_reason !== 'length') return null;
      return `This answer reached its limit of ${formatCount(message.stats.generation_tokens)} tokens.${then('Ask to continue, or raise the limit in Settings.')}`;
    case 'streaming':
      return null;
  }
}
