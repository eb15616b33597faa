import { systemPrompt } from '../../core/gepa/prompt-parts.ts';
import type { PromptSearchInput, PromptSearchResult } from '../../core/gepa/prompt-search.ts';
import { fromHere } from '../output/from-here.ts';
import { quote } from '../typed/typed-command.ts';
import type { GepaRunOptions } from './run-options.ts';
import path from 'node:path';

type Searched = Pick<PromptSearchInput, 'environments' | 'model' | 'components' | 'savesResults'>;

/** Commands that evaluate and train with the found prompt; `ids` are the environments as typed. */
export function howToUse(
  { folder, isImproved }: Pick<PromptSearchResult, 'folder' | 'isImproved'>,
  { model, components = [systemPrompt], savesResults }: Searched,
  { ids, options }: { readonly ids: readonly string[]; readonly options: GepaRunOptions },
): string[] {
  if (!isImproved) return ['no prompt was better than the start, so there is none to use'];
  const isOne = components.length === 1 && components[0] === systemPrompt;
  if (!components.includes(systemPrompt) || (!isOne && !savesResults)) {
    return [`the texts are in ${fromHere(path.join(folder, isOne ? 'best_prompt.txt' : 'best_components.json'))}`];
  }
  const file = fromHere(path.join(folder, isOne ? 'best_prompt.txt' : 'system_prompt.txt'));
  const given: readonly (readonly [string, string | undefined])[] = [
    ['-m', model.model],
    ['-b', options.apiBaseUrl],
    ['-k', options.apiKeyVar],
    ['-p', options.provider],
    ['-e', options.endpointsPath],
    ['-a', options.envArgs],
    ['-x', options.extraEnvKwargs],
    ['--system-prompt', file],
  ];
  const typed = given.flatMap(([name, value]) => (value === undefined ? [] : [name, quote(value)]));
  return [
    `use it: npx ratchet-rl eval run ${quote(ids.join(','))} ${typed.join(' ')}`,
    `  or in a run file: [[env]] system_prompt = ${JSON.stringify(file)}`,
    ...(isOne ? [] : ['  best_components.json beside it has the other texts, which no setting takes']),
  ];
}
