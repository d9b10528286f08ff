// How much of the model's context the open chat takes, asked again whenever that may have changed.
import type { Platform } from '../platform/platform';
import type { AtOverflow, ChatContext, ContextCut, ContextOf, Message, NewChat } from '../platform/wire';

/** Less than this share of the context is little, however short answers are. */
const LITTLE = 0.1;
/** What is left for the next answer, and whether that is little. */
export interface Room {
  left: number;
  /** `tight`: next, something happens. `full`: what is written now no longer fits. */
  state: 'enough' | 'tight' | 'full';
}

export function roomOf({ limit_tokens, used_tokens, answer_tokens }: ChatContext): Room {
  const left = limit_tokens - used_tokens;
  if (left <= 0) return { left: 0, state: 'full' };
  const little = Math.max(answer_tokens, limit_tokens * LITTLE);
  return { left, state: used_tokens > 0 && left < little ? 'tight' : 'enough' };
}

/** The place from which a branch is read; null: from its beginning. */
export function cutOf(messages: readonly Message[]): { index: number; id: string; cut: ContextCut } | null {
  const index = messages.findLastIndex(({ cut }) => cut != null);
  const message = messages[index];
  return message?.cut ? { index, id: message.id, cut: message.cut } : null;
}

/** Owns what is known of the open chat's context. */
export class ContextStore {
  /** Null until it is known, and while no model is loaded that reads the chat. */
  current = $state.raw<ChatContext | null>(null);
  /** The chat that `current` is for; null for a chat without a row, undefined before the first. */
  #of: string | null | undefined;
  #numAsked = 0;
  /** The messages that it counts; null: they were not known. */
  counted = $state.raw<readonly Message[] | null>(null);

  constructor(
    private readonly platform: Platform,
    private readonly report: (error: unknown) => void,
  ) {}

  /**
   * Asks for a chat, which has these messages now as far as they are known, or for what a new one begins with. The core
   * does not count an answer that is being written.
   */
  async refresh(chat: string | NewChat, messages: readonly Message[] | null = null): Promise<void> {
    const id = typeof chat === 'string' ? chat : null;
    if (this.#of !== id) this.current = null;
    this.#of = id;
    const asked = ++this.#numAsked;
    try {
      const of: ContextOf = typeof chat === 'string' ? { type: 'conversation', id: chat } : { type: 'new', ...chat };
      const reply = await this.platform.call({ type: 'get_context', of });
      if (asked !== this.#numAsked) return;
      this.current = reply.type === 'context' ? reply.context : null;
      this.counted = messages?.filter(({ status }) => status !== 'streaming') ?? null;
    } catch {
      // A chat that is gone has none, and a core that does not answer is told of elsewhere.
      if (asked === this.#numAsked) this.current = null;
    }
  }

  /** Chooses what happens to a chat that has outgrown the context; whether it is so now. */
  async choose(conversation_id: string, value: AtOverflow): Promise<boolean> {
    const scope = { type: 'chat', id: conversation_id } as const;
    return this.#call(() => this.platform.call({ type: 'set_setting', scope, key: 'at_overflow', value }));
  }

  /** Lets the model read again what it had forgotten. */
  async readAgain(conversation_id: string, message_id: string): Promise<void> {
    if (await this.#call(() => this.platform.call({ type: 'read_again', conversation_id, message_id })))
      await this.refresh(conversation_id, this.counted);
  }

  async #call(run: () => Promise<unknown>): Promise<boolean> {
    try {
      await run();
      return true;
    } catch (error) {
      this.report(error);
      return false;
    }
  }
}
