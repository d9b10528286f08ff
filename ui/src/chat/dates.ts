// The headings of the list of chats: how long ago something last happened, in calendar days and months.
import { strings } from '../text';

/** `now`: the time at which the list is shown. */
export function ageOf(milliseconds: number, now: Date): string {
  const { ages, month } = strings.chats;
  const day = (back: number) => new Date(now.getFullYear(), now.getMonth(), now.getDate() - back).getTime();
  if (milliseconds >= day(0)) return ages.today;
  if (milliseconds >= day(1)) return ages.yesterday;
  return milliseconds >= day(6) ? ages.lastWeek : month(milliseconds, now.getTime());
}
