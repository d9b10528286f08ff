// How English writes numbers, amounts, times and names.
import { isMac } from '../../ui/shortcuts';
import { Formats } from '../format';

export const f = new Formats('en-US', ['“', '”']);

export const tokens = (count: number) => f.plural(count, 'token', 'tokens');

/** What people call the machine that Cairn runs on. */
export const machine = isMac ? 'this Mac' : 'this computer';
