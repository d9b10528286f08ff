// The strings of the window. English is the only language so far.
export { en as strings, type SettingText } from './en';
