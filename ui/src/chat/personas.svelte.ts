// Personas: made, changed, deleted and brought back.
import { type Platform, runOrReport, sentenceOf } from '../platform/platform';
import type { Persona, Settings } from '../platform/wire';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import { UNDO_MS, type UndoStack } from '../ui/undo';

export interface PersonaOptions {
  platform: Platform;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
  /** Begins a chat with a persona. */
  startChat: (persona: Persona) => void;
}

/** What the dialog begins with: a persona, or without an id a new one. */
export type PersonaDraft = Partial<Persona>;

/** Owns the personas. */
export class PersonaStore {
  items = $state.raw<Persona[]>([]);
  /** What the dialog is about. */
  editing = $state.raw<PersonaDraft | null>(null);
  /** The parameters of one that is not made yet. */
  newValues = $state.raw<Partial<Settings>>({});
  /** Why that could not be saved. */
  problem = $state<string | null>(null);
  isSaving = $state(false);
  readonly #options: PersonaOptions;

  constructor(options: PersonaOptions) {
    this.#options = options;
  }

  receive(personas: Persona[]): void {
    this.items = personas;
  }

  get(id: string | null): Persona | undefined {
    return this.items.find((persona) => persona.id === id);
  }

  /** Asks what a persona is called, and what its chats begin with. */
  edit(persona: PersonaDraft): void {
    this.problem = null;
    this.newValues = persona.values ?? {};
    this.editing = persona;
  }

  async save(name: string, system_prompt: string, model: string | null): Promise<void> {
    const { editing } = this;
    if (!editing || this.isSaving) return;
    const { id } = editing;
    const values = this.newValues;
    this.isSaving = true;
    try {
      const { platform } = this.#options;
      if (id !== undefined) await platform.call({ type: 'change_persona', id, name, system_prompt, model });
      else this.#made(await platform.call({ type: 'create_persona', name, system_prompt, model, values }));
      this.editing = null;
    } catch (error) {
      this.problem = sentenceOf(error);
    } finally {
      this.isSaving = false;
    }
  }

  #made(reply: { type: string; persona?: Persona }): void {
    const { persona } = reply;
    if (!persona) return;
    if (!this.get(persona.id)) this.items = [...this.items, persona];
    this.#options.toasts.show('info', strings.personas.made(persona.name), {
      milliseconds: UNDO_MS,
      actions: [{ label: strings.personas.startChat, run: () => this.#options.startChat(persona) }],
    });
  }

  /** Deletes a persona at once and offers to bring it back; its chats stay. */
  async remove(id: string): Promise<void> {
    const persona = this.get(id);
    if (!persona) return;
    const before = this.items;
    this.items = before.filter((other) => other.id !== id);
    const isDone = runOrReport(this.#options, { type: 'delete_persona', id });
    const wasDone = await offerUndo(
      this.#options,
      strings.personas.deleted(persona.name),
      () => void runOrReport(this.#options, { type: 'restore_persona', id }),
      isDone,
    );
    if (!wasDone) this.items = before;
  }
}
