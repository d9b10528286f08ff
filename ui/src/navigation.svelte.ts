// Which page is shown, and which of the zones beside it.
import { MediaQuery } from 'svelte/reactivity';
import { innerWidth } from 'svelte/reactivity/window';

export type PageName = 'chat' | 'models' | 'saved' | 'ask' | 'monitor' | 'settings';
export type SettingsPageName = 'general' | 'models' | 'generation' | 'storage' | 'shortcuts' | 'server' | 'about';

export const settingsPages: readonly SettingsPageName[] = [
  'general',
  'models',
  'generation',
  'storage',
  'shortcuts',
  'server',
  'about',
];

/** A zone beside the page. */
export type Zone = 'sidebar' | 'inspector';

type Memory = Pick<Storage, 'getItem' | 'setItem'>;

/** How wide the sidebar can be made, in pixels. */
export const SIDEBAR_WIDTHS = { least: 200, usual: 248, most: 480 };
/** The part of the window that it takes at most. */
const MOST_OF_WINDOW = 0.45;
const WIDTH_KEY = 'cairn.sidebar-width';
const KEYS: Record<Zone, string> = { sidebar: 'cairn.sidebar', inspector: 'cairn.inspector' };

/**
 * Owns the page and the zones. Where the window is too narrow for a zone, the zone lies over the page as a drawer;
 * only one is open at a time, and a drawer is never open at the start.
 */
export class Navigation {
  page = $state<PageName>('chat');
  settingsPage = $state<SettingsPageName>('general');
  isPaletteOpen = $state(false);
  #columns = $state<Record<Zone, boolean>>({ sidebar: true, inspector: false });
  #drawer = $state<Zone | null>(null);
  #sidebarWidth = $state(SIDEBAR_WIDTHS.usual);

  readonly #narrow = { sidebar: new MediaQuery('max-width: 759px'), inspector: new MediaQuery('max-width: 1079px') };
  readonly #memory: Memory | undefined;

  constructor(memory?: Memory) {
    this.#memory = memory;
    for (const zone of ['sidebar', 'inspector'] as const) {
      const was = memory?.getItem(KEYS[zone]);
      if (was !== null && was !== undefined) this.#columns[zone] = was === 'shown';
    }
    const width = Number(memory?.getItem(WIDTH_KEY) ?? SIDEBAR_WIDTHS.usual);
    if (Number.isFinite(width)) this.#sidebarWidth = withinWidths(width);
  }

  /** Of the sidebar as a column, in pixels, as far as the window has room for it. */
  get sidebarWidth(): number {
    return Math.min(this.#sidebarWidth, this.mostSidebarWidth);
  }

  /** How wide the sidebar can be made in this window. */
  get mostSidebarWidth(): number {
    const room = Math.floor((innerWidth.current ?? Infinity) * MOST_OF_WINDOW);
    return Math.max(SIDEBAR_WIDTHS.least, Math.min(SIDEBAR_WIDTHS.most, room));
  }

  /** Makes the sidebar wider or narrower; `keepSidebarWidth` remembers it. */
  resizeSidebar(width: number): void {
    this.#sidebarWidth = Math.min(withinWidths(width), this.mostSidebarWidth);
  }

  /** Once a drag has ended: while it goes on, nothing is written. */
  keepSidebarWidth(): void {
    this.#memory?.setItem(WIDTH_KEY, String(this.#sidebarWidth));
  }

  /** The zone that lies over the page, and makes it inert. */
  get drawer(): Zone | null {
    return this.#drawer !== null && this.#narrow[this.#drawer].current ? this.#drawer : null;
  }

  /** Whether the window has no room for a zone beside the page. */
  isNarrow(zone: Zone): boolean {
    return this.#narrow[zone].current;
  }

  isShown(zone: Zone): boolean {
    if (zone === 'inspector' && this.page !== 'chat') return false;
    return this.#narrow[zone].current ? this.#drawer === zone : this.#columns[zone];
  }

  /** Where messages stand: where the focus can reach them, and out of the page's way where there is a zone beside it. */
  get noticeZone(): Zone | 'page' {
    if (this.drawer === 'inspector') return 'inspector';
    return this.isShown('sidebar') ? 'sidebar' : 'page';
  }

  show(zone: Zone, isShown: boolean): void {
    if (this.#narrow[zone].current) {
      if (isShown || this.#drawer === zone) this.#drawer = isShown ? zone : null;
      return;
    }
    this.#columns[zone] = isShown;
    this.#memory?.setItem(KEYS[zone], isShown ? 'shown' : 'hidden');
  }

  toggle(zone: Zone): void {
    this.show(zone, !this.isShown(zone));
  }

  closeDrawer(): void {
    this.#drawer = null;
  }

  go(page: PageName): void {
    this.page = page;
    this.closeDrawer();
  }

  goToSettings(page: SettingsPageName = 'general'): void {
    this.settingsPage = page;
    this.go('settings');
  }
}

function withinWidths(width: number): number {
  return Math.round(Math.min(SIDEBAR_WIDTHS.most, Math.max(SIDEBAR_WIDTHS.least, width)));
}
