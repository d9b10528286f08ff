// Another version of a message while it is written: its text, its documents, and what becomes of those that are not sent.
import { runOrReport, type Platform } from '../platform/platform';
import type { Command, Document } from '../platform/wire';
import { strings } from '../text';
import { offerUndo } from '../ui/offerUndo';
import type { Toasts } from '../ui/toasts.svelte';
import type { UndoStack } from '../ui/undo';
import type { Thread } from './thread.svelte';

/** What the edits need of the chats. */
export interface EditedChats {
  readonly selectedId: string | null;
  /** The thread of the open chat. */
  readonly thread: Thread | null;
  /** Why nothing can be done with the messages of the open chat now; null: it can. */
  readonly whyBusy: string | null;
  threadOf: (id: string) => Thread | undefined;
  /** Starts an answer in the open chat; returns whether it has begun. */
  begin: (command: (conversation_id: string) => Command) => Promise<boolean>;
  /** Gives the focus to the button of a message that edits it. */
  focusButton: (message_id: string) => void;
}

export interface EditOptions {
  platform: Platform;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
}

/** Owns what belongs to edits beside the text and the documents, which the thread of their message has. */
export class MessageEdits {
  /** Counts requests to focus the field in which a message is edited. */
  numFocusRequests = $state(0);
  /** Documents that are being taken out of drafts, because the edit that they were attached for has ended. */
  #leaving = $state.raw<readonly { chatId: string; documentId: string }[]>([]);
  /** What takes away the offers to bring documents back to the message that is edited. */
  readonly #offers: (() => void)[] = [];
  readonly #chats: EditedChats;
  readonly #options: EditOptions;

  constructor(chats: EditedChats, options: EditOptions) {
    this.#chats = chats;
    this.#options = options;
  }

  /** Opens the field for another version of a message; without an id, of the last question. */
  open(id = this.#chats.thread?.messages.findLast(({ role }) => role === 'user')?.id): void {
    const { thread, whyBusy } = this.#chats;
    const message = thread?.messages.find((known) => known.id === id);
    if (thread && message?.role === 'user' && whyBusy === null)
      thread.editing = { id: message.id, text: message.text, documents: message.documents, attached: [] };
  }

  /** Puts documents that are in the draft of a chat with the message that is edited. */
  attach(thread: Thread, chatId: string, documents: readonly Document[]): void {
    const { editing } = thread;
    const ids = documents.map(({ id }) => id);
    // Whoever has ended editing meanwhile wants none of them.
    if (!editing) return void this.#removeFromDraft(chatId, ids);
    thread.editing = {
      ...editing,
      documents: [...editing.documents, ...documents],
      attached: [...editing.attached, ...ids],
    };
  }

  /** Takes a document out of the message that is edited; can be taken back as long as it is. */
  detach(document: Document): void {
    const { thread } = this.#chats;
    const editing = thread?.editing;
    if (!editing) return;
    const index = editing.documents.indexOf(document);
    thread.editing = { ...editing, documents: editing.documents.filter((other) => other !== document) };
    this.numFocusRequests++;
    const takeBack = () => {
      const now = thread.editing;
      if (now?.id !== editing.id || now.documents.some(({ id }) => id === document.id)) return;
      thread.editing = { ...now, documents: now.documents.toSpliced(index, 0, document) };
    };
    const onOffered = (withdraw: () => void) => this.#offers.push(withdraw);
    void offerUndo(this.#options, strings.documents.removed(document.name), takeBack, undefined, onOffered);
  }

  /** The documents of a chat's draft that go with a message that is or was edited. */
  heldDocuments(chatId: string | null): string[] {
    const editing = chatId === null ? null : this.#chats.threadOf(chatId)?.editing;
    const leaving = this.#leaving.filter((one) => one.chatId === chatId);
    return [...(editing?.attached ?? []), ...leaving.map(({ documentId }) => documentId)];
  }

  /** Closes the field without sending. */
  cancel(): void {
    const { thread, selectedId } = this.#chats;
    const editing = thread?.editing;
    if (!thread || !editing) return;
    thread.editing = null;
    this.#end();
    if (selectedId !== null) void this.#removeFromDraft(selectedId, editing.attached);
    this.#chats.focusButton(editing.id);
  }

  /** Sends the edited message beside the earlier version; what could not be sent stays in the field. */
  async send(): Promise<void> {
    const { thread, selectedId: chatId } = this.#chats;
    const editing = thread?.editing;
    if (!thread || !editing || editing.text.trim() === '') return;
    const { id: message_id, text, documents, attached } = editing;
    const document_ids = documents.map(({ id }) => id);
    const before = thread.messages.find(({ id }) => id === message_id)?.documents.map(({ id }) => id) ?? [];
    const isSame = document_ids.length === before.length && before.every((id) => document_ids.includes(id));
    const isSent = await this.#chats.begin((conversation_id) => ({
      type: 'edit_message',
      conversation_id,
      message_id,
      text,
      ...(isSame ? {} : { document_ids }),
    }));
    if (!isSent) return;
    if (thread.editing?.id === message_id) thread.editing = null;
    this.#end();
    const left = attached.filter((id) => !document_ids.includes(id));
    if (chatId !== null) void this.#removeFromDraft(chatId, left);
  }

  /** Once an edit has ended, there is nothing to which a document of it could come back. */
  #end(): void {
    for (const withdraw of this.#offers.splice(0)) withdraw();
  }

  async #removeFromDraft(chatId: string, documentIds: readonly string[]): Promise<void> {
    // Until the core has done it, they would stand in the composer.
    this.#leaving = [...this.#leaving, ...documentIds.map((documentId) => ({ chatId, documentId }))];
    for (const document_id of documentIds) {
      const of = { type: 'conversation' as const, id: chatId };
      const isDone = await runOrReport(this.#options, { type: 'remove_document', of, document_id });
      if (!isDone) this.#leaving = this.#leaving.filter(({ documentId }) => documentId !== document_id);
    }
  }
}
