// The character maps that a PDF may name instead of having them: those that the PDF specification predefines for Chinese, Japanese
// and Korean, and what makes Unicode of their characters. Each is a file of ours that is fetched when a PDF names it.

const files = import.meta.glob<string>(
  [
    '/node_modules/pdfjs-dist/cmaps/LICENSE',
    '/node_modules/pdfjs-dist/cmaps/Adobe-{CNS1,GB1,Japan1,Korea1}-UCS2.bcmap',
    '/node_modules/pdfjs-dist/cmaps/Uni{CNS,GB,JIS,KS}-{UCS2,UTF16}-{H,V}.bcmap',
    '/node_modules/pdfjs-dist/cmaps/UniJIS-UCS2-HW-{H,V}.bcmap',
    '/node_modules/pdfjs-dist/cmaps/{GB-EUC,GBpc-EUC,GBK-EUC,GBKp-EUC,GBK2K}-{H,V}.bcmap',
    '/node_modules/pdfjs-dist/cmaps/{B5pc,HKscs-B5,ETen-B5,ETenms-B5,CNS-EUC}-{H,V}.bcmap',
    '/node_modules/pdfjs-dist/cmaps/{83pv,90ms,90msp,90pv,Add,Ext}-RKSJ-{H,V}.bcmap',
    '/node_modules/pdfjs-dist/cmaps/{EUC-H,EUC-V,H,V}.bcmap',
    '/node_modules/pdfjs-dist/cmaps/{KSC-EUC,KSCms-UHC,KSCms-UHC-HW,KSCpc-EUC}-{H,V}.bcmap',
  ],
  { query: '?url', import: 'default', eager: true, exhaustive: true },
);

const urls = new Map(Object.entries(files).map(([path, url]) => [path.slice(path.lastIndexOf('/') + 1), url]));

/** What pdf.js asks for files: of those that it may ask for, these are the ones that are here. */
export class OwnFiles {
  async fetch({ kind, filename }: { kind: string; filename: string }): Promise<Uint8Array> {
    const url = kind === 'cMapUrl' ? urls.get(filename) : undefined;
    const reply = url === undefined ? null : await fetch(url);
    if (!reply?.ok) throw new Error(`${filename} is not one of the files that come with Cairn`);
    return new Uint8Array(await reply.arrayBuffer());
  }
}
