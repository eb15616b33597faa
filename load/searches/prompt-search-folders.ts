import { createHash, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { canonical } from '../../core/eval/same-evaluation.ts';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import type { PromptSearchInput, StoredPromptSearch } from '../../core/gepa/prompt-search.ts';
import { RatchetError } from '../../core/errors.ts';
import { runNamePattern } from '../../core/names.ts';
import type { GepaSpec } from '../../config/searches/gepa-spec.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { readRegularText } from '../../host/regular-file.ts';

/**
 * Folder of searches, as in verifiers: `outputs/gepa/ENV--MODEL/`, below the environment's own folder if it has one.
 */
function promptSearchFolder(
  { environments, environmentsFolder }: Pick<GepaSpec, 'environments' | 'environmentsFolder'>,
  model: string,
  projectFolder: string,
): string {
  const [first] = environments;
  const module = first!.id.split('/').at(-1)!.split('@', 1)[0]!.replaceAll('-', '_');
  const own = path.resolve(projectFolder, environmentsFolder, module);
  const isOwn = environments.length === 1 && /^\w+$/.test(module) && existsSync(own);
  const base = isOwn ? path.join(own, 'outputs') : path.resolve(projectFolder, 'outputs');
  const name = environments.map((one) => one.name).join('+');
  return path.join(base, 'gepa', `${name}--${model.replaceAll('/', '--')}`);
}

interface PlaceOptions {
  readonly projectFolder: string;
  /** Starts a new search instead of continuing an interrupted one. */
  readonly isFresh: boolean;
  /** Name of a new one: the same request gets the same; missing = random. */
  readonly request?: string | undefined;
}

/** Place of a search: the newest interrupted one if it is the same, else a new folder. */
export async function placeOfPromptSearch(
  spec: GepaSpec,
  input: Omit<PromptSearchInput, 'results'>,
  { projectFolder, isFresh, request }: PlaceOptions,
): Promise<EvaluationPlace> {
  if (spec.runDir !== null) return placeAt(path.resolve(projectFolder, spec.runDir));
  const folder = promptSearchFolder(spec, input.model.model, projectFolder);
  const own =
    request === undefined ? randomUUID().slice(0, 8) : createHash('sha256').update(request).digest('hex').slice(0, 8);
  const interrupted = isFresh ? null : await newestInterrupted(folder, input);
  return { store: resolveStoreUri(folder, folder), name: interrupted ?? own, prefix: '' };
}

function placeAt(folder: string): EvaluationPlace {
  const [parent, name] = [path.dirname(folder), path.basename(folder)];
  if (runNamePattern.test(name)) return { store: resolveStoreUri(parent, parent), name, prefix: '' };
  throw new RatchetError(
    'ConfigInvalid',
    `--run-dir: expected a folder whose name has small letters, digits, ".", "_" and "-" alone, got ${name}.`,
  );
}

async function newestInterrupted(folder: string, input: Omit<PromptSearchInput, 'results'>): Promise<string | null> {
  const names = (await readdir(folder).catch(() => [])).filter((name) => runNamePattern.test(name));
  const found: { readonly name: string; readonly at: number }[] = [];
  for (const name of names) {
    const own = path.join(folder, name, 'search');
    if (existsSync(path.join(own, 'summary.json'))) continue;
    const file = path.join(own, 'search.json');
    const text = await readRegularText(file, undefined, { within: [folder] }).catch(() => null);
    if (text === null || !isSameSearch((JSON.parse(text) as StoredPromptSearch).input, input)) continue;
    found.push({ name, at: (await stat(file)).mtimeMs });
  }
  return found.sort((a, b) => b.at - a.at)[0]?.name ?? null;
}

/** Whether two are one search: compares only what its result depends on. */
function isSameSearch(before: PromptSearchInput, now: Omit<PromptSearchInput, 'results'>): boolean {
  return differencesOfSearches(before, now).length === 0;
}

/** Names of settings in which two searches differ. */
export function differencesOfSearches(before: PromptSearchInput, now: Omit<PromptSearchInput, 'results'>): string[] {
  const decide: readonly (keyof typeof now)[] = [
    'environments',
    'model',
    'reflection',
    'maxCalls',
    'minibatchSize',
    'perfectScore',
    'stateColumns',
    'numTrain',
    'numVal',
    'numTest',
    'seed',
    'isClassic',
    'initialPrompt',
    'startPrompt',
    'components',
    'merges',
    'tuning',
  ];
  return decide.filter((key) => canonical(before[key]) !== canonical(now[key]));
}
