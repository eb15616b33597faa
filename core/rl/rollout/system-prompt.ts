import type { Example } from './rollout.ts';

/** The example under another system prompt; '' = none, undefined = the example's own. */
export function withSystemPrompt(example: Example, systemPrompt: string | undefined): Example {
  if (systemPrompt === undefined || systemPrompt === systemPromptOf(example)) return example;
  const rest = example.prompt.slice(example.prompt[0]?.role === 'system' ? 1 : 0);
  const prompt = systemPrompt === '' ? rest : [{ role: 'system' as const, content: systemPrompt }, ...rest];
  return { ...example, prompt };
}

/**
 * Whether a written `system_prompt` is the name of a file: one word in the letters of paths, or one line that ends with .txt or .md.
 * Anything else is the prompt itself, and '' is none.
 */
export function isPromptFile(written: string): boolean {
  return /^[\w./~@%+:\\-]+$/.test(written) || /^[^\n\r]*\.(?:txt|md)$/i.test(written);
}

/** The system message of an example's conversation; '' without one. */
export function systemPromptOf({ prompt }: Example): string {
  const [first] = prompt;
  return first?.role === 'system' ? first.content : '';
}
