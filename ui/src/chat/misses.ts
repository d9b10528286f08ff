// Why tokens were read again, and the one thing that prevents it the next time.
import type { CacheMiss, Settings } from '../platform/wire';
import { shortModelName } from '../status/engine';
import { strings } from '../text';

/** What saved context may take on disk for a person who had it take nothing. */
const FIRST_DISK_BYTES = 10e9;

/** What prevents a miss; carried out by `Remedies`. */
export type Remedy =
  | { type: 'pin' }
  | { type: 'disk_limit'; bytes: number }
  | { type: 'memory_limit'; bytes: number }
  | { type: 'system_prompt'; text: string }
  | { type: 'model'; name: string }
  | { type: 'kv_bits'; model: string; value: Settings['kv_bits'] };

/** The chat of an answer, and what holds now. */
export interface Circumstances {
  isPinned: boolean;
  isPrivate: boolean;
  /** None where it cannot be changed. */
  systemPrompt: string | null;
  settings: Pick<Settings, 'cache_budget_bytes' | 'cache_ram_budget_bytes'> | null;
  /** The names of the models that can be loaded. */
  models: readonly string[];
  /** The model that answers next. */
  loaded: string | null;
}

/** The cause in words, as the end of a sentence. `now`: when the answer was asked for. */
export function causeWords({ cause, detail, at_ms }: CacheMiss, now: number): string {
  const { causes } = strings.misses;
  const named = cause === 'other_model' && detail !== null ? shortModelName(detail) : detail;
  const words = causes[cause](named ?? '');
  return at_ms === null ? words : `${words}, ${strings.pieces.ago(at_ms, now)}`;
}

/** What prevents a miss of an answer by `model` the next time; null where nothing does, or where it is done. */
export function remedyOf(miss: CacheMiss, model: string, now: Circumstances): Remedy | null {
  const { cause, detail } = miss;
  const pin = (): Remedy | null => (now.isPinned || now.isPrivate ? null : { type: 'pin' });
  const isMemoryOnly = now.settings?.cache_budget_bytes === 0;
  const saveOnDisk = (): Remedy => ({ type: 'disk_limit', bytes: FIRST_DISK_BYTES });
  switch (cause) {
    case 'disk_limit':
    case 'cleared':
      return pin();
    case 'not_stored':
      return isMemoryOnly && !now.isPrivate ? saveOnDisk() : pin();
    case 'only_in_memory':
      return isMemoryOnly ? saveOnDisk() : null;
    case 'memory_limit':
      if (isMemoryOnly) return saveOnDisk();
      return now.settings && { type: 'memory_limit', bytes: Math.max(2 * now.settings.cache_ram_budget_bytes, 1e9) };
    case 'system_prompt_changed':
      if (detail === null || now.systemPrompt === null || now.systemPrompt === detail) return null;
      return { type: 'system_prompt', text: detail };
    case 'other_model':
      if (detail === null || detail === now.loaded || !now.models.includes(detail)) return null;
      return { type: 'model', name: detail };
    case 'other_kv_format': {
      const value = (['plain', 'eight_bits', 'four_bits'] as const).find((known) => known === detail);
      return value !== undefined && now.models.includes(model) ? { type: 'kv_bits', model, value } : null;
    }
    // What a person has done on purpose, what nobody can prevent, and what is in order again.
    case 'template_changed':
    case 'message_changed':
    case 'oldest_forgotten':
    case 'other_revision':
    case 'imported_again':
    case 'deleted':
    case 'file_missing':
    case 'unreadable':
    case 'damaged':
    case 'not_restorable':
    case 'removed_by_another_program':
    case 'not_written':
    case 'earlier_version':
    case 'other':
      return null;
  }
}

/** The words of a remedy: why it helps, the button, and what is said when it is done. */
export function remedyWords(remedy: Remedy): { note: string; action: string; done: string } {
  const words = strings.misses.remedies;
  switch (remedy.type) {
    case 'pin':
      return words.pin;
    case 'disk_limit':
      return words.diskLimit(remedy.bytes);
    case 'memory_limit':
      return words.memoryLimit(remedy.bytes);
    case 'system_prompt':
      return words.systemPrompt;
    case 'model':
      return words.model(shortModelName(remedy.name));
    case 'kv_bits':
      return words.kvBits(shortModelName(remedy.model));
  }
}
