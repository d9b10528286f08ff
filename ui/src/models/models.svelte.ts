// The models on this machine, which of them is being loaded, and whether a message can be sent.
import type { Platform } from '../platform/platform';
import type { Model } from '../platform/wire';
import type { StatusStore } from '../status/status.svelte';
import { strings } from '../text';

/** Owns the list of models. The status store knows which one is loaded. */
export class ModelStore {
  items = $state.raw<Model[]>([]);
  /** The menu of the composer that chooses the model. */
  isMenuOpen = $state(false);
  isRefreshing = $state(false);
  /** The model that is being loaded, until the engine reports the result. */
  asked = $state<string | null>(null);

  readonly loadable = $derived(this.items.filter((model) => model.problem === null));
  readonly #status: StatusStore;

  constructor(
    private readonly platform: Platform,
    status: StatusStore,
    private readonly report: (error: unknown) => void,
  ) {
    this.#status = status;
  }

  /** Why no message can be sent, or null when one can. */
  get whyNotReady(): string | null {
    if (this.#status.model !== null || this.loadable.length > 0) return null;
    return this.items.length === 0 ? strings.welcome.noModels : strings.welcome.noneLoadable;
  }

  receive(models: Model[]): void {
    this.items = models;
  }

  isBusy(name: string): boolean {
    const { engine } = this.#status;
    return this.asked === name || (engine.state === 'loading' && engine.model === name);
  }

  /** Loads a model; returns whether it worked. */
  async load(name: string): Promise<boolean> {
    this.asked = name;
    try {
      await this.platform.call({ type: 'load_model', name });
      this.isMenuOpen = false;
      return true;
    } catch (error) {
      this.report(error);
      return false;
    } finally {
      this.asked = null;
    }
  }

  async unload(): Promise<void> {
    try {
      await this.platform.call({ type: 'unload_model' });
    } catch (error) {
      this.report(error);
    }
  }

  /** Lists the models again. */
  async refresh(): Promise<void> {
    this.isRefreshing = true;
    try {
      const reply = await this.platform.call({ type: 'list_models' });
      if (reply.type === 'models') this.receive(reply.models);
    } catch (error) {
      this.report(error);
    } finally {
      this.isRefreshing = false;
    }
  }
}
