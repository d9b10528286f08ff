// Finding a model: those that Cairn recommends, a search on the hub, and what the hub says about one of them.
import { CallError, sentenceOf, type Platform } from '../platform/platform';
import type { FoundModel, HubModel, MemoryNeed, ModelFacts, RecommendedModel } from '../platform/wire';
import { after, type After } from '../ui/clock';
import { Asked } from './asked.svelte';
import { weightBytes } from './fit';
import { hubNameIn } from './names';

const DEBOUNCE_MS = 300;

export const sortOrders = ['match', 'downloads', 'newest', 'smallest'] as const;
export type SortOrder = (typeof sortOrders)[number];

/**
 * Why there is no answer. Without a connection to the hub (`offline`) or to Cairn itself (`unreachable`), and where the hub
 * has trouble of its own (`hub`), such as a connection that it cuts, there is nothing wrong with the question.
 */
export interface Trouble {
  why: 'offline' | 'unreachable' | 'hub' | 'failed';
  sentence: string;
}

/** What is known of the model whose row is open. */
export interface Card {
  name: string;
  model: HubModel | null;
  trouble: Trouble | null;
}

export interface DiscoverOptions {
  platform: Platform;
  after?: After;
}

/** Owns the search and the card that is open. Replies to questions that are no longer asked are ignored. */
export class DiscoverStore {
  /** Models that fit this machine, those to choose first; null until they were asked for. */
  recommended = $state.raw<RecommendedModel[] | null>(null);
  recommendedTrouble = $state.raw<Trouble | null>(null);
  /** What was typed. */
  text = $state('');
  /** What the search found; null while nothing is searched for, or nothing has been found yet. */
  found = $state.raw<FoundModel[] | null>(null);
  isSearching = $state(false);
  /** Why the last search has no results. */
  trouble = $state.raw<Trouble | null>(null);
  /** The model whose name was typed as a whole. */
  exactName = $state<string | null>(null);
  onlyFitting = $state(true);
  sort = $state<SortOrder>('match');
  card = $state.raw<Card | null>(null);
  /** What the models that were found take; null: the hub cannot say. */
  readonly facts: Asked<ModelFacts | null>;

  readonly isSearch = $derived(this.text.trim() !== '');
  /** Of this machine; null until it is known. */
  memoryBytes = $state<number | null>(null);
  /** What models may take on this machine. */
  readonly budgetBytes = $derived(this.recommended?.[0]?.facts.memory.budget_bytes ?? null);
  /** The models to offer on the first launch: one to start with, a better one, one for code. */
  readonly choices = $derived((this.recommended ?? []).filter(({ choices }) => choices.length > 0));
  readonly shownFound = $derived.by(() => {
    const all = this.found ?? [];
    return inOrder(this.onlyFitting ? all.filter((model) => this.#mayFit(model)) : all, this.sort);
  });
  /** How many results the filter hides. */
  readonly numHidden = $derived((this.found?.length ?? 0) - this.shownFound.length);

  readonly #platform: Platform;
  readonly #after: After;
  #forgetTimer: () => void = () => undefined;
  #search = 0;
  #cardRequest = 0;
  #isAskingRecommended = false;

  constructor(options: DiscoverOptions) {
    this.#platform = options.platform;
    this.facts = new Asked((name) => this.#askFacts(name));
    this.#after = options.after ?? after;
  }

  /** Returns the memory of a model on the hub; null if no one has asked for it yet: downloads ask nothing themselves. */
  needOf(name: string): MemoryNeed | null {
    const card = this.card?.name === name ? this.card.model?.facts : null;
    const recommended = this.recommended?.find((model) => model.name === name)?.facts;
    return (card ?? this.facts.get(name) ?? recommended)?.memory ?? null;
  }

  async loadRecommended(): Promise<void> {
    if (this.#isAskingRecommended || this.recommended !== null) return;
    this.#isAskingRecommended = true;
    try {
      const reply = await this.#platform.call({ type: 'get_recommended_models' });
      if (reply.type === 'recommended_models') {
        this.recommended = reply.models;
        this.memoryBytes = reply.memory_bytes || null;
      }
      this.recommendedTrouble = null;
    } catch (error) {
      this.recommendedTrouble = troubleOf(error);
    } finally {
      this.#isAskingRecommended = false;
    }
  }

  /** Takes what is typed, and searches for it after a pause; at once, if it was pasted. */
  type(text: string, isPasted = false): void {
    this.text = text;
    this.#forgetTimer();
    this.#search++;
    if (text.trim() === '') return this.#clear();
    if (isPasted) return void this.search();
    // What was found for less text says nothing of this one.
    this.isSearching = true;
    this.#forgetTimer = this.#after(DEBOUNCE_MS, () => void this.search());
  }

  #clear(): void {
    this.found = null;
    this.trouble = null;
    this.exactName = null;
    this.isSearching = false;
    this.closeCard();
  }

  /** Searches for what was typed. The name of a model opens its card; if there is none, it is searched for too. */
  async search(): Promise<void> {
    const text = this.text.trim();
    if (text === '') return;
    this.#forgetTimer();
    const number = ++this.#search;
    this.isSearching = true;
    const name = hubNameIn(text);
    const isThere = name !== null && (await this.#openExact(name, number));
    if (number !== this.#search) return;
    if (!isThere) await this.#find(text, number);
    if (number === this.#search) this.isSearching = false;
  }

  /** Opens the card of a name that was typed; returns whether there is nothing to search for. */
  async #openExact(name: string, number: number): Promise<boolean> {
    const { model, trouble } = await this.#ask(name);
    if (number !== this.#search) return true;
    if (!model && trouble?.why !== 'offline' && trouble?.why !== 'unreachable') return false;
    this.found = null;
    this.trouble = trouble;
    this.exactName = model ? name : null;
    this.#cardRequest++;
    this.card = model && { name, model, trouble: null };
    return true;
  }

  async #find(text: string, number: number): Promise<void> {
    try {
      const reply = await this.#platform.call({ type: 'search_models', text });
      if (number !== this.#search || reply.type !== 'found_models') return;
      this.found = reply.models;
      this.trouble = null;
    } catch (error) {
      if (number !== this.#search) return;
      this.found = null;
      this.trouble = troubleOf(error);
    }
    this.exactName = null;
    if (this.card && !this.found?.some(({ name }) => name === this.card?.name)) this.closeCard();
  }

  /** Shows what the hub says about a model. */
  async openCard(name: string): Promise<void> {
    const number = ++this.#cardRequest;
    this.card = { name, model: null, trouble: null };
    const answer = await this.#ask(name);
    if (number === this.#cardRequest) this.card = { name, ...answer };
  }

  closeCard(): void {
    this.#cardRequest++;
    this.card = null;
  }

  toggleCard(name: string): void {
    if (this.card?.name === name) this.closeCard();
    else void this.openCard(name);
  }

  async #ask(name: string): Promise<Pick<Card, 'model' | 'trouble'>> {
    try {
      const reply = await this.#platform.call({ type: 'get_hub_model', name });
      return { model: reply.type === 'hub_model' ? reply.model : null, trouble: null };
    } catch (error) {
      return { model: null, trouble: troubleOf(error) };
    }
  }

  async #askFacts(name: string): Promise<ModelFacts | null> {
    const reply = await this.#platform.call({ type: 'get_model_facts', name });
    return reply.type === 'model_facts' ? reply.facts : null;
  }

  /** Asks again what Cairn was not there to answer. */
  async reconnected(): Promise<void> {
    if (this.trouble?.why === 'unreachable') await this.search();
    if (this.card?.trouble?.why === 'unreachable') await this.openCard(this.card.name);
  }

  /** Whether it fits; until that is known, whether its weights alone leave it a chance. */
  #mayFit(model: FoundModel): boolean {
    const facts = this.facts.get(model.name);
    if (facts) return facts.memory.fit !== 'too_large';
    const bytes = weightBytes(model);
    return bytes === null || this.budgetBytes === null || bytes <= this.budgetBytes;
  }
}

function troubleOf(error: unknown): Trouble {
  const code = error instanceof CallError ? error.code : null;
  const isCalm = code === 'offline' || code === 'unreachable' || code === 'hub';
  return { why: isCalm ? code : 'failed', sentence: sentenceOf(error) };
}

function inOrder(models: FoundModel[], sort: SortOrder): FoundModel[] {
  switch (sort) {
    case 'match':
      return models;
    case 'downloads':
      return models.toSorted((a, b) => b.downloads - a.downloads);
    case 'newest':
      return models.toSorted((a, b) => (b.updated_at_ms ?? 0) - (a.updated_at_ms ?? 0));
    case 'smallest':
      return models.toSorted((a, b) => (weightBytes(a) ?? Infinity) - (weightBytes(b) ?? Infinity));
  }
}
