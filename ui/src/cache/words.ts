// What is kept, in words.
import type {
  CacheKind,
  CacheOverview,
  CacheTier,
  ConversationCache,
  ImportPreview,
  NamedCache,
} from '../platform/wire';
import type { LoadedModel } from '../status/status.svelte';
import { shortModelName } from '../status/words';
import { formatBytes, formatCount } from '../ui/numbers';

/** How much of a conversation is kept: all of it in memory, all of it on disk, or only a part. */
export type Extent = CacheTier | 'part';

export function extentOf(cache: ConversationCache): Extent {
  return cache.is_whole ? cache.tier : 'part';
}

export function tokenWords(tokens: number): string {
  return tokens === 1 ? '1 token' : `${formatCount(tokens)} tokens`;
}

export function tierWords(tier: CacheTier): string {
  return tier === 'memory' ? 'in memory' : 'on disk';
}

/** Of a conversation. */
export const NOTHING_KEPT = 'Nothing is kept of this conversation now';

/** The row of a conversation: what is kept of it and what that is good for. */
export function keptWords(cache: ConversationCache, loaded: LoadedModel | null): string {
  if (cache.kept_tokens === 0) return `${NOTHING_KEPT}${cache.is_pinned ? ', pinned' : ''}`;
  const kept = `${tokenWords(cache.kept_tokens)} kept (${formatBytes(cache.kept_bytes)}, ${tierWords(cache.tier)})`;
  const then =
    cache.fingerprint !== loaded?.fingerprint
      ? `read by ${shortModelName(cache.model)}`
      : cache.is_whole
        ? 'resumes instantly'
        : 'the rest is read again';
  return `${kept}, ${then}${cache.is_pinned ? ', pinned' : ''}`;
}

/** Whether a conversation goes on at once, and why not. */
export function resumeWords(cache: ConversationCache, loaded: LoadedModel | null): string {
  if (cache.kept_tokens === 0) return 'Nothing is kept of it; its messages are read again with the next one.';
  const model = shortModelName(cache.model);
  if (loaded && cache.fingerprint !== loaded.fingerprint) {
    // The same name for other weights: there is nothing to load.
    if (cache.model === loaded.name) return `It was read by another version of ${model}: all of it is read again.`;
    return `It was read by ${model}. With ${shortModelName(loaded.name)} all of it is read again; load ${model} to go on at once.`;
  }
  if (!cache.is_whole) return 'Not all of it is kept: what is missing is read again with your next message.';
  return loaded ? 'Resumes instantly.' : `Resumes instantly once ${model} is loaded.`;
}

/** What purging does, before it is done. */
export function purgeWords(cache: ConversationCache): string {
  const shared = cache.shared_with.length > 0 ? ' A beginning that others share stays with them.' : '';
  return `What the model keeps of this conversation is removed from memory and disk. The messages stay, but all of them are read again with your next one.${shared}`;
}

/** What purging has done. `before`: what was kept until then. */
export function purgedWords(title: string, before: ConversationCache): string {
  const isShared = before.kept_bytes > before.own_bytes;
  const kept = isShared
    ? `Only what it shares with others is kept of “${title}”.`
    : `Nothing is kept of “${title}” any more.`;
  return `${kept} Its messages are all there.`;
}

/** The line under a named prompt cache. */
export function namedWords(named: NamedCache, loaded: LoadedModel | null, now: number): string[] {
  const words = [tokenWords(named.tokens)];
  if (named.tier) words.push(formatBytes(named.bytes), tierWords(named.tier));
  else
    words.push(
      named.bytes > 0 ? 'only partly kept, the rest would be read again' : 'not kept now, would be read again',
    );
  if (named.fingerprint !== loaded?.fingerprint) words.push(`for ${shortModelName(named.model)}`);
  if (named.num_conversations > 0)
    words.push(
      named.num_conversations === 1 ? '1 conversation' : `${formatCount(named.num_conversations)} conversations`,
    );
  return [...words, `used ${agoWords(named.last_used_at_ms, now)}`];
}

/** What starting from a named prompt cache spares, or costs. */
export function startWords(named: NamedCache, loaded: LoadedModel | null): string {
  const words = [tokenWords(named.tokens)];
  if (named.fingerprint !== loaded?.fingerprint) words.push(`for ${shortModelName(named.model)}`);
  else words.push(named.tier ? 'starts instantly' : 'would be read again');
  if (named.imported_from !== null) words.push('imported');
  return words.join(' · ');
}

/** Who wrote the tokens, in the words that stand above messages. */
export function kindWords(kind: CacheKind): string {
  return { system: 'System', user: 'You', assistant: 'Answer' }[kind];
}

/** How much of a budget is taken. What is named, pinned or in use stays beyond it. */
export function roomWords(bytes: number, budget: number): string {
  if (bytes > budget) return `${formatBytes(bytes)}, above the limit of ${formatBytes(budget)}`;
  return `${formatBytes(bytes)} of ${formatBytes(budget)}`;
}

/** How much the cache has spared since the start. */
export function hitWords({ lookups, prompt_tokens, cached_tokens }: CacheOverview): string {
  if (prompt_tokens === 0) return 'Nothing has been read since Cairn started.';
  // Only all of it is 100 %.
  const percent =
    cached_tokens === prompt_tokens ? 100 : Math.min(99, Math.round((cached_tokens / prompt_tokens) * 100));
  const prompts = lookups === 1 ? '1 prompt' : `${formatCount(lookups)} prompts`;
  return `${percent}% of what was needed since Cairn started came from here: ${formatCount(cached_tokens)} of ${tokenWords(prompt_tokens)} in ${prompts}.`;
}

/** Why an answer took longer than it could have, as a sentence. */
export function noteWords(note: string): string {
  const sentence = note.trim();
  return `Why it took longer: ${sentence}${/[.!?…]$/.test(sentence) ? '' : '.'}`;
}

/** The facts about a file that is about to be imported, as rows of a table: those that are known. */
export function previewRows(preview: ImportPreview): [name: string, value: string][] {
  const rows: [string, string][] = [['File', preview.file_name]];
  if (preview.title) rows.push(['Title', preview.title]);
  if (preview.model) rows.push(['Model', preview.model]);
  // A file that could not be read holds none.
  if (preview.tokens > 0)
    rows.push(
      ['Holds', preview.kind === 'conversation' ? 'a conversation' : 'the beginning of a conversation'],
      ['Length', tokenWords(preview.tokens)],
    );
  rows.push(['Size', formatBytes(preview.bytes)]);
  if (preview.made_by) rows.push(['Made by', preview.made_by]);
  if (preview.created_at_ms !== null) rows.push(['Made on', dateWords(preview.created_at_ms)]);
  return rows;
}

/** Position of the first and of the last token, counted from 1 as people do. */
export function spanWords(start: number, tokens: number): string {
  return tokens <= 1 ? formatCount(start + 1) : `${formatCount(start + 1)}–${formatCount(start + tokens)}`;
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** How long ago, roughly; the day itself after a month. */
export function agoWords(milliseconds: number, now: number): string {
  const age = now - milliseconds;
  const count = (unit: number, name: string) => {
    const number = Math.floor(age / unit);
    return `${number} ${name}${number === 1 ? '' : 's'} ago`;
  };
  if (age < MINUTE) return 'just now';
  if (age < HOUR) return count(MINUTE, 'minute');
  if (age < DAY) return count(HOUR, 'hour');
  if (age < 30 * DAY) return count(DAY, 'day');
  return `on ${dateWords(milliseconds)}`;
}

function dateWords(milliseconds: number): string {
  return new Date(milliseconds).toLocaleDateString('en-US', { day: 'numeric', month: 'short', year: 'numeric' });
}
