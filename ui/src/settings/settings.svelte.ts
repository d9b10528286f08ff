// The settings: each change is checked, shown at once and saved.
import type { Platform } from '../platform/platform';
import type { Settings } from '../platform/wire';

/** Owns the settings on screen. */
export class SettingsStore {
  current = $state.raw<Settings | null>(null);
  isOpen = $state(false);
  /** The diagnostics that were fetched last. */
  diagnostics = $state('');
  hasCopied = $state(false);

  constructor(
    private readonly platform: Platform,
    private readonly report: (error: unknown) => void,
  ) {}

  receive(settings: Settings): void {
    this.current = settings;
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

  /** Saves a change; restores the old value if that fails. */
  async change(change: Partial<Settings>): Promise<void> {
    const before = this.current;
    if (!before) return;
    const settings = { ...before, ...change };
    this.current = settings;
    try {
      const reply = await this.platform.call({ type: 'update_settings', settings });
      if (reply.type === 'settings') this.current = reply.settings;
    } catch (error) {
      this.current = before;
      this.report(error);
    }
  }
}
