// Presets: named parameters, saved from a chat, given to chats, renamed, deleted and brought back.
import { sentenceOf, type Platform } from '../platform/platform';
import type { Command, Preset, Settings } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { UNDO_MS, type UndoStack } from '../ui/undo';
import type { SettingsStore } from './settings.svelte';

export interface PresetOptions {
  platform: Platform;
  settings: SettingsStore;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
}

/** Whether two sets of parameters are the same. */
export function isSame(a: Partial<Settings>, b: Partial<Settings>): boolean {
  const [one, other] = [Object.entries(a), new Map(Object.entries(b))];
  return one.length === other.size && one.every(([key, value]) => other.get(key) === value);
}

/** Owns the presets. */
export class PresetStore {
  items = $state.raw<Preset[]>([]);
  /** The one whose name is in its field; without an id a new one. */
  naming = $state.raw<{ id: string | null; name: string } | null>(null);
  /** Why that name was refused. */
  problem = $state<string | null>(null);
  isSaving = $state(false);
  readonly #options: PresetOptions;

  constructor(options: PresetOptions) {
    this.#options = options;
  }

  receive(presets: Preset[]): void {
    this.items = presets;
  }

  /** Shows the field for the name of a preset; without one of a new preset. */
  askForName(preset: Preset | null): void {
    this.problem = null;
    this.naming = { id: preset?.id ?? null, name: preset?.name ?? '' };
  }

  /** Saves the name, and of a new preset the values that the chat sets itself. */
  async saveName(name: string): Promise<void> {
    const { naming } = this;
    if (!naming || this.isSaving) return;
    const { id } = naming;
    const values = this.#options.settings.parameters(true);
    this.isSaving = true;
    try {
      await this.#options.platform.call(
        id === null ? { type: 'create_preset', name, values } : { type: 'rename_preset', id, name },
      );
      this.naming = null;
    } catch (error) {
      this.problem = sentenceOf(error);
    } finally {
      this.isSaving = false;
    }
  }

  /** Gives a chat all values of a preset, and takes its other ones away; can be taken back. */
  async apply(conversation_id: string, { name, values }: Preset): Promise<void> {
    const { settings, toasts, undo } = this.#options;
    const before = settings.parameters();
    let toast = 0;
    const isDone = this.#set(conversation_id, values);
    const back = undo.push(() => {
      toasts.dismiss(toast);
      void this.#set(conversation_id, before);
    }, isDone);
    if (!(await isDone)) return;
    toast = toasts.show('info', strings.presets.applied(name), {
      milliseconds: UNDO_MS,
      action: { label: strings.common.undo, run: back },
    });
  }

  async #set(conversation_id: string, values: Partial<Settings>): Promise<boolean> {
    try {
      const reply = await this.#options.platform.call({ type: 'set_parameters', conversation_id, values });
      if (reply.type === 'settings') this.#options.settings.take({ type: 'chat', id: conversation_id }, reply.resolved);
      return true;
    } catch (error) {
      this.#options.report(error);
      return false;
    }
  }

  /** Deletes a preset at once and offers to bring it back. Chats keep the values that it gave them. */
  async remove({ id, name }: Preset): Promise<void> {
    const { toasts, undo } = this.#options;
    const before = this.items;
    this.items = before.filter((other) => other.id !== id);
    let toast = 0;
    const isDone = this.#run({ type: 'delete_preset', id });
    const restore = undo.push(() => {
      toasts.dismiss(toast);
      void this.#run({ type: 'restore_preset', id });
    }, isDone);
    if (!(await isDone)) return void (this.items = before);
    toast = toasts.show('info', strings.presets.deleted(name), {
      milliseconds: UNDO_MS,
      action: { label: strings.common.undo, run: restore },
    });
  }

  async #run(command: Command): Promise<boolean> {
    try {
      await this.#options.platform.call(command);
      return true;
    } catch (error) {
      this.#options.report(error);
      return false;
    }
  }
}
