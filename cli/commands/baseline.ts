import { randomBytes } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { Command } from 'commander';
import type { Client } from '@temporalio/client';
import { storeOf, type RunPlace } from '../../runs/run-access.ts';
import { checkModel } from '../../backends/configs/check-model.ts';
import { loadRunConfig, readRunFile } from '../../backends/configs/load-run-config.ts';
import { RatchetError } from '../../core/errors.ts';
import { taskQueues } from '../../core/names.ts';
import { type Baseline, judgeBaseline, measureBaseline } from '../../core/rl/baseline.ts';
import { countOutcomes, describeFailures } from '../../core/rl/failures.ts';
import type { ScoredGroup } from '../../core/rl/rollout.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { startClock } from '../clock.ts';
import { grantNamed, namedIn } from '../../backends/configs/grant.ts';
import { type ConfigLine, readConfigLine } from '../config-line.ts';
import { describeFinding } from '../findings.ts';
import { readCount } from '../read-count.ts';
import { rootMessage } from '../root-message.ts';
import { scoredGroups } from '../run-records.ts';
import { needsOf, withProcesses } from '../processes.ts';
import { whenLeft } from '../watch-run.ts';
import { print, printAside } from '../print.ts';
import { jsonText } from '../plain-text.ts';

export const baselineCommand = new Command('baseline')
  .description(
    "before training: what the run's own model does on the run's own environments, and what the rules of thumb say of it",
  )
  .argument('<file>', 'run file (TOML)')
  .argument(
    '[overrides...]',
    'any setting of the file: --sampling.temperature 0.9, and files that are laid over it: @ FILE',
  )
  .option('--dialect <name>', 'whose words it is written in; default: what its keys show')
  .option('--examples <n>', 'how many examples', '32')
  .option('--rollouts <k>', "rollouts of each; default: the file's rollouts_per_example")
  .option('--keep', 'keep the run folder that it was measured in')
  .option('--json', 'as one JSON object: settings, baselines, findings')
  .allowUnknownOption()
  .action(async (file: string, rest: string[], options: BaselineOptions) => {
    process.exitCode = await baseline(readConfigLine([file, ...rest]), options);
  });

interface BaselineOptions {
  readonly dialect?: string;
  readonly examples: string;
  readonly rollouts?: string;
  readonly keep?: boolean;
  readonly json?: boolean;
}

/** How often one looks whether the round is scored. */
const pollMs = 300;

/**
 * Starts the run itself under a name of its own, up to the first scored sampling round of step 1: the same warm-up, policy
 * server, environments and rubrics as training, nothing imitated. Then it is cancelled and its folder removed.
 */
async function baseline({ file, over, overrides: typed }: ConfigLine, options: BaselineOptions): Promise<number> {
  const projectFolder = process.cwd();
  const read = await readRunFile(file, { projectFolder, over });
  const named = { projectFolder, over, read, ...(options.dialect === undefined ? {} : { dialect: options.dialect }) };
  const usual = (await loadRunConfig(file, { ...named, overrides: typed })).spec;
  const groupSize =
    options.rollouts === undefined ? usual.rolloutsPerExample : readCount('--rollouts', options.rollouts);
  const groups = readCount('--examples', options.examples);
  const run = `${usual.name.slice(0, 50)}-baseline-${randomBytes(2).toString('hex')}`;
  const overrides = {
    ...typed,
    'rollouts-per-example': String(groupSize),
    'batch-size': String(groups * groupSize),
    'oversampling-factor': '1',
    'max-async-level': '0',
    'max-steps': '1',
    ...(usual.wandb === null ? {} : { 'wandb.mode': 'disabled' }),
  };
  const { spec } = await loadRunConfig(file, { ...named, overrides, run });
  await checkModel(spec);
  grantNamed(projectFolder, [file, ...over.map((layer) => layer.file), ...namedIn(spec)]);
  const clock = startClock();
  const log = options.json ? { ...clock, say: printAside } : clock;
  const place = { name: run, store: spec.store.uri };
  const left = whenLeft();
  const { signal } = left.interrupted;
  const measure = async ({ client }: { readonly client: Client }): Promise<number> => {
    log.say(
      `sampling ${groups} examples × ${groupSize} with ${usual.sft && usual.sft.steps > 0 ? 'the model after its warm-up' : spec.model}`,
    );
    const measured = await sampleRound(client, place, { file, overrides, groups, signal });
    const settings = {
      temperature: spec.sampling.temperature,
      maxTokens: spec.sampling.maxTokens,
      rolloutsPerExample: usual.rolloutsPerExample,
      batchSize: usual.batchSize,
    };
    const baselines = measureBaseline(measured);
    const findings = judgeBaseline(baselines, settings);
    const lines = options.json
      ? [jsonText({ run: usual.name, settings, baselines, findings }, 2)]
      : [
          ...baselines.flatMap((baseline) => [...describeBaseline(baseline), ...failuresOf(baseline, measured)]),
          ...findings.flatMap(describeFinding),
          findings.some(({ level }) => level !== 'note')
            ? `change ${file} and measure again`
            : `${file} is worth training: npx ratchet train ${file}`,
        ];
    print(lines.join('\n'));
    if (options.keep) log.say(`stored in: ${storeOf(place).uri}   (npx ratchet rollouts ${run} --step 1)`);
    return findings.some(({ level }) => level === 'stop') ? 1 : 0;
  };
  try {
    return (await withProcesses(needsOf(spec), log, measure, left)) ?? 130;
  } catch (error) {
    if (signal.aborted) return 130;
    throw error;
  } finally {
    if (!options.keep) await removeRun(place);
  }
}

interface Sampling {
  readonly file: string;
  readonly overrides: Readonly<Record<string, string>>;
  readonly groups: number;
  readonly signal: AbortSignal;
}

/** The scored groups of step 1's first round; the workflow is over when this returns. */
async function sampleRound(
  client: Client,
  place: RunPlace,
  { file, overrides, groups, signal }: Sampling,
): Promise<ScoredGroup[]> {
  const run = place.name;
  const handle = await client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: run,
    taskQueue: taskQueues.orchestrator,
    args: [{ config: file, overrides, run }],
    workflowTaskTimeout: '5s',
    staticSummary: `baseline of ${file}: sampled, not trained`,
  });
  const ended = new AbortController();
  const failure = handle.result().then(
    () => null,
    (error: unknown) => error,
  );
  void failure.then(() => ended.abort());
  try {
    for (;;) {
      const scored = await scoredGroups(place, 1).catch(unlessNotYet);
      if (scored.length >= groups) return scored.slice(0, groups);
      signal.throwIfAborted();
      if (ended.signal.aborted) throw stoppedEarly(run, await failure);
      await delay(pollMs, undefined, { signal: AbortSignal.any([signal, ended.signal]) }).catch(() => undefined); // looked at again at once
    }
  } finally {
    if (!ended.signal.aborted) await handle.cancel();
    await failure;
  }
}

const removals = { attempts: 20, everyMs: 250 };

/** Workers of a stack that goes on may write a last line into it: until nothing is there any more. */
async function removeRun(place: RunPlace): Promise<void> {
  const store = storeOf(place);
  for (let attempt = 1; ; attempt++) {
    const failure: unknown = await store.removeAll('').then(
      () => null,
      (error: unknown) => error,
    );
    await delay(removals.everyMs);
    if (failure === null && (await store.list('')).length === 0) return;
    if (attempt === removals.attempts) throw failure ?? new Error(`${store.uri} is written to again and again`);
  }
}

/** Before the run is opened there is nothing to read. */
function unlessNotYet(error: unknown): ScoredGroup[] {
  if (error instanceof RatchetError && error.code === 'StoreUnavailable') return [];
  throw error;
}

function stoppedEarly(run: string, cause: unknown): RatchetError {
  const why = cause instanceof Error ? rootMessage(cause) : 'it ended without a scored round';
  return new RatchetError('Unsupported', `The run ${run}, in which the baseline was measured, failed: ${why}`, {
    cause,
  });
}

function failuresOf({ environment }: Baseline, groups: readonly ScoredGroup[]): string[] {
  const rollouts = groups.filter((group) => group.environment === environment).flatMap((group) => group.rollouts);
  return describeFailures(countOutcomes(rollouts)).map((line) => `  ${line.split('\n')[0]}`);
}

function describeBaseline(baseline: Baseline): string[] {
  const {
    environment,
    groups,
    attempts,
    meanReward,
    least,
    most,
    diverseShare,
    truncatedShare,
    distinctShare,
    failedShare,
    meanTokens,
  } = baseline;
  const percent = (share: number): string => `${Math.round(share * 100)} %`;
  const reward = meanReward === null ? 'no reward' : `reward ${meanReward.toFixed(3)} (${least} to ${most})`;
  return [
    `${environment}: ${reward} over ${attempts} rollouts of ${groups} examples`,
    `  rewards differ in ${percent(diverseShare)} of the groups · ${percent(distinctShare)} of a group's answers differ · ${percent(truncatedShare)} cut off · ${percent(failedShare)} failed · ${meanTokens.toFixed(1)} tokens`,
  ];
}
