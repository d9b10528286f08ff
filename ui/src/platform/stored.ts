/** What was kept under this key as JSON; undefined where nothing was, or where it is damaged. */
export function stored(storage: Pick<Storage, 'getItem'> | undefined, key: string): unknown {
  try {
    return JSON.parse(storage?.getItem(key) ?? '');
  } catch {
    return undefined;
  }
}
