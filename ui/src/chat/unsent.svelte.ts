// Chats in which nothing was sent: the one that the first message makes, and those that were left with nothing in them.
import { runOrReport, type Platform } from '../platform/platform';
import type { Command, Conversation, Persona, Settings } from '../platform/wire';
import { isUnsent, type ConversationList } from './conversations.svelte';

export interface UnsentOptions {
  platform: Platform;
  report: (error: unknown) => void;
  list: ConversationList;
  /** Runs a command about a chat; returns whether it worked. */
  run: (command: Command, id: string, onDone?: () => void) => Promise<boolean>;
  /** Makes a chat and opens it; returns its id. */
  make: (command: Command) => Promise<string>;
}

/** Owns what the chat without a row will be, until its first message makes the row. */
export class UnsentChats {
  /** The folder in which it is made. */
  folderId = $state<string | null>(null);
  /** The persona that it will have. */
  persona = $state.raw<Persona | null>(null);
  /** The model that was chosen for it. */
  model = $state<string | null>(null);
  /** What is set for how it is answered. */
  values = $state.raw<Partial<Settings>>({});
  /** Counts the chats that were begun anew. */
  count = $state(0);
  #prompt = $state('');
  /** Whether a folder or a persona of this id is listed; their owner sets it. */
  isHere: (what: 'folder' | 'persona', id: string) => boolean = () => true;
  /** What chats that are begun in a folder begin with; its owner sets it. */
  promptOfFolder: (id: string) => string = () => '';
  /** Chats that were left with nothing in them; a document that is brought back brings its chat back. */
  readonly #left = new Map<string, Conversation>();
  readonly #options: UnsentOptions;

  constructor(options: UnsentOptions) {
    this.#options = options;
  }

  get systemPrompt(): string {
    const ofFolder = this.folderId === null ? '' : this.promptOfFolder(this.folderId);
    return this.#prompt || (this.persona?.system_prompt ?? ofFolder);
  }

  set systemPrompt(text: string) {
    this.#prompt = text;
  }

  /** The next message makes a chat in this folder, or with this persona. */
  begin(folderId: string | null, persona: Persona | null): void {
    this.forget();
    this.folderId = folderId;
    this.persona = persona;
    this.count++;
  }

  /** Another chat is opened instead. Its system prompt stays, as its draft does. */
  forget(): void {
    this.folderId = null;
    this.persona = null;
    this.model = null;
    this.values = {};
  }

  /** Whether this row is the page of a new chat in a folder, or with a persona. */
  isFor(row: Conversation, folderId: string | null, personaId: string | null): boolean {
    // One of a folder or persona that is gone is one of none: no other way leads to it.
    const isOf = (what: 'folder' | 'persona', id: string | null, wanted: string | null) =>
      (id !== null && this.isHere(what, id) ? id : null) === wanted;
    return isUnsent(row) && isOf('folder', row.folder_id, folderId) && isOf('persona', row.persona_id, personaId);
  }

  /** Makes its row, with all that was set for it. */
  async make(): Promise<string> {
    const { list, make, platform } = this.#options;
    const { model, values } = this;
    const system_prompt = this.#prompt;
    const id = await make(this.#command());
    this.forget();
    this.#prompt = '';
    for (const [key, value] of Object.entries(values) as [keyof Settings, Settings[keyof Settings]][])
      await runOrReport(this.#options, { type: 'set_setting', scope: { type: 'chat', id }, key, value });
    // Without them nothing is sent: the message stays in the new chat.
    if (model !== null) await platform.call({ type: 'choose_model', id, model });
    if (system_prompt === '') return id;
    await platform.call({ type: 'set_system_prompt', id, system_prompt });
    const conversation = list.get(id);
    if (conversation) list.put({ ...conversation, system_prompt });
    return id;
  }

  #command(): Command {
    if (this.persona) return { type: 'new_conversation_as', persona_id: this.persona.id };
    if (this.folderId === null) return { type: 'new_conversation' };
    return { type: 'new_conversation_in', folder_id: this.folderId };
  }

  /** Deletes the row of a chat that is left with nothing in it. */
  leave(row: Conversation): void {
    this.#left.set(row.id, row);
    this.#options.list.take([row.id]);
    void this.#options.run({ type: 'delete_conversations', ids: [row.id] }, row.id);
  }

  /** Sees to it that a chat is there to which something is brought back; returns whether it is. */
  async bringBack(id: string, onBack: () => void): Promise<boolean> {
    const { list, run } = this.#options;
    const row = this.#left.get(id);
    if (!row || list.get(id)) return true;
    return run({ type: 'restore_conversations', ids: [id] }, id, () => {
      this.#left.delete(id);
      list.put(row);
      onBack();
    });
  }
}
