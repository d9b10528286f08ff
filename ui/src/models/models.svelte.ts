// The models on this machine, which of them is being loaded or deleted, and whether a message can be sent.
import { type Platform, runOrReport, sentenceOf } from '../platform/platform';
import type { MemoryNeed, Model, ModelDeletion } from '../platform/wire';
import { Asked } from './asked.svelte';
import { knownNames } from './knownNames.svelte';
import { setAsideSentence } from './problems';
import type { StatusStore } from '../status/status.svelte';
import { shortModelName } from '../status/engine';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';

/** How often the list is asked for while other lists overtake the reply. */
const MAX_LISTINGS = 5;

/** The question whether a model that is set aside is used anyway. */
export const useOf = (name: string) => `use ${name}`;

export type ModelsTab = 'here' | 'discover';

export interface ModelsOptions {
  platform: Platform;
  status: StatusStore;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
}

/** Owns the list of models and the folders that were added. The status store knows which model is loaded. */
export class ModelStore {
  items = $state.raw<Model[]>([]);
  /** The folders that were added. */
  folders = $state.raw<string[]>([]);
  /** The part of the page that is shown. */
  tab = $state<ModelsTab>('here');
  /** The menu of the composer that chooses the model. */
  isMenuOpen = $state(false);
  isRefreshing = $state(false);
  /** The model that is being loaded, until the engine reports the result. */
  asked = $state<string | null>(null);
  /** The model that the dialog asks whether to delete. */
  deletingName = $state<string | null>(null);
  /** What deleting it deletes; null until the core has said. */
  deletion = $state.raw<ModelDeletion | null>(null);
  /** The model whose settings the dialog shows. */
  settingsName = $state<string | null>(null);
  /** Why it cannot be deleted. */
  deletionProblem = $state<string | null>(null);
  isDeleting = $state(false);
  /** The row that takes the focus of one that was deleted; without a name the list takes it. */
  focus = $state.raw<{ name: string | null } | null>(null);

  /** What models take with the settings of their own, where that was asked. */
  readonly ownMemory: Asked<MemoryNeed>;
  /** The models whose state can be held in 16 bits. */
  withState = $state.raw<ReadonlySet<string>>(new Set());

  /** The models that can be chosen. A model that is set aside has to be used again first, in its own row. */
  readonly loadable = $derived(
    this.items.filter((model) => model.problem === null && !model.is_being_checked && !model.is_set_aside),
  );
  /** The models that would be loadable if they were used again. */
  readonly setAside = $derived(this.items.filter((model) => model.problem === null && model.is_set_aside));
  /** The one that answers while none is loaded and a chat has none of its own. */
  readonly proposed = $derived(this.items.find((model) => model.is_proposed)?.name ?? null);
  readonly isChecking = $derived(this.items.some((model) => model.is_being_checked));
  readonly #options: ModelsOptions;
  #isStopping = false;
  /** How many lists have come. */
  #numReceived = 0;
  /** Models that were being measured; what came of it is told once. */
  readonly #measured = new Set<string>();

  constructor(options: ModelsOptions) {
    this.#options = options;
    this.ownMemory = new Asked((name) => this.#askMemory(name));
  }

  /** What a model takes in memory: with the settings of its own, else as its files say; null until they were opened. */
  memoryOf(model: Model): MemoryNeed | null {
    return model.facts && (this.ownMemory.get(model.name) ?? model.facts.memory);
  }

  async #askMemory(name: string): Promise<MemoryNeed> {
    const reply = await this.#options.platform.call({ type: 'get_model_memory', name });
    if (reply.type !== 'model_memory') throw new Error(strings.connection.unexpectedReply);
    if (reply.takes_bf16_state) this.withState = new Set([...this.withState, name]);
    return reply.memory;
  }

  /** Why no message can be sent, or null when one can. */
  get whyNotReady(): string | null {
    if (this.#options.status.model !== null || this.loadable.length > 0) return null;
    if (this.isChecking) return strings.firstModel.checking;
    const setAside = this.items.find((model) => model.is_set_aside);
    if (setAside) return setAsideSentence(setAside.name);
    return this.items.length === 0 ? strings.welcome.noModels : strings.welcome.noneLoadable;
  }

  /** Whether a dialog about a model is open. */
  get isAsking(): boolean {
    return this.deletingName !== null || this.settingsName !== null;
  }

  get canAddFolders(): boolean {
    return this.#options.platform.chooseFolder !== undefined;
  }

  receive(models: Model[]): void {
    knownNames.receive(models);
    this.items = models;
    this.#numReceived += 1;
    models.forEach((model) => this.#tellMeasured(model));
  }

  #tellMeasured({ name, facts, is_being_measured }: Model): void {
    if (is_being_measured) return void this.#measured.add(name);
    if (facts === null || !this.#measured.delete(name)) return;
    const perplexity = facts.rounded_weights?.perplexity;
    if (!perplexity) return;
    const words = strings.models.import;
    this.#options.toasts.show('info', words.measured(shortModelName(name), words.perplexity(perplexity)));
  }

  /** Gives up measuring what rounding costs a model. */
  async stopMeasuring(name: string): Promise<void> {
    await runOrReport(this.#options, { type: 'cancel_model_measurement', name });
  }

  get(name: string): Model | undefined {
    return this.items.find((model) => model.name === name);
  }

  /** Whether a model is on this machine, loadable or not. */
  readonly isHere = (name: string): boolean => this.get(name) !== undefined;

  isBusy(name: string): boolean {
    const { engine } = this.#options.status;
    return this.asked === name || (engine.state === 'loading' && engine.model === name);
  }

  isLoaded(name: string): boolean {
    return this.#options.status.model === name && !this.isBusy(name);
  }

  /** How much of a model that is being loaded has been read; null until the engine says. */
  progressOf(name: string): { read: number; total: number } | null {
    const { engine } = this.#options.status;
    if (engine.state !== 'loading' || engine.model !== name || engine.total_bytes === 0) return null;
    return { read: engine.bytes_read, total: engine.total_bytes };
  }

  /** Loads a model; returns whether it worked. */
  async load(name: string): Promise<boolean> {
    this.asked = name;
    this.#isStopping = false;
    try {
      await this.#options.platform.call({ type: 'load_model', name });
      this.isMenuOpen = false;
      return true;
    } catch (error) {
      // Who stopped it knows why it is not loaded.
      if (!this.#isStopping) this.#options.report(error);
      return false;
    } finally {
      // Another may have been asked for meanwhile.
      if (this.asked === name) this.asked = null;
    }
  }

  async stopLoading(): Promise<void> {
    this.#isStopping = true;
    await runOrReport(this.#options, { type: 'stop_loading' });
  }

  async unload(): Promise<void> {
    await runOrReport(this.#options, { type: 'unload_model' });
  }

  /** Uses a model again that is set aside; returns whether that worked. */
  async useAnyway(name: string): Promise<boolean> {
    const isUsed = await runOrReport(this.#options, { type: 'use_model_anyway', name });
    if (isUsed) this.#options.toasts.settle(useOf(name));
    return isUsed;
  }

  /** Opens the files of a model once more. */
  async check(name: string): Promise<void> {
    await runOrReport(this.#options, { type: 'check_model', name });
  }

  /** Lists the models again. */
  async refresh(): Promise<void> {
    this.isRefreshing = true;
    try {
      const models = await this.#list();
      if (models) this.receive(models);
    } catch (error) {
      this.#options.report(error);
    } finally {
      this.isRefreshing = false;
    }
  }

  /**
   * A list that comes as an event meanwhile may be newer than the reply: then it is asked for once more. Null where events come
   * each time: they are in order, and the last of them is what the models are.
   */
  async #list(): Promise<Model[] | null> {
    for (let numLeft = MAX_LISTINGS; ; numLeft -= 1) {
      const numBefore = this.#numReceived;
      const reply = await this.#options.platform.call({ type: 'list_models' });
      if (reply.type !== 'models') return null;
      if (this.#numReceived === numBefore) return reply.models;
      if (numLeft <= 1) return null;
    }
  }

  /** Opens the dialog about deleting a model, which says what goes with it. */
  async askForDeletion(name: string): Promise<void> {
    this.deletingName = name;
    this.deletion = null;
    this.deletionProblem = null;
    try {
      const reply = await this.#options.platform.call({ type: 'get_model_deletion', name });
      if (reply.type === 'model_deletion' && this.deletingName === name) this.deletion = reply.deletion;
    } catch (error) {
      if (this.deletingName === name) this.deletionProblem = sentenceOf(error);
    }
  }

  closeDeletion(): void {
    this.deletingName = null;
  }

  /** Hides the model that the dialog asks about, and offers to bring it back. */
  async delete(): Promise<void> {
    const name = this.deletingName;
    if (name === null || this.isDeleting) return;
    const { platform } = this.#options;
    const index = this.items.findIndex((model) => model.name === name);
    const next = (this.items[index + 1] ?? this.items[index - 1])?.name ?? null;
    this.isDeleting = true;
    try {
      await platform.call({ type: 'delete_model', name });
    } catch (error) {
      return void (this.deletionProblem = sentenceOf(error));
    } finally {
      this.isDeleting = false;
    }
    this.items = this.items.filter((model) => model.name !== name);
    this.deletingName = null;
    this.focus = { name: next };
    void offerUndo(this.#options, strings.models.deletion.done(shortModelName(name)), () => void this.#restore(name));
  }

  async #restore(name: string): Promise<void> {
    if (!(await runOrReport(this.#options, { type: 'restore_model', name }))) return;
    await this.refresh();
    this.focus = { name };
  }

  /** Asks which folders were added. */
  async loadFolders(): Promise<void> {
    try {
      const reply = await this.#options.platform.call({ type: 'get_model_folders' });
      if (reply.type === 'model_folders') this.folders = reply.paths;
    } catch (error) {
      this.#options.report(error);
    }
  }

  /** Asks for a folder and lists its models too. */
  async addFolder(): Promise<void> {
    const { platform, report } = this.#options;
    try {
      const path = (await platform.chooseFolder?.()) ?? null;
      if (path === null) return;
      await platform.call({ type: 'add_model_folder', path });
      await this.loadFolders();
    } catch (error) {
      report(error);
    }
  }

  async removeFolder(path: string): Promise<void> {
    if (!(await runOrReport(this.#options, { type: 'remove_model_folder', path }))) return;
    this.folders = this.folders.filter((folder) => folder !== path);
    void offerUndo(
      this.#options,
      strings.models.folders.removed,
      () => void runOrReport(this.#options, { type: 'add_model_folder', path }).then(() => this.loadFolders()),
    );
  }
}
