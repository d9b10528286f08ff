// Files that flows attach: PDFs, written by hand, and texts.

/** A PDF with a page for each text; an empty one has no text, as a scanned page has none. With `isEncrypted` it asks for a password. */
export function pdf(pages, { isEncrypted = false } = {}) {
  const objects = [];
  const add = (content) => objects.push(content);
  add('<< /Type /Catalog /Pages 2 0 R >>');
  const kids = pages.map((_, index) => `${4 + 2 * index} 0 R`).join(' ');
  add(`<< /Type /Pages /Kids [${kids}] /Count ${pages.length} >>`);
  add('<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>');
  for (const [index, text] of pages.entries()) {
    const lines = text === '' ? [] : text.split('\n').map((line) => `(${line.replaceAll(/[()\\]/g, '\\$&')}) Tj T*`);
    const drawing = `BT /F1 12 Tf 14 TL 72 720 Td ${lines.join(' ')} ET`;
    add(
      `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents ${5 + 2 * index} 0 R /Resources << /Font << /F1 3 0 R >> >> >>`,
    );
    add(`<< /Length ${drawing.length} >>\nstream\n${drawing}\nendstream`);
  }
  const digits = '5a'.repeat(32);
  if (isEncrypted) add(`<< /Filter /Standard /V 1 /R 2 /O <${digits}> /U <${digits}> /P -4 >>`);
  return assembled(objects, isEncrypted ? ` /Encrypt ${objects.length} 0 R /ID [<${digits}> <${digits}>]` : '');
}

/** The objects of a PDF as its file. */
function assembled(objects, secret = '') {
  let body = '%PDF-1.4\n';
  const offsets = objects.map((content, index) => {
    const offset = body.length;
    body += `${index + 1} 0 obj\n${content}\nendobj\n`;
    return offset;
  });
  const table = offsets.map((offset) => `${String(offset).padStart(10, '0')} 00000 n \n`).join('');
  const trailer = `trailer\n<< /Size ${objects.length + 1} /Root 1 0 R${secret} >>\nstartxref\n${body.length}\n%%EOF\n`;
  return Buffer.from(`${body}xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${table}${trailer}`, 'latin1');
}

/** A PDF whose font is not in it, with a text in a predefined character map, as hexadecimal digits. */
export function eastAsianPdf(hex, encoding, ordering) {
  const drawing = `BT /F1 12 Tf 72 720 Td <${hex}> Tj ET`;
  return assembled([
    '<< /Type /Catalog /Pages 2 0 R >>',
    '<< /Type /Pages /Kids [3 0 R] /Count 1 >>',
    '<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>',
    `<< /Length ${drawing.length} >>\nstream\n${drawing}\nendstream`,
    `<< /Type /Font /Subtype /Type0 /BaseFont /Stone /Encoding /${encoding} /DescendantFonts [6 0 R] >>`,
    `<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Stone /FontDescriptor 7 0 R /CIDSystemInfo << /Registry (Adobe) /Ordering (${ordering}) /Supplement 2 >> >>`,
    '<< /Type /FontDescriptor /FontName /Stone /Flags 6 /FontBBox [0 -200 1000 900] /ItalicAngle 0 /Ascent 900 /Descent -200 /CapHeight 700 /StemV 80 >>',
  ]);
}

/** A text about cairns with this many paragraphs, all different. */
export function longText(paragraphs) {
  const kinds = ['granite', 'basalt', 'gneiss', 'slate', 'limestone'];
  const lines = Array.from(
    { length: paragraphs },
    (_, index) =>
      `Cairn number ${index + 1} stands at ${1000 + 7 * index} metres. It is built of ${kinds[index % kinds.length]}, and it took ` +
      `${2 + (index % 9)} people an afternoon to build it.`,
  );
  return `# The cairns of the ridge\n\n${lines.join('\n\n')}\n`;
}
