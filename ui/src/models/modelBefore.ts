// The model that a chat was last answered by, where another is loaded now.
import type { Conversation, Message, Model } from '../platform/wire';
import type { StatusStore } from '../status/status.svelte';

export interface ModelBefore {
  name: string;
  /** Tokens of the chat that are saved for it, and that it need not read again. */
  savedTokens: number;
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
  const name = messages.findLast(({ stats }) => stats !== null)?.stats?.model ?? cache?.model;
  if (name === undefined || name === model || !loadable.some((other) => other.name === name)) return null;
  if (cache && cache.fingerprint === loaded?.fingerprint) return null;
  return { name, savedTokens: cache?.model === name ? cache.cached_tokens : 0 };
}
