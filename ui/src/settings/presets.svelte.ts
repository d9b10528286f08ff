// Presets: named parameters, saved from a chat, given to chats, renamed, deleted and brought back.
import { type Platform, runOrReport, sentenceOf } from '../platform/platform';
import type { Preset, Settings } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';
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

/** Presets that every chat offers: how much chance has a say in which word comes next. */
export const builtInPresets = [
  { id: 'default', values: {} },
  { id: 'precise', values: { temperature: 0.2, top_p: 0.9 } },
  { id: 'lively', values: { temperature: 1.1, min_p: 0.05 } },
] as const satisfies readonly { id: string; values: Partial<Settings> }[];

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

  /**
   * Gives a chat all values of a preset, and takes its other ones away; can be taken back. Without an id it is a chat that
   * is not made yet: of that nothing is saved, so there is nothing to take back.
   */
  async apply(conversation_id: string | null, { name, values }: Pick<Preset, 'name' | 'values'>): Promise<void> {
    const { settings } = this.#options;
    if (conversation_id === null) return settings.replaceDraft(values);
    const before = settings.parameters();
    const isDone = this.#set(conversation_id, values);
    await offerUndo(
      this.#options,
      strings.presets.applied(name),
      () => void this.#set(conversation_id, before),
      isDone,
    );
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
    const before = this.items;
    this.items = before.filter((other) => other.id !== id);
    const isDone = runOrReport(this.#options, { type: 'delete_preset', id });
    const wasDone = await offerUndo(
      this.#options,
      strings.presets.deleted(name),
      () => void runOrReport(this.#options, { type: 'restore_preset', id }),
      isDone,
    );
    if (!wasDone) this.items = before;
  }
}
