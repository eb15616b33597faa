/**
 * Escapes text for Temporal's UI: a model's output or an error must not become a link, image, heading or HTML there,
 * and stays on its line.
 */
export function plainMarkdown(text: string): string {
  const onOneLine = text.replaceAll(/\s+/g, (blanks) => (/[\r\n\u2028\u2029]/.test(blanks) ? ' ' : blanks));
  return onOneLine.replaceAll(/[\\`*_{}[\]<>#|~!&]/g, '\\$&');
}
