// The page's policy lets no string become a script or markup. Two strings of documents have to: the address of the worker that
// reads PDFs, which is a file of ours, and a web page, which is parsed into a document that runs and fetches nothing.

interface Policy {
  createHTML(text: string): string;
  createScriptURL(url: string): string;
}

interface Factory {
  createPolicy(name: string, rules: Policy): Policy;
}

let policy: Policy | undefined;

/** The name is in the page's Content-Security-Policy. */
function trusted(): Policy {
  const rules: Policy = { createHTML: (text) => text, createScriptURL: (url) => url };
  const factory = (globalThis as { trustedTypes?: Factory }).trustedTypes;
  return (policy ??= factory ? factory.createPolicy('cairn-documents', rules) : rules);
}

/** Parses markup into a document without a window: no script runs in it, and nothing that it names is fetched. */
export function inert(markup: string): Document {
  return new DOMParser().parseFromString(trusted().createHTML(markup), 'text/html');
}

/** A worker of one of our own files. */
export function ownWorker(url: string): Worker {
  const { origin } = new URL(url, location.href);
  if (origin !== location.origin) throw new Error(`${url} is no file of this page`);
  return new Worker(trusted().createScriptURL(url), { type: 'module' });
}
