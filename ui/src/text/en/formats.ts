// How English writes numbers, amounts, times and names.
import { Formats } from '../format';

export const f = new Formats('en-US', ['“', '”']);

export const tokens = (count: number) => f.plural(count, 'token', 'tokens');
