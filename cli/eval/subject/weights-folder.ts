import { existsSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../../core/errors.ts';
import type { CheckpointFigures } from '../../../core/eval/checkpoint-curve.ts';
import { selectSteps } from '../../../core/eval/select-steps.ts';
import { loadWeightsFolder, startedWith } from '../../../backends/inference/load-weights-folder.ts';
import { ModelServer } from '../../../backends/inference/model-server.ts';
import { choosePlace, newEvaluationId } from '../../../load/evaluations/evaluation-folders.ts';
import { loadNamedEvaluations } from '../../../load/evaluations/load-evaluations.ts';
import { resolveStoreUri } from '../../../store/index.ts';
import { choiceOf, evaluateCheckpoints } from '../checkpoints.ts';
import { checkpointFigures, curveLines } from '../checkpoint-figures.ts';
import type { CheckpointOptions } from './checkpoint-subject.ts';
import { settingsOf } from '../run-options.ts';
import { openReporter } from '../../output/reporter.ts';
import { onStage } from '../stage.ts';
import type { EvaluationLine } from '../watch-evaluation.ts';

interface WeightsOptions extends CheckpointOptions {
  readonly weightsDir: string;
  readonly baseUrl?: string | undefined;
  readonly model?: string | undefined;
}

/**
 * prime-rl's `uv run eval --client.base-url U --weights-dir D`: the weights of a run of Ratchet are its checkpoints; other folders with
 * `step_N/` are loaded one after another by the server at U: a vLLM, prime-rl's or ours.
 */
export async function evaluateWeights(options: WeightsOptions): Promise<number> {
  const folder = path.resolve(options.weightsDir);
  const run = path.dirname(folder);
  if (existsSync(path.join(run, 'run.json'))) {
    return evaluateCheckpoints(path.basename(run), { ...options, store: `file:${path.dirname(run)}` });
  }
  if (!existsSync(folder)) throw await notThere(options.weightsDir);
  return evaluateFolder(folder, options);
}

/** prime-rl has one run in `outputs/`; here each run has its own folder there. */
async function notThere(weightsDir: string): Promise<RatchetError> {
  const [last, above] = [path.basename(weightsDir), path.dirname(weightsDir)];
  const entries = await readdir(above, { withFileTypes: true }).catch(() => []);
  const runs = entries.filter((entry) => entry.isDirectory() && existsSync(path.join(above, entry.name, 'run.json')));
  const theirs = runs.map(({ name }) => `--weights-dir ${path.join(above, name, last)}`).join(' or ');
  const meant = runs.length === 0 ? '' : ` Each run has a folder of its own: ${theirs}.`;
  const says = `--weights-dir ${weightsDir}: expected a folder with step_N/ in it; there is no such folder.${meant}`;
  return new RatchetError('RunNotFound', says);
}

async function evaluateFolder(folder: string, options: WeightsOptions): Promise<number> {
  const { baseUrl, model, env = [] } = options;
  if (baseUrl === undefined || env.length === 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `${options.weightsDir} is not the weights folder of a run of Ratchet: --client.base-url names the server that is to load it, --env.id what it is evaluated on.`,
    );
  }
  const reporter = openReporter<EvaluationLine>(options);
  const found = await stepsIn(folder);
  const { steps, includesBase } = choiceOf(options);
  const { chosen, missing } = selectSteps([...found.keys()], { steps, includesBase: false });
  if (chosen.length === 0 || missing.length > 0) {
    throw new RatchetError(
      'RunNotFound',
      `${folder}: expected folders step_N, ${missing.length > 0 ? `also of ${missing.join(', ')}` : 'one at least'}; there are ${[...found.keys()].join(', ') || 'none'}.`,
    );
  }
  const server = new ModelServer(
    { url: baseUrl, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: null },
    { timeoutMs: 600_000, provider: 'cpu' },
  );
  // Checked before any weights are loaded, after which a vLLM no longer has it.
  const base = includesBase ? (model ?? (await startedWith(server))) : null;
  const figures: CheckpointFigures[] = [];
  const storeUri = resolveStoreUri('file:outputs', process.cwd());
  return onStage({ storeUri, environments: [], reporter }, async (stage) => {
    // One after another: a server may hold a single version.
    for (const step of base === null ? chosen : [0, ...chosen.filter((step) => step !== 0)]) {
      const weights = step === 0 && base !== null ? null : found.get(step)!;
      if (weights !== null) reporter.say(`${server.root} loads ${weights}`);
      const loaded =
        weights === null
          ? { model: base!, unload: () => Promise.resolve() }
          : await loadWeightsFolder(server, weights, `${path.basename(folder)}-step_${step}`);
      const inputs = await inputsOf(env, { ...options, baseUrl }, loaded.model);
      const input = { inputs, title: `v${step} in ${folder}`, names: env.map((id, i) => `${i}`) };
      const typed = { isTyped: true, store: undefined };
      const results = await stage.evaluate(`eval.${path.basename(folder)}.${step}`, input, typed);
      await loaded.unload();
      if (results === null) return stage.interrupted.aborted ? 130 : 1;
      for (const result of results) figures.push(await checkpointFigures(step, result));
    }
    reporter.print(curveLines(folder, figures).join('\n'));
    return 0;
  });
}

async function inputsOf(env: readonly string[], options: WeightsOptions & { readonly baseUrl: string }, model: string) {
  const projectFolder = process.cwd();
  const { model: _, ...settings } = options;
  const over = { ...settingsOf(settings), model, api_base_url: options.baseUrl };
  const { evaluations } = await loadNamedEvaluations(env, {
    projectFolder,
    over,
    builtin: options.builtin === true,
  });
  return Promise.all(
    evaluations.map(async (one) => {
      // Other weights under the same name would be another evaluation at the same place.
      const placing = {
        projectFolder,
        goOn: 'never' as const,
        newId: newEvaluationId(),
        taken: new Set<string>(),
        isHeld: () => Promise.resolve(false),
      };
      return { ...one.input, results: (await choosePlace(one, placing)).place };
    }),
  );
}

/** Steps of the folders `step_N`, with their paths. */
async function stepsIn(folder: string): Promise<Map<number, string>> {
  const names = await readdir(folder).catch((cause: unknown) => {
    throw new RatchetError(
      'RunNotFound',
      `--weights-dir: expected a folder with step_N/ in it; ${folder} cannot be read.`,
      { cause },
    );
  });
  const steps = names.flatMap((name): [number, string][] => {
    const step = /^step_(\d+)$/.exec(name)?.[1];
    return step === undefined ? [] : [[Number(step), path.join(folder, name)]];
  });
  return new Map(steps.sort(([a], [b]) => a - b));
}
