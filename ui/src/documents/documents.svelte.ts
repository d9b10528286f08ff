// The documents of the next message and of folders: files become text, are attached, and are read before the question is there.
import { DocumentProblem, problemOf, problemSentences, readDocument } from './read';
import { byName, ofFile, type Drop, type SourceFile } from './sources';
import { whyLeftOut, type LeftOut } from './folder';
import type { ChatStore } from '../chat/chat.svelte';
import type { Thread } from '../chat/thread.svelte';
import { sentenceOf, type Platform } from '../platform/platform';
import type {
  AttachedDocuments,
  Command,
  Document,
  DocumentReading,
  DocumentsOf,
  Event,
  NewDocument,
} from '../platform/wire';
import { strings } from '../text';
import { TimeLeft } from '../ui/timeLeft';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';

/** A shorter text is pasted as it is. */
const LEAST_OFFERED_CHARS = 4000;

export interface DocumentOptions {
  platform: Platform;
  chat: ChatStore;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
  now?: () => number;
}

/** A file that is being made into text. */
export interface Opening {
  name: string;
  page: number | null;
  pages: number | null;
}

/** What files are attached to: a chat or a folder, or the message of a chat that is being edited. */
interface Owner {
  id: string | null;
  isForEdit: boolean;
}

/** A file of a folder, and whether it is to be attached. */
export interface Choice {
  file: SourceFile;
  why: LeftOut | null;
  isChosen: boolean;
}

/** What the reader shows. */
export interface Shown {
  document: Document;
  text: string | null;
  problem: string | null;
  /** What is shown of it first. */
  place: Place | null;
}

/** Words that a search has found in a text, and where the first of them stands. */
export interface Place {
  at: number;
  words: string[];
}

const NONE: Omit<AttachedDocuments, 'of'> = { beginning: [], documents: [], reading: { type: 'unread' } };

/** The commands that answer with documents. */
type AttachedCommand = Extract<
  Command,
  { type: 'get_documents' | 'attach_documents' | 'remove_document' | 'restore_document' }
>;

export const ofConversation = (id: string): DocumentsOf => ({ type: 'conversation', id });
export const ofFolder = (id: string): DocumentsOf => ({ type: 'folder', id });

/** While a document is read, events come without end. */
const MOST_QUESTIONS = 5;

/** Owns the documents of drafts and folders, the reader, and the choice among the files of a folder on disk. */
export class DocumentStore {
  /** How many documents are being attached or brought back: until the core has answered, they are in no list. */
  #numChanging = 0;
  /** By the id of the chat or the folder. */
  #attached = $state.raw(new Map<string, AttachedDocuments>());
  #numEvents = 0;
  #paces = new Map<string, TimeLeft>();
  /** The seconds that a reading still takes; null: unknown. */
  #secondsLeft = $state.raw(new Map<string, number | null>());
  /** The files that are being made into text, for a chat or a folder; null: a chat that is not made yet. */
  opening = $state.raw<({ files: Opening[] } & Owner) | null>(null);
  /** What could not be attached to which chat or folder, as sentences. */
  problems = $state.raw<{ sentences: string[] } & Owner>({ id: null, isForEdit: false, sentences: [] });
  folder = $state.raw<{ name: string; isCut: boolean; of: DocumentsOf | null; isForEdit: boolean } | null>(null);
  choices = $state<Choice[]>([]);
  shown = $state.raw<Shown | null>(null);
  /** A long text that was pasted into the draft of this chat. */
  pasted = $state.raw<{ conversationId: string | null; text: string } | null>(null);

  #stop: AbortController | null = null;
  /** The ids in the draft before documents are attached to the message that is edited. */
  #ownBefore = $state.raw<ReadonlySet<string> | null>(null);
  readonly #options: DocumentOptions;
  readonly #now: () => number;

  constructor(options: DocumentOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
    options.chat.hasNoDocuments = (id) =>
      this.#attached.get(id)?.documents.length === 0 && this.opening === null && this.#numChanging === 0;
    options.chat.documentsOfDraft = (id) => this.#draftOf(id).documents.map((document) => document.id);
  }

  /** Documents of the open chat's draft that wait with a message. */
  waiting(ids: readonly string[]): Document[] {
    return this.get(this.#options.chat.selectedId).documents.filter(({ id }) => ids.includes(id));
  }

  /** The open chat; null: it is not made yet. */
  get #open(): DocumentsOf | null {
    const id = this.#options.chat.selectedId;
    return id === null ? null : ofConversation(id);
  }

  /** The documents of a chat or a folder. */
  get(id: string | null): Omit<AttachedDocuments, 'of'> {
    return (id !== null && this.#attached.get(id)) || NONE;
  }

  /** What the next message of the open chat will be sent with, without what a waiting message holds. */
  get draft(): Omit<AttachedDocuments, 'of'> {
    return this.#draftOf(this.#options.chat.selectedId);
  }

  #draftOf(chatId: string | null): Omit<AttachedDocuments, 'of'> {
    const draft = this.get(chatId);
    const held = this.#options.chat.heldDocuments(chatId);
    // What is being attached to the message that is edited is not yet known by its ids.
    const isOwn = ({ id }: Document) => !held.has(id) && (this.#ownBefore?.has(id) ?? true);
    return draft.documents.every(isOwn) ? draft : { ...draft, documents: draft.documents.filter(isOwn) };
  }

  /** What the open chat begins with: as long as it is not made, what its folder has. */
  get beginning(): Document[] {
    const { selectedId, unsent } = this.#options.chat;
    return selectedId === null ? this.get(unsent.folderId).documents : this.get(selectedId).beginning;
  }

  openingOf(id: string | null, isForEdit = false): Opening[] {
    return this.opening?.id === id && this.opening.isForEdit === isForEdit ? this.opening.files : [];
  }

  problemsOf(id: string | null, isForEdit = false): string[] {
    return this.problems.id === id && this.problems.isForEdit === isForEdit ? this.problems.sentences : [];
  }

  /** The documents of the open chat's message that is edited, as far as they are counted now. */
  get edited(): Document[] {
    const { chat } = this.#options;
    const draft = new Map(this.get(chat.selectedId).documents.map((document) => [document.id, document]));
    return (chat.thread?.editing?.documents ?? []).map((document) => draft.get(document.id) ?? document);
  }

  secondsLeft(id: string | null): number | null {
    return (id !== null && this.#secondsLeft.get(id)) || null;
  }

  /** The pasted text, as long as it stands in the draft. */
  get pastedHere(): string | null {
    const { chat } = this.#options;
    const { pasted } = this;
    return pasted && pasted.conversationId === chat.selectedId && chat.draft.includes(pasted.text) ? pasted.text : null;
  }

  /** Asks for the documents of a chat or a folder that is opened. */
  async open(of: DocumentsOf): Promise<void> {
    try {
      await this.#ask({ type: 'get_documents', of });
    } catch {
      // The chat itself says what is wrong with it.
    }
  }

  /**
   * Asks for documents, or changes them. Events may overtake the reply, which is older than they are then: so they are
   * asked for again, until nothing has happened meanwhile.
   */
  async #ask(command: AttachedCommand): Promise<void> {
    const { of } = command;
    let next = command;
    for (let left = MOST_QUESTIONS; left > 0; left--) {
      const before = this.#numEvents;
      const reply = await this.#options.platform.call(next);
      if (reply.type !== 'documents') return;
      const isNewest = this.#numEvents === before;
      if (isNewest || left === 1 || !this.#attached.has(of.id)) this.#put(reply.attached);
      if (isNewest) return;
      next = { type: 'get_documents', of };
    }
  }

  receive(event: Extract<Event, { type: 'documents' | 'documents_reading' }>): void {
    this.#numEvents++;
    if (event.type === 'documents') return this.#put(event.attached);
    const attached = this.#attached.get(event.of.id);
    if (attached) this.#put({ ...attached, reading: event.reading });
  }

  #put(attached: AttachedDocuments): void {
    const { of, reading } = attached;
    this.#attached = new Map(this.#attached).set(of.id, attached);
    if (reading.type !== 'reading') this.#paces.delete(of.id);
    this.#secondsLeft = new Map(this.#secondsLeft).set(of.id, this.#measure(of.id, reading));
  }

  /** How long the rest takes, from what has been read so far; it never grows. */
  #measure(id: string, reading: DocumentReading): number | null {
    if (reading.type !== 'reading') return null;
    const { processed_tokens: processed, total_tokens: total } = reading;
    const pace = this.#paces.get(id) ?? new TimeLeft(this.#now);
    this.#paces.set(id, pace);
    return pace.measure(processed, total);
  }

  /** Asks for files and attaches them, to the open chat if nothing else is named. */
  async choose(of: DocumentsOf | null = this.#open, isForEdit = false): Promise<void> {
    try {
      await this.attach(await this.#options.platform.chooseDocuments(), of, isForEdit);
    } catch (error) {
      this.#options.report(error);
    }
    this.#focus(of, isForEdit);
  }

  /** Asks for files and attaches them to what is made for them; null: that could not be made. */
  async chooseFor(make: () => Promise<DocumentsOf | null>): Promise<void> {
    try {
      const files = await this.#options.platform.chooseDocuments();
      const of = files.length > 0 ? await make() : null;
      if (of) await this.attach(files, of);
    } catch (error) {
      this.#options.report(error);
    }
  }

  /** Whoever has acted on the open chat goes on writing. */
  #focus(of: DocumentsOf | null, isForEdit = false): void {
    const { chat } = this.#options;
    if (isForEdit && chat.thread?.editing) chat.edits.numFocusRequests++;
    else if (of?.type !== 'folder') chat.numFocusRequests++;
  }

  /**
   * Takes what was dropped: files at once, of a folder those that a person chooses. On the open chat it goes to the
   * message that is edited, if there is one.
   */
  async drop({ folder, files, isCut }: Drop, of: DocumentsOf | null = this.#open): Promise<void> {
    this.shown = null;
    const isForEdit = of !== null && of.id === this.#open?.id && this.#options.chat.thread?.editing != null;
    if (folder === null) {
      await this.attach(files, of, isForEdit);
      return this.#focus(of, isForEdit);
    }
    this.choices = files.toSorted(byName).map((file) => {
      const why = whyLeftOut(file);
      return { file, why, isChosen: why === null };
    });
    this.folder = { name: folder, isCut, of, isForEdit };
  }

  /** Attaches the files of the folder that are chosen. */
  async attachChosen(): Promise<void> {
    const files = this.choices.filter(({ isChosen }) => isChosen).map(({ file }) => file);
    const { of, isForEdit } = { of: this.#open, isForEdit: false, ...this.folder };
    this.closeFolder();
    await this.attach(files, of, isForEdit);
    this.#focus(of, isForEdit);
  }

  closeFolder(): void {
    this.folder = null;
    this.choices = [];
  }

  /** Files on the clipboard are attached; a long text is offered to be. Returns whether something was taken. */
  paste(data: DataTransfer | null, isForEdit = false): boolean {
    const files = [...(data?.files ?? [])].filter(({ type }) => !type.startsWith('image/'));
    const text = data?.getData('text/plain') ?? '';
    if (text === '' && files.length > 0) {
      void this.attach(
        files.map((file) => ofFile(file)),
        this.#open,
        isForEdit,
      );
      return true;
    }
    if (isForEdit) return false;
    const { selectedId } = this.#options.chat;
    if (text.length >= LEAST_OFFERED_CHARS)
      this.pasted = { conversationId: selectedId, text: text.replaceAll(/\r\n?/g, '\n') };
    return false;
  }

  /** Takes the pasted text out of the draft and attaches it. */
  async attachPasted(): Promise<void> {
    const text = this.pastedHere;
    const { chat } = this.#options;
    this.pasted = null;
    if (text === null) return;
    const before = chat.draft;
    chat.draft = before.replace(text, '').trim();
    chat.numFocusRequests++;
    const isAttached = await this.#attach([{ name: strings.documents.pastedName, kind: 'text', text }], this.#open);
    if (!isAttached && chat.draft === '') chat.draft = before;
  }

  /** Makes documents of files and attaches them; what cannot be one is said. */
  async attach(files: SourceFile[], of: DocumentsOf | null = this.#open, isForEdit = false): Promise<void> {
    if (files.length === 0 || this.opening !== null) return;
    const { chat } = this.#options;
    const thread = isForEdit ? chat.thread : null;
    const owner: Owner = { id: of?.id ?? null, isForEdit };
    const stop = (this.#stop = new AbortController());
    const documents: NewDocument[] = [];
    const problems: DocumentProblem[] = [];
    this.problems = { ...owner, sentences: [] };
    try {
      for (const [index, file] of files.entries()) {
        const show = (page: number | null, pages: number | null) => {
          const rest = files.slice(index).map(({ name }) => ({ name, page: null, pages: null }));
          this.opening = { ...owner, files: [{ name: file.name, page, pages }, ...rest.slice(1)] };
        };
        show(null, null);
        try {
          documents.push(await readDocument(file, { signal: stop.signal, onPage: show }));
        } catch (error) {
          if (stop.signal.aborted) return;
          problems.push(error instanceof DocumentProblem ? error : problemOf('unreadable', file.name));
        }
      }
    } finally {
      this.opening = null;
      this.#stop = null;
    }
    const sentences = problemSentences(problems);
    this.problems = { ...owner, sentences };
    if (documents.length === 0) return;
    if (thread && of?.type === 'conversation') return this.#attachToEdit(documents, thread, of);
    const isAttached = await this.#attach(documents, of);
    // A chat that was made for them shows what could not be attached to it.
    if (isAttached && of === null && sentences.length > 0) this.problems = { ...owner, id: chat.selectedId, sentences };
  }

  /** The draft has them until the message is sent: nothing else keeps documents that no message has. */
  async #attachToEdit(documents: NewDocument[], thread: Thread, of: DocumentsOf): Promise<void> {
    const { chat, platform, report } = this.#options;
    const before = new Set(this.get(of.id).documents.map(({ id }) => id));
    this.#ownBefore = before;
    try {
      await this.#ask({ type: 'attach_documents', of, documents });
      const { documents: draft } = this.get(of.id);
      const added = draft.filter(({ id }) => !before.has(id));
      chat.edits.attach(thread, of.id, added);
      // At the end of the chat, where reading ahead puts them, nobody asks about them.
      const held = chat.heldDocuments(of.id);
      if (draft.every(({ id }) => held.has(id)))
        await platform.call({ type: 'stop_reading_documents', of }).catch(report);
    } catch (error) {
      this.problems = { id: of.id, isForEdit: true, sentences: [...this.problems.sentences, sentenceOf(error)] };
    } finally {
      this.#ownBefore = null;
    }
  }

  async #attach(documents: NewDocument[], goal: DocumentsOf | null): Promise<boolean> {
    const { chat } = this.#options;
    this.#numChanging++;
    try {
      const of = goal ?? ofConversation(await chat.make());
      await this.#ask({ type: 'attach_documents', of, documents });
      return true;
    } catch (error) {
      this.problems = { id: goal?.id ?? chat.selectedId, isForEdit: false, sentences: [sentenceOf(error)] };
      return false;
    } finally {
      this.#numChanging--;
    }
  }

  /** Ends making text of files; nothing of them is attached. */
  stopOpening(of: DocumentsOf | null, isForEdit = false): void {
    this.#stop?.abort();
    this.#focus(of, isForEdit);
  }

  dismissProblems(of: DocumentsOf | null, isForEdit = false): void {
    this.problems = { id: null, isForEdit: false, sentences: [] };
    this.#focus(of, isForEdit);
  }

  /** Runs what sends the draft of the open chat: what could not be attached to it is no longer said once it is sent. */
  async sending(send: () => Promise<void>): Promise<void> {
    const { chat } = this.#options;
    const { problems } = this;
    const isHere = this.problemsOf(chat.selectedId).length > 0;
    await send();
    if (isHere && this.problems === problems && chat.draft === '')
      this.problems = { id: null, isForEdit: false, sentences: [] };
  }

  /** Takes a document away; can be taken back. */
  async remove(of: DocumentsOf, { id: document_id, name }: Document): Promise<void> {
    const { chat, report } = this.#options;
    this.#focus(of);
    const change = async (type: 'remove_document' | 'restore_document') => {
      this.#numChanging++;
      try {
        if (type === 'restore_document' && of.type === 'conversation' && !(await chat.bringBack(of.id))) return false;
        await this.#ask({ type, of, document_id });
        return true;
      } catch (error) {
        report(error);
        return false;
      } finally {
        this.#numChanging--;
      }
    };
    const isDone = change('remove_document');
    await offerUndo(this.#options, strings.documents.removed(name), () => void change('restore_document'), isDone);
  }

  /** Begins to read what is not read; or stops, which keeps what was read. */
  async setReading(of: DocumentsOf, isOn: boolean): Promise<void> {
    const { platform, report } = this.#options;
    // The button goes with what it did.
    this.#focus(of);
    const type = isOn ? 'read_documents' : 'stop_reading_documents';
    await platform.call({ type, of }).catch(report);
  }

  /** Shows the text of a document, of the open chat if nothing else is named. */
  async show(document: Document, of: DocumentsOf | null = this.#open, place: Place | null = null): Promise<void> {
    const { chat, platform } = this.#options;
    // A chat that is not made yet begins with what its folder has.
    of ??= chat.unsent.folderId === null ? null : ofFolder(chat.unsent.folderId);
    if (of === null) return;
    this.shown = { document, text: null, problem: null, place };
    try {
      const reply = await platform.call({ type: 'get_document', of, document_id: document.id });
      if (reply.type !== 'document_text') throw new Error(strings.connection.unexpectedReply);
      if (this.shown?.document.id === document.id) this.shown = { ...this.shown, text: reply.text };
    } catch (error) {
      if (this.shown?.document.id === document.id) this.shown = { ...this.shown, problem: sentenceOf(error) };
    }
  }

  closeReader(): void {
    this.shown = null;
  }
}
