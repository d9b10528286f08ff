// Numbers, amounts, times and plural forms as people read them, by the rules of one language.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** How one language writes numbers, amounts and times. */
export class Formats {
  readonly #plain: Intl.NumberFormat;
  readonly #whole: Intl.NumberFormat;
  readonly #oneDecimal: Intl.NumberFormat;
  readonly #fixedDecimal: Intl.NumberFormat;
  readonly #percent: Intl.NumberFormat;
  readonly #smallPercent: Intl.NumberFormat;
  readonly #pluralRules: Intl.PluralRules;
  readonly #list: Intl.ListFormat;
  readonly #relative: Intl.RelativeTimeFormat;
  readonly #date: Intl.DateTimeFormat;
  readonly #time: Intl.DateTimeFormat;
  readonly #clock: Intl.DateTimeFormat;
  readonly #month: Intl.DateTimeFormat;
  readonly #monthOfYear: Intl.DateTimeFormat;
  /** What stands before the decimals of a number, and between its thousands. */
  readonly decimalSign: string;
  readonly groupSign: string;

  /** `locale`: a BCP 47 tag. `quotes`: the marks around a name. */
  constructor(
    locale: string,
    private readonly quotes: readonly [string, string],
  ) {
    this.#plain = new Intl.NumberFormat(locale);
    const parts = this.#plain.formatToParts(12345.5);
    this.decimalSign = parts.find(({ type }) => type === 'decimal')?.value ?? '.';
    this.groupSign = parts.find(({ type }) => type === 'group')?.value ?? ',';
    this.#whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
    this.#oneDecimal = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
    this.#fixedDecimal = new Intl.NumberFormat(locale, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
    this.#percent = new Intl.NumberFormat(locale, { style: 'percent' });
    this.#smallPercent = new Intl.NumberFormat(locale, { style: 'percent', maximumSignificantDigits: 2 });
    this.#pluralRules = new Intl.PluralRules(locale);
    this.#list = new Intl.ListFormat(locale);
    this.#relative = new Intl.RelativeTimeFormat(locale);
    this.#date = new Intl.DateTimeFormat(locale, { day: 'numeric', month: 'short', year: 'numeric' });
    this.#time = new Intl.DateTimeFormat(locale, { hour: 'numeric', minute: '2-digit' });
    this.#clock = new Intl.DateTimeFormat(locale, { hour: 'numeric', minute: '2-digit', second: '2-digit' });
    this.#month = new Intl.DateTimeFormat(locale, { month: 'long' });
    this.#monthOfYear = new Intl.DateTimeFormat(locale, { month: 'long', year: 'numeric' });
  }

  /** A number with as many decimals as it has, up to three. */
  number = (value: number): string => this.#plain.format(value);

  count = (value: number): string => this.#whole.format(value);

  /** A count with its noun: `plural(1, 'token', 'tokens')` is “1 token”. */
  plural = (count: number, one: string, other: string): string =>
    `${this.#whole.format(count)} ${this.#pluralRules.select(count) === 'one' ? one : other}`;

  /** A name in quotation marks. */
  quote = (name: string): string => this.quotes[0] + name + this.quotes[1];

  /** Names in quotation marks: “A”, “B”, and “C”. */
  names = (names: string[]): string => this.#list.format(names.map(this.quote));

  /** The same of many names: the first two, and what `others` says of the rest. */
  someNames = (names: string[], others: (count: number) => string): string =>
    names.length <= 3
      ? this.names(names)
      : this.#list.format([...names.slice(0, 2).map(this.quote), others(names.length - 2)]);

  /** Decimal units: whole ones below 1 GB, one decimal above. */
  bytes = (bytes: number): string => {
    if (bytes >= 99.95e9) return `${this.#whole.format(bytes / 1e9)} GB`;
    if (bytes >= 999.5e6) return `${this.#oneDecimal.format(bytes / 1e9)} GB`;
    if (bytes >= 999.5e3 || bytes === 0) return `${this.#whole.format(bytes / 1e6)} MB`;
    if (bytes >= 999.5) return `${this.#whole.format(bytes / 1e3)} kB`;
    return `${this.#whole.format(bytes)} B`;
  };

  /** The done part of a whole: nothing yet is written in the unit of the whole. */
  doneBytes = (done: number, total: number): string =>
    done > 0 || total === 0 ? this.bytes(done) : `0 ${this.bytes(total).split(' ').at(-1)}`;

  /** The memory of a machine, as its maker counts it: 16 GB are 2^34 bytes, of which the system keeps a little. */
  memory = (bytes: number): string => `${this.#whole.format(bytes / 2 ** 30)} GB`;

  /** A rate per second: one decimal while it says something. */
  rate = (perSecond: number): string => (perSecond < 99.95 ? this.#fixedDecimal : this.#whole).format(perSecond);

  /** A measured time: “312 ms”, “4.2 s”, “2 min 5 s”. */
  milliseconds = (milliseconds: number): string => {
    if (milliseconds < 999.5) return `${this.#whole.format(milliseconds)} ms`;
    if (milliseconds < 59_950) return `${this.#fixedDecimal.format(milliseconds / 1000)} s`;
    const seconds = Math.round(milliseconds / 1000);
    return `${this.#whole.format(Math.floor(seconds / 60))} min ${seconds % 60} s`;
  };

  /** An estimated time, without a precision that it does not have: “55 s”, “4 min”, “1 h 31 min”. */
  estimate = (milliseconds: number): string => {
    const seconds = Math.max(1, Math.round(milliseconds / 1000));
    if (seconds < 100) return `${seconds} s`;
    const minutes = Math.round(seconds / 60);
    if (minutes < 60) return `${minutes} min`;
    return `${this.#whole.format(Math.floor(minutes / 60))} h ${minutes % 60} min`;
  };

  /** The time that the rest of something takes: seconds below a minute, then minutes, then hours. */
  timeLeft = (seconds: number): string => {
    const minutes = Math.ceil(seconds / 60);
    if (seconds < 60) return `${this.#whole.format(seconds)} s`;
    if (minutes < 60) return `${minutes} min`;
    return `${this.#whole.format(Math.floor(minutes / 60))} h ${minutes % 60} min`;
  };

  /** A share of 1. Only all of it is 100 %, and only nothing is 0 %. */
  share = (share: number): string =>
    this.#percent.format(share <= 0 ? 0 : share >= 1 ? 1 : Math.min(0.99, Math.max(0.01, share)));

  /** A share of 1 that may be a small part of a percent: two figures of it. */
  smallShare = (share: number): string => this.#smallPercent.format(share);

  date = (milliseconds: number): string => this.#date.format(milliseconds);

  /** The time of day. */
  time = (milliseconds: number): string => this.#time.format(milliseconds);

  /** The time of day, to the second. */
  clock = (milliseconds: number): string => this.#clock.format(milliseconds);

  /** The month, with its year unless that is the year of `now`. */
  month = (milliseconds: number, now: number): string => {
    const isThisYear = new Date(milliseconds).getFullYear() === new Date(now).getFullYear();
    return (isThisYear ? this.#month : this.#monthOfYear).format(milliseconds);
  };

  /** How long ago, roughly; null where it was less than a minute ago, the day itself after a month. */
  ago = (milliseconds: number, now: number): string | null => {
    const age = now - milliseconds;
    const ago = (unit: number, name: Intl.RelativeTimeFormatUnit) =>
      this.#relative.format(-Math.floor(age / unit), name);
    if (age < MINUTE) return null;
    if (age < HOUR) return ago(MINUTE, 'minute');
    if (age < DAY) return ago(HOUR, 'hour');
    if (age < 30 * DAY) return ago(DAY, 'day');
    return this.#date.format(milliseconds);
  };
}
