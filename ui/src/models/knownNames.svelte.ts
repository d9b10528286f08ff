// What people call models, wherever one is named: the alias that was given to it, or the title of a recommended one.
import type { Model, RecommendedModel } from '../platform/wire';

/** Owns what is known besides the names themselves. */
class KnownNames {
  #aliases = $state.raw<ReadonlyMap<string, string>>(new Map());
  #titles = $state.raw<ReadonlyMap<string, string>>(new Map());

  receive(models: readonly Pick<Model, 'name' | 'alias'>[]): void {
    this.#aliases = new Map(models.flatMap(({ name, alias }) => (alias ? [[name, alias] as const] : [])));
  }

  receiveTitles(models: readonly Pick<RecommendedModel, 'name' | 'title'>[]): void {
    this.#titles = new Map(models.map(({ name, title }) => [name, title]));
  }

  of(name: string): string | null {
    return this.#aliases.get(name) ?? this.#titles.get(name) ?? null;
  }
}

export const knownNames = new KnownNames();
