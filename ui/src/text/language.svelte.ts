// The language of the window, and the strings in that language.
import { de } from './de';
import { en, type Catalogue } from './en';

const catalogues = { en, de };

export type Language = keyof typeof catalogues;
/** `system`: the first of the system's languages that there is a catalogue of. */
export type LanguageChoice = 'system' | Language;

export const languageChoices: readonly LanguageChoice[] = ['system', 'en', 'de'];

const KEY = 'cairn.language';

const isLanguage = (tag: string): tag is Language => tag in catalogues;

/** The language of a choice, for a system with these languages, most wanted first. */
export function languageOf(choice: LanguageChoice, systemLanguages: readonly string[]): Language {
  if (choice !== 'system') return choice;
  const wanted = systemLanguages.map((tag) => tag.toLowerCase().split('-')[0] ?? '');
  return wanted.find(isLanguage) ?? 'en';
}

/** Owns which language the window has. The choice is the window's own: a browser tab may have another. */
class WindowLanguage {
  choice = $state<LanguageChoice>('system');
  #system = $state.raw<readonly string[]>(navigator.languages);
  readonly current = $derived(languageOf(this.choice, this.#system));

  constructor() {
    // Of the browser or the system, while the window is open.
    window.addEventListener('languagechange', () => (this.#system = navigator.languages));
  }

  /** Takes the choice of an earlier start. */
  restore(storage: Pick<Storage, 'getItem'>): void {
    const choice = storage.getItem(KEY) ?? 'system';
    this.choice = choice === 'system' || isLanguage(choice) ? choice : 'system';
  }

  choose(choice: LanguageChoice, storage: Pick<Storage, 'setItem'>): void {
    this.choice = choice;
    storage.setItem(KEY, choice);
  }
}

export const language = new WindowLanguage();

/** The strings in the language of the window. Read where they are shown, so that they follow it. */
export const strings: Catalogue = Object.defineProperties(
  {},
  Object.fromEntries(
    Object.keys(en).map((section) => [
      section,
      { enumerable: true, get: () => catalogues[language.current][section as keyof Catalogue] },
    ]),
  ),
) as Catalogue;
