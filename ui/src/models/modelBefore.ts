// The model that wrote the last answer of a chat, where another answers next.
import type { AnsweringModel } from '../chat/chatModel.svelte';
import type { Conversation, Message, Model } from '../platform/wire';

export interface ModelBefore {
  name: string;
  /** Tokens of the chat that are saved for it, and that it need not read again. */
  savedTokens: number;
}

/** Null where it answers next, can no longer be loaded, or is not known. The same files under another name are the same model. */
export function modelBefore(
  conversation: Conversation | undefined,
  messages: readonly Message[],
  model: AnsweringModel | null,
  loadable: readonly Model[],
): ModelBefore | null {
  if (model === null) return null;
  const cache = conversation?.cache ?? null;
  const name = messages.findLast((message) => message.stats !== null)?.stats?.model ?? cache?.model;
  if (name === undefined || name === model.name || !loadable.some((other) => other.name === name)) return null;
  if (cache && cache.fingerprint === model.fingerprint) return null;
  return { name, savedTokens: cache?.model === name ? cache.cached_tokens : 0 };
}
