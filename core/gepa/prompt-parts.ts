import type { ToolSchema } from '../rl/rollout.ts';
import type { Texts } from './search-state.ts';

/** The texts that a search writes anew, by the names that it knows them by, and what they are to the environments that are played. */

/** The one text that is optimized unless others are asked for: of several environments the same. */
export const systemPrompt = 'system_prompt';

/** What may be asked for: one system prompt, one of each environment, the descriptions of their tools. */
export const promptComponents = ['system_prompt', 'system_prompts', 'tool_descriptions'] as const;
export type PromptComponent = (typeof promptComponents)[number];

/** What an environment begins with. */
interface StartOfEnvironment {
  readonly name: string;
  readonly systemPrompt: string;
  readonly tools: readonly ToolSchema[];
}

/** The texts that a search begins with. Of several environments tools are told apart by whose they are. */
export function startOfParts(
  components: readonly PromptComponent[],
  of: readonly StartOfEnvironment[],
  /** In place of every system prompt of theirs. */
  initial: string | null,
): Texts {
  const own = of.find(({ systemPrompt: text }) => text !== '')?.systemPrompt ?? '';
  const isOne = of.length === 1;
  const parts = components.flatMap((component): (readonly [string, string])[] => {
    if (component === 'system_prompt') return [[systemPrompt, initial ?? own]];
    if (component === 'system_prompts')
      return of.map(({ name, systemPrompt: text }) => [`${systemPrompt}:${name}`, initial ?? text]);
    return of.flatMap(({ name, tools }) =>
      tools.map(({ function: tool }) => [`tool:${isOne ? '' : `${name}/`}${tool.name}`, tool.description] as const),
    );
  });
  return Object.fromEntries(parts);
}

/** What rollouts of an environment are played with in place of its own. */
export interface PlayedParts {
  /** undefined: its own. */
  readonly systemPrompt: string | undefined;
  /** By name of the tool; undefined: its own. */
  readonly toolDescriptions: Readonly<Record<string, string>> | undefined;
}

export function partsFor(texts: Texts, environment: string): PlayedParts {
  const descriptions = Object.entries(texts).flatMap(([part, text]) => {
    const { kind, environment: of, name } = asPart(part);
    return kind === 'tool' && (of === null || of === environment) ? [[name, text] as const] : [];
  });
  return {
    systemPrompt: texts[`${systemPrompt}:${environment}`] ?? texts[systemPrompt],
    toolDescriptions: descriptions.length === 0 ? undefined : Object.fromEntries(descriptions),
  };
}

/** Whose a part is: null = of all environments. */
export function environmentOfPart(part: string): string | null {
  return asPart(part).environment;
}

/** The tool that a part describes; null where it is a system prompt. */
export function toolOfPart(part: string): string | null {
  const { kind, name } = asPart(part);
  return kind === 'tool' ? name : null;
}

/** Names of tools have no slash. */
function asPart(part: string): { kind: 'system_prompt' | 'tool'; environment: string | null; name: string } {
  const [, kind, environment, name] =
    /^(tool):(?:(.*)\/)?([^/]+)$/.exec(part) ?? /^(system_prompt)(?::(.*))?()$/.exec(part) ?? [];
  return { kind: kind === 'tool' ? 'tool' : 'system_prompt', environment: environment ?? null, name: name ?? '' };
}

/** All of it as one text: of one part its own, of several each under its name. */
export function asOneText(texts: Texts): string {
  const parts = Object.entries(texts);
  if (parts.length === 1) return parts[0]![1];
  return parts.map(([name, text]) => `### ${name}\n\n${text}`).join('\n\n');
}
