// Names of models on the hub: their parts, and how they are found in what a person pasted.

/** What a name says besides what is shown of it: the owner, or all of it where an alias or a title is shown. */
export function restOfName(name: string, shown: string): string {
  if (name === shown) return '';
  return name.endsWith(`/${shown}`) ? name.slice(0, -shown.length - 1) : name;
}

const NAME = /^[\w-][\w.-]{0,95}\/[\w-][\w.-]{0,95}$/;
const HUB_HOSTS = new Set(['huggingface.co', 'www.huggingface.co', 'hf.co']);

/** Whether the hub can have a model of this name. */
export function isHubName(name: string): boolean {
  return NAME.test(name) && !name.includes('..') && !name.includes('--');
}

/** `owner/name` in what was typed: the name itself, or the address of its page; null: it is something to search for. */
export function hubNameIn(text: string): string | null {
  const typed = text.trim();
  if (isHubName(typed)) return typed;
  const address = /^(https?:\/\/)?([\w.-]+)\/(.+)$/i.exec(typed);
  if (!address || !HUB_HOSTS.has((address[2] ?? '').toLowerCase())) return null;
  const name = (address[3] ?? '').split(/[?#]/)[0]?.split('/').slice(0, 2).join('/') ?? '';
  return isHubName(name) ? name : null;
}
