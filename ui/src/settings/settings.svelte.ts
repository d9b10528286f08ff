// The settings: each change is shown at once, checked and saved by the core, and taken back when that fails.
import { sentenceOf, type Platform } from '../platform/platform';
import { SvelteMap } from 'svelte/reactivity';
import type { ResolvedSettings, Settings, SettingScope, SettingTarget, ThinkingChoices } from '../platform/wire';
import { table, type SettingRow } from './table';

export type SettingValue = Settings[keyof Settings];

/** Values of a chat or a persona that is not made yet: whoever makes it keeps them until then. */
export interface SettingDraft {
  type: 'draft';
  scope: 'chat' | 'persona';
  /** What holds where the draft sets nothing. */
  base: SettingTarget;
  values: Partial<Settings>;
  onchange: (values: Partial<Settings>) => void;
}

/** Owns the settings on screen. */
export class SettingsStore {
  /** What holds for all chats. */
  current = $state.raw<Settings | null>(null);
  /** Values are shown: on the page of settings, or those of the open chat in the inspector. */
  isOpen = $state(false);
  /** What values are shown and set for. */
  target = $state.raw<SettingTarget | SettingDraft>({ type: 'app' });
  /** Why the last value was not set for a model; its dialog shows it. */
  problem = $state<string | null>(null);
  /** The diagnostics that were fetched last. */
  diagnostics = $state('');
  hasCopied = $state(false);

  /** What holds for the target, of a draft without its own values; null until the core has answered. */
  #answered = $state.raw<ResolvedSettings | null>(null);
  readonly #resolved = $derived(this.#answered && withDraft(this.#answered, this.target));
  /** How much models can be told to think, by their names. */
  readonly thinkingOf = new SvelteMap<string, ThinkingChoices>();
  #numSaving = 0;

  /** In the inspector, of whichever chat. */
  isAdvancedOpen = $state(false);
  /** Whether the target's values can be shown. */
  readonly isKnown = $derived(this.#resolved !== null || this.target.type === 'app');

  constructor(
    private readonly platform: Platform,
    private readonly report: (error: unknown) => void,
    /** What a model takes in memory may be another amount now. */
    private readonly onModelChanged: (name: string) => void = () => undefined,
  ) {}

  receive(settings: Settings): void {
    this.current = settings;
    if (this.isOpen && this.#numSaving === 0) void this.refresh();
  }

  /** Shows what holds for a target until the returned function is called. */
  open(target: SettingTarget | SettingDraft = { type: 'app' }): () => void {
    this.isOpen = true;
    this.show(target);
    return () => (this.isOpen = false);
  }

  /** Shows what holds for a target. */
  show(target: SettingTarget | SettingDraft): void {
    this.target = target;
    this.#answered = null;
    this.problem = null;
    void this.refresh();
  }

  /** Asks again what holds for the target. */
  async refresh(): Promise<void> {
    const { target } = this;
    try {
      const scope = target.type === 'draft' ? target.base : target;
      const reply = await this.platform.call({ type: 'get_settings', scope });
      if (reply.type === 'settings' && this.target === target) this.#answered = reply.resolved;
      this.#tell(target);
    } catch (error) {
      this.report(error);
    }
  }

  /** In which scope the target sets its values. */
  get scope(): SettingTarget['type'] {
    return this.target.type === 'draft' ? this.target.scope : this.target.type;
  }

  #tell(target: SettingTarget | SettingDraft): void {
    if (target.type === 'model') this.onModelChanged(target.name);
  }

  valueOf(row: SettingRow): SettingValue {
    const settings = this.#resolved?.settings ?? this.current;
    return settings?.[row.key] ?? null;
  }

  /** How much the target's model can be told to think; null while no model is known. */
  get thinking(): ThinkingChoices | null {
    return this.#resolved?.thinking ?? null;
  }

  /** Asks how much a model can be told to think. */
  async askThinking(name: string): Promise<void> {
    const thinking = (await this.read({ type: 'model', name }))?.thinking;
    if (thinking) this.thinkingOf.set(name, thinking);
  }

  /** Asks for the values of a target, whatever is on screen; null if that fails. */
  async read(scope: SettingTarget): Promise<ResolvedSettings | null> {
    try {
      const reply = await this.platform.call({ type: 'get_settings', scope });
      return reply.type === 'settings' ? reply.resolved : null;
    } catch {
      return null;
    }
  }

  /** Whether the target is a model that is pinned. */
  get isPinned(): boolean {
    return this.target.type === 'model' && (this.#resolved?.settings.is_pinned ?? false);
  }

  /** The parameters of answers that the target sets itself, and with `withPersona` its persona too. */
  parameters(withPersona = false): Partial<Settings> {
    const { settings, from } = this.#resolved ?? {};
    const scopes: (SettingScope | undefined)[] = withPersona ? [this.scope, 'persona'] : [this.scope];
    const own = table.filter(({ key, scopes: all }) => all.includes('persona') && scopes.includes(from?.[key]));
    return Object.fromEntries(own.map(({ key }) => [key, settings?.[key]]));
  }

  /** Takes what holds for the target, as another command has answered it. */
  take(target: SettingTarget, resolved: ResolvedSettings): void {
    const { type } = this.target;
    const isShown = type === 'chat' && target.type === 'chat' && this.target.id === target.id;
    if (isShown) this.#answered = resolved;
  }

  /** Where a value was set; null where there is only one scope to set it in, and until it is known. */
  sourceOf(row: SettingRow): SettingScope | 'default' | null {
    if (row.scopes.every((scope) => scope === 'app') || !this.#resolved) return null;
    return this.#resolved.from[row.key] ?? 'default';
  }

  /** Saves a value for the target, or clears it with null; puts the old one back when that fails, and says why. */
  async set(key: keyof Settings, value: SettingValue, report = this.report): Promise<void> {
    const { current, target } = this;
    if (target.type === 'draft') return this.#setDraft(target, key, value);
    const answered = this.#answered;
    // What holds after a value is cleared, only the core knows.
    if (value !== null) this.#showValue(key, value);
    this.#numSaving++;
    this.problem = null;
    try {
      const reply = await this.platform.call({ type: 'set_setting', scope: target, key, value });
      if (reply.type === 'settings' && this.target === target) this.#answered = reply.resolved;
      this.#tell(target);
    } catch (error) {
      this.current = current;
      if (this.target === target) this.#answered = answered;
      if (target.type === 'model') this.problem = sentenceOf(error);
      else report(error);
    } finally {
      this.#numSaving--;
    }
  }

  /** Saves a value for a target, whatever values are shown for; returns whether that worked. */
  async setFor(target: SettingTarget, key: keyof Settings, value: SettingValue): Promise<boolean> {
    try {
      await this.platform.call({ type: 'set_setting', scope: target, key, value });
      this.#tell(target);
      return true;
    } catch (error) {
      this.report(error);
      return false;
    }
  }

  /** Saves a value for all chats, whatever values are shown for. */
  async setForAll(key: keyof Settings, value: SettingValue): Promise<void> {
    const { current } = this;
    if (current && value !== null) this.current = { ...current, [key]: value };
    this.problem = null;
    try {
      await this.platform.call({ type: 'set_setting', scope: { type: 'app' }, key, value });
    } catch (error) {
      this.current = current;
      this.problem = sentenceOf(error);
    }
  }

  #showValue(key: keyof Settings, value: SettingValue): void {
    const { scope } = this;
    if (scope === 'app' && this.current) this.current = { ...this.current, [key]: value };
    if (!this.#answered) return;
    const { settings, from } = this.#answered;
    this.#answered = {
      ...this.#answered,
      settings: { ...settings, [key]: value },
      from: { ...from, [key]: scope },
    };
  }

  /** Gives a chat that is not made yet these parameters, and takes its other ones away. */
  replaceDraft(parameters: Partial<Settings>): void {
    const { target } = this;
    if (target.type !== 'draft') return;
    const replaced = new Set(Object.keys(this.parameters()));
    const others = Object.entries(target.values).filter(([key]) => !replaced.has(key));
    this.#showDraft(target, { ...Object.fromEntries(others), ...parameters });
  }

  /** Gives a chat that is not made yet a value, whatever is on screen. */
  setForDraft(unsent: { values: Partial<Settings> }, key: keyof Settings, value: SettingValue): void {
    const { target } = this;
    if (target.type === 'draft' && target.scope === 'chat') this.#setDraft(target, key, value);
    else unsent.values = { ...unsent.values, [key]: value };
  }

  #setDraft(draft: SettingDraft, key: keyof Settings, value: SettingValue): void {
    const others = Object.entries(draft.values).filter(([known]) => known !== key);
    const values = Object.fromEntries(value === null ? others : [...others, [key, value]]) as Partial<Settings>;
    this.#showDraft(draft, values);
  }

  #showDraft(draft: SettingDraft, values: Partial<Settings>): void {
    this.target = { ...draft, values };
    draft.onchange(values);
  }

  /** Fetches the diagnostics and copies them; if that fails, they are shown instead. */
  async copyDiagnostics(): Promise<void> {
    this.hasCopied = false;
    try {
      const reply = await this.platform.call({ type: 'get_diagnostics' });
      if (reply.type !== 'diagnostics') return;
      this.diagnostics = reply.text;
      await navigator.clipboard.writeText(reply.text);
      this.hasCopied = true;
    } catch (error) {
      this.report(error);
    }
  }
}

function withDraft(resolved: ResolvedSettings, target: SettingTarget | SettingDraft): ResolvedSettings {
  if (target.type !== 'draft') return resolved;
  const { settings, from } = resolved;
  const own = Object.keys(target.values).map((key) => [key, target.scope]);
  return { ...resolved, settings: { ...settings, ...target.values }, from: { ...from, ...Object.fromEntries(own) } };
}
