import { nearestName } from '../../core/suggest.ts';

/** The names of all options, each once: the compiler checks them against the type. */
type NamesOf<Options> = Readonly<Record<keyof Options & string, true>>;

/** Options that are often given to the wrong maker, with their right place. */
const elsewhere: Readonly<Record<string, string>> = {
  systemPrompt:
    "A system prompt is the first message of an example's prompt, { role: 'system', content: … }, or system_prompt of the run file's [[env]].",
  sampling: 'How a policy is sampled is set by [sampling] of the run file.',
};

/**
 * Throws if an object of options has an unknown key. tsx checks no types, so a misspelt option of a user's environment
 * would silently have no effect. An instance of a class may have more fields.
 */
export function requireKnownOptions<Options extends object>(
  what: string,
  options: Partial<Options>,
  names: NamesOf<Options>,
): void {
  if (Object.getPrototypeOf(options) !== Object.prototype) return;
  const known = Object.keys(names);
  const unknown = Object.keys(options).filter((key) => !known.includes(key));
  const [first] = unknown;
  if (first === undefined) return;
  const nearest = nearestName(first, known);
  throw new TypeError(
    [
      `${what} has no option ${unknown.map((key) => `"${key}"`).join(', ')}.`,
      ...(nearest === undefined ? [] : [`Did you mean "${nearest}"?`]),
      ...(nearest === undefined && elsewhere[first] !== undefined ? [elsewhere[first]] : []),
      `Its options are: ${known.join(', ')}.`,
    ].join(' '),
  );
}
