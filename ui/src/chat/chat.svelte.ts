// The open chat: choose it, write in it, stop its answer.
import { sentenceOf, type Platform } from '../platform/platform';
import type { Command, Conversation, Event, Message, Persona, Reply } from '../platform/wire';
import { strings } from '../text';
import type { ToastAction, Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';
import { CompareStore } from './compare.svelte';
import { branchTitle, ConversationList, isEmpty, isUnsent } from './conversations.svelte';
import { MessageEdits } from './edits.svelte';
import { FoldedAnswers } from './folded.svelte';
import { ListActions } from './listActions.svelte';
import { Drafts } from './drafts.svelte';
import { ProbabilityStore, whyNot, type Choice } from './probabilities.svelte';
import { Queue, type Waiting } from './queue.svelte';
import { readable } from './segments';
import { endingWords } from './stats';
import { ChatSelection } from './selection.svelte';
import { Thread } from './thread.svelte';
import { UnsentChats } from './unsent.svelte';

const SELECTED_KEY = 'cairn.conversation';

export interface ChatOptions {
  platform: Platform;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
  storage?: Storage;
  nextFrame?: (run: () => void) => void;
}

/** Which models something is asked of; null is the chat's own. */
export type Asked = readonly (string | null)[];

/** Where in a message the focus goes, and where on the screen that was before, so that it stays there. */
export interface MessageFocus {
  id: string;
  part: 'previous' | 'next' | 'more' | 'edit' | 'probabilities';
  top?: number;
}

/** Owns the selection, the open threads and the drafts. No selection means a new chat, which gets its row with the first message. */
export class ChatStore {
  readonly list = new ConversationList();
  readonly selection = new ChatSelection(this.list);
  readonly actions: ListActions;
  readonly probabilities: ProbabilityStore;
  readonly compare: CompareStore;
  readonly unsent: UnsentChats;
  readonly edits: MessageEdits;
  selectedId = $state<string | null>(null);
  isPromptOpen = $state(false);
  /** Counts requests to focus the composer, which takes the focus each time. */
  numFocusRequests = $state(0);
  /** Text for screen readers when an answer is finished. */
  announcement = $state('');
  /** The message that takes the focus once it is shown, because what had it is gone. */
  messageToFocus = $state.raw<MessageFocus | null>(null);

  #threads = $state.raw(new Map<string, Thread>());
  readonly #drafts: Drafts;
  readonly queue: Queue;
  readonly folded: FoldedAnswers;
  /** The documents that the next message of a chat will be sent with; their owner sets it. */
  documentsOfDraft: (id: string) => string[] = () => [];
  /** Whether no document is in a chat's draft, as far as that is known; their owner sets it. */
  hasNoDocuments: (id: string) => boolean = () => false;
  /** Why something cannot be asked of a chat's model, or of those that are named; null: it can. Their owner sets it. */
  whyNotAsk: (id: string | null, named?: Asked) => null | Promise<string | null> = () => null;
  /** Actions for a toast that help when a chat's model, or the one that is named, cannot be asked; their owner sets it. */
  remediesFor: (id: string | null, named: string | null) => readonly ToastAction[] = () => [];
  /** Chats for which something is being sent, or looked whether it can be; null is the page of a new one. */
  #busy = $state.raw<ReadonlySet<string | null>>(new Set());
  /** Those in which what is written stays in the composer meanwhile: it may be told that another model would answer it. */
  readonly #looking = new Set<string | null>();
  /** The chat of a first message is being made: it may be on screen before its id is known here. */
  #isMaking = $state(false);
  /** A branch is being made, which a second click would make twice. */
  #isBranching = false;
  /** Chats that were made since the list was asked for. */
  readonly #madeMeanwhile = new Set<string>();
  /** Chats with deleted messages that can still be brought back: those are not left as empty ones. */
  readonly #withDeletion = new Set<string>();
  /** When the last turn had begun of which an event has told the row, by chat. */
  readonly #toldAtMs = new Map<string, number>();
  readonly #options: ChatOptions;

  readonly selected = $derived(this.list.get(this.selectedId));
  readonly thread = $derived(this.selectedId === null ? null : (this.#threads.get(this.selectedId) ?? null));

  /** Nothing was sent in the open chat yet, whether it has a row or not. */
  readonly isNew = $derived.by(() => {
    if (!this.selected) return this.selectedId === null;
    return isUnsent(this.selected) && this.thread?.isLoaded === true && this.thread.messages.length === 0;
  });

  /** Why nothing can be done with the messages of the open chat now; null: it can. */
  readonly whyBusy = $derived.by(() => {
    if (this.thread?.isStreaming || this.compare.isWritingIn(this.selectedId)) return strings.versions.whileAnswering;
    return this.isSending ? strings.versions.oneMoment : null;
  });

  constructor(options: ChatOptions) {
    this.#options = options;
    this.probabilities = new ProbabilityStore(options.platform);
    this.unsent = new UnsentChats({
      ...options,
      list: this.list,
      run: (command, id, onDone) => this.#run(command, id, onDone),
      make: (command) => this.#create(command),
    });
    this.actions = new ListActions({
      ...options,
      list: this.list,
      openId: () => this.selectedId,
      open: (id) => this.select(id),
      forget: (ids) => this.#forget(ids),
      deselect: (from) => this.selection.clear(from),
    });
    this.edits = new MessageEdits(this, options);
    const isPrivate = (id: string) => this.list.get(id)?.is_private ?? false;
    this.compare = new CompareStore({
      ...options,
      isPrivate,
      create: () => this.unsent.make(),
      whyNotAsk: (id, named) => this.whyNotAsk(id, named),
      onBegun: (id, { conversation, messages }) => {
        // The second answer is beside the branch on screen.
        this.#absorb({ type: 'sent', conversation, messages: messages.slice(0, -1) }, id);
        if (messages.length > 2) this.#drafts.set(id, '');
      },
    });
    this.#drafts = new Drafts(options.storage, isPrivate);
    this.queue = new Queue(options.storage, isPrivate);
    this.folded = new FoldedAnswers(options.storage);
  }

  get draft(): string {
    return this.#drafts.get(this.selectedId);
  }

  set draft(text: string) {
    this.#drafts.set(this.selectedId, text);
  }

  /** Messages of the open chat that are sent when its answer is done. */
  get queued(): readonly Waiting[] {
    return this.queue.of(this.selectedId);
  }

  /** The system prompt of the open chat, or of the one that the first message will make. */
  get systemPrompt(): string {
    return this.selected ? this.selected.system_prompt : this.unsent.systemPrompt;
  }

  /** The list is asked for: what is on its way then may lack chats that are made now. */
  asksForList(): void {
    this.#madeMeanwhile.clear();
  }

  /** Replaces the list; the first call also opens the conversation that was open last. */
  start(conversations: Conversation[], isFirst: boolean, interrupted: string | null = null): void {
    const before = this.selected;
    const listed = new Set(conversations.map(({ id }) => id));
    const made = this.list.items.filter(({ id }) => this.#madeMeanwhile.has(id) && !listed.has(id));
    this.list.replace([...conversations, ...made]);
    // A private chat is only in the core's memory: whoever had it open is told why the page is another one.
    if (before?.is_private && !this.list.get(before.id)) this.#options.toasts.show('info', strings.privateChat.gone);
    if (!isFirst) return this.#catchUp();
    this.#drafts.keep(conversations.map(({ id }) => id));
    this.queue.keep(conversations.map(({ id }) => id));
    this.folded.keep(conversations.map(({ id }) => id));
    void this.compare.restore((id) => this.list.get(id) !== undefined);
    // A crash takes along what a web view had not written yet: the chat that was selected last.
    const kept = this.#options.storage?.getItem(SELECTED_KEY) ?? null;
    const wanted = kept || interrupted || (kept === null ? (this.list.listed[0]?.id ?? null) : null);
    this.select(this.list.get(wanted) ? wanted : null);
  }

  /** After a reconnect: fetches the visible thread again now, and other threads when they are opened. */
  #catchUp(): void {
    const thread = this.list.get(this.selectedId) && this.thread;
    this.#threads = new Map(thread && this.selectedId !== null ? [[this.selectedId, thread]] : []);
    this.compare.catchUp();
    if (thread) void thread.refetch();
    else this.select(null);
  }

  /**
   * Shows the empty page and focuses the composer. The chat will be in this folder, or with this persona. One that has
   * documents and was never sent is that page.
   */
  newChat(folderId: string | null = null, persona: Persona | null = null): void {
    const isWanted = (row: Conversation) => this.unsent.isFor(row, folderId, persona?.id ?? null);
    const { selected } = this;
    // Of one that has nothing to it, a new one takes the place.
    this.select(selected && isWanted(selected) && !this.#isEmpty(selected) ? selected.id : null);
    if (this.selectedId === null) this.select(this.list.items.find(isWanted)?.id ?? null);
    if (this.selectedId === null) this.unsent.begin(folderId, persona);
    this.numFocusRequests++;
  }

  /** Opens a new chat that exists only in memory; an empty one that is there is opened again. */
  async newPrivateChat(): Promise<void> {
    if (this.#reopenEmpty((row) => row.is_private)) return;
    try {
      await this.#create({ type: 'new_private_conversation' });
      this.numFocusRequests++;
    } catch (error) {
      this.#options.report(error);
    }
  }

  /** Opens a new chat that begins with a starting point, or an empty one that does; returns whether it worked. */
  async startFrom(named_id: string, name: string | null): Promise<boolean> {
    if (name !== null && this.#reopenEmpty((row) => row.prefix?.name === name)) return true;
    try {
      await this.#create({ type: 'new_conversation_from', named_id });
      this.numFocusRequests++;
      return true;
    } catch (error) {
      this.#options.report(error);
      return false;
    }
  }

  /** Opens a chat of this kind that has no message yet, if there is one. */
  #reopenEmpty(isWanted: (row: Conversation) => boolean): boolean {
    const empty = this.list.items.find((row) => isEmpty(row) && !row.is_streaming && isWanted(row));
    if (!empty) return false;
    this.select(empty.id);
    this.numFocusRequests++;
    return true;
  }

  /** Nothing was sent, attached or written, and nothing is on its way. */
  #isEmpty(row: Conversation): boolean {
    const thread = this.#threads.get(row.id);
    const hasNoMessages = thread?.isLoaded === true && thread.messages.length === 0;
    const isStill = !this.#isBusy(row.id) && hasNoMessages && !this.#withDeletion.has(row.id);
    return isUnsent(row) && isStill && this.#drafts.get(row.id) === '' && this.hasNoDocuments(row.id);
  }

  /** Sees to it that a chat is there to which something is brought back; returns whether it is. */
  async bringBack(id: string): Promise<boolean> {
    return this.unsent.bringBack(id, () => this.select(id));
  }

  select(id: string | null): void {
    const before = this.selected;
    if (id !== this.selectedId) {
      this.probabilities.close();
      this.selection.clear();
    }
    this.selectedId = id;
    if (id !== null) this.unsent.forget();
    this.announcement = '';
    // Of a private chat not even its id is written.
    const kept = this.list.get(id)?.is_private ? null : id;
    this.#options.storage?.setItem(SELECTED_KEY, kept ?? '');
    if (id !== null && !this.#threads.has(id)) void this.#open(id).refetch();
    if (before && before.id !== id && this.#isEmpty(before)) this.unsent.leave(before);
  }

  /** Opens a chat at a message, on the branch that has it. */
  async showMessage(id: string, message_id: string): Promise<void> {
    const isShown = await this.#run({ type: 'show_message', conversation_id: id, message_id }, id);
    const known = this.#threads.get(id);
    this.select(id);
    if (!isShown) return;
    if (known && !known.messages.some((message) => message.id === message_id)) await known.refetch();
    this.#threads.get(id)?.reveal(message_id);
  }

  receive(event: Event): void {
    switch (event.type) {
      case 'conversation':
        this.#told(event.conversation);
        this.list.put(event.conversation);
        return this.#restoreUnsent(event.conversation);
      case 'chat_models':
        return this.list.setModels(event.models);
      case 'conversations':
        for (const row of event.conversations) this.#told(row);
        this.list.putAll(event.conversations);
        return event.conversations.forEach((row) => this.#restoreUnsent(row));
      case 'conversations_deleted': {
        const { draft } = this;
        for (const id of event.ids) {
          this.folded.forget(id);
          this.#toldAtMs.delete(id);
          this.#drafts.forget(id);
          this.queue.forget(id);
        }
        return this.#leaveDeleted(event.ids, draft);
      }
      case 'probabilities_read':
        return this.probabilities.receive(event);
      case 'branch':
        this.#threads.get(event.conversation_id)?.receive(event);
        return this.#keepView();
      case 'beside':
        this.compare.receive(event.event, true);
        if (event.event.type === 'message') this.#answered(event.event.message);
        return;
      case 'message':
        this.compare.receive(event);
        this.#threads.get(event.message.conversation_id)?.receive(event);
        this.#keepView();
        return this.#answered(event.message);
      case 'segment':
      case 'delta':
      case 'summarizing':
      case 'prefill':
        this.compare.receive(event);
        return this.#threads.get(event.conversation_id)?.receive(event);
    }
  }

  /** What was written in a chat comes back with it. */
  #restoreUnsent({ id }: Conversation): void {
    this.#drafts.restore(id);
    this.queue.restore(id);
  }

  #told({ id, is_private, updated_at_ms }: Conversation): void {
    this.folded.restore(id, is_private);
    this.#toldAtMs.set(id, updated_at_ms);
  }

  /**
   * Sends the draft, and restores it if it could not be sent. While an answer is written, it is sent after that; where others wait, after
   * them.
   */
  async send(): Promise<void> {
    let id = this.selectedId;
    let text = this.draft;
    if (text.trim() === '' || this.#looking.has(id)) return;
    const isWriting = this.isSending || this.thread?.isStreaming || (id !== null && this.compare.isWritingIn(id));
    if (id !== null && (isWriting || this.queue.of(id).length > 0)) {
      this.queue.add(id, { text, documents: this.documentsOfDraft(id) });
      this.#drafts.set(id, '');
      if (!isWriting) await this.sendQueued(id);
      return;
    }
    if (this.isSending) return;
    this.#setBusy(id);
    const from = id;
    // Also an answer that says the same as the last one is read out.
    this.announcement = '';
    try {
      const may = this.#mayAsk(id);
      if (may !== true) {
        const { count } = this.unsent;
        if (!(await this.#lookFor(id, may)) || this.selectedId !== id || this.unsent.count !== count) return;
        // Meanwhile it may have been written on, or taken away.
        text = this.draft;
        if (text.trim() === '') return;
      }
      this.#drafts.set(id, '');
      id ??= await this.#makeChat();
      const documents = this.documentsOfDraft(id);
      this.#absorb(await this.#options.platform.call(this.#message(id, { text, documents })), id);
    } catch (error) {
      // The chat may have been made, and what was set for it refused.
      const at = id ?? this.selectedId;
      if (this.#drafts.get(at) === '') this.#drafts.set(at, text);
      this.#options.report(error);
      return;
    } finally {
      this.#setBusy(from, false);
      this.#setBusy(id, false);
    }
    this.#sendNext(id);
  }

  /** Makes the chat of the first message, which is then being sent. */
  async #makeChat(): Promise<string> {
    this.#isMaking = true;
    try {
      const id = await this.unsent.make();
      this.#setBusy(id);
      return id;
    } finally {
      this.#isMaking = false;
    }
  }

  /** Whether something is being sent in the open chat. */
  get isSending(): boolean {
    return this.#isBusy(this.selectedId);
  }

  #isBusy(id: string | null): boolean {
    return this.#busy.has(id) || this.#isMaking;
  }

  #setBusy(id: string | null, isBusy = true): void {
    const busy = new Set(this.#busy);
    if (isBusy) busy.add(id);
    else busy.delete(id);
    this.#busy = busy;
  }

  async #lookFor(id: string | null, may: Promise<boolean>): Promise<boolean> {
    this.#looking.add(id);
    try {
      return await may;
    } finally {
      this.#looking.delete(id);
    }
  }

  /**
   * Whether a chat's own model can be asked, or the one that is named; why not is said. True: it is known at once.
   * `isFromMessage`: it is asked for by a button of a message, which may be far from the composer.
   */
  #mayAsk(id: string | null, named: string | null = null, isFromMessage = false): true | Promise<boolean> {
    const looked = this.whyNotAsk(id, [named]);
    return looked === null || looked.then((why) => why === null || this.#refuse(why, id, named, isFromMessage));
  }

  #refuse(why: string, id: string | null, named: string | null, isFromMessage: boolean): false {
    const actions = this.remediesFor(id, named);
    // The line above the composer is about the chat's own model. It may have been there before the button was pressed.
    const isToast = named !== null || (isFromMessage && actions.length > 0);
    if (isToast) this.#options.toasts.show('error', why, { actions, topic: 'refused' });
    else if (id === this.selectedId) this.announcement = why;
    return false;
  }

  /** Sends a message with its documents: others stay in the draft, or wait with another message. */
  #message(conversation_id: string, { text, documents }: Waiting) {
    const document_ids = [...documents];
    const all = new Set([...this.documentsOfDraft(conversation_id), ...this.heldDocuments(conversation_id)]);
    return document_ids.length === all.size
      ? { type: 'send_message' as const, conversation_id, text }
      : { type: 'send_message_with' as const, conversation_id, text, document_ids };
  }

  /** Sends the first message that waits. */
  async sendQueued(id = this.selectedId): Promise<void> {
    if (id === null || this.#busy.has(id) || this.queue.of(id).length === 0) return;
    this.#setBusy(id);
    if (id === this.selectedId) this.announcement = '';
    const may = this.#mayAsk(id);
    const isSent = (may === true || (await may)) && (await this.#sendFirst(id));
    this.#setBusy(id, false);
    if (isSent) this.#sendNext(id);
  }

  async #sendFirst(id: string): Promise<boolean> {
    const [first] = this.queue.of(id);
    if (first === undefined) return false;
    const command = this.#message(id, first);
    this.queue.take(id);
    const isSent = await this.#run(command, id);
    if (!isSent) this.queue.putBack(id, first);
    return isSent;
  }

  /** Takes a message that waits into the composer; what is written there waits in its place. */
  editQueued(index: number): void {
    const id = this.selectedId;
    if (id === null) return;
    const instead = { text: this.draft, documents: this.documentsOfDraft(id) };
    const taken = this.queue.take(id, index, this.draft.trim() === '' ? undefined : instead);
    this.draft = taken?.text ?? '';
    this.numFocusRequests++;
  }

  removeQueued(index: number): void {
    if (this.selectedId !== null) this.queue.take(this.selectedId, index);
    this.numFocusRequests++;
  }

  /** Answers again: the last question, the one of an answer, or a question; with another model if one is named. */
  async regenerate(message_id: string | null = null, model: string | null = null): Promise<void> {
    await this.begin((conversation_id) => ({ type: 'regenerate', conversation_id, message_id, model }), model);
  }

  /**
   * Shows the choice of what is compared: for the draft, or for the question of a message, or for the last question.
   * `models`: those that can be loaded, the loaded one first.
   */
  openCompare(models: readonly string[], message_id: string | null = null): void {
    if (this.whyBusy !== null) return;
    const messages = this.thread?.messages ?? [];
    const at = message_id === null ? messages.length - 1 : messages.findIndex(({ id }) => id === message_id);
    const question = messages.slice(0, at + 1).findLast(({ role }) => role === 'user');
    const isNew = message_id === null && (this.draft.trim() !== '' || !question);
    const asked = isNew
      ? { text: this.draft, messageId: null, isNew }
      : { text: question?.text ?? '', messageId: message_id ?? question?.id ?? null, isNew };
    this.compare.open(this.selectedId, asked, [models[0] ?? null, models[1] ?? models[0] ?? null]);
  }

  /** Lets the last answer go on behind its own text. */
  async continueAnswer(message_id: string): Promise<void> {
    await this.begin((conversation_id) => ({ type: 'continue_answer', conversation_id, message_id }));
  }

  /** Shows how likely the tokens of an answer were, or closes that; without an id, of the last answer. */
  toggleProbabilities(id = this.thread?.messages.findLast(({ role }) => role === 'assistant')?.id): void {
    const message = this.thread?.messages.find((known) => known.id === id);
    // An answer that has no tokens has no button for them either.
    if (!message || message.status === 'streaming' || message.segments.length === 0) return;
    if (this.probabilities.isOf(message.id)) this.closeProbabilities();
    else void this.probabilities.open(message);
  }

  /** Closes the probabilities of an answer that is no longer on screen. */
  #keepView(): void {
    if (this.thread) this.probabilities.keep(this.thread.messages);
  }

  /** Closes the probabilities; a focus that was on them goes back to the answer. */
  closeProbabilities(): void {
    const { message } = this.probabilities;
    this.probabilities.close();
    if (message) this.messageToFocus = { id: message.id, part: 'probabilities' };
  }

  /** Writes another version of the answer that is looked at, which goes on from a choice at its place. */
  async branchFrom({ token, ...choice }: Choice): Promise<void> {
    const { message, at: position } = this.probabilities;
    if (!message || whyNot({ token, ...choice }) !== null) return;
    const command = { type: 'write_from_token' as const, message_id: message.id, position, token };
    const isBegun = await this.begin((conversation_id) => ({ ...command, conversation_id }), message.model);
    if (isBegun) this.probabilities.close();
  }

  /** The documents of a chat's draft that go with a message that waits, or with one that is or was edited. */
  heldDocuments(id: string | null): ReadonlySet<string> {
    return new Set([...this.queue.heldBy(id), ...this.edits.heldDocuments(id)]);
  }

  threadOf(id: string): Thread | undefined {
    return this.#threads.get(id);
  }

  focusButton(message_id: string): void {
    this.messageToFocus = { id: message_id, part: 'edit' };
  }

  /** Starts an answer of its model, or of the one that is named, in the open chat, unless one is written; returns whether it has begun. */
  async begin(command: (conversation_id: string) => Command, model: string | null = null): Promise<boolean> {
    const id = this.selectedId;
    if (id === null || this.whyBusy !== null) return false;
    this.#setBusy(id);
    this.announcement = '';
    const may = this.#mayAsk(id, model, true);
    const isSent = (may === true || (await this.#lookFor(id, may))) && (await this.#run(command(id), id));
    this.#setBusy(id, false);
    if (!isSent) return false;
    this.numFocusRequests++;
    this.#sendNext(id);
    return true;
  }

  /** Shows the branch with another version of a message, and keeps the focus where it is on the screen. */
  async showVersion(message_id: string, focus: Omit<MessageFocus, 'id'>): Promise<void> {
    await this.#changeBranch((conversation_id) => {
      this.messageToFocus = { id: message_id, ...focus };
      return { type: 'show_version', conversation_id, message_id };
    });
  }

  /** Opens a new chat with the messages up to one. */
  async branchOff(message_id: string): Promise<void> {
    const { selected } = this;
    if (!selected || this.#isBranching) return;
    const title = branchTitle(selected, this.list.items);
    this.#isBranching = true;
    const command = { type: 'branch_conversation' as const, conversation_id: selected.id, message_id, title };
    const reply = await this.#ask(command).finally(() => (this.#isBranching = false));
    if (reply?.type !== 'conversation') return;
    this.list.put(reply.conversation);
    this.#open(reply.conversation.id).startWith(reply.messages);
    this.select(reply.conversation.id);
    this.numFocusRequests++;
  }

  /** Hides a message, alone or with all that follows it, and offers to bring it back. */
  async removeMessage(message_id: string, with_following: boolean): Promise<void> {
    const conversation_id = this.selectedId;
    const messages = this.thread?.messages ?? [];
    const before = messages[messages.findIndex(({ id }) => id === message_id) - 1];
    const reply = await this.#changeBranch((conversation_id) => ({
      type: 'delete_message',
      conversation_id,
      message_id,
      with_following,
    }));
    if (conversation_id === null || reply?.type !== 'messages_deleted') return;
    this.#withDeletion.add(conversation_id);
    if (before) this.messageToFocus = { id: before.id, part: 'more' };
    else this.numFocusRequests++;
    void offerUndo(
      this.#options,
      strings.versions.deleted(reply.num_messages),
      () => void this.#restoreMessages(conversation_id, reply.deletion_id, message_id),
    );
  }

  async #restoreMessages(conversation_id: string, deletion_id: string, message_id: string): Promise<void> {
    const reply = await this.#ask({ type: 'restore_messages', conversation_id, deletion_id });
    if (!reply) return;
    if (this.selectedId !== conversation_id && this.list.get(conversation_id)) this.select(conversation_id);
    this.messageToFocus = { id: message_id, part: 'more' };
  }

  /** Changes which messages the open chat shows; the change itself comes as an event. */
  async #changeBranch(command: (conversation_id: string) => Command): Promise<Reply | null> {
    const id = this.selectedId;
    if (id === null || this.whyBusy !== null) return null;
    const asked = command(id);
    this.#setBusy(id);
    const reply = await this.#ask(asked);
    this.#setBusy(id, false);
    return reply;
  }

  async #ask(command: Command): Promise<Reply | null> {
    try {
      return await this.#options.platform.call(command);
    } catch (error) {
      this.#options.report(error);
      return null;
    }
  }

  async stop(): Promise<void> {
    if (this.selectedId !== null) await this.#run({ type: 'stop', conversation_id: this.selectedId }, this.selectedId);
  }

  /** Lets an answer go on that is held because it repeats itself. */
  async goOn(): Promise<void> {
    if (this.selectedId !== null) await this.#run({ type: 'go_on', conversation_id: this.selectedId }, this.selectedId);
  }

  /** Ends the thoughts of a running answer, which then follows. */
  async answerNow({ id: message_id, conversation_id }: Message): Promise<void> {
    await this.#run({ type: 'answer_now', conversation_id, message_id }, conversation_id);
  }

  /** Sets it for the open chat, or for the one that the first message will make; returns why that failed, or null. */
  async setSystemPrompt(text: string): Promise<string | null> {
    const id = this.selectedId;
    if (id === null) {
      this.unsent.systemPrompt = text;
      return null;
    }
    try {
      await this.#options.platform.call({ type: 'set_system_prompt', id, system_prompt: text });
      const conversation = this.list.get(id);
      if (conversation) this.list.put({ ...conversation, system_prompt: text });
      return null;
    } catch (error) {
      return sentenceOf(error);
    }
  }

  /** Makes the chat that the first message would make. */
  make(): Promise<string> {
    return this.unsent.make();
  }

  /** Makes a chat with the draft of the one without a row, and opens it. */
  async #create(command: Command): Promise<string> {
    const reply = await this.#options.platform.call(command);
    if (reply.type !== 'conversation' && reply.type !== 'sent') throw new Error(strings.connection.unexpectedReply);
    const { conversation } = reply;
    this.list.put(conversation);
    this.#madeMeanwhile.add(conversation.id);
    this.#open(conversation.id).startEmpty();
    this.#drafts.set(conversation.id, this.#drafts.get(null));
    this.#drafts.set(null, '');
    this.select(conversation.id);
    return conversation.id;
  }

  /** Runs a command about a conversation and applies its reply; returns whether it worked. */
  async #run(command: Command, id: string, onDone?: () => void): Promise<boolean> {
    try {
      this.#absorb(await this.#options.platform.call(command), id);
      onDone?.();
      return true;
    } catch (error) {
      this.#options.report(error);
      return false;
    }
  }

  #absorb(reply: Reply, id: string): void {
    if (reply.type !== 'sent') return;
    const thread = this.#threads.get(id);
    thread?.add(reply.messages);
    this.#keepView();
    // A short answer has ended before this reply came: then events have told the thread and the row what is newer.
    const isOlder = (this.#toldAtMs.get(id) ?? -1) >= reply.conversation.updated_at_ms;
    const row = (isOlder && this.list.get(id)) || reply.conversation;
    this.list.put({ ...row, is_streaming: thread?.isStreaming ?? row.is_streaming });
    if (id === this.selectedId && thread?.isStreaming) this.announcement = strings.chat.answerBegun;
  }

  #open(id: string): Thread {
    const thread = new Thread({
      fetch: () => this.#fetch(id),
      onFinished: (message) => this.#finished(id, message),
      nextFrame: this.#options.nextFrame,
    });
    this.#threads = new Map(this.#threads).set(id, thread);
    return thread;
  }

  /** Asks for the row of a chat again. */
  async renew(id: string): Promise<void> {
    try {
      const reply = await this.#options.platform.call({ type: 'get_conversation', id });
      if (reply.type === 'conversation' && this.list.get(id)) this.list.put(reply.conversation);
    } catch (error) {
      this.#options.report(error);
    }
  }

  async #fetch(id: string): Promise<Message[]> {
    const reply = await this.#options.platform.call({ type: 'get_conversation', id });
    if (reply.type !== 'conversation') throw new Error(strings.connection.unexpectedReply);
    return reply.messages;
  }

  #finished(id: string, message: Message): void {
    if (id !== this.selectedId) return;
    const said = message.status === 'complete' ? strings.chat.answerFinished(readable(message.segments)) : '';
    // Why it broke off, and what can be done now.
    this.announcement = [said, endingWords(message, true)].filter(Boolean).join(' ');
  }

  #answered({ conversation_id: id, role, status, is_held }: Message): void {
    if (is_held && id === this.selectedId) this.announcement = strings.held.question;
    if (role === 'assistant' && status === 'complete') this.#sendNext(id, true);
  }

  /** What waits is sent after a whole answer only: of one that broke off, a person says first what becomes of it. */
  #sendNext(id: string, isWhole = this.#threads.get(id)?.last?.status === 'complete'): void {
    const last = this.#threads.get(id)?.last;
    const isAnswered = isWhole && (last === undefined || last.role === 'assistant');
    if (!isAnswered || this.#busy.has(id) || this.compare.isWritingIn(id) || this.queue.of(id).length === 0) return;
    const claim = this.queue.claim(id);
    if (claim === true) void this.sendQueued(id);
    else void claim.then((isOurs) => (isOurs ? this.sendQueued(id) : undefined));
  }

  /** Chats were deleted, by this window or elsewhere. Whoever writes in one does not go on in another that happens to be next. */
  #leaveDeleted(ids: readonly string[], draft: string): void {
    const { selected: open } = this;
    if (!open || !ids.includes(open.id)) return this.#forget(ids);
    this.#forget(ids, null);
    const isCarried = draft !== '' && this.draft === '' && !open.is_private;
    if (isCarried) this.draft = draft;
    if (isUnsent(open)) return;
    this.actions.offerBack(open, () => {
      if (isCarried && this.#drafts.get(null) === draft) this.#drafts.set(null, '');
      this.#drafts.set(open.id, draft);
    });
  }

  /** `next`: which one is opened where the open one is among them. */
  #forget(ids: readonly string[], next = this.list.neighbourOf(ids)): void {
    const threads = new Map(this.#threads);
    for (const id of ids) {
      this.compare.forget(id);
      threads.delete(id);
    }
    this.list.take(ids);
    this.#threads = threads;
    if (this.selectedId !== null && ids.includes(this.selectedId)) this.select(next);
  }
}
