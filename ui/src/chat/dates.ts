// The headings of the list of chats: how long ago something last happened, in calendar days.
import type { strings } from '../text';

export type Age = keyof typeof strings.chats.ages;

export function ageOf(milliseconds: number, now: Date): Age {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  const day = (back: number) =>
    new Date(midnight.getFullYear(), midnight.getMonth(), midnight.getDate() - back).getTime();
  if (milliseconds >= day(0)) return 'today';
  if (milliseconds >= day(1)) return 'yesterday';
  return milliseconds >= day(6) ? 'lastWeek' : 'earlier';
}
