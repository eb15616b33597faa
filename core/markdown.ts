/**
 * Text as Temporal's UI shows it, letter for letter: what a model said, or an error, is no link, image, heading or HTML there, and
 * stays on its line.
 */
export function plainMarkdown(text: string): string {
  return text.replaceAll(/\s*[\r\n\u2028\u2029]+\s*/g, ' ').replaceAll(/[\\`*_{}[\]<>#|~!&]/g, '\\$&');
}
