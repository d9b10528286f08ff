// The documents of the next message: files become text, are attached, and are read before the question is there.
import { DocumentProblem, readDocument } from './read';
import { ofFile, type Drop, type SourceFile } from './sources';
import { whyLeftOut, type LeftOut } from './folder';
import type { ChatStore } from '../chat/chat.svelte';
import { sentenceOf, type Platform } from '../platform/platform';
import type { Command, Document, DocumentDraft, DocumentReading, Event, NewDocument } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';

/** A shorter text is pasted as it is. */
const LEAST_OFFERED_CHARS = 4000;
/** Before this nobody knows how fast reading goes. */
const LEAST_MEASURED_MS = 1500;
/** Time left is rounded up to this. */
const STEP_SECONDS = 5;

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

/** A file of a folder, and whether it is to be attached. */
export interface Choice {
  file: SourceFile;
  why: LeftOut | null;
  isChosen: boolean;
}

/** What the reader shows. */
export interface Shown {
  conversationId: string;
  document: Document;
  text: string | null;
  problem: string | null;
}

/** When the reading of a draft began, and what was said last of the time left. */
interface Pace {
  at: number;
  tokens: number;
  seconds: number | null;
}

const NONE: DocumentDraft = { conversation_id: '', documents: [], reading: { type: 'unread' } };

/** The commands that answer with a draft. */
type DraftCommand = Extract<
  Command,
  { type: 'get_document_draft' | 'attach_documents' | 'remove_document' | 'restore_document' }
>;

/** While a document is read, events come without end. */
const MOST_QUESTIONS = 5;

/** Owns the drafts' documents, the reader, and the choice among the files of a folder. */
export class DocumentStore {
  #drafts = $state.raw(new Map<string, DocumentDraft>());
  #numEvents = 0;
  #paces = new Map<string, Pace>();
  /** The seconds that the reading of the open chat's draft still takes; null: unknown. */
  secondsLeft = $state<number | null>(null);
  /** The files that are being made into text, for the chat that was open then. */
  opening = $state.raw<{ conversationId: string | null; files: Opening[] } | null>(null);
  /** What could not be attached to which chat, as sentences. */
  problems = $state.raw<{ conversationId: string | null; sentences: string[] }>({
    conversationId: null,
    sentences: [],
  });
  folder = $state.raw<{ name: string; isCut: boolean } | null>(null);
  choices = $state<Choice[]>([]);
  shown = $state.raw<Shown | null>(null);
  /** A long text that was pasted into the draft of this chat. */
  pasted = $state.raw<{ conversationId: string | null; text: string } | null>(null);

  #stop: AbortController | null = null;
  readonly #options: DocumentOptions;
  readonly #now: () => number;

  constructor(options: DocumentOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
  }

  /** What the next message of the open chat will be sent with. */
  get draft(): DocumentDraft {
    const id = this.#options.chat.selectedId;
    return (id !== null && this.#drafts.get(id)) || NONE;
  }

  get openingHere(): Opening[] {
    return this.opening?.conversationId === this.#options.chat.selectedId ? this.opening.files : [];
  }

  get problemsHere(): string[] {
    return this.problems.conversationId === this.#options.chat.selectedId ? this.problems.sentences : [];
  }

  /** The pasted text, as long as it stands in the draft. */
  get pastedHere(): string | null {
    const { chat } = this.#options;
    const { pasted } = this;
    return pasted && pasted.conversationId === chat.selectedId && chat.draft.includes(pasted.text) ? pasted.text : null;
  }

  /** Asks for the draft of a chat that is opened. */
  async open(conversation_id: string): Promise<void> {
    try {
      await this.#ask({ type: 'get_document_draft', conversation_id });
    } catch {
      // The chat itself says what is wrong with it.
    }
  }

  /**
   * Asks for the draft of a chat, or changes it. Events may overtake the reply, which is older than they are then: so the draft is
   * asked for again, until nothing has happened meanwhile.
   */
  async #ask(command: DraftCommand): Promise<void> {
    const id = command.conversation_id;
    let next = command;
    for (let left = MOST_QUESTIONS; left > 0; left--) {
      const before = this.#numEvents;
      const reply = await this.#options.platform.call(next);
      if (reply.type !== 'document_draft') return;
      const isNewest = this.#numEvents === before;
      if (isNewest || left === 1 || !this.#drafts.has(id)) this.#put(reply.draft);
      if (isNewest) return;
      next = { type: 'get_document_draft', conversation_id: id };
    }
  }

  receive(event: Extract<Event, { type: 'document_draft' | 'documents_reading' }>): void {
    this.#numEvents++;
    if (event.type === 'document_draft') return this.#put(event.draft);
    const draft = this.#drafts.get(event.conversation_id);
    if (draft) this.#put({ ...draft, reading: event.reading });
  }

  #put(draft: DocumentDraft): void {
    const { conversation_id: id, reading } = draft;
    this.#drafts = new Map(this.#drafts).set(id, draft);
    if (reading.type !== 'reading') this.#paces.delete(id);
    if (id === this.#options.chat.selectedId) this.secondsLeft = this.#measure(id, reading);
  }

  /** How long the rest takes, from what has been read so far; it never grows. */
  #measure(id: string, reading: DocumentReading): number | null {
    if (reading.type !== 'reading') return null;
    const { processed_tokens: processed, total_tokens: total } = reading;
    const pace = this.#paces.get(id) ?? { at: this.#now(), tokens: processed, seconds: null };
    this.#paces.set(id, pace);
    const milliseconds = this.#now() - pace.at;
    const read = processed - pace.tokens;
    if (milliseconds < LEAST_MEASURED_MS || read <= 0) return pace.seconds;
    const exact = ((total - processed) * milliseconds) / read / 1000;
    const rounded = Math.max(STEP_SECONDS, Math.ceil(exact / STEP_SECONDS) * STEP_SECONDS);
    pace.seconds = Math.min(pace.seconds ?? rounded, rounded);
    return pace.seconds;
  }

  /** Asks for files and attaches them. */
  async choose(): Promise<void> {
    try {
      await this.attach(await this.#options.platform.chooseDocuments());
    } catch (error) {
      this.#options.report(error);
    }
    this.#options.chat.numFocusRequests++;
  }

  /** Takes what was dropped: files at once, of a folder those that a person chooses. */
  async drop({ folder, files, isCut }: Drop): Promise<void> {
    this.shown = null;
    if (folder === null) return this.attach(files);
    this.choices = files.map((file) => {
      const why = whyLeftOut(file);
      return { file, why, isChosen: why === null };
    });
    this.folder = { name: folder, isCut };
  }

  /** Attaches the files of the folder that are chosen. */
  async attachChosen(): Promise<void> {
    const files = this.choices.filter(({ isChosen }) => isChosen).map(({ file }) => file);
    this.closeFolder();
    await this.attach(files);
    this.#options.chat.numFocusRequests++;
  }

  closeFolder(): void {
    this.folder = null;
    this.choices = [];
  }

  /** Files on the clipboard are attached; a long text is offered to be. Returns whether something was taken. */
  paste(data: DataTransfer | null): boolean {
    const files = [...(data?.files ?? [])].filter(({ type }) => !type.startsWith('image/'));
    const text = data?.getData('text/plain') ?? '';
    if (text === '' && files.length > 0) {
      void this.attach(files.map((file) => ofFile(file)));
      return true;
    }
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
    const isAttached = await this.#attach([{ name: strings.documents.pastedName, kind: 'text', text }]);
    if (!isAttached && chat.draft === '') chat.draft = before;
  }

  /** Makes documents of files and attaches them; what cannot be one is said. */
  async attach(files: SourceFile[]): Promise<void> {
    if (files.length === 0 || this.opening !== null) return;
    const { chat } = this.#options;
    const conversationId = chat.selectedId;
    const stop = (this.#stop = new AbortController());
    const documents: NewDocument[] = [];
    const problems: string[] = [];
    this.problems = { conversationId, sentences: [] };
    try {
      for (const [index, file] of files.entries()) {
        const show = (page: number | null, pages: number | null) => {
          const rest = files.slice(index).map(({ name }) => ({ name, page: null, pages: null }));
          this.opening = { conversationId, files: [{ name: file.name, page, pages }, ...rest.slice(1)] };
        };
        show(null, null);
        try {
          documents.push(await readDocument(file, { signal: stop.signal, onPage: show }));
        } catch (error) {
          if (stop.signal.aborted) return;
          problems.push(
            error instanceof DocumentProblem ? error.message : strings.documents.problems.unreadable(file.name),
          );
        }
      }
    } finally {
      this.opening = null;
      this.#stop = null;
    }
    this.problems = { conversationId, sentences: problems };
    if (documents.length === 0) return;
    const isAttached = await this.#attach(documents, conversationId);
    // A chat that was made for them shows what could not be attached to it.
    if (isAttached && conversationId === null && problems.length > 0)
      this.problems = { conversationId: chat.selectedId, sentences: problems };
  }

  async #attach(documents: NewDocument[], goal = this.#options.chat.selectedId): Promise<boolean> {
    const { chat } = this.#options;
    try {
      const conversation_id = goal ?? (await chat.make());
      await this.#ask({ type: 'attach_documents', conversation_id, documents });
      return true;
    } catch (error) {
      this.problems = { conversationId: chat.selectedId, sentences: [sentenceOf(error)] };
      return false;
    }
  }

  /** Ends making text of files; nothing of them is attached. */
  stopOpening(): void {
    this.#stop?.abort();
    this.#options.chat.numFocusRequests++;
  }

  dismissProblems(): void {
    this.problems = { conversationId: null, sentences: [] };
    this.#options.chat.numFocusRequests++;
  }

  /** Takes a document out of the draft; can be taken back. */
  async remove({ id: document_id, name }: Document): Promise<void> {
    const { chat, report } = this.#options;
    const conversation_id = chat.selectedId;
    if (conversation_id === null) return;
    chat.numFocusRequests++;
    const change = async (type: 'remove_document' | 'restore_document') => {
      try {
        await this.#ask({ type, conversation_id, document_id });
        return true;
      } catch (error) {
        report(error);
        return false;
      }
    };
    const isDone = change('remove_document');
    await offerUndo(this.#options, strings.documents.removed(name), () => void change('restore_document'), isDone);
  }

  /** Begins to read what is not read; or stops, which keeps what was read. */
  async setReading(isOn: boolean): Promise<void> {
    const { chat, platform, report } = this.#options;
    const conversation_id = chat.selectedId;
    if (conversation_id === null) return;
    // The button goes with what it did.
    chat.numFocusRequests++;
    const type = isOn ? 'read_documents' : 'stop_reading_documents';
    await platform.call({ type, conversation_id }).catch(report);
  }

  /** Shows the text of a document. */
  async show(document: Document): Promise<void> {
    const { chat, platform } = this.#options;
    const conversationId = chat.selectedId;
    if (conversationId === null) return;
    this.shown = { conversationId, document, text: null, problem: null };
    try {
      const reply = await platform.call({
        type: 'get_document',
        conversation_id: conversationId,
        document_id: document.id,
      });
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
