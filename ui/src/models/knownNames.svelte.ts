// What people call models, wherever one is named: the alias that was given to it, else its title among the models that are here.
import type { Model } from '../platform/wire';
import { titleAmong } from './titles';

/** Owns what is known besides the names themselves. */
class KnownNames {
  #aliases = $state.raw<ReadonlyMap<string, string>>(new Map());
  #names = $state.raw<readonly string[]>([]);

  receive(models: readonly Pick<Model, 'name' | 'alias'>[]): void {
    this.#aliases = new Map(models.flatMap(({ name, alias }) => (alias ? [[name, alias] as const] : [])));
    // An alias is a title that is taken.
    this.#names = models.map(({ name, alias }) => alias ?? name);
  }

  of(name: string): string {
    return this.#aliases.get(name) ?? titleAmong(name, this.#names);
  }
}

export const knownNames = new KnownNames();
