// Which model answers a chat, and where that comes from.
import { runOrReport, type Platform } from '../platform/platform';
import type { Conversation, ModelProblem } from '../platform/wire';
import type { StatusStore } from '../status/status.svelte';
import { useOf, type ModelStore } from '../models/models.svelte';
import { problemSentence, setAsideSentence } from '../models/problems';
import { shortModelName } from '../status/engine';
import { strings } from '../text';
import type { ToastAction } from '../ui/toasts.svelte';
import type { Asked, ChatStore } from './chat.svelte';
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
    options.chat.whyNotAsk = (id, named) => this.whyNotAsk(id, named);
    options.chat.remediesFor = (id, named) => this.#remediesFor(id, named);
  }

  /** Which model is to answer; a name of null is whichever is loaded. */
  readonly #rule = $derived.by((): Conversation['model'] => {
    const { chat, folders, models } = this.options;
    if (chat.selected) return chat.selected.model;
    const wanted: [string | null | undefined, Conversation['model']['source']][] = [
      [chat.unsent.model, 'chat'],
      [chat.unsent.persona?.model, 'chat'],
      [folders.get(chat.unsent.folderId)?.model, 'folder'],
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
  /** The one that was named for a chat before a message could be sent, and was gone by then; until one is sent. */
  #lost = $state.raw<{ chat: string; name: string } | null>(null);
  /** The model that was to answer and is not on this machine, until another has answered on this branch. */
  readonly missing = $derived.by(() => {
    const { missing } = this.#rule;
    if (missing !== null || this.#lost?.chat !== this.#chatKey) return missing;
    return this.#lost.name === this.#name ? null : this.#lost.name;
  });
  /** Why the one that would answer cannot be loaded, as far as the list says. */
  readonly problem = $derived.by(() => (this.#name === null ? null : this.#problemOf(this.#name)));
  /** The model that would answer, or the first if none can be loaded, provided that it is set aside. */
  readonly setAside = $derived.by((): string | null => {
    const { items, loadable } = this.options.models;
    const first = loadable.length === 0 ? items.find(({ is_set_aside }) => is_set_aside)?.name : undefined;
    const name = this.#name ?? first ?? null;
    return name !== null && this.#isSetAside(name) ? name : null;
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
    if (this.setAside !== null) return setAsideSentence(this.setAside);
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

  #problemOf(name: string): ModelProblem | null {
    const { models, status } = this.options;
    return status.inMemory.has(name) ? null : (models.get(name)?.problem ?? null);
  }

  #isSetAside(name: string): boolean {
    const { models, status } = this.options;
    return !status.inMemory.has(name) && models.get(name)?.is_set_aside === true;
  }

  #whyNot(name: string, problem: ModelProblem): string {
    return strings.models.offer.broken(name, problemSentence(problem));
  }

  /** `id`: null is the chat that the first message makes. */
  #keyOf(id: string | null): string {
    return id ?? `new ${this.options.chat.unsent.count}`;
  }

  get #chatKey(): string {
    return this.#keyOf(this.options.chat.selectedId);
  }

  #nameOf(id: string | null): string | null {
    const { chat, models, status } = this.options;
    if (id === chat.selectedId) return this.#name;
    return chat.list.get(id)?.model.name ?? status.model ?? models.proposed;
  }

  /**
   * Why a chat's model cannot be asked, or one of those that are named; null: they can. Every way to ask comes by here:
   * of one that is not in memory the list may be old, for files come and go. So the models are listed again first, and
   * whatever is different is shown before anything is asked or made.
   */
  whyNotAsk(id: string | null, named: Asked = [null]): null | Promise<string | null> {
    const { inMemory, isLoading } = this.options.status;
    const isReady = named.map((name) => name ?? this.#nameOf(id)).every((name) => name !== null && inMemory.has(name));
    if (!isReady && !isLoading) return this.#look(id, named);
    this.#lost = null;
    return null;
  }

  async #look(id: string | null, named: Asked): Promise<string | null> {
    const { chat, models } = this.options;
    const [before, key] = [this.#nameOf(id), this.#keyOf(id)];
    await models.refresh();
    if (id !== null && before !== null && !models.isHere(before)) await chat.renew(id);
    for (const name of named) {
      const why = name === null ? this.#whyNotOwn(id, key, before) : this.#whyNotNamed(name);
      if (why !== null) return why;
    }
    this.#lost = null;
    return null;
  }

  /** Whether the model of a chat is the one that its window named before, and can be loaded. */
  #whyNotOwn(id: string | null, key: string, before: string | null): string | null {
    const { models } = this.options;
    const now = this.#nameOf(id);
    const isSame = now !== null && now === before;
    if (before !== null && !isSame) this.#lost = { chat: key, name: before };
    if (isSame && this.#problemOf(now) === null && !this.#isSetAside(now)) return null;
    if (key === this.#chatKey && this.notice !== '') return this.notice;
    return before === null ? (models.whyNotReady ?? strings.welcome.noneLoadable) : this.#whyNotNamed(before);
  }

  #whyNotNamed(name: string): string | null {
    const words = strings.models.offer;
    const problem = this.#problemOf(name);
    if (problem) return `${this.#whyNot(shortModelName(name), problem)} ${words.chooseAnother}`;
    if (this.#isSetAside(name)) return setAsideSentence(name);
    const isHere = this.options.status.inMemory.has(name) || this.options.models.isHere(name);
    return isHere ? null : words.nobodyInstead(shortModelName(name));
  }

  source(begun: Parameters<typeof sourceOfModel>[1]): string | null {
    const name = this.#name;
    if (name === null) return null;
    const isOfApp = this.#rule.source === 'app';
    if (!isOfApp || this.isInMemory) return sourceOfModel({ ...this.#rule, name }, begun);
    return this.options.models.isBusy(name) ? strings.models.loading : strings.models.chatSources.proposed;
  }

  /** Uses a model again that is set aside. If it answers the open chat, it is loaded. Returns whether that worked. */
  async useAnyway(name: string): Promise<boolean> {
    const { models } = this.options;
    const answers = this.setAside === name;
    if (!(await models.useAnyway(name))) return false;
    return answers ? models.load(name) : true;
  }

  useAnywayAction(name: string): ToastAction {
    return { label: strings.models.useAnyway, run: () => void this.useAnyway(name), decides: useOf(name) };
  }

  #remediesFor(id: string | null, named: string | null): ToastAction[] {
    const own = id === this.options.chat.selectedId ? this.setAside : this.#nameOf(id);
    const name = named ?? own;
    return name !== null && this.#isSetAside(name) ? [this.useAnywayAction(name)] : [];
  }

  /** Lets a model answer the open chat from now on, and loads it; returns whether that worked. */
  async choose(name: string): Promise<boolean> {
    const { chat, models, status } = this.options;
    const id = chat.selectedId;
    if (id === null) chat.unsent.model = name;
    else if (!(await runOrReport(this.options, { type: 'choose_model', id, model: name }))) return false;
    if (status.inMemory.has(name) && (id !== null || models.isLoaded(name))) {
      models.isMenuOpen = false;
      return true;
    }
    return models.load(name);
  }
}
