// What people call models: the aliases that were given to them, wherever a model is named.
import type { Model } from '../platform/wire';

/** Owns the aliases, by the names of models. */
class Aliases {
  #byName = $state.raw<ReadonlyMap<string, string>>(new Map());

  receive(models: readonly Pick<Model, 'name' | 'alias'>[]): void {
    this.#byName = new Map(models.flatMap(({ name, alias }) => (alias ? [[name, alias] as const] : [])));
  }

  of(name: string): string | null {
    return this.#byName.get(name) ?? null;
  }
}

export const aliases = new Aliases();
