// The window's words in the language it speaks. `en` is the only one so far.
export { en as strings } from './en';
