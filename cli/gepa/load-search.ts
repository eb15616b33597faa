import {
  loadPromptSearch,
  loadPromptSearchFile,
  type PlannedPromptSearch,
} from '../../load/searches/load-prompt-search.ts';
import { parseToml } from '../../config/toml/parse-toml.ts';
import { type GepaRunOptions, overridesOf } from './run-options.ts';
import { namesOf } from '../output/names-of.ts';

/** A file, or one or several environments by their ids. */
export async function load(what: string, options: GepaRunOptions, projectFolder: string): Promise<PlannedPromptSearch> {
  const reading = {
    projectFolder,
    overrides: overridesOf(options),
    builtin: options.builtin === true,
    variables: namesOf(options.passEnv),
    isSmallBudgetMeant: options.yes === true,
  };
  if (what.endsWith('.toml')) return loadPromptSearchFile(what, reading);
  const text = namesOf(what)
    .map((id) => `[[env]]\nenv_id = ${JSON.stringify(id)}\n`)
    .join('\n');
  return loadPromptSearch(parseToml(text, 'command line'), reading);
}
