// What the engine does now, as the status bar and the model chooser show it.
import type { EngineState, Status } from '../platform/wire';

/** The loaded model: its name, and the fingerprint of its files, which identifies it under any name. */
export interface LoadedModel {
  name: string;
  fingerprint: string;
}

/** Owns the last status. */
export class StatusStore {
  current = $state.raw<Status | null>(null);

  readonly engine = $derived<EngineState>(this.current?.engine ?? { state: 'empty' });
  /** The model that is loaded or loading. */
  readonly model = $derived(modelOf(this.engine));
  readonly #fingerprint = $derived(this.current?.model_fingerprint ?? null);
  /** Null while no model is loaded, or another is loading. */
  readonly loaded = $derived<LoadedModel | null>(
    this.model !== null && this.#fingerprint !== null ? { name: this.model, fingerprint: this.#fingerprint } : null,
  );
  /** As one text, because it is nearly always the same. */
  readonly #inMemory = $derived(
    JSON.stringify((this.current?.models ?? []).map(({ name, fingerprint }) => [name, fingerprint])),
  );
  /** The fingerprints of all models in memory, by name. */
  readonly inMemory = $derived(new Map(JSON.parse(this.#inMemory) as [string, string][]));
  /** Tokens a second while an answer is being written; null otherwise. */
  readonly rate = $derived(rateOf(this.engine));
  readonly isLoading = $derived(this.engine.state === 'loading');

  receive(status: Status): void {
    this.current = status;
  }
}

function modelOf(engine: EngineState): string | null {
  return engine.state === 'empty' || engine.state === 'failed' ? null : engine.model;
}

function rateOf(engine: EngineState): number | null {
  return engine.state === 'generating' && engine.generation_tps > 0 ? engine.generation_tps : null;
}
