// The strings of the window, in the language that it has.
export { language, languageChoices, strings, type LanguageChoice } from './language.svelte';
export type { Catalogue } from './en';
export type { SaidNotice } from './en/failures';
export type { SettingText } from './settingText';
