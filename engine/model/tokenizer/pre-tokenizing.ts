/** Regular expressions of tokenizer.json, by which a text is cut before it is encoded. */

/**
 * Those of the families that are read here, and of our own small models. Each takes a text in linear time; a tokenizer with another is
 * watched while it works.
 */
const known: ReadonlySet<string> = new Set([
  '.',
  String.raw`[\s\S]`,
  // Qwen 2, 2.5 and 3
  String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  // Llama 3
  String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  // GPT-2
  String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
]);

/**
 * Whether a part of a tokenizer.json, such as its pre_tokenizer, has an expression that is not on the list of fast
 * ones.
 */
export function hasUnknownExpression(part: unknown): boolean {
  if (typeof part !== 'object' || part === null) return false;
  return Object.entries(part).some(([name, value]) =>
    name === 'Regex' ? typeof value !== 'string' || !known.has(value) : hasUnknownExpression(value),
  );
}
