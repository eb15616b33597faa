import type { Example } from '../../core/rl/rollout/rollout.ts';
import { drawExamples, shrunkTo } from '../../core/gepa/examples.ts';
import { classicSettings, defaultSettings, leastBudget, mergeDefaults } from '../../core/gepa/settings.ts';
import { tunedSettings } from '../../core/gepa/tuning.ts';
import {
  type ExampleRef,
  type PromptFileInput,
  type PromptSearchHandle,
  type PromptSearchInput,
  type StoredPromptSearch,
} from '../../core/gepa/prompt-search.ts';
import { startOfParts, systemPrompt } from '../../core/gepa/prompt-parts.ts';
import type { Texts } from '../../core/gepa/search-state.ts';
import { RatchetError } from '../../core/errors.ts';
import { systemPromptOf } from '../../core/rl/rollout/system-prompt.ts';
import { grantByFile, namedBySearch } from '../../load/grants/grant.ts';
import { loadPromptSearchFile, tooSmallBudget } from '../../load/searches/load-prompt-search.ts';
import { differencesOfSearches, placeOfPromptSearch } from '../../load/searches/prompt-search-folders.ts';
import type { Environment, Environments } from '../../backends/environments/index.ts';
import { openReadable } from '../../play/policy/text-models.ts';
import { linesOfStore, requireOwnFolder, showStoreUri } from '../../store/index.ts';
import { decodeStored, encodeStored } from '../../runs/forms/stored-forms.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { storeOf } from '../../runs/run-access.ts';
import { handleOf, searchKeys, textName } from '../../runs/searches/search-store.ts';

interface PlanPromptSearchInput extends PromptFileInput {
  /** Requester, `WORKFLOW_ID/EXECUTION_ID`. */
  readonly request: string;
}

/** Reads a file of prompt optimization and decides the place of its results: an interrupted search, or a new one. */
export const createPlanPromptSearch =
  ({ projectFolder }: { readonly projectFolder: string }) =>
  async ({
    config,
    overrides,
    yes,
    request,
  }: PlanPromptSearchInput): Promise<{ input: PromptSearchInput; warnings: readonly string[] }> =>
    withHeartbeat(async () => {
      const { spec, input, warnings } = await loadPromptSearchFile(config, {
        projectFolder,
        overrides,
        isSmallBudgetMeant: yes,
      });
      const results = await placeOfPromptSearch(spec, input, { projectFolder, isFresh: false, request });
      const named = [...namedBySearch(input), ...linesOfStore(results.store)];
      grantByFile(named, Object.keys(overrides ?? {}).length === 0);
      return { input: { ...input, results }, warnings };
    });

interface OpenDependencies {
  readonly codeVersion: string;
  readonly countRolloutWorkers: () => Promise<number>;
  readonly environments?: Environments | undefined;
}

/**
 * Opens a search: draws its examples, and stores its first prompt. The first to open wins; an existing search continues
 * with the examples it drew, and a different one is refused.
 */
export const createOpenPromptSearch =
  ({ codeVersion, countRolloutWorkers, environments }: OpenDependencies) =>
  async ({ input }: { readonly input: PromptSearchInput }): Promise<PromptSearchHandle> =>
    withHeartbeat(async () => {
      const { results } = input;
      const store = storeOf(results);
      const key = searchKeys.search(results);
      const known = await store.read(key);
      if (known === null) await requireOwnFolder(results);
      const fresh = known ?? encodeStored(key, await drawSearch({ codeVersion, environments }, input));
      const bytes = known ?? (await store.putIfAbsent(key, fresh)).bytes;
      const stored = decodeStored<StoredPromptSearch>(bytes, key);
      requireSame(store.uri, stored, input);
      const workers = await countRolloutWorkers().catch(() => 1);
      const { budget, prices } = input;
      const limited = { ...(budget && { budget }), ...(prices && { prices }) };
      return { ...handleOf(results, { key, bytes, stored }), workers, limited };
    });

async function drawSearch(
  { codeVersion, environments }: Omit<OpenDependencies, 'countRolloutWorkers'>,
  input: PromptSearchInput,
): Promise<StoredPromptSearch> {
  const { seed, numTrain, numVal, numTest, maxCalls, minibatchSize, perfectScore, isClassic, isBranch = false } = input;
  const { maxReflections = maxCalls } = input;
  const opened = await openReadable(environments, input);
  const sizes = opened.map(({ dataset, evalDataset }) => ({
    dataset: dataset.length,
    evalDataset: isBranch ? 0 : evalDataset.length,
  }));
  const asked = { train: numTrain, val: numVal, test: numTest };
  const drawn = drawExamples(sizes, { seed, ...(isBranch ? shrunkTo(sizes[0]!.dataset, asked) : asked) });
  requireExamples(drawn.train, 'to reflect on', input);
  requireExamples(drawn.val, 'to choose by', input);
  const sized = { trainSize: drawn.train.length, valSize: drawn.val.length };
  const least = leastBudget({ ...sized, minibatchSize });
  if (maxCalls < least.calls && !input.isSmallBudgetMeant) throw tooSmallBudget(maxCalls, least.arithmetic);
  const settingsOf = isClassic ? classicSettings : defaultSettings;
  const startTexts = await startTextsOf(input, opened, drawn.train);
  const merge = input.merges === true ? { merge: mergeDefaults } : {};
  return {
    schemaVersion: 2,
    input,
    settings: settingsOf({
      ...tunedSettings(input.tuning ?? {}),
      seed,
      maxCalls,
      maxReflections,
      minibatchSize,
      perfectScore,
      ...sized,
      ...merge,
    }),
    start: Object.fromEntries(Object.entries(startTexts).map(([component, text]) => [component, textName(text)])),
    startTexts,
    ...drawn,
    warnings: warningsOf(input, opened, { ...sized, test: drawn.test.length }),
    openedAt: new Date().toISOString(),
    codeVersion,
  };
}

async function startTextsOf(
  { startPrompt, initialPrompt, results, components = [systemPrompt] }: PromptSearchInput,
  opened: readonly Environment[],
  train: readonly ExampleRef[],
): Promise<Texts> {
  const given = startPrompt ? Buffer.from(await storeOf(results).get(startPrompt)).toString('utf8') : initialPrompt;
  const environments = opened.map(({ name, tools = [] }, i) => ({
    name,
    tools,
    systemPrompt: ownPrompt(opened, train, i),
  }));
  const texts = startOfParts(components, environments, given);
  const hasTools = environments.some(({ tools }) => tools.length > 0);
  if (!components.includes('tool_descriptions') || hasTools) return texts;
  const names = opened.map(({ name }) => name).join(', ');
  throw new RatchetError(
    'ConfigInvalid',
    `--components tool_descriptions: expected an environment whose tools are known when it is opened, and ${names} says of none (verifiers v1 tells them with each task). Leave it out, or search another environment.`,
  );
}

/** The system prompt that an environment's examples begin with. */
function ownPrompt(opened: readonly Environment[], train: readonly ExampleRef[], i: number): string {
  const ref = train.find(([at]) => at === i);
  const example: Example | undefined = ref && opened[i]![ref[1]].at(ref[2]);
  return example === undefined ? '' : systemPromptOf(example);
}

function requireExamples(drawn: readonly ExampleRef[], what: string, { environments }: PromptSearchInput): void {
  if (drawn.length > 0) return;
  const names = environments.map(({ name }) => name).join(', ');
  throw new RatchetError('ConfigInvalid', `${names} has no examples ${what}.`);
}

function warningsOf(
  input: PromptSearchInput,
  opened: readonly Environment[],
  { trainSize, valSize, test }: { readonly trainSize: number; readonly valSize: number; readonly test: number },
): string[] {
  const fewer = (asked: number, there: number, what: string) =>
    asked > there ? [`there are ${there} examples ${what}, not ${asked}: all are taken`] : [];
  const together =
    input.isBranch === true ? [] : opened.filter(({ evalDataset }) => evalDataset.length === 0).map(({ name }) => name);
  return [
    ...fewer(input.numTrain, trainSize, 'to reflect on'),
    ...fewer(input.numVal, valSize, 'to choose by'),
    ...(together.length === 0
      ? []
      : [`${together.join(', ')} holds no examples out: those to choose by are drawn apart from those to reflect on`]),
    ...(input.numTest !== 0 && test === 0
      ? ['no examples are left over to compare the first and the best prompt on']
      : []),
  ];
}

function requireSame(uri: string, { input: before }: StoredPromptSearch, input: PromptSearchInput): void {
  const differences = differencesOfSearches(before, input);
  if (differences.length === 0) return;
  throw new RatchetError(
    'ConfigInvalid',
    `The search in ${showStoreUri(uri)} is another one: ${differences.join(', ')} differ. Continue with its first settings, or search anew (--fresh, or another --run-dir).`,
  );
}
