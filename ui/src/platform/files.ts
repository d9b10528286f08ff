// Files in a browser: chosen with its file dialog, saved among its downloads.

/** Asks for a prompt-cache file; null: the person changed their mind. */
export function pickFile(): Promise<File | null> {
  const input = document.createElement('input');
  input.type = 'file';
  input.accept = '.safetensors';
  return new Promise((resolve) => {
    input.addEventListener('change', () => resolve(input.files?.[0] ?? null));
    input.addEventListener('cancel', () => resolve(null));
    input.click();
  });
}

/** Hands a file to the browser's downloads. */
export function saveFile(content: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  // The download has to have begun; nobody tells when.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
