// The one interface between the app and whatever runs its core: a desktop shell or a server on this machine.
import type { Command, Event, FailureCode, Reply } from './wire';

/** Where the event stream stands. `refused`: the server does not know our token, trying again would not help. */
export type Connection = 'connecting' | 'open' | 'reconnecting' | 'refused';

export interface Platform {
  /** Runs one command. Rejects with a {@link CallError}. */
  call(command: Command): Promise<Reply>;
  /** Delivers events in order until the returned function is called. After each `open` the state has to be asked for anew. */
  subscribe(onEvent: (event: Event) => void, onState: (state: Connection) => void): () => void;
  /** Calls back when the menu-bar item asks for a new chat, where there is one. */
  onNewChat?(run: () => void): () => void;
}

/** A command that did not work; `message` is a sentence to show. `unreachable`: the core never answered. */
export class CallError extends Error {
  constructor(
    readonly code: FailureCode | 'unreachable',
    message: string,
  ) {
    super(message);
    this.name = 'CallError';
  }
}

/** The sentence to show for anything that was thrown by a call. */
export function sentenceOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
