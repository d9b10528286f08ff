// The model that a chat was last answered by, where another is loaded now.
import type { Conversation, Message, Model } from '../platform/wire';
import type { StatusStore } from '../status/status.svelte';

export interface ModelBefore {
  name: string;
  /** Tokens of the chat that are saved for it, and that it need not read again. */
  savedTokens: number;
  /** All that it has read is saved. */
  isWhole: boolean;
  /** Tokens of the chat, which another model has to read; the last answer counted them. */
  readTokens: number;
}

/** Null where it is loaded, can no longer be loaded, or is not known. The same files under another name are the same model. */
export function modelBefore(
  conversation: Conversation | undefined,
  messages: readonly Message[],
  { loaded, model }: Pick<StatusStore, 'loaded' | 'model'>,
  loadable: readonly Model[],
): ModelBefore | null {
  if (model === null) return null;
  const cache = conversation?.cache ?? null;
  const stats = messages.findLast((message) => message.stats !== null)?.stats ?? null;
  const name = stats?.model ?? cache?.model;
  if (name === undefined || name === model || !loadable.some((other) => other.name === name)) return null;
  if (cache && cache.fingerprint === loaded?.fingerprint) return null;
  const own = cache?.model === name ? cache : null;
  return {
    name,
    savedTokens: own?.cached_tokens ?? 0,
    isWhole: own?.is_whole ?? false,
    readTokens: stats ? stats.prompt_tokens + stats.generation_tokens : (own?.cached_tokens ?? 0),
  };
}
