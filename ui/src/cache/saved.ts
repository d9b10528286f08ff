// The saved context of chats and starting points in words, for the model that answers.
import type { AnsweringModel } from '../chat/chatModel.svelte';
import { causeWords } from '../chat/misses';
import type { Prefill } from '../chat/thread.svelte';
import type {
  CacheOverview,
  ChatOutlook,
  ConversationCache,
  ImportPreview,
  NamedCache,
  TimeSaved,
} from '../platform/wire';
import { shortModelName } from '../status/engine';
import type { StatusStore } from '../status/status.svelte';
import { strings } from '../text';

/** How much of a chat its model need not read again. */
export type SavedState = 'saved' | 'partly' | 'none';

/** Whether a model is on this machine. */
export type IsHere = (name: string) => boolean;

/**
 * Whether a chat's model can use saved context. Of one that is not in memory only the name is known; while
 * none is to answer, the right one will be chosen, if it is here.
 */
function fits(cache: ConversationCache, model: AnsweringModel | null, isHere: IsHere): boolean {
  if (model === null) return isHere(cache.model);
  return model.fingerprint === null ? cache.model === model.name : cache.fingerprint === model.fingerprint;
}

/** Less than this part of what was read before is not of the chat: it is how many chats begin. */
const LEAST_PART = 0.1;

/** `ahead`: what the engine would find now, where it was asked. It knows of other prompts and settings; what is saved does not. */
export function savedState(
  cache: ConversationCache | null,
  model: AnsweringModel | null,
  isHere: IsHere,
  ahead: ChatOutlook | null = null,
): SavedState {
  if (ahead) return cache ? stateAhead(ahead) : stateOfShared(ahead);
  if (!cache) return 'none';
  if (cache.cached_tokens === 0 || !fits(cache, model, isHere)) return 'none';
  return cache.is_whole ? 'saved' : 'partly';
}

function stateAhead({ known_tokens, cached_tokens, miss }: ChatOutlook): SavedState {
  if (miss === null) return 'saved';
  return cached_tokens < LEAST_PART * known_tokens ? 'none' : 'partly';
}

/** Of a chat that nothing is saved for, as one that was imported: other chats may have saved the same text. */
function stateOfShared({ known_tokens, cached_tokens }: ChatOutlook): SavedState {
  if (cached_tokens <= LEAST_PART * known_tokens) return 'none';
  return cached_tokens >= (1 - LEAST_PART) * known_tokens ? 'saved' : 'partly';
}

/** The state of a chat in a few words, for its row in the list. */
export function savedSummary(
  cache: ConversationCache | null,
  model: AnsweringModel | null,
  isHere: IsHere,
  ahead: ChatOutlook | null = null,
): string {
  const state = strings.saved.states[savedState(cache, model, isHere, ahead)];
  if (!cache || (ahead && ahead.miss !== null)) return state;
  const summary = savedAmount(cache, model, isHere, state);
  return cache.is_pinned ? strings.saved.pinned(summary) : summary;
}

function savedAmount(cache: ConversationCache, model: AnsweringModel | null, isHere: IsHere, state: string): string {
  if (cache.cached_tokens === 0) return state;
  if (fits(cache, model, isHere)) return strings.saved.amount(state, cache.cached_tokens, cache.cached_bytes);
  const reader = shortModelName(cache.model);
  if (model === null) return strings.saved.forMissing(reader);
  if (cache.model === model.name) return strings.saved.forOtherVersion(reader);
  return strings.saved.forOtherModel(shortModelName(model.name), reader);
}

/** What happens with the next message of a chat, and why. */
export interface Outlook {
  heading: string;
  reason: string | null;
}

/** Everything else that decides about the next message of a chat. */
export interface Surroundings {
  /** Context that is not pinned is saved on disk, too. */
  hasDisk: boolean;
  /** Nothing more fits into the model's context. */
  isFull: boolean;
  /** Documents of the next message are not read yet. */
  hasUnread: boolean;
}

const USUAL: Surroundings = { hasDisk: true, isFull: false, hasUnread: false };

/**
 * `cache`: null where nothing was ever saved for the chat. `estimateMs`: how long its model will read again; null if unknown.
 * `ahead`: as in `savedState`.
 */
export function outlook(
  cache: ConversationCache | null,
  model: AnsweringModel | null,
  isHere: IsHere,
  estimateMs: number | null,
  ahead: ChatOutlook | null = null,
  { hasDisk, isFull, hasUnread }: Surroundings = USUAL,
): Outlook {
  const { saved } = strings;
  const state = savedState(cache, model, isHere, ahead);
  if (isFull) return { heading: state === 'saved' ? saved.full : saved.contextFull, reason: null };
  const reason = (cache && whyNone(cache, model, isHere)) ?? (ahead && whyAgain(ahead));
  if (state === 'none') return { heading: saved.readAgainOnce(estimateMs), reason };
  if (state === 'partly') {
    const heading = estimateMs === null ? saved.restReadAgainOnce : saved.restReadAgainOnceAbout(estimateMs);
    return { heading, reason };
  }
  const isReady = model?.fingerprint != null || cache === null;
  const lasts = hasDisk || cache?.is_pinned || cache?.tier === 'disk';
  const limits = hasUnread ? saved.withDocuments : lasts ? null : saved.untilClosed;
  if (isReady) return { heading: saved.ready, reason: limits };
  return { heading: saved.readyOnceLoaded(shortModelName(model?.name ?? cache.model)), reason: limits };
}

/**
 * How much of a prompt the model has read that it reads for an answer, from 0 to 1. Null if nearly all of it was saved
 * before: such a chat is ready, and stays so.
 */
export function readingShare({ processed_tokens, total_tokens, cached_tokens }: Prefill): number | null {
  if (total_tokens === 0 || cached_tokens >= (1 - LEAST_PART) * total_tokens) return null;
  return processed_tokens / total_tokens;
}

function whyNone(cache: ConversationCache, model: AnsweringModel | null, isHere: IsHere): string | null {
  if (cache.cached_tokens === 0 || fits(cache, model, isHere)) return null;
  const reader = shortModelName(cache.model);
  if (model === null) return strings.saved.notHere(reader);
  // The same name with other weights: there is no model to choose instead.
  if (cache.model === model.name) return strings.saved.modelChanged(reader);
  const answering = shortModelName(model.name);
  // Only what can be chosen is recommended.
  return isHere(cache.model)
    ? strings.saved.chooseToContinue(answering, reader)
    : strings.saved.notHereInstead(reader, answering);
}

function whyAgain({ miss }: ChatOutlook): string | null {
  return miss === null ? null : strings.saved.because(causeWords(miss, Date.now()));
}

/** What deleting the saved context of a chat does, before it is done. */
export function deleteQuestion(cache: ConversationCache): string {
  return cache.shared_with.length > 0 ? strings.saved.deleteQuestionShared : strings.saved.deleteQuestion;
}

/** What deleting has done. `before`: what was saved until then. */
export function deletedMessage(title: string, before: ConversationCache): string {
  const isShared = before.cached_bytes > before.own_bytes;
  return isShared ? strings.saved.deletedShared(title) : strings.saved.deleted(title);
}

/** The models in memory. */
type InMemory = Pick<StatusStore, 'loaded' | 'inMemory'>;

/** The line under the name of a starting point. */
export function startingPointFacts(point: NamedCache, models: InMemory, isHere: IsHere): string[] {
  const { startingPoints } = strings;
  const facts = [strings.common.tokens(point.tokens)];
  if (point.tier) facts.push(strings.pieces.stored(point.bytes, point.tier));
  else facts.push(point.bytes > 0 ? startingPoints.partly : startingPoints.none);
  facts.push(...forWhom(point, models, isHere));
  if (point.num_conversations > 0) facts.push(startingPoints.numChats(point.num_conversations));
  return facts;
}

/** What to expect of a chat that begins with a starting point. */
export function startingPointOutlook(point: NamedCache, models: InMemory, isHere: IsHere): string {
  const { startingPoints } = strings;
  const facts = [strings.common.tokens(point.tokens)];
  const reader = readerOf(point, models, isHere);
  if (reader !== 'gone') facts.push(point.tier && reader === 'same' ? startingPoints.ready : startingPoints.willBeRead);
  facts.push(...forWhom(point, models, isHere));
  if (point.imported_from !== null) facts.push(strings.common.imported);
  return facts.join(' · ');
}

/** Whether a chat that begins with a starting point starts at once. */
export function startingPointState(point: NamedCache, models: InMemory, isHere: IsHere): SavedState {
  if (readerOf(point, models, isHere) !== 'same') return 'none';
  if (point.tier) return 'saved';
  return point.bytes > 0 ? 'partly' : 'none';
}

/** The model that has read a starting point, where another is loaded. */
function forWhom(point: NamedCache, models: InMemory, isHere: IsHere): string[] {
  if (point.fingerprint === models.loaded?.fingerprint) return [];
  const model = shortModelName(point.model);
  const { startingPoints } = strings;
  return [
    readerOf(point, models, isHere) === 'gone' ? startingPoints.forMissing(model) : startingPoints.forModel(model),
  ];
}

/**
 * Whether the model that has read a starting point, which answers the chats that begin with it, is on this machine with the
 * same files as then.
 */
function readerOf(point: NamedCache, { inMemory }: InMemory, isHere: IsHere): 'same' | 'changed' | 'gone' {
  // The same files may have another name.
  if ([...inMemory.values()].includes(point.fingerprint)) return 'same';
  if (!isHere(point.model)) return 'gone';
  return inMemory.has(point.model) ? 'changed' : 'same';
}

/** How much of a limit is used. Pinned chats, starting points and what is in use may exceed it. */
export function storageUsage(bytes: number, limit: number): string {
  return bytes > limit ? strings.saved.usageOver(bytes, limit) : strings.saved.usage(bytes, limit);
}

/** How much of all prompts came from saved context since Cairn started. */
export function hitRate({ prompt_tokens, cached_tokens }: CacheOverview): string {
  if (prompt_tokens === 0) return strings.saved.noPrompts;
  return strings.saved.hitRate(cached_tokens / prompt_tokens, cached_tokens, prompt_tokens);
}

/** Less is not mentioned. */
const LEAST_SAVED_MS = 1000;

/** How much reading was saved in all; null where it is next to nothing. */
export function timeSavedWords({ all_ms, since_ms }: TimeSaved): string | null {
  return all_ms >= LEAST_SAVED_MS ? strings.saved.timeSaved(all_ms, since_ms) : null;
}

/** How much reading each chat saved, by its id, as far as it is worth mentioning. */
export function timeSavedByChat({ chats }: TimeSaved): Map<string, string> {
  const worth = chats.filter(({ saved_ms }) => saved_ms >= LEAST_SAVED_MS);
  return new Map(
    worth.map(({ conversation_id, saved_ms }) => [conversation_id, strings.saved.timeSavedHere(saved_ms)]),
  );
}

/** The facts about a file that is about to be imported, as rows of a table; unknown ones are left out. */
export function previewRows(preview: ImportPreview): [name: string, value: string][] {
  const { imports } = strings;
  const rows: [string, string][] = [[imports.file, preview.file_name]];
  if (preview.title) rows.push([imports.fileTitle, preview.title]);
  if (preview.model) rows.push([imports.model, preview.model]);
  // The number is 0 for a file that could not be read.
  if (preview.tokens > 0) {
    const contains = preview.kind === 'conversation' ? imports.aChat : imports.aBeginning;
    rows.push([imports.contains, contains], [imports.length, strings.common.tokens(preview.tokens)]);
  }
  rows.push([imports.size, strings.common.bytes(preview.bytes)]);
  if (preview.made_by) rows.push([imports.madeBy, preview.made_by]);
  if (preview.created_at_ms !== null) rows.push([imports.madeOn, imports.date(preview.created_at_ms)]);
  return rows;
}

/** The positions of a run of tokens, counted from 1 as people do. */
export function positions(start: number, tokens: number): string {
  return strings.pieces.positions(start + 1, start + Math.max(1, tokens));
}

/** The beginning of a name that has more than `most` characters, of whole words where they leave at least half of it. */
export function cutAtWord(name: string, most: number): string {
  if (name.length <= most) return name;
  const kept = name.slice(0, most - 1);
  const isWhole = /\s/.test(name.charAt(most - 1));
  const end = isWhole ? kept.length : kept.search(/\s\S*$/);
  // Half of a character that takes two units is none.
  const cut = end >= most / 2 ? kept.slice(0, end) : kept.replace(/[\uD800-\uDBFF]$/, '');
  return `${cut.trimEnd()}…`;
}
