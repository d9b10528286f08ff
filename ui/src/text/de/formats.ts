// How German writes numbers, amounts, times and names.
import { isMac } from '../../ui/shortcuts';
import { Formats } from '../format';

export const f = new Formats('de-DE', ['„', '“']);

export const tokens = (count: number) => f.plural(count, 'Token', 'Tokens');

/** What people call the machine that Cairn runs on; it follows “diesem” or “diesen”. */
export const machine = isMac ? 'Mac' : 'Computer';
