// How German writes numbers, amounts, times and names.
import { Formats } from '../format';

export const f = new Formats('de-DE', ['„', '“']);

export const tokens = (count: number) => f.plural(count, 'Token', 'Tokens');
