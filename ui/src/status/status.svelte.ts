// What the engine does now, as the status bar and the model chooser show it.
import type { EngineState, Status } from '../platform/wire';

/** The model in memory: its name, and the model itself, whatever it is called. */
export interface LoadedModel {
  name: string;
  fingerprint: string;
}

/** Owns the last status. */
export class StatusStore {
  current = $state.raw<Status | null>(null);
  /** The rate of the last answer, kept on show after it has finished. */
  lastRate = $state<number | null>(null);

  readonly engine = $derived<EngineState>(this.current?.engine ?? { state: 'empty' });
  /** The model in memory, or on its way there. */
  readonly model = $derived(modelOf(this.engine));
  readonly #fingerprint = $derived(this.current?.model_fingerprint ?? null);
  /** Null while none is, or another is on its way there. */
  readonly loaded = $derived<LoadedModel | null>(
    this.model !== null && this.#fingerprint !== null ? { name: this.model, fingerprint: this.#fingerprint } : null,
  );
  readonly isLoading = $derived(this.engine.state === 'loading');

  receive(status: Status): void {
    this.current = status;
    if (status.engine.state === 'generating' && status.engine.generation_tps > 0) {
      this.lastRate = status.engine.generation_tps;
    }
  }
}

function modelOf(engine: EngineState): string | null {
  return engine.state === 'empty' || engine.state === 'failed' ? null : engine.model;
}
