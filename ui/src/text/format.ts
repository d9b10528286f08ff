// Numbers, amounts, times and plural forms as people read them, by the rules of one language.

const LANGUAGE = 'en-US';

const plain = new Intl.NumberFormat(LANGUAGE);
const whole = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
const oneDecimal = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 1 });
const fixedDecimal = new Intl.NumberFormat(LANGUAGE, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const percent = new Intl.NumberFormat(LANGUAGE, { style: 'percent' });
const pluralRules = new Intl.PluralRules(LANGUAGE);
const list = new Intl.ListFormat(LANGUAGE);
const relative = new Intl.RelativeTimeFormat(LANGUAGE);
const date = new Intl.DateTimeFormat(LANGUAGE, { day: 'numeric', month: 'short', year: 'numeric' });

/** A number with as many decimals as it has, up to three. */
export function formatNumber(value: number): string {
  return plain.format(value);
}

export function formatCount(value: number): string {
  return whole.format(value);
}

/** A count with its noun: `plural(1, 'token', 'tokens')` is “1 token”. */
export function plural(count: number, one: string, other: string): string {
  return `${whole.format(count)} ${pluralRules.select(count) === 'one' ? one : other}`;
}

/** Names in quotation marks: “A”, “B”, and “C”. */
export function formatNames(names: string[]): string {
  return list.format(names.map((name) => `“${name}”`));
}

/** Decimal units, as the Finder shows them: whole megabytes below 1 GB, one decimal above. */
export function formatBytes(bytes: number): string {
  if (bytes >= 99.95e9) return `${whole.format(bytes / 1e9)} GB`;
  if (bytes >= 999.5e6) return `${oneDecimal.format(bytes / 1e9)} GB`;
  if (bytes >= 999.5e3 || bytes === 0) return `${whole.format(bytes / 1e6)} MB`;
  return `${whole.format(Math.max(1, bytes / 1e3))} kB`;
}

/** A rate per second: one decimal while it says something. */
export function formatRate(perSecond: number): string {
  return (perSecond < 99.95 ? fixedDecimal : whole).format(perSecond);
}

/** A measured time: “312 ms”, “4.2 s”, “2 min 5 s”. */
export function formatMilliseconds(milliseconds: number): string {
  if (milliseconds < 999.5) return `${whole.format(milliseconds)} ms`;
  if (milliseconds < 59_950) return `${fixedDecimal.format(milliseconds / 1000)} s`;
  const seconds = Math.round(milliseconds / 1000);
  return `${whole.format(Math.floor(seconds / 60))} min ${seconds % 60} s`;
}

/** An estimated time, without a precision that it does not have: “55 s”, “4 min”, “1 h 31 min”. */
export function formatEstimate(milliseconds: number): string {
  const seconds = Math.max(1, Math.round(milliseconds / 1000));
  if (seconds < 100) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  return `${whole.format(Math.floor(minutes / 60))} h ${minutes % 60} min`;
}

/** A share of 1. Only all of it is 100 %, and only nothing is 0 %. */
export function formatShare(share: number): string {
  return percent.format(share <= 0 ? 0 : share >= 1 ? 1 : Math.min(0.99, Math.max(0.01, share)));
}

export function formatDate(milliseconds: number): string {
  return date.format(milliseconds);
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** How long ago, roughly; null where it was less than a minute ago, the day itself after a month. */
export function formatAgo(milliseconds: number, now: number): string | null {
  const age = now - milliseconds;
  const ago = (unit: number, name: Intl.RelativeTimeFormatUnit) => relative.format(-Math.floor(age / unit), name);
  if (age < MINUTE) return null;
  if (age < HOUR) return ago(MINUTE, 'minute');
  if (age < DAY) return ago(HOUR, 'hour');
  if (age < 30 * DAY) return ago(DAY, 'day');
  return date.format(milliseconds);
}
