// Which model answers a chat, and where that comes from.
import { runOrReport, type Platform } from '../platform/platform';
import type { Conversation, ModelProblem } from '../platform/wire';
import type { StatusStore } from '../status/status.svelte';
import type { ModelStore } from '../models/models.svelte';
import { shortModelName } from '../status/engine';
import { strings } from '../text';
import type { ChatStore } from './chat.svelte';
import type { FolderStore } from './folders.svelte';
import { sourceOfModel } from './sources';

/** A model and the fingerprint of its files, which is known only while it is in memory. */
export interface AnsweringModel {
  name: string;
  fingerprint: string | null;
}

/** The model of a chat; null while none is loaded and nothing names one. */
export function modelOf(
  { model }: Pick<Conversation, 'model'>,
  status: Pick<StatusStore, 'model' | 'inMemory'>,
): AnsweringModel | null {
  return named(model.name ?? status.model, status);
}

function named(name: string | null, { inMemory }: Pick<StatusStore, 'inMemory'>): AnsweringModel | null {
  return name === null ? null : { name, fingerprint: inMemory.get(name) ?? null };
}

export interface ChatModelOptions {
  platform: Platform;
  chat: ChatStore;
  folders: FolderStore;
  models: ModelStore;
  status: StatusStore;
  report: (error: unknown) => void;
}

/** The model of the open chat, or of the one that the first message will make. */
export class ChatModelStore {
  constructor(private readonly options: ChatModelOptions) {
    options.chat.mayAsk = () => this.mayAsk();
  }

  /** Which model is to answer; a name of null is whichever is loaded. */
  readonly #rule = $derived.by((): Conversation['model'] => {
    const { chat, folders, models } = this.options;
    if (chat.selected) return chat.selected.model;
    const wanted: [string | null | undefined, Conversation['model']['source']][] = [
      [chat.newModel, 'chat'],
      [chat.newPersona?.model, 'chat'],
      [folders.get(chat.newFolderId)?.model, 'folder'],
    ];
    const isHere = (name: string) => models.get(name) !== undefined;
    let missing: string | null = null;
    for (const [name, source] of wanted) {
      if (name == null) continue;
      if (isHere(name)) return { name, source, missing };
      missing ??= name;
    }
    return { name: null, source: 'app', missing };
  });

  /** Nothing names a model, and none is loaded: this one will be. */
  readonly #proposed = $derived.by(() => {
    const { models, status } = this.options;
    return this.#rule.name === null && status.model === null ? models.proposed : null;
  });

  readonly #name = $derived.by(() => this.#rule.name ?? this.options.status.model ?? this.#proposed);
  readonly #fingerprint = $derived.by(() => named(this.#name, this.options.status)?.fingerprint ?? null);
  readonly current = $derived.by((): AnsweringModel | null =>
    this.#name === null ? null : { name: this.#name, fingerprint: this.#fingerprint },
  );

  readonly isInMemory = $derived(this.#fingerprint !== null);
  /** The one that was named for this chat before a message could be sent, and was gone by then. */
  #lost = $state.raw<{ chat: string; name: string } | null>(null);
  /** The model that was to answer and is not on this machine, until another has answered on this branch. */
  readonly missing = $derived.by(() => {
    if (this.#rule.source === 'answer') return null;
    const lost = this.#lost?.chat === this.#chatKey && this.#lost.name !== this.#name ? this.#lost.name : null;
    return this.#rule.missing ?? lost;
  });
  /** Why the one that would answer cannot be loaded, as far as the list says. */
  readonly problem = $derived.by((): ModelProblem | null => {
    if (this.#name === null || this.isInMemory) return null;
    return this.options.models.get(this.#name)?.problem ?? null;
  });
  /** The one that could answer instead: at once, or because the chat's own cannot be loaded. */
  readonly instead = $derived.by((): string | null => {
    const { models, status } = this.options;
    if (this.isInMemory || this.#rule.name === null) return null;
    const other = status.loaded?.name ?? (this.problem ? models.proposed : null);
    return other === this.#rule.name ? null : other;
  });

  /** What is to be known before something is asked: that a model has to be loaded, or is not here. Empty: nothing. */
  readonly notice = $derived.by((): string => {
    const words = strings.models.offer;
    const name = this.#name === null ? null : shortModelName(this.#name);
    const sentences = (parts: string[]) => parts.filter(Boolean).join(' ');
    if (name !== null && this.problem) return sentences([this.#whyNot(name, this.problem), words.chooseAnother]);
    const isWaiting = this.instead !== null || this.#proposed !== null;
    const whenAsked = isWaiting && name !== null ? words.whenAsked(name) : '';
    if (this.missing === null) return whenAsked;
    // Who is named as the one that answers need not be named again.
    const waits = this.#proposed === null ? whenAsked : '';
    const gone = shortModelName(this.missing);
    const problem = this.options.models.get(this.missing)?.problem;
    if (problem)
      return sentences([this.#whyNot(gone, problem), name === null ? words.chooseAnother : words.answers(name), waits]);
    return sentences([name === null ? words.nobodyInstead(gone) : words.notHere(gone, name), waits]);
  });

  #whyNot(name: string, { kind, detail }: ModelProblem): string {
    return strings.models.offer.broken(name, strings.models.problems[kind](detail));
  }

  get #chatKey(): string {
    const { selectedId, numNew } = this.options.chat;
    return selectedId ?? `new ${numNew}`;
  }

  /**
   * Whether what the composer says will answer can. Of one that is not in memory the list may be old: files come and go.
   * So the models are listed again first, and whatever is different is shown before anything is asked or made.
   */
  mayAsk(): true | Promise<boolean> {
    return this.isInMemory || this.options.status.isLoading || this.#look();
  }

  async #look(): Promise<boolean> {
    const { chat, models } = this.options;
    const [before, key] = [this.#name, this.#chatKey];
    await models.refresh();
    if (chat.selectedId !== null && this.#name !== null && !models.isHere(this.#name))
      await chat.renew(chat.selectedId);
    if (key !== this.#chatKey) return false;
    const isSame = this.#name !== null && this.#name === before;
    if (before !== null && !isSame) this.#lost = { chat: key, name: before };
    if (isSame && this.problem === null) return true;
    chat.announcement = this.notice || (models.whyNotReady ?? strings.welcome.noneLoadable);
    return false;
  }

  source(begun: Parameters<typeof sourceOfModel>[1]): string | null {
    if (this.#proposed !== null) return strings.models.chatSources.proposed;
    return this.#name === null ? null : sourceOfModel({ ...this.#rule, name: this.#name }, begun);
  }

  /** Lets a model answer the open chat from now on, and loads it; returns whether that worked. */
  async choose(name: string): Promise<boolean> {
    const { chat, models, status } = this.options;
    const id = chat.selectedId;
    if (id === null) chat.newModel = name;
    else if (!(await runOrReport(this.options, { type: 'choose_model', id, model: name }))) return false;
    if (status.inMemory.has(name) && (id !== null || models.isLoaded(name))) {
      models.isMenuOpen = false;
      return true;
    }
    return models.load(name);
  }
}
