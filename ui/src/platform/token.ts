// The token of the local server. It comes in the address's fragment, which browsers never send anywhere.

const KEY = 'cairn.token';

type Address = Pick<Location, 'hash' | 'pathname' | 'search'>;

/** Takes the token out of the address bar, so that it is neither bookmarked nor shown, and stores it for this tab. */
export function takeToken(address: Address, history: Pick<History, 'replaceState'>, storage: Storage): string | null {
  const token = new URLSearchParams(address.hash.slice(1)).get('token');
  if (token) {
    storage.setItem(KEY, token);
    history.replaceState(null, '', address.pathname + address.search);
  }
  return token || storage.getItem(KEY);
}
