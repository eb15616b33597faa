/**
 * Text as Temporal's UI shows it, letter for letter: what a model said, or an error, is no link, image, heading or HTML there, and
 * stays on its line.
 */
export function plainMarkdown(text: string): string {
  const onOneLine = text.replaceAll(/\s+/g, (blanks) => (/[\r\n\u2028\u2029]/.test(blanks) ? ' ' : blanks));
  return onOneLine.replaceAll(/[\\`*_{}[\]<>#|~!&]/g, '\\$&');
}
