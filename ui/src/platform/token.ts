// The key to the local server: it arrives in the address's fragment, which browsers never send anywhere.

const KEY = 'cairn.token';

type Place = Pick<Location, 'hash' | 'pathname' | 'search'>;

/** Takes the token out of the address bar, so that it is neither bookmarked nor shown, and keeps it for this tab. */
export function takeToken(place: Place, history: Pick<History, 'replaceState'>, storage: Storage): string | null {
  const token = new URLSearchParams(place.hash.slice(1)).get('token');
  if (token) {
    storage.setItem(KEY, token);
    history.replaceState(null, '', place.pathname + place.search);
  }
  return token || storage.getItem(KEY);
}
