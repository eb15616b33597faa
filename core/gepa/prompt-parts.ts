import type { ToolSchema } from '../rl/rollout/rollout.ts';
import type { Texts } from './search-state.ts';

/** The texts that a search optimizes, by their names in the search, and their roles in environments. */

/** The default component: one system prompt for all environments. */
export const systemPrompt = 'system_prompt';

/** Optional components: one system prompt, one for each environment, and the descriptions of their tools. */
export const promptComponents = ['system_prompt', 'system_prompts', 'tool_descriptions'] as const;
export type PromptComponent = (typeof promptComponents)[number];

/** An environment's initial texts. */
interface StartOfEnvironment {
  readonly name: string;
  readonly systemPrompt: string;
  readonly tools: readonly ToolSchema[];
}

/** Initial texts of a search. If there are several environments, tool names include theirs. */
export function startOfParts(
  components: readonly PromptComponent[],
  of: readonly StartOfEnvironment[],
  /** Replaces every system prompt of theirs. */
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

/** Texts that replace an environment's own in rollouts. */
export interface PlayedParts {
  /** undefined: the environment's own. */
  readonly systemPrompt: string | undefined;
  /** Keyed by the tool's name; undefined: the environment's own. */
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

/** A part's environment; null = all environments. */
export function environmentOfPart(part: string): string | null {
  return asPart(part).environment;
}

/** The tool that a part describes; null for a system prompt. */
export function toolOfPart(part: string): string | null {
  const { kind, name } = asPart(part);
  return kind === 'tool' ? name : null;
}

/** Tool names contain no slash. */
function asPart(part: string): { kind: 'system_prompt' | 'tool'; environment: string | null; name: string } {
  const [, kind, environment, name] =
    /^(tool):(?:(.*)\/)?([^/]+)$/.exec(part) ?? /^(system_prompt)(?::(.*))?()$/.exec(part) ?? [];
  return { kind: kind === 'tool' ? 'tool' : 'system_prompt', environment: environment ?? null, name: name ?? '' };
}

/** All parts as one text: a single part alone, several each under its name. */
export function asOneText(texts: Texts): string {
  const parts = Object.entries(texts);
  if (parts.length === 1) return parts[0]![1];
  return parts.map(([name, text]) => `### ${name}\n\n${text}`).join('\n\n');
}
